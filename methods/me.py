"""ME, maximising entropy: make the model guess uniformly at the forget answer.

    L = E_x[ mean_t KL(p_t || u) ] = E_x[ mean_t (log V - H(p_t)) ]

(Yuan et al., arXiv:2410.08109) with t the answer tokens of row x, p_t the policy, H its entropy in nats, u uniform over
the V tokens of the vocabulary. ME+GD is this with `retain: nll`.

Differences from the reference code: it computes KL(u || p_t), the other way round, and averages over the tokens of
the batch (protocol `authors`).
"""

from __future__ import annotations

import math

from torch import Tensor

from unlearnbench.method import Method, Step, Terms, hyper, methods


def entropy_gap(logits: Tensor) -> Tensor:
    """KL(p || uniform) [...] in nats, from logits [..., V]."""
    log_p = logits.log_softmax(-1)
    return math.log(logits.shape[-1]) + (log_p.exp() * log_p).sum(-1)


def uniform_gap(logits: Tensor) -> Tensor:
    """KL(uniform || p) [...] in nats, from logits [..., V]."""
    return -math.log(logits.shape[-1]) - logits.log_softmax(-1).mean(-1)


@methods.register("me", title="ME", family="distillation", paper="arXiv:2410.08109", version=1)
class ME(Method):
    """Maximum entropy on the forget answers."""

    protocols = {
        "ours": "KL(p || uniform), mean over an answer's tokens, then over answers",
        "authors": "KL(uniform || p), mean over the answer tokens of the batch (code of the authors)",
    }

    forget_weight: float = hyper(0.1, ge=0, source="code of the authors, TOFU")

    def forget_loss(self, step: Step) -> Terms:
        view = step.forget
        if self.protocol == "authors":
            return Terms(uniform_gap(view.logits), view.mask)
        gaps = entropy_gap(view.logits).masked_fill(~view.mask, 0.0)
        return Terms(gaps.sum(1) / view.answer_lengths.clamp(min=1), view.answer_lengths > 0)


methods.preset("me+gd", of="me", title="ME+GD", retain="nll")
