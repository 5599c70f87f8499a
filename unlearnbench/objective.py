"""The objective of unlearning for the training loop: a method's forget and retain losses on the rows of a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor

from unlearnbench.errors import UserError
from unlearnbench.finetuning import count_forward, make_meter
from unlearnbench.method import Method, State, Step, Terms, View, Views
from unlearnbench.order import EpochOrder, StreamOrder, generator, split
from unlearnbench.reference import Reference
from unlearnbench.reference import run as run_forward
from unlearnbench.settings import TrainSettings
from unlearnbench.text import Batch, Encoded, Encoder, collate
from unlearnbench.training import Part, total_steps


class Unlearning:
    """The forget part and the retain part of a method, with their rows, the reference and the method's state."""

    def __init__(
        self,
        method: Method,
        lm: Any,
        encoder: Encoder,
        forget: Sequence[Encoded],
        retain: Sequence[Encoded],
        settings: TrainSettings,
        seed: int,
        accelerator: Accelerator,
        state: State,
        reference: Reference | None = None,
        cached_nll: Mapping[str, Tensor] | None = None,
        alternates: Mapping[str, Sequence[Encoded]] | None = None,
    ):
        self.method, self.lm, self.encoder, self.settings, self.seed = method, lm, encoder, settings, seed
        self.forget, self.retain, self.accelerator, self.state = list(forget), list(retain), accelerator, state
        self.reference, self.cached_nll, self.alternates = reference, cached_nll, alternates
        devices = accelerator.num_processes
        per_step = settings.batch_size * settings.accumulation * devices
        self.retain_batch = settings.retain_batch_size or settings.batch_size

        def lengths(rows: Sequence[Encoded]) -> list[int] | None:
            return [len(row.ids) for row in rows] if settings.bucket else None

        forget_lengths = lengths(self.forget)
        per_epoch = (lambda epoch: forget_lengths) if forget_lengths is not None else None
        self.order = EpochOrder(len(self.forget), per_step, seed, per_epoch, "forget")  # type: ignore[arg-type]
        self.steps_per_epoch = self.order.steps_per_epoch
        self.total = total_steps(settings, self.steps_per_epoch)
        per_retain_step = self.retain_batch * settings.accumulation * devices
        self.retain_order = (
            StreamOrder(len(self.retain), per_retain_step, seed, lengths(self.retain), "retain")
            if self.retain
            else None
        )
        self.meter = make_meter(lm)
        rows = {"forget": [row.row_id for row in self.forget], "retain": [row.row_id for row in self.retain]}
        self.request = {"method": [method.registered_name, method.model_dump(mode="json")], "rows": rows}

    # -- the parts of a step -----------------------------------------------------------------------------------

    def parts(self, step: int) -> list[Part]:
        """Forget first, then retain; a part without weight is not run."""
        forget_weight, retain_weight = self.method.weights(self.state)
        rank, world = self.accelerator.process_index, self.accelerator.num_processes
        parts = []
        if forget_weight:
            rows = split(self.order.rows(step), self.settings.batch_size, rank, world)
            micro = [(step, [self.forget[i] for i in batch]) for batch in rows]
            parts.append(Part("forget", forget_weight, micro, self._forget_loss))
        if self.method.uses_retain:  # though a dual variable may be 0 just now
            assert self.retain_order is not None
            rows = split(self.retain_order.rows(step), self.retain_batch, rank, world)
            micro = [(step, [self.retain[i] for i in batch]) for batch in rows]
            parts.append(Part("retain", retain_weight, micro, self._retain_loss))
        return parts

    def _forget_loss(self, micro: tuple[int, list[Encoded]]) -> Terms:
        number, rows = micro
        batch, alternate = self._batch(rows), None
        if self.alternates is not None:
            alternate = self._batch([self._alternate(row, number) for row in rows])
        frozen = Views(
            forget=self._frozen(batch, self.cached_nll),
            alternate=self._frozen(alternate) if alternate is not None else None,
        )
        policy = Views(forget=self._policy(batch), alternate=self._policy(alternate) if alternate is not None else None)
        return self.method.forget_loss(self._step(policy, frozen, number))

    def _retain_loss(self, micro: tuple[int, list[Encoded]]) -> Terms:
        number, rows = micro
        batch = self._batch(rows)
        return self.method.retain_loss(
            self._step(Views(retain=self._policy(batch)), Views(retain=self._frozen(batch)), number)
        )

    def _alternate(self, row: Encoded, number: int) -> Encoded:
        """The alternate of a row at a step: the same however the step is cut into batches."""
        assert self.alternates is not None
        options = self.alternates[row.source]
        return options[generator("alternate", self.seed, number, row.row_id).integers(len(options))]

    def _step(self, policy: Views, frozen: Views, number: int) -> Step:
        def random(row_id: str) -> torch.Generator:
            seed = generator("method", self.seed, number, row_id).integers(2**62)
            return torch.Generator().manual_seed(int(seed))

        return Step(policy, frozen, self.state, number, number / self.total, random)

    # -- views -------------------------------------------------------------------------------------------------

    def _batch(self, rows: list[Encoded]) -> Batch:
        return collate(rows, self.encoder.pad_id).to(self.accelerator.device)

    def _policy(self, batch: Batch) -> View:
        def forward(batch: Batch, kind: str, layer: int | float | None) -> Tensor:
            count_forward(self.meter, batch, kind, backward=True, depth=self._depth(layer))
            return run_forward(self.lm, batch, kind, layer)

        return View(batch, forward)

    def _frozen(self, batch: Batch, cached_nll: Mapping[str, Tensor] | None = None) -> View:
        def forward(batch: Batch, kind: str, layer: int | float | None) -> Tensor:
            if self.reference is None:
                raise UserError(
                    f"The method '{self.method.registered_name}' asks the reference for more than its `needs` declare."
                )
            count_forward(self.meter, batch, kind, backward=False, depth=self._depth(layer))
            return self.reference.forward(batch, kind, layer)

        return View(batch, forward, cached_nll)

    def _depth(self, layer: int | float | None) -> float:
        if layer is None:
            return 1.0
        module = getattr(self.lm, "module", self.lm)
        return (module.layer_index(layer) + 1) / len(module.layers)

    # -- state -------------------------------------------------------------------------------------------------

    def after_step(self, step: int, losses: dict[str, float]) -> None:
        """Let the method update its state."""
        self.method.after_step(self.state, losses.get("forget", 0.0), losses.get("retain"))

    def state_dict(self) -> dict[str, Any]:
        return {"state": dict(self.state), "meter": [self.meter.flops, self.meter.tokens, self.meter.rows]}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        self.state.clear()
        self.state.update(saved["state"])
        self.meter.flops, self.meter.tokens, self.meter.rows = saved["meter"]
