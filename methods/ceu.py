"""CE-U: learn the model's own distribution without the forget token.

    L = E_t[ -sum_v q_t(v) log p_t(v) ]
    q_t = sg(softmax of z_t with z_t(y_t) at -infinity)

(arXiv:2503.01224) with E_t the mean over the answer tokens after the first `skip`, p_t = softmax(z_t) the policy, y_t
the forget token; sg: no gradient. The mass of the forget token goes to the others in
proportion, and the gradient is bounded, large where the model is sure.

Differences from the reference code: OpenUnlearning counts the skipped tokens before the shift, so that a labelled
first token of a text, which nothing predicts, is one of them (protocol `open-unlearning`).
"""

from __future__ import annotations

import torch
from torch import Tensor

from unlearnbench.method import Method, Step, Terms, hyper, methods


def ceu(logits: Tensor, tokens: Tensor) -> Tensor:
    """Cross entropy [...] of logits [..., V] to themselves without the tokens [...]."""
    others = logits.detach().scatter(-1, tokens.unsqueeze(-1), -torch.inf).softmax(-1)
    return -(others * logits.log_softmax(-1)).sum(-1)


@methods.register("ceu", title="CE-U", family="distillation", paper="arXiv:2503.01224", version=1)
class CEU(Method):
    """Cross entropy unlearning."""

    protocols = {
        "ours": "`skip` counts answer tokens that are predicted",
        "open-unlearning": "`skip` counts labels before the shift (OpenUnlearning)",
    }

    skip: int = hyper(1, ge=0, meaning="answer tokens at the beginning that are left alone", source="OpenUnlearning")

    def forget_loss(self, step: Step) -> Terms:
        view = step.forget
        order = view.mask.cumsum(1)  # 1 for the first answer token of a row
        if self.protocol == "open-unlearning":
            order = order + (view.batch.label_counts - view.answer_lengths).unsqueeze(1)
        return Terms(ceu(view.logits, view.targets), view.mask & (order > self.skip))
