"""How much of the answer the model says by itself, token by token.

On the n content tokens of the answer (its EOS left out); a hit is a token that is the likeliest after the true ones:

- exact memorisation (Tirumala et al., 2022): the share of hits
- extraction strength (Carlini et al., 2021): 1 - k / n, k the first place from which on all tokens are hits, so that a
  prefix of k tokens extracts the rest; k = n when the last token is no hit, which gives 0

Differences between code bases. OpenUnlearning takes k = n - 1 when nothing matches, so that its least value is 1/n and
not 0, and gives a row without tokens 0 instead of leaving it out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from unlearnbench.benchmarks.base import Row
from unlearnbench.metric import Context, Request, RowMetric, Score, metrics


def exact_memorization(hits: np.ndarray) -> float | None:
    """Share of hits (n,); None without tokens."""
    return float(hits.mean()) if len(hits) else None


def extraction_strength(hits: np.ndarray, protocol: str = "ours") -> float | None:
    """1 - k / n from hits (n,); None without tokens (OpenUnlearning: 0)."""
    n = len(hits)
    if not n:
        return 0.0 if protocol == "open-unlearning" else None
    misses = np.flatnonzero(~hits)
    k = int(misses[-1]) + 1 if len(misses) else 0
    if k == n and protocol == "open-unlearning":
        k = n - 1
    return 1 - k / n


@metrics.register(
    "forget_exact_memorization",
    title="Exact memorisation, forget",
    direction="lower",
    target="retrained",
    range=(0, 1),
    side="forget",
    unit="share of tokens",
    source="Tirumala et al., arXiv:2205.10770; extraction strength: Carlini et al., arXiv:2012.07805",
    version=2,
)
class Memorization(RowMetric):
    """Mean over rows of exact memorisation or extraction strength.

        exact memorisation = (number of hits) / n
        extraction strength = 1 - k / n

    Rows without a content token are undefined, and rows whose log-probabilities are NaN.
    """

    protocols: ClassVar[Mapping[str, str]] = {
        "ours": "extraction strength 0 when nothing matches",
        "open-unlearning": "extraction strength at least 1/n (locuslab/open-unlearning memorization.py)",
    }
    kind: Literal["exact", "extraction"] = Field("exact", description="exact memorisation or extraction strength")

    def asks(self, row: Row) -> Iterable[Request]:
        yield Score(row.prompt, row.answer)

    def sample(self, row: Row, context: Context) -> float | None:
        scores = context.score(row.prompt, row.answer)
        if not scores.defined:
            return None
        hits = scores.hit[:-1]
        return exact_memorization(hits) if self.kind == "exact" else extraction_strength(hits, self.protocol)


metrics.preset(
    "forget_extraction_strength",
    of="forget_exact_memorization",
    title="Extraction strength, forget",
    meta={"unit": "share of the answer"},
    kind="extraction",
)
