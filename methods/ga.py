"""Gradient ascent: raise -log p of the forget answers (Jang et al., arXiv:2210.01504; Yao et al., arXiv:2310.10683).

    L = E_t[ log p(y_t | x, y_<t) ]

with y_t the answer token at place t, x the prompt, E_t the mean over all forget answer tokens of the optimiser step.
The loss has no lower bound: only the budget or a stop rule ends it, and the model breaks when it is run for long.
GradDiff and GA+KLR are this objective with a retain
regulariser.

Differences from the reference code: none in TOFU, MUSE, WMDP and OpenUnlearning. The protocol `forget-kl` adds
KL(reference || policy) over all positions of the *forget* batch (`grad_ascent_forgetKL` in the code of the NPO paper).
"""

from __future__ import annotations

from torch import Tensor

from unlearnbench.method import Method, Step, Terms, methods
from unlearnbench.retain import kl


def ga(token_nll: Tensor) -> Tensor:
    """Per-token loss [B, L]: the answers' log p, nats."""
    return -token_nll


@methods.register("ga", title="GA", family="ascent", paper="arXiv:2210.01504", version=1)
class GA(Method):
    """Gradient ascent on the forget answers."""

    protocols = {
        "ours": "mean over the answer tokens of an optimiser step",
        "forget-kl": "plus KL to the reference over all positions of the forget batch (code of the NPO paper)",
    }
    protocol_needs = {"forget-kl": frozenset({"reference"})}
    breaks = {"forget-kl": frozenset({"padding", "accumulation"})}

    def forget_loss(self, step: Step) -> Terms:
        terms = Terms(ga(step.forget.token_nll), step.forget.mask)
        if self.protocol == "forget-kl":
            divergence = kl(step.reference.forget.full_logits, step.forget.full_logits).mean()
            return Terms((terms.mean() + divergence).unsqueeze(0))
        return terms


methods.preset("graddiff", of="ga", title="GradDiff", retain="nll")
methods.preset("graddiff+kl", of="ga", title="GradDiff+KL", retain="kl-all")
methods.preset("ga+klr", of="ga", title="GA+KLR", retain="kl")
