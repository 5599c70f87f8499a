"""Forgetting against utility: as distances to the retrained model, with the Pareto front, and as they were measured."""

from __future__ import annotations

from typing import Any

from unlearnbench.report.catalogue import title
from unlearnbench.report.standings import Standing, Summary, Table
from unlearnbench.report.style import INK, MUTED, PAPER, look, tip


def tradeoff(table: Table, plt: Any) -> Any:
    """Left: both distances, the goal in the corner at zero. Right: one metric of each side, the goal at the star."""
    rows = [row for row in table.rows if row.arm.role != "base"]
    scored = [row for row in rows if row.sides["forget"].mean is not None and row.sides["utility"].mean is not None]
    pair = _pair(table)
    panels = (len(scored) > 1) + (pair is not None)
    if not panels:
        return None
    figure, grid = plt.subplots(1, panels, figsize=(4.4 * panels + 0.4, 3.9), squeeze=False)
    figure.subplots_adjust(wspace=0.28)
    axes = list(grid.flat)
    if len(scored) > 1:
        _distances(axes[0], scored)
    if pair is not None:
        _measured(axes[-1], rows, *pair)
    axes[-1].legend(loc="center left", bbox_to_anchor=(1.02, 0.5), handletextpad=0.3)
    return figure


def _pair(table: Table) -> tuple[str, str] | None:
    """The first scored metric of each side."""
    forget, utility = (table.scored.get(side, []) for side in ("forget", "utility"))
    return (forget[0], utility[0]) if forget and utility else None


def _distances(axes: Any, rows: list[Standing]) -> None:
    front = sorted((row.sides["forget"].mean, row.sides["utility"].mean) for row in rows if row.pareto)
    if front:
        xs, ys = zip(*front, strict=True)
        axes.step(xs, ys, where="post", color=MUTED, linewidth=1, linestyle=":", zorder=1, label="Pareto front")
    for row in rows:
        forget, utility = row.sides["forget"], row.sides["utility"]
        words = f"{row.arm.title}: forget side {forget.mean:.2f}, utility side {utility.mean:.2f}"
        _point(axes, row, forget, utility, words)
    axes.set_xlim(left=-0.03 * axes.get_xlim()[1])
    axes.set_ylim(bottom=-0.03 * axes.get_ylim()[1])
    axes.set_xlabel("distance on the forget side (target: 1)")
    axes.set_ylabel("distance on the utility side")
    axes.set_title("Distance to the retrained model (0, 0)")


def _measured(axes: Any, rows: list[Standing], forget: str, utility: str) -> None:
    for row in rows:
        x, y = row.metrics.get(forget), row.metrics.get(utility)
        if x is None or y is None or x.mean is None or y.mean is None:
            continue
        if row.arm.role == "retrained":
            axes.axvline(x.mean, color=INK, linewidth=0.8, linestyle="--", zorder=1)
            axes.axhline(y.mean, color=INK, linewidth=0.8, linestyle="--", zorder=1)
        _point(axes, row, x, y, f"{row.arm.title}: {title(forget)} {x.mean:.2f}, {title(utility)} {y.mean:.2f}")
    axes.set_xlabel(title(forget))
    axes.set_ylabel(title(utility))
    axes.set_title("As measured; the star is the goal")


def _point(axes: Any, row: Standing, x: Summary, y: Summary, words: str) -> None:
    """A marker with its range or interval in both directions."""
    style = look(row.arm.method, row.arm.role)
    for ends, flat in ((x, True), (y, False)):
        if ends.low is not None and ends.high is not None:
            line = ([ends.low, ends.high], [y.mean, y.mean]) if flat else ([x.mean, x.mean], [ends.low, ends.high])
            axes.plot(*line, color=style.colour, linewidth=1, alpha=0.7, zorder=2)
    size = 170 if row.arm.role == "retrained" else 66
    dots = axes.scatter([x.mean], [y.mean], s=size, zorder=4, marker=style.marker, color=style.colour, linewidth=0.7,
                        edgecolor=PAPER, label=row.arm.title, clip_on=False)  # fmt: skip
    tip(dots, words)
