"""What must hold of every metric: checks over one registered name. Each `check_…` raises AssertionError."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable

from pydantic import ValidationError

from unlearnbench.benchmarks.base import Benchmark
from unlearnbench.errors import UserError
from unlearnbench.evaluation import evaluate, rescore
from unlearnbench.metric import SIDES, Metric, expand, resolve
from unlearnbench.registry import Entry
from unlearnbench.requests import Request
from unlearnbench.testing.tiny import FORGET_ROWS, RETAIN_ROWS, tiny_encoder, tiny_rows, tiny_target

SPLITS = ("forget", "retain", "holdout", "real_authors", "world_facts")


def check_declaration(entry: Entry) -> None:
    """Direction, range, goal, side and unit stand with the metric and nowhere else."""
    meta = entry.meta
    assert issubclass(entry.cls, Metric), f"{entry.cls.__name__} is no Metric"
    assert meta.get("direction") in ("higher", "lower"), "`direction` is higher or lower"
    assert meta.get("target") in (None, "retrained"), "`target` is retrained, or left out"
    assert meta.get("side") in SIDES, f"`side` is one of {', '.join(SIDES)}"
    assert entry.title and entry.title != entry.name, "there is no title"
    assert entry.cls.__doc__ and entry.cls.__doc__ != Metric.__doc__, "the class has no docstring"
    assert meta.get("adapter") or meta.get("unit"), "there is no `unit`"
    assert meta.get("range") is None or len(meta["range"]) == 2, "`range` is a pair"
    if meta["side"] in ("forget", "privacy"):
        assert meta.get("target") == "retrained", "the goal of forgetting is the retrained model, not an extreme"


def check_options(entry: Entry) -> None:
    """The options survive JSON and pickle; an unknown one is refused."""
    metric = entry.build()
    assert type(metric)(**metric.model_dump()) == metric
    assert pickle.loads(pickle.dumps(metric)) == metric
    try:
        entry.build(unknown_option=1)
    except ValidationError as error:
        assert "unknown_option" in str(error)
    else:
        raise AssertionError("an unknown option is accepted")


def check_protocols(entry: Entry) -> None:
    """Each protocol is described and reached as `name@protocol`, and needs only metrics that exist."""
    protocols: dict[str, str] = dict(entry.cls.protocols)  # type: ignore[attr-defined]
    assert "ours" in protocols and all(protocols.values()), "each protocol is described, 'ours' among them"
    for protocol in protocols:
        for name in expand([f"{entry.name}@{protocol}"]):
            assert resolve(name)[1].registered_name
    try:
        resolve(f"{entry.name}@nobodys")
    except UserError as error:
        assert "has no protocol" in str(error)
    else:
        raise AssertionError("an unknown protocol is accepted")


def check_null_without_rows(entry: Entry) -> None:
    """No split, no number: nothing falls back to 0 or one half."""
    data = Benchmark({})
    data.name = "empty"
    for protocol in entry.cls.protocols:  # type: ignore[attr-defined]
        for name, value in rescore({}, data, [f"{entry.name}@{protocol}"]).values.items():
            assert value.score is None, f"{name} is {value.score} without any row"
            assert value.reason and "\n" not in value.reason, f"{name} is null without a reason of one line"


def check_requests(entry: Entry) -> None:
    """What is asked can be hashed, and is the same the second time."""
    data = Benchmark({split: tiny_rows(2, split) for split in SPLITS})
    metric = entry.build()
    first, second = list(metric.requests(data)), list(metric.requests(data))
    assert first == second, "the second time something else is asked"
    assert len(set(first)) <= len(first)
    assert all(isinstance(request, Request) for request in first), "what is asked is no Request"


def check_value(entry: Entry) -> None:
    """On a tiny model: a finite number within the range, the same twice, or a null with its reason."""
    if entry.meta.get("adapter"):
        return  # it stands for the metrics of another library: `name:metric`
    rows = {split: tiny_rows(4, split, 90) for split in SPLITS}
    data = Benchmark({**rows, "forget": FORGET_ROWS, "retain": RETAIN_ROWS})
    data.name = "tiny"
    roles = {"model": tiny_target(), "target": tiny_target()}
    scores = []
    for _ in range(2):
        value = evaluate(roles, tiny_encoder(), data, [entry.name], max_new_tokens=16).values[entry.name]
        assert value.score is not None or value.reason, "a null without a reason"
        scores.append(value.score)
    assert scores[0] == scores[1], f"{scores[0]} and then {scores[1]} of the same model"
    bounds = entry.meta.get("range")
    if scores[0] is not None:
        assert math.isfinite(scores[0]), f"the score is {scores[0]}"
        low, high = bounds or (None, None)
        inside = (low is None or scores[0] >= low - 1e-9) and (high is None or scores[0] <= high + 1e-9)
        assert inside, f"the score {scores[0]} is outside the range {bounds}"


CHECKS: dict[str, Callable[[Entry], None]] = {
    "title, docstring, direction, side and unit are declared": check_declaration,
    "the options survive JSON and pickle, and unknown ones are refused": check_options,
    "protocols are described and can be reached": check_protocols,
    "without rows the value is null, with a reason": check_null_without_rows,
    "the requests are hashable and repeatable": check_requests,
    "on a tiny model the value is finite, in range and repeatable, or null with a reason": check_value,
}
