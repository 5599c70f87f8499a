"""Forget Quality: can the truth ratios of the unlearned and of the retrained model be told apart? (TOFU section 3.2)

The p-value of the two-sample Kolmogorov-Smirnov test on R of both models over the forget rows. The score is log10 p; p,
the KS distance D, n and the floor (log10 p at D = 1, the least this n can give) stand in the details. The exact p is
2 / C(n + m, n) at D = 1, about 1e-239 for n = m = 400, and is computed with whole numbers where floats underflow.

Descriptive: the test takes the rows as independent, which rows about one author are not.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from fractions import Fraction
from typing import ClassVar, Literal, NamedTuple

import numpy as np
from pydantic import Field

from unlearnbench.metric import Context, Metric, Value, metrics

UNDERFLOW = -290.0  #: below this log10 p the float p of scipy is not trusted


class KS(NamedTuple):
    """log10 of the two-sided p, the distance D in [0, 1], and the least log10 p that these sizes can give."""

    log10_p: float
    distance: float
    floor: float


def ks_test(a: Sequence[float], b: Sequence[float]) -> KS:
    """Two-sample Kolmogorov-Smirnov test, exact up to 10,000 values a side, as scipy's default."""
    from scipy import stats  # takes a second to import: only where it is needed

    n, m = len(a), len(b)
    floor = _log10_floor(n, m)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        found = stats.ks_2samp(a, b)
    distance, p = float(found.statistic), float(found.pvalue)
    log10_p = math.log10(p) if p > 0 else -math.inf
    if log10_p < UNDERFLOW:
        log10_p = _log10_exact(a, b) if n * m <= 4_000_000 else _log10_limit(distance, n, m)
    return KS(max(min(log10_p, 0.0), floor), distance, floor)


def _log10_floor(n: int, m: int) -> float:
    """log10 of 2 / C(n + m, n)"""
    log_choose = math.lgamma(n + m + 1) - math.lgamma(n + 1) - math.lgamma(m + 1)
    return (math.log(2) - log_choose) / math.log(10)


def _log10_exact(a: Sequence[float], b: Sequence[float]) -> float:
    """The share of the C(n+m, n) orderings whose distance is at least the observed one, counted with whole numbers."""
    n, m = len(a), len(b)
    pooled = np.concatenate([np.sort(a), np.sort(b)])
    at_a, at_b = (np.searchsorted(np.sort(x), pooled, side="right") for x in (a, b))
    gap = max(abs(int(i) * m - int(j) * n) for i, j in zip(at_a, at_b, strict=True))  # D * n * m
    inside = [0] * (m + 1)  # lattice paths to (i, j) that stay strictly inside the band
    for i in range(n + 1):
        for j in range(m + 1):
            if abs(i * m - j * n) >= gap:
                inside[j] = 0
            elif i == 0 and j == 0:
                inside[j] = 1
            elif j > 0:
                inside[j] += inside[j - 1]
    outside = Fraction(math.comb(n + m, n) - inside[m], math.comb(n + m, n))
    return _log10(outside.numerator) - _log10(outside.denominator)


def _log10(number: int) -> float:
    """log10 of a whole number of any size."""
    shift = max(0, number.bit_length() - 1000)
    return math.log10(number >> shift) + shift * math.log10(2) if number else -math.inf


def _log10_limit(distance: float, n: int, m: int) -> float:
    """The first term of the limit distribution, 2 exp(-2 D^2 nm / (n + m)), for sizes too big to count."""
    return (math.log(2) - 2 * distance**2 * n * m / (n + m)) / math.log(10)


@metrics.register(
    "forget_quality",
    title="Forget Quality (log10 p)",
    direction="higher",
    range=(None, 0),
    side="descriptive",
    unit="log10 p",
    source="TOFU, arXiv:2401.06121, section 3.2",
)
class ForgetQuality(Metric):
    """The KS test's p between the truth ratios R_i of this model and S_i of the retrained one: log10 p, or p itself.

        D = max over r of |share of R_i <= r  -  share of S_i <= r|
        p = probability that two samples of these sizes from one distribution are at least D apart

    Null without the retrained run, and when that scored other rows.
    """

    protocols: ClassVar = {
        "ours": "on log R (the KS test sees only the order); null when the retrained run scored other rows",
        "tofu": "the same, whatever rows the retrained run scored (locuslab/tofu aggregate_eval_stat.py)",
        "open-unlearning": "R has 1e-10 in its denominator; whatever the rows (locuslab/open-unlearning privacy.py)",
    }

    form: Literal["log10", "p"] = Field("log10", description="log10 of p, or p")

    @property
    def depends(self) -> tuple[str, ...]:
        return self.under("forget_log_truth_ratio")

    def compute(self, context: Context) -> Value:
        here, there = context.value(self.depends[0]), context.retrained(self.depends[0])
        for value in (here, there):
            if value.score is None:
                return Value(None, here.per_sample, reason=value.reason)
        if self.protocol == "ours" and set(here.per_sample) != set(there.per_sample):
            return Value(None, here.per_sample, reason="the retrained run was scored on other forget rows")
        a, b = ([v for v in value.per_sample.values() if v is not None] for value in (here, there))
        found = ks_test(a, b)
        return Value(
            found.log10_p if self.form == "log10" else 10**found.log10_p,
            here.per_sample,
            details={
                "p": 10**found.log10_p,
                "ks": found.distance,
                "n": len(a),
                "n_retrained": len(b),
                "floor": found.floor,
                "at_floor": int(found.log10_p <= found.floor + 1e-9),
            },
        )


metrics.preset(
    "forget_quality_p",
    of="forget_quality",
    title="Forget Quality (p)",
    meta={"range": (0, 1), "unit": "p"},
    form="p",
)
