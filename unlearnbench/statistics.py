"""Intervals, paired tests and corrections: small pure functions on numbers; no torch.

Rows of one author or article are not independent, so rows are clustered by their group; models of one seed share
their training noise, so seeds are the outer unit.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

MIN_SEEDS = 5  #: below this many seeds nothing is tested and nothing is ranked

Interval = tuple[float, float]


def known(values: Sequence[float | None]) -> np.ndarray:
    """The defined values as a float64 array: None and NaN are left out."""
    array: np.ndarray = np.array([np.nan if value is None else value for value in values], dtype=float)
    defined: np.ndarray = array[~np.isnan(array)]
    return defined


def cluster_interval(
    values: Sequence[float | None],
    groups: Sequence[str],
    level: float = 0.95,
    draws: int = 1000,
    seed: int = 0,
) -> Interval | None:
    """Percentile bootstrap interval of the mean over rows, whole groups being drawn with replacement.

    The same input gives the same interval. None when fewer than two groups have a defined value.
    """
    if len(values) != len(groups):
        raise ValueError(f"{len(values)} values, but {len(groups)} groups")
    pairs = zip(groups, values, strict=True)
    rows = sorted((group, value) for group, value in pairs if value is not None and not np.isnan(value))
    names = sorted({group for group, _ in rows})
    if len(names) < 2:
        return None
    place = {name: i for i, name in enumerate(names)}
    sums, counts = np.zeros(len(names)), np.zeros(len(names))
    for group, value in rows:
        sums[place[group]] += value
        counts[place[group]] += 1
    rng = np.random.default_rng(seed)
    drawn = rng.multinomial(len(names), np.full(len(names), 1 / len(names)), size=draws)
    low, high = np.quantile((drawn @ sums) / (drawn @ counts), [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def replicate_interval(
    replicate: Callable[[Callable[[Sequence[str]], np.ndarray]], np.ndarray],
    groups_of: Callable[[Sequence[str]], Sequence[str]],
    level: float = 0.95,
    draws: int = 1000,
    seed: int = 0,
) -> Interval | None:
    """Percentile bootstrap interval of any score: `replicate` gets a function from row ids (n,) to counts (draws, n).

    Whole groups are drawn. Rows of the same groups get the same draws, and those of other groups independent ones, so
    that two sides never rise and fall together. None when rows have fewer than two groups.
    """
    sizes: list[int] = []

    def weights(row_ids: Sequence[str]) -> np.ndarray:
        names, places = np.unique(np.asarray(groups_of(row_ids), dtype=str), return_inverse=True)
        sizes.append(len(names))
        rng = np.random.default_rng([seed, zlib.crc32("\0".join(names).encode())])
        drawn = rng.multinomial(len(names), np.full(len(names), 1 / len(names)), size=draws)
        counts: np.ndarray = drawn[:, places]
        return counts

    scores = replicate(weights)
    if min(sizes, default=0) < 2:
        return None
    low, high = np.quantile(scores[np.isfinite(scores)], [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def value_range(values: Sequence[float | None]) -> Interval | None:
    """(smallest, largest) of the defined values; None when there is none."""
    array = known(values)
    return (float(array.min()), float(array.max())) if len(array) else None


def seeds_interval(values: Sequence[float | None], level: float = 0.95) -> Interval | None:
    """Student-t interval of the mean over seeds, from one number per seed. None below two defined seeds."""
    from scipy import stats  # takes a second to import: only where it is needed

    array = known(values)
    if len(array) < 2:
        return None
    half = stats.t.ppf((1 + level) / 2, len(array) - 1) * array.std(ddof=1) / np.sqrt(len(array))
    return float(array.mean() - half), float(array.mean() + half)


def crossed_interval(samples: Mapping[int, Sequence[tuple[str, float]]], level: float = 0.95) -> Interval | None:
    """Interval of the mean over seeds of the seeds' row means: seeds outside, groups as clusters inside.

    `samples` maps a seed to its (group, value) rows. The same authors are scored in every seed, so their luck does not
    average out over seeds: the variance is that of the seeds plus that of the groups minus that of their interaction,
    which both contain (the two-way variance of Cameron, Gelbach and Miller, 2011), and never less than either. Degrees
    of freedom after Satterthwaite. None below two seeds or two groups.
    """
    from scipy import stats  # takes a second to import: only where it is needed

    seeds = sorted(seed for seed, rows in samples.items() if rows)
    names = sorted({group for seed in seeds for group, _ in samples[seed]})
    if len(seeds) < 2 or len(names) < 2:
        return None
    place = {name: i for i, name in enumerate(names)}
    means = np.array([np.mean([value for _, value in samples[seed]]) for seed in seeds])
    s, g = len(seeds), len(names)
    influence = np.zeros((s, g))  # of each group in each seed on the mean over seeds
    for i, seed in enumerate(seeds):
        for group, value in samples[seed]:
            influence[i, place[group]] += (value - means[i]) / len(samples[seed]) / s
    of_group = influence.sum(0)
    seed_variance = means.var(ddof=1) / s
    group_variance = (of_group**2).sum() * g / (g - 1)
    interaction = ((influence - of_group / s) ** 2).sum() * s / (s - 1) * g / (g - 1)
    variance = max(seed_variance + group_variance - interaction, seed_variance, group_variance)
    mean = float(means.mean())
    if variance == 0:
        return mean, mean
    freedom = variance**2 / (seed_variance**2 / (s - 1) + group_variance**2 / (g - 1))
    half = float(stats.t.ppf((1 + level) / 2, max(freedom, min(s, g) - 1)) * np.sqrt(variance))
    return mean - half, mean + half


@dataclass(frozen=True)
class Comparison:
    """A paired comparison over seeds: `difference` is the mean of first - second, `effect` its Cohen's d.

    `p` is two-sided; `adjusted` is p after Holm over the family. Both None, with a `reason`, when there is no test.
    """

    first: str
    second: str
    n: int
    difference: float | None
    effect: float | None = None
    p: float | None = None
    adjusted: float | None = None
    reason: str = ""


def paired(first: str, second: str, a: Mapping[int, float], b: Mapping[int, float]) -> Comparison:
    """Paired t test over the seeds both have; "insufficient" below `MIN_SEEDS` of them."""
    from scipy import stats  # takes a second to import: only where it is needed

    seeds = sorted(a.keys() & b.keys())
    differences = np.array([a[seed] - b[seed] for seed in seeds])
    n = len(seeds)
    if n < MIN_SEEDS:
        reason = f"insufficient: {n} seeds in common, {MIN_SEEDS} are needed"
        return Comparison(first, second, n, float(differences.mean()) if n else None, reason=reason)
    mean = float(differences.mean())
    spread = float(differences.std(ddof=1))
    if spread < 1e-12:
        reason = "the differences are the same in every seed: nothing to test against"
        return Comparison(first, second, n, mean, reason=reason)
    t = mean / (spread / np.sqrt(n))
    return Comparison(first, second, n, mean, mean / spread, float(2 * stats.t.sf(abs(t), n - 1)))


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down adjustment, in the order given: reject where the result is below the level."""
    order = np.argsort(p_values, kind="stable")
    adjusted, running = [0.0] * len(p_values), 0.0
    for step, index in enumerate(order):
        running = max(running, min(1.0, (len(p_values) - step) * p_values[index]))
        adjusted[index] = float(running)
    return adjusted


def compare_all(values: Mapping[str, Mapping[int, float]]) -> list[Comparison]:
    """Every pair of names, Holm over all pairs that can be tested. `values`: name -> seed -> number."""
    names = list(values)
    pairs = [paired(a, b, values[a], values[b]) for i, a in enumerate(names) for b in names[i + 1 :]]
    adjusted = iter(holm([pair.p for pair in pairs if pair.p is not None]))
    return [
        pair
        if pair.p is None
        else Comparison(pair.first, pair.second, pair.n, pair.difference, pair.effect, pair.p, next(adjusted))
        for pair in pairs
    ]
