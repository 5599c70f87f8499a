"""Evaluation logs of other code bases: their numbers per row become answers and samples, so that our metrics run on
them.

Read are the logs of TOFU (`eval_log_aggregated.json`, `eval_log_forget.json`, …; protocol `tofu`) and of OpenUnlearning
(`TOFU_EVAL.json`, `MUSE_EVAL.json`; protocol `open-unlearning`). A mean loss per token becomes an answer of one token.
What follows from such answers is computed by our own code; what needs the tokens or the text (ROUGE, extraction
strength, membership scores) is taken row by row as the log has it, under the protocol of the log. An aggregate of the
log stands only where it has no rows for it, and says so. Rows without a number, and NaN, count as undefined.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from unlearnbench.benchmarks.base import Benchmark, Row
from unlearnbench.canonical import file_hash
from unlearnbench.errors import UserError
from unlearnbench.evaluation import Evaluation, rescore
from unlearnbench.metric import Score, TokenScores, Value, expand, resolve

TOFU, OPEN = "tofu", "open-unlearning"
#: how OpenUnlearning's metrics begin -> our splits
OPEN_SIDES = {"forget": "forget", "retain": "retain", "ra": "real_authors", "wf": "world_facts"}
#: MUSE's metrics in OpenUnlearning, F in [0, 1] there and 100 times that here -> our splits
OPEN_TEXTS = {
    "forget_knowmem_ROUGE": "knowmem_forget",
    "retain_knowmem_ROUGE": "knowmem_retain",
    "forget_verbmem_ROUGE": "verbmem_forget",
}
FORGET_SIZES = {"forget01": 40, "forget05": 200, "forget10": 400}
TOFU_LIMIT = 300  #: rows of a split that TOFU's own evaluation stops at
#: names that are in texts on Harry Potter, MUSE's books, and not in news
BOOK_NAMES = re.compile(
    r"\b(Hogwarts|Dumbledore|Hermione|Voldemort|Hagrid|Snape|Weasley|Malfoy|Gryffindor|Quidditch)\b"
)
KINDS = ("prob", "rouge_l", "truth_ratio")
QUESTIONS = 20  #: of each author, one after the other


@dataclass(frozen=True)
class Losses:
    """Mean loss per token (nats) by row index: of the answer, of its paraphrase, and of each wrong answer."""

    plain: Mapping[int, float] = field(default_factory=dict)
    paraphrase: Mapping[int, float] = field(default_factory=dict)
    wrong: Mapping[int, tuple[float, ...]] = field(default_factory=dict)

    @property
    def rows(self) -> list[int]:
        return sorted({*self.plain, *self.paraphrase, *self.wrong})


@dataclass(frozen=True)
class Log:
    """An evaluation log. `given`: metric -> values the log has row by row; `logged`: metric -> what it says itself."""

    file: Path
    protocol: str
    family: str  #: tofu or muse
    losses: dict[str, Losses]
    given: dict[str, Value]
    logged: dict[str, float]
    answers: dict[str, dict[int, str]]  #: split -> row index -> the true answer, where the log has texts

    @property
    def code(self) -> str:
        """Whose log it is."""
        return {TOFU: "TOFU", OPEN: "OpenUnlearning"}[self.protocol]

    @property
    def sha256(self) -> str:
        return file_hash(self.file)

    @property
    def forget_rows(self) -> int:
        """How many forget rows were scored; 0 when the log has no forget losses."""
        return len(self.losses["forget"].rows) if "forget" in self.losses else 0

    def check_split(self, split: str, size: int) -> None:
        """Raise `UserError` when the log cannot be one of a split of TOFU with so many forget rows."""
        found = self.forget_rows
        if self.family == "tofu" and found not in (0, size, *([TOFU_LIMIT] if size > TOFU_LIMIT else [])):
            others = [name for name, rows in FORGET_SIZES.items() if rows == found]
            guess = f"; it is a log of {others[0]}" if others else ""
            raise UserError(f"{self.file} has {found} forget rows, {split} has {size}: not a log of {split}{guess}.")

    def check_corpus(self, benchmark: str) -> None:
        """Raise `UserError` when the texts of a log of MUSE are plainly of the other corpus.

        What an import can tell without the rows: the names of the books are in a fifth of their texts at least, and
        in next to none of the news. Fewer than 10 texts tell nothing.
        """
        texts = [text for split in self.answers.values() for text in split.values()]
        if self.family != "muse" or len(texts) < 10:
            return
        share = sum(bool(BOOK_NAMES.search(text)) for text in texts) / len(texts)
        found = "muse-books" if share > 0.1 else "muse-news" if share < 0.02 else benchmark
        if found != benchmark:
            raise UserError(f"{self.file} is a log of {found} by its texts, not of {benchmark}.")

    def check_texts(self, data: Benchmark) -> None:
        """Raise `UserError` when the true answers in the log are not those of the benchmark's rows."""
        for split, texts in self.answers.items():
            rows = {row.id: row for row in data.splits.get(split, ())}
            pairs = [(text, rows[row_id(split, i)]) for i, text in texts.items() if row_id(split, i) in rows]
            wrong = [row for text, row in pairs if not _alike(text, row.answer)]
            if len(wrong) > 0.1 * len(pairs):
                raise UserError(
                    f"{self.file} was made from other rows: {len(wrong)} of {len(pairs)} answers of {split} are not "
                    f"those of {data.name}, for instance of {wrong[0].id}."
                )

    def evaluate(self, retrained: Evaluation | None = None) -> Evaluation:
        """Every metric that the log allows, nulls with their reason where a metric of the suite lacks its numbers."""
        data, answers = self._rows()
        names, given = self._names(), self.given | self._absent()
        found = rescore(answers, data, names, retrained, given)
        nulls = {name for name, value in found.values.items() if value.score is None and not value.n}
        stated = {n: Value(x, details={"as_logged": 1}) for n, x in self.logged.items() if n in nulls}
        return rescore(answers, data, names, retrained, given | stated) if stated else found

    # -- parts -------------------------------------------------------------------------------------------------

    def _rows(self) -> tuple[Benchmark, dict[Any, Any]]:
        """The log's rows as a benchmark without texts, and its losses as answers of one token."""
        indices: dict[str, set[int]] = {split: set(losses.rows) for split, losses in self.losses.items()}
        for value in self.given.values():
            for name in value.per_sample:
                split, _, number = name.rpartition("-")
                indices.setdefault(split, set()).add(int(number))
        splits: dict[str, Sequence[Row]] = {}
        answers: dict[Any, Any] = {}
        for split, known in indices.items():
            losses = self.losses.get(split, Losses())
            wrong = tuple(f"wrong {k}" for k in range(max(map(len, losses.wrong.values()), default=0)))
            right = "paraphrase" if losses.paraphrase else ""
            rows = []
            for i in sorted(known):
                name = row_id(split, i)
                row = Row(name, name, "answer", self._group(split, i), paraphrased_answer=right, perturbed=wrong)
                rows.append(row)
                found = {"answer": losses.plain.get(i), "paraphrase": losses.paraphrase.get(i)}
                found |= dict(zip(wrong, losses.wrong.get(i, ()), strict=False))
                for text in ("answer", "paraphrase", *wrong):
                    loss = found.get(text)
                    logp = np.array([math.nan if loss is None else -loss])
                    answers[Score(name, text)] = TokenScores(logp, np.array([False]))
            splits[split] = rows
        return _LogRows(splits), answers

    def _group(self, split: str, index: int) -> str:
        by_author = self.family == "tofu" and split in ("forget", "retain", "holdout")
        return f"{split}-author-{index // QUESTIONS:03d}" if by_author else row_id(split, index)

    def _names(self) -> list[str]:
        """The metrics to compute: the suite under the log's protocol, and those of `ours` that losses suffice for."""
        at = f"@{self.protocol}"
        if self.family == "muse":
            names = [f"{name}{at}" for name in OPEN_TEXTS.values()]
        else:
            names = [f"{split}_{kind}{at}" for split in OPEN_SIDES.values() for kind in KINDS]
            names += [f"one_minus_prob{at}", f"one_minus_rouge_l{at}", f"model_utility{at}"]
            names += [f"model_utility@{TOFU}-arithmetic"] if self.protocol == TOFU else []
            names += [f"forget_log_truth_ratio{at}", f"forget_quality{at}", f"forget_quality_p{at}"]
            names += [f"{split}_{kind}" for split in self.losses for kind in ("prob", "truth_ratio")]
            names += ["one_minus_prob", "forget_log_truth_ratio", "forget_quality"] if self.forget_rows else []
        if f"mink_auc{at}" in self.given:
            names += [f"{name}{at}" for name in ("mink_auc_gap", "privleak", "mink_rel_diff")]
        return list(dict.fromkeys([*names, *self.given]))

    def _absent(self) -> dict[str, Value]:
        """Nulls for the metrics of the suite that the log has no rows of."""
        absent = {}
        for name in expand(self._names()):
            metric, rouge = resolve(name)[1], "_rouge_l" in name or self.family == "muse"
            if name not in self.given and not metric.depends and (rouge or metric.split not in self.losses):
                what = f"{'ROUGE' if rouge else 'losses'} of {metric.split.replace('_', ' ')}"
                absent[name] = Value(None, reason=f"{self.file.name} has no {what}")
        return absent


class _LogRows(Benchmark):
    name = "log"


def row_id(split: str, index: int) -> str:
    """The id that the benchmarks TOFU and MUSE give to the row of this index."""
    return f"{split}-{index:04d}"


def disagreements(log: Log, found: Evaluation, tolerance: float = 1e-3) -> list[str]:
    """Where the aggregates that the log states are not what its rows give (relative `tolerance`), one line each."""
    lines = []
    for name, stated in log.logged.items():
        value = found.values.get(name)
        if value is not None and value.score is not None and not math.isclose(value.score, stated, rel_tol=tolerance):
            lines.append(f"{name}: {log.file.name} says {stated:.6g}, its rows give {value.score:.6g}")
    return lines


def _alike(a: str, b: str, most: int = 60) -> bool:
    """Whether two texts begin with the same letters; one may be cut off, and signs and spaces do not count."""
    a, b = (re.sub(r"\W+", "", text).casefold() for text in (a, b))
    shared = min(len(a), len(b), most)
    return shared > 0 and a[:shared] == b[:shared]
