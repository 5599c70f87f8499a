"""Collect what all metrics ask for, run each kind of request once, and hand the answers back.

Metrics are arithmetic on answers, so the answers are kept: `rescore` computes every metric again without a model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from unlearnbench import generation, scoring
from unlearnbench.benchmarks.base import Benchmark
from unlearnbench.errors import UserError
from unlearnbench.external import run_external
from unlearnbench.gradients import gradient_norms
from unlearnbench.language_model import LanguageModel
from unlearnbench.metric import (
    Context,
    External,
    Generate,
    GradNorm,
    Metric,
    Request,
    Sample,
    Score,
    Value,
    expand,
    resolve,
)
from unlearnbench.registry import Entry
from unlearnbench.statistics import cluster_interval, replicate_interval
from unlearnbench.text import Encoder

if TYPE_CHECKING:
    import pandas as pd

Answers = dict[Request, Any]
Continuation = TypeVar("Continuation", Generate, Sample)


@dataclass
class Asked:
    """What a runner works with: the model of the role, the encoder, and the answers so far (scores come first)."""

    lm: LanguageModel
    encoder: Encoder
    answers: Answers
    token_budget: int | None = None
    max_new_tokens: int | None = None

    def shorter(self, request: Continuation) -> Continuation:
        """The request, with no more new tokens than the evaluation allows."""
        wanted = request.max_new_tokens
        return replace(request, max_new_tokens=min(wanted, self.max_new_tokens or wanted))


Runner = Callable[[Asked, Sequence[Any]], tuple[Mapping[Any, Any], dict[str, Any]]]


def _score(asked: Asked, requests: Sequence[Score]) -> tuple[Mapping[Any, Any], dict[str, Any]]:
    answers, counts = scoring.score(asked.lm, asked.encoder, requests, asked.token_budget)
    return answers, counts.as_dict()


def _generate(asked: Asked, requests: Sequence[Generate]) -> tuple[Mapping[Any, Any], dict[str, Any]]:
    distinct = list(dict.fromkeys(requests))
    drafts = _drafts(asked, requests[0].role)
    found = generation.generate(asked.lm, asked.encoder, [asked.shorter(r) for r in distinct], drafts)
    answers = {request: found[asked.shorter(request)] for request in distinct}
    saved = sum(len(drafts[(r.prompt, r.raw)][0]) for r in distinct if (r.prompt, r.raw) in drafts)
    cost = {"asked": len(requests), "distinct": len(distinct), "path": generation.path_of(asked.lm)}
    if asked.max_new_tokens is not None:
        cost["cut"] = sum(
            not text.ended and text.tokens == asked.max_new_tokens < r.max_new_tokens for r, text in answers.items()
        )
    return answers, {**cost, "tokens": sum(text.tokens for text in answers.values()), "known_from_scoring": saved}


def _drafts(asked: Asked, role: str) -> dict[tuple[str, bool], tuple[tuple[int, ...], int]]:
    """(prompt, raw) -> the longest beginning of a scored answer that is greedy, and the length of the first answer."""
    drafts: dict[tuple[str, bool], tuple[tuple[int, ...], int]] = {}
    for request, scored in asked.answers.items():
        if not isinstance(request, Score) or request.role != role or not len(scored) or request.prompt == "":
            continue
        row = asked.encoder.encode(request.prompt, request.answer, raw=request.raw)
        ids = row.ids[row.prompt_length :]
        before = tuple(asked.encoder.prompt_ids(request.prompt, request.raw))
        if row.ids[: row.prompt_length] != before or len(ids) != len(scored):
            continue  # the prompt was cut, or encoded together with the answer
        hits = len(scored) if scored.hit.all() else int(scored.hit.argmin())
        known, expected = drafts.get((request.prompt, request.raw), ((), len(ids)))
        drafts[request.prompt, request.raw] = (max(known, ids[:hits], key=len), expected)
    return drafts


def _sample(asked: Asked, requests: Sequence[Sample]) -> tuple[Mapping[Any, Any], dict[str, Any]]:
    found = generation.sample(asked.lm, asked.encoder, [asked.shorter(r) for r in requests])
    answers = {request: found[asked.shorter(request)] for request in requests}
    return answers, {"asked": len(requests), "distinct": len(answers)}


def _gradnorm(asked: Asked, requests: Sequence[GradNorm]) -> tuple[Mapping[Any, Any], dict[str, Any]]:
    answers = gradient_norms(asked.lm, asked.encoder, requests)
    return answers, {"asked": len(requests), "distinct": len(answers)}


def _external(asked: Asked, requests: Sequence[External]) -> tuple[Mapping[Any, Any], dict[str, Any]]:
    answers = {request: run_external(asked.lm, asked.encoder, request) for request in dict.fromkeys(requests)}
    return answers, {"asked": len(requests), "distinct": len(answers)}


#: one runner per kind of request, in the order they run; a plug-in may add its own kind
RUNNERS: dict[type[Request], Runner] = {
    Score: _score,
    Generate: _generate,
    Sample: _sample,
    GradNorm: _gradnorm,
    External: _external,
}


@dataclass
class Evaluation:
    """The values of all metrics of one model, and the answers they came from."""

    values: dict[str, Value]
    data: Benchmark
    answers: Answers = field(default_factory=dict)
    counts: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def _where(self) -> dict[str, dict[str, str]]:
        """row id -> split -> group"""
        where: dict[str, dict[str, str]] = {}
        for split, rows in self.data.splits.items():
            for row in rows:
                where.setdefault(row.id, {})[split] = row.group
        return where

    def samples(self) -> pd.DataFrame:
        """One row per metric and sample: metric, split, row_id, group, value (NaN where it is undefined)."""
        import pandas as pd

        lines = []
        for name, value in self.values.items():
            split = resolve(name)[1].split
            for row_id, number in value.per_sample.items():
                at, group = self._place(row_id, split)
                lines.append((name, at, row_id, group, float("nan") if number is None else float(number)))
        return pd.DataFrame(lines, columns=["metric", "split", "row_id", "group", "value"])

    def _place(self, row_id: str, split: str) -> tuple[str, str]:
        splits = self._where.get(row_id, {})
        at = split if split in splits else next(iter(splits), "")
        return at, splits.get(at, "")

    def metrics_json(self) -> list[dict[str, Any]]:
        """One strict-JSON mapping per metric."""
        return [self._as_json(name, value) for name, value in self.values.items()]

    def _as_json(self, name: str, value: Value) -> dict[str, Any]:
        entry, metric = resolve(name)
        return {
            "name": name,
            "version": entry.version,
            "protocol": metric.protocol,
            "direction": direction_of(entry),
            "side": entry.meta.get("side", "descriptive"),
            "unit": entry.meta.get("unit", ""),
            "value": value.score,
            "n": value.n,
            "mean": value.is_mean,
            "interval": self._interval(value, metric.split),
            "reason": value.reason,
            "details": dict(value.details),
        }

    def _interval(self, value: Value, split: str) -> list[float] | None:
        if value.score is None:
            return None
        interval = None
        if value.is_mean:
            interval = cluster_interval(
                list(value.per_sample.values()), self._place_groups(list(value.per_sample), split)
            )
        elif value.replicate is not None:
            interval = replicate_interval(value.replicate, lambda ids: self._place_groups(ids, split))
        return None if interval is None else list(interval)

    def _place_groups(self, row_ids: Sequence[str], split: str) -> list[str]:
        return [self._place(row_id, split)[1] or row_id for row_id in row_ids]


def direction_of(entry: Entry) -> str:
    """`retrained` where the goal is the retrained model's value, else the arrow: `higher` or `lower`."""
    return "retrained" if entry.meta.get("target") == "retrained" else str(entry.meta.get("direction", "retrained"))


def evaluate(
    models: Mapping[str, LanguageModel],
    encoder: Encoder,
    data: Benchmark,
    metric_names: Iterable[str],
    retrained: Evaluation | None = None,
    token_budget: int | None = None,
    max_new_tokens: int | None = None,
) -> Evaluation:
    """Score a model. `models` maps roles to models; `model` is the one being scored.

    `retrained` is the evaluation of the retrained model, for the metrics that compare with it. Metrics that ask for a
    role that is not there are null, with the reason. `max_new_tokens` cuts every generated text that a metric would
    have longer; `counts` says how many were cut.
    """
    if "model" not in models:
        raise UserError(f"There is no model to score: the roles are {', '.join(models) or 'none'}, not 'model'.")
    names = expand(metric_names)
    asked = [request for name in names for request in resolve(name)[1].requests(data)]
    answers: Answers = {}
    counts: dict[str, Any] = {}
    limits = (token_budget, max_new_tokens)
    _run(asked, models, encoder, answers, counts, limits)
    later = [request for name in names for request in resolve(name)[1].follow_up(data, answers)]
    new = [request for request in later if _key(request) not in answers]
    _run(new, models, encoder, answers, counts, limits, "follow_up.")
    return _compute(answers, data, names, retrained, counts)


def _run(
    asked: Sequence[Request],
    models: Mapping[str, LanguageModel],
    encoder: Encoder,
    answers: Answers,
    counts: dict[str, Any],
    limits: tuple[int | None, int | None],
    label: str = "",
) -> None:
    """Add the answers to `asked`, each kind and role at once, and what they cost."""
    for kind in _kinds(asked):
        for role in sorted({request.role for request in asked if type(request) is kind} & set(models)):
            mine = [request for request in asked if type(request) is kind and request.role == role]
            found, cost = RUNNERS[kind](Asked(models[role], encoder, answers, *limits), mine)
            answers.update(found)
            counts[f"{label}{kind.__name__.lower()}.{role}"] = cost


def _key(request: Request) -> Request:
    return request.bare if isinstance(request, Score) else request


def _kinds(asked: Sequence[Request]) -> list[type[Request]]:
    kinds = {type(request) for request in asked}
    unknown = sorted(kind.__name__ for kind in kinds if kind not in RUNNERS)
    if unknown:
        raise UserError(f"Nothing runs requests of kind {', '.join(unknown)}; register a runner in evaluation.RUNNERS.")
    return [kind for kind in RUNNERS if kind in kinds]


def rescore(
    answers: Answers,
    data: Benchmark,
    metric_names: Iterable[str],
    retrained: Evaluation | None = None,
    given: Mapping[str, Value] | None = None,
) -> Evaluation:
    """All metrics again from kept answers, without a model. `given` values (of an imported log) are taken as is."""
    return _compute(answers, data, expand(metric_names), retrained, {}, given)


def _compute(
    answers: Answers,
    data: Benchmark,
    names: Sequence[str],
    retrained: Evaluation | None,
    counts: dict[str, Any],
    given: Mapping[str, Value] | None = None,
) -> Evaluation:
    values: dict[str, Value] = {name: _in_range(resolve(name)[0], value) for name, value in (given or {}).items()}
    for name in names:
        if name in values:
            continue
        metric = resolve(name)[1]
        missing = _missing(metric, data, answers)
        if missing:
            values[name] = Value(None, reason=missing)
            continue
        found = metric.compute(Context(data, answers, values, retrained.values if retrained else None))
        values[name] = _in_range(resolve(name)[0], found)
    evaluation = Evaluation(values, data, answers, counts)
    undefined = {
        name: sorted(row_id for row_id, number in value.per_sample.items() if number is None)
        for name, value in values.items()
    }
    counts["undefined_rows"] = {name: rows for name, rows in undefined.items() if rows}
    return evaluation


def _in_range(entry: Entry, value: Value) -> Value:
    """The value, or a null with the reason when it, or a sample that it is the mean of, is outside the metric's range.

    Rounding is forgiven up to 1e-6.
    """
    low, high = entry.meta.get("range") or (None, None)
    numbers = {"its value": value.score} | (
        {f"row '{k}'": v for k, v in value.per_sample.items()} if value.is_mean else {}
    )
    for what, number in numbers.items():
        if number is None:
            continue
        slack = 1e-6 * max(1.0, abs(number))
        if (low is not None and number < low - slack) or (high is not None and number > high + slack):
            ends = f"at least {low}" if high is None else f"at most {high}" if low is None else f"{low} to {high}"
            reason = f"{what} is {number:.6g}, outside the range of {entry.name}: {ends}"
            return replace(value, score=None, reason=reason, is_mean=False, replicate=None)
    return value


def _missing(metric: Metric, data: Benchmark, answers: Answers) -> str:
    """Why a metric cannot be computed from these answers; empty when it can."""
    absent = [r for r in metric.requests(data) if not _answered(r, answers)]
    if not absent:
        absent = [r for r in metric.follow_up(data, answers) if not _answered(r, answers)]
    if not absent:
        return ""
    answered = {request.role for request in answers}
    roles = sorted({request.role for request in absent} - answered)
    if roles:
        return f"needs the model role {', '.join(repr(role) for role in roles)}, which was not given"
    kind, want = type(absent[0]).__name__, sorted(getattr(absent[0], "want", ()))
    return f"{len(absent)} of its requests have no answer, for instance {kind}{f' with {want[0]}' if want else ''}"


def _answered(request: Request, answers: Answers) -> bool:
    """Whether there is an answer, with all that the request wants (what has no tokens has nothing to want)."""
    answer = answers.get(_key(request), _NOTHING)
    if answer is _NOTHING or not isinstance(request, Score):
        return answer is not _NOTHING
    parts = {"moments": answer.mean, "rivals": answer.rivals}
    return not len(answer) or all(parts.get(want, answer) is not None for want in request.want)


_NOTHING = object()
