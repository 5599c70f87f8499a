"""Forget Quality below the smallest float, at its floor, and its two columns."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from unlearnbench.benchmarks.base import Benchmark, Row
from unlearnbench.evaluation import rescore
from unlearnbench.metric import Score, TokenScores, resolve
from unlearnbench.metrics import forget_quality
from unlearnbench.metrics.forget_quality import ks_test


def test_the_floor_is_the_value_at_distance_one() -> None:
    for n, m in ((3, 3), (40, 40), (7, 12)):
        found = ks_test(list(range(n)), list(range(100, 100 + m)))
        assert found.distance == 1
        assert found.log10_p == pytest.approx(math.log10(2 / math.comb(n + m, n)), rel=1e-9)
        assert found.log10_p == pytest.approx(found.floor, rel=1e-9)


def test_400_rows_have_a_floor_of_1e_239() -> None:
    found = ks_test(np.arange(400), np.arange(400) + 1000)
    assert found.log10_p == pytest.approx(-239.0, abs=1)
    assert found.log10_p == pytest.approx(found.floor)


def test_beyond_the_smallest_float_it_counts_on() -> None:
    """1,000 rows a side: p is about 1e-600, which a float cannot hold."""
    a = np.arange(1000.0)
    apart = ks_test(a, a + 1e4)
    assert apart.log10_p == pytest.approx((math.log(2) - _log_choose(2000, 1000)) / math.log(10), rel=1e-9)
    nearly = ks_test(a, np.concatenate([a[:20], a[20:] + 1e4]))
    assert apart.log10_p < nearly.log10_p < -290


def _log_choose(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


@pytest.mark.parametrize(("n", "m"), [(5, 5), (6, 4), (9, 7), (30, 30), (25, 40)])
def test_whole_numbers_agree_with_scipy(n: int, m: int) -> None:
    numbers = np.random.default_rng(n * m)
    for shift in (0.0, 0.7, 2.0):
        a, b = numbers.normal(size=n), numbers.normal(size=m) + shift
        assert forget_quality._log10_exact(a, b) == pytest.approx(math.log10(stats.ks_2samp(a, b).pvalue), abs=1e-9)


def test_whole_numbers_agree_with_trying_every_order() -> None:
    a, b = [1.0, 2.0, 6.0], [3.0, 4.0, 5.0, 7.0]
    distance = stats.ks_2samp(a, b).statistic
    ways = list(itertools.combinations(range(7), 3))
    far = sum(
        stats.ks_2samp(w, [x for x in range(7) if x not in w]).statistic >= distance - 1e-12 for w in map(list, ways)
    )
    assert forget_quality._log10_exact(a, b) == pytest.approx(math.log10(far / len(ways)))


def test_too_many_to_count_takes_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    a = np.arange(900.0)
    b = np.concatenate([a[:300], a[300:] + 1e4])
    exact = forget_quality._log10_exact(a, b)
    limit = forget_quality._log10_limit(stats.ks_2samp(a, b).statistic, 900, 900)
    assert limit == pytest.approx(exact, rel=0.25)


def benchmark(n: int) -> Benchmark:
    rows = [Row(str(i), f"{i}?", "a", perturbed=("w",), group=f"g{i // 2}") for i in range(n)]
    data = Benchmark({"forget": rows})
    data.name = "t"
    return data


def answers(ratios: list[float]) -> dict[Score, TokenScores]:
    """R of row i is exp(ratios[i])."""
    found = {}
    for i, ratio in enumerate(ratios):
        found[Score(f"{i}?", "a")] = TokenScores(np.array([-5.0 - ratio]), np.array([False]))
        found[Score(f"{i}?", "w")] = TokenScores(np.array([-5.0]), np.array([False]))
    return found  # type: ignore[return-value]


def test_p_and_its_logarithm_are_two_columns() -> None:
    """B21"""
    data = benchmark(40)
    here, there = answers(list(np.linspace(0, 1, 40))), answers(list(np.linspace(0.5, 1.5, 40)))
    retrained = rescore(there, data, ["forget_log_truth_ratio"])
    values = rescore(here, data, ["forget_quality", "forget_quality_p"], retrained).values
    log, p = values["forget_quality"].score, values["forget_quality_p"].score
    assert log is not None and p is not None and 10**log == pytest.approx(p) and 0 < p < 1
    assert resolve("forget_quality")[0].meta["unit"] != resolve("forget_quality_p")[0].meta["unit"]
    assert values["forget_quality"].details["n"] == 40 and not values["forget_quality"].details["at_floor"]
    far = rescore(answers([50.0 + i for i in range(40)]), data, ["forget_quality"], retrained).values["forget_quality"]
    assert far.details["at_floor"] == 1 and far.score == pytest.approx(-22.7, abs=0.1)


def test_extreme_ratios_do_not_saturate() -> None:
    """An epsilon in R would make all ruined rows equal; in log space they keep their order."""
    data = benchmark(4)
    values = rescore(
        answers([300.0, 500.0, 700.0, 900.0]), data, ["forget_log_truth_ratio", "forget_truth_ratio"]
    ).values
    assert list(values["forget_log_truth_ratio"].per_sample.values()) == [300.0, 500.0, 700.0, 900.0]
    assert values["forget_truth_ratio"].score == pytest.approx(0, abs=1e-100)


def test_another_forget_set_is_refused() -> None:
    small, large = benchmark(4), benchmark(6)
    retrained = rescore(answers([0.1] * 6), large, ["forget_log_truth_ratio", "forget_log_truth_ratio@tofu"])
    values = rescore(answers([0.1] * 4), small, ["forget_quality", "forget_quality@tofu"], retrained).values
    assert values["forget_quality"].score is None and "other forget rows" in values["forget_quality"].reason
    assert values["forget_quality@tofu"].score is not None
