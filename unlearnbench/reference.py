"""The frozen reference that NPO, KL, RMU … compare with, at the lowest cost that answers what is asked.

- the adapter switched off, when LoRA is trained: no second model;
- a second frozen copy, when all weights are trained and forward passes are needed during training;
- nothing but the forget rows' token log-probabilities, computed once, when that is all a method needs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from unlearnbench.language_model import LanguageModel, evaluating
from unlearnbench.models import frozen_copy, has_adapter
from unlearnbench.text import Batch, Encoded, collate


def run(lm: torch.nn.Module, batch: Batch, kind: str, layer: int | float | None) -> Tensor:
    """One forward pass: kind `answers`, `full` or `hidden` (see `method.View`)."""
    return lm(
        batch.input_ids,
        batch.attention_mask,
        batch.position_ids,
        positions=batch.positions if kind == "answers" else None,
        hidden_layer=layer if kind == "hidden" else None,
    )


class Reference:
    """Answers forward passes as the frozen target does."""

    def __init__(self, lm: LanguageModel):
        self._adapter_off = has_adapter(lm)
        self._lm = lm if self._adapter_off else frozen_copy(lm)

    @property
    def kind(self) -> str:
        return "adapter off" if self._adapter_off else "frozen copy"

    def forward(self, batch: Batch, kind: str, layer: int | float | None) -> Tensor:
        """See `method.View`."""
        with evaluating(self._lm):
            if self._adapter_off:
                with self._lm.hf.disable_adapter():  # type: ignore[operator]
                    return run(self._lm, batch, kind, layer)
            return run(self._lm, batch, kind, layer)


def token_nll(lm: LanguageModel, rows: Sequence[Encoded], pad_id: int, token_budget: int = 8192) -> dict[str, Tensor]:
    """Each row's answer -log p per token (n,), nats, in eval mode: row id -> tensor. Rows are batched by length."""
    found: dict[str, Tensor] = {}
    with evaluating(lm):
        for chunk in by_length(rows, token_budget):
            batch = collate(chunk, pad_id).to(lm.device)
            logits = run(lm, batch, "answers", None)
            nll = torch.logsumexp(logits, -1) - logits.gather(-1, batch.targets.unsqueeze(-1)).squeeze(-1)
            for row, values, mask in zip(chunk, nll, batch.mask, strict=True):
                found[row.row_id] = values[mask].clone()
    return found


def by_length(rows: Sequence[Encoded], token_budget: int) -> Iterator[list[Encoded]]:
    """Chunks of rows of similar length with at most `token_budget` padded tokens each (at least one row)."""
    chunk: list[Encoded] = []
    for row in sorted(rows, key=lambda row: len(row.ids)):
        if chunk and len(row.ids) * (len(chunk) + 1) > token_budget:
            yield chunk
            chunk = []
        chunk.append(row)
    if chunk:
        yield chunk
