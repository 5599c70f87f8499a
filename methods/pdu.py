"""PDU: flatten the logits on forget text subject to a bound on the retain loss, with a dual variable as its weight.

    min_theta  L_forget  subject to  L_retain <= epsilon        L_forget = E_t[ (max_v z_t(v) - mean_v z_t(v))^2 ]
    primal     theta:   a step down L_forget + lambda (L_retain - epsilon)
    dual       lambda <- max(0, lambda + dual_step (L_retain - epsilon))

(Entesari et al., arXiv:2506.05314) with E_t the mean over the positions that predict the answer tokens, z_t the logits
there, lambda = `retain_weight` at the start. epsilon: null takes (1 + tolerance) times the target's own loss on at most
256 retain rows, as the paper proposes. The retain loss in the curve is L_retain - epsilon: above 0, the bound is
broken.

Differences from the reference code: OpenUnlearning takes the positions *of* the answer tokens, not those that predict
them (protocol `open-unlearning`), and can hold the dual variable for some epochs (here `dual_warmup` steps).
"""

from __future__ import annotations

import torch
from pydantic import model_validator
from torch import Tensor

from unlearnbench.method import Method, PrepareContext, Retain, State, Step, Terms, hyper, methods
from unlearnbench.reference import token_nll
from unlearnbench.text import IGNORE

ROWS = 256  #: retain rows on which the target's own retain loss is measured


def flatness(logits: Tensor) -> Tensor:
    """(max - mean)^2 of logits [..., V], a shape [...]."""
    return (logits.amax(-1) - logits.mean(-1)).square()


@methods.register("pdu", title="PDU", family="representation", paper="arXiv:2506.05314", version=1)
class PDU(Method):
    """Primal-dual unlearning with a logit-flattening loss."""

    protocols = {
        "ours": "at the positions that predict the answer tokens",
        "open-unlearning": "at the positions of the answer tokens (OpenUnlearning)",
    }

    epsilon: float | None = hyper(
        None, ge=0, meaning="bound on the retain loss", source="paper: (1 + tolerance) times the target's"
    )
    tolerance: float = hyper(0.1, ge=0, meaning="how much of its retain loss the model may lose", source="our choice")
    primal_dual: bool = hyper(True, meaning="whether lambda moves", source="paper")
    dual_step: float = hyper(1.0, gt=0, meaning="step size of lambda", source="OpenUnlearning")
    dual_warmup: int = hyper(0, ge=0, meaning="steps before lambda moves", source="no warm-up")
    retain: Retain = hyper("nll", source="paper")

    @model_validator(mode="after")
    def _constrained(self) -> PDU:
        if self.retain == "none":
            raise ValueError("pdu is a constraint on the retain loss: `retain` cannot be none")
        if self.epsilon is None and self.retain != "nll":
            raise ValueError(f"epsilon must be given with `retain: {self.retain}`: the target's own loss is 0")
        if not self.primal_dual:
            self._without_effect("with `primal_dual: false`", "dual_step", "dual_warmup")
        if self.epsilon is not None:
            self._without_effect("with an `epsilon`", "tolerance")
        return self

    @property
    def uses_retain(self) -> bool:
        return True  # lambda may start at 0

    def prepare(self, context: PrepareContext) -> State:
        epsilon = self.epsilon if self.epsilon is not None else (1 + self.tolerance) * _target_loss(context)
        return State(dual=self.retain_weight, epsilon=epsilon, steps=0)

    def forget_loss(self, step: Step) -> Terms:
        view = step.forget
        if self.protocol == "open-unlearning":
            return Terms(flatness(view.full_logits), view.batch.labels != IGNORE)
        return Terms(flatness(view.logits), view.mask)

    def retain_loss(self, step: Step) -> Terms:
        terms = super().retain_loss(step)
        return Terms(terms.values - step.state["epsilon"], terms.weights)

    def weights(self, state: State) -> tuple[float, float]:
        return self.forget_weight, state["dual"]

    def after_step(self, state: State, forget_loss: float, retain_loss: float | None) -> None:
        state["steps"] += 1
        if self.primal_dual and retain_loss is not None and state["steps"] > self.dual_warmup:
            state["dual"] = max(0.0, state["dual"] + self.dual_step * retain_loss)


def _target_loss(context: PrepareContext) -> float:
    """The target's mean answer -log p on up to `ROWS` retain rows."""
    order = torch.randperm(len(context.retain), generator=context.generator)[:ROWS].tolist()
    rows = context.encoder.rows(context.retain[i] for i in order).rows
    values = token_nll(context.lm, rows, context.encoder.pad_id).values()
    return float(torch.cat(list(values)).double().mean())
