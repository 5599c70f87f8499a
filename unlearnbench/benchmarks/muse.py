"""MUSE News and Books (arXiv:2407.06460): raw texts are forgotten, and what remains of them is asked in other ways.

From the Hub (`muse-bench/MUSE-News`, `muse-bench/MUSE-Books`) at a pinned revision, or from a folder (`data_dir`) laid
out as the code base does: `raw/forget.json`, `raw/retain1.json`, `raw/retain2.json`, `knowmem/forget_qa.json`,
`knowmem/retain_qa.json`, both with `_icl.json`, `verbmem/forget.json`, `privleak/forget.json`, `privleak/holdout.json`,
`scal/forget_1.json` …, `sust/forget_1.json` …; `.jsonl` and, for raw texts, `.txt` will do too.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from unlearnbench import hub
from unlearnbench.benchmarks.base import Benchmark, Row, benchmarks
from unlearnbench.benchmarks.sources import Line, each, read, text_of
from unlearnbench.errors import UserError

FOLDS = 4  #: of scalability and sustainability
QUESTION_FILES = {"knowmem_forget": ("forget_qa",), "knowmem_retain": ("retain_qa", "retain2_qa")}


class Muse(Benchmark):
    """The published benchmark.

    Splits: `forget`, `retain` (raw `retain1`) and `retain2`, texts; `forget_eval` and `holdout`, those of the
    membership test; `knowmem_forget` and `knowmem_retain`, questions, with solved ones in `…_icl`; `verbmem_forget`,
    beginnings and continuations. `sust_1` … `sust_4` are forgotten one after the other (`sequence` in an experiment);
    `scal=k` takes the k-th of four growing forget sets. The target knows forget and both retain sets, the retrained
    model the latter.

    Raises `UserError` for missing files and rows that are not of this shape, with file and line.
    """

    suite = ("muse",)
    repository: str
    revision: str

    def __init__(self, data_dir: str | None = None, revision: str | None = None, scal: int | None = None):
        if scal is not None and scal not in range(1, FOLDS + 1):
            raise UserError(f"{self.name}: scal is a number from 1 to {FOLDS}, got {scal}.")
        self._folder, self._revision = None if data_dir is None else Path(data_dir), revision or self.revision
        forget = (
            self._texts("raw", "forget", "forget") if scal is None else self._texts("scal", f"forget_{scal}", "forget")
        )
        splits: dict[str, Sequence[Row]] = {
            "forget": forget,
            "retain": self._texts("raw", "retain1", "retain"),
            "retain2": self._texts("raw", "retain2", "retain2"),
            "forget_eval": self._texts("privleak", "forget", "forget_eval"),
            "holdout": self._texts("privleak", "holdout", "holdout"),
            "verbmem_forget": self._pairs("verbmem", "forget", "verbmem_forget", "prompt", "gt"),
        }
        for split, names in QUESTION_FILES.items():
            name = next((name for name in names if self._has("knowmem", name)), names[0])
            splits[split] = self._pairs("knowmem", name, split, "question", "answer")
            splits[f"{split}_icl"] = self._pairs("knowmem", f"{name}_icl", f"{split}_icl", "question", "answer")
        if scal is None and self._has("sust", "forget_1"):
            for k in range(1, FOLDS + 1):
                splits[f"sust_{k}"] = self._texts("sust", f"forget_{k}", f"sust_{k}")
        super().__init__(splits, {"target": ("forget", "retain", "retain2"), "retrained": ("retain", "retain2")})

    # -- reading -----------------------------------------------------------------------------------------------

    def _has(self, part: str, name: str) -> bool:
        """Whether there is such a file; on the Hub there is, under the first of its names."""
        return self._folder is None or self._file(part, name) is not None

    def _file(self, part: str, name: str) -> Path | None:
        assert self._folder is not None
        files = (self._folder / part / f"{name}{ending}" for ending in (".json", ".jsonl", ".txt"))
        return next((file for file in files if file.is_file()), None)

    def _lines(self, part: str, name: str) -> list[Line]:
        if self._folder is None:
            rows = hub.dataset_rows(self.repository, part, name, self._revision)
            return [Line(row, f"{self.repository} {part}/{name}: row {i}") for i, row in enumerate(rows, 1)]
        return read(self._file(part, name) or self._folder / part / f"{name}.json")

    def _texts(self, part: str, name: str, split: str) -> list[Row]:
        """Raw texts: each is a row and a group of its own."""
        rows = each(self._lines(part, name), lambda line: text_of(line, "text"))
        return [Row(f"{split}-{i:04d}", "", text, f"{split}-{i:04d}") for i, text in enumerate(rows)]

    def _pairs(self, part: str, name: str, split: str, prompt: str, answer: str) -> list[Row]:
        pairs = each(self._lines(part, name), lambda line: (text_of(line, prompt), text_of(line, answer)))
        return [Row(f"{split}-{i:04d}", asked, said) for i, (asked, said) in enumerate(pairs)]


@benchmarks.register("muse-news", title="MUSE News: BBC articles", version=1)
class MuseNews(Muse):
    __doc__ = Muse.__doc__

    name = "muse-news"
    repository = "muse-bench/MUSE-News"
    revision = "506bd5b150b92814d45e4404a82f120ab2d748bf"


@benchmarks.register("muse-books", title="MUSE Books: Harry Potter", version=1)
class MuseBooks(Muse):
    __doc__ = Muse.__doc__

    name = "muse-books"
    repository = "muse-bench/MUSE-Books"
    revision = "051ba90319e920d410d87cfdbd61f25843c1b892"
