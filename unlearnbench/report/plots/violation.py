"""What the online stop rule read: the violation rate of its probe against the step, the tolerance, and the stop."""

from __future__ import annotations

from typing import Any

from unlearnbench.report.results import Run
from unlearnbench.report.standings import Table
from unlearnbench.report.style import INK, look, tip

_DASHES = ("-", "--", "-.", ":", (0, (1, 3)))


def violation(table: Table, plt: Any) -> Any:
    """One panel per method with such a rule, one line per seed."""
    rows = [(row, runs) for row in table.methods if (runs := [r for r in row.arm.runs.values() if readings(r)])]
    if not rows:
        return None
    figure, grid = plt.subplots(1, len(rows), figsize=(5.0 * len(rows), 3.2), squeeze=False)
    for axes, (row, runs) in zip(grid.flat, rows, strict=True):
        style = look(row.arm.method)
        tolerances: set[float] = set()
        for i, run in enumerate(runs):
            found, dash = readings(run), _DASHES[i % len(_DASHES)]
            (line,) = axes.plot(
                [step for step, _, _ in found], [rate for _, rate, _ in found], color=style.colour, linestyle=dash,
                marker=style.marker, markersize=3.5, linewidth=1.3, label=_words(run),
            )  # fmt: skip
            tip(line, f"{row.arm.title}, {_words(run)}")
            tolerances |= {float(alpha) for _, _, alpha in found if isinstance(alpha, float | int)}
            at = {step: rate for step, rate, _ in found}.get(run.stopped_at if run.stopped_at is not None else -1)
            if at is not None:
                axes.plot(run.stopped_at, at, "o", markersize=11, markerfacecolor="none", color=style.colour,
                          markeredgewidth=1.5)  # fmt: skip
        for alpha in tolerances:
            axes.axhline(alpha, color=INK, linewidth=0.9, linestyle="--", zorder=1)
        if tolerances:
            ends = dict.fromkeys(f"{alpha:.3g}" for alpha in (min(tolerances), max(tolerances)))
            axes.plot([], [], color=INK, linewidth=0.9, linestyle="--", label=f"tolerance {' to '.join(ends)}")
        axes.set_ylim(0, 1.05)
        axes.set_xlim(left=0)
        axes.set_xlabel("optimiser steps")
        axes.set_ylabel("violation rate of the probed rows")
        axes.set_title(f"{row.arm.title}: what its online stop read")
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.17), handlelength=3)
    return figure


def readings(run: Run) -> list[tuple[int, float, float | None]]:
    """(step, violation rate, tolerance) of every reading."""
    log = run.training.log if run.training is not None and run.status == "complete" else []
    probes = [(int(line["step"]), line["probe"]) for line in log if "probe" in line]
    stated = (run.stop or {}).get("alpha")
    return [
        (step, float(probe["violation_rate"]), probe.get("alpha", stated))
        for step, probe in probes
        if probe.get("violation_rate") is not None
    ]


def _words(run: Run) -> str:
    stop = run.stop or {}
    ended = f"stop at step {run.stopped_at}" if run.stopped_at is not None else "never stopped"
    held = " held out" if stop.get("held_out") else ""
    return f"seed {run.seed}: {ended}, {len(stop.get('rows') or [])} rows probed{held}"
