"""Intervals and tests on numbers that can be checked by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from scipy import stats

from unlearnbench.statistics import (
    cluster_interval,
    compare_all,
    crossed_interval,
    holm,
    paired,
    replicate_interval,
    seeds_interval,
    value_range,
)


def test_cluster_interval_draws_groups_not_rows() -> None:
    # Two groups, each constant: a draw gives 0, 1/2 or 1, so the interval is all of [0, 1] however many rows there are.
    values, groups = [0.0] * 50 + [1.0] * 50, ["a"] * 50 + ["b"] * 50
    assert cluster_interval(values, groups) == (0.0, 1.0)
    by_row = cluster_interval(values, [str(i) for i in range(100)])
    assert by_row is not None and by_row[0] > 0.35 and by_row[1] < 0.65


def test_cluster_interval_is_deterministic_and_ignores_order_and_nulls() -> None:
    values, groups = [0.1, 0.9, 0.4, 0.3], ["a", "b", "c", "a"]
    first = cluster_interval(values, groups)
    assert first == cluster_interval(values[::-1], groups[::-1])
    assert first == cluster_interval([*values, None, float("nan")], [*groups, "a", "d"])
    many, named = [i * i / 900 for i in range(30)], [f"g{i % 15}" for i in range(30)]
    assert cluster_interval(many, named) == cluster_interval(many[::-1], named[::-1])
    assert cluster_interval(many, named) != cluster_interval(many, named, seed=1)


def test_cluster_interval_needs_two_groups() -> None:
    assert cluster_interval([0.1, 0.2, 0.3], ["a", "a", "a"]) is None
    assert cluster_interval([0.1, None], ["a", "b"]) is None
    assert cluster_interval([], []) is None
    with pytest.raises(ValueError, match="2 values, but 1 groups"):
        cluster_interval([0.1, 0.2], ["a"])


def test_replicates_share_draws_exactly_when_they_share_groups() -> None:
    groups = {"a0": "a", "a1": "a", "b0": "b", "b1": "b", "c": "c", "d": "d", "e": "e", "f": "f"}
    drawn = {}

    def replicate(weights: Callable[[Sequence[str]], np.ndarray]) -> np.ndarray:
        drawn.update(one=weights(["a0", "b0"]), two=weights(["b1", "a1"]), other=weights(["c", "d"]))
        drawn.update(wide=weights(["a0", "a1", "b0", "b1", "c", "d", "e", "f"]))
        return np.arange(101, dtype=float)

    assert replicate_interval(replicate, lambda ids: [groups[i] for i in ids]) == pytest.approx((2.5, 97.5))
    assert (drawn["one"] == drawn["two"][:, ::-1]).all()  # the same groups, whatever the rows and their order
    assert abs(np.corrcoef(drawn["one"][:, 0], drawn["other"][:, 0])[0, 1]) < 0.15
    assert (drawn["wide"][:, 0] == drawn["wide"][:, 1]).all() and (drawn["one"].sum(1) == 2).all()


def test_percentile_intervals_leave_out_a_fortieth_on_each_side() -> None:
    """Means of 25 groups with spread 1: about 1.96 / 5 to either side."""
    normal = stats.norm.ppf((np.arange(25) + 0.5) / 25)
    normal = (normal / normal.std()).tolist()
    names = [f"g{i:02d}" for i in range(25)]
    low, high = cluster_interval(normal, names, draws=20_000)  # type: ignore[misc]
    assert (low, high) == pytest.approx((-1.96 / 5, 1.96 / 5), abs=0.015)
    low, high = cluster_interval(normal, names, level=0.5, draws=20_000)  # type: ignore[misc]
    assert (low, high) == pytest.approx((-0.6745 / 5, 0.6745 / 5), abs=0.01)


def test_range_and_t_interval() -> None:
    assert value_range([0.3, None, 0.1, float("nan")]) == (0.1, 0.3)
    assert value_range([None]) is None
    # 1, 2, 3, 4, 5: mean 3, sd sqrt(2.5), t(0.975; 4) = 2.776445
    low, high = seeds_interval([1, 2, 3, 4, 5])  # type: ignore[misc]
    assert (low, high) == pytest.approx((3 - 2.776445 * np.sqrt(2.5 / 5), 3 + 2.776445 * np.sqrt(2.5 / 5)), abs=1e-6)
    assert seeds_interval([1.0, None]) is None


def test_crossed_interval_reduces_to_its_parts() -> None:
    # The same in every group: only seeds vary, and the interval is the t interval over seeds.
    only_seeds = {s: [("a", float(s)), ("b", float(s))] for s in range(1, 6)}
    assert crossed_interval(only_seeds) == pytest.approx(seeds_interval([1, 2, 3, 4, 5]))
    # The same in every seed: only groups vary, and more seeds do not make it narrower.
    only_groups = {s: [("a", 0.0), ("b", 1.0), ("c", 2.0)] for s in range(5)}
    half = stats.t.ppf(0.975, 2) * np.sqrt(1 / 3)
    # Satterthwaite gives 2 degrees of freedom, but never fewer than min(seeds, groups) - 1 = 2
    assert crossed_interval(only_groups) == pytest.approx((1 - half, 1 + half))
    assert crossed_interval({0: [("a", 1.0), ("b", 1.0)], 1: [("a", 1.0), ("b", 1.0)]}) == (1.0, 1.0)
    assert crossed_interval({0: [("a", 1.0), ("b", 1.0)]}) is None
    assert crossed_interval({0: [("a", 1.0)], 1: [("a", 2.0)]}) is None


def test_crossed_interval_covers_what_it_promises() -> None:
    # Five seeds, twelve authors that all seeds share: the truth (0) lies inside about 95 % of the time.
    rng = np.random.default_rng(0)
    inside = 0
    for _ in range(400):
        x = 0.3 * rng.normal(size=(5, 1)) + 0.5 * rng.normal(size=(1, 12)) + 0.5 * rng.normal(size=(5, 12))
        interval = crossed_interval({s: [(str(g), float(x[s, g])) for g in range(12)] for s in range(5)})
        assert interval is not None
        inside += interval[0] <= 0 <= interval[1]
    assert 0.92 <= inside / 400 <= 0.99


def test_paired_t_by_hand() -> None:
    # differences 1, 2, 3, 4, 5: mean 3, sd sqrt(2.5) = 1.581139, d = 1.897367, t = 4.242641, p(4 df) = 0.013236
    result = paired("x", "y", dict(enumerate([2, 4, 6, 8, 10])), dict(enumerate([1, 2, 3, 4, 5])))
    assert result.n == 5 and result.difference == 3
    assert result.effect == pytest.approx(1.897367, abs=1e-6)
    assert result.p == pytest.approx(0.013236, abs=1e-6)


def test_paired_uses_common_seeds_and_says_insufficient() -> None:
    a, b = {0: 1.0, 1: 2.0, 2: 3.0, 3: 4.0, 9: 100.0}, {0: 0.0, 1: 0.0, 2: 0.0, 3: 0.0, 8: 5.0}
    result = paired("x", "y", a, b)
    assert (result.n, result.difference, result.p) == (4, 2.5, None)
    assert result.reason.startswith("insufficient: 4 seeds")
    same = paired("x", "y", {s: s + 1.0 for s in range(5)}, {s: float(s) for s in range(5)})
    assert same.p is None and "nothing to test" in same.reason


def test_holm_by_hand() -> None:
    # sorted .01 .02 .03 .04 -> x4 = .04, x3 = .06, x2 = .06, x1 = .06 (monotone)
    assert holm([0.03, 0.01, 0.04, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


def test_compare_all_adjusts_over_every_testable_pair() -> None:
    rng = np.random.default_rng(3)
    values = {name: {s: mean + float(rng.normal(0, 0.1)) for s in range(6)} for name, mean in [("a", 0), ("b", 1)]}
    values["c"] = {0: 0.5}
    pairs = {(c.first, c.second): c for c in compare_all(values)}
    assert len(pairs) == 3
    assert pairs["a", "b"].adjusted == pairs["a", "b"].p  # the only pair that can be tested
    assert pairs["a", "c"].adjusted is None and pairs["b", "c"].p is None
