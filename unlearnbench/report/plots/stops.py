"""The same methods under several stop rules: when each ends, what it costs, and how near the retrained model it is."""

from __future__ import annotations

import json
from typing import Any

from unlearnbench.report.results import Arm
from unlearnbench.report.standings import Standing, Summary, Table
from unlearnbench.report.style import GRID, INK, PAPER, look, tip


def stops(table: Table, plt: Any) -> Any:
    """One line per method, one marker per rule: hollow for the budget, filled for online stops.

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
    figure, grid = plt.subplots(1, len(panels), sharey=True, squeeze=False, figsize=(13, 1.2 + 0.38 * len(pairs)))
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
    names = list(dict.fromkeys(rule(row.arm) for rows in pairs for row in rows))
    handles = [plt.Line2D([], [], color=INK, marker="o", linestyle="", **_face(i, INK)) for i in range(len(names))]
    first.legend(handles, names, loc="lower left", bbox_to_anchor=(0, 1), ncols=len(names), borderaxespad=0.2)
    return figure


def paired(table: Table) -> list[list[Standing]]:
    """The rows of methods that differ in their stop rule alone, the budget first; methods by name."""
    found: dict[str, list[Standing]] = {}
    for row in table.methods:
        others = {name: value for name, value in row.arm.params.items() if name != "stop"}
        found.setdefault(row.arm.method + json.dumps(others, sort_keys=True), []).append(row)
    groups = [sorted(rows, key=lambda row: (_online(row.arm), rule(row.arm))) for rows in found.values()]
    return sorted((rows for rows in groups if len(rows) > 1), key=lambda rows: rows[0].arm.title.lower())


def rule(arm: Arm) -> str:
    """What the experiment calls the stop rule of a method's row (`npo[stop=budget]`), else the rule's own name."""
    _, named, rest = arm.label.partition("[stop=")
    return rest.removesuffix("]") if named else str((arm.params.get("stop") or {}).get("rule", "budget"))


def _online(arm: Arm) -> bool:
    return (arm.params.get("stop") or {}).get("rule", "budget") != "budget"


def _face(number: int, colour: str) -> dict[str, Any]:
    """How the markers of the rules differ: hollow, full, half full."""
    return {
        "markerfacecolor": PAPER if number == 0 else colour,
        "markerfacecoloralt": PAPER,
        "fillstyle": ("full", "full", "left", "bottom")[number % 4],
        "markeredgewidth": 1.2,
    }


def _line(axes: Any, y: int, points: list[tuple[Standing, Summary | None]]) -> None:
    """Markers side by side on the line of one method, the first rule highest, and a band over the whole of them."""
    known = [(i, row, value) for i, (row, value) in enumerate(points) if value is not None and value.mean is not None]
    means = [value.mean for _, _, value in known]
    if len(known) > 1:
        axes.plot([min(means), max(means)], [y, y], color=GRID, linewidth=3, zorder=1)
    for i, row, value in known:
        style, height = look(row.arm.method), y + 0.2 - 0.4 * i / max(1, len(points) - 1)
        if value.low is not None and value.high is not None:
            axes.plot([value.low, value.high], [height, height], color=style.colour, linewidth=1, zorder=2)
        (dot,) = axes.plot(
            [value.mean], [height], marker=style.marker, markersize=6.5, color=style.colour, zorder=3, clip_on=False,
            **_face(i, style.colour),
        )  # fmt: skip
        tip(dot, f"{row.arm.title}: {value.mean:.3g}")
