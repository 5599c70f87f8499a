"""Which checkpoint is reported: the last one, or the best by a metric, paid for in the column `select`.

    select: last                                           # also what an online stop leaves behind
    select: {metric: model_utility, every: epoch}          # score a checkpoint each epoch, report the best one

A selection looks at the metrics that the table reports, so the cell is marked as an oracle and never ranked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from unlearnbench.language_model import LanguageModel


class Selector:
    """Scores the model when due, keeps the best weights in memory, and puts them back at the end.

    `score(lm)` gives the metric, None where it is undefined; `lower` says that less is better. `every`: optimiser
    steps.
    """

    def __init__(self, metric: str, every: int, score: Callable[[LanguageModel], float | None], lower: bool):
        self.metric, self.every, self.score, self.lower = metric, every, score, lower
        self.readings: list[tuple[int, float | None]] = []
        self.best: int | None = None
        self._weights: dict[str, Tensor] = {}

    def due(self, step: int, last: bool) -> bool:
        """Whether to look after `step` steps; the last step is always looked at."""
        return last or step % self.every == 0

    def look(self, lm: LanguageModel, step: int, trained: Mapping[str, nn.Parameter]) -> float | None:
        """Score the model and keep its trained weights when it is the best so far (of equals the first)."""
        value = self.score(lm)
        self.readings.append((step, value))
        known = {at: v for at, v in self.readings if v is not None}
        if value is not None and (self.best is None or self._better(value, known[self.best])):
            self.best = step
            self._weights = {name: p.detach().to("cpu", copy=True) for name, p in trained.items()}
        return value

    def restore(self, trained: Mapping[str, nn.Parameter]) -> None:
        """Put the best weights back; without any defined score the last ones stay."""
        with torch.no_grad():
            for name, weight in self._weights.items():
                trained[name].copy_(weight)

    def _better(self, value: float, than: float) -> bool:
        return value < than if self.lower else value > than

    def state_dict(self) -> dict[str, Any]:
        """What a resume restores."""
        return {"readings": [list(reading) for reading in self.readings], "best": self.best, "weights": self._weights}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state_dict()`."""
        self.readings = [(int(step), value) for step, value in state["readings"]]
        self.best, self._weights = state["best"], dict(state["weights"])
