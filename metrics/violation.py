"""MASC's violation rate and its bound on exact reproduction (arXiv:2606.02920, Proposition 1).

    m_t = beta log p(y_t) - log sum_{v in S_t} p(v)^beta
    V = share of the n answer tokens with m_t > tau = log(rho / (1 - rho))
    log bound = (1 - V) n log rho        (beta = 1)

with S_t the k likeliest other tokens. A token that does not violate has p(y_t) <= rho, so the answer is reproduced word
for word with probability at most rho^((1 - V) n).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from unlearnbench.benchmarks.base import Row
from unlearnbench.metric import Context, Request, RowMetric, Score, TokenScores, Value, metrics


def margins(scores: TokenScores, k: int, beta: float = 1.0) -> np.ndarray:
    """Restricted margins (n,) in nats from the rivals' log-probabilities."""
    import torch

    from unlearnbench.margins import margin

    assert scores.rivals is not None
    target, rivals = (torch.from_numpy(np.asarray(x, dtype=np.float64)) for x in (scores.logp, scores.rivals[:, :k]))
    found: np.ndarray = margin(target, rivals, beta).numpy()
    return found


@metrics.register(
    "forget_violation_rate",
    title="Violation rate (MASC), forget",
    direction="lower",
    target="retrained",
    range=(0, 1),
    side="descriptive",
    unit="share of tokens",
    source="MASC, arXiv:2606.02920, Proposition 1",
    version=2,
)
class Violation(RowMetric):
    """Mean over rows of the share of answer tokens (EOS included) that violate, or of the log bound (kind `bound`).

    Rows without an answer token are undefined, and rows whose log-probabilities are NaN. rho, k and beta are MASC's for
    TOFU. The bound under `masc` joins the mean rate and length of all rows.
    """

    protocols: ClassVar[Mapping[str, str]] = {
        "ours": "the bound is formed row by row",
        "masc": "the bound from the mean rate and the mean length (the authors' probe)",
    }
    kind: Literal["rate", "bound"] = Field("rate", description="the rate, or the bound")
    rho: float = Field(0.7, gt=0, lt=1, description="share of the mass a token may hold")
    k: int = Field(10, ge=1, le=16, description="how many alternatives")
    beta: float = Field(1.0, gt=0, description="inverse temperature of the margin")

    def asks(self, row: Row) -> Iterable[Request]:
        yield Score(row.prompt, row.answer, frozenset({"rivals"}))

    def violates(self, row: Row, context: Context) -> np.ndarray | None:
        """Which answer tokens violate (n,); None without one, and where a margin is NaN."""
        scores = context.score(row.prompt, row.answer)
        if not len(scores) or np.isnan(found := margins(scores, self.k, self.beta)).any():
            return None
        over: np.ndarray = found > np.log(self.rho / (1 - self.rho))
        return over

    def sample(self, row: Row, context: Context) -> float | None:
        over = self.violates(row, context)
        if over is None:
            return None
        return float(over.mean()) if self.kind == "rate" else float((~over).sum() * np.log(self.rho))

    def compute(self, context: Context) -> Value:
        value = super().compute(context)
        if value.score is None or self.kind == "rate" or self.protocol == "ours":
            return value
        from unlearnbench.margins import log_reproduction_bound

        rows = [over for row in context.rows(self.split) if (over := self.violates(row, context)) is not None]
        rate, length = (float(np.mean(x)) for x in ([over.mean() for over in rows], [len(over) for over in rows]))
        return Value(log_reproduction_bound(rate, length, self.rho), value.per_sample)


metrics.preset(
    "forget_violation_bound",
    of="forget_violation_rate",
    title="Bound on the log-probability of exact reproduction (MASC)",
    meta={"range": (None, 0), "unit": "nats"},
    kind="bound",
)
metrics.preset(
    "holdout_violation_rate",
    of="forget_violation_rate",
    title="Violation rate (MASC) on rows never trained on",
    meta={"target": None},
    split="holdout",
)
