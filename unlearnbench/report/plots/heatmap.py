"""An ablation: the score over the values of one or two hyper-parameters, the others as they are."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Any

import numpy as np

from unlearnbench.report.standings import Standing, Table
from unlearnbench.report.style import GRID, INK

LIMIT = 12  #: panels


def heatmap(table: Table, plt: Any) -> Any:
    """A map per method and pair of hyper-parameters, a strip per single one; None without such a sweep."""
    maps: dict[tuple[str, tuple[str, ...]], dict[tuple[str, ...], Standing]] = defaultdict(dict)
    for row in table.methods:
        settings = settings_of(row.arm.label)
        if 1 <= len(settings) <= 2:
            maps[row.arm.label.partition("[")[0], tuple(settings)][tuple(settings.values())] = row
    shown = [(key, cells) for key, cells in maps.items() if len(cells) > 1][:LIMIT]
    known = [mean for _, cells in shown for row in cells.values() if (mean := row.score.mean) is not None]
    if not shown or not known:
        return None
    columns = min(3, len(shown))
    lines = -(-len(shown) // columns)
    figure, grid = plt.subplots(lines, columns, figsize=(3.6 * columns, 2.7 * lines), squeeze=False)
    figure.subplots_adjust(wspace=0.45, hspace=0.75)
    for axes, ((method, names), cells) in zip(grid.flat, shown, strict=False):
        _map(axes, names, cells, min(known), max(known))
        axes.set_title(f"{method}: score ↓", fontsize=9)
    for axes in list(grid.flat)[len(shown) :]:
        axes.set_visible(False)
    return figure


def settings_of(label: str) -> dict[str, str]:
    """The settings that a label names: `masc[rho=0.5,eta=0.1]`."""
    inside = re.search(r"\[(.*)\]$", label)
    return dict(re.findall(r"([\w.]+)=([^,=\[\]{}]+)", inside[1])) if inside else {}


def _map(axes: Any, names: tuple[str, ...], cells: dict[tuple[str, ...], Standing], low: float, high: float) -> None:
    across = sorted({key[0] for key in cells}, key=_order)
    down = sorted({key[1] for key in cells}, key=_order) if len(names) > 1 else [""]
    values = np.full((len(down), len(across)), np.nan)
    for key, row in cells.items():
        mean = row.score.mean
        y = down.index(key[1]) if len(names) > 1 else 0
        values[y, across.index(key[0])] = np.nan if mean is None else mean
    axes.imshow(values, cmap="Greys", vmin=low, vmax=high + 0.4 * (high - low) + 1e-9, aspect="auto", origin="lower")
    for (y, x), value in np.ndenumerate(values):
        dark = value > low + 0.75 * (high - low)
        text = "null" if np.isnan(value) else f"{value:.2f}"
        axes.text(x, y, text, ha="center", va="center", fontsize=8, color="white" if dark else INK)
    axes.set_xticks(range(len(across)), across, fontsize=8)
    axes.set_yticks(range(len(down)) if len(names) > 1 else [], down if len(names) > 1 else [], fontsize=8)
    axes.set_xlabel(names[0])
    axes.set_ylabel(names[1] if len(names) > 1 else "")
    axes.grid(visible=False)
    for spine in axes.spines.values():
        spine.set_color(GRID)


def _order(text: str) -> tuple[float, str]:
    try:
        return float(text), text
    except ValueError:
        return float("inf"), text
