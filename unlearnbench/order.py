"""Which rows an optimiser step sees: a pure function of (seed, step), so that a resume needs no stored position.

It does not touch the global random state. The rows of a step depend on the rows per step only, not on how they are
split into micro-batches and processes.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence

import numpy as np

WINDOW = 8  #: steps whose rows are sorted by length together, when bucketing


def generator(*key: object) -> np.random.Generator:
    """A random generator for a key such as ("retain", seed, epoch), the same in every process and version of Python."""
    digest = hashlib.sha256(repr(key).encode()).digest()
    return np.random.default_rng(int.from_bytes(digest[:8], "big"))


class EpochOrder:
    """Passes over `count` items, `per_step` a step; the last step of a pass may have fewer. For forget rows and fine-
    tuning.

    `lengths(epoch)` gives the items' lengths, for bucketing (None: no bucketing).
    """

    def __init__(
        self,
        count: int,
        per_step: int,
        seed: int,
        lengths: Callable[[int], Sequence[int]] | None = None,
        name: str = "",
    ):
        self.count, self.per_step, self.seed, self.lengths, self.name = count, per_step, seed, lengths, name
        self.steps_per_epoch = math.ceil(count / per_step)
        self._epoch = -1
        self._steps: list[list[int]] = []

    def rows(self, step: int) -> list[int]:
        """Indices of the items of optimiser step `step` (from 0)."""
        epoch, index = divmod(step, self.steps_per_epoch)
        if epoch != self._epoch:
            self._epoch, self._steps = epoch, self._deal(epoch)
        return self._steps[index]

    def _deal(self, epoch: int) -> list[list[int]]:
        random = generator(self.name, self.seed, epoch)
        order = random.permutation(self.count)
        if self.lengths is not None:
            order = _bucket(order, np.asarray(self.lengths(epoch)), self.per_step, random)
        return [order[i : i + self.per_step].tolist() for i in range(0, self.count, self.per_step)]


class StreamOrder:
    """An endless stream over `count` items, each pass freshly shuffled, `per_step` a step. For retain rows."""

    def __init__(self, count: int, per_step: int, seed: int, lengths: Sequence[int] | None = None, name: str = ""):
        self.count, self.per_step, self.seed, self.name = count, per_step, seed, name
        self.lengths = None if lengths is None else np.asarray(lengths)
        self._windows: dict[int, np.ndarray] = {}

    def _places(self, first: int, last: int) -> np.ndarray:
        """The rows at the places of steps `first` to `last` (excluded) of the stream."""
        places = np.arange(first * self.per_step, last * self.per_step)
        cycles = places // self.count
        shuffled = {c: generator(self.name, self.seed, int(c)).permutation(self.count) for c in np.unique(cycles)}
        return np.array([shuffled[c][p % self.count] for c, p in zip(cycles, places, strict=True)])

    def rows(self, step: int) -> list[int]:
        """Indices of the items of optimiser step `step` (from 0).

        Bucketing moves rows only among steps that lie in one pass, so every row is seen before any is seen twice.
        """
        cycle = step * self.per_step // self.count
        low = -(-cycle * self.count // self.per_step)
        high = (cycle + 1) * self.count // self.per_step
        if self.lengths is None or not low <= step < high:
            return [int(i) for i in self._places(step, step + 1)]
        first = step - (step - low) % WINDOW
        if first not in self._windows:
            order = self._places(first, min(first + WINDOW, high))
            random = generator(self.name, self.seed, "window", first)
            self._windows = {first: _bucket(order, self.lengths, self.per_step, random)}
        start = (step - first) * self.per_step
        return [int(i) for i in self._windows[first][start : start + self.per_step]]


def _bucket(order: np.ndarray, lengths: np.ndarray, per_step: int, random: np.random.Generator) -> np.ndarray:
    """Within windows of `WINDOW` steps, put rows of similar length into the same step; steps stay in random order."""
    out = []
    for start in range(0, len(order), WINDOW * per_step):
        window = order[start : start + WINDOW * per_step]
        window = window[np.argsort(lengths[window], kind="stable")]
        full = len(window) // per_step
        steps = [window[i * per_step : (i + 1) * per_step] for i in random.permutation(full)]
        out.extend([*steps, window[full * per_step :]])
    return np.concatenate(out) if out else order


def split(rows: Sequence[int], batch_size: int, rank: int, world: int) -> list[list[int]]:
    """The micro-batches of one process: the rows of a step cut into batches, dealt out in turn."""
    batches = [list(rows[i : i + batch_size]) for i in range(0, len(rows), batch_size)]
    return batches[rank::world]
