"""MUSE's scores and prompts, and the encodings of OpenUnlearning and TOFU, against their code (`metrics_muse*`)."""

from __future__ import annotations

import json
import math
import os
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from unlearnbench.benchmarks.base import Benchmark, Row
from unlearnbench.evaluation import rescore
from unlearnbench.metric import Context, Generate, Score, Text, TokenScores, metrics
from unlearnbench.metrics import membership
from unlearnbench.metrics.muse import PROTOCOLS, KnowMem, VerbMem, question_prompt, response, truncated
from unlearnbench.metrics.privleak import privleak
from unlearnbench.metrics.rouge import rouge_1, rouge_l
from unlearnbench.text import TEMPLATES, Encoder, Template

FOLDER = Path(os.environ.get("UNLEARNBENCH_GOLDEN_DIR", Path(__file__).parent / "data"))
CONTENT = {file.stem: json.loads(file.read_text()) for file in sorted(FOLDER.glob("metrics_muse*.json"))}
KNOWN = {
    "description",
    "tolerance",
    "knowmem_icl",
    "knowmem_zero_shot",
    "knowmem_source",
    "verbmem",
    "open_unlearning_prompts",
    "tofu_label_construction",
    "privleak",
}


class Stored(Benchmark):
    name = "stored"


@pytest.fixture(params=sorted(CONTENT))
def content(request: pytest.FixtureRequest) -> dict[str, Any]:
    return CONTENT[request.param]


def test_every_section_is_known(content: dict[str, Any]) -> None:
    assert content.keys() == KNOWN and content["tolerance"].keys() == {"rel"}


def test_there_are_files() -> None:
    assert CONTENT and "muse" in PROTOCOLS


def check_rouge(reference: str, said: str, expected: dict[str, float], rel: float) -> None:
    for name, number in expected.items():
        variant, _, field = name.partition("_")
        found = {"rougeL": rouge_l, "rouge1": rouge_1}[variant](reference, said, "muse")
        assert getattr(found, field or "f1") == pytest.approx(number, rel=rel, abs=0.0), name


@pytest.mark.parametrize("section", ["knowmem_icl", "knowmem_zero_shot"])
def test_knowmem(content: dict[str, Any], section: str) -> None:
    case, rel = content[section], content["tolerance"]["rel"]
    expected, solved = case["expected"], [tuple(pair) for pair in case["icl"]]
    assert expected.keys() == {"prompts", "responses", "per_sample", "mean_rougeL", "max_rougeL", "reported_score"}
    assert not case["do_sample"]
    pairs = list(zip(case["questions"], case["answers"], strict=True))
    data = Stored(
        {
            "knowmem_forget": [Row(str(i), q, a) for i, (q, a) in enumerate(pairs)],
            "knowmem_forget_icl": [Row(f"icl{i}", q, a) for i, (q, a) in enumerate(solved)],
        }
    )
    metric = KnowMem(protocol="muse", max_new_tokens=case["max_new_tokens"], shots=len(solved))
    requests = list(metric.requests(data))
    assert [request.prompt for request in requests] == expected["prompts"]  # type: ignore[attr-defined]
    answers: dict[Any, Any] = {}
    for request, text in zip(requests, case["raw_generations"], strict=True):
        answers[request] = Text(text, 0, True)
    value = metric.compute(Context(data, answers, {}))
    assert value.score == pytest.approx(expected["reported_score"], rel=rel)
    assert value.score == pytest.approx(100 * expected["mean_rougeL"], rel=rel)
    assert [response(text, "muse") for text in case["raw_generations"]] == expected["responses"]
    samples = list(value.per_sample.values())
    for i, numbers in enumerate(expected["per_sample"]):
        check_rouge(case["answers"][i], expected["responses"][i], numbers, rel)
        assert samples[i] == pytest.approx(100 * numbers["rougeL"], rel=rel)
    assert max(samples) == pytest.approx(100 * expected["max_rougeL"], rel=rel)  # type: ignore[type-var]


def words_of(text: str) -> TokenScores:
    """A tokenizer with one token a word, and EOS."""
    spans, at = [], 0
    for word in text.split():
        start = text.index(word, at)
        at = start + len(word)
        spans.append((start, at))
    spans.append((len(text), len(text)))
    return TokenScores(np.zeros(len(spans)), np.zeros(len(spans), bool), spans=np.array(spans))


def test_verbmem(content: dict[str, Any]) -> None:
    section, rel = content["verbmem"], content["tolerance"]["rel"]
    pairs = list(zip(section["prompts"], section["references"], strict=True))
    data = Stored({"verbmem_forget": [Row(str(i), p, r) for i, (p, r) in enumerate(pairs)]})
    assert section["cases"]
    for case in section["cases"]:
        expected, budget = case["expected"], case["max_new_tokens"]
        metric = VerbMem(protocol="muse", max_new_tokens=budget)
        known = dict(zip(section["prompts"], expected["responses"], strict=True))
        answers: dict[Any, Any] = {}
        for request in metric.requests(data):
            if isinstance(request, Generate):
                assert request.raw and request.max_new_tokens == budget
                answers[request] = Text(known[request.prompt], 0, True)
            elif isinstance(request, Score):
                answers[request.bare] = words_of(request.answer)
        value = metric.compute(Context(data, answers, {}))
        assert section["prompts"] == expected["prompts"]
        assert value.score == pytest.approx(expected["reported_score"], rel=rel)
        assert value.score == pytest.approx(100 * expected["mean_rougeL"], rel=rel)
        for i, numbers in enumerate(expected["per_sample"]):
            reference = truncated(section["references"][i], words_of(section["references"][i]), budget, "muse")
            assert reference == expected["truncated_references"][i]
            check_rouge(reference, expected["responses"][i], numbers, rel)
            assert value.per_sample[str(i)] == pytest.approx(100 * numbers["rougeL"], rel=rel)


# -- encodings -------------------------------------------------------------------------------------------------


def character_tokenizer(texts: list[str]) -> PreTrainedTokenizerFast:
    """One token per character, and BOS in front."""
    characters = sorted({char for text in texts for char in text})
    vocabulary = {token: i for i, token in enumerate(["<s>", "</s>", "<unk>", *characters])}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>", pad_token="</s>")


def named(template: Template) -> str:
    """The name under which a user asks for this template."""
    (name,) = [name for name, known in TEMPLATES.items() if known == template]
    return name


def test_open_unlearning_prompts(content: dict[str, Any]) -> None:
    cases = content["open_unlearning_prompts"]["cases"]
    assert cases
    for case in cases:
        tags, expected = case["template_tags"], dict(case["expected"])
        assert not tags.pop("apply_chat_template") and len(tags) == 4
        template = Template(*(tags[k] for k in ("user_start_tag", "user_end_tag", "asst_start_tag", "asst_end_tag")))
        tokenizer = character_tokenizer([expected["full_string"]])
        encoder = Encoder(tokenizer, named(template), 4096, "open-unlearning")
        solved = [tuple(pair) for pair in case["icl"]]
        prompt = template.question(case["question"], solved) + template.tag
        assert prompt == expected.pop("prompt_string")
        assert prompt + case["answer"] == expected.pop("full_string")
        # shots are part of the prompt: without them the template frames it, with them it comes framed
        row = encoder.encode(prompt, case["answer"], raw=True)
        if not solved:
            assert encoder.encode(case["question"], case["answer"]) == row
            assert encoder.prompt_ids(case["question"]) == encoder.prompt_ids(prompt, raw=True)
        if named(template) == "question-answer":
            assert prompt == question_prompt(case["question"], solved)
        assert len(row.ids) == expected.pop("num_tokens")
        assert row.prompt_length == expected.pop("num_prompt_tokens_masked")
        assert (row.ids[-1] == tokenizer.eos_token_id) == expected.pop("eos_appended")
        assert expected.pop("eos_labelled") and expected.pop("attention_all_ones")
        assert (encoder.prompt_ids(prompt, raw=True) == list(row.ids[: row.prompt_length])) == expected.pop(
            "generation_input_equals_prompt"
        )
        assert not expected


def test_tofu_label_construction(content: dict[str, Any]) -> None:
    cases = content["tofu_label_construction"]["cases"]
    assert cases
    for case in cases:
        expected, tags = dict(case["expected"]), case["tags"]
        wanted = (tags["question_start_tag"], tags["question_end_tag"], tags["answer_tag"])
        (name,) = [name for name, known in TEMPLATES.items() if known[:3] == wanted]
        tokenizer = character_tokenizer([expected["full_string"]])
        row = Encoder(tokenizer, name, case["max_length"], "tofu").encode(case["question"], case["answer"])
        text = "".join(tokenizer.convert_ids_to_tokens(row.ids))
        ended = row.ids[-1] == tokenizer.eos_token_id
        labelled = row.ids[row.prompt_length :]
        assert text.removeprefix("<s>").removesuffix("</s>") == expected.pop("full_string")
        assert len(row.ids) - ended == expected.pop("num_real_tokens")
        assert row.prompt_length == expected.pop("num_prompt_tokens_masked")
        assert len(labelled) == expected.pop("num_labels")
        assert "".join(tokenizer.convert_ids_to_tokens(labelled)).removesuffix("</s>") == expected.pop("labelled_text")
        assert ended == expected.pop("eos_labelled_after_text")
        # Nothing looks at the last token, so its attention does not matter; nor does padding beyond it.
        assert expected.pop("attention_on_that_eos") == (0 if ended else None)
        assert expected.pop("padded_length") == case["max_length"]
        assert not expected


# -- PrivLeak --------------------------------------------------------------------------------------------------


def test_privleak(content: dict[str, Any]) -> None:
    section, rel = content["privleak"], content["tolerance"]["rel"]
    tolerance = {"rel": max(rel, 1e-9), "abs": 1e-9}
    same_build = section["zlib_runtime"] == zlib.ZLIB_RUNTIME_VERSION
    sets: dict[str, dict[str, list[float]]] = {}
    for side, samples in section["samples"].items():
        data, answers = benchmark_of(samples)
        for sample in samples:
            assert not same_build or membership.compressed(sample["text"]) == sample["zlib_length"]
        attacks = sorted(samples[0]["expected"])
        for attack in attacks:
            scores = scores_of(attack, data, answers, samples)
            for i, sample in enumerate(samples):
                check_number(scores[str(i)], sample["expected"][attack], tolerance)
            sets.setdefault(attack, {})[side] = [math.nan if s is None else s for s in scores.values()]
    for name, number in section["expected_auc"].items():
        a, b, attack = name.split("_")
        # theirs: the share of pairs where b's metric is lower than a's; ours: members have the higher score
        assert 1 - membership.auc(sets[attack][a], sets[attack][b]) == pytest.approx(number, rel=1e-9, abs=1e-12), name
    assert section["auc_key_used"] == "forget_holdout_Min-40%"


def check_number(score: float | None, expected: Any, tolerance: dict[str, float]) -> None:
    """Their metrics are higher for non-members; NaN is no number."""
    if expected == "NaN" or expected is None:
        assert score is None
    else:
        assert score is not None and -score == pytest.approx(expected, **tolerance)


def benchmark_of(samples: list[dict[str, Any]]) -> tuple[Stored, dict[Any, Any]]:
    rows = [Row(str(i), "", sample["text"]) for i, sample in enumerate(samples)]
    answers: dict[Any, Any] = {}
    for row, sample in zip(rows, samples, strict=True):
        logp = np.array(sample["token_logprobs"])
        answers[Score("", row.answer)] = TokenScores(logp, np.zeros(len(logp), bool))
        if "mean_nll_of_lower_case_text" in sample:
            lower = np.array([-sample["mean_nll_of_lower_case_text"]])
            answers.setdefault(Score("", row.answer.lower()), TokenScores(lower, np.zeros(1, bool)))
    return Stored({"forget": rows}), answers


def scores_of(
    attack: str, data: Stored, answers: dict[Any, Any], samples: list[dict[str, Any]]
) -> dict[str, float | None]:
    """The membership scores of the registered attack that MUSE calls `attack`."""
    names = {"PPL": "loss_auc", "PPL/lower": "lowercase_auc", "PPL/zlib": "zlib_auc"}
    options = {"k": int(attack[4:-1]) / 100} if attack.startswith("Min-") else {}
    metric = metrics.get(names.get(attack, "mink_auc")).build(protocol="muse", **options)
    context = Context(data, answers, {})
    recorded = {sample["text"]: sample.get("zlib_length", 1) for sample in samples}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(membership, "compressed", recorded.__getitem__)
        return {row.id: metric.membership(row, context) for row in data.rows("forget")}


def test_privleak_reported(content: dict[str, Any]) -> None:
    section, rel = content["privleak"], content["tolerance"]["rel"]
    known = {"source", "samples", "expected_auc", "auc_key_used", "expected_reported", "zlib_runtime", "short_text"}
    assert section.keys() == known and section["expected_reported"]
    auc = section["expected_auc"][section["auc_key_used"]]
    for case in section["expected_reported"].values():
        assert case.keys() == {"auc_retrain_used", "privleak"}
        assert privleak(1 - auc, 1 - case["auc_retrain_used"], epsilon=0.0) == pytest.approx(case["privleak"], rel=rel)


def test_short_text(content: dict[str, Any]) -> None:
    sample = content["privleak"]["short_text"]
    data, answers = benchmark_of([sample])
    assert sample["expected"]
    for attack, expected in sample["expected"].items():
        scores = scores_of(attack, data, answers, [sample])
        check_number(scores["0"], expected, {"rel": 1e-9, "abs": 1e-9})


def test_rescore_takes_the_protocol_by_name() -> None:
    data = Stored({"knowmem_forget": [Row("0", "q", "Paris")]})
    answers: dict[Any, Any] = {Generate(question_prompt("q"), 32, raw=True): Text("\n\nParis", 2, True)}
    values = rescore(answers, data, ["knowmem_forget", "knowmem_forget@muse"]).values
    assert values["knowmem_forget"].score == 100
    assert values["knowmem_forget@muse"].score == 0
