"""The contract of a metric: it says what it needs (`Request`s) and turns the answers into a number (`Value`).

`evaluation` gathers the requests of all metrics, removes duplicates and runs each kind once, so a metric never touches
a model. A number that cannot be computed is None with a reason: never 0, never 0.5, never a guess.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from unlearnbench.benchmarks.base import Benchmark, Row
from unlearnbench.errors import UserError, did_you_mean
from unlearnbench.registry import Entry, Registry
from unlearnbench.requests import External, Generate, GradNorm, Request, Sample, Score, Text, TokenScores

__all__ = [
    "SIDES",
    "SUITES",
    "Context",
    "External",
    "Generate",
    "GradNorm",
    "Metric",
    "Request",
    "RowMetric",
    "Sample",
    "Score",
    "Text",
    "TokenScores",
    "Value",
    "expand",
    "metrics",
    "no_rows",
    "resolve",
    "rows_of",
]

metrics: Registry = Registry("metric", package="unlearnbench.metrics")

#: named lists of metrics: what `metrics: [tofu, mia]` in an experiment stands for
SUITES: dict[str, tuple[str, ...]] = {}


#: row ids (n,) -> how often each row stands in each of the draws (draws, n), whole groups together
Weights = Callable[[Sequence[str]], np.ndarray]

# -- values ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Value:
    """A metric's result. `score` None needs a `reason`. `per_sample`: row id -> number, None where undefined.

    `n` counts the samples behind the score. `details` holds further named numbers (a p-value's floor, a distance).
    `is_mean`: the score is the mean of the samples, so that resampling them gives its interval. A score that is not
    gives `replicate`: from a function that maps row ids to resampling counts (draws, rows), the score of each draw.
    """

    score: float | None
    per_sample: Mapping[str, float | None] = field(default_factory=dict)
    reason: str = ""
    details: Mapping[str, float | int | str | None] = field(default_factory=dict)
    is_mean: bool = False
    replicate: Callable[[Weights], np.ndarray] | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.score is None and not self.reason:
            raise ValueError("a null score needs a reason")
        if self.score is not None and not np.isfinite(self.score):
            raise ValueError(f"the score {self.score} is not finite: give None and a reason")

    @property
    def n(self) -> int:
        """Defined samples; of a score without samples of its own what `details` says under `n`."""
        return sum(v is not None for v in self.per_sample.values()) or int(self.details.get("n") or 0)

    @classmethod
    def mean_of(cls, per_sample: Mapping[str, float | None], **details: Any) -> Value:
        """The mean of the defined samples; None when there is none. Samples that are not finite count as undefined."""
        samples = {key: None if v is None or not np.isfinite(v) else float(v) for key, v in per_sample.items()}
        lost = sum(v is None for v in samples.values()) - sum(v is None for v in per_sample.values())
        known = [v for v in samples.values() if v is not None]
        if lost:
            details["not_finite"] = lost
        if not known:
            return cls(None, samples, reason=f"none of {len(samples)} samples is defined", details=details)
        return cls(float(np.mean(known)), samples, details=details, is_mean=True)


@dataclass
class Context:
    """What `compute` may look at: the rows, the answers to its requests, other metrics' values, the retrained run."""

    data: Benchmark
    answers: Mapping[Request, Any]
    values: Mapping[str, Value]
    retrained_values: Mapping[str, Value] | None = None

    def rows(self, split: str) -> Sequence[Row]:
        return self.data.rows(split)

    def score(self, prompt: str, answer: str, role: str = "model", raw: bool = False) -> TokenScores:
        """The answer to a `Score` request, whatever else other metrics wanted of it."""
        found: TokenScores = self.ask(Score(prompt, answer, raw=raw, role=role))
        return found

    def ask(self, request: Request) -> Any:
        """The answer to any request."""
        key = request.bare if isinstance(request, Score) else request
        if key not in self.answers:
            raise KeyError(f"{key} was not asked for in `requests`")
        return self.answers[key]

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
    """Frozen options of a metric. Registered with what tables, plots and pages read from there:

    `direction`: `higher` or `lower`, the arrow of the papers; `target="retrained"`: the goal is the retrained model's
    value and not the end of the `range`; `side`: one of `SIDES`; `unit`. A metric whose samples are rows names the
    split in `split`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    registered_name: ClassVar[str] = ""
    version: ClassVar[int] = 1
    #: named variants: name -> what it does differently, and whose code does so
    protocols: ClassVar[Mapping[str, str]] = {"ours": "the formula of the docstring"}

    split: str = Field("forget", description="whose rows are scored")
    protocol: str = Field("ours", description="whose variant")

    @property
    def depends(self) -> tuple[str, ...]:
        """Names of metrics whose values this one needs."""
        return ()

    def requests(self, data: Benchmark) -> Iterable[Request]:
        """What to ask the model."""
        return ()

    def follow_up(self, data: Benchmark, answers: Mapping[Request, Any]) -> Iterable[Request]:
        """What to ask once the answers to `requests` are there (such as the score of a generated text)."""
        return ()

    def compute(self, context: Context) -> Value:
        """Answers to a number."""
        raise NotImplementedError

    def from_samples(self, samples: Mapping[str, Mapping[str, float | None]]) -> Value | None:
        """The value again from its samples alone (split -> row id -> number), for `verify`.

        Not needed for means of the samples, nor for metrics that stand on other metrics alone. None: it takes more.
        """
        return None

    def under(self, *names: str) -> tuple[str, ...]:
        """Names of other metrics under this metric's protocol."""
        return names if self.protocol == "ours" else tuple(f"{name}@{self.protocol}" for name in names)


class RowMetric(Metric):
    """A metric that is the mean of one number per row of its split: a subclass gives `asks` and `sample`."""

    def asks(self, row: Row) -> Iterable[Request]:
        """What to ask about one row."""
        raise NotImplementedError

    def sample(self, row: Row, context: Context) -> float | None:
        """The row's number; None where it is undefined."""
        raise NotImplementedError

    def requests(self, data: Benchmark) -> Iterable[Request]:
        for row in rows_of(data, self.split):
            yield from self.asks(row)

    def compute(self, context: Context) -> Value:
        rows = rows_of(context.data, self.split)
        if not rows:
            return no_rows(context.data, self.split)
        return Value.mean_of({row.id: self.sample(row, context) for row in rows})


def rows_of(data: Benchmark, split: str) -> tuple[Row, ...]:
    """The rows scored for a split: those of `retain_eval` for `retain`, if there are such; () without the split."""
    return data.splits.get(f"{split}_eval", data.splits.get(split, ()))


def no_rows(data: Benchmark, split: str) -> Value:
    """The null of a metric whose split is missing or empty."""
    have = "has no rows in" if split in data.splits else "has no"
    return Value(None, reason=f"the benchmark {have} split '{split}'")


Direction = Literal["higher", "lower", "retrained"]
SIDES = ("forget", "utility", "privacy", "fluency", "descriptive")


def resolve(name: str) -> tuple[Entry, Metric]:
    """A metric by name; `name@protocol` is its variant, `library:thing` a metric of another library.

    Raises `UserError` with the nearest name or protocol.
    """
    plain, _, protocol = name.partition("@")
    adapter, _, thing = plain.partition(":")
    if thing and adapter in metrics:
        return metrics.get(adapter), metrics.get(adapter).build(name=thing)
    if plain not in metrics:
        metrics.get(plain) if plain in metrics.broken() else None  # raises with the plug-in's own error
        raise UserError(f"There is no metric '{plain}'; {did_you_mean(plain, [*metrics.names(), *SUITES])}")
    entry = metrics.get(plain)
    if not protocol:
        return entry, entry.build()
    protocols: Mapping[str, str] = entry.cls.protocols  # type: ignore[attr-defined]
    if protocol not in protocols:
        raise UserError(f"The metric '{plain}' has no protocol '{protocol}'; {did_you_mean(protocol, protocols)}")
    return entry, entry.build(protocol=protocol)


def expand(names: Iterable[str]) -> list[str]:
    """Metric names with suites spelled out, dependencies included, each once, dependencies first.

    `suite@protocol` is every metric of the suite under that protocol, and as it is where it has no such variant.
    """
    ordered: list[str] = []

    def add(name: str) -> None:
        name = name.removesuffix("@ours")
        suite, _, protocol = name.partition("@")
        if suite in SUITES:
            for member in _members(suite, protocol):
                add(member)
        elif name not in ordered:
            for dependency in resolve(name)[1].depends:
                add(dependency)
            ordered.append(name)

    metrics.names()  # loads the built-ins, which fill SUITES
    for name in names:
        add(name)
    return ordered


def _members(suite: str, protocol: str) -> list[str]:
    """The metrics of a suite under a protocol. Raises `UserError` when none of them has it."""
    if not protocol:
        return list(SUITES[suite])
    protocols = {name: resolve(name)[1].protocols for name in SUITES[suite]}
    known = {p for of in protocols.values() for p in of}
    if protocol not in known:
        raise UserError(f"The suite '{suite}' has no protocol '{protocol}'; {did_you_mean(protocol, known)}")
    return [f"{name}@{protocol}" if protocol in of else name for name, of in protocols.items()]
