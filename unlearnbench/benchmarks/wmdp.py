"""WMDP (arXiv:2403.03218): hazardous knowledge in biology and computer security, as corpora and lm-eval tasks.

The corpora come from the Hub (`cais/wmdp-corpora` at a pinned revision; `bio-forget` from the gated repository
`cais/wmdp-bio-forget-corpus`), or from a folder (`data_dir`) with `bio-forget-corpus.jsonl`, `bio-retain-corpus.jsonl`
and the same for `cyber`. What a model knows is measured by the lm-eval tasks `wmdp_bio` or `wmdp_cyber`, and `mmlu`.

There is no target to train and no retrained model: the model that is given is unlearned as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from unlearnbench import hub
from unlearnbench.benchmarks.base import Benchmark, Row, benchmarks
from unlearnbench.benchmarks.sources import Line, each, read, text_of
from unlearnbench.errors import UserError, did_you_mean

CORPORA = "cais/wmdp-corpora"
GATED = "cais/wmdp-bio-forget-corpus"
REVISION = "daf89fa9b618b63a624228061a9cebacca88009c"
SUBJECTS = ("bio", "cyber")
SHORTEST = 50  #: characters; shorter texts of the corpora are headings and are left out, as in the reference code


@benchmarks.register("wmdp", title="WMDP: hazardous knowledge in biology and computer security", version=1)
class Wmdp(Benchmark):
    """The published corpora. Splits: `forget` and `retain`, texts.

    `subject`: bio or cyber. `retain`: `corpus`, the benign texts of the same subject, or the path of a file with texts
    of your own (the reference code takes WikiText). `limit`: only the first so many texts of each.

    Raises `UserError` for another subject, missing files, missing permission, and rows without text.
    """

    name = "wmdp"

    def __init__(
        self,
        subject: Literal["bio", "cyber"] = "cyber",
        retain: str = "corpus",
        data_dir: str | None = None,
        revision: str = REVISION,
        limit: int | None = None,
    ):
        if subject not in SUBJECTS:
            raise UserError(f"wmdp has no subject '{subject}'; {did_you_mean(str(subject), SUBJECTS)}")
        self._folder, self._revision, self._limit = None if data_dir is None else Path(data_dir), revision, limit
        kept = self._lines(f"{subject}-retain-corpus") if retain == "corpus" else read(retain)
        splits: dict[str, Sequence[Row]] = {
            "forget": self._texts(self._lines(f"{subject}-forget-corpus"), "forget"),
            "retain": self._texts(kept, "retain"),
        }
        self.suite = (f"lm-eval:wmdp_{subject}", "lm-eval:mmlu")
        super().__init__(splits)

    def _lines(self, name: str) -> list[Line]:
        if self._folder is not None:
            return read(self._folder / f"{name}.jsonl")
        repository, config = (GATED, None) if name == "bio-forget-corpus" else (CORPORA, name)
        rows = hub.dataset_rows(repository, config, "train", None if repository == GATED else self._revision)
        return [Line(row, f"{repository} {name}: row {i}") for i, row in enumerate(rows, 1)]

    def _texts(self, lines: list[Line], split: str) -> list[Row]:
        long_enough = [line for line in lines if len(str(line.content.get("text", "?" * SHORTEST))) >= SHORTEST]
        texts = each(long_enough[: self._limit], lambda line: text_of(line, "text"))
        return [Row(f"{split}-{i:05d}", "", text, f"{split}-{i:05d}") for i, text in enumerate(texts)]
