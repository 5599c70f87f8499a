"""Worked examples of metrics: rows, what a model says of them, and the arithmetic.

The pages show them, with the number that the metric's own code gives; it must be that of the arithmetic.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from unlearnbench.benchmarks.base import Benchmark, Row
from unlearnbench.metric import Context, Generate, GradNorm, Metric, Request, Sample, Score, Text, TokenScores, Value
from unlearnbench.registry import Entry

EOS = "EOS"


class Token(NamedTuple):
    """A token of an answer: its text, its probability, and those of other tokens in its place, the likeliest first."""

    text: str
    p: str
    others: tuple[str, ...] = ()


Numbers = Mapping[str, float | Mapping[str, float]]  #: metric -> its value, or those of its rows


@dataclass(frozen=True)
class Example:
    """What is needed to work a metric out. `by_hand`: protocol -> the arithmetic, in Python.

    `tokens`: (prompt, answer) or (prompt, answer, role) -> its tokens; `texts`: prompt, or the question in it -> what
    the model says, the greedy answer or all samples; `norms`: answer -> the norm of the gradient. `given` and
    `retrained` are values of the metrics that it stands on, of this model and of the retrained one.
    """

    by_hand: Mapping[str, str]
    rows: Mapping[str, tuple[Row, ...]] = field(default_factory=dict)
    tokens: Mapping[tuple[str, ...], tuple[Token, ...]] = field(default_factory=dict)
    texts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    norms: Mapping[str, float] = field(default_factory=dict)
    given: Numbers = field(default_factory=dict)
    retrained: Numbers = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    why: str = ""


def work_out(arithmetic: str) -> float:
    """The value of an example's arithmetic."""
    known = {name: getattr(math, name) for name in ("log", "log10", "exp", "sqrt", "comb")}
    known["size"] = lambda text: len(zlib.compress(text.encode()))
    return float(eval(arithmetic, {"__builtins__": {}, "min": min, **known}))


# -- from an example to a value --------------------------------------------------------------------------------


def build(entry: Entry, example: Example, protocol: str = "ours") -> Metric:
    """The metric with the example's settings."""
    metric: Metric = entry.build(**{**example.settings, "protocol": protocol})
    return metric


def requests(metric: Metric, example: Example) -> list[Request]:
    """Everything the metric asks about the example."""
    data = benchmark(example)
    first = list(metric.requests(data))
    return first + list(metric.follow_up(data, {_bare(request): _say(request, example) for request in first}))


def value(entry: Entry, example: Example, protocol: str = "ours") -> Value:
    """What the metric's code makes of the example."""
    metric = build(entry, example, protocol)
    answers = {_bare(request): _say(request, example) for request in requests(metric, example)}
    values = {name: _value(example.given, name) for name in metric.depends}
    retrained = {name: _value(example.retrained, name) for name in metric.depends} if example.retrained else None
    return metric.compute(Context(benchmark(example), answers, values, retrained))


def benchmark(example: Example) -> Benchmark:
    """The example's rows."""
    data = Benchmark(dict(example.rows))
    data.name = "example"
    return data


def _value(numbers: Numbers, name: str) -> Value:
    found = numbers.get(name.partition("@")[0])
    if found is None:
        return Value(None, reason="nothing is known of it")
    return Value.mean_of(found) if isinstance(found, Mapping) else Value(found)


def _bare(request: Request) -> Request:
    return request.bare if isinstance(request, Score) else request


def _say(request: Request, example: Example) -> Any:
    if isinstance(request, Score):
        role = () if request.role == "model" else (request.role,)
        return scores(example.tokens.get((request.prompt, request.answer, *role), ()))
    if isinstance(request, GradNorm):
        return example.norms.get(request.answer)
    assert isinstance(request, (Generate, Sample))
    key = max((key for key in example.texts if key in request.prompt), key=len, default="")
    said = tuple(Text(text, len(text.split()) + 1, True) for text in example.texts.get(key, ("",)))
    return said[: request.n] if isinstance(request, Sample) else said[0]


def scores(tokens: Iterable[Token]) -> TokenScores:
    """Tokens as the scoring engine hands them to a metric. A token of at least one half is the likeliest."""
    tokens = tuple(tokens)
    p = [float(Fraction(token.p)) for token in tokens]
    others = [sorted((float(Fraction(other)) for other in token.others), reverse=True) for token in tokens]
    rivals = np.full((len(tokens), max(map(len, others), default=0) or 1), -np.inf)
    for i, row in enumerate(others):
        rivals[i, : len(row)] = np.log(row)
    every = [np.array([own, *rest]) for own, rest in zip(p, others, strict=True)]
    mean = np.array([(all_ * np.log(all_)).sum() for all_ in every])
    square = np.array([(all_ * np.log(all_) ** 2).sum() for all_ in every])
    return TokenScores(
        logp=np.log(np.array(p)) if p else np.zeros(0),
        hit=np.array([own >= max(rest, default=0.5) for own, rest in zip(p, others, strict=True)], dtype=bool),
        mean=mean,
        variance=square - mean**2,
        rivals=rivals,
        spans=_spans(tokens),
    )


def _spans(tokens: tuple[Token, ...]) -> np.ndarray:
    ends = np.cumsum([0 if token.text == EOS else len(token.text) for token in tokens], dtype=int)
    starts = np.concatenate([[0], ends[:-1]]).astype(int)
    return np.stack([starts, ends], axis=1) if len(tokens) else np.zeros((0, 2), dtype=int)


# -- examples without something --------------------------------------------------------------------------------


def without(example: Example) -> dict[str, Example]:
    """What may be missing in a benchmark or a run -> the example without it."""
    bare: dict[str, Any] = {"fact": "", "paraphrased_answer": "", "perturbed": (), "unseen_paraphrases": ()}
    less = {split: tuple(replace(row, **bare) for row in rows) for split, rows in example.rows.items()}
    missing = {
        "the benchmark has no such rows": replace(example, rows={}) if example.rows else example,
        "rows without a marked fact, paraphrases and wrong answers": replace(example, rows=less),
        "answers without a token": replace(
            example, tokens=dict.fromkeys(example.tokens, ()), texts=dict.fromkeys(example.texts, ("",)), norms={}
        ),
        "a metric that it stands on is null": replace(example, given={}),
        "there is no retrained run": replace(example, retrained={}),
    }
    return {case: changed for case, changed in missing.items() if changed != example}
