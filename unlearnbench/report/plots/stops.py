"""The same methods under several stop rules: when each ends, what it costs, and how near the retrained model it is."""

from __future__ import annotations

import json
from typing import Any

from unlearnbench.report.results import Arm
from unlearnbench.report.standings import Standing, Summary, Table
from unlearnbench.report.style import GRID, PAPER, look, tip


def stops(table: Table, plt: Any) -> Any:
    """One line per method, one marker per rule: hollow for the budget, filled for an online stop.

    Panels: optimiser steps, seconds, and the score with its two sides.
    """
    pairs = paired(table)
    if not pairs:
        return None
    panels = [
        ("optimiser steps", lambda row: row.cost.counts.get("steps")),
        ("seconds", lambda row: row.cost.seconds.get("total")),
        ("distance to retrained (score)", lambda row: row.score),
        ("… on the forget side", lambda row: row.sides["forget"]),
        ("… on the utility side", lambda row: row.sides["utility"]),
    ]
    figure, grid = plt.subplots(1, len(panels), sharey=True, squeeze=False, figsize=(13, 1.2 + 0.34 * len(pairs)))
    figure.subplots_adjust(wspace=0.08)
    for axes, (label, read) in zip(grid.flat, panels, strict=True):
        for y, rows in enumerate(reversed(pairs)):
            _line(axes, y, [(row, read(row)) for row in rows])
        axes.set_xlabel(label)
        axes.set_xlim(left=0)
        axes.grid(axis="y", visible=False)
        axes.tick_params(axis="y", length=0)
    first = grid.flat[0]
    first.set_yticks(range(len(pairs)), [rows[0].arm.title.partition("[")[0] for rows in reversed(pairs)])
    first.set_title("Each method under each stop rule: hollow without, filled with an online stop; bars: seeds")
    return figure


def paired(table: Table) -> list[list[Standing]]:
    """The rows of methods that differ in their stop rule alone, the budget first; methods by name."""
    found: dict[str, list[Standing]] = {}
    for row in table.methods:
        others = {name: value for name, value in row.arm.params.items() if name != "stop"}
        found.setdefault(row.arm.method + json.dumps(others, sort_keys=True), []).append(row)
    groups = [sorted(rows, key=lambda row: rule(row.arm) != "budget") for rows in found.values() if len(rows) > 1]
    return sorted(groups, key=lambda rows: rows[0].arm.title.lower())


def rule(arm: Arm) -> str:
    """The name of the stop rule of a method's row."""
    return str((arm.params.get("stop") or {}).get("rule", "budget"))


def _line(axes: Any, y: int, points: list[tuple[Standing, Summary | None]]) -> None:
    known = [(row, value) for row, value in points if value is not None and value.mean is not None]
    if len(known) > 1:
        axes.plot([known[0][1].mean, known[-1][1].mean], [y, y], color=GRID, linewidth=3, zorder=1)
    for row, value in known:
        style, online = look(row.arm.method), rule(row.arm) != "budget"
        height = y - 0.16 if online else y + 0.16
        if value.low is not None and value.high is not None:
            axes.plot([value.low, value.high], [height, height], color=style.colour, linewidth=1, zorder=2)
        (dot,) = axes.plot(
            [value.mean], [height], marker=style.marker, markersize=7, color=style.colour, zorder=3, clip_on=False,
            markerfacecolor=style.colour if online else PAPER, markeredgewidth=1.4,
        )  # fmt: skip
        tip(dot, f"{row.arm.title}: {value.mean:.3g}")
