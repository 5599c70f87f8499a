"""The score: how far a model is from the retrained one, on the forget side and on the utility side.

For a metric and a seed s,

    d = |x_s - R| / scale,    R = mean of the retrained models of the *other* seeds,
    scale = max(|T - R|, sd of those retrained models, room),    T = mean of the targets of all seeds

so d = 0 is a model that cannot be told from one retrained, d = 1 on the forget side is one as far away as the target
that has forgotten nothing; too much forgetting counts like too little, and nothing is clipped. `room` is 0 on the
forget side. On the utility side a good target equals the retrained model, so |T - R| says nothing about what there is
to lose: there, for metrics where higher is better, room = |R|, the distance to a ruined model that scores 0.

    score = (mean of the forget-side d + mean of the utility-side d) / 2, lower is better

The retrained row is scored in the same way, hence leave-one-out. A seed with a null in one of the metrics has no score.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from unlearnbench.report.catalogue import variants
from unlearnbench.report.results import Arm, Group
from unlearnbench.statistics import known

#: what counts, when a benchmark has it; of a benchmark that has none of a side's names, all metrics of that side count
SCORED = {
    "forget": (
        "one_minus_rouge_l",
        "one_minus_prob",
        "forget_truth_ratio",
        "forget_exact",
        "forget_fact",
        "verbmem_forget",
        "knowmem_forget",
    ),
    "utility": ("model_utility", "retain_exact", "retain_fact", "knowmem_retain"),
}
SIDES = tuple(SCORED)


@dataclass(frozen=True)
class SeedScore:
    """One seed's distances by metric, their means by side, and the score; a None has its reason."""

    parts: dict[str, float] = field(default_factory=dict)
    forget: float | None = None
    utility: float | None = None
    score: float | None = None
    reason: str = ""


@dataclass(frozen=True)
class ArmScore:
    """An arm's seed scores. Means are over the seeds that have a score."""

    seeds: dict[int, SeedScore]

    def by_seed(self, part: str) -> dict[int, float]:
        """Seed -> `score`, `forget`, `utility` or a metric's distance, where defined."""
        values = {}
        for seed, of in self.seeds.items():
            value = getattr(of, part) if part in ("score", *SIDES) else of.parts.get(part)
            if value is not None:
                values[seed] = value
        return values

    def mean(self, part: str = "score") -> float | None:
        values = list(self.by_seed(part).values())
        return float(np.mean(values)) if values else None

    @property
    def complete(self) -> bool:
        """Whether every seed has a score."""
        return bool(self.seeds) and all(of.score is not None for of in self.seeds.values())

    @property
    def reason(self) -> str:
        """Why a seed has no score; empty when all have one."""
        return next((of.reason for of in self.seeds.values() if of.score is None), "")


def scale(targets: list[float], retrained: list[float], room: float) -> float:
    """The unit of distance; 0 when the target, the retrained models and the floor all coincide."""
    sd = float(np.std(retrained, ddof=1)) if len(retrained) > 1 else 0.0
    gap = abs(float(np.mean(targets)) - float(np.mean(retrained))) if targets else 0.0
    return max(gap, sd, room)


def scored_metrics(group: Group) -> dict[str, list[str]]:
    """Side -> the metrics that count: those that some model of the group has a value of."""
    having = [name for name in group.metric_names if any(len(known(list(a.values(name).values()))) for a in group.arms)]
    chosen = {}
    for side, names in SCORED.items():
        listed = variants(names, having)
        chosen[side] = listed or [name for name in having if getattr(group.metric(name), "side", "") == side]
    return chosen


def score_group(group: Group) -> dict[str, ArmScore]:
    """Arm label -> its scores."""
    chosen = scored_metrics(group)
    retrained, target = group.role("retrained"), group.role("target")
    return {
        arm.label: ArmScore({seed: _score(arm, seed, group, chosen, target, retrained) for seed in arm.seeds})
        for arm in group.arms
    }


def _score(
    arm: Arm, seed: int, group: Group, chosen: Mapping[str, list[str]], target: Arm | None, retrained: Arm | None
) -> SeedScore:
    run = arm.runs[seed]
    if run.status != "complete":
        return SeedScore(reason=f"{run.status}: {run.reason}")
    if retrained is None or target is None:
        missing = "retrained model" if retrained is None else "target"
        return SeedScore(reason=f"no {missing} to compare with")
    parts: dict[str, float] = {}
    problems: list[str] = []
    for side, names in chosen.items():
        if not names:
            problems.append(f"no {side}-side metric was asked for")
        for name in names:
            value = arm.values(name)[seed]
            others = list(known([v for s, v in retrained.values(name).items() if s != seed]))
            unit = _unit(group, name, side, target, others) if others else 0.0
            if value is None:
                problems.append(f"{name} is null: {arm.null_reason(name, seed)}")
            elif not others:
                problems.append("the retrained model of another seed is needed")
            elif unit == 0:
                problems.append(f"{name} does not tell the target from the retrained model")
            else:
                parts[name] = abs(value - float(np.mean(others))) / unit
    sides = {
        side: float(np.mean([parts[name] for name in names])) if names and all(n in parts for n in names) else None
        for side, names in chosen.items()
    }
    forget, utility = sides["forget"], sides["utility"]
    if problems or forget is None or utility is None:
        return SeedScore(parts, forget, utility, None, problems[0] if problems else "a side has no metric")
    return SeedScore(parts, forget, utility, (forget + utility) / 2)


def _unit(group: Group, name: str, side: str, target: Arm, others: list[float]) -> float:
    metric = group.metric(name)
    higher = metric is not None and metric.direction == "higher"
    room = abs(float(np.mean(others))) if side == "utility" and higher else 0.0
    return scale(list(known(list(target.values(name).values()))), others, room)
