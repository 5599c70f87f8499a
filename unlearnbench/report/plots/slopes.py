"""Before and after an attack: a slope per row, one panel for the forget side and one for the utility side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from unlearnbench.report.catalogue import title
from unlearnbench.report.standings import Table
from unlearnbench.report.style import INK, look, tip
from unlearnbench.schema import PublishedSettings


def slopes(tables: Sequence[Table], published: PublishedSettings | None, plt: Any) -> Any:
    """A line of panels per benchmark, model and attack; None when nothing was attacked."""
    found = {table.group.key: table for table in tables}
    pairs = [(found.get(replace(key, attack="none")), table) for key, table in found.items() if key.attack != "none"]
    shown = [(before, after) for before, after in pairs if before is not None]
    if not shown:
        return None
    figure, grid = plt.subplots(len(shown), 2, figsize=(7.6, 3.4 * len(shown)), squeeze=False)
    figure.subplots_adjust(wspace=0.35, hspace=0.45)
    for line, (before, after) in zip(grid, shown, strict=True):
        for axes, names in zip(line, before.scored.values(), strict=False):
            if names:
                _panel(axes, before, after, names[0])
    grid[0][-1].legend(loc="center left", bbox_to_anchor=(1.02, 0.5))
    return figure


def _panel(axes: Any, before: Table, after: Table, name: str) -> None:
    goal = before.row("retrained")
    if goal is not None and (mean := goal.metrics[name].mean) is not None:
        axes.axhline(mean, color=INK, linewidth=0.8, linestyle="--", label="retrained")
    for row in before.rows:
        other = after.row(row.arm.label)
        ends = [one.metrics[name] for one in (row, other) if one is not None and name in one.metrics]
        if row.arm.role == "retrained" or len(ends) < 2 or any(end.mean is None for end in ends):
            continue
        style = look(row.arm.method, row.arm.role)
        values = [end.mean or 0.0 for end in ends]
        for x, end in enumerate(ends):
            if end.low is not None and end.high is not None:
                axes.plot([x, x], [end.low, end.high], color=style.colour, linewidth=1, alpha=0.6)
        (line,) = axes.plot([0, 1], values, color=style.colour, marker=style.marker, linewidth=1.4, label=row.arm.title)
        tip(line, f"{row.arm.title}: {title(name)} {values[0]:.2f} before, {values[1]:.2f} after")
    axes.set_xlim(-0.25, 1.25)
    axes.set_xticks([0, 1], ["before", f"after {after.group.key.attack}"])
    axes.grid(axis="x", visible=False)
    axes.set_title(f"{title(name)}: {before.group.key.model}")
