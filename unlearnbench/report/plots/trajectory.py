"""What a few metrics did during unlearning, against the optimiser steps; rings mark online stops."""

from __future__ import annotations

from typing import Any

import numpy as np

from unlearnbench.report.catalogue import title
from unlearnbench.report.results import Run
from unlearnbench.report.standings import Standing, Table
from unlearnbench.report.style import INK, MUTED, look, tip

Curve = list[tuple[int, float]]


def trajectory(table: Table, plt: Any) -> Any:
    """One panel per metric: a thin line per seed, a thick one for their mean; dashed: the retrained model."""
    rows = [row for row in table.methods if any(_points(run) for run in row.arm.runs.values())]
    names = list(dict.fromkeys(n for row in rows for run in row.arm.runs.values() for _, p in _points(run) for n in p))
    if not names:
        return None
    figure, grid = plt.subplots(1, len(names), figsize=(3.1 * len(names) + 0.6, 3.1), squeeze=False)
    figure.subplots_adjust(wspace=0.22)
    goal = table.row("retrained")
    stopped = False
    for axes, name in zip(grid.flat, names, strict=True):
        for row in rows:
            stopped = _row(axes, row, name) or stopped
        if goal is not None and name in goal.metrics and goal.metrics[name].mean is not None:
            axes.axhline(goal.metrics[name].mean, color=INK, linewidth=0.9, linestyle="--", zorder=1)
        axes.set_title(title(name))
        axes.set_xlabel("optimiser steps")
        axes.set_xlim(left=0)
    styles = [look(row.arm.method) for row in rows]
    handles = [plt.Line2D([], [], color=s.colour, marker=s.marker, markersize=4, linewidth=1.6) for s in styles]
    handles.append(plt.Line2D([], [], color=INK, linestyle="--", linewidth=0.9))
    labels = [*(row.arm.title for row in rows), "retrained model"]
    if stopped:
        handles.append(plt.Line2D([], [], marker="o", markersize=9, markerfacecolor="none", color=MUTED, linestyle=""))
        labels.append("online stop")
    grid.flat[-1].legend(handles, labels, loc="center left", bbox_to_anchor=(1.03, 0.5))
    return figure


def _row(axes: Any, row: Standing, name: str) -> bool:
    """Draw a method; whether a stop was marked."""
    style, stopped = look(row.arm.method), False
    curves = {run.seed: curve for run in row.arm.runs.values() if (curve := _curve(run, name))}
    for seed, curve in curves.items():
        xs, ys = zip(*curve, strict=True)
        axes.plot(xs, ys, color=style.colour, linewidth=0.8, alpha=0.45, zorder=2)
        stop = row.arm.runs[seed].stopped_at
        if stop is not None and xs[-1] == stop:
            stopped = True
            (ring,) = axes.plot(xs[-1], ys[-1], "o", markersize=10, markerfacecolor="none", color=style.colour,
                                markeredgewidth=1.4, zorder=5, clip_on=False)  # fmt: skip
            tip(ring, f"{row.arm.title}, seed {seed}: stopped at step {stop}, {title(name)} {ys[-1]:.2f}")
    shared = sorted(set.intersection(*(set(dict(curve)) for curve in curves.values()))) if curves else []
    if shared:
        means = [float(np.mean([dict(curve)[step] for curve in curves.values()])) for step in shared]
        (line,) = axes.plot(shared, means, color=style.colour, linewidth=1.7, marker=style.marker, markersize=4,
                            zorder=3, clip_on=False)  # fmt: skip
        tip(line, f"{row.arm.title}: {title(name)} " + ", ".join(f"{m:.2f}" for m in means))
    return stopped


def _points(run: Run) -> list[tuple[int, dict[str, Any]]]:
    log = run.training.log if run.training is not None and run.status == "complete" else []
    return [(int(line["step"]), line["trajectory"]) for line in log if "trajectory" in line]


def _curve(run: Run, name: str) -> Curve:
    """(step, value), ending with the value that the evaluation of the final model gives."""
    curve = {step: float(point[name]) for step, point in _points(run) if point.get(name) is not None}
    end, reported = run.training.record.get("steps") if run.training else None, run.metrics.get(name)
    if curve and end is not None and reported is not None and reported.value is not None and not run.selected:
        curve[int(end)] = reported.value
    return sorted(curve.items())
