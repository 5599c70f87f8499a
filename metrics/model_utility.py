"""Model Utility: the harmonic mean of nine numbers (TOFU section 3.2).

Probability, ROUGE-L and Truth Ratio, each on retain, real authors and world facts. The harmonic mean is 0 as soon as
one part is 0, and null as soon as one part is null: eight numbers are not nine.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from unlearnbench.metric import Context, Metric, Value, Weights, metrics

SPLITS = ("retain", "real_authors", "world_facts")
KINDS = ("prob", "rouge_l", "truth_ratio")


def harmonic_mean(values: Sequence[float]) -> float:
    """n / sum(1 / x) of numbers >= 0; 0 when one of them is 0."""
    return 0.0 if min(values) <= 0 else len(values) / sum(1 / value for value in values)


@metrics.register(
    "model_utility",
    title="Model Utility",
    direction="higher",
    range=(0, 1),
    side="utility",
    unit="harmonic mean",
    source="TOFU, arXiv:2401.06121, section 3.2",
    version=2,
)
class ModelUtility(Metric):
    """Harmonic mean of the nine parts, which `details` lists.

        MU = 9 / (1/part_1 + ... + 1/part_9)

    Null as soon as one part is null.
    """

    protocols: ClassVar = {
        "ours": "nine parts of `ours`",
        "tofu": "nine parts of `tofu`, Truth Ratio with the geometric mean (aggregate_eval_stat.py)",
        "tofu-arithmetic": "Truth Ratio with the arithmetic mean (locuslab/tofu utils.py)",
        "open-unlearning": "nine parts of `open-unlearning`",
    }
    split: str = "retain"

    @property
    def depends(self) -> tuple[str, ...]:
        names = []
        for kind in KINDS:
            protocol = "tofu" if self.protocol == "tofu-arithmetic" and kind != "truth_ratio" else self.protocol
            names += [f"{s}_{kind}" + ("" if protocol == "ours" else f"@{protocol}") for s in SPLITS]
        return tuple(names)

    def compute(self, context: Context) -> Value:
        parts = {name: context.value(name) for name in self.depends}
        details: dict[str, float | int | str | None] = {name: value.score for name, value in parts.items()}
        missing = [f"{name} ({value.reason})" for name, value in parts.items() if value.score is None]
        if missing:
            return Value(None, reason=f"{len(missing)} of 9 parts are null: {missing[0]}", details=details)
        details["n"] = sum(parts[name].n for name in self.depends[: len(SPLITS)])  # rows of the three splits
        score = harmonic_mean([value.score for value in parts.values() if value.score is not None])
        return Value(score, details=details, replicate=lambda weights: _replicate(list(parts.values()), weights))


def _replicate(parts: Sequence[Value], weights: Weights) -> np.ndarray:
    """The harmonic mean in each draw (draws,); the three parts of a split are drawn together."""
    means = []
    for part in parts:
        known = {row_id: number for row_id, number in part.per_sample.items() if number is not None}
        counts = weights(list(known))
        means.append(counts @ np.array(list(known.values())) / counts.sum(1))
    with np.errstate(divide="ignore"):
        drawn: np.ndarray = len(means) / (1 / np.array(means)).sum(0)
    return drawn
