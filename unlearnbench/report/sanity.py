"""Does a run make sense? Checks that a reader would make by eye, made by the run itself."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from unlearnbench.report.results import Group, Results
from unlearnbench.report.standings import Standing, Table, tables

KNOWS, IGNORES = 0.9, 0.05  #: exact match on forget: at least, of the target; at most, of the retrained model
NOISE = 0.2  #: the largest score a retrained model may have against those of the other seeds
RUINED = 0.5  #: a utility-side distance from which a model counts as ruined: half of what there was is gone


@dataclass(frozen=True)
class Check:
    """One check. `ok` is None when there was nothing to check; `text` says what was found, or why not."""

    name: str
    ok: bool | None
    text: str


def sanity(results: Results) -> list[Check]:
    """The checks of every group that was not attacked; the group is named where there are several."""
    found = [table for table in tables(results) if table.group.key.attack == "none"]
    checks = []
    for table in found:
        own = [_target(table.group), _retrained(table.group), _agree(table), _nearest(table), _farthest(table)]
        own += [*_stops(table), _finished(table.group), _nulls(table.group)]
        checks += [replace(c, name=f"{table.group.key}: {c.name}") for c in own] if len(found) > 1 else own
    return checks


def _target(group: Group) -> Check:
    name, values = "the target knows the forget set", _exact(group, "target")
    if not values:
        return Check(name, None, "exact match was not measured")
    text = f"answers {min(values):.0%} to {max(values):.0%} of the forget rows word for word (at least {KNOWS:.0%})"
    return Check(name, min(values) >= KNOWS, text)


def _retrained(group: Group) -> Check:
    name, values = "the retrained model does not", _exact(group, "retrained")
    if not values:
        return Check(name, None, "exact match was not measured")
    return Check(name, max(values) <= IGNORES, f"answers {max(values):.1%} of them at most (allowed {IGNORES:.0%})")


def _exact(group: Group, role: str) -> list[float]:
    arm = group.role(role)
    return [v for v in arm.values("forget_exact").values() if v is not None] if arm is not None else []


def _agree(table: Table) -> Check:
    name, goal = "retrained models of different seeds agree", table.row("retrained")
    scores = list(goal.scores.by_seed("score").values()) if goal is not None else []
    if not scores:
        return Check(name, None, "needs retrained models of two seeds")
    text = f"each scores {min(scores):.2f} to {max(scores):.2f} against the others (at most {NOISE})"
    return Check(name, max(scores) <= NOISE, text)


def _nearest(table: Table) -> Check:
    name, goal = "no method is nearer than a retrained model", table.row("retrained")
    if goal is None or goal.score.low is None or goal.score.high is None:
        return Check(name, None, "needs retrained models of two seeds")
    nearer = [row for row in table.methods if row.score.high is not None and row.score.high < goal.score.low]
    text = f"wholly below the retrained models' own {goal.score.low:.2f} to {goal.score.high:.2f}: {_titles(nearer)}"
    return Check(name, not nearer, text)


def _farthest(table: Table) -> Check:
    """A method that keeps its utility must be nearer than the target that has forgotten nothing."""
    name, target = "an untouched and a ruined model are farthest", table.row("target")
    scored = [row for row in table.methods if row.score.mean is not None]
    if target is None or target.score.mean is None or not scored:
        return Check(name, None, "no scores")
    ruined = [row for row in scored if (row.sides["utility"].mean or 0.0) >= RUINED]
    beyond = [row for row in scored if row not in ruined and (row.score.mean or 0.0) >= target.score.mean]
    text = f"the target scores {target.score.mean:.2f}; not ruined, yet farther: {_titles(beyond)}"
    return Check(
        name, not beyond, text + (f"; half of the utility or more is gone: {_titles(ruined)}" if ruined else "")
    )


def _stops(table: Table) -> list[Check]:
    """A rule that was asked for was read, and where it stopped its last reading allows it."""
    checks = []
    for row in table.methods:
        runs = [run for run in row.arm.runs.values() if run.stop is not None and run.status == "complete"]
        if not runs:
            continue
        readings = [[line for line in run.training.log if "probe" in line] if run.training else [] for run in runs]
        unread = [run.seed for run, found in zip(runs, readings, strict=True) if not found]
        wrong = [
            run.seed
            for run, found in zip(runs, readings, strict=True)
            if found and (run.stopped_at is not None) != bool(found[-1]["probe"].get("stop"))
        ]
        steps = ", ".join("never" if run.stopped_at is None else str(run.stopped_at) for run in runs)
        text = f"read {min(map(len, readings))} to {max(map(len, readings))} times, stopped at step {steps}"
        text += f"; never read in seed {unread}" if unread else ""
        text += f"; record and last reading disagree in seed {wrong}" if wrong else ""
        checks.append(Check(f"the stop rule of {row.arm.title} was read", not unread and not wrong, text))
    return checks


def _finished(group: Group) -> Check:
    cells = [(arm, run) for arm in group.arms for run in arm.runs.values()]
    left = [f"{arm.title}, seed {run.seed} ({run.reason})" for arm, run in cells if run.status != "complete"]
    text = f"{len(cells) - len(left)} of {len(cells)}" + (f"; not: {'; '.join(left[:5])}" if left else "")
    return Check("every cell finished", not left, text)


def _nulls(group: Group) -> Check:
    silent = {
        f"{arm.title}/{name}": None
        for arm in group.arms
        for run in arm.runs.values()
        for name, value in run.metrics.items()
        if value.value is None and not value.reason
    }
    text = f"without a reason: {', '.join(list(silent)[:5])}" if silent else "every null has its reason"
    return Check("no metric is silently missing", not silent, text)


def _titles(rows: Iterable[Standing]) -> str:
    return ", ".join(row.arm.title for row in rows) or "none"
