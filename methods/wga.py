"""WGA: gradient ascent whose tokens are weighted by their own probability, so that forgotten tokens stop counting.

    L = E_t[ sg(p_t^beta) log p_t ]

(Wang et al., arXiv:2502.19301) with E_t the mean over the answer tokens, p_t the probability of token t; sg: no
gradient. beta = 0 is gradient ascent.

Differences from the reference code: none in OpenUnlearning.
"""

from __future__ import annotations

from torch import Tensor

from unlearnbench.method import Method, Retain, Step, Terms, hyper, methods


def wga(token_nll: Tensor, beta: float) -> Tensor:
    """Per-token loss [B, L] from the answer tokens' -log p, nats."""
    return -(-beta * token_nll.detach()).exp() * token_nll


@methods.register("wga", title="WGA", family="ascent", paper="arXiv:2502.19301", version=1)
class WGA(Method):
    """Weighted gradient ascent."""

    beta: float = hyper(1.0, ge=0, meaning="power of the weight p", source="OpenUnlearning")
    retain: Retain = hyper("nll", source="OpenUnlearning")

    def forget_loss(self, step: Step) -> Terms:
        return Terms(wga(step.forget.token_nll, self.beta), step.forget.mask)
