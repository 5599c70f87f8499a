"""What a dry run prints: the stages, what is there, and what the rest will take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from unlearnbench.costs.estimate import Estimate, Estimator
from unlearnbench.costs.hardware import MACHINES, Machine
from unlearnbench.plan import Planned

GB = 1e9


@dataclass(frozen=True)
class Priced:
    """A stage with its state in the store and what it takes."""

    planned: Planned
    state: str
    estimate: Estimate

    @property
    def missing(self) -> bool:
        return self.state == "to build"


def price(planned: Sequence[Planned], states: Mapping[str, str], machine: Machine) -> list[Priced]:
    """The estimates of all stages on a machine. Raises `UserError` where a size is not known."""
    estimator = Estimator(machine)
    return [Priced(p, states[p.name], estimator.of(p.stage.kind, p.stage.spec)) for p in planned]


def stages(priced: Sequence[Priced], machine: Machine) -> list[str]:
    """A line per stage, in columns."""
    rows = [("state", "stage", "steps", "PFLOP", "time", "memory")]
    for one in priced:
        work, most = one.estimate.work, "≤ " if one.estimate.work.at_most else ""
        steps = f"{most}{work.steps}" if work.steps else ""
        memory = size(one.estimate.memory) + ("" if one.estimate.memory <= machine.memory else " !")
        time = most + duration(one.estimate.total)
        rows.append((one.state, one.planned.name, steps, f"{work.flops / 1e15:.3g}", time, memory))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        "  ".join(
            cell.ljust(width) if i < 2 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]


def summary(priced: Sequence[Priced], machine: Machine) -> list[str]:
    """What is left to do on this machine, in lines."""
    left = [one for one in priced if one.missing]
    kinds: dict[str, float] = {}
    for one in left:
        kinds[one.planned.stage.kind] = kinds.get(one.planned.stage.kind, 0.0) + one.estimate.total
    total = sum(kinds.values())
    unit = "hours of one processor" if machine.measured else "GPU hours"
    lines = [f"{len(priced) - len(left)} of {len(priced)} stages are there."]
    if left:
        parts = ", ".join(f"{kind} {duration(seconds)}" for kind, seconds in kinds.items())
        lines.append(f"{machine.name}: {duration(total)} = {total / 3600:.3g} {unit} ({parts}).")
        peak = max(left, key=lambda one: one.estimate.memory)
        fits = "" if peak.estimate.memory <= machine.memory else f": more than the {size(machine.memory)} there are"
        lines.append(f"Peak memory {size(peak.estimate.memory)} ({peak.planned.name}){fits}.")
        lines.append(f"Disk {size(sum(one.estimate.disk for one in left))}.")
    if any(one.estimate.work.at_most for one in left):
        lines.append("≤: an online stop may end it earlier.")
    return lines


def elsewhere(priced: Sequence[Priced]) -> list[str]:
    """The same on every accelerator with figures, a line each."""
    lines = []
    planned, states = [one.planned for one in priced], {one.planned.name: one.state for one in priced}
    for machine in MACHINES.values():
        left = [one for one in price(planned, states, machine) if one.missing]
        if left:
            most = max(one.estimate.memory for one in left)
            room = size(machine.memory)
            fits = f"fits in {room}" if most <= machine.memory else f"needs {size(most)}, there are {room}"
            lines.append(f"{machine.name:<5} {sum(one.estimate.total for one in left) / 3600:8.3g} GPU hours, {fits}")
    return lines


def duration(seconds: float) -> str:
    """Seconds as people say them."""
    if seconds < 99.5:
        return f"{seconds:.2g} s" if seconds < 9.95 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 99.5 * 60 else f"{seconds / 3600:.1f} h"


def size(count: float) -> str:
    """Bytes as people say them."""
    return f"{count / GB:.0f} GB" if count >= 10 * GB else f"{count / GB:.1f} GB"
