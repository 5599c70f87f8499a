"""The paper's picture: per benchmark what each method costs (bars, error bars) and how it does (radar).

Published numbers are hollow diamonds beside the measured bars, and a panel of their own beside the measured radars.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from unlearnbench.report.catalogue import title
from unlearnbench.report.printed import beside
from unlearnbench.report.standings import Standing, Table
from unlearnbench.report.style import INK, MUTED, look, tip
from unlearnbench.schema import PublishedSettings

#: metric -> how a spoke is called, and its value in [0, 1] where more is better, as the paper draws it
SPOKES: dict[str, tuple[str, Callable[[float], float]]] = {
    "one_minus_rouge_l": ("1-ROUGE-L", lambda v: v),
    "one_minus_prob": ("1-Prob", lambda v: v),
    "forget_truth_ratio": ("Truth ratio", lambda v: v),
    "model_utility": ("Utility", lambda v: v),
    "knowmem_forget": ("1-KnowMem", lambda v: 1 - v / 100),
    "knowmem_retain": ("Retain KnowMem", lambda v: v / 100),
    "verbmem_forget": ("1-VerbMem", lambda v: 1 - v / 100),
}
Points = Mapping[str, Mapping[str, float]]  #: method -> metric -> value


def panels(tables: Sequence[Table], published: PublishedSettings | None, plt: Any) -> Any:
    """A line per benchmark that was not attacked; None without one whose methods were timed."""
    shown = [table for table in tables if table.group.key.attack == "none" and table.methods]
    if not shown:
        return None
    printed = [beside(published, table.group) for table in shown]
    columns = 3 if any(printed) else 2
    figure = plt.figure(figsize=(4.6 * columns, 3.5 * len(shown)))
    figure.subplots_adjust(wspace=0.4, hspace=0.6)
    for line, (table, entries) in enumerate(zip(shown, printed, strict=True)):
        names = [name for name in SPOKES if name in table.group.metric_names]
        measured = {row.arm.label: _values(row, names) for row in table.methods}
        known: dict[str, dict[str, float]] = {}
        for entry in entries:
            known.setdefault(entry.method, {}).setdefault(entry.metric, entry.value)
        _bars(figure.add_subplot(len(shown), columns, columns * line + 1), table, known)
        if len(names) >= 3:
            axes = figure.add_subplot(len(shown), columns, columns * line + 2, projection="polar")
            _radar(axes, names, measured, f"Measured: {table.group.key}")
            handles = axes.get_legend_handles_labels()
        if entries and len(names) >= 3:
            axes = figure.add_subplot(len(shown), columns, columns * line + 3, projection="polar")
            where = f"Published: {entries[0].benchmark}, {entries[0].model}"
            _radar(axes, names, {method: points for method, points in known.items() if len(points) > 1}, where)
        if len(names) >= 3:
            titles = {row.arm.label: row.arm.title for row in table.methods}
            axes.legend(
                handles[0], [titles[label] for label in handles[1]], loc="center left", bbox_to_anchor=(1.25, 0.5)
            )
    return figure


def _values(row: Standing, names: Sequence[str]) -> dict[str, float]:
    return {name: mean for name in names if (mean := row.metrics[name].mean) is not None}


def _bars(axes: Any, table: Table, known: Points) -> None:
    """Seconds per method with their ranges or intervals, logarithmic where the published ones are of another size."""
    rows = [row for row in table.methods if (row.cost.seconds.get("total") is not None)]
    values = []
    for x, row in enumerate(rows):
        total, style = row.cost.seconds["total"], look(row.arm.method)
        if total.mean is None:
            continue
        low, high = total.low or total.mean, total.high or total.mean
        (bar,) = axes.bar(x, total.mean, width=0.66, color=style.colour, hatch=style.hatch, edgecolor="white")
        axes.plot([x, x], [max(low, 1e-9), high], color=INK, linewidth=1)
        tip(bar, f"{row.arm.title}: {total.mean:.3g} s")
        values.append(total.mean)
        seconds = known.get(row.arm.label, {}).get("seconds")
        if seconds is not None:
            axes.plot(x, seconds, "D", color=INK, markerfacecolor="none", markersize=6)
            values.append(seconds)
    if values and max(values) > 30 * min(values):
        axes.set_yscale("log")
    axes.set_xticks(range(len(rows)), [row.arm.title for row in rows], rotation=35, ha="right", fontsize=8)
    axes.grid(axis="x", visible=False)
    axes.set_ylabel("seconds" + (" (◇: published)" if any("seconds" in points for points in known.values()) else ""))
    axes.set_title("Cost")


def _radar(axes: Any, names: Sequence[str], points: Points, words: str) -> None:
    angles = np.linspace(0, 2 * np.pi, len(names), endpoint=False)
    axes.set_theta_zero_location("N")
    axes.set_theta_direction(-1)
    axes.set_ylim(0, 1)
    axes.set_yticks([0.25, 0.5, 0.75, 1.0], ["", "0.5", "", "1"], fontsize=7, color=MUTED)
    axes.set_xticks(angles, [SPOKES[name][0] for name in names], fontsize=8)
    for label, metrics in points.items():
        style = look(label.partition("[")[0])
        ring = [float(np.clip(SPOKES[n][1](metrics[n]), 0, 1)) if n in metrics else np.nan for n in names]
        (line,) = axes.plot(
            [*angles, angles[0]], [*ring, ring[0]], color=style.colour, marker=style.marker, markersize=4,
            linewidth=1.3, label=label,
        )  # fmt: skip
        tip(line, f"{label}: " + ", ".join(f"{title(n)} {metrics[n]:.2f}" for n in names if n in metrics))
    axes.set_title(words, fontsize=8.5, loc="center", pad=18)
