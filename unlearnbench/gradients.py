"""Gradient norms of the answer's loss, one request at a time: the only evaluation that needs a backward pass."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from unlearnbench.errors import UserError
from unlearnbench.language_model import LanguageModel, evaluating
from unlearnbench.requests import GradNorm
from unlearnbench.text import Batch, Encoder, collate


def gradient_norms(lm: LanguageModel, encoder: Encoder, requests: Sequence[GradNorm]) -> dict[GradNorm, float | None]:
    """Per request the mean over parameter tensors of the p-norm of the gradient of the mean answer -log p (nats).

    None where the answer has no token, or more than fit. Every floating-point parameter takes part, frozen
    or not; gradients and `requires_grad` are as before afterwards.
    """
    norms: dict[GradNorm, float | None] = {}
    by_text: dict[tuple[str, str, bool], list[GradNorm]] = {}
    for request in dict.fromkeys(requests):
        by_text.setdefault((request.prompt, request.answer, request.drop_last), []).append(request)
    for (prompt, answer, drop_last), asked in by_text.items():
        try:
            row = encoder.encode(prompt, answer)
        except UserError:  # the answer does not fit: the row is undefined here as in scoring, which says so
            norms |= dict.fromkeys(asked)
            continue
        batch = collate([row], encoder.pad_id)
        found = batch_norms(lm, batch, [request.p for request in asked], drop_last)
        norms |= dict(zip(asked, found, strict=True))
    return norms


def batch_norms(lm: LanguageModel, batch: Batch, ps: Sequence[float], drop_last: bool = False) -> list[float | None]:
    """For each p, the mean over parameter tensors of the gradient's p-norm, of the mean -log p of one row's answer."""
    batch = batch.to(lm.device)
    tokens = int(batch.lengths.sum()) - int(drop_last)
    if tokens < 1:
        return [None] * len(ps)
    positions, targets = batch.positions[:, :tokens], batch.targets[:, :tokens]
    parameters = [p for p in lm.parameters() if p.is_floating_point()]
    frozen = [p for p in parameters if not p.requires_grad]
    try:
        for parameter in frozen:
            parameter.requires_grad_(True)
        with evaluating(lm), torch.enable_grad():
            logits = lm(batch.input_ids, batch.attention_mask, batch.position_ids, positions)
            loss = (logits.logsumexp(-1) - logits.gather(-1, targets[..., None]).squeeze(-1)).mean()
            gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
    finally:
        for parameter in frozen:
            parameter.requires_grad_(False)
    norms = [[float(torch.linalg.vector_norm(g.double(), ord=p)) for g in gradients if g is not None] for p in ps]
    return [sum(each) / len(each) if each else None for each in norms]
