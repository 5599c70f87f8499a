"""What a method costs, counted: it runs an optimiser step on a tiny model while forward and backward passes are
watched, and what stays in memory between them is weighed.
"""

from __future__ import annotations

import gc
import inspect
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

from accelerate import Accelerator
from torch import Tensor

from unlearnbench.benchmarks.base import Row
from unlearnbench.clock import Clock
from unlearnbench.language_model import LanguageModel
from unlearnbench.method import Method
from unlearnbench.settings import LoraSettings, TrainSettings
from unlearnbench.testing.tiny import tiny_encoder, tiny_lm, tiny_rows
from unlearnbench.training import CellFailed, Hooks
from unlearnbench.unlearning import Supply, Unlearning, unlearn

BLOCKS = 4  #: decoder blocks of the tiny model
BATCH = 4  #: forget rows of a step, and retain rows
ROWS = 2 * BATCH  #: forget rows, and retain rows
STEPS = 1  #: optimiser steps


@dataclass(frozen=True, order=True)
class Pass:
    """A kind of forward pass: whose weights, over which rows, what it asks for, whether a backward pass follows."""

    model: str  #: `policy`, or `reference`: another model, or the same with its adapter switched off
    rows: str  #: forget, alternate or retain
    kind: str  #: logits of the `answers`, `all logits`, or `hidden`: blocks up to one, no logits
    backward: bool


@dataclass
class Costs:
    """What was counted. Passes are whole ones, through all blocks and over all rows of a step or of a split."""

    step: dict[Pass, float] = field(default_factory=dict)  #: per optimiser step, over its rows
    prepare: dict[Pass, float] = field(default_factory=dict)  #: before the first step, over the rows of the split
    copies: float = 0.0  #: models in memory beside the trained one during a step, in sizes of that
    copies_prepare: int = 0  #: further models before the first step
    numbers: float = 0.0  #: numbers kept per token of the forget answers
    samples: float = 0.0  #: answers sampled per forget row
    trained: tuple[str, ...] = ()  #: the parameters that move; empty: all of them
    look: dict[Pass, float] = field(default_factory=dict)  #: rows of one look of the stop rule

    def total(self, backward: bool) -> float:
        """Forward passes of a step, or backward ones, over all kinds of rows."""
        return sum(number for kind, number in self.step.items() if kind.backward or not backward)


@dataclass
class _Watch:
    """Counts block runs of every forward pass by the clock's phase and by kind; warming up is not counted."""

    rows: dict[tuple[int, ...], str]
    runs: dict[str, dict[Pass, float]] = field(default_factory=dict)
    models: dict[str, set[int]] = field(default_factory=dict)
    phases: list[str] = field(default_factory=list)  #: the one we are in, and those around it

    @contextmanager
    def __call__(self) -> Iterator[None]:
        plain, phase = LanguageModel.forward, Clock.phase
        signature = inspect.signature(plain)

        @contextmanager
        def watched_phase(clock: Clock, name: str) -> Iterator[None]:
            self.phases.append(name)
            with phase(clock, name):
                yield
            self.phases.pop()

        def watched(lm: LanguageModel, *args: Any, **options: Any) -> Tensor:
            given = signature.bind(lm, *args, **options).arguments
            handles = [block.register_forward_hook(lambda *_: ran.append(1)) for block in lm.layers]
            ran: list[int] = []
            try:
                output = plain(lm, *args, **options)
            finally:
                for handle in handles:
                    handle.remove()
            self._count(lm, given, output, len(ran) / len(lm.layers))
            return output

        with patch.object(LanguageModel, "forward", watched), patch.object(Clock, "phase", watched_phase):
            yield

    def _count(self, lm: LanguageModel, given: dict[str, Any], output: Tensor, depth: float) -> None:
        ids, attention = given["input_ids"], given["attention_mask"]
        kind = "answers" if given.get("positions") is not None else "all logits"
        kind = kind if given.get("hidden_layer") is None else "hidden"
        if "warmup" in self.phases:
            return
        phase = self.phases[0] if self.phases else ""
        self.models.setdefault(phase, set()).add(id(lm.model))
        counted = self.runs.setdefault(phase, defaultdict(float))
        parts = Counter(
            self.rows.get(tuple(row[keep].tolist()), "alternate")
            for row, keep in zip(ids, attention.bool(), strict=True)
        )
        trained = any(p.requires_grad for p in lm.parameters())
        model = "policy" if output.requires_grad or (phase == "probe" and trained) else "reference"
        passes = {Pass(model, part, kind, False): n for part, n in parts.items()}
        for which, n in passes.items():
            counted[which] += n * depth
        if output.requires_grad:  # the hook runs in the backward pass, if there is one

            def went_back(_gradient: Tensor) -> None:
                for which, n in passes.items():
                    counted[which] -= n * depth
                    counted[Pass(which.model, which.rows, which.kind, True)] += n * depth

            output.register_hook(went_back)  # type: ignore[no-untyped-call]


def measure(method: Method, lora: bool = False, stop: Mapping[str, Any] | None = None) -> Costs:
    """Run a step of a method on a tiny model and count. Raises what the method raises.

    Its own stop rule is left out; `stop` is one that looks before and after the step.
    """
    gc.freeze()  # what is older than this is not looked at
    try:
        return _measure(type(method)(**{**method.model_dump(), "stop": stop}), lora)
    finally:
        gc.unfreeze()


def _measure(method: Method, lora: bool) -> Costs:
    lm, encoder, forget, retain = tiny_lm(num_hidden_layers=BLOCKS), tiny_encoder(), *_rows()
    known = {encoder.encode(row.prompt, row.answer).ids: "forget" for row in forget}
    known |= {encoder.encode(row.prompt, row.answer).ids: "retain" for row in retain}
    watch = _Watch(known)
    costs, steps = Costs(), 0
    sampled: list[int] = []

    def look(line: dict[str, Any]) -> None:
        nonlocal steps
        if "grad_norm" not in line:
            return
        steps += 1
        if steps == 1:
            costs.copies = _others()
            tokens = sum(encoder.encode(row.prompt, row.answer).answer_length for row in forget)
            costs.numbers = _kept({row.id for row in forget}) / tokens

    def generate(_lm: Any, _encoder: Any, prompts: list[str], n: int = 1, **_: Any) -> list[list[str]]:
        sampled.append(n * len(prompts))
        return [[f"Something else {i}." for i in range(n)] for _ in prompts]

    settings = TrainSettings(
        batch_size=BATCH,
        max_steps=STEPS,
        learning_rate=1e-3,
        lora=LoraSettings(r=2, dropout=0) if lora and method.is_loop else None,
    )
    supply = Supply(holdout=tiny_rows(ROWS, "holdout", 200), generate=generate)
    outcome = None
    with watch():
        try:
            _, outcome = unlearn(
                method, lm, encoder, forget, retain, settings, 0, Accelerator(), Clock(), Hooks(log=look), supply
            )
        except CellFailed:
            if steps < STEPS:
                raise  # else: a loss that is 0 on a model which knows nothing, as MASC's; it cost the same
    units = {"forget": len(forget), "alternate": len(forget), "retain": len(retain)}
    costs.step = {k: n / (STEPS * BATCH) for k, n in sorted(watch.runs.get("optimise", {}).items()) if n > 0}
    costs.prepare = {k: n / units[k.rows] for k, n in sorted(watch.runs.get("prepare", {}).items()) if n > 0}
    if not method.is_loop:
        costs.prepare, costs.step = {k: n * STEPS * BATCH / units[k.rows] for k, n in costs.step.items()}, {}
        watch.models["prepare"] = watch.models["optimise"]
    looks = STEPS + 1 if method.stop is not None else 1
    costs.look = {k: n / looks for k, n in sorted(watch.runs.get("probe", {}).items()) if n > 0}
    costs.copies_prepare = len(watch.models.get("prepare", set()) - _ids(lm))
    costs.samples = sum(sampled) / len(forget)
    if outcome is not None and outcome.trained_parameters < sum(p.numel() for p in lm.parameters()):
        costs.trained = tuple(outcome.trained_names)
    return costs


def _rows() -> tuple[list[Row], list[Row]]:
    return tiny_rows(ROWS), tiny_rows(ROWS, "retain", 100)


def _ids(lm: LanguageModel) -> set[int]:
    return {id(lm.model)}


def _others() -> float:
    """The sizes of all models in memory but the trained one, in sizes of that."""
    gc.collect()
    models = {id(m.model): m.model for m in gc.get_objects() if type(m) is LanguageModel}
    sizes = [
        (any(p.requires_grad for p in model.parameters()), sum(p.numel() for p in model.parameters()))
        for model in models.values()
    ]
    own = max(size for trained, size in sizes if trained)
    return float(round(sum(size for trained, size in sizes if not trained) / own, 2))


def _kept(forget: set[str]) -> int:
    """How many numbers the method's state and the cached reference hold for the forget rows."""
    (objective,) = (thing for thing in gc.get_objects() if type(thing) is Unlearning)
    return sum(t.numel() for t in _tensors([objective.state, objective.cached_nll], forget, False))


def _tensors(thing: Any, rows: set[str], inside: bool) -> Iterator[Tensor]:
    if isinstance(thing, Tensor):
        yield from [thing] if inside else []
    elif isinstance(thing, dict):
        for key, value in thing.items():
            yield from _tensors(value, rows, inside or key in rows)
    elif isinstance(thing, (list, tuple)):
        for value in thing:
            yield from _tensors(value, rows, inside)
