"""The plots of a report, one per file. Each returns a figure, or None when nothing is to draw.

Those of `DRAW` show one table; those of `ACROSS` all tables of a report, beside published numbers where there are some.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from unlearnbench.report.plots.heatmap import heatmap
from unlearnbench.report.plots.panels import panels
from unlearnbench.report.plots.radar import radar
from unlearnbench.report.plots.scaling import scaling
from unlearnbench.report.plots.slopes import slopes
from unlearnbench.report.plots.stops import stops
from unlearnbench.report.plots.tradeoff import tradeoff
from unlearnbench.report.plots.trajectory import trajectory
from unlearnbench.report.plots.violation import violation
from unlearnbench.report.plots.wallclock import wallclock
from unlearnbench.report.standings import Table
from unlearnbench.schema import PublishedSettings

#: name -> (table, pyplot) -> figure
DRAW: dict[str, Callable[[Table, Any], Any]] = {
    "wallclock": wallclock,
    "radar": radar,
    "tradeoff": tradeoff,
    "trajectory": trajectory,
    "violation": violation,
    "stops": stops,
    "heatmap": heatmap,
}
#: name -> (tables, whose published numbers, pyplot) -> figure
ACROSS: dict[str, Callable[[Sequence[Table], PublishedSettings | None, Any], Any]] = {
    "panels": panels,
    "scaling": scaling,
    "slopes": slopes,
}
