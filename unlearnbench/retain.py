"""The retain regularisers, shared by every method: `retain: none | nll | kl | kl-all | kl-muse | hidden`."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from unlearnbench.method import Method, Step, Terms
from unlearnbench.text import IGNORE


def kl(reference_logits: Tensor, policy_logits: Tensor) -> Tensor:
    """KL(reference || policy) in nats over the last axis: [...] from logits [..., V] on both sides."""
    p = torch.log_softmax(reference_logits, -1)
    return (p.exp() * (p - torch.log_softmax(policy_logits, -1))).sum(-1)


def raw_kl(reference_logits: Tensor, policy_logits: Tensor) -> Tensor:
    """sum_v exp(z_ref) (z_ref - z) on raw logits [..., V]: no divergence, and negative at times, but MUSE's."""
    return (reference_logits.exp() * (reference_logits - policy_logits)).sum(-1)


def hidden_distance(a: Tensor, b: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Per row, squared distance of hidden states [B, T, D] (mean over D), summed over labelled tokens; their number."""
    mask = labels != IGNORE
    distance = (a - b).square().mean(-1)
    return distance.masked_fill(~mask, 0.0).sum(1), mask.sum(1)


def nll(step: Step, method: Method) -> Terms:
    """Gradient descent on retain (GDR).

        L_retain = E_t[ -log p(y_t | x, y_<t) ]

    over the retain answer tokens.
    """
    return Terms(step.retain.token_nll, step.retain.mask)


def kl_answers(step: Step, method: Method) -> Terms:
    """Divergence from the reference (KLR).

        L_retain = E_t[ KL(p_ref,t || p_t) ]

    over the retain answer tokens.
    """
    return Terms(kl(step.reference.retain.logits, step.retain.logits), step.retain.mask)


def kl_all(step: Step, method: Method) -> Terms:
    """Divergence from the reference at every position.

        L_retain = mean_s KL(p_ref,s || p_s)

    over all positions s of a batch, prompt and padding included, as TOFU and OpenUnlearning do.
    """
    return Terms(kl(step.reference.retain.full_logits, step.retain.full_logits))


def kl_muse(step: Step, method: Method) -> Terms:
    """What MUSE computes in the place of a divergence.

        L_retain = E_x[ sum_s sum_v exp(z_ref,s(v)) (z_ref,s(v) - z_s(v)) ]

    over raw logits z at all positions s, prompt and padding included: no divergence, and negative at times.
    """
    return Terms(raw_kl(step.reference.retain.full_logits, step.retain.full_logits).sum(-1))


def hidden(step: Step, method: Method) -> Terms:
    """Distance to the reference's hidden states (RMU, arXiv:2403.03218).

        L_retain = E_x[ mean_t mean_d (h_t,d - h_ref,t,d)^2 ]

    with h the output of block `layer`, over a row's answer tokens t and the coordinates d.
    """
    policy, frozen = step.retain.hidden(method.layer), step.reference.retain.hidden(method.layer)
    total, count = hidden_distance(policy, frozen, step.retain.batch.labels)
    return Terms(total / count.clamp(min=1), count > 0)


REGULARISERS: dict[str, Callable[[Step, Method], Terms]] = {
    "nll": nll,
    "kl": kl_answers,
    "kl-all": kl_all,
    "kl-muse": kl_muse,
    "hidden": hidden,
}
