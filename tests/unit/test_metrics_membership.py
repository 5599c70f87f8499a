"""Attacks on short texts, empty sides, ties, signs and thresholds."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from unlearnbench.benchmarks.base import Benchmark, Row
from unlearnbench.evaluation import rescore
from unlearnbench.metric import Context, Score, TokenScores, Value
from unlearnbench.metrics.membership import MinK, MinKPlusPlus, auc, compare, min_k, min_k_plus_plus, tpr
from unlearnbench.metrics.privleak import privleak, rel_diff
from unlearnbench.statistics import replicate_interval


def tokens(*logp: float) -> TokenScores:
    values = np.array(logp, dtype=float)
    return TokenScores(values, np.zeros(len(values), bool), values - 1, np.ones(len(values)))


@pytest.mark.parametrize("k", [0.05, 0.2, 0.4])
@pytest.mark.parametrize("n", [1, 2, 3])
def test_short_texts_have_a_number(k: float, n: int) -> None:
    """B46: at least one token is taken; the published code of MUSE takes none, and its mean is NaN."""
    logp = [-1.0, -5.0, -3.0][:n]
    assert min_k(tokens(*logp), k) == min(logp)
    assert min_k(tokens(*logp), k, "muse") == (min(logp) if int(k * n) else None)
    assert min_k_plus_plus(tokens(*logp), k) == pytest.approx(1.0)


def test_a_text_without_tokens_has_none() -> None:
    """B46: never 0, which is the strongest member."""
    assert min_k(tokens(), 0.4) is None and min_k_plus_plus(tokens(), 0.4) is None
    assert min_k(tokens(), 0.4, "open-unlearning") == 0


def scored(forget: list[TokenScores], holdout: list[TokenScores], metric: Any = None) -> Value:
    splits = {"forget": forget, "holdout": holdout}
    rows = {s: [Row(f"{s}{i}", f"{s}{i}", "a") for i in range(len(x))] for s, x in splits.items()}
    answers = {Score(f"{s}{i}", "a"): x for s, side in splits.items() for i, x in enumerate(side)}
    data = Benchmark(rows)
    data.name = "t"
    return (metric or MinK()).compute(Context(data, answers, {}))


def test_an_empty_row_leaves_the_auc_alone() -> None:
    """B46, B38: dropped from the AUC and counted."""
    forget, holdout = [tokens(-1.0), tokens(-2.0)], [tokens(-1.5), tokens(-3.0)]
    for metric in (MinK(), MinKPlusPlus()):
        without, with_empty = scored(forget, holdout, metric), scored([*forget, tokens()], holdout, metric)
        assert with_empty.score == without.score
        assert with_empty.details["undefined_rows"] == 1 and with_empty.details["n_forget"] == 2


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_score_that_is_not_finite_is_left_out(bad: float) -> None:
    """B38"""
    value = scored([tokens(-1.0), tokens(bad)], [tokens(-2.0)])
    assert value.score == 1.0 and value.details["undefined_rows"] == 1
    assert value.per_sample["forget1"] is None


def test_one_side_empty_is_null() -> None:
    """B38: no holdout, no AUC; sklearn gives NaN, 0 or an exception, as its version has it."""
    assert scored([tokens(-1.0)], []).score is None
    assert scored([], [tokens(-1.0)]).score is None
    value = scored([tokens()], [tokens(-1.0)])
    assert value.score is None and "no forget row" in value.reason


def test_one_row_a_side_has_its_counts_and_no_interval() -> None:
    """B38: an AUC of one pair is 0 or 1; the counts stand with it, and no interval pretends to know more."""
    value = scored([tokens(-1.0)], [tokens(-2.0)])
    assert value.score == 1.0 and (value.details["n_forget"], value.details["n_holdout"], value.n) == (1, 1, 2)
    assert value.details["warning"] == "few rows: 1 forget and 1 holdout"
    assert scored([tokens(-1.0)] * 10, [tokens(-2.0)] * 9).details["warning"] == "few rows: 9 holdout"
    assert "warning" not in scored([tokens(-1.0)] * 10, [tokens(-2.0)] * 10).details
    assert value.replicate is not None
    assert replicate_interval(value.replicate, lambda ids: list(ids)) is None


def test_the_interval_draws_both_sides_by_themselves() -> None:
    """Twenty equal scores a side: with the same draws on both the AUC is 1/2 in each, and the interval has no width."""
    scores = {f"{i}": float(i) for i in range(20)}
    value = compare({f"forget-{i}": x for i, x in scores.items()}, {f"holdout-{i}": x for i, x in scores.items()})
    assert value.score == 0.5 and value.replicate is not None
    low, high = replicate_interval(value.replicate, lambda ids: list(ids))  # type: ignore[misc]
    # the standard error of an AUC of 1/2 from n and m scores is sqrt((n + m + 1) / (12 n m)) = 0.092
    assert 0.25 < low < 0.38 and 0.62 < high < 0.75
    assert (low, high) == replicate_interval(value.replicate, lambda ids: list(ids))


def test_an_id_on_both_sides_is_null() -> None:
    """Scores are kept by row id: the holdout row would take the place of the forget row."""
    value = compare({"0": 2.0, "1": 3.0}, {"1": 0.0, "2": 1.0})
    assert value.score is None and "'1' stands on both sides" in value.reason
    rows = [Row("0", "f", "a")], [Row("0", "h", "a")]
    data = Benchmark({"forget": rows[0], "holdout": rows[1]})
    data.name = "t"
    answers = {Score("f", "a"): tokens(-1.0), Score("h", "a"): tokens(-2.0)}
    assert rescore(answers, data, ["loss_auc"]).values["loss_auc"].score is None


def test_all_equal_is_one_half() -> None:
    """B38"""
    assert scored([tokens(-1.0)] * 3, [tokens(-1.0)] * 5).score == 0.5


@given(
    st.lists(st.integers(-5, 5), min_size=1, max_size=20),
    st.lists(st.integers(-5, 5), min_size=1, max_size=20),
)
def test_auc_equals_sklearn(members: list[int], others: list[int]) -> None:
    labels = [1] * len(members) + [0] * len(others)
    assert auc(members, others) == pytest.approx(roc_auc_score(labels, [*members, *others]))
    assert auc(members, others) + auc(others, members) == pytest.approx(1)


def test_a_model_that_knows_the_forget_rows_has_an_auc_of_one() -> None:
    value = scored([tokens(-0.1, -0.2), tokens(-0.3)], [tokens(-2.0), tokens(-3.0, -0.1)])
    assert value.score == 1.0 and value.details["tpr_at_1_fpr"] == 1.0


def test_true_positives_at_few_false_ones() -> None:
    others = list(range(100))
    assert tpr([98.5, 99.5, 10], others, 0.01) == pytest.approx(2 / 3)  # one holdout row (99) may lie above
    assert tpr([98.5, 99.5, 10], others[:99], 0.01) == pytest.approx(2 / 3)  # none may: above 98
    assert tpr([1, 1], [1, 1], 0.01) == 0
    assert compare({"a": 1.0}, {"b": 0.0}, "tpr").score == 1.0


def test_privleak_signs_and_denominators() -> None:
    """B10"""
    assert privleak(0.5, 0.5) == 0
    assert privleak(0.99, 0.48) == pytest.approx(-98.08, abs=0.01)
    assert privleak(0.0, 0.5) == pytest.approx(100)
    assert privleak(0.7, 1.0) is None
    assert privleak(0.7, 1.0, epsilon=1e-10) == pytest.approx(3e11)
    assert rel_diff(0.99, 0.48) == pytest.approx(106.25)
    assert rel_diff(0.7, 0.001) is None


def test_relative_metrics_need_the_retrained_run() -> None:
    answers = {Score("f", "a"): tokens(-1.0), Score("h", "a"): tokens(-2.0)}
    data = Benchmark({"forget": [Row("f", "f", "a")], "holdout": [Row("h", "h", "a")]})
    data.name = "t"
    names = ["mink_auc_gap", "privleak", "mink_rel_diff", "privleak@open-unlearning"]
    alone = rescore(answers, data, names).values
    assert all(alone[name].score is None and "retrained" in alone[name].reason for name in names)
    half = {Score("f", "a"): tokens(-1.0), Score("h", "a"): tokens(-1.0)}
    retrained = rescore(half, data, ["mink_auc", "mink_auc@open-unlearning"])
    values = rescore(answers, data, [*names, "privleak_half"], retrained).values
    assert values["mink_auc_gap"].score == 0.5
    assert values["privleak"].score == -100 and values["mink_rel_diff"].score == 100
    assert values["privleak_half"].score == -100
    turned = rescore(half, data, ["privleak"], rescore(answers, data, ["mink_auc"])).values["privleak"]
    assert turned.score is None and "denominator" in turned.reason
