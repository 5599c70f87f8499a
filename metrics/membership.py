"""Membership inference: can forget rows be told from rows that were never trained on?

Each attack gives a row a score that is higher the more it looks like training data. The number is

    AUC = P(score(forget) > score(holdout)) + P(equal) / 2

1 means that the forget rows look like members, 0.5 that they look like the holdout rows, near 0 that they were pushed
below what a model never trained on them would say. The retrained model's AUC need not be .5 either, so the gap to it is
a metric of its own (`mink_auc_gap`). TPR is the share of forget rows above the score that at most 1 % of the holdout
rows exceed.

Differences between code bases. OpenUnlearning leaves the last token out of Min-K and Min-K++, floors the variance at
1e-6 and gives a row without tokens the score 0, the extreme of the scale; ours leaves such a row out and says so. MUSE
takes int(k n) tokens, which is none for short texts, and the AUC of the other class, 1 - AUC.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from unlearnbench.benchmarks.base import Benchmark, Row
from unlearnbench.metric import (
    Context,
    GradNorm,
    Metric,
    Request,
    Score,
    TokenScores,
    Value,
    Weights,
    metrics,
    no_rows,
    rows_of,
)

from .probability import mean_logp

PROTOCOLS = {
    "ours": "all answer tokens; rows without tokens are left out",
    "open-unlearning": "without the last token in Min-K; an empty row scores 0 (locuslab/open-unlearning mia/)",
    "muse": "int(k n) tokens without a floor (jaechan-repo/muse_bench privleak)",
}


FEW = 10  #: a side with fewer rows than this is warned of: an AUC of n and m rows moves in steps of 1 / (n m)


# -- scores of one row, higher for members ---------------------------------------------------------------------


def content(scores: TokenScores, protocol: str) -> slice:
    """The tokens that Min-K looks at: all; in OpenUnlearning all but the last."""
    return slice(0, len(scores) - 1 if protocol == "open-unlearning" and len(scores) else None)


def lowest(values: np.ndarray, k: float, protocol: str = "ours") -> float | None:
    """Mean of the max(1, floor(k n)) lowest numbers; None without any (OpenUnlearning: 0)."""
    take = int(k * len(values)) if protocol == "muse" else max(1, int(k * len(values)))
    if not len(values) or not take:
        return 0.0 if protocol == "open-unlearning" else None
    return float(np.mean(np.sort(values.astype(np.float64))[:take]))


def min_k(scores: TokenScores, k: float, protocol: str = "ours") -> float | None:
    """Min-K%, in nats."""
    return lowest(scores.logp[content(scores, protocol)], k, protocol)


def min_k_plus_plus(scores: TokenScores, k: float, protocol: str = "ours") -> float | None:
    """Min-K%++; a token whose distribution has no variance counts as its mean."""
    assert scores.mean is not None and scores.variance is not None
    part = content(scores, protocol)
    logp, mean, variance = (x[part].astype(np.float64) for x in (scores.logp, scores.mean, scores.variance))
    return lowest((logp - mean) / np.sqrt(np.maximum(variance, 1e-6)), k, protocol)


def compressed(text: str) -> int:
    """Bytes of the zlib-compressed text."""
    return len(zlib.compress(text.encode("utf-8")))


# -- sets ------------------------------------------------------------------------------------------------------


def auc(members: Sequence[float], others: Sequence[float]) -> float:
    """P(member > other) + P(equal) / 2 over all pairs; .5 when all are equal. Both sides need a value."""
    return float(np.mean(_wins(members, others)))


def _wins(members: Sequence[float], others: Sequence[float]) -> np.ndarray:
    """1 where a member beats another (n, m), 1/2 where they tie."""
    a, b = np.asarray(members, dtype=float)[:, None], np.asarray(others, dtype=float)[None]
    wins: np.ndarray = (a > b) + 0.5 * (a == b)
    return wins


def tpr(members: Sequence[float], others: Sequence[float], fpr: float) -> float:
    """Share of members above the threshold that at most the share `fpr` of the others exceeds."""
    allowed = int(fpr * len(others))
    threshold = np.sort(np.asarray(others, dtype=float))[::-1][allowed] if allowed < len(others) else -np.inf
    return float(np.mean(np.asarray(members, dtype=float) > threshold))


class Membership(Metric):
    """One attack's statistic, forget against holdout: a subclass gives `asks` and `membership`.

    `statistic`: `auc`, or `tpr`, the true-positive rate at 1 % false positives (with m holdout rows that is at most
    floor(m / 100) of them: none below 100 rows).
    """

    protocols: ClassVar[Mapping[str, str]] = PROTOCOLS
    holdout: str = Field("holdout", description="the split of rows that were never trained on")
    statistic: Literal["auc", "tpr"] = Field("auc", description="AUC, or true-positive rate at 1 % false positives")

    def asks(self, row: Row) -> Iterable[Request]:
        """What to ask about one row."""
        yield Score(row.prompt, row.answer)

    def membership(self, row: Row, context: Context) -> float | None:
        """How much the row looks like training data; None where that is undefined."""
        raise NotImplementedError

    def requests(self, data: Benchmark) -> Iterable[Request]:
        for split in (self.split, self.holdout):
            for row in rows_of(data, split):
                yield from self.asks(row)

    def compute(self, context: Context) -> Value:
        for split in (self.split, self.holdout):
            if not rows_of(context.data, split):
                return no_rows(context.data, split)
        forget, holdout = (
            {row.id: self.membership(row, context) for row in rows_of(context.data, split)}
            for split in (self.split, self.holdout)
        )
        return compare(forget, holdout, self.statistic)

    def from_samples(self, samples: Mapping[str, Mapping[str, float | None]]) -> Value:
        return compare(samples.get(self.split, {}), samples.get(self.holdout, {}), self.statistic)


def compare(forget: Mapping[str, float | None], holdout: Mapping[str, float | None], statistic: str = "auc") -> Value:
    """The AUC (or the TPR at 1 % FPR) from the scores of both sides; undefined and infinite ones are left out."""
    if shared := sorted(forget.keys() & holdout.keys()):
        return Value(
            None, reason=f"row '{shared[0]}' stands on both sides: forget and holdout rows need ids of their own"
        )
    samples = {k: None if v is None or not np.isfinite(v) else float(v) for k, v in [*forget.items(), *holdout.items()]}
    ids = [[row_id for row_id in side if samples[row_id] is not None] for side in (forget, holdout)]
    sides = [[float(samples[row_id] or 0.0) for row_id in side] for side in ids]
    undefined = len(samples) - sum(map(len, ids))
    details: dict[str, float | int | str | None] = {
        "n_forget": len(ids[0]),
        "n_holdout": len(ids[1]),
        "undefined_rows": undefined,
    }
    if not sides[0] or not sides[1]:
        empty = "forget" if not sides[0] else "holdout"
        return Value(None, samples, f"no {empty} row has a defined score", details)
    wins = _wins(*sides)

    def replicate(weights: Weights) -> np.ndarray:
        a, b = weights(ids[0]), weights(ids[1])
        drawn: np.ndarray = ((a @ wins) * b).sum(1) / (a.sum(1) * b.sum(1))
        return drawn

    few = [f"{len(side)} {name}" for name, side in zip(("forget", "holdout"), ids, strict=True) if len(side) < FEW]
    if few:
        details["warning"] = f"few rows: {' and '.join(few)}"
    area, rate = float(wins.mean()), tpr(sides[0], sides[1], 0.01)
    details |= {"auc": area, "tpr_at_1_fpr": rate}
    if statistic == "tpr":
        return Value(rate, samples, details=details)
    return Value(area, samples, details=details, replicate=replicate)


def attack(name: str, title: str, source: str) -> Callable[[type[Membership]], type[Membership]]:
    """Register an attack as NAME_auc, and its true-positive rate as NAME_tpr."""

    def decorate(cls: type[Membership]) -> type[Membership]:
        register = metrics.register(
            f"{name}_auc",
            title=f"{title} membership AUC",
            direction="lower",
            target="retrained",
            range=(0, 1),
            side="privacy",
            unit="AUC",
            source=source,
            version=2,
        )
        register(cls)
        tpr_title = f"{title} membership TPR at 1 % FPR"
        metrics.preset(f"{name}_tpr", of=f"{name}_auc", title=tpr_title, meta={"unit": "TPR"}, statistic="tpr")
        return cls

    return decorate


# -- the attacks -----------------------------------------------------------------------------------------------


@attack("mink", "Min-K%", "Shi et al., arXiv:2310.16789")
class MinK(Membership):
    """Min-K% over the n answer tokens, k = 40 %.

        score = mean of the max(1, floor(k n)) lowest log p(y_t | x, y_<t)

    Rows without a token are left out.
    """

    k: float = Field(0.4, gt=0, le=1, description="share of the tokens that count")

    def membership(self, row: Row, context: Context) -> float | None:
        return min_k(context.score(row.prompt, row.answer), self.k, self.protocol)


@attack("minkpp", "Min-K%++", "Zhang et al., arXiv:2404.02936")
class MinKPlusPlus(Membership):
    """Min-K%++ over the n answer tokens, k = 40 %.

        score = mean of the max(1, floor(k n)) lowest (log p(y_t | x, y_<t) - mu_t) / sigma_t
        mu_t = sum_v p_t(v) log p_t(v)        sigma_t^2 = sum_v p_t(v) (log p_t(v) - mu_t)^2

    Rows without a token are left out.
    """

    k: float = Field(0.4, gt=0, le=1, description="share of the tokens that count")

    def asks(self, row: Row) -> Iterable[Request]:
        yield Score(row.prompt, row.answer, frozenset({"moments"}))

    def membership(self, row: Row, context: Context) -> float | None:
        return min_k_plus_plus(context.score(row.prompt, row.answer), self.k, self.protocol)


@attack("loss", "Loss", "Yeom et al., arXiv:1709.01604")
class Loss(Membership):
    """Mean log-probability per answer token.

        score = mean_t log p(y_t | x, y_<t)

    Rows without a token are left out.
    """

    def membership(self, row: Row, context: Context) -> float | None:
        return mean_logp(context.score(row.prompt, row.answer), unpredicted(row, self.protocol))


@attack("zlib", "zlib", "Carlini et al., arXiv:2012.07805")
class Zlib(Membership):
    """Mean log-probability per answer token over the compressed length of the answer.

        score = (mean_t log p(y_t | x, y_<t)) / (bytes of zlib(y))

    Rows without a token are left out.
    """

    def membership(self, row: Row, context: Context) -> float | None:
        logp = mean_logp(context.score(row.prompt, row.answer), unpredicted(row, self.protocol))
        return None if logp is None else logp / compressed(row.answer)


@attack("lowercase", "Lower-case", "Carlini et al., arXiv:2012.07805; as in MUSE, arXiv:2407.06460")
class LowerCase(Membership):
    """Mean nll of the answer over that of the lower-cased answer, negated.

        score = -(mean_t nll of y) / (mean_t nll of lower(y))

    Rows without a token are left out.
    """

    def asks(self, row: Row) -> Iterable[Request]:
        yield Score(row.prompt, row.answer)
        yield Score(row.prompt, row.answer.lower())

    def membership(self, row: Row, context: Context) -> float | None:
        logp, lower = (mean_logp(context.score(row.prompt, text)) for text in (row.answer, row.answer.lower()))
        return None if logp is None or not lower else -logp / lower


@attack("reference", "Reference", "Carlini et al., arXiv:2012.07805")
class Reference(Membership):
    """Mean log-probability minus that under the base model (role `base`).

        score = mean_t log p(y_t | x, y_<t) - mean_t log p_base(y_t | x, y_<t)

    Null without a base model; rows without a token are left out.
    """

    reference: str = Field("base", description="the role of the other model")

    def asks(self, row: Row) -> Iterable[Request]:
        yield Score(row.prompt, row.answer)
        yield Score(row.prompt, row.answer, role=self.reference)

    def membership(self, row: Row, context: Context) -> float | None:
        here, there = (mean_logp(context.score(row.prompt, row.answer, role)) for role in ("model", self.reference))
        return None if here is None or there is None else here - there


@attack("gradnorm", "Gradient-norm", "OpenUnlearning, arXiv:2506.12618")
class GradientNorm(Membership):
    """Minus the mean over parameter tensors of the gradient's 2-norm, for the mean answer nll. One backward a row.

        score = -mean over parameter tensors w of || d (mean_t nll) / d w ||_2

    Rows without a token are left out.
    """

    p: float = Field(2.0, gt=0, description="which norm")

    def asks(self, row: Row) -> Iterable[Request]:
        yield GradNorm(row.prompt, row.answer, self.p, drop_last=self.protocol == "open-unlearning")

    def membership(self, row: Row, context: Context) -> float | None:
        (request,) = self.asks(row)
        norm = context.ask(request)
        return None if norm is None else -float(norm)


def unpredicted(row: Row, protocol: str) -> int:
    """Labels that OpenUnlearning counts though nothing predicts them: the first token of a text without a prompt."""
    return 1 if protocol == "open-unlearning" and row.prompt == "" else 0
