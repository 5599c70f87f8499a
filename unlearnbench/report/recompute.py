"""The metrics of an evaluation again, from the row samples on disk: no model, no answers.

A metric that is the mean of its samples is that mean; one that stands on other metrics alone (Model Utility, Forget
Quality, gaps to the retrained run) is computed by its own code from theirs; a membership AUC from the scores of both
sides. What is none of these cannot be recomputed from samples and stays as recorded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from unlearnbench.errors import UserError
from unlearnbench.report.results import Arm, MetricValue, Results, Stage

SAME = 1e-6  #: relative difference that two machines' arithmetic may have


def recomputed(results: Results) -> tuple[Results, list[str]]:
    """The results with metrics recomputed from samples, and the names of those that had to be taken as recorded."""
    work = _Recompute(results)
    stages = tuple(
        replace(stage, given=work.metrics(stage)) if stage.kind == "evaluate" and stage.samples else stage
        for stage in results.stages
    )
    return Results(stages), sorted(work.taken)


def between_seeds(arm: Arm, name: str) -> list[float]:
    """A metric that compares with the retrained run, between the runs of an arm's different seeds (each way once).

    For the spread of such a metric among models that differ in nothing but the seed. Empty when there are no samples.
    """
    stages = [stage for stage in arm.evaluations if stage.samples]
    work = _Recompute(Results(tuple(stages)))
    found = []
    for here in stages:
        for there in stages:
            if here.seed != there.seed:
                value = work.by_its_own_code(here, name, work.values(here), work.values(there))
                found += [value.score] if value is not None and value.score is not None else []
    return found


def same(a: float, b: float, tolerance: float = SAME) -> bool:
    """Equal up to a relative tolerance."""
    return abs(a - b) <= tolerance * max(1.0, abs(a), abs(b))


class _Recompute:
    def __init__(self, results: Results):
        self.results = results
        self.taken: set[str] = set()
        self._values: dict[str, dict[str, Any]] = {}

    def metrics(self, stage: Stage) -> dict[str, MetricValue]:
        values = self.values(stage)
        return {name: replace(recorded, value=values[name].score) for name, recorded in stage.metrics.items()}

    def values(self, stage: Stage) -> dict[str, Any]:
        """name -> `Value`. Dependencies come before what depends on them, as in the file."""
        if stage.key not in self._values:
            other = self.results.find(stage.parent("retrained"))
            retrained = self.values(other) if other is not None and other.kind == "evaluate" and other.samples else None
            found = self._values[stage.key] = {}
            for name, recorded in stage.metrics.items():
                found[name] = self._value(stage, recorded, found, retrained)
        return self._values[stage.key]

    def _value(
        self, stage: Stage, recorded: MetricValue, known: Mapping[str, Any], retrained: Mapping[str, Any] | None
    ) -> Any:
        from unlearnbench.metric import Value

        rows = stage.samples.get(recorded.name, [])
        per_sample = {row.row_id: row.value for row in rows}
        if recorded.value is None:
            return Value(None, per_sample, reason=recorded.reason or "null")
        mean = Value.mean_of(per_sample)
        if recorded.mean or (recorded.mean is None and mean.score is not None and same(mean.score, recorded.value)):
            return mean
        own = self.by_its_own_code(stage, recorded.name, known, retrained)
        if own is None:
            self.taken.add(recorded.name)
            return Value(recorded.value, per_sample)
        return own

    @staticmethod
    def by_its_own_code(
        stage: Stage, name: str, known: Mapping[str, Any], retrained: Mapping[str, Any] | None
    ) -> Any | None:
        """The value a registered metric computes from samples alone; None when it needs more, or is not registered."""
        from unlearnbench.metric import Context, Metric, resolve

        try:
            metric = resolve(name)[1]
        except UserError:
            return None
        by_split: dict[str, dict[str, float | None]] = {}
        for row in stage.samples.get(name, []):
            by_split.setdefault(row.split, {})[row.row_id] = row.value
        if (value := metric.from_samples(by_split)) is not None:
            return value
        cls = type(metric)
        if cls.requests is not Metric.requests or cls.follow_up is not Metric.follow_up or not metric.depends:
            return None
        try:
            return metric.compute(Context(cast(Any, None), {}, known, retrained))
        except (AttributeError, KeyError):  # it looks at rows or answers after all
            return None
