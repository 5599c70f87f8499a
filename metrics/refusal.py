"""Refusal rate: how often the greedy answer declines instead of answering.

Declining on forget questions is what some methods teach; declining on retain questions is damage. An answer counts as a
refusal when it contains one of the phrases below, whatever the case and the punctuation. English only.
"""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import Field

from unlearnbench.benchmarks.base import Row
from unlearnbench.metric import Context, Generate, Request, RowMetric, metrics

from .rouge import unicode_tokens

#: Words of a refusal, apostrophes dropped
PHRASES = (
    "i dont know",
    "i do not know",
    "i dont have",
    "i do not have",
    "im not sure",
    "i am not sure",
    "im not certain",
    "i am not certain",
    "im unable to",
    "i am unable to",
    "i cannot",
    "i cant",
    "i can not",
    "im sorry",
    "i am sorry",
    "im afraid",
    "i am afraid",
    "no idea",
    "not aware of",
    "not familiar with",
    "beyond my knowledge",
    "outside my knowledge",
    "not something i know",
    "have no information",
    "no information about",
    "no information on",
    "not have that information",
    "unfamiliar with",
    "i have no record",
    "ask me something else",
)


def refuses(text: str) -> bool:
    """Whether the text contains a refusal phrase, as whole words."""
    words = " ".join(unicode_tokens(text.replace("'", "").replace("\u2019", ""), stem=False))
    return any(f" {phrase} " in f" {words} " for phrase in PHRASES)


@metrics.register(
    "forget_refusal",
    title="Refusal rate, forget",
    direction="higher",
    target="retrained",
    range=(0, 1),
    side="descriptive",
    unit="share of rows",
    source="ours",
    version=2,
)
class Refusal(RowMetric):
    """Share of rows whose greedy answer is a refusal.

        refusal = mean over rows of 1[the greedy answer contains a phrase of the list]

    An empty answer is none.
    """

    max_new_tokens: int = Field(128, ge=1, description="of an answer")

    def asks(self, row: Row) -> Iterable[Request]:
        yield Generate(row.prompt, self.max_new_tokens)

    def sample(self, row: Row, context: Context) -> float | None:
        return float(refuses(context.ask(Generate(row.prompt, self.max_new_tokens)).text))


metrics.preset(
    "retain_refusal",
    of="forget_refusal",
    title="Refusal rate, retain",
    meta={"direction": "lower", "target": None},
    split="retain",
)
