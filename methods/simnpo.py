"""SimNPO: NPO with the answer's mean -log p and no reference model.

    L = -(2 / beta) E[ log sigmoid(beta (nll(y|x) / |y| - delta)) ]

(Fan et al., arXiv:2410.07163) with nll = -log p summed over the |y| answer tokens, in nats, and E the mean over
answers. The paper writes the margin outside: gamma = beta delta. Dividing
by the length takes away NPO's bias towards long answers; without the reference, answers already forgotten weigh
little.

Differences from the reference code: the length. OpenUnlearning and the authors' TOFU code count the labels before the
shift, one too many where the first token of a text is labelled. The authors' MUSE code puts raw logits, entry by
entry, in the place of the mean -log p; their WMDP code takes one token mean per batch and has no margin.
"""

from __future__ import annotations

from pydantic import model_validator
from torch import Tensor
from torch.nn.functional import logsigmoid

from unlearnbench.method import Method, Retain, Step, Terms, hyper, methods


def simnpo(mean_nll: Tensor, beta: float, delta: float) -> Tensor:
    """Per-answer SimNPO loss (B,) from the answers' -log p per token (B,), nats."""
    return -2 / beta * logsigmoid(beta * (mean_nll - delta))


@methods.register("simnpo", title="SimNPO", family="preference", paper="arXiv:2410.07163", version=1)
class SimNPO(Method):
    """Length-normalised negative preference optimisation without a reference."""

    protocols = {
        "ours": "-log p over the number of answer tokens, mean over answers",
        "open-unlearning": "the number of labels before the shift (OpenUnlearning, the authors' TOFU code)",
        "muse": "raw logits in the place of log p, mean over all entries of all positions (the authors' MUSE code)",
        "wmdp": "-log p averaged over all answer tokens of the batch, no margin (the authors' WMDP code)",
    }
    breaks = {"muse": frozenset({"shift", "padding"}), "wmdp": frozenset({"accumulation"})}

    beta: float = hyper(4.5, gt=0, meaning="the larger, the sooner the gradient fades", source="paper, TOFU forget10")
    delta: float = hyper(
        0.0, ge=0, meaning="margin, nats per token that an answer must lose", source="paper: gamma = beta delta = 0"
    )
    forget_weight: float = hyper(0.125, ge=0, source="paper, TOFU forget10")
    retain: Retain = hyper("nll", source="paper")

    @model_validator(mode="after")
    def _margin_is_used(self) -> SimNPO:
        if self.protocol == "wmdp":
            self._without_effect("with `protocol: wmdp`", "delta")
        return self

    def forget_loss(self, step: Step) -> Terms:
        view = step.forget
        if self.protocol == "muse":
            mean_nll = -view.full_logits
        elif self.protocol == "wmdp":
            mean_nll = (view.token_nll.sum() / view.mask.sum()).unsqueeze(0)
        else:
            lengths = view.batch.label_counts if self.protocol == "open-unlearning" else view.answer_lengths
            mean_nll = view.sequence_nll() / lengths.clamp(min=1)
        return Terms(simnpo(mean_nll, self.beta, self.delta))
