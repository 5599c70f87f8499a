"""The tables of a report as plain cells, and their forms: terminal, Markdown, LaTeX."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.console import Group as Renderables
from rich.table import Table as RichTable
from rich.text import Text

from unlearnbench.report.catalogue import ARROW_LEGEND, ARROWS, decimals, headline, title
from unlearnbench.report.results import PHASES
from unlearnbench.report.standings import Standing, Summary, Table
from unlearnbench.statistics import MIN_SEEDS


@dataclass(frozen=True)
class Grid:
    """A table as text: its title, its column heads, its rows, and notes below it."""

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()


def number(summary: Summary, digits: int) -> str:
    """Mean and half of its range or interval; `(n of N)` where seeds are missing; `null` without any."""
    if summary.mean is None:
        return "null"
    text = f"{summary.mean:.{digits}f}"
    if summary.low is not None and summary.high is not None and summary.high - summary.low >= 0.5 * 10**-digits:
        text += f" ±{(summary.high - summary.low) / 2:.{digits}f}"
    return text + (f" ({summary.n} of {summary.of})" if summary.partial else "")


def place(row: Standing, table: Table) -> str:
    """The first column: rank or tier, `-` where a row has none."""
    if row.arm.role != "unlearned":
        return ""
    if row.rank is not None:
        return str(row.rank)
    return f"T{row.tier}" if row.tier is not None else "-"


def main(table: Table) -> Grid:
    """The metrics people look at first, with the score."""
    names = headline(table.group.metric_names)
    heads = ["rank" if table.ranked else "tier", "method", "score ↓"]
    heads += [f"{title(n)} {ARROWS.get(_direction(table, n), '')}".strip() for n in names]
    heads += ["seconds", "steps"]
    rows = []
    for row in table.rows:
        cells = [place(row, table), row.arm.title + ("*" if row.pareto else ""), number(row.score, 2)]
        cells += [number(row.metrics[n], decimals(n)) if n in row.metrics else "null" for n in names]
        total, steps = row.cost.seconds.get("total"), row.cost.counts.get("steps")
        unlearned = row.arm.role == "unlearned"
        cells.append(number(total, 1) if unlearned and total is not None else "")
        cells.append(f"{steps.mean:.0f}" if unlearned and steps is not None and steps.mean is not None else "")
        rows.append(tuple(cells))
    return Grid(f"{table.group.key}", tuple(heads), tuple(rows), tuple(_notes(table)))


def cost(table: Table) -> Grid:
    """Seconds by phase, and what does not depend on the machine."""
    phases = [*PHASES, *[p for p in ("load", "encode", "warmup", "evaluate") if _any_phase(table, p)]]
    heads = ["method", "total s", *phases, "steps", "tokens", "GFLOP", "peak MB"]
    rows = []
    for row in table.rows:
        if row.arm.role != "unlearned":
            continue
        seconds, counts = row.cost.seconds, row.cost.counts
        cells = [row.arm.title, number(seconds["total"], 2) if "total" in seconds else "null"]
        cells += [number(seconds[p], 2) if p in seconds else "null" for p in phases]
        for name, unit, digits in (("steps", 1, 0), ("tokens", 1, 0), ("flops", 1e9, 1), ("peak_memory_bytes", 1e6, 0)):
            mean = counts[name].mean if name in counts else None
            cells.append("null" if mean is None else f"{mean / unit:,.{digits}f}")
        rows.append(tuple(cells))
    notes = [
        f"{row.arm.title}: {row.cost.reason}" for row in table.rows if row.arm.role == "unlearned" and row.cost.reason
    ]
    note = f"The method's cost is {' + '.join(PHASES)}; the other phases are reported and not counted."
    return Grid(f"Cost: {table.group.key}", tuple(heads), tuple(rows), (note, *notes))


def score(table: Table) -> Grid:
    """The distances to the retrained model that the score is made of."""
    names = [n for names in table.scored.values() for n in names]
    heads = ["method", "score", *table.scored, *[title(n) for n in names]]
    rows = []
    for row in table.rows:
        if row.arm.role == "base":
            continue
        cells = [row.arm.title, number(row.score, 2), *[number(row.sides[side], 2) for side in table.scored]]
        means = [row.scores.mean(n) for n in names]
        rows.append((*cells, *["null" if m is None else f"{m:.2f}" for m in means]))
    note = (
        "Distance to the retrained models of the other seeds, in units of what the target is away from them "
        "(utility: in units of the retrained value); too much forgetting counts like too little."
    )
    return Grid(f"Parts of the score: {table.group.key}", tuple(heads), tuple(rows), (note,))


def stop(table: Table) -> Grid:
    """Where online stops ended training, and on which reading."""
    rows = []
    for row in table.rows:
        for seed, run in sorted(row.arm.runs.items()):
            found = run.stop
            if found is None:
                continue
            values = found.get("values") or {}
            rate = values.get("confirm_rate", values.get("violation_rate"))
            rows.append(
                (
                    row.arm.title,
                    str(seed),
                    str(found.get("rule", "")),
                    "never" if found.get("step") is None else str(found["step"]),
                    "" if rate is None else f"{rate:.3f}",
                    ""
                    if values.get("alpha", found.get("alpha")) is None
                    else f"{values.get('alpha', found.get('alpha')):.3f}",
                    f"{len(found.get('rows') or [])}" + (" held out" if found.get("held_out") else ""),
                    str(found.get("reason", "")),
                )
            )
    heads = ("method", "seed", "rule", "step", "rate", "tolerance", "rows probed", "why")
    return Grid(f"Online stops: {table.group.key}", heads, tuple(rows))


GRIDS: dict[str, Callable[[Table], Grid]] = {"main": main, "cost": cost, "score": score, "stop": stop}


def _direction(table: Table, name: str) -> str:
    metric = table.group.metric(name)
    return metric.direction if metric is not None else ""


def _any_phase(table: Table, phase: str) -> bool:
    return any((s := row.cost.seconds.get(phase)) is not None and (s.mean or 0) > 0 for row in table.rows)


def _notes(table: Table) -> list[str]:
    methods = [row for row in table.rows if row.arm.role == "unlearned"]
    seeds = {len(row.arm.seeds) for row in table.rows}
    spread = (
        "half the 95 % interval over seeds and groups"
        if min(seeds, default=0) >= MIN_SEEDS
        else "half the range over seeds"
    )
    notes = [
        f"{ARROW_LEGEND}. ±: {spread}. Score: mean distance to the retrained model, lower is better. "
        "*: on the Pareto front."
    ]
    if methods and not table.ranked:
        notes.append(f"{max(seeds)} seeds: tiers (T1 best), no ranks; ranks need {MIN_SEEDS}.")
    quality = table.group.metric("forget_quality")
    if quality is not None and quality.details.get("floor") is not None:
        n, floor = quality.details.get("n"), float(quality.details["floor"])
        notes.append(
            f"log10 FQ: Kolmogorov-Smirnov test on {n} rows, floor {floor:.1f}; descriptive (rows are not independent)."
        )
    for row in methods:
        if row.unranked:
            notes.append(f"{row.arm.title} is not placed: {row.unranked}.")
        notes += [f"{row.arm.title}: {note}" for note in row.notes]
    for row in table.rows:
        nulls = [
            f"{title(n)} ({s.reason})" for n, s in row.metrics.items() if s.n == 0 and n in headline(list(row.metrics))
        ]
        if nulls and row.arm.role == "unlearned":
            notes.append(f"{row.arm.title}, null: {'; '.join(nulls[:3])}.")
    return notes


# -- forms -----------------------------------------------------------------------------------------------------


def markdown(grid: Grid) -> str:
    """GitHub Markdown."""
    lines = [f"**{grid.title}**", "", _bar(grid.heads), _bar(["---", *["---:"] * (len(grid.heads) - 1)])]
    lines += [_bar(row) for row in grid.rows]
    return "\n".join([*lines, "", *[f"{note}\n" for note in grid.notes]]).rstrip() + "\n"


def _bar(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


_TEX = {"&": r"\&", "%": r"\%", "_": r"\_", "#": r"\#", "±": r"$\pm$", "↑": r"$\uparrow$", "↓": r"$\downarrow$",
        "≈": r"$\approx$", "<": "$<$", ">": "$>$", "[": "{[}", "]": "{]}", "*": "$^*$", "^": r"\^{}",
        "~": r"\~{}"}  # fmt: skip


def tex(grid: Grid) -> str:
    """A booktabs table."""

    def clean(text: str) -> str:
        return "".join(_TEX.get(c, c) for c in text)

    body = [" & ".join(map(clean, row)) + r" \\" for row in grid.rows]
    head = " & ".join(map(clean, grid.heads)) + r" \\"
    notes = [f"% {note}" for note in grid.notes]
    columns = "l" * 2 + "r" * (len(grid.heads) - 2)
    lines = [
        *notes,
        rf"\begin{{tabular}}{{{columns}}}",
        r"\toprule",
        head,
        r"\midrule",
        *body,
        r"\bottomrule",
        r"\end{tabular}",
    ]
    return "\n".join(lines) + "\n"


def rich(grid: Grid, width: int) -> Renderables:
    """For the terminal: columns that do not fit into `width` characters go into a second table below the first."""
    heads, rows = list(grid.heads), [list(row) for row in grid.rows]
    words = [max((len(word) for word in head.split()), default=0) for head in heads]
    needed = [max(words[i], *[len(r[i]) for r in rows], 1) for i in range(len(heads))]
    widths = [n + 2 for n in needed]
    parts, current, used = [], [0, 1], widths[0] + widths[1]
    for i in range(2, len(heads)):
        if used + widths[i] > width and len(current) > 2:
            parts.append(current)
            current, used = [1], widths[1]
        current.append(i)
        used += widths[i]
    parts.append(current)
    drawn = []
    for n, columns in enumerate(parts):
        table = RichTable(
            title=grid.title if n == 0 else None, title_justify="left", title_style="bold", box=None, pad_edge=False
        )
        for i in columns:
            table.add_column(heads[i], justify="left" if i < 2 else "right", width=needed[i] if i > 1 else None)
        for row in rows:
            bold = row[0] in ("1", "T1")
            table.add_row(*[Text(row[i], style="bold" if bold else "") for i in columns])
        drawn.append(table)
    return Renderables(
        *[x for table in drawn for x in (table, Text(""))], *[Text(note, style="dim") for note in grid.notes]
    )
