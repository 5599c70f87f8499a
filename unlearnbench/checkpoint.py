"""The resumable checkpoint of a training run: written whole or not at all, refused when the plan has changed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from unlearnbench.clock import Clock
from unlearnbench.errors import UserError

FILE = "checkpoint.pt"


class Resumable(Protocol):
    """Something with a state: optimiser, schedule, objective, stop rule, selection."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> Any: ...


def save(
    folder: Path,
    plan: Mapping[str, Any],
    step: int,
    trained: Mapping[str, nn.Parameter],
    parts: Mapping[str, Resumable],
    clock: Clock,
) -> None:
    """Write the checkpoint of `step` in the place of the one before."""
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f"{FILE}.tmp"
    content = {
        "plan": dict(plan),
        "step": step,
        "weights": {name: p.detach().cpu() for name, p in trained.items()},
        "parts": {name: part.state_dict() for name, part in parts.items()},
        "clock": clock.seconds,
    }
    torch.save(content, temporary)
    temporary.replace(folder / FILE)


def resume(
    folder: Path,
    plan: Mapping[str, Any],
    trained: Mapping[str, nn.Parameter],
    parts: Mapping[str, Resumable],
    clock: Clock,
) -> int:
    """Load the checkpoint if there is one; the number of steps it has done. Another plan's checkpoint is a
    `UserError`.
    """
    file = folder / FILE
    if not file.exists():
        return 0
    try:
        saved = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # what torch raises for a damaged file depends on the damage
        raise UserError(f"The checkpoint in {folder} cannot be read; remove it to start afresh.") from error
    if saved["plan"] != dict(plan):
        changed = sorted(key for key in plan if plan[key] != saved["plan"].get(key))
        raise UserError(
            f"The checkpoint in {folder} was made with other {', '.join(changed)}; remove it to start afresh."
        )
    with torch.no_grad():
        for name, parameter in trained.items():
            parameter.copy_(saved["weights"][name])
    for name, part in parts.items():
        part.load_state_dict(saved["parts"][name])
    clock.seconds.update(saved["clock"])
    return int(saved["step"])
