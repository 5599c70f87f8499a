"""The tables of a report as plain cells. `forms` gives them to terminal, Markdown and LaTeX, `page` to HTML."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from unlearnbench.report.catalogue import ARROW_LEGEND, ARROWS, decimals, headline, title
from unlearnbench.report.recompute import between_seeds
from unlearnbench.report.results import PHASES
from unlearnbench.report.standings import LEVEL, Standing, Summary, Table
from unlearnbench.statistics import MIN_SEEDS


@dataclass(frozen=True)
class Grid:
    """A table as text: title, column heads, rows, and notes below it.

    `labels`: the arm behind each row ("" for none). `hints`: a longer text per column, where there is one.
    """

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()


def number(summary: Summary, digits: int) -> str:
    """Mean and half of its range or interval; `(n of N)` where seeds are missing; `null` without any."""
    if summary.mean is None:
        return "null"
    text = _fixed(summary.mean, digits)
    if summary.low is not None and summary.high is not None and summary.high - summary.low >= 0.5 * 10**-digits:
        text += f" ±{(summary.high - summary.low) / 2:.{digits}f}"
    return text + summary.counted


def _fixed(value: float, digits: int) -> str:
    text = f"{value:.{digits}f}"
    return text.lstrip("-") if float(text) == 0 else text  # no "-0.00"


def place(row: Standing) -> str:
    """The first column: rank or tier, `-` where a method has none."""
    if row.arm.role != "unlearned":
        return ""
    if row.rank is not None:
        return str(row.rank)
    return f"T{row.tier}" if row.tier is not None else "-"


def main(table: Table) -> Grid:
    """The metrics people look at first, with the score."""
    names = headline(table.group.metric_names)
    heads = ["rank" if table.ranked else "tier", "method", "score ↓"]
    hints = ["", "", "mean distance to the retrained model, forget and utility side in equal parts"]
    for name in names:
        metric = table.group.metric(name)
        heads.append(f"{title(name)} {ARROWS.get(metric.direction, '') if metric else ''}".strip())
        hints.append(f"{name}, version {metric.version}, protocol {metric.protocol}" if metric else name)
    rows = []
    for row in table.rows:
        cells = [place(row), row.arm.title + ("*" if row.pareto else ""), number(row.score, 2)]
        cells += [number(row.metrics[n], decimals(n)) if n in row.metrics else "null" for n in names]
        total, steps = row.cost.seconds.get("total"), row.cost.counts.get("steps")
        unlearned = row.arm.role == "unlearned"
        cells.append(number(total, 1) if unlearned and total is not None else "")
        cells.append(_count(steps, 1, 0) if unlearned and steps is not None and steps.n else "")
        rows.append(tuple(cells))
    heads += ["seconds", "steps"]
    hints += [" + ".join(PHASES), "optimiser steps"]
    return Grid(f"{table.group.key}", tuple(heads), tuple(rows), tuple(_notes(table)), _labels(table), tuple(hints))


def cost(table: Table) -> Grid:
    """Seconds by phase, and what does not depend on the machine."""
    phases = [*PHASES, *[p for p in ("load", "encode", "warmup", "evaluate") if _any_phase(table, p)]]
    heads = ["method", "total s", *phases, "steps", "tokens", "GFLOP", "peak MB", "machine"]
    rows = []
    timed = [row for row in table.methods if not row.arm.imported]
    for row in timed:
        seconds, counts = row.cost.seconds, row.cost.counts
        cells = [row.arm.title, number(seconds["total"], 2) if "total" in seconds else "null"]
        cells += [number(seconds[p], 2) if p in seconds else "null" for p in phases]
        for name, unit, digits in (("steps", 1, 0), ("tokens", 1, 0), ("flops", 1e9, 1), ("peak_memory_bytes", 1e6, 0)):
            cells.append(_count(counts[name], unit, digits) if name in counts else "null")
        rows.append((*cells, row.cost.hardware or "several"))
    machines = {row.cost.hardware for row in timed if row.cost.seconds}
    notes = [f"The method's cost is {' + '.join(PHASES)}; the other phases are reported and not counted."]
    notes += [f"{row.arm.title}: {row.cost.reason}." for row in timed if row.cost.reason]
    if len(machines) > 1:
        notes.append(f"The runs come from {len(machines)} machines: compare seconds within one machine only.")
    labels = tuple(row.arm.label for row in timed)
    return Grid(f"Cost: {table.group.key}", tuple(heads), tuple(rows), tuple(notes), labels)


def _count(summary: Summary, unit: float, digits: int) -> str:
    """A count without its spread, with `(n of N)` where seeds are missing."""
    return "null" if summary.mean is None else f"{summary.mean / unit:,.{digits}f}{summary.counted}"


def score(table: Table) -> Grid:
    """The distances to the retrained model that the score is made of."""
    names = [n for names in table.scored.values() for n in names]
    heads = ["method", "score", *(f"{side} side" for side in table.scored), *[title(n) for n in names]]
    shown = [row for row in table.rows if row.arm.role != "base"]
    rows = []
    for row in shown:
        cells = [row.arm.title, number(row.score, 2), *[number(row.sides[side], 2) for side in table.scored]]
        for name in names:
            found = list(row.scores.by_seed(name).values())
            mean = Summary(row.scores.mean(name), n=len(found), of=len(row.arm.seeds))
            cells.append(number(mean, 2))
        rows.append(tuple(cells))
    note = (
        "Distance to the retrained models of the other seeds. Forget side: in units of what the target is away from "
        "them; utility side: in units of the retrained value. Too much forgetting counts like too little. "
        "Score: the mean of both sides, each the mean of its metrics."
    )
    labels = tuple(row.arm.label for row in shown)
    return Grid(f"Parts of the score: {table.group.key}", tuple(heads), tuple(rows), (note,), labels)


def stop(table: Table) -> Grid:
    """Where online stops ended training, and on which reading."""
    rows, labels = [], []
    for row in table.rows:
        for seed, run in sorted(row.arm.runs.items()):
            if run.stop is None:
                continue
            found, values = run.stop, run.stop.get("values") or {}
            rate = values.get("confirm_rate", values.get("violation_rate"))
            alpha = values.get("alpha", found.get("alpha"))
            probed = f"{len(found.get('rows') or [])}" + (", held out" if found.get("held_out") else "")
            planned = run.training.record.get("planned_steps") if run.training else None
            step = "never" if run.stopped_at is None else f"{run.stopped_at}" + (f" of {planned}" if planned else "")
            cells = [row.arm.title, str(seed), str(found.get("rule", "")), step, _rate(rate), _rate(alpha), probed]
            rows.append((*cells, "yes" if run.oracle else "no", str(found.get("reason", ""))))
            labels.append(row.arm.label)
    heads = ("method", "seed", "rule", "step", "rate", "tolerance", "rows probed", "oracle", "why")
    note = "An oracle looks at the retrained model or at test metrics: it is shown, and never placed."
    return Grid(f"Online stops: {table.group.key}", heads, tuple(rows), (note,), tuple(labels))


def _rate(value: object) -> str:
    return f"{value:.3f}" if isinstance(value, float | int) else str(value or "")


def comparison(table: Table) -> Grid:
    """Paired tests of every two methods; no rows below five seeds."""
    names = {row.arm.label: row.arm.title for row in table.rows}
    rows, labels = [], []
    for pair in sorted(table.comparisons, key=lambda pair: (pair.adjusted is None, pair.adjusted or 0.0)):
        if pair.p is None and not table.ranked:
            continue
        first, second, gap = pair.first, pair.second, pair.difference or 0.0
        if gap > 0:
            first, second, gap = second, first, -gap
        if pair.p is None or pair.adjusted is None or pair.effect is None:
            rows.append((names[first], names[second], f"{gap:.3f}", "", "", "", pair.reason))
        else:
            verdict = "better" if pair.adjusted < LEVEL else "not told apart"
            numbers = (f"{gap:.3f}", f"{-abs(pair.effect):.2f}", f"{pair.p:.2g}", f"{pair.adjusted:.2g}")
            rows.append((names[first], names[second], *numbers, verdict))
        labels.append(first)
    heads = ("method", "against", "score difference", "effect size", "p", "p (Holm)", "verdict")
    note = f"Paired t over the seeds, two-sided; Holm over all pairs; better: p (Holm) below {LEVEL}."
    return Grid(f"Comparisons: {table.group.key}", heads, tuple(rows), (note,), tuple(labels))


def missing(table: Table) -> Grid:
    """What was not computed, and why."""
    rows, labels = [], []
    for row in table.rows:
        reasons: dict[str, dict[str, list[int]]] = {}  # reason -> metric -> seeds
        for seed in row.arm.seeds:
            for name in table.group.metric_names:
                if reason := row.arm.null_reason(name, seed):
                    reasons.setdefault(reason, {}).setdefault(name, []).append(seed)
        for reason, names in reasons.items():
            seeds = sorted({seed for found in names.values() for seed in found})
            what = "all" if len(names) == len(table.group.metric_names) else ", ".join(title(name) for name in names)
            rows.append((row.arm.title, what, " ".join(map(str, seeds)), reason))
            labels.append(row.arm.label)
        if row.unranked and row.scores.complete:
            rows.append((row.arm.title, "place", " ".join(map(str, row.arm.seeds)), row.unranked))
            labels.append(row.arm.label)
    heads = ("row", "what", "seeds", "why")
    return Grid(f"Not computed: {table.group.key}", heads, tuple(rows), (), tuple(labels))


def provenance(found: Sequence[Table]) -> Grid:
    """Where each row comes from: seeds, versions, commits, machine."""
    rows = []
    for table in found:
        for row in table.rows:
            stages = [s for run in row.arm.runs.values() for s in (run.training, run.evaluation) if s is not None]
            cells = [row.arm.title, str(table.group.key), " ".join(map(str, row.arm.seeds)), str(row.arm.version or "")]
            for name in ("torch", "transformers"):
                cells.append(_every((stage.record.get("versions") or {}).get(name) for stage in stages))
            commits = [stage.record.get("git") or {} for stage in stages]
            cells.append(_every(str(g.get("commit") or "")[:8] + ("+" if g.get("dirty") else "") for g in commits))
            rows.append((*cells, row.arm.origin, row.cost.hardware, row.provenance))
    heads = (
        "row",
        "comparison",
        "seeds",
        "version",
        "torch",
        "transformers",
        "commit",
        "origin",
        "machine",
        "provenance",
    )
    note = (
        "Provenance is a hash over the keys of every stage behind a row; + marks a working tree with changes. "
        "Everything here is computed from the run folders; leaderboard.csv holds the numbers with more digits."
    )
    return Grid("Provenance", heads, tuple(rows), (note,))


def _every(values: Iterable[Any]) -> str:
    return ", ".join(sorted({str(value) for value in values if value}))


GRIDS: dict[str, Callable[[Table], Grid]] = {
    "main": main,
    "cost": cost,
    "score": score,
    "stop": stop,
    "comparison": comparison,
    "missing": missing,
}


def _labels(table: Table) -> tuple[str, ...]:
    return tuple(row.arm.label for row in table.rows)


def _any_phase(table: Table, phase: str) -> bool:
    return any((s := row.cost.seconds.get(phase)) is not None and (s.mean or 0) > 0 for row in table.rows)


# -- notes -----------------------------------------------------------------------------------------------------


def _notes(table: Table) -> list[str]:
    seeds = {len(row.arm.seeds) for row in table.rows}
    enough = min(seeds, default=0) >= MIN_SEEDS
    spread = "half the 95 % interval over seeds and groups" if enough else "half the range over the seeds"
    single = "half the 95 % interval over the rows, whole groups drawn"
    if 1 in seeds:
        spread = single if len(seeds) == 1 else f"{spread}; with one seed {single}"
    notes = [
        f"{ARROW_LEGEND}. ±: {spread}. Score: mean distance to the retrained model, lower is better. "
        "*: on the Pareto front."
    ]
    if table.methods and seeds == {1}:
        notes.append(f"One seed: neither tiers nor ranks; tiers need two seeds, ranks {MIN_SEEDS}.")
    elif table.methods and not table.ranked:
        notes.append(f"{max(seeds)} seeds: tiers (T1 best), no ranks; ranks need {MIN_SEEDS}.")
    if table.ranked:
        notes.append("Rank: 1 + the number of methods that are significantly better (paired t over seeds, Holm).")
    if borrowed := table.group.borrowed:
        notes.append(f"Compared with the {' and the '.join(borrowed)} model as it was before the attack.")
    notes += _quality(table)
    notes += _warnings(table)
    reasons: dict[str, list[str]] = {}
    for row in table.methods:
        if row.unranked:
            reasons.setdefault(row.unranked, []).append(row.arm.title)
    for reason, titles in reasons.items():
        if 1 < len(titles) == len(table.methods):
            notes.append(f"No method has a place: {reason}.")
        else:
            notes.append(f"{', '.join(titles)} {'have' if len(titles) > 1 else 'has'} no place: {reason}.")
    for row in table.rows:
        notes += [f"{row.arm.title}: {note}." for note in row.notes]
    return notes


def _warnings(table: Table) -> list[str]:
    """What metrics say against their own numbers (`warning` in the details), each warning once."""
    names: dict[str, dict[str, None]] = {}
    for row in table.rows:
        for run in row.arm.runs.values():
            for name, value in run.metrics.items():
                if value.details.get("warning"):
                    names.setdefault(str(value.details["warning"]), {})[title(name)] = None
    return [f"{', '.join(found)}: {warning}." for warning, found in names.items()]


def _quality(table: Table) -> list[str]:
    """What a reader of Forget Quality must know: n, the floor, and how retrained models of two seeds differ."""
    quality = table.group.metric("forget_quality")
    if quality is None or quality.details.get("floor") is None:
        return []
    goal = table.group.role("retrained")
    spread = between_seeds(goal, "forget_quality") if goal is not None else []
    text = f"log10 FQ: Kolmogorov-Smirnov test on {quality.details.get('n')} rows, floor {quality.details['floor']:.1f}"
    if spread:
        ends = dict.fromkeys(_fixed(value, 1) for value in (min(spread), max(spread)))
        text += f", retrained models of two seeds {' to '.join(ends)}"
    return [f"{text}; descriptive, for the rows are not independent."]
