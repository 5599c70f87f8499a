"""Fine-tuning as an objective of the training loop: mean -log p of the answer tokens. Makes bases, targets, retrained
models.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from accelerate import Accelerator

from unlearnbench.benchmarks.base import Row
from unlearnbench.clock import Clock, Meter
from unlearnbench.errors import UserError
from unlearnbench.language_model import LanguageModel
from unlearnbench.method import Terms, View
from unlearnbench.order import EpochOrder, generator, split
from unlearnbench.reference import run as run_forward
from unlearnbench.settings import TrainSettings
from unlearnbench.text import Encoded, Encoder, collate
from unlearnbench.training import Hooks, Outcome, Part, run


class FineTuning:
    """Rows, and `settings.paraphrases` other wordings of each row's prompt per epoch, drawn anew each epoch."""

    def __init__(
        self,
        lm: Any,
        rows: Sequence[Row],
        encoder: Encoder,
        settings: TrainSettings,
        seed: int,
        accelerator: Accelerator,
    ):
        self.lm, self.encoder, self.settings, self.accelerator, self.seed = lm, encoder, settings, accelerator, seed
        self.coded = encoder.rows(rows)
        self.own = self.coded.rows
        if not self.own:
            raise UserError(f"None of the {len(rows)} rows has an answer token to learn.")
        by_id = {row.id: row for row in rows}
        self.others = [
            [encoder.encode(prompt, row.answer, row.id) for prompt in row.paraphrases if row.prompt]
            for row in (by_id[encoded.source] for encoded in self.own)
        ]
        extra = sum(settings.paraphrases for others in self.others if others)
        self.count = len(self.own) + extra
        self._epoch, self._items = -1, list[Encoded]()
        per_step = settings.batch_size * settings.accumulation * accelerator.num_processes
        lengths = self._lengths if settings.bucket else None
        self.order = EpochOrder(self.count, per_step, seed, lengths, "finetune")
        self.steps_per_epoch = self.order.steps_per_epoch
        self.meter = make_meter(lm)
        self.request: dict[str, Any] = {"rows": [row.row_id for row in self.own]}

    def _deal(self, epoch: int) -> list[Encoded]:
        """The items of an epoch: every row, and other wordings of it."""
        if epoch != self._epoch:
            random = generator("wording", self.seed, epoch)
            items = list(self.own)
            for others in self.others:
                if others:
                    items.extend(others[i] for i in random.integers(len(others), size=self.settings.paraphrases))
            self._epoch, self._items = epoch, items
        return self._items

    def _lengths(self, epoch: int) -> list[int]:
        return [len(item.ids) for item in self._deal(epoch)]

    def parts(self, step: int) -> list[Part]:
        """One part: the mean -log p over all answer tokens of the step."""
        rows = self.order.rows(step)
        items = self._deal(step // self.steps_per_epoch)
        accelerator = self.accelerator
        micro = split(rows, self.settings.batch_size, accelerator.process_index, accelerator.num_processes)
        return [Part("train", 1.0, [[items[i] for i in batch] for batch in micro], self._loss)]

    def _loss(self, rows: list[Encoded]) -> Terms:
        batch = collate(rows, self.encoder.pad_id).to(self.accelerator.device)
        count_forward(self.meter, batch, "answers", backward=True)
        view = View(batch, lambda batch, kind, layer: run_forward(self.lm, batch, kind, layer))
        return Terms(view.token_nll, view.mask)

    def after_step(self, step: int, losses: dict[str, float]) -> None:
        """Nothing changes between steps."""

    def state_dict(self) -> dict[str, Any]:
        return {"meter": [self.meter.flops, self.meter.tokens, self.meter.rows]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.meter.flops, self.meter.tokens, self.meter.rows = state["meter"]


def make_meter(lm: LanguageModel) -> Meter:
    """A meter for this model: parameters of the body and of the head."""
    module = getattr(lm, "module", lm)
    embedding = module.model.get_input_embeddings().weight
    head = module.model.get_output_embeddings().weight
    total = sum(p.numel() for p in module.parameters())
    body = total - embedding.numel() - (0 if head is embedding else head.numel())
    trained = sum(p.numel() for p in module.parameters() if p.requires_grad)
    return Meter(body, head.numel(), trained / total)


def count_forward(meter: Meter, batch: Any, kind: str, backward: bool, depth: float = 1.0) -> None:
    """Count one forward pass of a batch."""
    padded = batch.input_ids.numel()
    answers = {"answers": batch.mask.numel(), "full": padded, "hidden": 0}[kind]
    meter.forward(padded, answers, backward, depth)
    if backward:
        meter.tokens += batch.tokens
        meter.rows += len(batch)


def finetune(
    lm: LanguageModel,
    encoder: Encoder,
    rows: Sequence[Row],
    settings: TrainSettings,
    seed: int,
    accelerator: Accelerator,
    clock: Clock | None = None,
    hooks: Hooks | None = None,
) -> Outcome:
    """Fine-tune `lm` in place on rows. `seed` decides the order of rows, the wordings and dropout."""
    clock = clock or Clock()
    prepared = accelerator.prepare(lm)
    with clock.phase("encode"):
        objective = FineTuning(prepared, rows, encoder, settings, seed, accelerator)
    outcome = run(prepared, objective, settings, seed, accelerator, clock, hooks)
    outcome.warnings += objective.coded.notes()
    return outcome
