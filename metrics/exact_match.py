"""Exact match: the model answers word for word and then stops.

A greedy answer equals the true one exactly when each of its tokens, EOS included, is the likeliest after the ones
before, so no text has to be generated.
"""

from __future__ import annotations

from collections.abc import Iterable

from unlearnbench.benchmarks.base import Row
from unlearnbench.metric import Context, Request, RowMetric, Score, metrics


@metrics.register(
    "forget_exact",
    title="Exact match, forget",
    direction="lower",
    target="retrained",
    range=(0, 1),
    side="forget",
    unit="share of rows",
    source="ours",
    version=2,
)
class ExactMatch(RowMetric):
    """Share of rows whose every answer token, EOS included, is the argmax.

        EM = mean over rows of 1[y_t = argmax_v p_t(v) for every token t]

    Rows without an answer token are undefined, and rows whose log-probabilities are NaN.
    """

    def asks(self, row: Row) -> Iterable[Request]:
        yield Score(row.prompt, row.answer)

    def sample(self, row: Row, context: Context) -> float | None:
        scores = context.score(row.prompt, row.answer)
        return float(scores.hit.all()) if len(scores) and scores.defined else None


metrics.preset(
    "retain_exact",
    of="forget_exact",
    title="Exact match, retain",
    meta={"direction": "higher", "target": None, "side": "utility"},
    split="retain",
)
