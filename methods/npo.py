"""Negative preference optimisation: treat the forget answer as the losing side of a preference, with no winner.

    L = (2 / beta) E[ softplus(beta (log p(y|x) - log p_ref(y|x))) ]

(Zhang et al., arXiv:2404.05868, eq. 3) with p the policy, p_ref the reference, log p of the whole answer y summed over
its tokens, and E the mean over answers. As beta -> 0 this becomes gradient ascent; the gradient is
that of gradient ascent, weighted per answer by 2 r^beta / (1 + r^beta) with r = p / p_ref, which fades as the answer
is forgotten.

Differences from the reference code: none in the TOFU code of the authors and in OpenUnlearning. Two others compute
something else under the same name, kept as protocols: MUSE compares raw logits, entry by entry, labels unused; the
WMDP code of the SimNPO paper compares the token means of whole batches.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import softplus

from unlearnbench.method import Method, Step, Terms, hyper, methods


def npo(nll: Tensor, reference_nll: Tensor, beta: float) -> Tensor:
    """Per-answer NPO loss (B,): answers' -log p under policy and reference (B,), nats, summed over tokens."""
    return 2 / beta * softplus(beta * (reference_nll - nll))


@methods.register("npo", title="NPO", family="preference", paper="arXiv:2404.05868", version=1)
class NPO(Method):
    """Negative preference optimisation against the frozen target."""

    needs = frozenset({"reference_nll"})
    protocols = {
        "ours": "-log p summed over the answer, mean over answers",
        "muse": "raw logits in the place of log p, mean over all entries of all positions (MUSE)",
        "wmdp": "-log p averaged over all answer tokens of the batch: one number per batch (WMDP code of SimNPO)",
    }
    protocol_needs = {"muse": frozenset({"reference"})}
    breaks = {"muse": frozenset({"shift", "padding"}), "wmdp": frozenset({"accumulation"})}

    beta: float = hyper(0.1, gt=0, meaning="the larger, the sooner the gradient fades", source="paper, section 5")

    def forget_loss(self, step: Step) -> Terms:
        policy, frozen = step.forget, step.reference.forget
        if self.protocol == "muse":
            return Terms(npo(-policy.full_logits, -frozen.full_logits, self.beta))
        if self.protocol == "wmdp":
            tokens = policy.mask.sum()
            nll, reference_nll = policy.token_nll.sum() / tokens, frozen.token_nll.sum() / tokens
            return Terms(npo(nll, reference_nll, self.beta).unsqueeze(0))
        return Terms(npo(policy.sequence_nll(), frozen.sequence_nll(), self.beta))


methods.preset("npo+gdr", of="npo", title="NPO+GDR", retain="nll")
methods.preset("npo+klr", of="npo", title="NPO+KLR", retain="kl")
