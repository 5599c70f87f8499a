"""Fluency of the greedy answers: how much they repeat themselves, and what the model thinks of them.

- repetition: 1 - distinct / all 4-grams of words and signs of an answer; 0 for one too short to have any twice
- nll: the mean -log p per token, in nats, of the generated answer under a judge; exp of it is the perplexity. A model
  judging itself (`judge: model`) is always content with its own greedy text, the more so the more it repeats itself, so
  read it beside the repetition rate; `judge: target` asks the model before unlearning.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from pydantic import Field

from unlearnbench.benchmarks.base import Benchmark, Row
from unlearnbench.metric import Context, Generate, Request, RowMetric, Score, Value, metrics, rows_of


def repetition(text: str, n: int = 4) -> float | None:
    """1 - distinct / all n-grams of words and signs; None for an empty text."""
    words = re.findall(r"\w+|[^\w\s]", text)
    grams = [tuple(words[i : i + n]) for i in range(len(words) - n + 1)]
    if not words:
        return None
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


@metrics.register(
    "forget_repetition",
    title="Repetition in the answers, forget",
    direction="lower",
    range=(0, 1),
    side="fluency",
    unit="share of 4-grams",
    source="Welleck et al., arXiv:1908.04319 (rep-n)",
)
class Repetition(RowMetric):
    """Mean over rows of the share of 4-grams of the greedy answer that were there before.

        rep = mean over rows of 1 - (distinct 4-grams) / (4-grams)

    Empty answers are undefined.
    """

    max_new_tokens: int = Field(128, ge=1, description="of an answer")

    def asks(self, row: Row) -> Iterable[Request]:
        yield Generate(row.prompt, self.max_new_tokens)

    def sample(self, row: Row, context: Context) -> float | None:
        return repetition(context.ask(Generate(row.prompt, self.max_new_tokens)).text)


@metrics.register(
    "forget_answer_nll",
    title="Mean nll of the answers under the model itself, forget",
    direction="lower",
    target="retrained",
    range=(0, None),
    side="fluency",
    unit="nats per token",
    source="usual; the judge is ours",
)
class AnswerNll(RowMetric):
    """Mean over rows of the judge's -log p per token of the greedy answer g (its EOS left out).

        nll = mean over rows of mean_t -log p_judge(g_t | x, g_<t)        perplexity = exp(nll), in `details`

    Empty answers are undefined.
    """

    judge: str = Field("model", description="the role of the model that is asked for -log p")
    max_new_tokens: int = Field(128, ge=1, description="of an answer")

    def asks(self, row: Row) -> Iterable[Request]:
        yield Generate(row.prompt, self.max_new_tokens)

    def follow_up(self, data: Benchmark, answers: Mapping[Request, Any]) -> Iterable[Request]:
        for row in rows_of(data, self.split):
            yield Score(row.prompt, answers[Generate(row.prompt, self.max_new_tokens)].text, role=self.judge)

    def sample(self, row: Row, context: Context) -> float | None:
        text = context.ask(Generate(row.prompt, self.max_new_tokens)).text
        scores = context.score(row.prompt, text, self.judge)
        logp = scores.logp[:-1]  # a text that ran into the limit has no EOS of its own
        return -float(np.mean(logp, dtype=np.float64)) if len(logp) else None

    def compute(self, context: Context) -> Value:
        value = super().compute(context)
        if value.score is None:
            return value
        with np.errstate(over="ignore"):
            perplexity = float(np.exp(value.score))
        return Value.mean_of(value.per_sample, **({"perplexity": perplexity} if np.isfinite(perplexity) else {}))


metrics.preset("retain_repetition", of="forget_repetition", title="Repetition in the answers, retain", split="retain")
metrics.preset(
    "retain_answer_nll",
    of="forget_answer_nll",
    title="Mean nll of the answers under the model itself, retain",
    split="retain",
)
for _split in ("forget", "retain"):
    metrics.preset(
        f"{_split}_answer_nll_by_target",
        of="forget_answer_nll",
        title=f"Mean nll of the answers under the target, {_split}",
        split=_split,
        judge="target",
    )
