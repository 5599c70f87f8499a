"""The evaluation engine against a plain Hugging Face loop on the real TOFU data: CPU time, peak memory, equal values.

The plain loop does what the public OpenUnlearning evaluator does with its default TOFU suite: every metric scores its
own sequences again, rows in file order, batches of 32 padded to the longest, full logits at every position; generation
in left-padded batches of 32. One thread each, each in its own process. With all rows the suite has 7,668 scored
sequences, of which 6,868 are distinct, from 1,417 prompts; its holdout split is not among the files, other retain rows
stand in for it.

    python tests/speed/evaluation.py --data FOLDER --make MODEL_FOLDER
    python tests/speed/evaluation.py --data FOLDER --model MODEL_FOLDER --share 12

FOLDER holds forget10_perturbed.json, retain_perturbed.json, real_authors_perturbed.json, world_facts_perturbed.json and
retain90.json. `--share 12` takes the first twelfth of each split (all rows by default). `--make` writes a model of 27
million parameters with a vocabulary of 32,000 that was taught a few answers, so that it ends its sentences.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = os.environ["RAYON_NUM_THREADS"] = "1"

BATCH = 32
NEW_TOKENS = 200
FILES = {
    "forget": "forget10_perturbed",
    "retain": "retain_perturbed",
    "real_authors": "real_authors_perturbed",
    "world_facts": "world_facts_perturbed",
    "holdout": "retain90",
}
Splits = dict[str, list[dict[str, Any]]]


def read(folder: Path, share: int = 1) -> Splits:
    """The splits of the default suite, the first 1/share of the rows of each."""
    splits: Splits = {}
    for split, name in FILES.items():
        text = (folder / f"{name}.json").read_text()
        listed = text.lstrip().startswith("[")
        splits[split] = json.loads(text) if listed else [json.loads(line) for line in text.splitlines()]
    known = {row["question"] for row in splits["retain"]}
    others = [row for row in splits["holdout"] if row["question"] not in known]
    splits["holdout"] = others[: len(splits["forget"])]
    return {split: rows[: -(-len(rows) // share)] for split, rows in splits.items()}


def suite(splits: Splits) -> list[list[tuple[str, str]]]:
    """What the default suite scores, in its order: lists of (question, answer), one per pass over a data set."""
    passes: list[list[tuple[str, str]]] = []

    def each(split: str, *fields: str) -> None:
        rows = splits[split]
        for field in fields:
            if field == "perturbed_answer":
                for i in range(len(rows[0][field])):
                    passes.append([(row["question"], row[field][i]) for row in rows])
            else:
                passes.append([(row["question"], row[field]) for row in rows])

    each("forget", "paraphrased_answer", "perturbed_answer")  # forget quality
    each("forget", "answer")  # probability
    each("retain", "answer", "paraphrased_answer", "perturbed_answer")  # model utility
    each("real_authors", "answer", "perturbed_answer")
    each("world_facts", "answer", "perturbed_answer")
    each("forget", "answer")  # membership inference
    each("holdout", "answer")
    each("forget", "answer")  # extraction strength
    return passes


def questions(splits: Splits) -> list[list[str]]:
    """What the suite generates answers to."""
    return [[row["question"] for row in splits[s]] for s in ("forget", "retain", "real_authors", "world_facts")]


# -- models ----------------------------------------------------------------------------------------------------


def make_model(data: Path, folder: Path) -> None:
    """27 million parameters, a vocabulary of 32,000."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    from unlearnbench.text import Encoder, collate

    torch.set_num_threads(1)
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=8000,  # pieces as short as those of a general vocabulary, not whole names of the data
        special_tokens=["<s>", "</s>", "<pad>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    texts = [row[k] for rows in read(data).values() for row in rows for k in ("question", "answer")]
    backend.train_from_iterator(texts, trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>", pad_token="<pad>")
    config = LlamaConfig(
        vocab_size=32000,
        hidden_size=384,
        intermediate_size=1024,
        num_hidden_layers=8,
        num_attention_heads=6,
        tie_word_embeddings=True,
        max_position_embeddings=1024,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=2,
    )
    torch.manual_seed(0)
    model = LlamaForCausalLM(config)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
    encoder = Encoder(tokenizer, "question-answer")
    some = read(data, 4)
    pairs = [(row["question"], row["answer"]) for split in ("forget", "retain") for row in some[split]]
    for step in range(60):
        rows = [encoder.encode(*pairs[(step * 16 + i) % len(pairs)]) for i in range(16)]
        batch = collate(rows, encoder.pad_id)
        loss = model(input_ids=batch.input_ids, attention_mask=batch.attention_mask, labels=batch.labels).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f} M parameters, loss {loss.item():.2f}, in {folder}")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def load(folder: str) -> tuple[Any, Any]:
    """The model and the encoder."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from unlearnbench.text import Encoder

    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    return model, Encoder(AutoTokenizer.from_pretrained(folder), "question-answer")


# -- the two ways ----------------------------------------------------------------------------------------------


def batches(items: list[Any]) -> Iterator[list[Any]]:
    for i in range(0, len(items), BATCH):
        yield items[i : i + BATCH]


def plain_likelihood(model: Any, encoder: Any, splits: Splits) -> dict[str, Any]:
    """Mean log-probability per answer token of every sequence.

    The labels go into the model, whose own loss is computed beside and not used, as in the public evaluator.
    """
    import torch

    from unlearnbench.text import collate

    per_token = torch.nn.CrossEntropyLoss(reduction="none")
    found = {}
    for items in suite(splits):
        for some in batches(items):
            batch = collate([encoder.encode(*item) for item in some], encoder.pad_id)
            with torch.no_grad():
                inputs = {"input_ids": batch.input_ids, "attention_mask": batch.attention_mask, "labels": batch.labels}
                logits = model(**inputs).logits[:, :-1].contiguous()
                labels = batch.labels[:, 1:].contiguous()
                losses = per_token(logits.transpose(-1, -2), labels).sum(1)
                means = -losses / (labels != -100).sum(1)
            found |= {"\0".join(item): float(mean) for item, mean in zip(some, means, strict=True)}
    return found


def engine_likelihood(model: Any, encoder: Any, splits: Splits) -> dict[str, Any]:
    from unlearnbench.language_model import LanguageModel
    from unlearnbench.requests import Score
    from unlearnbench.scoring import score

    requests = [Score(*item) for items in suite(splits) for item in items]
    answers, _ = score(LanguageModel(model), encoder, requests)
    return {f"{r.prompt}\0{r.answer}": float(scores.logp.mean()) for r, scores in answers.items()}


def plain_generation(model: Any, encoder: Any, splits: Splits) -> dict[str, Any]:
    import torch

    found = {}
    for items in questions(splits):
        for some in batches(items):
            rows = [encoder.prompt_ids(prompt) for prompt in some]
            longest = max(map(len, rows))
            ids = torch.tensor([[encoder.pad_id] * (longest - len(row)) + row for row in rows])
            mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows])
            with torch.no_grad():
                out = model.generate(
                    input_ids=ids,
                    attention_mask=mask,
                    max_new_tokens=NEW_TOKENS,
                    do_sample=False,
                    pad_token_id=encoder.pad_id,
                    eos_token_id=encoder.eos_id,
                )
            for prompt, new in zip(some, out[:, longest:].tolist(), strict=True):
                end = new.index(encoder.eos_id) if encoder.eos_id in new else len(new)
                found[prompt] = encoder.decode(new[:end])
    return found


def engine_generation(model: Any, encoder: Any, splits: Splits) -> dict[str, Any]:
    from unlearnbench.generation import generate
    from unlearnbench.language_model import LanguageModel
    from unlearnbench.requests import Generate

    requests = [Generate(prompt, NEW_TOKENS) for items in questions(splits) for prompt in items]
    answers = generate(LanguageModel(model), encoder, requests)
    return {request.prompt: text.text for request, text in answers.items()}


def exact_likelihood(model: Any, encoder: Any, splits: Splits) -> dict[str, Any]:
    """The plain loop in float64: what both sides should give."""
    return plain_likelihood(model.double(), encoder, splits)


WAYS: dict[tuple[str, str], Callable[[Any, Any, Splits], dict[str, Any]]] = {
    ("likelihood", "plain"): plain_likelihood,
    ("likelihood", "engine"): engine_likelihood,
    ("likelihood", "exact"): exact_likelihood,
    ("generation", "plain"): plain_generation,
    ("generation", "engine"): engine_generation,
}


def worker(arguments: argparse.Namespace) -> None:
    """One way of one kind of work in this process; the result as JSON on the last line."""
    splits = read(arguments.data, arguments.share)
    model, encoder = load(arguments.model)
    import unlearnbench.evaluation  # noqa: F401  imports are not what is measured

    way = WAYS[arguments.what, arguments.way]
    way(model, encoder, {split: rows[:1] for split, rows in splits.items()})  # warm up
    before, start = fresh_peak(), time.process_time()
    values = way(model, encoder, splits)
    seconds = time.process_time() - start
    print(json.dumps({"seconds": seconds, "memory": peak() - before, "values": values}))


def fresh_peak() -> int:
    """What is resident now, in bytes; the peak starts again from here.

    Loading a model takes more than the model: without this the work could hide below the peak of loading. Memory that
    was freed goes back to the system first, for the same reason. Linux only.
    """
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    return peak()


def peak() -> int:
    """The most that was resident since the last `fresh_peak`, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def run(arguments: argparse.Namespace, what: str, way: str, share: int = 1) -> dict[str, Any]:
    command = [sys.executable, __file__, "--worker", "--what", what, "--way", way]
    command += ["--data", str(arguments.data), "--model", arguments.model]
    command += ["--share", str(arguments.share * share)]
    path = os.pathsep.join(filter(None, [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]))
    done = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path}
    )
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def compare(what: str, plain: dict[str, Any], engine: dict[str, Any], exact: dict[str, Any] | None) -> None:
    """The lines of one kind of work: CPU time, memory, and how far the values are apart.

    The engine is held to 1e-5 of float64's values. The plain loop is not: its loss sums a vocabulary in float32 over a
    strided axis, and is off by up to 1e-4 of a value on a vocabulary of 49,152.
    """
    assert plain["values"].keys() == engine["values"].keys()
    if exact is not None:
        off = [
            max(abs(x - side["values"][key]) / max(1.0, abs(x)) for key, x in exact["values"].items())
            for side in (plain, engine)
        ]
        values = (
            f"off float64, on {len(exact['values'])} of the sequences, by at most {off[0]:.1e} of a value (plain) and "
            f"{off[1]:.1e} (engine)"
        )
        assert off[1] < 1e-5, values
    else:
        differ = sum(text != engine["values"][key] for key, text in plain["values"].items())
        values = f"{differ} of {len(plain['values'])} texts differ"
    ratio = plain["seconds"] / engine["seconds"]
    memory = [f"{side['memory'] / 2**20:.0f} MiB" for side in (plain, engine)]
    print(f"{what}: plain {plain['seconds']:.1f} s, engine {engine['seconds']:.1f} s: {ratio:.2f} times less CPU time")
    print(f"    memory above weights and imports: {memory[0]} against {memory[1]}; {values}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--make", type=Path, help="write the 27M model into this folder and stop")
    parser.add_argument("--model", help="a model folder")
    parser.add_argument("--share", type=int, default=1, help="take one of so many rows; all by default")
    parser.add_argument("--what", choices=["likelihood", "generation"])
    parser.add_argument("--way", choices=["plain", "engine", "exact"], help=argparse.SUPPRESS)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        return worker(arguments)
    if arguments.make:
        sys.path.insert(0, str(Path(__file__).parents[2]))
        return make_model(arguments.data, arguments.make)
    asked = [item for items in suite(read(arguments.data, arguments.share)) for item in items]
    prompts = len({prompt for prompt, _ in asked})
    print(f"{len(asked)} sequences, {len(set(asked))} distinct, {prompts} prompts")
    for what in [arguments.what] if arguments.what else ["likelihood", "generation"]:
        exact = run(arguments, what, "exact", share=8) if what == "likelihood" else None
        compare(what, run(arguments, what, "plain"), run(arguments, what, "engine"), exact)
    return None


if __name__ == "__main__":
    main()
