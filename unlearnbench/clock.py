"""Seconds by phase, with devices synchronised, and the arithmetic of compute: what the cost columns are made of."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from accelerate import Accelerator

#: The phases of a cell. The first four are the method's cost; the others are reported and not counted.
COUNTED = ("prepare", "optimise", "probe", "select")
REPORTED = ("load", "encode", "warmup", "evaluate")


class Clock:
    """Adds up seconds by phase, over resumes too."""

    def __init__(self, seconds: dict[str, float] | None = None):
        self.seconds: dict[str, float] = dict.fromkeys((*COUNTED, *REPORTED), 0.0) | (seconds or {})

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time what happens inside."""
        _synchronise()
        start = time.perf_counter()
        try:
            yield
        finally:
            _synchronise()
            self.seconds[name] += time.perf_counter() - start

    @property
    def cost(self) -> float:
        """Seconds that count as the method's cost."""
        return sum(self.seconds[phase] for phase in COUNTED)


def _synchronise() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


@dataclass
class Meter:
    """Tokens and floating-point operations.

    A forward pass of a batch takes 2 (body x tokens + head x answer tokens) operations, the backward pass the same
    again for the activations and 2 x trained parameters x tokens for the weights; attention scores are left out.
    Padding is computed, so it counts in `flops`; `tokens` are real ones.
    """

    body: int
    head: int
    trained_share: float = 1.0
    flops: float = 0.0
    tokens: float = 0
    rows: float = 0
    counts: dict[str, int] = field(default_factory=dict)

    def forward(self, padded: int, answers: int, backward: bool, depth: float = 1.0) -> None:
        """One forward pass (and its backward) over `padded` token slots, the head on `answers` of them."""
        once = 2.0 * (self.body * depth * padded + self.head * answers)
        self.flops += once * (2 + self.trained_share if backward else 1)

    def share(self, accelerator: Accelerator) -> None:
        """Give each process an equal share of what all have counted, so that a checkpoint of one of them has it all."""
        if accelerator.num_processes > 1:
            own = torch.tensor([self.flops, self.tokens, self.rows], dtype=torch.float64, device=accelerator.device)
            self.flops, self.tokens, self.rows = accelerator.reduce(own, reduction="mean").tolist()


def peak_memory_bytes() -> int:
    """Peak GPU memory where there is a GPU, else the peak resident size of this process."""
    if torch.cuda.is_available():
        return int(torch.cuda.max_memory_allocated())
    import resource
    import sys

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(peak if sys.platform == "darwin" else peak * 1024)
