"""Where each arm stands: means with intervals, score, Pareto front, tiers or ranks. All tables and plots read this.

With one seed: the 95 % interval over its rows, whole groups drawn. With fewer than five: the range over the seeds, and
*tiers* (a method opens a new tier when its whole range of scores lies above that of the tier's best). From five: 95 %
intervals (seeds outside, groups as clusters inside), and *ranks*: 1 + the number of methods that are significantly
better (paired t over seeds, Holm over all pairs).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from unlearnbench.report.catalogue import headline
from unlearnbench.report.results import PHASES, Arm, Group, Results
from unlearnbench.report.scores import SIDES, ArmScore, score_group, scored_metrics
from unlearnbench.statistics import (
    MIN_SEEDS,
    Comparison,
    cluster_interval,
    compare_all,
    crossed_interval,
    known,
    seeds_interval,
    value_range,
)

LEVEL = 0.05  #: what a Holm-adjusted p must be below


@dataclass(frozen=True)
class Summary:
    """A number over seeds: mean of the `n` defined ones of `of`, its range or interval, and why some are missing."""

    mean: float | None
    low: float | None = None
    high: float | None = None
    n: int = 0
    of: int = 0
    reason: str = ""

    @property
    def partial(self) -> bool:
        """Whether some seed is missing from the mean."""
        return 0 < self.n < self.of

    @property
    def counted(self) -> str:
        """` (2 of 3)` where seeds are missing from the mean, else nothing."""
        return f" ({self.n} of {self.of})" if self.partial else ""


@dataclass(frozen=True)
class Cost:
    """What an arm cost: phases in seconds (means over the seeds), and what does not depend on the machine."""

    hardware: str  #: the one fingerprint all seeds ran on; empty when they differ: then there are no seconds
    seconds: dict[str, Summary]  #: by phase, `total` being the method's cost
    counts: dict[str, Summary]  #: steps, tokens, flops, peak_memory_bytes
    reason: str = ""


@dataclass
class Standing:
    """One row of the leaderboard."""

    group: Group
    arm: Arm
    metrics: dict[str, Summary]
    scores: ArmScore
    score: Summary
    sides: dict[str, Summary]
    cost: Cost
    pareto: bool = False
    tier: int | None = None
    rank: int | None = None
    unranked: str = ""  #: why a method has neither tier nor rank
    notes: list[str] = field(default_factory=list)

    @property
    def provenance(self) -> str:
        """A hash of the keys of every stage behind the row."""
        stages = [s for run in self.arm.runs.values() for s in (run.evaluation, run.training) if s is not None]
        return hashlib.sha256(" ".join(sorted(stage.key for stage in stages)).encode()).hexdigest()[:12]


@dataclass(frozen=True)
class Table:
    """The standings of a group, in the order of a table, and the paired comparisons behind the ranks."""

    group: Group
    rows: tuple[Standing, ...]
    scored: dict[str, list[str]]
    comparisons: tuple[Comparison, ...]

    @property
    def ranked(self) -> bool:
        """Whether there are seeds enough for ranks (else tiers)."""
        return any(row.rank is not None for row in self.rows)

    @property
    def methods(self) -> list[Standing]:
        """The rows of methods, in the order of the table."""
        return [row for row in self.rows if row.arm.role == "unlearned"]

    def row(self, label: str) -> Standing | None:
        return next((row for row in self.rows if row.arm.label == label), None)


@lru_cache(maxsize=4)
def tables(results: Results) -> list[Table]:
    """One table per group, worked out once per results."""
    return [_table(group) for group in results.groups]


def summarise(values: dict[int, float | None], reason: str = "", arm: Arm | None = None, metric: str = "") -> Summary:
    """Mean over seeds, with the 95 % interval from five seeds on, the range below; of a single run the interval of its
    rows, whole groups drawn.
    """
    defined = known(list(values.values()))
    if not len(defined):
        return Summary(None, of=len(values), reason=reason)
    ends = value_range(list(defined))
    if len(values) == 1 and arm is not None:
        (seed,) = values
        ends = _of_rows(arm, metric, seed) or ends
    if len(defined) >= MIN_SEEDS:
        ends = (_crossed(arm, metric, values) if arm else None) or seeds_interval(list(defined))
    low, high = ends if ends is not None else (None, None)
    return Summary(float(defined.mean()), low, high, len(defined), len(values), reason)


def _of_rows(arm: Arm, metric: str, seed: int) -> tuple[float, float] | None:
    """The bootstrap interval of one run: from its row samples, else (for what is no mean of rows) as recorded."""
    value, stage = arm.runs[seed].metrics.get(metric), arm.runs[seed].evaluation
    rows = stage.samples.get(metric, []) if stage is not None else []
    if value is not None and value.mean and rows:
        return cluster_interval([row.value for row in rows], [row.group or row.row_id for row in rows])
    return None if value is None else value.interval


def _crossed(arm: Arm, metric: str, values: dict[int, float | None]) -> tuple[float, float] | None:
    """The interval from row samples, when the metric is the mean of them in every seed."""
    rows: dict[int, list[tuple[str, float]]] = {}
    for seed, value in values.items():
        stage = arm.runs[seed].evaluation
        if value is None or stage is None:
            continue
        known = [(s.group, s.value) for s in stage.samples.get(metric, []) if s.value is not None]
        if not known or abs(float(np.mean([v for _, v in known])) - value) > 1e-6 * max(1.0, abs(value)):
            return None
        rows[seed] = known
    return crossed_interval(rows)


def _table(group: Group) -> Table:
    scores = score_group(group)
    rows = [_standing(group, arm, scores[arm.label]) for arm in group.arms]
    methods = [row for row in rows if row.arm.role == "unlearned"]
    shown = {name for name in headline(group.metric_names) if any(row.metrics[name].n for row in methods)}
    for row in methods:
        row.unranked = _why_unranked(row, shown)
    able = [row for row in methods if not row.unranked]
    _mark_pareto(able)
    comparisons = tuple(compare_all({row.arm.label: row.scores.by_seed("score") for row in able}))
    if able and all(len(row.arm.seeds) >= MIN_SEEDS for row in able):
        _rank(able, comparisons)
    else:
        _tier(able)
    order = {"base": 0, "target": 1, "retrained": 2}
    rows.sort(
        key=lambda row: (
            order.get(row.arm.role, 3),
            bool(row.unranked),
            row.score.mean if row.score.mean is not None else np.inf,
            row.arm.label,
        )
    )
    return Table(group, tuple(rows), scored_metrics(group), comparisons)


def _standing(group: Group, arm: Arm, scores: ArmScore) -> Standing:
    metrics = {}
    for name in group.metric_names:
        reasons = [reason for seed in arm.seeds if (reason := arm.null_reason(name, seed))]
        metrics[name] = summarise(arm.values(name), reasons[0] if reasons else "", arm, name)
    sides = {side: _over_seeds(arm, scores, side) for side in SIDES}
    notes = [f"seed {seed}: {run.status}: {run.reason}" for seed, run in arm.runs.items() if run.status != "complete"]
    if arm.imported:
        notes.append(f"imported from {arm.imported}, protocol {group.key.protocol}")
    if arm.oracle:
        notes.append("oracle: its stop or its selection looked at the retrained model or at test metrics")
    return Standing(group, arm, metrics, scores, _over_seeds(arm, scores, "score"), sides, _cost(arm), notes=notes)


def _over_seeds(arm: Arm, scores: ArmScore, part: str) -> Summary:
    found = scores.by_seed(part)
    return summarise({seed: found.get(seed) for seed in arm.seeds}, scores.reason)


def _why_unranked(row: Standing, shown: set[str]) -> str:
    if row.arm.oracle:
        return "oracle"
    if not row.scores.complete:
        return row.scores.reason or "no score"
    nulls = sorted(name for name in shown if row.metrics[name].n < row.metrics[name].of)
    return f"{nulls[0]} is null: {row.metrics[nulls[0]].reason}" if nulls else ""


def _mark_pareto(rows: Sequence[Standing]) -> None:
    """A row is on the front when no other is at least as near on both sides and nearer on one."""
    points = [tuple(row.sides[side].mean or 0.0 for side in SIDES) for row in rows]
    for row, own in zip(rows, points, strict=True):
        beaten = any(all(o <= p for o, p in zip(other, own, strict=True)) and other != own for other in points)
        row.pareto = not beaten


def _tier(rows: Sequence[Standing]) -> None:
    """Tiers from the ranges of the scores; with one seed there is no range, and no tier."""
    tier, ceiling = 0, -np.inf
    for row in sorted(rows, key=lambda row: (row.score.mean, row.arm.label)):
        if row.score.n < 2 or row.score.low is None or row.score.high is None:
            row.unranked = "one seed: no range to build tiers from"
            continue
        if row.score.low > ceiling:
            tier, ceiling = tier + 1, row.score.high
        row.tier = tier


def _rank(rows: Sequence[Standing], comparisons: Sequence[Comparison]) -> None:
    worse: dict[str, int] = {row.arm.label: 0 for row in rows}
    for pair in comparisons:
        if pair.adjusted is not None and pair.adjusted < LEVEL and pair.difference:
            worse[pair.first if pair.difference > 0 else pair.second] += 1
    for row in rows:
        row.rank = 1 + worse[row.arm.label]


def _cost(arm: Arm) -> Cost:
    trained = {seed: run for seed, run in arm.runs.items() if run.training is not None and run.status == "complete"}
    machines = sorted({run.training.fingerprint for run in trained.values() if run.training is not None})
    reason = "" if trained else "nothing was trained"
    if len(machines) > 1:
        reason = f"the seeds ran on {len(machines)} machines: their seconds are not comparable"

    def over(values: dict[int, float | None], why: str = "") -> Summary:
        """Over all seeds: those that failed have no cost, and are missing from the mean as from any other."""
        return summarise({seed: values.get(seed) for seed in arm.runs}, why)

    seconds: dict[str, Summary] = {}
    if trained and len(machines) == 1:
        phases = [*PHASES, *sorted({p for run in trained.values() for p in run.seconds} - set(PHASES))]
        for phase in phases:
            seconds[phase] = over({s: run.seconds.get(phase, 0.0) for s, run in trained.items()})
        seconds["total"] = over({s: run.cost for s, run in trained.items()}, "not timed")
    counts = {}
    for name in ("steps", "tokens", "flops", "peak_memory_bytes"):
        values = {s: (run.training.record.get(name) if run.training else None) for s, run in trained.items()}
        counts[name] = over({s: None if v is None else float(v) for s, v in values.items()}, "not recorded")
    return Cost(machines[0] if len(machines) == 1 else "", seconds, counts, reason)
