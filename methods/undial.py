"""UNDIAL: learn from the frozen target's own distribution with the forget token's logit lowered.

    L = E_t[ -sum_v q_t(v) log p_t(v) ]
    q_t = softmax(z_ref,t - beta e(y_t))

(Dong et al., arXiv:2402.10052) with E_t the mean over the answer tokens, p_t the policy, z_ref,t the reference's
logits; e(y_t) is 1 at the answer token and 0 elsewhere. The goal is fixed, so training cannot run away.

Differences from the reference code: OpenUnlearning averages over all positions, prompt and padding too, and where a
label is -100 it lowers the logit of token V - 100 (protocol `open-unlearning`).
"""

from __future__ import annotations

from torch import Tensor

from unlearnbench.errors import UserError
from unlearnbench.method import Method, Step, Terms, hyper, methods
from unlearnbench.text import IGNORE


def undial(logits: Tensor, reference_logits: Tensor, tokens: Tensor, beta: float) -> Tensor:
    """Cross entropy [...] from the lowered reference to the policy, from logits [..., V] and tokens [...]."""
    index = tokens.unsqueeze(-1)
    lowered = reference_logits.scatter_add(-1, index, reference_logits.new_full(index.shape, -beta))
    return -(lowered.softmax(-1) * logits.log_softmax(-1)).sum(-1)


@methods.register("undial", title="UNDIAL", family="distillation", paper="arXiv:2402.10052", version=1)
class UNDIAL(Method):
    """Self-distillation with adjusted logits."""

    needs = frozenset({"reference"})
    protocols = {
        "ours": "mean over the answer tokens",
        "open-unlearning": "mean over all positions; a label of -100 stands for token V - 100 (OpenUnlearning)",
    }
    breaks = {"open-unlearning": frozenset({"padding"})}

    beta: float = hyper(10.0, gt=0, meaning="by how much the answer token's logit is lowered", source="OpenUnlearning")

    def forget_loss(self, step: Step) -> Terms:
        policy, frozen = step.forget, step.reference.forget
        if self.protocol == "ours":
            return Terms(undial(policy.logits, frozen.logits, policy.targets, self.beta), policy.mask)
        labels = policy.batch.labels[:, 1:]
        vocabulary = policy.full_logits.shape[-1]
        if vocabulary < -IGNORE and bool((labels == IGNORE).any()):
            raise UserError(
                f"UNDIAL: the protocol 'open-unlearning' needs a vocabulary of 100 or more, not {vocabulary}."
            )
        tokens = labels.where(labels >= 0, labels + vocabulary)
        return Terms(undial(policy.full_logits[:, :-1], frozen.full_logits[:, :-1], tokens, self.beta))
