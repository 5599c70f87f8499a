"""What must hold of every method's runs: two optimiser steps on a tiny target, all weights or LoRA, and a resume.

Each `check_…` raises AssertionError. The run has only what the method's `needs` declare: no more rows, no reference.
"""

from __future__ import annotations

import contextlib
import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor

from unlearnbench.benchmarks.base import Row
from unlearnbench.errors import UserError
from unlearnbench.generation import sample_texts
from unlearnbench.language_model import LanguageModel
from unlearnbench.method import Method
from unlearnbench.models import add_lora, frozen_copy
from unlearnbench.settings import LoraSettings, TrainSettings
from unlearnbench.testing.tiny import FORGET_ROWS, RETAIN_ROWS, tiny_encoder, tiny_rows, tiny_target
from unlearnbench.training import Hooks, Outcome
from unlearnbench.unlearning import Supply, unlearn

STEPS, SEED = 2, 0
SETTINGS = TrainSettings(
    epochs=STEPS, max_steps=STEPS, batch_size=3, learning_rate=1e-3, schedule="linear", checkpoint_every=1
)
LORA = LoraSettings(r=2, dropout=0.1)


@dataclass
class Run:
    """A finished run: the model, what the loop reports, the curve, and the weights before and after, by name."""

    method: Method
    lora: bool
    lm: LanguageModel
    outcome: Outcome
    lines: list[dict[str, Any]]
    before: dict[str, Tensor]
    after: dict[str, Tensor] = field(init=False)

    def __post_init__(self) -> None:
        self.after = _weights(self.lm)

    @property
    def moved(self) -> set[str]:
        """Names of the weights that are not what they were."""
        return {name for name, value in self.after.items() if not _same(value, self.before.get(name))}


def start(
    method: Method,
    architecture: str = "llama",
    lora: bool = False,
    hooks: Hooks | None = None,
    settings: TrainSettings = SETTINGS,
    forget: Sequence[Row] = FORGET_ROWS,
    dtype: torch.dtype = torch.float32,
) -> Run:
    """Run the method on a copy of `tiny_target`, with what its `needs` declare and no more.

    A stop rule that confirms on more rows than the tiny forget set can spare confirms on two.
    """
    if method.stop is not None and (method.stop.get("confirm") or 0) >= len(forget):
        method = method.model_copy(update={"stop": {**method.stop, "confirm": 2}})
    lm = frozen_copy(tiny_target(architecture, dtype=dtype)).requires_grad_(True)
    before = _weights(add_lora(frozen_copy(lm), LORA, SEED) if lora else lm)
    hooks, lines = hooks or Hooks(), list[dict[str, Any]]()
    hooks.log = lines.append
    needs = method.requirements
    settings = settings.model_copy(update={"lora": LORA if lora else None})
    supply = Supply(
        holdout=tiny_rows(4, "holdout", 80) if "holdout" in needs else (),
        generate=sample_texts,
        load_base=(lambda: tiny_target(architecture, 1)) if "base" in needs else None,
        stop_numbers={"retrained_prob": lambda lm, row_ids: 0.1} if "retrained" in needs else {},
    )
    retain = RETAIN_ROWS if "retain" in needs else []
    lm, outcome = unlearn(
        method, lm, tiny_encoder(), forget, retain, settings, SEED, Accelerator(), hooks=hooks, supply=supply
    )
    return Run(method, lora, lm, outcome, lines, before)


def check_steps(run: Run) -> None:
    """Finite losses; weights moved, of those the method names (with LoRA: of the adapter) and of no others."""
    for line in run.lines:
        for name, value in line.items():
            if name.endswith("_loss"):
                assert math.isfinite(value), f"the {name} is {value} at step {line['step']}"
    if run.method.is_loop:
        assert 1 <= run.outcome.steps <= STEPS, f"{run.outcome.steps} optimiser steps, not {STEPS}"
        assert any("forget_loss" in line for line in run.lines), "there is no forget loss in the curve"
    adapter = {name for name in run.after if "lora_" in name}
    named = (run.method.trained_parameters(run.lm) if run.method.is_loop else None) or adapter or run.after.keys()
    assert bool(adapter) == run.lora, "LoRA was asked for, and there is no adapter"
    moved = run.moved
    assert moved, "no weight moved"
    assert moved <= set(named), f"weights moved that the method does not name: {sorted(moved - set(named))[:3]}"
    assert not adapter or moved <= adapter, f"LoRA, and weights of the model moved: {sorted(moved - adapter)[:3]}"
    assert set(run.outcome.trained_names) == set(named), "the record names other parameters than the method"


def check_resume(run: Run, again: Callable[[Hooks], Run]) -> None:
    """A run killed during its second step and started again ends with the weights of `run`, to the last bit.

    `again(hooks)` starts the same run. A method that is no loop has no steps to resume: it is run again from the start.
    """
    with tempfile.TemporaryDirectory() as folder:
        found: list[int] = []
        if run.method.is_loop:
            with contextlib.suppress(_Killed):
                again(Hooks(checkpoint=Path(folder), progress=_kill))
        second = again(Hooks(checkpoint=Path(folder), resumed=found.append))
    assert found == ([1] if run.method.is_loop else []), f"resumed after {found} steps, not after 1"
    wrong = [name for name, value in run.after.items() if not _same(value, second.after.get(name))]
    assert not wrong, f"a run stopped after step 1 and resumed ends with other weights: {wrong[:3]}"
    resumed = {line["step"]: line for line in second.lines if "forget_loss" in line}
    for line in run.lines:
        if line["step"] in resumed and "forget_loss" in line:
            other = resumed[line["step"]]
            assert line["forget_loss"] == other["forget_loss"], "the resumed run has another forget loss"


WHOLE = TrainSettings(  # warm-up in epochs: it must count the rows of all batches and processes
    epochs=2,
    max_steps=2,
    batch_size=4,
    retain_batch_size=4,
    optimizer="sgd",
    learning_rate=0.1,
    warmup_epochs=0.5,
    clip=None,
)


def check_accumulation(method: Method) -> None:
    """Batch 4 x 1, 2 x 2 and 1 x 4 give the same updates: two steps of SGD in float64, the last of fewer rows.

    A protocol that breaks `accumulation` must refuse to be accumulated. One that breaks `padding` sees another padding
    in other batches: then the updates must differ.
    """
    pieces = [
        WHOLE.model_copy(update={"batch_size": size, "retain_batch_size": size, "accumulation": 4 // size})
        for size in (2, 1)
    ]
    if "accumulation" in method.broken_invariants:
        for settings in pieces:
            try:
                start(method, settings=settings)
            except UserError as error:
                assert "accumulation 1" in str(error), f"the refusal does not name what is allowed: {error}"
            else:
                raise AssertionError("a loss that is no mean over the step was accumulated")
        return
    whole = start(method, settings=WHOLE, dtype=torch.float64)
    apart = [distance(whole, start(method, settings=settings, dtype=torch.float64).after) for settings in pieces]
    if "padding" in method.broken_invariants:
        assert max(apart) > SAME, "the declared break of 'padding' does not show in other batches"
    else:
        assert max(apart) <= SAME, f"batches of {pieces[apart.index(max(apart))].batch_size} give another update"


SAME = 1e-5  #: of the largest move: transformers normalises in float32, whatever the weights are


def distance(whole: Run, weights: Mapping[str, Tensor]) -> float:
    """How far weights are from those that a run ends with, relative to the run's largest move."""
    moves = [float((value - whole.before[name]).abs().max()) for name, value in whole.after.items()]
    return max(float((value - weights[name]).abs().max()) for name, value in whole.after.items()) / max(moves)


class _Killed(BaseException):
    """What a kill looks like to the loop."""


def _kill(step: int, total: int) -> None:
    if step == STEPS:
        raise _Killed


def _weights(lm: LanguageModel) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in lm.named_parameters()}


def _same(value: Tensor, other: Tensor | None) -> bool:
    return other is not None and bool((value == other).all())
