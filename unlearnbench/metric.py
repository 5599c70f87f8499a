"""The contract of a metric: it says what it needs (`Request`s) and turns the answers into a number (`Value`).

`evaluation` gathers the requests of all metrics, removes duplicates and runs each kind once, so a metric never touches
a model. A number that cannot be computed is None with a reason: never 0, never 0.5, never a guess.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict

from unlearnbench.benchmarks.base import Benchmark, Row
from unlearnbench.errors import UserError, did_you_mean
from unlearnbench.registry import Registry

metrics: Registry = Registry("metric", package="unlearnbench.metrics")

#: named lists of metrics: what `metrics: [tofu, mia]` in an experiment stands for
SUITES: dict[str, tuple[str, ...]] = {}


# -- requests and their answers --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Request:
    """Something to ask a model. `role` names the model: `model` is the one being scored, else `target`, `base` …"""

    role: str = field(default="model", kw_only=True)


@dataclass(frozen=True)
class Score(Request):
    """Token log-probabilities of `answer` after `prompt`. Answered by `TokenScores`.

    `want`: `moments` adds mean and variance of the log-probability under the model's own distribution, `rivals` the
    log-probabilities of the `RIVALS` most likely tokens other than the target, at each answer position.
    """

    prompt: str
    answer: str
    want: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Generate(Request):
    """Greedy continuation of `prompt`. Answered by `Text`. Ends at EOS or after `max_new_tokens` tokens."""

    prompt: str
    max_new_tokens: int = 128


@dataclass(frozen=True)
class Sample(Request):
    """`n` sampled continuations. Answered by a tuple of `Text`."""

    prompt: str
    n: int = 8
    max_new_tokens: int = 128
    temperature: float = 1.0
    seed: int = 0


@dataclass(frozen=True)
class GradNorm(Request):
    """Norms of the gradient of the mean answer -log p. Answered by a float: mean over parameter tensors of the p-norm."""

    prompt: str
    answer: str
    p: float = 2.0


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

    `mean`, `variance` of log p under the model (with `moments`); `rivals` (n, RIVALS) log-probabilities (with `rivals`).
    n = 0 when there is nothing to score: metrics then give None.
    """

    logp: np.ndarray
    hit: np.ndarray
    mean: np.ndarray | None = None
    variance: np.ndarray | None = None
    rivals: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.logp)


@dataclass(frozen=True)
class Text:
    """A continuation: its text without special tokens, its number of tokens, and whether it ended by itself (EOS)."""

    text: str
    tokens: int
    ended: bool


# -- values ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Value:
    """A metric's result. `score` None needs a `reason`. `per_sample`: row id -> number, None where undefined.

    `n` counts the samples behind the score. `details` holds further named numbers (a p-value's floor, a distance).
    """

    score: float | None
    per_sample: Mapping[str, float | None] = field(default_factory=dict)
    reason: str = ""
    details: Mapping[str, float | int | str | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.score is None and not self.reason:
            raise ValueError("a null score needs a reason")
        if self.score is not None and not np.isfinite(self.score):
            raise ValueError(f"the score {self.score} is not finite: give None and a reason")

    @property
    def n(self) -> int:
        return sum(v is not None for v in self.per_sample.values())

    @classmethod
    def mean_of(cls, per_sample: Mapping[str, float | None], **details: Any) -> Value:
        """The mean of the defined samples; None when there is none."""
        known = [v for v in per_sample.values() if v is not None]
        if not known:
            return cls(None, per_sample, reason=f"none of {len(per_sample)} samples is defined")
        return cls(float(np.mean(known)), per_sample, details=details)


@dataclass
class Context:
    """What `compute` may look at: the rows, the answers to its requests, other metrics' values, the retrained run."""

    data: Benchmark
    answers: Mapping[Request, Any]
    values: Mapping[str, Value]
    retrained_values: Mapping[str, Value] | None = None

    def rows(self, split: str) -> Sequence[Row]:
        return self.data.rows(split)

    def score(self, prompt: str, answer: str, role: str = "model") -> TokenScores:
        """The answer to a `Score` request, whatever else other metrics wanted of it."""
        return self.answers[Score(prompt, answer, role=role)]

    def ask(self, request: Request) -> Any:
        """The answer to any other request."""
        return self.answers[request]

    def value(self, name: str) -> Value:
        """Another metric's value; it must be in `depends`."""
        return self.values[name]

    def retrained(self, name: str) -> Value:
        """The retrained model's value of a metric, or a null with its reason."""
        if self.retrained_values is None:
            return Value(None, reason="no retrained model to compare with")
        if name not in self.retrained_values:
            return Value(None, reason=f"the retrained run has no '{name}'")
        return self.retrained_values[name]


class Metric(BaseModel):
    """Frozen options of a metric. Registered with direction, range and target, which tables and plots read from there.

    `direction`: `higher`, `lower`, or `retrained` (the nearer to the retrained model the better). A metric whose samples
    are rows names the split in `split`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    registered_name: ClassVar[str] = ""
    version: ClassVar[int] = 1
    #: named variants: name -> what it does differently, and whose code does so
    protocols: ClassVar[Mapping[str, str]] = {"ours": "the formula of the docstring"}

    split: str = "forget"
    protocol: str = "ours"

    @property
    def depends(self) -> tuple[str, ...]:
        """Names of metrics whose values this one needs."""
        return ()

    def requests(self, data: Benchmark) -> Iterable[Request]:
        """What to ask the model."""
        return ()

    def compute(self, context: Context) -> Value:
        """Answers to a number."""
        raise NotImplementedError


Direction = Literal["higher", "lower", "retrained"]
SIDES = ("forget", "utility", "privacy", "fluency", "descriptive")


def expand(names: Iterable[str]) -> list[str]:
    """Metric names with suites spelled out, dependencies included, each once, dependencies first."""
    ordered: list[str] = []

    def add(name: str) -> None:
        if name in SUITES:
            for member in SUITES[name]:
                add(member)
        elif name not in ordered:
            if name not in metrics:
                raise UserError(f"There is no metric '{name}'; {did_you_mean(name, [*metrics.names(), *SUITES])}")
            for dependency in metrics.get(name).build().depends:
                add(dependency)
            ordered.append(name)

    metrics.names()  # loads the built-ins, which fill SUITES
    for name in names:
        add(name)
    return ordered
