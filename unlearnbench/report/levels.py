"""Time to target: the seconds until a method has forgotten as much as asked, the rest of the model being intact.

Read from the points scored during training (`trajectory` in an experiment), so as fine as these are: the first point at
which the level is reached and the floor is kept counts, with all seconds of the method's cost until then. A training
whose points never do so has no such time.
"""

from __future__ import annotations

from unlearnbench.claims import Level
from unlearnbench.report.results import Run


def seconds_to(run: Run, level: Level) -> float | None:
    """Seconds of cost until the level; None when it was never reached, or nothing of it was scored."""
    for line in run.training.log if run.training is not None else []:
        point = line.get("trajectory") or {}
        value, kept = point.get(level.metric), point.get(level.floor_metric)
        if value is None or kept is None:
            continue
        reached = value >= level.at if level.better == "higher" else value <= level.at
        if reached and kept >= level.floor:
            return float(line["seconds"])
    return None


def words(level: Level) -> str:
    """The level as people say it."""
    sign = ">=" if level.better == "higher" else "<="
    return f"{level.metric} {sign} {level.at:g} while {level.floor_metric} >= {level.floor:g}"
