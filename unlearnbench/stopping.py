"""Stop rules: they look at numbers and say whether unlearning may stop. They run nothing; `probing` gets the numbers.

A rule is a part of a method's spec, `stop: {rule: violation, alpha: 0.475}`, and any method with a training loop can
take any rule:

| rule | stops when |
|---|---|
| `violation` | the violation rate of the forget probe (arXiv:2606.02920) is at most `alpha` |
| `forget-prob` | the length-normalised probability of the forget answers is at most `below` |
| `retrained-gap` | that probability is within `gap` of the retrained model's (an oracle: marked, never ranked) |
| `budget` | `steps` optimiser steps are done (null: never before the budget of the training settings) |

All rules look in two stages, `probe` rows first and, when these say stop, `confirm` rows; all take `patience` (how
often in a row the rule must hold beyond the first time) and `retain_kl_below` (a condition on KL(reference || policy)
on retain rows).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from unlearnbench.errors import UserError
from unlearnbench.registry import Registry

stop_rules: Registry = Registry("stop_rule", package="unlearnbench.stopping")

#: The numbers that `probing` can supply; a rule names in `reads` the ones it looks at.
READINGS = {
    "violation": "violation_rate and what belongs to it, of the forget probe",
    "forget_prob": "mean over the forget probe of exp(-mean answer -log p)",
    "retrained_prob": "the same of the retrained model, on the same rows",
}


def hoeffding_ucb(mean: float, n: int, delta: float, look: int) -> tuple[float, float]:
    """(upper confidence bound of a mean of n numbers in [0, 1], its delta_j) at the `look`-th look, from 0.

    The error budget is spread over looks, delta_j = 6 delta / (pi^2 (look + 1)^2), so that all bounds hold together
    with probability 1 - delta. Without numbers the bound is infinite.
    """
    if n <= 0:
        return math.inf, math.nan
    delta_j = min(max(6 * delta / (math.pi**2 * (look + 1) ** 2), 1e-12), 1 - 1e-12)
    return mean + math.sqrt(math.log(1 / delta_j) / (2 * n)), delta_j


class StopRule(BaseModel):
    """What all rules share. A rule of one's own overrides `holds`, and names what it looks at in `reads`.

    `confirm: null` is 32 rows, but at most a third of the forget set when they are held out of training.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    registered_name: ClassVar[str] = ""
    version: ClassVar[int] = 1
    oracle: ClassVar[bool] = False  #: looks at the retrained model or at test metrics: marked, never ranked
    reads: ClassVar[frozenset[str]] = frozenset()

    every: int = Field(2, ge=1, description="optimiser steps between looks")
    probe: int = Field(4, ge=1, description="forget rows of the first stage")
    confirm: int | None = Field(
        None,
        ge=1,
        description="rows of the second stage, the first's among them; null: 32, but of the held-out kind a third of "
        "the forget set at most",
    )
    source: Literal["held-out", "first"] = Field(
        "held-out", description="rows kept out of training, or the first training rows"
    )
    patience: int = Field(0, ge=0, description="further looks in a row at which the rule must hold")
    retain_kl_below: float | None = Field(
        None, gt=0, description="and KL(reference || policy) on retain rows is at most this, nats per answer token"
    )
    retain_probe: int = Field(32, ge=1, description="retain rows of that condition")

    def model_post_init(self, context: Any, /) -> None:
        if self.confirm is not None and self.confirm < self.probe != type(self).model_fields["probe"].default:
            raise UserError(
                f"The stop rule '{self.registered_name}' has confirm {self.confirm} and probe {self.probe}: the second "
                "stage looks at the rows of the first and more."
            )

    @property
    def needs(self) -> frozenset[str]:
        """What the runner must supply for the rule: see `unlearnbench.method.NEEDS`."""
        return frozenset({"retain", "reference"}) if self.retain_kl_below is not None else frozenset()

    def confirm_rows(self, forget_rows: int) -> int:
        """How many rows the second stage looks at, of a forget set of this size. `UserError` when none remain."""
        if not self.reads:
            return 0
        held_out = self.source == "held-out"
        count = self.confirm
        if count is None:
            count = min(32, max(1, forget_rows // 3) if held_out else forget_rows)
        if held_out and count >= forget_rows:
            raise UserError(
                f"The stop rule '{self.registered_name}' holds {count} rows out (`confirm`) of a forget set of "
                f"{forget_rows}: nothing is left to train on. Lower `confirm`, or take `source: first`."
            )
        return count

    def holds(self, values: Mapping[str, float]) -> bool:
        """Whether these numbers allow to stop. Called with those of the first stage, then with those of the second."""
        raise NotImplementedError

    def reason(self, values: Mapping[str, float]) -> str:
        """One line for the record."""
        return self.registered_name


@stop_rules.register("violation", title="Violation rate of a held-out forget probe (MASC)", version=1)
class Violation(StopRule):
    """Stop when the mean share of active tokens whose restricted margin exceeds tau is at most alpha.

        V = mean over probe rows of (active tokens with m_t > tau) / (active tokens) <= alpha

    with m_t and tau as in MASC. `alpha: holdout` takes the target's own violation rate on rows it never saw, which
    a fixed value does not transfer to. Margin settings left out are those of the method, where it has them, else
    MASC's published ones for TOFU. `hoeffding_delta`: the second stage compares an upper confidence bound with
    alpha instead of the mean.
    """

    reads = frozenset({"violation"})

    alpha: Annotated[float, Field(strict=True)] | Literal["holdout"] = Field(
        0.475, description="tolerance in [0, 1], or the target's own rate"
    )
    hoeffding_delta: float | None = Field(
        None, gt=0, lt=1, description="the second stage compares an upper bound that holds with probability 1 - delta"
    )
    rho: float | None = Field(None, gt=0, lt=1, description="of the margin, as in MASC; null: the method's")
    tau: float | None = Field(None, description="likewise")
    k: int | None = Field(None, ge=1, description="likewise")
    beta: float | None = Field(None, gt=0, description="likewise")
    alternatives: Literal["own", "reference"] | None = Field(None, description="likewise")
    within: float | None = Field(None, ge=0, description="likewise")
    form: Literal["tempered", "smoothmax"] | None = Field(None, description="likewise")
    cut: tuple[float, float] | Literal["method", "none"] = Field("method", description="likewise")
    min_prefix: int | None = Field(None, ge=0, description="likewise")
    min_suffix: int | None = Field(None, ge=1, description="likewise")
    salt: int = Field(0, description="another number, another fixed cut per row")

    def model_post_init(self, context: Any, /) -> None:
        super().model_post_init(context)
        if isinstance(self.alpha, float) and not 0 <= self.alpha <= 1:
            raise UserError(f"The stop rule 'violation' has alpha {self.alpha}; it must be in [0, 1], or `holdout`.")
        if self.rho is not None and self.tau is not None:
            raise UserError("The stop rule 'violation' takes either rho or tau, not both.")
        if isinstance(self.cut, tuple) and not 0 <= self.cut[0] <= self.cut[1] <= 1:
            raise UserError(
                f"The stop rule 'violation' has cut {list(self.cut)}; it must be two rising shares in [0, 1]."
            )

    @property
    def needs(self) -> frozenset[str]:
        extra = {"holdout"} if self.alpha == "holdout" else set()
        return super().needs | extra | ({"reference"} if self.alternatives == "reference" else set())

    def holds(self, values: Mapping[str, float]) -> bool:
        return values.get("ucb", values["violation_rate"]) <= values["alpha"]

    def reason(self, values: Mapping[str, float]) -> str:
        bound = f" (upper bound {values['ucb']:.3f})" if "ucb" in values else ""
        return f"violation rate {values['violation_rate']:.3f}{bound} <= {values['alpha']:.3f}"


@stop_rules.register("forget-prob", title="Probability of the forget answers", version=1)
class ForgetProbability(StopRule):
    """Stop when the mean length-normalised probability of the probe's answers is at most `below`.

        P = mean over probe rows of exp(mean_t log p(y_t | x, y_<t)) <= below

    over all answer tokens t, EOS included.
    """

    reads = frozenset({"forget_prob"})

    below: float = Field(0.1, gt=0, lt=1, description="probability at which the answers count as forgotten")

    def holds(self, values: Mapping[str, float]) -> bool:
        return values["forget_prob"] <= self.below

    def reason(self, values: Mapping[str, float]) -> str:
        return f"forget probability {values['forget_prob']:.3f} <= {self.below}"


@stop_rules.register("retrained-gap", title="Gap to the retrained model (oracle)", version=1)
class RetrainedGap(StopRule):
    """Stop when the probe's mean probability is at most `gap` above the retrained model's on the same rows.

        P - P_retrained <= gap

    with P as in `forget-prob`. No such model exists outside a benchmark: an oracle.
    """

    oracle = True
    reads = frozenset({"forget_prob", "retrained_prob"})

    gap: float = Field(0.05, ge=0, lt=1, description="distance in probability")

    @property
    def needs(self) -> frozenset[str]:
        return super().needs | {"retrained"}

    def holds(self, values: Mapping[str, float]) -> bool:
        return values["forget_prob"] - values["retrained_prob"] <= self.gap

    def reason(self, values: Mapping[str, float]) -> str:
        return (
            f"forget probability {values['forget_prob']:.3f}, retrained {values['retrained_prob']:.3f}, gap {self.gap}"
        )


@stop_rules.register("budget", title="A number of optimiser steps", version=1)
class Budget(StopRule):
    """Stop after `steps` optimiser steps; null: the budget of the training settings, so no online stop at all."""

    every: int = Field(1, ge=1, description="optimiser steps between looks")
    steps: int | None = Field(None, ge=1, description="optimiser steps; null: those of the training settings")

    def model_post_init(self, context: Any, /) -> None:
        super().model_post_init(context)
        idle = sorted(name for name, field in type(self).model_fields.items() if getattr(self, name) != field.default)
        if self.steps is None and idle:
            raise UserError(
                f"The stop rule 'budget' never looks without `steps`: `{'`, `'.join(idle)}` would do nothing."
            )

    def holds(self, values: Mapping[str, float]) -> bool:
        return self.steps is not None and values["step"] >= self.steps

    def reason(self, values: Mapping[str, float]) -> str:
        return f"{self.steps} steps"


def make_rule(spec: Mapping[str, Any]) -> StopRule:
    """The rule of a spec like `{rule: violation, alpha: 0.475}`. Raises `UserError`, or pydantic's error."""
    values = dict(spec)
    name = values.pop("rule", None)
    if not isinstance(name, str):
        raise UserError(f"A stop rule needs a name: `stop: {{rule: …}}`. Allowed: {', '.join(stop_rules.names())}.")
    rule: StopRule = stop_rules.get(name).build(**values)
    return rule
