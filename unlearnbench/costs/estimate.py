"""From the work of a stage to seconds and bytes on a machine."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from unlearnbench.benchmarks.base import Benchmark, benchmarks
from unlearnbench.benchmarks.outline import outline
from unlearnbench.costs.hardware import Machine
from unlearnbench.costs.shapes import Shape, shape_of
from unlearnbench.costs.work import Rows, Work, fine_tuning, scoring_work, unlearning
from unlearnbench.errors import UserError
from unlearnbench.hub import no_network
from unlearnbench.models import encoder_for
from unlearnbench.settings import ModelSettings, TrainSettings

PROCESS = 0.5e9  #: bytes of a process before there is a model
ACCELERATED = 0.6e9  #: bytes of a context on an accelerator


@dataclass(frozen=True)
class Estimate:
    """A stage on a machine: `seconds` that count as cost, those of scoring `besides`, peak `memory` and `disk` in
    bytes.
    """

    work: Work
    seconds: float
    besides: float
    memory: float
    disk: float

    @property
    def total(self) -> float:
        """Seconds the machine is busy."""
        return self.seconds + self.besides


class Estimator:
    """Estimates of stages by their specs. What several stages share is counted once."""

    def __init__(self, machine: Machine):
        self.machine = machine
        self._scored: dict[str, Work] = {}

    def of(self, kind: str, spec: Mapping[str, Any]) -> Estimate:
        """The estimate of a stage. Raises `UserError` when its model or data are neither here nor known by size."""
        shape, rows, data = _parts(json.dumps([spec["model"]["settings"], spec["benchmark"]], sort_keys=True))
        dtype = 4 if spec["model"]["settings"]["dtype"] == "float32" else 2
        if kind == "evaluate":
            work = self._score(shape, rows, data, spec["metrics"], spec.get("max_new_tokens"), spec)
            seconds = self.seconds(shape, work, "fp32" if dtype == 4 else "bf16")
            return Estimate(work, 0.0, seconds, self._memory(shape, work, dtype, None), 0.0)
        settings = TrainSettings(**spec["settings"])
        besides = 0.0
        if kind == "unlearn":
            work = unlearning(shape, rows, data, spec)
            points = spec["trajectory"]["points"]
            if points:
                one = self._score(shape, rows, data, spec["trajectory"]["metrics"], spec.get("max_new_tokens"), spec)
                besides = self.seconds(shape, one, settings.precision) * (points + 1)
        else:
            work = fine_tuning(shape, rows, data, spec)
        seconds = self.seconds(shape, work, settings.precision)
        return Estimate(work, seconds, besides, self._memory(shape, work, dtype, settings), float(dtype * shape.total))

    def seconds(self, shape: Shape, work: Work, precision: str) -> float:
        """Arithmetic or memory traffic, whichever takes longer, what each layer costs per pass, and the updates."""
        machine = self.machine
        weights = 4 + 2 + 2 if precision == "bf16" else 4  # read in fp32, written and read in bf16
        traffic = work.passes * shape.total * weights / machine.bandwidth
        arithmetic = work.flops / machine.rate(precision)
        if machine.update is not None:
            update = machine.update * work.trained / shape.total
        else:
            update = 28.0 * work.trained / machine.bandwidth  # weight, gradient and two moments read, three written
        return max(arithmetic, traffic) + work.passes * shape.layers * machine.overhead + work.steps * update

    def _score(
        self, shape: Shape, rows: Rows, data: Benchmark, names: Sequence[str], cut: int | None, spec: Mapping[str, Any]
    ) -> Work:
        key = json.dumps([spec["model"]["settings"], spec["benchmark"], list(names), cut], sort_keys=True)
        if key not in self._scored:
            large = not self.machine.measured
            self._scored[key] = scoring_work(shape, rows, data, names, cut, large)
        return self._scored[key]

    def _memory(self, shape: Shape, work: Work, dtype: int, settings: TrainSettings | None) -> float:
        """Weights, gradients, moments, further copies, what the backward pass keeps, and logits."""
        fixed = PROCESS if self.machine.measured else ACCELERATED
        weights = dtype * shape.total * (1 + work.copies)
        if settings is None:
            return fixed + weights
        half = settings.precision == "bf16"
        moving = (dtype + 2 * dtype) * work.trained + (2 * shape.total if half else 0)
        per_layer = 34 * shape.hidden + 8 * shape.inner if half else 44 * shape.hidden + 16 * shape.inner
        kept = work.tokens * shape.layers * per_layer
        logits = 3 * 4 * work.answers * shape.head / shape.hidden
        return fixed + weights + moving + kept + logits


@lru_cache(maxsize=32)
def _parts(key: str) -> tuple[Shape, Rows, Benchmark]:
    """Shape, row lengths and benchmark that a spec names: exact where they are at hand, else by published sizes."""
    model, benchmark = json.loads(key)
    settings = ModelSettings(**{k: tuple(v) if isinstance(v, list) else v for k, v in model.items()})
    with no_network():
        try:
            data = benchmarks.get(benchmark["name"]).build(**benchmark["options"])
        except UserError:
            found = outline(benchmark["name"], benchmark["options"])
            if found is None:
                raise
            data = found
        try:
            encoder = encoder_for(settings)
        except UserError:
            encoder = None
        return shape_of(settings), Rows(encoder, settings.max_length), data
