"""Does a run make sense? Checks that a reader would make by eye, made by the run itself."""

from __future__ import annotations

from dataclasses import dataclass

from unlearnbench.report.results import Group, Results
from unlearnbench.report.standings import Standing, Table, tables

KNOWS, IGNORES = 0.9, 0.05  #: exact match on forget: at least, of the target; at most, of the retrained model


@dataclass(frozen=True)
class Check:
    """One check: `ok` None when there was nothing to check, with the reason in `text`."""

    name: str
    ok: bool | None
    text: str


def sanity(results: Results) -> list[Check]:
    """The checks of every group that was not attacked."""
    checks = []
    for table in tables(results):
        if table.group.key.attack == "none":
            checks += [
                _target(table.group),
                _retrained(table.group),
                *_nearest(table),
                _farthest(table),
                *_stops(table),
            ]
            checks.append(_nulls(table.group))
    return checks


def _exact(group: Group, role: str) -> list[float]:
    arm = group.role(role)
    return [v for v in arm.values("forget_exact").values() if v is not None] if arm is not None else []


def _target(group: Group) -> Check:
    values = _exact(group, "target")
    if not values:
        return Check("the target knows the forget set", None, "exact match was not measured")
    text = f"answers {min(values):.0%} to {max(values):.0%} of the forget rows word for word (at least {KNOWS:.0%})"
    return Check("the target knows the forget set", min(values) >= KNOWS, text)


def _retrained(group: Group) -> Check:
    values = _exact(group, "retrained")
    if not values:
        return Check("the retrained model does not", None, "exact match was not measured")
    text = f"answers {max(values):.1%} of them at most (allowed {IGNORES:.0%})"
    return Check("the retrained model does not", max(values) <= IGNORES, text)


def _scored(row: Standing | None) -> bool:
    return row is not None and row.score.mean is not None


def _nearest(table: Table) -> list[Check]:
    """Retrained models of different seeds are near each other, and no method is nearer to them beyond the noise."""
    goal = table.row("retrained")
    if goal is None or goal.score.mean is None or goal.score.high is None:
        return [Check("the retrained models agree", None, "needs retrained models of two seeds")]
    spread = goal.score.high
    ok = goal.score.mean < 0.5
    checks = [Check("the retrained models agree", ok, f"their distance to each other is {goal.score.mean:.2f}")]
    nearer = [
        row.arm.title
        for row in table.rows
        if row.arm.role == "unlearned" and row.score.high is not None and row.score.high < (goal.score.low or 0.0)
    ]
    text = f"below the retrained models' own {goal.score.low:.2f} to {spread:.2f}: {', '.join(nearer) or 'none'}"
    return [*checks, Check("no method is nearer than a retrained model", not nearer, text)]


def _farthest(table: Table) -> Check:
    """The untouched target, or a ruined model, is at the far end of its side."""
    target = table.row("target")
    methods = [row for row in table.rows if row.arm.role == "unlearned" and row.sides["forget"].mean is not None]
    if target is None or target.sides["forget"].mean is None or not methods:
        return Check("the untouched target is farthest on forget", None, "no score")
    reached = [row for row in methods if (row.sides["utility"].mean or 0) < 0.5]
    worst = max((row.sides["forget"].mean or 0.0 for row in reached), default=0.0)
    text = f"{target.sides['forget'].mean:.2f}, methods that keep half of the utility reach {worst:.2f} at most"
    return Check("the untouched target is farthest on forget", target.sides["forget"].mean >= worst - 0.05, text)


def _stops(table: Table) -> list[Check]:
    checks = []
    for row in table.rows:
        runs = [run for run in row.arm.runs.values() if run.stop is not None and run.status == "complete"]
        if not runs:
            continue
        readings = [sum("probe" in line for line in run.training.log) if run.training else 0 for run in runs]
        steps = ["never" if (run.stop or {}).get("step") is None else str((run.stop or {})["step"]) for run in runs]
        text = f"read {min(readings)} to {max(readings)} times, stopped at {', '.join(steps)}"
        checks.append(Check(f"the stop rule of {row.arm.title} was read", min(readings) > 0, text))
    return checks


def _nulls(group: Group) -> Check:
    silent = [
        f"{arm.label}/{name}"
        for arm in group.arms
        for run in arm.runs.values()
        for name, value in run.metrics.items()
        if value.value is None and not value.reason
    ]
    text = "every null has its reason" if not silent else f"without a reason: {', '.join(silent[:5])}"
    return Check("no metric is silently missing", not silent, text)
