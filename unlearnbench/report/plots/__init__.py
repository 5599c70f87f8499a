"""The plots of a report, one per file. Each draws one table and returns the figure, or None when nothing is to draw."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from unlearnbench.report.plots.radar import radar
from unlearnbench.report.plots.stops import stops
from unlearnbench.report.plots.tradeoff import tradeoff
from unlearnbench.report.plots.trajectory import trajectory
from unlearnbench.report.plots.violation import violation
from unlearnbench.report.plots.wallclock import wallclock
from unlearnbench.report.standings import Table

#: name -> (table, pyplot) -> figure
DRAW: dict[str, Callable[[Table, Any], Any]] = {
    "wallclock": wallclock,
    "radar": radar,
    "tradeoff": tradeoff,
    "trajectory": trajectory,
    "violation": violation,
    "stops": stops,
}
