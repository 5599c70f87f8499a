"""Membership inference: can forget rows be told from rows that were never trained on?

Each attack gives a row a score that is higher the more it looks like training data. The number is
AUC = P(score(forget) > score(holdout)) + P(equal) / 2: 1 means that the forget rows look like members, 0.5 that they
look like the holdout rows, near 0 that they were pushed below what a model never trained on them would say. The
retrained model's AUC need not be .5 either, so the gap to it is a metric of its own.

Min-K% (Shi et al., arXiv:2310.16789): the mean of the k % lowest token log-probabilities, at least one token.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from pydantic import Field

from unlearnbench.benchmarks.base import Benchmark, Row
from unlearnbench.metric import Context, Metric, Request, Score, Value, metrics, no_rows, rows_of


def auc(members: Sequence[float], others: Sequence[float]) -> float:
    """P(member > other) + P(equal) / 2 over all pairs; .5 when all are equal. Both sides need a value."""
    ordered = np.sort(np.asarray(others, dtype=float))
    below = np.searchsorted(ordered, members, side="left")
    up_to = np.searchsorted(ordered, members, side="right")
    return float(np.mean(below + up_to) / (2 * len(ordered)))


def min_k(logp: np.ndarray, k: float) -> float | None:
    """Mean of the max(1, floor(k n)) lowest log-probabilities, in nats; None without tokens."""
    if not len(logp):
        return None
    take = max(1, int(k * len(logp)))
    return float(np.mean(np.sort(logp.astype(np.float64))[:take]))


class Membership(Metric):
    """AUC of one attack, forget against holdout: a subclass gives `asks` and `membership`."""

    holdout: str = "holdout"

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
        sides = []
        for split in (self.split, self.holdout):
            if not rows_of(context.data, split):
                return no_rows(context.data, split)
            sides.append({row.id: self.membership(row, context) for row in rows_of(context.data, split)})
        samples = {k: None if v is None or not np.isfinite(v) else float(v) for side in sides for k, v in side.items()}
        forget, holdout = ([v for k in side if (v := samples[k]) is not None] for side in sides)
        undefined = sum(v is None for v in samples.values())
        if not forget or not holdout:
            empty = self.split if not forget else self.holdout
            return Value(None, samples, reason=f"no row of '{empty}' has a defined score")
        return Value(
            auc(forget, holdout),
            samples,
            details={"n_forget": len(forget), "n_holdout": len(holdout), "undefined_rows": undefined},
        )


@metrics.register(
    "mink_auc",
    title="Min-K% membership AUC",
    direction="lower",
    target="retrained",
    range=(0, 1),
    side="privacy",
    unit="AUC",
)
class MinK(Membership):
    """AUC of Min-K% over the answer tokens, k = 40 %."""

    k: float = Field(0.4, gt=0, le=1)

    def membership(self, row: Row, context: Context) -> float | None:
        return min_k(context.score(row.prompt, row.answer).logp, self.k)


@metrics.register(
    "mink_auc_gap",
    title="Min-K% membership AUC minus that of the retrained model",
    direction="lower",
    target="retrained",
    range=(-1, 1),
    side="privacy",
    unit="AUC",
)
class AucGap(Metric):
    """AUC - AUC of the retrained model: above 0 under-unlearned, below 0 over-unlearned; needs the retrained run."""

    metric: str = "mink_auc"

    @property
    def depends(self) -> tuple[str, ...]:
        return (self.metric,)

    def compute(self, context: Context) -> Value:
        here, there = context.value(self.metric), context.retrained(self.metric)
        if here.score is None or there.score is None:
            return Value(None, reason=here.reason or there.reason)
        return Value(here.score - there.score, details={"auc": here.score, "retrained_auc": there.score})
