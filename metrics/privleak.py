"""The membership AUC against that of the retrained model: its gap, MUSE's PrivLeak, and the same with the other sign.

With A the AUC that is 1 when the forget rows look like members, and A_r that of the retrained model:

    gap       A - A_r
    PrivLeak  100 ((1 - A) - (1 - A_r)) / (1 - A_r)    MUSE's sign: below 0 under-unlearned, above 0 over-unlearned
    rel_diff  100 (A - A_r) / A_r                      the other sign and denominator: above 0 under-unlearned

Null when the denominator is below .01: a reference AUC of 1 would give billions. OpenUnlearning adds 1e-10 to the
denominator instead, and takes a reference of .5 when there is none; `privleak_half` does the latter, by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field

from unlearnbench.metric import Context, Metric, Value, metrics

FLOOR = 0.01  #: the least denominator
HALF = 0.5  #: the reference AUC of `privleak_half`


def privleak(auc: float, reference: float, epsilon: float | None = None) -> float | None:
    """100 ((1 - auc) - (1 - reference)) / (1 - reference); None below the floor, unless `epsilon` is added instead."""
    return _relative(1 - auc, 1 - reference, epsilon)


def rel_diff(auc: float, reference: float, epsilon: float | None = None) -> float | None:
    """100 (auc - reference) / reference; None below the floor, unless `epsilon` is added instead."""
    return _relative(auc, reference, epsilon)


def _relative(value: float, reference: float, epsilon: float | None) -> float | None:
    if epsilon is not None:
        return 100 * (value - reference) / (reference + epsilon)
    return 100 * (value - reference) / reference if reference >= FLOOR else None


@metrics.register(
    "mink_auc_gap",
    title="Min-K% membership AUC minus that of the retrained model",
    direction="lower",
    target="retrained",
    range=(-1, 1),
    side="privacy",
    unit="AUC",
    source="PrivLeak: MUSE, arXiv:2407.06460; rel_diff: OpenUnlearning, arXiv:2506.12618; the gap is ours",
)
class AgainstRetrained(Metric):
    """`gap`, `privleak` or `rel_diff` of a membership AUC; needs the retrained run unless `reference` is given."""

    protocols: ClassVar[Mapping[str, str]] = {
        "ours": "null when the denominator is below .01",
        "open-unlearning": "1e-10 added to the denominator (locuslab/open-unlearning privacy.py)",
        "muse": "nothing added, whatever the denominator (jaechan-repo/muse_bench)",
    }
    metric: str = Field("mink_auc", description="the membership AUC")
    form: Literal["gap", "privleak", "rel_diff"] = Field("gap", description="which of the three")
    reference: float | None = Field(None, description="an AUC in the place of the retrained model's")

    @property
    def depends(self) -> tuple[str, ...]:
        return self.under(self.metric)

    def compute(self, context: Context) -> Value:
        here, there = context.value(self.depends[0]), context.retrained(self.depends[0])
        reference = there.score if self.reference is None else self.reference
        if here.score is None or reference is None:
            return Value(None, reason=here.reason or there.reason)
        details = {"auc": here.score, "reference_auc": reference, "n": here.n}
        if self.form == "gap":
            return Value(here.score - reference, details=details)
        formula = privleak if self.form == "privleak" else rel_diff
        number = formula(here.score, reference, {"open-unlearning": 1e-10, "muse": 0.0}.get(self.protocol))
        if number is None:
            return Value(
                None, reason=f"the reference AUC {reference:.3g} leaves a denominator below {FLOOR}", details=details
            )
        return Value(number, details=details)


_META = {"range": None, "unit": "%"}
metrics.preset(
    "privleak",
    of="mink_auc_gap",
    title="PrivLeak (MUSE's sign)",
    meta={**_META, "direction": "higher"},
    form="privleak",
)
metrics.preset(
    "privleak_half",
    of="mink_auc_gap",
    title="PrivLeak against an AUC of one half",
    meta={**_META, "direction": "higher", "side": "descriptive"},
    form="privleak",
    reference=HALF,
)
metrics.preset("mink_rel_diff", of="mink_auc_gap", title="Relative Min-K% AUC", meta=_META, form="rel_diff")
