"""The plots of a report. Each function draws one table's plot and returns the figure, or None when there is nothing
to draw.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from unlearnbench.report.catalogue import title
from unlearnbench.report.results import PHASES, Arm, Run
from unlearnbench.report.standings import Standing, Table
from unlearnbench.report.style import MUTED, look

SHADES = {"prepare": 0.35, "optimise": 1.0, "probe": 0.65, "select": 0.2}
HATCHES = {"prepare": "//", "optimise": "", "probe": "\\\\", "select": "x"}


def methods_of(table: Table) -> list[Standing]:
    """The rows of methods, in the order of the table."""
    return [row for row in table.rows if row.arm.role == "unlearned"]


def wallclock(table: Table, plt: Any) -> Any:
    """Seconds by phase as stacked bars, with a dot for every seed, and the steps beside them."""
    rows = [row for row in methods_of(table) if row.cost.seconds and row.cost.seconds["total"].mean is not None]
    if not rows:
        return None
    rows.sort(key=lambda row: row.cost.seconds["total"].mean or 0.0, reverse=True)
    figure, axes = plt.subplots(figsize=(6.4, 0.8 + 0.42 * len(rows)))
    for y, row in enumerate(rows):
        left, style = 0.0, look(row.arm.label)
        for phase in PHASES:
            seconds = row.cost.seconds[phase].mean or 0.0
            if seconds > 0:
                axes.barh(y, seconds, left=left, height=0.62, color=style.colour, alpha=SHADES[phase],
                          hatch=HATCHES[phase], edgecolor="white", linewidth=0.5)  # fmt: skip
            left += seconds
        dots = [cost for run in row.arm.runs.values() if (cost := run.cost) is not None and run.status == "complete"]
        axes.plot(dots, np.full(len(dots), y), "o", color="black", markersize=3.2, zorder=5)
        steps = row.cost.counts["steps"].mean
        text = f"{left:.1f} s" + (f", {steps:.0f} steps" if steps is not None else "")
        axes.annotate(text, (max([left, *dots]), y), xytext=(6, 0), textcoords="offset points", va="center", fontsize=8)
    axes.set_yticks(range(len(rows)), [row.arm.title for row in rows])
    axes.grid(axis="y", visible=False)
    axes.set_xlim(0, max(max([0.0, *(run.cost or 0.0 for run in row.arm.runs.values())]) for row in rows) * 1.3)
    axes.set_xlabel("seconds, mean over seeds (dots: seeds)")
    used = [p for p in PHASES if any((row.cost.seconds[p].mean or 0) > 0 for row in rows)]
    handles = [
        plt.Rectangle((0, 0), 1, 1, facecolor="#777777", alpha=SHADES[p], hatch=HATCHES[p], edgecolor="white")
        for p in used
    ]
    axes.legend(handles, used, loc="upper right", ncols=1, fontsize=8)
    axes.set_title("What a method costs")
    return figure


def radar(table: Table, plt: Any) -> Any:
    """One small radar per method: 1 is the retrained model's value on each axis, 0 the other end of what was seen."""
    names = [n for names in table.scored.values() for n in names]
    goal, start = table.row("retrained"), table.row("target")
    rows = methods_of(table)
    if goal is None or start is None or len(names) < 3 or not rows:
        return None
    angles = np.linspace(0, 2 * np.pi, len(names), endpoint=False)
    columns = min(4, len(rows))
    lines = -(-len(rows) // columns)
    figure, grid = plt.subplots(
        lines, columns, figsize=(2.9 * columns, 3.0 * lines), subplot_kw={"projection": "polar"}, squeeze=False
    )

    def closeness(row: Standing) -> list[float]:
        means = [row.scores.mean(name) for name in names]
        return [max(0.0, 1 - d) if d is not None else 0.0 for d in means]

    for axes, row in zip(grid.flat, rows, strict=False):
        for other, width, fill in ((start, 0.8, 0.0), (row, 1.6, 0.25)):
            values = closeness(other)
            style = look(other.arm.label, other.arm.role)
            ring, around = [*values, values[0]], [*angles, angles[0]]
            dash = "--" if other is start else "-"
            axes.plot(
                around, ring, color=style.colour, linewidth=width, linestyle=dash, marker=style.marker, markersize=3
            )
            axes.fill(around, ring, color=style.colour, alpha=fill)
        axes.set_ylim(0, 1.05)
        axes.set_yticks([0.5, 1.0], ["", ""])
        axes.set_xticks(angles, [title(name).replace(" ", "\n") for name in names], fontsize=6.5)
        axes.tick_params(axis="x", pad=1)
        for angle, label in zip(angles, axes.get_xticklabels(), strict=True):
            label.set_horizontalalignment(
                "center" if abs(np.cos(angle)) < 0.2 else "left" if np.cos(angle) > 0 else "right"
            )
        axes.set_title(row.arm.title, fontsize=9, loc="center", pad=12, color=look(row.arm.label).colour)
    for axes in list(grid.flat)[len(rows) :]:
        axes.set_visible(False)
    figure.suptitle(
        "Closeness to the retrained model (outer ring: equal to it; dashed: the target)",
        fontsize=9.5,
        x=0.02,
        ha="left",
    )
    figure.tight_layout(rect=(0, 0, 1, 0.97), w_pad=2.2, h_pad=2.0)
    return figure


def tradeoff(table: Table, plt: Any) -> Any:
    """Distance to the retrained model on the forget side against the utility side; the goal is the corner at zero."""
    rows = [row for row in table.rows if all(row.sides[side].mean is not None for side in ("forget", "utility"))]
    if len(rows) < 2:
        return None
    figure, axes = plt.subplots(figsize=(6.4, 4.4))
    front = sorted((row.sides["utility"].mean, row.sides["forget"].mean) for row in rows if row.pareto)
    if len(front) > 1:
        xs, ys = zip(*front, strict=True)
        axes.step(xs, ys, where="post", color=MUTED, linewidth=0.9, linestyle=":", zorder=1, label="Pareto front")
    for row in rows:
        style = look(row.arm.label, row.arm.role)
        x, y = row.sides["utility"], row.sides["forget"]
        assert x.mean is not None and y.mean is not None
        for low, high, fixed, flat in ((x.low, x.high, y.mean, True), (y.low, y.high, x.mean, False)):
            if low is not None and high is not None:
                ends = ([low, high], [fixed, fixed]) if flat else ([fixed, fixed], [low, high])
                axes.plot(*ends, color=style.colour, linewidth=1, alpha=0.6, zorder=2)
        size = 150 if row.arm.role == "retrained" else 62
        dot = {"marker": style.marker, "color": style.colour, "edgecolor": "white", "linewidth": 0.7}
        axes.scatter([x.mean], [y.mean], s=size, zorder=4, label=row.arm.title, **dot)
    axes.set_xlabel("distance to the retrained model on the utility side")
    axes.set_ylabel("distance on the forget side\n(1: nothing forgotten)")
    axes.set_xlim(left=min(0, axes.get_xlim()[0]))
    axes.set_ylim(bottom=min(0, axes.get_ylim()[0]))
    axes.set_title("Forgetting against utility: the nearer to the lower left corner the better")
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), fontsize=8)
    return figure


def trajectory(table: Table, plt: Any) -> Any:
    """What a few metrics did during unlearning, against the steps; a ring marks where an online stop ended a run."""
    runs = [(row, run) for row in methods_of(table) for run in _trained(row.arm)]
    names = list(dict.fromkeys(n for _, run in runs for _, point in _points(run) for n in point))
    if not names:
        return None
    figure, grid = plt.subplots(1, len(names), figsize=(3.3 * len(names) + 1.2, 3.3), squeeze=False)
    goal = table.row("retrained")
    for axes, name in zip(grid.flat, names, strict=True):
        for row in methods_of(table):
            style = look(row.arm.label)
            for i, run in enumerate(_trained(row.arm)):
                points = [(step, point[name]) for step, point in _points(run) if point.get(name) is not None]
                if not points:
                    continue
                xs, ys = zip(*points, strict=True)
                axes.plot(xs, ys, color=style.colour, linewidth=1.1, marker=style.marker, markersize=3.2, alpha=0.8,
                          label=row.arm.title if i == 0 else None)  # fmt: skip
                if _stopped(run) is not None:
                    axes.plot(
                        xs[-1],
                        ys[-1],
                        "o",
                        markersize=10,
                        markerfacecolor="none",
                        color=style.colour,
                        markeredgewidth=1.4,
                    )
        if goal is not None and name in goal.metrics and goal.metrics[name].mean is not None:
            axes.axhline(goal.metrics[name].mean, color="black", linewidth=0.9, linestyle="--")
        axes.set_title(title(name))
        axes.set_xlabel("optimiser steps")
    handles, labels = grid.flat[0].get_legend_handles_labels()
    handles.append(plt.Line2D([], [], color="black", linestyle="--", linewidth=0.9))
    handles.append(plt.Line2D([], [], marker="o", markersize=9, markerfacecolor="none", color=MUTED, linestyle=""))
    figure.tight_layout()
    figure.legend(
        handles, [*labels, "retrained model", "online stop"], loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=8
    )
    return figure


def violation(table: Table, plt: Any) -> Any:
    """The violation rate that the stop rule read, its tolerance, and the step it stopped at; one panel per method."""
    rows = [(row, [run for run in _trained(row.arm) if _rates(run)]) for row in methods_of(table)]
    rows = [(row, runs) for row, runs in rows if runs]
    if not rows:
        return None
    figure, grid = plt.subplots(1, len(rows), figsize=(5.6 * len(rows), 3.3), squeeze=False)
    for axes, (row, runs) in zip(grid.flat, rows, strict=True):
        style = look(row.arm.label)
        for i, run in enumerate(runs):
            rates = _rates(run)
            shade = 1.0 if len(runs) == 1 else 0.45 + 0.55 * i / (len(runs) - 1)
            dash = ("-", "--", "-.", ":")[i % 4]
            label = f"seed {run.seed}: {len((run.stop or {}).get('rows', []))} rows probed"
            line = {"color": style.colour, "alpha": shade, "linestyle": dash, "marker": style.marker}
            axes.plot(
                [s for s, _, _ in rates], [r for _, r, _ in rates], markersize=3.5, linewidth=1.2, label=label, **line
            )
            alpha = next((a for _, _, a in rates if a is not None), None)
            if alpha is not None:
                axes.axhline(alpha, color="black", linewidth=0.8, linestyle=dash, alpha=0.6)
            step = _stopped(run)
            if step is not None:
                at = next((r for s, r, _ in rates if s == step), rates[-1][1])
                axes.plot(step, at, "o", markersize=11, markerfacecolor="none", color=style.colour, markeredgewidth=1.5)
                axes.annotate(
                    f"stop at {step}", (step, at), xytext=(9, 6 - 12 * i), textcoords="offset points", fontsize=8
                )
        axes.set_ylim(0, 1.05)
        axes.set_xlabel("optimiser steps")
        axes.set_ylabel("violation rate of the probe")
        axes.set_title(f"{row.arm.title}: the online stop (black: tolerance)")
        axes.legend(fontsize=8, loc="best")
    figure.tight_layout()
    return figure


DRAW: dict[str, Callable[[Table, Any], Any]] = {
    "wallclock": wallclock,
    "radar": radar,
    "tradeoff": tradeoff,
    "trajectory": trajectory,
    "violation": violation,
}


def _trained(arm: Arm) -> list[Run]:
    return [run for _, run in sorted(arm.runs.items()) if run.training is not None and run.status == "complete"]


def _points(run: Run) -> list[tuple[int, dict[str, Any]]]:
    log = run.training.log if run.training is not None else []
    return [(int(line["step"]), line["trajectory"]) for line in log if "trajectory" in line]


def _rates(run: Run) -> list[tuple[int, float, float | None]]:
    """(step, violation rate, tolerance) of every reading."""
    log = run.training.log if run.training is not None else []
    probes = [(int(line["step"]), line["probe"]) for line in log if "probe" in line]
    stated = (run.stop or {}).get("alpha")
    return [
        (step, p["violation_rate"], p.get("alpha", stated)) for step, p in probes if p.get("violation_rate") is not None
    ]


def _stopped(run: Run) -> int | None:
    stop = run.stop or {}
    return int(stop["step"]) if stop.get("step") is not None and stop.get("fired", True) else None
