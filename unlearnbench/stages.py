"""What each stage of an experiment does: train a model, unlearn, evaluate. Run in a worker, on plain values.

A stage function gets the stage's spec (the canonical mapping that its key is the hash of), the folders of its parents,
its own folder to write into, and returns what goes into `record.json` beside what the store adds.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import transformers
from accelerate import Accelerator

# What transformers loads when first used: imported here, so that the fork server has it once for all workers.
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM, PreTrainedTokenizerFast  # noqa: F401

from unlearnbench import answers as answer_files
from unlearnbench import evaluation, models
from unlearnbench.attacks.base import attacks
from unlearnbench.benchmarks.base import Benchmark, benchmarks
from unlearnbench.benchmarks.mini import model as embedded
from unlearnbench.canonical import write_json
from unlearnbench.clock import Clock, peak_memory_bytes
from unlearnbench.errors import UserError
from unlearnbench.executors import report_progress
from unlearnbench.finetuning import finetune
from unlearnbench.language_model import LanguageModel
from unlearnbench.method import Method, methods
from unlearnbench.metric import resolve
from unlearnbench.models import Loaded
from unlearnbench.probing import oracle_numbers
from unlearnbench.requests import Generate
from unlearnbench.selection import Selector
from unlearnbench.settings import ModelSettings, TrainSettings
from unlearnbench.training import Hooks
from unlearnbench.unlearning import Supply, unlearn

Parents = Mapping[str, Path]


def train(spec: Mapping[str, Any], parents: Parents, folder: Path) -> dict[str, Any]:
    """Stages `base`, `target`, `retrained`: fine-tune on the rows of `spec['splits']`, from the parent or from
    scratch.
    """
    settings, seed = TrainSettings(**spec["settings"]), int(spec["seed"])
    _settle(spec)
    clock, data = Clock(), benchmark_of(spec)
    with clock.phase("load"):
        loaded = _model(spec, parents.get("base"), seed)
        models.master_weights(loaded.lm)
    rows = [row for split in spec["splits"] for row in data.rows(split)]
    outcome = finetune(loaded.lm, loaded.encoder, rows, settings, seed, Accelerator(), clock, _hooks(folder, settings))
    return {
        **_save(loaded, folder, _loaded_as(spec)),
        "outcome": asdict(outcome),
        "seconds": clock.seconds,
        "rows": len(rows),
    }


def run_method(spec: Mapping[str, Any], parents: Parents, folder: Path) -> dict[str, Any]:
    """Stage `unlearn`: run a method on the target."""
    settings, seed = TrainSettings(**spec["settings"]), int(spec["seed"])
    _settle(spec)
    clock, data = Clock(), benchmark_of(spec)
    entry = methods.get(spec["cell"]["method"])
    method: Method = entry.cls(**spec["cell"]["params"])
    with clock.phase("load"):
        loaded = _model(spec, parents.get("target"), seed)
        models.master_weights(loaded.lm)
    forget, retain = data.rows(spec["forget"]), data.splits.get(spec["retain"], ())
    holdout = data.rows("holdout") if "holdout" in data.splits else ()
    hooks = _hooks(folder, settings)
    hooks.evaluate = _trajectory(spec, loaded, data)
    hooks.selector = _selector(spec, settings, loaded, data, len(forget))
    supply = Supply(holdout=holdout, generate=_sampler, load_base=_base_loader(spec, parents))
    if "retrained" in parents or "retrained" in spec:
        retrained = _model({**spec, "given": spec.get("retrained")}, parents.get("retrained"), seed)
        supply.stop_numbers = oracle_numbers(retrained.lm, retrained.encoder, forget)
    lm, outcome = unlearn(
        method, loaded.lm, loaded.encoder, forget, retain, settings, seed, Accelerator(), clock, hooks, supply
    )
    saved = _save(Loaded(lm, loaded.encoder), folder, _loaded_as(spec), **spec.get("deliver", {}))
    record = {**saved, "seconds": clock.seconds, "cost_seconds": clock.cost}
    done = asdict(outcome)
    stop = done.pop("stop")
    record["stop"] = _stop(method, stop, hooks)
    record["selection"] = "best-checkpoint" if hooks.selector else "online-stop" if stop else "last"
    if hooks.selector is not None:
        record |= {"oracle": True, "selected": {"step": hooks.selector.best, "readings": hooks.selector.readings}}
    return {**record, **done, "seed": seed}


def evaluate(
    spec: Mapping[str, Any], parents: Parents, folder: Path, retrained: evaluation.Evaluation | None = None
) -> dict[str, Any]:
    """Stage `evaluate`: attack the model if asked to, then score it. `retrained`: an evaluation that is no stage."""
    _settle(spec)
    clock, data = Clock(), benchmark_of(spec)
    with clock.phase("load"):
        loaded = _model(spec, parents.get("model"), int(spec["seed"]))
        lm, attack_record = loaded.lm, {}
        if spec["attack"] != "none":
            lm, attack_record = attacks.get(spec["attack"]).build().apply(lm)
        roles = {"model": lm} | {
            role: _model(spec, parents[role], int(spec["seed"])).lm for role in ("target", "base") if role in parents
        }
        if "retrained" in parents:
            retrained = load_evaluation(parents["retrained"], data)
    names = list(spec["metrics"])
    with clock.phase("evaluate"):
        scored = evaluation.evaluate(
            roles, loaded.encoder, data, names, retrained, max_new_tokens=spec.get("max_new_tokens")
        )
    answer_files.save(folder / "answers.parquet", scored.answers)
    save_values(scored, folder)
    write_json(folder / "examples.json", _examples(scored, data))
    return {
        "counts": scored.counts,
        "attack": attack_record,
        "seconds": clock.seconds,
        "peak_memory_bytes": peak_memory_bytes(),
    }


def save_values(scored: evaluation.Evaluation, folder: Path) -> None:
    """Write `samples.parquet` and `metrics.json`."""
    scored.samples().to_parquet(folder / "samples.parquet", index=False)
    write_json(folder / "metrics.json", {"metrics": scored.metrics_json()})


def _examples(scored: evaluation.Evaluation, data: Benchmark, count: int = 5) -> list[dict[str, str]]:
    """A few rows of the forget and the retain side with what the model answers, for people to read."""
    texts = {request.prompt: text.text for request, text in scored.answers.items() if isinstance(request, Generate)}
    examples = []
    for split in ("forget", "retain_eval" if "retain_eval" in data.splits else "retain"):
        rows = [row for row in data.splits.get(split, ()) if row.prompt in texts]
        step = (len(rows) // count + 1) | 1  # an odd step meets every kind of question in turn
        for row in rows[::step][:count]:
            examples.append(
                {
                    "split": split,
                    "row_id": row.id,
                    "prompt": row.prompt,
                    "answer": row.answer,
                    "text": texts[row.prompt],
                }
            )
    return examples


def load_evaluation(folder: Path, data: Benchmark) -> evaluation.Evaluation:
    """The evaluation in a run folder, its metrics computed again from the answers."""
    names = [line["name"] for line in json.loads((folder / "metrics.json").read_text())["metrics"]]
    return evaluation.rescore(answer_files.load(folder / "answers.parquet"), data, names)


STAGES: dict[str, Callable[[Mapping[str, Any], Parents, Path], dict[str, Any]]] = {
    "base": train,
    "target": train,
    "retrained": train,
    "unlearn": run_method,
    "evaluate": evaluate,
}


# -- parts -----------------------------------------------------------------------------------------------------


def _settle(spec: Mapping[str, Any]) -> None:
    """The stage's threads, and no chatter of the libraries: the progress display is ours."""
    torch.set_num_threads(int(spec["threads"]))
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    warnings.simplefilter("ignore", FutureWarning)


def benchmark_of(spec: Mapping[str, Any]) -> Benchmark:
    """The benchmark of a stage. Raises `UserError` when its rows are not those of the stage any more."""
    data: Benchmark = benchmarks.get(spec["benchmark"]["name"]).build(**spec["benchmark"]["options"])
    if data.data_hash != spec["benchmark"]["data_hash"]:
        raise UserError(f"The rows of benchmark '{data.name}' are not those the stage was planned with; plan again.")
    return data


def _model(spec: Mapping[str, Any], folder: Path | None, seed: int) -> Loaded:
    """The model in a parent's folder, or the one that the spec names."""
    settings = ModelSettings(**(spec.get("given") or spec["model"])["settings"])
    if folder is not None:
        loaded = models.load(settings, folder / "model")
        recorded = json.loads((folder / "record.json").read_text())["weights"]
        if models.weights_hash(loaded.lm) != recorded:
            raise UserError(f"The weights in {folder} are not those its record names; remove the folder and run again.")
        return loaded
    if settings.name in embedded.MODELS:
        hf, tokenizer = embedded.build(settings.name, seed, settings.width)
        return Loaded(LanguageModel(hf), models.make_encoder(hf, tokenizer, settings))
    return models.load(settings)


def _loaded_as(spec: Mapping[str, Any]) -> str:
    """The precision in which the stage's models are loaded."""
    return ModelSettings(**(spec.get("given") or spec["model"])["settings"]).dtype


def _save(
    loaded: Loaded, folder: Path, loaded_as: str, dtype: str | None = None, adapter: bool = False
) -> dict[str, Any]:
    """Write the model, in `dtype` if one is named, and the adapter by itself if asked for.

    It is rounded to `loaded_as` first, the precision in which those who score it will load it. What is recorded, and
    scored later, are the weights as they are in the files.
    """
    if adapter:
        if not models.has_adapter(loaded.lm):
            raise UserError("There is no adapter to write: unlearning changed the weights themselves (no `lora`).")
        models.save(loaded.lm, loaded.encoder, folder / "adapter")
    merged = models.merge_lora(loaded.lm)
    merged.hf.to(getattr(torch, loaded_as))
    if dtype is not None:
        models.round_weights(merged, dtype)
    said = {
        "weights": models.weights_hash(merged),
        "parameters": models.parameter_count(merged),
        "encoder": loaded.encoder.fingerprint,
    }
    if dtype is not None:
        merged.hf.to(getattr(torch, dtype))
    models.save(merged, loaded.encoder, folder / "model")
    return said


def _hooks(folder: Path, settings: TrainSettings) -> Hooks:
    log = folder / "log.jsonl"

    def resumed(step: int) -> None:
        """Keep only the lines of steps the checkpoint has."""
        lines = log.read_text().splitlines() if log.exists() and step else []
        kept = [line for line in lines if line.endswith("}") and json.loads(line)["step"] <= step]
        log.write_text("".join(line + "\n" for line in kept))

    def write(line: dict[str, Any]) -> None:
        with log.open("a") as file:
            file.write(json.dumps(line, allow_nan=False) + "\n")

    checkpoint = folder / "checkpoint" if settings.checkpoint_every else None
    return Hooks(log=write, progress=report_progress, resumed=resumed, checkpoint=checkpoint)


def _trajectory(
    spec: Mapping[str, Any], loaded: Loaded, data: Benchmark
) -> Callable[[LanguageModel, int, int, bool], dict[str, Any] | None] | None:
    """Score a few metrics at evenly spaced steps and at the end, for the trajectory plot; off the clock."""
    points, names = spec["trajectory"]["points"], spec["trajectory"]["metrics"]
    if not points:
        return None

    def score(lm: LanguageModel, step: int, steps: int, last: bool) -> dict[str, Any] | None:
        if not last and step not in {round(steps * i / points) for i in range(points + 1)}:
            return None
        cut = spec.get("max_new_tokens")
        scored = evaluation.evaluate({"model": lm}, loaded.encoder, data, names, max_new_tokens=cut)
        return {name: scored.values[name].score for name in names}

    return score


def _selector(
    spec: Mapping[str, Any], settings: TrainSettings, loaded: Loaded, data: Benchmark, rows: int
) -> Selector | None:
    """The selection that the settings ask for, scored on the rows that the table reports."""
    if settings.select == "last":
        return None
    name, every = settings.select.metric, settings.select.every
    entry = resolve(name)[0]
    lower = evaluation.direction_of(entry) == "lower" or entry.meta.get("direction") == "lower"
    steps = every if isinstance(every, int) else -(-rows // (settings.batch_size * settings.accumulation))

    def score(lm: LanguageModel) -> float | None:
        cut = spec.get("max_new_tokens")
        scored = evaluation.evaluate({"model": lm}, loaded.encoder, data, [name], max_new_tokens=cut)
        return scored.values[name].score

    return Selector(name, steps, score, lower)


def _sampler(*args: Any, **options: Any) -> list[list[str]]:
    from unlearnbench.generation import sample_texts

    return sample_texts(*args, **options)


def _base_loader(spec: Mapping[str, Any], parents: Parents) -> Callable[[], LanguageModel] | None:
    if "base" not in parents:
        return None
    return lambda: _model(spec, parents["base"], int(spec["seed"])).lm


def _stop(method: Method, stop: dict[str, Any] | None, hooks: Hooks) -> dict[str, Any] | None:
    """What the record says of the online stop: the rule, the rows it probed, and whether it fired."""
    if hooks.prober is None:
        return None
    rule = getattr(hooks.prober, "rule", None)
    return {
        "rule": getattr(rule, "registered_name", ""),
        "settings": method.stop,
        "oracle": bool(getattr(rule, "oracle", False)),
        "rows": sorted(getattr(hooks.prober, "rows", ())),
        "held_out": sorted(getattr(hooks.prober, "held_out", ())),
        "fired": stop is not None,
        **(stop or {"step": None, "reason": "the rule never fired: training ended with its budget"}),
    }
