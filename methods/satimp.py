"""SatImp: gradient ascent weighted by saturation (how likely a token still is) and importance (how far from certain).

    L = E_t[ sg(p_t^beta1 (1 - p_t)^beta2) log p_t ]

(Yang et al., arXiv:2505.11953) with E_t the mean over the answer tokens, p_t the probability of token t; sg: no
gradient. beta2 = 0 is WGA.

Differences from the reference code: none in OpenUnlearning.
"""

from __future__ import annotations

import torch
from torch import Tensor

from unlearnbench.method import Method, Retain, Step, Terms, hyper, methods


def satimp(token_nll: Tensor, beta1: float, beta2: float) -> Tensor:
    """Per-token loss [B, L] from the answer tokens' -log p, nats."""
    nll = token_nll.detach()
    weight = (-beta1 * nll).exp() * (-torch.expm1(-nll)).pow(beta2)
    return -weight * token_nll


@methods.register("satimp", title="SatImp", family="ascent", paper="arXiv:2505.11953", version=1)
class SatImp(Method):
    """Gradient ascent with saturation and importance weights."""

    beta1: float = hyper(5.0, ge=0, meaning="power of the saturation p", source="OpenUnlearning")
    beta2: float = hyper(1.0, ge=0, meaning="power of the importance 1 - p", source="OpenUnlearning")
    forget_weight: float = hyper(0.1, ge=0, source="OpenUnlearning")
    retain: Retain = hyper("nll", source="OpenUnlearning")

    def forget_loss(self, step: Step) -> Terms:
        return Terms(satimp(step.forget.token_nll, self.beta1, self.beta2), step.forget.mask)
