"""Two methods, or two runs, metric by metric: `unlearnbench compare`.

Seeds are paired: both were trained from the same target. From five seeds in common: paired t test of the differences,
effect size (Cohen's d of the differences), p after Holm over all rows of one comparison, and the 95 % interval with
seeds outside and groups as clusters inside. Below five nothing is tested: the range of the differences stands instead.
`rows_low`, `rows_high` is what the rows alone leave open for these very models, whatever the number of seeds: the 95 %
bootstrap interval of the difference, whole groups drawn, both models on the same rows. Metrics that are no means of
rows have none.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from unlearnbench.errors import UserError, did_you_mean
from unlearnbench.report.catalogue import ARROWS, decimals, title
from unlearnbench.report.recompute import same
from unlearnbench.report.results import Arm, Group, Results, Stage, read_stage
from unlearnbench.report.scores import SIDES, score_group
from unlearnbench.report.standings import LEVEL
from unlearnbench.report.tables import Grid
from unlearnbench.statistics import (
    MIN_SEEDS,
    cluster_interval,
    crossed_interval,
    holm,
    known,
    paired,
    seeds_interval,
    value_range,
)

RowDifferences = dict[int, list[tuple[str, str, float]]]  #: seed -> (row id, group, first - second)


@dataclass(frozen=True)
class Line:
    """One metric of a comparison; `difference` is first - second, over the `n` of `of` seeds where both have a value.

    `direction`: `higher`, `lower`, or `retrained`: the nearer to `retrained` (the mean of the retrained models) the
    better; `nearer` says who that is. `spread` says what `low` and `high` are. `verdict`: who is better, `differ` where
    only nearness counts, `not told apart`, or `insufficient`, with its `reason`; empty for a null.
    """

    comparison: str
    metric: str
    direction: str
    first: float | None
    second: float | None
    retrained: float | None
    n: int
    of: int
    difference: float | None
    low: float | None = None
    high: float | None = None
    spread: str = ""
    rows_low: float | None = None
    rows_high: float | None = None
    effect: float | None = None
    p: float | None = None
    p_holm: float | None = None
    nearer: str = ""
    verdict: str = ""
    reason: str = ""


@dataclass(frozen=True)
class Comparison:
    """Two names, and their lines in every group that has both."""

    first: str
    second: str
    lines: tuple[Line, ...]
    oracles: tuple[str, ...] = ()


def compare(first: str, second: str, roots: Sequence[Path]) -> Comparison:
    """Compare two methods (labels of a table) in folders of runs, or two evaluations by their folders.

    Raises `UserError` when one of them is not there, they are the same, or no table has both.
    """
    if (Path(first) / "record.json").is_file() and (Path(second) / "record.json").is_file():
        return _two_runs(Path(first), Path(second))
    results = Results.load(roots)
    labels = {arm.label for group in results.groups for arm in group.arms}
    names = [_named(name, labels) for name in (first, second)]
    if names[0] == names[1]:
        raise UserError(f"'{first}' and '{second}' are the same: name two.")
    lines: list[Line] = []
    oracles: dict[str, None] = {}
    for group in results.groups:
        arms = [next((arm for arm in group.arms if arm.label == name), None) for name in names]
        if arms[0] is not None and arms[1] is not None:
            lines += _lines(group, arms[0], arms[1])
            oracles |= {arm.label: None for arm in arms if arm is not None and arm.oracle}
    if not lines:
        where = [", ".join(str(g.key) for g in results.groups if any(a.label == n for a in g.arms)) for n in names]
        raise UserError(f"No table has both: {names[0]} is in {where[0]}; {names[1]} in {where[1]}.")
    return Comparison(names[0], names[1], tuple(lines), tuple(oracles))


def _named(name: str, labels: set[str]) -> str:
    if name not in labels:
        raise UserError(f"There is no method '{name}' in these runs; {did_you_mean(name, labels)}")
    return name


def _lines(group: Group, first: Arm, second: Arm) -> list[Line]:
    """The score and its sides, then every metric; Holm over all of them."""
    scores, goal = score_group(group), group.role("retrained")
    seeds = sorted(set(first.runs) & set(second.runs))
    lines = []
    for part in ("score", *SIDES):
        found = [scores[arm.label].by_seed(part) for arm in (first, second)]
        reasons = [scores[arm.label].reason for arm in (first, second)]
        name = part if part == "score" else f"{part} side of the score"
        one, other = ({seed: values.get(seed) for seed in seeds} for values in found)
        lines.append(_line(str(group.key), name, "lower", one, other, None, {}, next(filter(None, reasons), "")))
    for metric in group.metric_names:
        one, other = ({seed: arm.values(metric)[seed] for seed in seeds} for arm in (first, second))
        reasons = [arm.null_reason(metric, seed) for arm in (first, second) for seed in seeds]
        aim = known(list(goal.values(metric).values())) if goal is not None else np.array([])
        example = group.metric(metric)
        pairs = {s: _rows(first.runs[s].evaluation, second.runs[s].evaluation, metric) for s in seeds}
        mean = float(aim.mean()) if len(aim) else None
        direction, why = example.direction if example else "", next(filter(None, reasons), "")
        lines.append(_line(str(group.key), metric, direction, one, other, mean, pairs, why))
    return _adjusted(lines, first.label, second.label)


def _two_runs(first: Path, second: Path) -> Comparison:
    """Two evaluations by their folders: one pair, whatever their seeds."""
    stages = [read_stage(folder) for folder in (first, second)]
    for folder, stage in zip((first, second), stages, strict=True):
        if stage is None or stage.kind != "evaluate" or stage.status != "complete":
            raise UserError(f"{folder} holds no complete evaluation.")
    a, b = (stage for stage in stages if stage is not None)
    if a.key == b.key:
        raise UserError(f"{first} and {second} are the same run: name two.")
    Results((a, b)).refuse_mixtures()
    names = [name for name in a.metrics if name in b.metrics]
    if not names:
        raise UserError(f"{first.name} and {second.name} have no metric in common.")
    lines = []
    for name in names:
        values = [stage.metrics[name] for stage in (a, b)]
        one, other = ({0: value.value} for value in values)
        reason = next((value.reason for value in values if value.value is None), "")
        lines.append(_line("two runs", name, values[0].direction, one, other, None, {0: _rows(a, b, name)}, reason))
    return Comparison(first.name, second.name, tuple(_adjusted(lines, first.name, second.name)))


def _rows(first: Stage | None, second: Stage | None, metric: str) -> list[tuple[str, str, float]]:
    """(row id, group, difference) of the rows both have, where the metric is the mean of its rows; else empty."""
    if first is None or second is None:
        return []
    sides = []
    for stage in (first, second):
        rows = {(s.split, s.row_id): (s.group, s.value) for s in stage.samples.get(metric, []) if s.value is not None}
        value = stage.metrics[metric].value if metric in stage.metrics else None
        if not rows or value is None or not same(float(np.mean([v for _, v in rows.values()])), value):
            return []
        sides.append(rows)
    return [
        (f"{key[0]} {key[1]}", group or key[1], value - sides[1][key][1])
        for key, (group, value) in sides[0].items()
        if key in sides[1]
    ]


def _line(
    comparison: str,
    metric: str,
    direction: str,
    first: Mapping[int, float | None],
    second: Mapping[int, float | None],
    retrained: float | None,
    rows: RowDifferences,
    reason: str,
) -> Line:
    both = [s for s in first if first[s] is not None and second.get(s) is not None]
    one, other = ({s: float(values[s] or 0.0) for s in both} for values in (first, second))
    means = [float(np.mean(list(values.values()))) if values else None for values in (one, other)]
    found = paired("", "", one, other)
    differences = [one[s] - other[s] for s in both]
    line = Line(comparison, metric, direction, means[0], means[1], retrained, len(both), len(first), found.difference)
    if not both:
        return replace(line, reason=reason or "no seed has both")
    complete = {s: rows[s] for s in both if rows.get(s)}
    if len(complete) == len(both):
        line = _with_rows(line, complete)
    if len(both) < MIN_SEEDS:
        ends, spread = value_range(differences), "range" if len(both) > 1 else ""
    else:
        pairs = {s: [(group, d) for _, group, d in of] for s, of in complete.items()}
        ends = (crossed_interval(pairs) if len(complete) == len(both) else None) or seeds_interval(differences)
        spread = "95% interval"
    if ends is not None and spread:
        line = replace(line, low=ends[0], high=ends[1], spread=spread)
    lost = reason if len(both) < len(first) else ""
    return replace(line, effect=found.effect, p=found.p, reason=lost or found.reason)


def _with_rows(line: Line, rows: RowDifferences) -> Line:
    """The bootstrap interval of the difference over the rows, each row's difference being its mean over the seeds."""
    of_row: dict[str, list[float]] = {}
    groups: dict[str, str] = {}
    for found in rows.values():
        for row_id, group, difference in found:
            of_row.setdefault(row_id, []).append(difference)
            groups[row_id] = group
    whole = [row_id for row_id, values in of_row.items() if len(values) == len(rows)]
    ends = cluster_interval([float(np.mean(of_row[r])) for r in whole], [groups[r] for r in whole])
    return line if ends is None else replace(line, rows_low=ends[0], rows_high=ends[1])


def _adjusted(lines: Sequence[Line], first: str, second: str) -> list[Line]:
    """With p after Holm, who is nearer to the retrained model, and the verdicts."""
    adjusted = iter(holm([line.p for line in lines if line.p is not None]))
    return [_judged(line if line.p is None else replace(line, p_holm=next(adjusted)), first, second) for line in lines]


def _judged(line: Line, first: str, second: str) -> Line:
    difference = line.difference
    if line.first is None or line.second is None or difference is None:
        return line
    if line.direction == "retrained" and line.retrained is not None:
        gaps = abs(line.first - line.retrained), abs(line.second - line.retrained)
        line = replace(line, nearer="" if gaps[0] == gaps[1] else first if gaps[0] < gaps[1] else second)
    if line.n < MIN_SEEDS:
        return replace(line, verdict="insufficient")
    if line.p_holm is None or line.p_holm >= LEVEL:
        return replace(line, verdict="not told apart")
    if line.direction == "retrained":
        return replace(line, verdict="differ")
    better = first if (difference > 0) == (line.direction == "higher") else second
    return replace(line, verdict=f"{better} better")


# -- forms -----------------------------------------------------------------------------------------------------

_COLUMNS = tuple(Line.__dataclass_fields__)


def as_json(found: Comparison) -> dict[str, Any]:
    """Everything, strict JSON."""
    return asdict(found)


def as_csv(found: Comparison) -> str:
    """One row per line: `a` and `b`, then the fields of `Line`; empty cells for nulls, six significant digits."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["a", "b", *_COLUMNS])
    for line in found.lines:
        cells = [getattr(line, column) for column in _COLUMNS]
        writer.writerow([found.first, found.second, *(f"{c:.6g}" if isinstance(c, float) else c for c in cells)])
    return text.getvalue()


def grids(found: Comparison) -> list[Grid]:
    """A table for each group."""
    heads = ("metric", found.first, found.second, "retrained", "difference", "seeds", "rows alone", "d", "p (Holm)")
    made = []
    for comparison in dict.fromkeys(line.comparison for line in found.lines):
        lines = [line for line in found.lines if line.comparison == comparison]
        rows = [_cells(line) for line in lines]
        tested = sum(line.p is not None for line in lines)
        test = (
            f"Paired t over seeds, two-sided, d: effect size; Holm over the {tested} rows tested, level {LEVEL}."
            if tested
            else f"Nothing is tested below {MIN_SEEDS} seeds in common; seeds: the range of the differences."
        )
        notes = [
            "Difference: first - second, paired over seeds. Rows alone: 95 % interval of the difference for these very "
            "models, whole groups drawn. ≈: `differ` says that the values do; in brackets who is nearer to retrained.",
            test,
            *(f"{name} is an oracle: its stop or its selection looked at what is scored." for name in found.oracles),
        ]
        missing: dict[str, list[str]] = {}
        for line in lines:
            if line.n < line.of and line.reason:
                missing.setdefault(line.reason, []).append(title(line.metric))
        notes += [f"Seeds are missing in {', '.join(names)}: {reason}." for reason, names in missing.items()]
        made.append(
            Grid(
                f"{found.first} against {found.second}: {comparison}",
                (*heads, "n", "verdict"),
                tuple(rows),
                tuple(notes),
            )
        )
    return made


def _cells(line: Line) -> tuple[str, ...]:
    digits = decimals(line.metric) + 1

    def number(value: float | None) -> str:
        return "" if value is None else f"{value:.{digits}f}"

    def ends(low: float | None, high: float | None) -> str:
        return "" if low is None or high is None else f"{number(low)} to {number(high)}"

    name = f"{title(line.metric)} {ARROWS.get(line.direction, '')}".strip()
    nearer = f" ({line.nearer})" if line.nearer else ""
    values = [number(line.first) or "null", number(line.second) or "null", number(line.retrained)]
    effect = f"{line.effect:.2f}" if line.effect is not None else ""
    p = f"{line.p_holm:.2g}" if line.p_holm is not None else ""
    counted = str(line.n) if line.n == line.of else f"{line.n} of {line.of}"
    spread = [ends(line.low, line.high), ends(line.rows_low, line.rows_high)]
    return (name, *values, number(line.difference), *spread, effect, p, counted, line.verdict + nearer)
