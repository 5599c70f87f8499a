"""Every registered metric declares what tables and pages need; suites name metrics that exist."""

from __future__ import annotations

import pickle

import pytest

from unlearnbench.benchmarks.base import Benchmark
from unlearnbench.errors import UserError
from unlearnbench.evaluation import rescore
from unlearnbench.metric import SIDES, SUITES, Metric, expand, metrics, resolve
from unlearnbench.registry import Entry
from unlearnbench.requests import Request

ENTRIES = list(metrics)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_declaration(entry: Entry) -> None:
    """B21: direction, range, goal, side and unit stand with the metric and nowhere else."""
    assert entry.meta["direction"] in ("higher", "lower")
    assert entry.meta.get("target") in (None, "retrained")
    assert entry.meta["side"] in SIDES
    assert entry.title != entry.name and entry.cls.__doc__
    assert entry.meta.get("adapter") or entry.meta["unit"]
    bounds = entry.meta.get("range")
    assert bounds is None or len(bounds) == 2
    if entry.meta["side"] in ("forget", "privacy"):
        assert entry.meta["target"] == "retrained", "the goal of forgetting is the retrained model, not an extreme"


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_options_round_trip(entry: Entry) -> None:
    metric = entry.build()
    assert isinstance(metric, Metric)
    assert type(metric)(**metric.model_dump()) == metric
    assert pickle.loads(pickle.dumps(metric)) == metric
    with pytest.raises(ValueError, match="unknown_option"):
        entry.build(unknown_option=1)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_protocols_are_reachable_and_need_no_others(entry: Entry) -> None:
    assert "ours" in entry.cls.protocols  # type: ignore[attr-defined]
    for protocol, text in entry.cls.protocols.items():  # type: ignore[attr-defined]
        assert text
        for name in expand([f"{entry.name}@{protocol}"]):
            assert resolve(name)[1].registered_name
    with pytest.raises(UserError, match="has no protocol"):
        resolve(f"{entry.name}@nobodys")


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_an_empty_benchmark_gives_null(entry: Entry) -> None:
    """No split, no number: nothing falls back to 0 or one half."""
    data = Benchmark({})
    data.name = "empty"
    for protocol in entry.cls.protocols:  # type: ignore[attr-defined]
        for value in rescore({}, data, [f"{entry.name}@{protocol}"]).values.values():
            assert value.score is None and value.reason
            assert "\n" not in value.reason


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_requests_are_hashable_and_repeatable(entry: Entry) -> None:
    from unlearnbench.testing.tiny import tiny_rows

    data = Benchmark({s: tiny_rows(2, s) for s in ("forget", "retain", "holdout", "real_authors", "world_facts")})
    metric = entry.build()
    first, second = list(metric.requests(data)), list(metric.requests(data))
    assert first == second and len(set(first)) <= len(first)
    assert all(isinstance(request, Request) for request in first)


def test_suites() -> None:
    assert {"tofu", "mia", "muse"} <= set(SUITES)
    for suite in SUITES:
        names = expand([suite])
        assert names and len(set(names)) == len(names)
        for name in names:  # dependencies come first
            assert all(names.index(needed) < names.index(name) for needed in resolve(name)[1].depends)


def test_the_names_the_tables_stand_on() -> None:
    sides = ("retain", "real_authors", "world_facts")
    wanted = [f"{side}_{kind}" for side in (*sides, "forget") for kind in ("prob", "rouge_l", "truth_ratio")]
    wanted += ["one_minus_rouge_l", "one_minus_prob", "model_utility", "forget_quality", "mink_auc"]
    wanted += ["forget_exact", "retain_exact", "forget_fact", "retain_fact"]
    wanted += ["forget_paraphrase_prob", "forget_paraphrase_fact"]
    assert set(wanted) <= set(metrics.names())
    assert set(expand(["tofu"])) >= {"model_utility", "forget_quality", "forget_truth_ratio"}


def test_looking_metrics_up_needs_no_torch() -> None:
    import subprocess
    import sys

    code = "import sys; from unlearnbench.metric import metrics; metrics.names(); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
