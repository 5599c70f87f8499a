"""Memory and utility over the size of the model, while learning (target) and after each method."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from unlearnbench.report.catalogue import title
from unlearnbench.report.standings import Standing, Table
from unlearnbench.report.style import look, tip
from unlearnbench.report.verdicts import parameters_of
from unlearnbench.schema import PublishedSettings

#: what is drawn, where it was measured
SHOWN = (
    "forget_exact_memorization",
    "forget_paraphrase_rouge_l",
    "forget_exact",
    "one_minus_rouge_l",
    "model_utility",
    "retain_exact",
)
LIMIT = 4  #: panels


def scaling(tables: Sequence[Table], published: PublishedSettings | None, plt: Any) -> Any:
    """A panel per metric, a line per row of the tables; None below three sizes of model."""
    lines: dict[str, list[tuple[float, Standing]]] = defaultdict(list)
    for table in tables:
        for row in table.rows if table.group.key.attack == "none" else ():
            size = parameters_of(row)
            if size is not None and row.arm.role != "base":
                lines[row.arm.label].append((size, row))
    lines = {label: sorted(points, key=lambda p: p[0]) for label, points in lines.items() if len(points) >= 3}
    rows = [row for points in lines.values() for _, row in points]
    names = [name for name in SHOWN if any(name in row.metrics and row.metrics[name].n for row in rows)][:LIMIT]
    if not lines or not names:
        return None
    figure, grid = plt.subplots(1, len(names), figsize=(3.3 * len(names) + 1, 3.2), squeeze=False)
    figure.subplots_adjust(wspace=0.3)
    for axes, name in zip(grid.flat, names, strict=True):
        for label, points in lines.items():
            known = [(size, row.metrics[name]) for size, row in points if row.metrics[name].mean is not None]
            style = look(points[0][1].arm.method, points[0][1].arm.role)
            xs, ys = [size for size, _ in known], [summary.mean or 0.0 for _, summary in known]
            for size, summary in known:
                if summary.low is not None and summary.high is not None:
                    axes.plot([size, size], [summary.low, summary.high], color=style.colour, linewidth=1, alpha=0.7)
            (line,) = axes.plot(xs, ys, color=style.colour, marker=style.marker, linewidth=1.4, label=label)
            tip(line, f"{label}: " + ", ".join(f"{x:.3g} parameters {y:.2f}" for x, y in zip(xs, ys, strict=True)))
        axes.set_xscale("log", base=2)
        ticks = sorted({size for points in lines.values() for size, _ in points})
        axes.set_xticks(ticks, [_short(size) for size in ticks], fontsize=8)
        axes.minorticks_off()
        axes.set_xlabel("parameters")
        axes.set_title(title(name))
    grid.flat[-1].legend(loc="center left", bbox_to_anchor=(1.02, 0.5))
    return figure


def _short(count: float) -> str:
    for unit, letter in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if count >= unit:
            return f"{count / unit:.3g}{letter}"
    return f"{count:.0f}"
