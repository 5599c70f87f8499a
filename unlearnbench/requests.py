"""Request kinds and their answers: what a metric may ask of a model.

An open set: each kind has one runner in `evaluation`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Request:
    """Something to ask a model. `role` names the model: `model` is the one being scored, else `target`, `base` …"""

    role: str = field(default="model", kw_only=True)


@dataclass(frozen=True)
class Score(Request):
    """Token log-probabilities of `answer` after `prompt`. Answered by `TokenScores`.

    `want`: `moments` adds mean and variance of the log-probability under the model's own distribution, `rivals` the
    log-probabilities of the `RIVALS` most likely tokens other than the target, at each answer position, `spans` the
    characters of the answer behind each token. `raw`: the prompt stands as it is, without the template.
    """

    prompt: str
    answer: str
    want: frozenset[str] = frozenset()
    raw: bool = False

    @property
    def bare(self) -> Score:
        """The request without its wants: the key of its answer."""
        return replace(self, want=frozenset()) if self.want else self


@dataclass(frozen=True)
class Generate(Request):
    """Greedy continuation of `prompt`. Answered by `Text`. Ends at EOS or after `max_new_tokens` tokens."""

    prompt: str
    max_new_tokens: int = 128
    raw: bool = False


@dataclass(frozen=True)
class Sample(Request):
    """`n` sampled continuations. Answered by a tuple of `Text`."""

    prompt: str
    n: int = 8
    max_new_tokens: int = 128
    temperature: float = 1.0
    seed: int = 0
    raw: bool = False


@dataclass(frozen=True)
class GradNorm(Request):
    """Gradient of the mean answer -log p. Answered by a float: the mean over parameter tensors of its p-norm."""

    prompt: str
    answer: str
    p: float = 2.0
    drop_last: bool = False  #: leave the last answer token (EOS) out of the mean


@dataclass(frozen=True)
class External(Request):
    """A whole evaluation by another library (`lm-eval` task). Answered by a dict of numbers."""

    library: str
    name: str
    options: tuple[tuple[str, Any], ...] = ()


RIVALS = 16  #: how many rival tokens `Score(want={"rivals"})` keeps


@dataclass(frozen=True)
class TokenScores:
    """Per answer token (n,), EOS included: `logp` in nats (log-softmax in float32 or better), `hit`: it is the argmax.

    `mean`, `variance` of log p under the model (with `moments`); `rivals` (n, RIVALS) log-probabilities, descending
    (with `rivals`); `spans` (n, 2) characters of the answer (with `spans`; None when the tokenizer cannot tell).
    n = 0 when there is nothing to score: metrics then give None.
    """

    logp: np.ndarray
    hit: np.ndarray
    mean: np.ndarray | None = None
    variance: np.ndarray | None = None
    rivals: np.ndarray | None = None
    spans: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.logp)

    @property
    def defined(self) -> bool:
        """Whether no log-probability is NaN: those of a ruined model are, and its hits then mean nothing."""
        return not bool(np.isnan(self.logp).any())


@dataclass(frozen=True)
class Text:
    """A continuation: its text without special tokens, its number of tokens, and whether it ended by itself (EOS)."""

    text: str
    tokens: int
    ended: bool
