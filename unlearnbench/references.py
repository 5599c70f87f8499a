"""The evaluation of a retrained model that others are compared with: a run of ours, or a published log.

Forget Quality and PrivLeak compare with it, and so does every score. One place for all verbs that take `--reference`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from unlearnbench import log_files
from unlearnbench.benchmarks.base import Benchmark
from unlearnbench.errors import UserError
from unlearnbench.evaluation import Evaluation
from unlearnbench.metric import Value
from unlearnbench.report.results import Results, Stage, read_stage
from unlearnbench.stages import load_evaluation


class Reference(NamedTuple):
    """A retrained model's evaluation, what identifies it (a run's key, a log's SHA-256), and where it comes from."""

    evaluation: Evaluation
    identity: str
    origin: str


def load_reference(path: str | Path, data: Benchmark, protocol: str = "ours") -> Reference:
    """The retrained model's evaluation on the rows of `data`, encoded under `protocol`.

    `path`: the folder of an evaluation, a folder of runs with one retrained model in it, or a log of TOFU or of
    OpenUnlearning. Raises `UserError`, one line, when there is none, and when its rows, its benchmark or its protocol
    are not these.
    """
    path = Path(path)
    if path.is_dir():
        return _of_run(path, data, protocol)
    log = log_files.read(path)
    same_protocol(f"{path} is a log of {log.code}, scored under", log.protocol, protocol)
    if not data.name.startswith(log.family):
        raise UserError(f"{path} is a log of {log.family}, not of {data.name}.")
    if log.family == "tofu":
        log.check_split("the forget split of this benchmark", len(data.rows("forget")))
    else:
        log.check_corpus(data.name)
    log.check_texts(data)
    return Reference(log.evaluate(), log.sha256, f"{log.code} log {path.name}")


def _of_run(folder: Path, data: Benchmark, protocol: str) -> Reference:
    stage = retrained_run(folder)
    same_protocol(f"{stage.folder} was scored under", stage.protocol, protocol)
    benchmark = stage.spec.get("benchmark") or {}
    if benchmark.get("name") != data.name:
        raise UserError(f"{stage.folder} is a run on {benchmark.get('name')}, not on {data.name}.")
    if benchmark.get("data_hash") not in (None, data.data_hash):
        raise UserError(f"{stage.folder} was scored on other rows of {data.name} than these.")
    if (stage.folder / "answers.parquet").is_file():
        return Reference(load_evaluation(stage.folder, data), stage.key, f"run {stage.folder.name}")
    if not stage.samples:
        raise UserError(f"{stage.folder} keeps neither answers nor samples: nothing to compare with.")
    scored = {row.row_id for rows in stage.samples.values() for row in rows if row.split == "forget"}
    here = {row.id for row in data.splits.get("forget", ())}
    if not scored <= here:
        raise UserError(f"{stage.folder} is of another split: it has {len(scored)} forget rows, not {len(here)}.")
    return Reference(recorded(stage, data), stage.key, f"run {stage.folder.name}")


def retrained_run(folder: Path) -> Stage:
    """The evaluation in a folder, or the only one of a retrained model among the runs in it."""
    own = read_stage(folder)
    if own is not None:
        found = [own]
        if own.kind != "evaluate":
            raise UserError(f"{folder} holds a stage '{own.kind}', not an evaluation.")
    else:
        stages = Results.load([folder]).of_kind("evaluate")
        found = [s for s in stages if s.spec.get("role") == "retrained" and s.spec.get("attack", "none") == "none"]
        if not found:
            raise UserError(f"No evaluation of a retrained model in {folder}; name a run or a log.")
        if len(found) > 1:
            names = ", ".join(stage.folder.name for stage in found[:3]) + (", …" if len(found) > 3 else "")
            raise UserError(f"{len(found)} evaluations of retrained models in {folder}: name one of {names}.")
    (stage,) = found
    if stage.spec.get("role") in ("base", "target"):
        raise UserError(f"{stage.folder} is of a {stage.spec['role']} model; the reference is a retrained one.")
    if stage.status != "complete":
        raise UserError(f"{stage.folder} has no numbers: {stage.status}: {stage.reason}")
    return stage


def recorded(stage: Stage, data: Benchmark | None = None) -> Evaluation:
    """An evaluation as it stands in `metrics.json` and `samples.parquet`, for runs whose answers are not there."""
    values: dict[str, Value] = {}
    for name, value in stage.metrics.items():
        per_sample = {sample.row_id: sample.value for sample in stage.samples.get(name, [])}
        details: dict[str, Any] = dict(value.details)
        values[name] = Value(value.value, per_sample, value.reason, details, is_mean=bool(value.mean))
    return Evaluation(values, data or Benchmark({}))


def same_protocol(what: str, found: str, wanted: str) -> None:
    if found != wanted:
        raise UserError(f"{what} the protocol '{found}', this evaluation is under '{wanted}': they do not mix.")
