"""What a benchmark is: rows in named splits, and the metric suite that is run on them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property

from unlearnbench.errors import UserError, did_you_mean
from unlearnbench.registry import Registry


@dataclass(frozen=True)
class Row:
    """One question and answer, or one text (`prompt == ""`: every token after the first is supervised)."""

    id: str  #: unique in the benchmark; the same text keeps its id in every split
    prompt: str
    answer: str
    group: str = ""  #: what rows share (author, article); the unit of resampling
    fact: str = ""  #: the words of `answer` that carry the fact; a substring of `answer`
    paraphrases: tuple[str, ...] = ()  #: other wordings of the prompt, which a target may be trained on
    unseen_paraphrases: tuple[str, ...] = ()  #: wordings of the prompt that nothing is ever trained on
    paraphrased_answer: str = ""  #: the right answer in other words
    perturbed: tuple[str, ...] = ()  #: answers that are wrong in the fact only (or wrong options)
    extra: dict[str, str] = field(default_factory=dict, hash=False)


class Benchmark:
    """Named splits of rows.

    `splits` maps a split name (`forget`, `retain`, `holdout`, `real_authors`, `world_facts`, `tune_forget`,
    `tune_retain`, …) to rows. `suite` names the metrics run by default. `training` maps a model role (`base`,
    `target`, `retrained`) to the names of the splits it is trained on; `None` means that the role is not trained here.
    """

    name: str
    suite: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()  #: what is odd about the rows, one line each; shown before work begins

    def __init__(self, splits: dict[str, Sequence[Row]], training: dict[str, tuple[str, ...]] | None = None):
        self.splits = {name: tuple(rows) for name, rows in splits.items()}
        self.training = training or {}

    def rows(self, split: str) -> tuple[Row, ...]:
        """The rows of a split; `UserError` names the nearest split when there is none."""
        if split not in self.splits:
            raise UserError(f"Benchmark '{self.name}' has no split '{split}'; {did_you_mean(split, self.splits)}")
        return self.splits[split]

    @cached_property
    def data_hash(self) -> str:
        """A hash of every row of every split: part of every key."""
        content = {name: [asdict(row) for row in rows] for name, rows in sorted(self.splits.items())}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


benchmarks: Registry = Registry("benchmark", package="unlearnbench.benchmarks")
