"""The retain regularisers, shared by every method: `retain: none | nll | kl | kl-all | hidden`."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from unlearnbench.method import Step, Terms


def kl(reference_logits: Tensor, policy_logits: Tensor) -> Tensor:
    """KL(reference || policy) in nats over the last axis: [...] from logits [..., V] on both sides."""
    p = torch.log_softmax(reference_logits, -1)
    return (p.exp() * (p - torch.log_softmax(policy_logits, -1))).sum(-1)


def nll(step: Step) -> Terms:
    """Mean -log p over the retain answer tokens (gradient descent on retain, GDR)."""
    return Terms(step.retain.token_nll, step.retain.mask)


def kl_answers(step: Step) -> Terms:
    """Mean KL(reference || policy) over the retain answer tokens (KLR)."""
    assert step.reference.retain is not None
    return Terms(kl(step.reference.retain.logits, step.retain.logits), step.retain.mask)


REGULARISERS: dict[str, Callable[[Step], Terms]] = {"nll": nll, "kl": kl_answers}
