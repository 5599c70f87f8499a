"""What each method costs: seconds by phase as stacked bars, every seed as a dot, one panel per machine."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np

from unlearnbench.report.results import PHASES, Run
from unlearnbench.report.standings import Standing, Table
from unlearnbench.report.style import INK, MUTED, PAPER, look, tip

SHADES = {"prepare": 0.4, "optimise": 1.0, "probe": 0.7, "select": 0.2}
HATCHES = {"prepare": "///", "optimise": "", "probe": "\\\\\\", "select": "xxx"}


def wallclock(table: Table, plt: Any) -> Any:
    """Stacked bars, the cheapest method on top. Seconds of different machines never share a panel."""
    machines = _by_machine(table.methods)
    if not machines:
        return None
    heights = [len(bars) for bars in machines.values()]
    figure, grid = plt.subplots(
        len(machines), 1, squeeze=False, height_ratios=heights, figsize=(6.6, sum(0.9 + 0.4 * n for n in heights))
    )
    figure.subplots_adjust(hspace=0.5)
    for axes, (machine, bars) in zip(grid.flat, machines.items(), strict=True):
        _panel(axes, bars)
        _retraining(axes, table.row("retrained"), machine)
        axes.set_title("Seconds per method" + (f" on machine {machine}" if len(machines) > 1 else ""))
    grid.flat[-1].set_xlabel("seconds, mean over the seeds (dots: seeds)")
    used = [
        phase for phase in PHASES if any(run.seconds.get(phase) for b in machines.values() for _, r in b for run in r)
    ]
    shades = [{"facecolor": MUTED, "alpha": SHADES[p], "hatch": HATCHES[p], "edgecolor": PAPER} for p in used]
    grid.flat[0].legend(
        [plt.Rectangle((0, 0), 1, 1, **shade) for shade in shades], used, loc="lower right", bbox_to_anchor=(1, 1),
        ncols=len(used), borderaxespad=0.1,
    )  # fmt: skip
    return figure


def _by_machine(rows: list[Standing]) -> dict[str, list[tuple[Standing, list[Run]]]]:
    """Hardware fingerprint -> rows with their timed runs on it, the slowest first."""
    found: dict[str, dict[str, list[Run]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        for run in row.arm.runs.values():
            if run.status == "complete" and run.training is not None and run.cost is not None:
                found[run.training.fingerprint][row.arm.label].append(run)
    named = {row.arm.label: row for row in rows}
    return {
        machine: sorted(((named[label], runs) for label, runs in bars.items()), key=lambda bar: -_mean(bar[1]))
        for machine, bars in sorted(found.items())
    }


def _mean(runs: list[Run], phase: str | None = None) -> float:
    return float(np.mean([(run.cost or 0.0) if phase is None else run.seconds.get(phase, 0.0) for run in runs]))


def _panel(axes: Any, bars: list[tuple[Standing, list[Run]]]) -> None:
    longest = max(run.cost or 0.0 for _, runs in bars for run in runs)
    for y, (row, runs) in enumerate(bars):
        left, style = 0.0, look(row.arm.method)
        for phase in PHASES:
            seconds = _mean(runs, phase)
            if seconds > 0:
                (bar,) = axes.barh(y, seconds, left=left, height=0.62, color=style.colour, alpha=SHADES[phase],
                                   hatch=HATCHES[phase], edgecolor=PAPER, linewidth=0.5)  # fmt: skip
                tip(bar, f"{row.arm.title}, {phase}: {seconds:.2f} s")
            left += seconds
        costs = [run.cost or 0.0 for run in runs]
        axes.plot([min(costs), max(costs)], [y, y], color=INK, linewidth=0.9, zorder=4)
        axes.plot(costs, np.full(len(costs), y), "o", color=INK, markeredgecolor=PAPER, markeredgewidth=0.5,
                  markersize=4, zorder=5)  # fmt: skip
        steps = row.cost.counts["steps"].mean
        text = f"{left:.3g} s" + ("" if steps is None else f", {steps:.0f} steps")
        axes.annotate(text, (max(costs), y), xytext=(7, 0), textcoords="offset points", va="center", fontsize=8)
    axes.set_yticks(range(len(bars)), [row.arm.title for row, _ in bars])
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)
    axes.set_xlim(0, 1.28 * longest or 1.0)
    axes.set_ylim(-0.6, len(bars) - 0.4)


def _retraining(axes: Any, row: Standing | None, machine: str) -> None:
    """What training without the forget rows took on the same machine: a line where it fits, words where not."""
    runs = [
        run for run in (row.arm.runs.values() if row else ()) if run.training and run.training.fingerprint == machine
    ]
    if not runs or not (seconds := _mean(runs)):
        return
    if seconds < axes.get_xlim()[1]:
        axes.axvline(seconds, color=MUTED, linestyle="--", linewidth=0.9, zorder=0)
    axes.annotate(
        f"retraining: {seconds:.3g} s" + ("" if seconds < axes.get_xlim()[1] else " →"), (1, 0.97),
        xycoords="axes fraction", ha="right", va="top", fontsize=8, color=MUTED,
    )  # fmt: skip
