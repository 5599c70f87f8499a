"""Leakage at k samples: how likely is it that at least one of k sampled answers gives the fact away?

Greedy decoding shows one answer of many; a model that says the fact in one of twenty samples has not forgotten it
(after the probabilistic evaluation of Scholten et al., arXiv:2410.03523). From n >= k samples of which c contain the
fact's words, the estimate without bias is

    leak = 1 - C(n - c, k) / C(n, k)
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from pydantic import Field, model_validator

from unlearnbench.benchmarks.base import Row
from unlearnbench.metric import Context, Request, RowMetric, Sample, metrics

from .fact import contains


def leak_at_k(n: int, c: int, k: int) -> float:
    """1 - C(n - c, k) / C(n, k): the chance that k of n samples, drawn without return, hold one of the c that leak."""
    return 1 - math.comb(n - c, k) / math.comb(n, k)


@metrics.register(
    "forget_leak",
    title="Leakage of the fact at 8 samples, forget",
    direction="lower",
    target="retrained",
    range=(0, 1),
    side="forget",
    unit="probability",
    source="after Scholten et al., arXiv:2410.03523",
)
class Leakage(RowMetric):
    """Mean over rows of the probability that one of `k` answers sampled at `temperature` contains the fact's words."""

    k: int = Field(8, ge=1, description="samples of which one must leak")
    n: int = Field(16, ge=1, description="samples drawn")
    temperature: float = Field(1.0, gt=0, description="of the sampling")
    max_new_tokens: int = Field(64, ge=1, description="of a sample")
    seed: int = Field(0, description="of the sampling")

    @model_validator(mode="after")
    def _enough(self) -> Leakage:
        if self.n < self.k:
            raise ValueError(f"n = {self.n} samples cannot tell about k = {self.k}; n must be at least k")
        return self

    def asks(self, row: Row) -> Iterable[Request]:
        if row.fact:
            yield Sample(row.prompt, self.n, self.max_new_tokens, self.temperature, self.seed)

    def sample(self, row: Row, context: Context) -> float | None:
        for request in self.asks(row):
            found = [contains(text.text, row.fact) for text in context.ask(request)]
            return None if None in found else leak_at_k(self.n, sum(map(bool, found)), self.k)
        return None
