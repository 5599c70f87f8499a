"""Paraphrase knowledge: is the answer still there when the question is put differently?

Verbatim forgetting need not be forgetting. Each row is asked in its `unseen_paraphrases`, wordings that nothing was
trained on; a row's number is the mean over them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import numpy as np
from pydantic import Field

from unlearnbench.benchmarks.base import Row
from unlearnbench.metric import Context, Generate, Request, RowMetric, Score, metrics

from .fact import contains
from .probability import mean_logp
from .rouge import rouge_l


@metrics.register(
    "forget_paraphrase_prob",
    title="Probability of the answer to unseen paraphrases, forget",
    direction="lower",
    target="retrained",
    range=(0, 1),
    side="forget",
    unit="probability",
    source="ours",
    version=2,
)
class ParaphraseKnowledge(RowMetric):
    """Mean over rows, and over the unseen paraphrases x' of each, of what `kind` says of the answer to x'.

        prob      exp(mean_t log p(y_t | x', y_<t))
        rouge_l   ROUGE-L recall of the greedy answer
        fact      1 if the greedy answer contains the fact's words, else 0

    Rows without unseen paraphrases are undefined.
    """

    kind: Literal["prob", "rouge_l", "fact"] = Field("prob", description="what is asked of the answer")
    max_new_tokens: int = Field(128, ge=1, description="of an answer")

    def asks(self, row: Row) -> Iterable[Request]:
        for prompt in row.unseen_paraphrases:
            if self.kind == "prob":
                yield Score(prompt, row.answer)
            elif self.kind == "rouge_l" or row.fact:
                yield Generate(prompt, self.max_new_tokens)

    def sample(self, row: Row, context: Context) -> float | None:
        numbers = [self._one(prompt, row, context) for prompt in row.unseen_paraphrases]
        known = [number for number in numbers if number is not None]
        return float(np.mean(known)) if known else None

    def _one(self, prompt: str, row: Row, context: Context) -> float | None:
        if self.kind == "prob":
            logp = mean_logp(context.score(prompt, row.answer))
            return None if logp is None else float(np.exp(logp))
        if self.kind == "fact" and not row.fact:
            return None
        text = context.ask(Generate(prompt, self.max_new_tokens)).text
        if self.kind == "fact":
            said = contains(text, row.fact)
            return None if said is None else float(said)
        found = rouge_l(row.answer, text)
        return None if found is None else found.recall


for _side, _meta in (("forget", {}), ("retain", {"direction": "higher", "target": None, "side": "utility"})):
    for _kind, _title in (("prob", "Probability"), ("rouge_l", "ROUGE-L"), ("fact", "Fact recall")):
        if (_side, _kind) != ("forget", "prob"):
            metrics.preset(
                f"{_side}_paraphrase_{_kind}",
                of="forget_paraphrase_prob",
                title=f"{_title} of the answer to unseen paraphrases, {_side}",
                meta=_meta,
                split=_side,
                kind=_kind,
            )
