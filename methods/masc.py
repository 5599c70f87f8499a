"""MASC, margin self-correction: push a forget token down only while it dominates the model's own alternatives to it.

For answer token y_t let S_t be the k most likely other tokens. The restricted margin compares the two sides:

    m_t = beta z(y_t) - log sum_{v in S_t} exp(beta z(v))

(arXiv:2606.02920) with z the policy's logits. A token violates when m_t > tau = log(rho / (1 - rho)): it holds more
than the share rho of the mass of S_t and y_t (at beta = 1).
The loss is a hinge that starts a buffer eta before the threshold, averaged over the active tokens A of the optimiser
step:

    L_forget = mean_{t in A} max(0, m_t - (tau - eta)) / eta
    L_retain = KL(reference || policy)        (`retain: kl`)

Where every margin is small the gradient vanishes, so the method ends itself: training stops at the first step at
which the violation rate of held-out forget rows is at most alpha (stop rule `violation`). The active tokens are the
answer's continuation after a cut at a ratio drawn per row and step from [lo, hi]; short answers count whole.

Differences from the reference code: cuts are drawn from (seed, row, step), not from the global random state; a
missing reference is an error, where that code silently takes the one best rival of the policy; the stop rule probes
rows held out of training (the paper's D_val), where the shipped script probes the first training rows
(`stop: {source: first}`).
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from pydantic import model_validator
from torch import Tensor

from unlearnbench.margins import (
    Form,
    Margin,
    buffered_hinge,
    continuation,
    drawn_unit,
    fixed_unit,
    hinge,
    sigmoid_hinge,
    spread,
    tau_of,
)
from unlearnbench.method import Method, PrepareContext, Retain, State, Step, Terms, View, hyper, methods


def masc(margins: Tensor, tau: float, eta: float, penalty: str = "buffered", softness: float = 1.0) -> Tensor:
    """Per-token MASC loss, of the shape of `margins`. `eta` acts with `buffered`, `softness` with `sigmoid`."""
    if penalty == "buffered":
        return buffered_hinge(margins, tau, eta)
    return hinge(margins, tau) if penalty == "hinge" else sigmoid_hinge(margins, tau, softness)


@methods.register("masc", title="MASC", family="margin", paper="arXiv:2606.02920", version=1)
class MASC(Method):
    """Margin self-correction with its online stop rule."""

    rho: float = hyper(0.7, gt=0, lt=1, meaning="share of the mass a token may hold", source="paper, TOFU")
    tau: float | None = hyper(None, meaning="the threshold itself, in the place of rho", source="null: from rho")
    eta: float = hyper(0.25, gt=0, meaning="buffer below the threshold, nats", source="paper, TOFU")
    beta: float = hyper(1.0, gt=0, meaning="inverse temperature of the margin", source="paper, TOFU")
    k: int = hyper(10, ge=1, meaning="how many alternatives", source="paper, TOFU")
    alternatives: Literal["own", "reference"] = hyper(
        "own", meaning="whose likeliest tokens", source="paper, TOFU; MUSE: reference"
    )
    within: float | None = hyper(
        None, ge=0, meaning="only those so near to the best, logits; null: all k", source="paper, TOFU; MUSE: 0.5"
    )
    form: Form = hyper("tempered", meaning="m_t as above, or z(y_t) - (1/beta) log sum (`smoothmax`)", source="paper")
    penalty: Literal["buffered", "hinge", "sigmoid"] = hyper(
        "buffered",
        meaning="the loss above, max(0, m - tau), or this times sigmoid((m - tau)/softness)",
        source="paper",
    )
    softness: float = hyper(1.0, gt=0, meaning="temperature of the `sigmoid` penalty", source="no published value")
    cut: tuple[float, float] | None = hyper(
        (0.2, 0.6), meaning="lo and hi, shares of the answer; null: all of it is active", source="paper, TOFU"
    )
    cuts: Literal["random", "fixed"] = hyper(
        "random", meaning="drawn anew each step, or fixed by the row's place", source="the shipped script"
    )
    min_prefix: int = hyper(32, ge=0, meaning="tokens before the cut at least", source="paper, TOFU")
    min_suffix: int = hyper(32, ge=1, meaning="tokens after the cut at least", source="paper, TOFU")
    forget_weight: float = hyper(0.1, ge=0, source="paper, Qwen2.5 scaling (lambda)")
    retain: Retain = hyper("kl", source="paper, the objective")
    stop: dict[str, Any] | None = hyper({"rule": "violation"}, source="paper: the violation rule is part of the method")

    @model_validator(mode="after")
    def _consistent(self) -> MASC:
        if self.tau is not None and self.rho != type(self).model_fields["rho"].default:
            raise ValueError("give either rho or tau: the threshold tau is log(rho / (1 - rho))")
        if self.penalty != "sigmoid":
            self._without_effect("without `penalty: sigmoid`", "softness")
        if self.cut is not None and self.cut[0] == self.cut[1]:
            self._without_effect("where `cut` is one ratio", "cuts")
        if self.cut is None:
            self._without_effect("with `cut: null`", "cuts", "min_prefix", "min_suffix")
        if self.cut is not None and not 0 <= self.cut[0] <= self.cut[1] <= 1:
            raise ValueError(f"cut must be two ratios with 0 <= lo <= hi <= 1, got {list(self.cut)}")
        return self

    @property
    def margin(self) -> Margin:
        """The margin with this method's settings."""
        return Margin(self.k, self.beta, self.alternatives, self.within, self.form)

    @property
    def threshold(self) -> float:
        """The margin above which a token violates."""
        return tau_of(self.rho) if self.tau is None else self.tau

    @property
    def requirements(self) -> frozenset[str]:
        needed = {"reference"} if self.alternatives == "reference" else set()
        return super().requirements | needed

    def prepare(self, context: PrepareContext) -> State:
        seed = int(torch.randint(2**31, (1,), generator=context.generator))
        numbers = {row.id: i for i, row in enumerate(context.forget)}
        rows = context.encoder.rows(context.forget).rows
        places = {row.row_id: (numbers[row.source], max(0, row.window - 1)) for row in rows}
        return State(cut_seed=seed, row_index=places)

    def active(self, step: Step) -> Tensor:
        """The answer tokens of the forget batch that take part in this step, bool [B, L]."""
        view = step.forget
        if self.cut is None:
            return view.mask
        if self.cut[0] == self.cut[1]:  # nothing to draw
            units = [0.0] * len(view.batch)
        elif self.cuts == "fixed":
            units = [fixed_unit(*step.state["row_index"][row_id]) for row_id in view.batch.row_ids]
        else:
            units = [drawn_unit(step.state["cut_seed"], row_id, step.number) for row_id in view.batch.row_ids]
        return continuation(view.mask, spread(units, self.cut), self.min_prefix, self.min_suffix)

    def margins(self, policy: View, reference: View | None) -> Tensor:
        """The restricted margins [B, L] of the policy on a batch."""
        frozen = reference.logits if reference is not None and self.alternatives == "reference" else None
        return self.margin(policy.logits, policy.targets, frozen)

    def forget_loss(self, step: Step) -> Terms:
        reference = step.reference.forget if self.alternatives == "reference" else None
        margins = self.margins(step.forget, reference)
        return Terms(masc(margins, self.threshold, self.eta, self.penalty, self.softness), self.active(step))


methods.preset(
    "masc@tofu",
    of="masc",
    title="MASC (TOFU settings)",
    forget_weight=0.05,
    retain="none",
    stop={"rule": "violation", "alpha": 0.475, "every": 2, "probe": 4, "confirm": 32},
)
methods.preset(
    "masc@muse-news",
    of="masc",
    title="MASC (MUSE News settings)",
    forget_weight=0.5,
    eta=0.5,
    alternatives="reference",
    k=2,
    within=0.5,
    beta=5.0,
    cut=(0.6, 0.6),
    min_suffix=128,
    stop={"rule": "violation", "alpha": 0.55, "every": 2, "probe": 4, "confirm": 64},
)
methods.preset(
    "masc@qwen-scaling",
    of="masc",
    title="MASC (Qwen2.5 scaling settings)",
    forget_weight=0.1,
    rho=0.5,
    eta=0.5,
    stop={"rule": "violation", "alpha": 0.2, "every": 2, "probe": 4, "confirm": 64},
)
