"""Metrics of runs again from their answers, without a model: `unlearnbench rescore`.

With the metrics and versions that the run was made with, the result must be its `metrics.json` byte for byte, so
nothing is written: the run is compared, and what differs is named. Where a metric has a new version, or more metrics
are asked for, a new evaluation is written beside the old one, under the key that `unlearnbench run` gives it, so that a
run finds it there. The old one stays; reports take the new one in its place.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from unlearnbench import answers as answer_files
from unlearnbench import evaluation
from unlearnbench.benchmarks.base import Benchmark
from unlearnbench.canonical import as_text
from unlearnbench.errors import UserError
from unlearnbench.metric import Value, expand, resolve
from unlearnbench.references import load_reference
from unlearnbench.report import results as runs
from unlearnbench.stages import benchmark_of, load_evaluation, save_values
from unlearnbench.store import Stage, Store

KEPT = ("counts", "attack", "seconds", "peak_memory_bytes")  #: of the record, what the answers cost
FILES = ("answers.parquet", "examples.json")


@dataclass
class Rescored:
    """One run: `state` is identical, differs (its numbers do not follow from its answers), new or impossible.

    `lines`: what differs, what changed, what cannot be recomputed. `folder`: of the new evaluation, where one was made.
    """

    run: runs.Stage
    state: str
    lines: list[str] = field(default_factory=list)
    folder: Path | None = None


def rescore(
    root: Path, metrics: Sequence[str] = (), check: bool = False, reference: Path | None = None
) -> list[Rescored]:
    """Rescore an evaluation, or all in a folder of runs, `metrics` in addition. `check`: compare, write nothing.

    `reference`: the retrained model (run or log) of evaluations that no retrained run of the folder belongs to.
    Raises `UserError` when there is no evaluation, or a metric does not exist.
    """
    if not root.is_dir():
        raise UserError(f"There is no folder {root} to rescore.")
    own = runs.read_stage(root)
    store = root if own is None else root.resolve().parent
    there = {
        stage.key: stage
        for folder in sorted(store.iterdir())
        if folder.is_dir() and not folder.name.startswith(".") and (stage := runs.read_stage(folder)) is not None
    }
    wanted = [stage for stage in there.values() if own is None or stage.key == own.key]
    found = [stage for stage in wanted if stage.kind == "evaluate" and stage.status == "complete"]
    if not found:
        raise UserError(f"There is no complete evaluation in {root} to rescore.")
    work = _Rescore(store, there, expand(metrics), check, reference)
    return [work.of(stage) for stage in found]


class _Rescore:
    def __init__(
        self, root: Path, there: dict[str, runs.Stage], extra: Sequence[str], check: bool, reference: Path | None
    ):
        self.root, self.there, self.extra, self.check, self.reference = root, there, extra, check, reference
        self.done: dict[str, Rescored] = {}

    def of(self, run: runs.Stage) -> Rescored:
        """Rescore a run, the retrained one that it compares with before it."""
        if run.key not in self.done:
            self.done[run.key] = self._of(run)
        return self.done[run.key]

    def _of(self, run: runs.Stage) -> Rescored:
        if imported := run.spec.get("imported"):
            return Rescored(run, "impossible", [f"it was imported from {imported['file']}: import that again"])
        if not (run.folder / "answers.parquet").is_file():
            return Rescored(run, "impossible", ["it keeps no answers.parquet: nothing to compute from"])
        parents = dict(run.spec.get("parents") or {})
        retrained = self.there.get(parents.get("retrained", ""))
        if "retrained" in parents and retrained is None:
            return Rescored(run, "impossible", [f"the retrained run {parents['retrained'][:8]} is not in {self.root}"])
        if retrained is not None:
            parent = self.of(retrained)
            if parent.folder is not None:
                retrained = runs.read_stage(parent.folder) or retrained
                parents["retrained"] = retrained.key
        data = benchmark_of(run.spec)
        names = expand([*run.metrics, *self.extra])
        beside, problem = ({}, "") if retrained is not None else self._beside(run, data)
        if problem:
            return Rescored(run, "impossible", [problem])
        compared = load_evaluation(retrained.folder, data) if retrained is not None else beside.pop("evaluation", None)
        fresh = evaluation.rescore(answer_files.load(run.folder / "answers.parquet"), data, names, compared)
        lines = _lost(run, fresh)
        old = {name: value.version for name, value in run.metrics.items()}
        new = {name: resolve(name)[0].version for name in names}
        if old == new and parents == (run.spec.get("parents") or {}) and beside == _named_in(run):
            return self._compared(run, fresh, lines)
        moved = [f"{name}: version {old[name]} -> {new[name]}" for name in old if old[name] != new[name]]
        lines = moved + _changes(run, fresh) + lines
        return Rescored(run, "new", lines, None if self.check else self._write(run, fresh, parents, beside))

    def _beside(self, run: runs.Stage, data: Benchmark) -> tuple[dict[str, Any], str]:
        """The reference of a run without a retrained parent: its part of the spec, with its evaluation; or a problem.

        The retrained model itself is compared with nothing.
        """
        named = _named_in(run).get("reference")
        if self.reference is None or run.spec.get("role") == "retrained":
            return {}, f"it was compared with {named['origin']}: name that with --reference" if named else ""
        found = load_reference(self.reference, data, run.protocol)
        if named and named["identity"] != found.identity:
            return {}, f"it was compared with another reference than {self.reference}: {named['origin']}"
        about = {"identity": found.identity, "origin": found.origin}
        return {"reference": named or about, "evaluation": found.evaluation}, ""

    def _compared(self, run: runs.Stage, fresh: evaluation.Evaluation, lines: list[str]) -> Rescored:
        text = as_text({"metrics": fresh.metrics_json()})
        if text == (run.folder / "metrics.json").read_text(encoding="utf-8"):
            return Rescored(run, "identical", lines)
        named = _changes(run, fresh) + lines
        return Rescored(run, "differs", named or ["metrics.json has the same values, but not the same text"])

    def _write(
        self, run: runs.Stage, fresh: evaluation.Evaluation, parents: dict[str, str], beside: dict[str, Any]
    ) -> Path:
        names = list(fresh.values)
        spec = {k: v for k, v in run.spec.items() if k not in ("kind", "label")}
        spec |= {
            "metrics": names,
            "metric_versions": {name: resolve(name)[0].version for name in names},
            "metric_sources": sorted({s for name in names if (s := resolve(name)[0].source) is not None}),
            "parents": parents,
            **beside,
        }
        stage = Stage(run.kind, str(run.spec["label"]), spec)
        with Store(self.root).build(stage) as building:
            if not building.reused:
                for name in FILES:
                    if (run.folder / name).is_file():
                        shutil.copyfile(run.folder / name, building.folder / name)
                save_values(fresh, building.folder)
                building.record.update({k: run.record[k] for k in KEPT if k in run.record})
                building.record["counts"] = {**(run.record.get("counts") or {}), **fresh.counts}
                building.record["rescored"] = {"replaces": [*run.replaces, run.key]}
        return building.folder


def _named_in(run: runs.Stage) -> dict[str, Any]:
    """The reference that the spec of a run names, as a part of a spec."""
    return {"reference": run.spec["reference"]} if run.spec.get("reference") else {}


def _lost(run: runs.Stage, fresh: evaluation.Evaluation) -> list[str]:
    """The metrics that cannot be computed from these answers, though they were computed, or are newly asked for."""
    lost = []
    for name, value in fresh.values.items():
        before = run.metrics.get(name)
        if value.score is None and (before is None or before.value is not None):
            lost.append(f"{name} cannot be recomputed: {value.reason}")
    return lost


def _changes(run: runs.Stage, fresh: evaluation.Evaluation) -> list[str]:
    """Recorded values that are not what the answers give, one line each."""
    found: dict[str, Value] = fresh.values
    return [
        f"{name}: recorded {_text(before.value)}, from the answers {_text(found[name].score)}"
        for name, before in run.metrics.items()
        if found[name].score is not None and found[name].score != before.value
    ]


def _text(number: float | None) -> str:
    return "null" if number is None else f"{number:.10g}"
