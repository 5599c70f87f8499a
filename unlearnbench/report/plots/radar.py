"""How close each method comes to the retrained model, metric by metric: one small radar per method."""

from __future__ import annotations

from typing import Any

import numpy as np

from unlearnbench.report.catalogue import title
from unlearnbench.report.standings import Standing, Table
from unlearnbench.report.style import INK, MUTED, look, tip


def radar(table: Table, plt: Any) -> Any:
    """Rim: d = 0, equal to the retrained model; centre: d >= 1, on the forget side as far as the untouched target."""
    names = [name for names in table.scored.values() for name in names]
    target, rows = table.row("target"), [row for row in table.methods if row.scores.mean("score") is not None]
    if target is None or len(names) < 3 or not rows:
        return None
    columns = min(4, len(rows))
    lines = -(-len(rows) // columns)
    figure, grid = plt.subplots(
        lines, columns, figsize=(2.5 * columns, 2.45 * lines + 0.35), subplot_kw={"projection": "polar"}, squeeze=False
    )
    figure.subplots_adjust(left=0.05, right=0.95, bottom=0.08, top=1 - 0.75 / (2.45 * lines), wspace=0.75, hspace=0.62)
    angles = np.linspace(0, 2 * np.pi, len(names), endpoint=False)
    for axes, row in zip(grid.flat, rows, strict=False):
        _frame(axes, angles, names, len(table.scored.get("forget", [])))
        _ring(axes, angles, _closeness(target, names), look("", "target"), "--", 0.9, 0.0)
        drawn = _ring(axes, angles, _closeness(row, names), look(row.arm.method), "-", 1.6, 0.25)
        tip(drawn, f"{row.arm.title}: " + ", ".join(f"{title(n)} d = {row.scores.mean(n):.2f}" for n in names))
        axes.set_title(row.arm.title, fontsize=9.5, loc="center", pad=20, color=look(row.arm.method).colour)
    for axes in list(grid.flat)[len(rows) :]:
        axes.set_visible(False)
    figure.text(0.0, 1.0, "Closeness to the retrained model", fontsize=10, weight="bold", va="top")
    figure.text(
        0.0, 1 - 0.22 / figure.get_figheight(), va="top", fontsize=8, color=MUTED,
        s="rim: equal to it; centre: a distance of 1 or more; dashed: the target; grey names: the utility side",
    )  # fmt: skip
    return figure


def _closeness(row: Standing, names: list[str]) -> list[float]:
    means = [row.scores.mean(name) for name in names]
    return [max(0.0, 1 - d) if d is not None else 0.0 for d in means]


def _ring(axes: Any, angles: np.ndarray, values: list[float], style: Any, dash: str, width: float, fill: float) -> Any:
    around, ring = [*angles, angles[0]], [*values, values[0]]
    (line,) = axes.plot(
        around, ring, color=style.colour, linestyle=dash, linewidth=width, marker=style.marker, markersize=3.5
    )
    axes.fill(around, ring, color=style.colour, alpha=fill, linewidth=0)
    return line


def _frame(axes: Any, angles: np.ndarray, names: list[str], forget: int) -> None:
    """Spokes from the top, clockwise; the names of the utility side are quieter than those of the forget side."""
    axes.set_theta_zero_location("N")
    axes.set_theta_direction(-1)
    axes.set_ylim(0, 1)
    axes.set_yticks([0.5, 1.0], ["", ""])
    axes.spines["polar"].set_color(INK)
    axes.set_xticks(angles, [title(name).replace(" ", "\n") for name in names], fontsize=6.8)
    axes.tick_params(axis="x", pad=-1)
    for i, (angle, label) in enumerate(zip(angles, axes.get_xticklabels(), strict=True)):
        side = np.sin(angle)
        label.set_horizontalalignment("center" if abs(side) < 0.2 else "left" if side > 0 else "right")
        label.set_color(INK if i < forget else MUTED)
