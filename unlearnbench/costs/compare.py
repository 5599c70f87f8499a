"""Prediction against record: how far the cost model is off on this machine.

    python -m unlearnbench.costs.compare runs

Predicts every stage of the run folders as if it were still to be done here, and prints the ratio to what its record
says. Trainings that an online stop ended are predicted for the steps they took. Run it when nothing else is running:
the processor is measured first.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

from unlearnbench.costs.estimate import Estimator
from unlearnbench.costs.hardware import Machine, machine
from unlearnbench.report.results import PHASES, Stage, read_stage
from unlearnbench.settings import ModelSettings


def ratios(root: Path, here: Machine | None = None) -> dict[str, list[float]]:
    """Kind of stage, or method -> predicted over recorded seconds, one number per stage.

    `unlearn` stages count with their method's cost, the others with what they are for. Without `here` the machine is
    measured.
    """
    found: dict[str, list[float]] = defaultdict(list)
    estimator = None if here is None else Estimator(here)
    for folder in sorted(root.iterdir()):
        stage = read_stage(folder) if folder.is_dir() else None
        if (
            stage is None
            or stage.status != "complete"
            or stage.kind not in ("base", "target", "retrained", "unlearn", "evaluate")
        ):
            continue
        if estimator is None:
            settings = ModelSettings(**stage.spec["model"]["settings"])
            estimator = Estimator(machine(None, settings, int(stage.spec["threads"])))
        predicted = estimator.of(stage.kind, stage.spec)
        seconds = predicted.seconds or predicted.besides
        if predicted.work.at_most and predicted.work.steps:
            seconds *= stage.record["steps"] / predicted.work.steps
        name = stage.spec["cell"]["method"] if stage.kind == "unlearn" else stage.kind
        if recorded := _recorded(stage):
            found[name].append(seconds / recorded)
    return dict(found)


def _recorded(stage: Stage) -> float:
    phases: Mapping[str, Any] = stage.record.get("seconds") or {}
    names = ("evaluate",) if stage.kind == "evaluate" else PHASES
    return float(sum(phases.get(name, 0.0) for name in names))


def main(argv: list[str] | None = None) -> int:
    """Print the ratios; 1 when the median of some kind of stage is more than 30 % off."""
    roots = [Path(name) for name in (sys.argv[1:] if argv is None else argv)] or [Path("runs")]
    worst = 0.0
    for root in roots:
        for name, values in ratios(root).items():
            middle = median(values)
            worst = max(worst, abs(middle - 1))
            spread = f"{min(values):.2f} to {max(values):.2f}, {len(values)} stages"
            sys.stdout.write(f"{name:<12} predicted / recorded {middle:.2f}   {spread}\n")
    return int(worst > 0.3)


if __name__ == "__main__":
    sys.exit(main())
