"""The restricted margin of MASC (arXiv:2606.02920) and the violation rate made of it.

Shared by the method's loss, the `violation` stop rule, which any method can take, and the metric.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def tau_of(rho: float) -> float:
    """The margin above which the target token holds more than the share `rho` against its alternatives: logit(rho)."""
    return math.log(rho / (1 - rho))


def own_alternatives(logits: Tensor, targets: Tensor, k: int) -> Tensor:
    """The k most likely tokens other than the target: bool [..., V] from logits [..., V], targets [...]."""
    rivals = logits.detach().scatter(-1, targets.unsqueeze(-1), -torch.inf)
    top = rivals.topk(min(k, logits.shape[-1] - 1), dim=-1).indices
    return torch.zeros_like(logits, dtype=torch.bool).scatter(-1, top, True)


def restricted_margin(logits: Tensor, targets: Tensor, alternatives: Tensor, beta: float = 1.0) -> Tensor:
    """m = beta z(y) - logsumexp over the alternatives of beta z(v): [...] from logits [..., V], alternatives bool [..., V]."""
    target = logits.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    return beta * target - torch.logsumexp((beta * logits).masked_fill(~alternatives, -torch.inf), dim=-1)


def violation_rate(margins: Tensor, tau: float, active: Tensor) -> Tensor:
    """Per row, the share of active tokens with margin > tau: (B,) from margins, active [B, L]; nan without active tokens."""
    return ((margins > tau) & active).sum(-1) / active.sum(-1)
