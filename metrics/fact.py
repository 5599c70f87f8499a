"""Fact recall: does the answer say the fact itself?

Most tokens of an answer are template, so ROUGE and probability have high floors. A row that marks its `fact` (the words
of the answer that carry it) allows two numbers without one: whether the greedy answer contains the fact's words, in
order and without a gap, and the probability of the fact's own tokens.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from pydantic import Field

from unlearnbench.benchmarks.base import Row
from unlearnbench.metric import Context, Generate, Request, RowMetric, Score, TokenScores, metrics

from .rouge import unicode_tokens


def contains(text: str, fact: str) -> bool | None:
    """Whether the words of `fact` stand in `text` one after the other; None for a fact without words."""
    words, said = unicode_tokens(fact, stem=False), unicode_tokens(text, stem=False)
    if not words:
        return None
    return any(said[i : i + len(words)] == words for i in range(len(said) - len(words) + 1))


def fact_tokens(scores: TokenScores, answer: str, fact: str) -> np.ndarray | None:
    """Which scored tokens overlap the characters of `fact` in `answer` (n,); None when that is not known."""
    start = answer.find(fact) if fact else -1
    if scores.spans is None or start < 0:
        return None
    touched: np.ndarray = (scores.spans[:, 0] < start + len(fact)) & (scores.spans[:, 1] > start)
    return touched if touched.any() else None


@metrics.register(
    "forget_fact",
    title="Fact recall, forget",
    direction="lower",
    target="retrained",
    range=(0, 1),
    side="forget",
    unit="share of rows",
    source="ours",
    version=2,
)
class FactRecall(RowMetric):
    """Share of rows whose greedy answer contains the fact's words.

        F = mean over rows of 1[the fact's words stand in the greedy answer, one after the other]

    Rows without a marked fact are undefined.
    """

    max_new_tokens: int = Field(128, ge=1, description="of an answer")

    def asks(self, row: Row) -> Iterable[Request]:
        if row.fact:
            yield Generate(row.prompt, self.max_new_tokens)

    def sample(self, row: Row, context: Context) -> float | None:
        if not row.fact:
            return None
        said = contains(context.ask(Generate(row.prompt, self.max_new_tokens)).text, row.fact)
        return None if said is None else float(said)


@metrics.register(
    "forget_fact_prob",
    title="Probability of the fact's tokens, forget",
    direction="lower",
    target="retrained",
    range=(0, 1),
    side="forget",
    unit="probability",
    source="ours",
)
class FactProbability(RowMetric):
    """Probability of the answer tokens that overlap the fact, given everything before them.

        P_fact = mean over rows of exp(mean over the fact's tokens t of log p(y_t | x, y_<t))

    Rows without a marked fact are undefined, and all rows when the tokenizer cannot say where tokens stand.
    """

    def asks(self, row: Row) -> Iterable[Request]:
        if row.fact:
            yield Score(row.prompt, row.answer, frozenset({"spans"}))

    def sample(self, row: Row, context: Context) -> float | None:
        if not row.fact:
            return None
        scores = context.score(row.prompt, row.answer)
        touched = fact_tokens(scores, row.answer, row.fact)
        return None if touched is None else float(np.exp(np.mean(scores.logp[touched], dtype=np.float64)))


for _name, _of, _title in (
    ("retain_fact", "forget_fact", "Fact recall, retain"),
    ("retain_fact_prob", "forget_fact_prob", "Probability of the fact's tokens, retain"),
):
    metrics.preset(
        _name, of=_of, title=_title, meta={"direction": "higher", "target": None, "side": "utility"}, split="retain"
    )
