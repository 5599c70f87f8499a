"""The training loop, for fine-tuning and for unlearning: one explicit loop that can be read from top to bottom.

What an optimiser step does:

1. for each part of the objective (forget, retain): forward and backward over its micro-batches, each graph freed at
once;
   the gradient of the part is sum(values x weights) / sum(weights) over all micro-batches and processes (`Terms`);
2. clip the gradient over the trained parameters; stop the cell if it is not finite;
3. step the optimiser and the schedule; then let the stop rule look, if it is due.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from accelerate import Accelerator, DistributedType
from torch import Tensor, nn

from unlearnbench import checkpoint
from unlearnbench.clock import Clock, Meter, peak_memory_bytes
from unlearnbench.errors import UserError
from unlearnbench.language_model import LanguageModel
from unlearnbench.method import Terms
from unlearnbench.order import generator
from unlearnbench.selection import Selector
from unlearnbench.settings import TrainSettings

#: what the loop knows how to add up gradients of: one process, and DDP
DISTRIBUTED = (DistributedType.NO, DistributedType.MULTI_CPU, DistributedType.MULTI_GPU)


class CellFailed(Exception):
    """The run went wrong in a way the record must show: not a mistake of the user, not a bug to hide."""


class Part(NamedTuple):
    """One term of the loss: its weight, the micro-batches of this process, and what makes `Terms` of one of them."""

    name: str
    weight: float
    micro_batches: list[Any]
    loss: Callable[[Any], Terms]


class Objective(Protocol):
    """What the loop trains on."""

    steps_per_epoch: int
    meter: Meter
    request: dict[str, Any]  #: what it trains on, as JSON: a checkpoint of another request is refused

    def parts(self, step: int) -> list[Part]: ...

    def after_step(self, step: int, losses: dict[str, float]) -> None: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class StopProbe(Protocol):
    """The online stop rule as the loop sees it (`probing.Prober`)."""

    def due(self, step: int) -> bool: ...

    def check(self, lm: Any, step: int) -> Any: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


@dataclass
class Hooks:
    """What happens around the loop: where the curve goes, when to evaluate, which rule stops, where to resume from."""

    log: Callable[[dict[str, Any]], None] = lambda line: None
    #: (model, step, planned steps, whether the run ends here) -> a trajectory point, or None
    evaluate: Callable[[LanguageModel, int, int, bool], dict[str, Any] | None] | None = None
    progress: Callable[[int, int], None] = lambda step, total: None
    resumed: Callable[[int], None] = lambda step: None  #: told how many steps an earlier attempt had done
    prober: StopProbe | None = None
    selector: Selector | None = None
    checkpoint: Path | None = None  #: a folder for the resumable checkpoint

    def of(self, accelerator: Accelerator) -> Hooks:
        """The hooks of a process: only the main one writes the curve, shows progress and evaluates."""
        if accelerator.is_main_process:
            return self
        silent = Hooks()
        return replace(self, log=silent.log, progress=silent.progress, resumed=silent.resumed, evaluate=None)


@dataclass
class Outcome:
    """What a run of the loop did: this goes into `record.json`."""

    steps: int
    planned_steps: int
    steps_per_epoch: int
    warmup_steps: int
    effective_batch: int
    processes: int
    rows_seen: int
    tokens: int
    flops: float
    trained_parameters: int
    trained_names: list[str]
    peak_memory_bytes: int
    stop: dict[str, Any] | None = None
    warnings: list[str] = field(default_factory=list)


def total_steps(settings: TrainSettings, steps_per_epoch: int) -> int:
    """Optimiser steps of a run."""
    planned = math.ceil(settings.epochs * steps_per_epoch - 1e-9)
    return planned if settings.max_steps is None else min(planned, settings.max_steps)


def run(
    lm: LanguageModel,
    objective: Objective,
    settings: TrainSettings,
    seed: int,
    accelerator: Accelerator,
    clock: Clock,
    hooks: Hooks | None = None,
) -> Outcome:
    """Train the parameters of `lm` that require a gradient. `lm` is prepared by `accelerator` and changed in place.

    Raises `CellFailed` at the first loss or gradient that is not finite, and when no trained weight moved.
    """
    hooks = (hooks or Hooks()).of(accelerator)
    if accelerator.distributed_type not in DISTRIBUTED:
        raise UserError(f"Training is not made for {accelerator.distributed_type.value}: use one process, or DDP.")
    module = accelerator.unwrap_model(lm)  # what DDP wraps: for all but forward passes of the loss
    trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
    if not trained:
        raise UserError("There is no parameter to train: the method or LoRA names none of this model's.")
    steps = total_steps(settings, objective.steps_per_epoch)
    warmup = _warmup_steps(settings, objective.steps_per_epoch)
    optimizer = _optimizer(list(trained.values()), settings)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: _rate(k, steps, warmup, settings.schedule))
    plan = _plan(objective, settings, seed, steps, accelerator.num_processes)
    before = digest(trained)
    start, stop = 0, None
    optional = {"prober": hooks.prober, "selector": hooks.selector}
    parts: dict[str, checkpoint.Resumable] = {"optimizer": optimizer, "schedule": schedule, "objective": objective}
    parts |= {name: part for name, part in optional.items() if part is not None}
    if hooks.checkpoint is not None:
        start = checkpoint.resume(hooks.checkpoint, plan, trained, parts, clock)
    hooks.resumed(start)
    autocast = _autocast(settings, accelerator)
    idle: Counter[str] = Counter()
    lm.train()
    devices = [accelerator.device] if accelerator.device.type == "cuda" else []
    with torch.random.fork_rng(
        devices=devices
    ):  # dropout draws from the global state: seed it per step, then give it back
        with clock.phase("warmup"):
            _warm_up(lm, objective, start, accelerator, autocast)
        if start == 0 and hooks.prober is not None and hooks.prober.due(0):
            _look(module, 0, hooks, clock)
        if start == 0 and hooks.evaluate is not None:
            _evaluate(module, 0, steps, False, hooks, clock)
        number = start
        while number < steps:
            with clock.phase("optimise"):
                torch.manual_seed(int(generator("step", seed, number).integers(2**62)))
                losses, nothing = _backward(lm, objective.parts(number), accelerator, autocast)
                idle.update(nothing)
                norm = float(accelerator.clip_grad_norm_(list(trained.values()), settings.clip or math.inf))
                _require_finite(number + 1, losses, norm)
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
                schedule.step()
                objective.after_step(number, losses)
                number += 1
            hooks.log(
                {
                    "step": number,
                    "epoch": round(number / objective.steps_per_epoch, 4),
                    "seconds": clock.cost,
                    **{f"{name}_loss": value for name, value in losses.items()},
                    "learning_rate": optimizer.param_groups[0]["lr"],
                    "grad_norm": norm,
                }
            )
            hooks.progress(number, steps)
            if hooks.prober is not None and hooks.prober.due(number):
                reading = _look(module, number, hooks, clock)
                if reading.stop:
                    stop = {"step": number, "reason": reading.reason, "values": dict(reading.values)}
            if hooks.selector is not None and hooks.selector.due(number, last=stop is not None or number == steps):
                with clock.phase("select"):
                    value = hooks.selector.look(module, number, trained)
                hooks.log({"step": number, "seconds": clock.cost, "select": {hooks.selector.metric: value}})
            if hooks.evaluate is not None:
                _evaluate(module, number, steps, stop is not None or number == steps, hooks, clock)
            if stop is not None:
                break
            if hooks.checkpoint is not None and settings.checkpoint_every and number % settings.checkpoint_every == 0:
                objective.meter.share(accelerator)
                if accelerator.is_main_process:
                    checkpoint.save(hooks.checkpoint, plan, number, trained, parts, clock)
    if hooks.selector is not None:
        with clock.phase("select"):
            hooks.selector.restore(trained)
    lm.eval()
    after = digest(trained)
    if not all(map(math.isfinite, itertools.chain.from_iterable(after))):
        raise CellFailed(f"weights are not finite after step {number}")
    if after == before:
        raise CellFailed(f"no trained weight moved in {number} steps")
    meter = objective.meter
    meter.share(accelerator)
    warnings = [] if number >= 10 or stop else [f"only {number} optimiser steps"]
    for name, count in idle.items():
        if count == number - start:
            raise CellFailed(f"the {name} loss was a mean over nothing in every step")
        warnings.append(f"the {name} loss was a mean over nothing in {count} of {number - start} steps")
    return Outcome(
        steps=number,
        planned_steps=steps,
        steps_per_epoch=objective.steps_per_epoch,
        warmup_steps=warmup,
        effective_batch=settings.batch_size * settings.accumulation * accelerator.num_processes,
        processes=accelerator.num_processes,
        rows_seen=round(meter.rows * accelerator.num_processes),
        tokens=round(meter.tokens * accelerator.num_processes),
        flops=meter.flops * accelerator.num_processes,
        trained_parameters=sum(p.numel() for p in trained.values()),
        trained_names=sorted(trained),
        peak_memory_bytes=peak_memory_bytes(),
        stop=stop,
        warnings=warnings,
    )


# -- one step --------------------------------------------------------------------------------------------------


def _backward(
    lm: nn.Module, parts: Sequence[Part], accelerator: Accelerator, autocast: AbstractContextManager[Any]
) -> tuple[dict[str, float], list[str]]:
    """Leave the gradient of the weighted sum of the parts in `.grad`; return each part's own mean loss, and the names
    of those whose weights add up to 0 (their loss is given as 0).

    A part's normaliser is known only after its last micro-batch, on all processes. With one micro-batch and one
    process it is divided before the backward pass; otherwise after, part by part, the gradient of earlier parts set
    aside meanwhile. Processes add up their gradients once, at the end: not in DDP's hooks, which wait for every
    parameter and for a backward pass of every process, and a loss may leave parameters out and a process may be
    without rows.
    """
    parameters = [p for p in lm.parameters() if p.requires_grad]
    aside: list[Tensor | None] | None = None
    losses: dict[str, float] = {}
    over_nothing: list[str] = []
    for index, part in enumerate(parts):
        alone = accelerator.num_processes == 1 and len(part.micro_batches) == 1
        if not alone and index > 0:
            aside = _add(aside, [p.grad for p in parameters])
            for parameter in parameters:
                parameter.grad = None
        values = weights = torch.zeros((), dtype=torch.float64, device=accelerator.device)
        for micro in part.micro_batches:
            with accelerator.no_sync(lm):
                with autocast:
                    terms = part.loss(micro)
                    if not isinstance(terms, Terms):
                        raise UserError(f"The {part.name} loss is a {type(terms).__name__}; a loss returns Terms.")
                    value, weight = terms.sums()
                scale = part.weight / weight.clamp(min=1e-12) if alone else 1.0
                if value.requires_grad:
                    accelerator.backward(value * scale)
                values, weights = values + value.detach(), weights + weight.detach()
        total = accelerator.reduce(torch.stack([values, weights]), reduction="sum")
        mean_weight = float(total[1])
        losses[part.name] = float(total[0]) / mean_weight if mean_weight else 0.0
        over_nothing += [] if mean_weight else [part.name]
        if not alone and mean_weight:
            for parameter in parameters:
                if parameter.grad is not None:
                    parameter.grad.mul_(part.weight / mean_weight)
    if aside is not None:
        for parameter, total_grad in zip(parameters, _add(aside, [p.grad for p in parameters]), strict=True):
            parameter.grad = total_grad
    if accelerator.num_processes > 1:
        _add_up(parameters, accelerator)
    return losses, over_nothing


def _add_up(parameters: Sequence[nn.Parameter], accelerator: Accelerator) -> None:
    """Replace each gradient by its sum over the processes, in one message."""
    own = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    total: Any = accelerator.reduce(torch.cat([gradient.flatten() for gradient in own]), reduction="sum")
    for parameter, piece in zip(parameters, total.split([gradient.numel() for gradient in own]), strict=True):
        parameter.grad = piece.view_as(parameter).to(parameter.dtype)


def _add(left: list[Tensor | None] | None, right: list[Tensor | None]) -> list[Tensor | None]:
    if left is None:
        return right
    return [b if a is None else a if b is None else a + b for a, b in zip(left, right, strict=True)]


def _require_finite(step: int, losses: dict[str, float], norm: float) -> None:
    for name, value in losses.items():
        if not math.isfinite(value):
            raise CellFailed(f"the {name} loss is {value} at step {step}")
    if not math.isfinite(norm):
        raise CellFailed(f"the gradient norm is {norm} at step {step}")


def _warm_up(
    lm: nn.Module, objective: Objective, step: int, accelerator: Accelerator, autocast: AbstractContextManager[Any]
) -> None:
    meter = objective.meter
    tally = (meter.flops, meter.tokens, meter.rows)
    _backward(lm, objective.parts(step), accelerator, autocast)
    meter.flops, meter.tokens, meter.rows = tally
    for parameter in lm.parameters():
        parameter.grad = None


def _look(lm: LanguageModel, step: int, hooks: Hooks, clock: Clock) -> Any:
    assert hooks.prober is not None
    with clock.phase("probe"):
        reading = hooks.prober.check(lm, step)
    hooks.log({"step": step, "seconds": clock.cost, "probe": {**reading.values, "stop": reading.stop}})
    return reading


def _evaluate(lm: LanguageModel, step: int, steps: int, last: bool, hooks: Hooks, clock: Clock) -> None:
    assert hooks.evaluate is not None
    with clock.phase("evaluate"):
        point = hooks.evaluate(lm, step, steps, last)
    if point is not None:
        hooks.log({"step": step, "seconds": clock.cost, "trajectory": point})


def _autocast(settings: TrainSettings, accelerator: Accelerator) -> AbstractContextManager[Any]:
    if settings.precision == "fp32":
        return nullcontext()
    return torch.autocast(accelerator.device.type, dtype=torch.bfloat16)


# -- optimiser, schedule ---------------------------------------------------------------------------------------


def _optimizer(parameters: list[nn.Parameter], settings: TrainSettings) -> torch.optim.Optimizer:
    if settings.optimizer == "sgd":
        return torch.optim.SGD(parameters, lr=settings.learning_rate, weight_decay=settings.weight_decay)
    return torch.optim.AdamW(
        parameters, lr=settings.learning_rate, betas=settings.betas, weight_decay=settings.weight_decay, fused=True
    )


def _warmup_steps(settings: TrainSettings, steps_per_epoch: int) -> int:
    if settings.warmup_epochs is not None:
        return round(settings.warmup_epochs * steps_per_epoch)
    return settings.warmup_steps or 0


def _rate(step: int, steps: int, warmup: int, schedule: str) -> float:
    if step < warmup:
        return (step + 1) / (warmup + 1)
    if schedule == "constant":
        return 1.0
    done = (step - warmup) / max(1, steps - warmup)
    return 1 - done if schedule == "linear" else 0.5 * (1 + math.cos(math.pi * done))


# -- resume ----------------------------------------------------------------------------------------------------


def _plan(objective: Objective, settings: TrainSettings, seed: int, steps: int, processes: int) -> dict[str, Any]:
    """What a checkpoint must have in common with the run that goes on from it."""
    plan = {"settings": settings.model_dump(mode="json"), "seed": seed, "steps": steps, "processes": processes}
    return {**objective.request, **plan}


def digest(trained: dict[str, nn.Parameter]) -> list[tuple[float, float]]:
    """Sum and sum of squares of each parameter: tells weights that moved, and weights that are not finite."""
    with torch.no_grad():
        return [(float(p.double().sum()), float(p.double().square().sum())) for p in trained.values()]
