"""Truth Ratio: how much likelier wrong answers are than the right one in other words (TOFU section 3.2).

With P the length-normalised probability of an answer, P(wrong) the mean over the row's perturbed answers, and the
paraphrased answer as the right one (the plain answer where a row has no paraphrase):

    log R = log P(wrong) - log P(right)

Geometric mean of the wrong ones: mean of log P. Arithmetic: log of the mean of P. All in log space, so that a ruined
model's R neither overflows nor meets an epsilon.

Three forms, never mixed in one column: *raw* log R (unclipped, in nats), *symmetric* min(R, 1/R) on forget, where 1
means that right and wrong are alike, and *clipped* max(0, 1 - R) elsewhere, where 1 means that only the right one is
likely.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field
from scipy.special import expit, logsumexp

from unlearnbench.benchmarks.base import Row
from unlearnbench.metric import Context, Request, RowMetric, Score, metrics

from .probability import mean_logp

EPSILON = 1e-10  #: what OpenUnlearning adds to denominators


def log_ratio(right: float, wrong: Sequence[float], mean: str = "geometric") -> float | None:
    """log R from mean log-probabilities per token (nats); None without wrong answers or when nothing is finite."""
    if not wrong:
        return None
    wrong_mean = float(np.mean(wrong)) if mean == "geometric" else float(logsumexp(wrong) - np.log(len(wrong)))
    ratio = wrong_mean - right
    return ratio if np.isfinite(ratio) else None


def symmetric(log_r: float) -> float:
    """min(R, 1/R)"""
    return float(np.exp(-abs(log_r)))


def clipped(log_r: float) -> float:
    """max(0, 1 - R)"""
    return 0.0 if log_r >= 0 else float(-np.expm1(log_r))


def preference(log_r: float) -> float:
    """1 / (1 + R)"""
    return float(expit(-log_r))


def raw(log_r: float) -> float:
    """log R"""
    return log_r


FORMS = {"symmetric": symmetric, "clipped": clipped, "raw": raw, "preference": preference}


def with_epsilon(right: float, wrong: Sequence[float], form: str) -> float | None:
    """OpenUnlearning's forms of R = exp(mean log P(wrong)) / (P(right) + 1e-10)."""
    p_right, p_wrong = np.exp(right), np.exp(np.mean(wrong))
    r = p_wrong / (p_right + EPSILON)
    if np.isnan(r):
        return None
    if form == "raw":
        return float(np.log(r)) if r > 0 else None
    if form == "symmetric":
        return float(min(r, 1 / (r + EPSILON)))
    return float(max(0.0, 1 - r) if form == "clipped" else p_right / (p_right + p_wrong + EPSILON))


@metrics.register(
    "forget_truth_ratio",
    title="Truth Ratio on forget, symmetric: min(R, 1/R)",
    direction="higher",
    target="retrained",
    range=(0, 1),
    side="forget",
    unit="ratio",
    source="TOFU, arXiv:2401.06121, section 3.2",
    version=2,
)
class TruthRatio(RowMetric):
    """Mean over rows of min(R, 1/R) (symmetric), max(0, 1 - R) (clipped), log R (raw) or 1 / (1 + R) (preference).

    The last, P(right) / (P(right) + P(wrong)), is OpenUnlearning's `prob_mean`.
    """

    protocols: ClassVar = {
        "ours": "geometric mean of the wrong answers, log space",
        "tofu": "the same (locuslab/tofu aggregate_eval_stat.py)",
        "tofu-arithmetic": "arithmetic mean of the wrong answers (locuslab/tofu utils.py)",
        "open-unlearning": "geometric mean, 1e-10 in the denominators (locuslab/open-unlearning memorization.py)",
    }
    form: Literal["symmetric", "clipped", "raw", "preference"] = Field("symmetric", description="what is made of R")

    def right(self, row: Row) -> str:
        """The paraphrase, or else the answer; OpenUnlearning takes the answer for real authors and world facts."""
        plain = self.protocol == "open-unlearning" and self.split in ("real_authors", "world_facts")
        return row.answer if plain else row.paraphrased_answer or row.answer

    def asks(self, row: Row) -> Iterable[Request]:
        for answer in (self.right(row), *row.perturbed):
            yield Score(row.prompt, answer)

    def sample(self, row: Row, context: Context) -> float | None:
        right = mean_logp(context.score(row.prompt, self.right(row)))
        wrong = [mean_logp(context.score(row.prompt, answer)) for answer in row.perturbed]
        return self.value_of(right, [logp for logp in wrong if logp is not None])

    def value_of(self, right: float | None, wrong: Sequence[float]) -> float | None:
        """The row's number from the mean log-probabilities per token of the right and the wrong answers."""
        if right is None or not wrong:
            return None
        if self.protocol == "open-unlearning":
            return with_epsilon(right, wrong, self.form)
        log_r = log_ratio(right, wrong, "arithmetic" if self.protocol == "tofu-arithmetic" else "geometric")
        if log_r is None:
            return None
        return FORMS[self.form](log_r)


for _split, _title in {"retain": "retain", "real_authors": "real authors", "world_facts": "world facts"}.items():
    metrics.preset(
        f"{_split}_truth_ratio",
        of="forget_truth_ratio",
        title=f"Truth Ratio on {_title}, clipped: max(0, 1 - R)",
        meta={"direction": "higher", "target": None, "side": "utility"},
        split=_split,
        form="clipped",
    )
metrics.preset(
    "forget_log_truth_ratio",
    of="forget_truth_ratio",
    title="Truth Ratio on forget, raw: log R",
    meta={"direction": "higher", "range": None, "side": "descriptive", "unit": "nats"},
    form="raw",
)
metrics.preset(
    "forget_truth_preference",
    of="forget_truth_ratio",
    title="Truth preference on forget: P(right) / (P(right) + P(wrong))",
    meta={"direction": "lower", "unit": "share"},
    form="preference",
)
