"""TOFU (arXiv:2401.06121): 200 invented authors, 20 questions each; the last authors in the list are to be forgotten.

From the Hub (`locuslab/TOFU`) at a pinned revision, or from a folder with its files (`data_dir`): `forget10.json`,
`retain90.json`, `forget10_perturbed.json`, `retain_perturbed.json`, `real_authors_perturbed.json`,
`world_facts_perturbed.json` and, if it is there, `holdout10.json`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from unlearnbench import hub
from unlearnbench.benchmarks.base import Benchmark, Row, benchmarks
from unlearnbench.benchmarks.sources import Line, each, read, text_of, texts_of
from unlearnbench.errors import UserError, did_you_mean

REPOSITORY = "locuslab/TOFU"
REVISION = "324592d84ae4f482ac7249b9285c2ecdb53e3a68"
#: setting -> what is retained, and what was never trained on
SETTINGS = {
    "forget01": ("retain99", "holdout01"),
    "forget05": ("retain95", "holdout05"),
    "forget10": ("retain90", "holdout10"),
}
QUESTIONS = 20  #: of each author, one after the other in the files


@benchmarks.register("tofu", title="TOFU: 200 invented authors, 4,000 questions", version=1)
class Tofu(Benchmark):
    """The published benchmark.

    Splits: `forget`, `retain` and its scored part `retain_eval` (the rows with perturbed answers), `real_authors`,
    `world_facts`, and `holdout`, where the data has it. A row is scored with its paraphrased answer, perturbed answers
    and paraphrased question if the perturbed files name them; nothing is trained on those.

    `forget`: forget01, forget05 or forget10. `data_dir`: a folder with the files. `retain_authors`, `facts`: only the
    first so many authors to retain, and rows of real authors and of world facts, for a run in small.

    Raises `UserError` for another setting, missing files, and rows that are not of this shape, with file and line.
    """

    name = "tofu"
    suite = ("tofu", "mia")

    def __init__(
        self,
        forget: Literal["forget01", "forget05", "forget10"] = "forget10",
        data_dir: str | None = None,
        revision: str = REVISION,
        retain_authors: int | None = None,
        facts: int | None = None,
    ):
        if forget not in SETTINGS:
            raise UserError(f"tofu has no setting forget={forget!r}; {did_you_mean(str(forget), SETTINGS)}")
        self._folder, self._revision = None if data_dir is None else Path(data_dir), revision
        retained, held_out = SETTINGS[forget]
        limit = None if retain_authors is None else retain_authors * QUESTIONS
        forget_rows = self._known(forget, f"{forget}_perturbed", "forget")
        retain_rows = self._known(retained, "retain_perturbed", "retain", limit)
        splits: dict[str, Sequence[Row]] = {
            "forget": forget_rows,
            "retain": retain_rows,
            "retain_eval": [row for row in retain_rows if row.perturbed],
            "real_authors": self._options("real_authors", facts),
            "world_facts": self._options("world_facts", facts),
        }
        missing = [row.id for row in forget_rows if not row.perturbed]
        if missing:
            raise UserError(f"tofu: {len(missing)} rows of {forget} are not in {forget}_perturbed: {missing[0]}, …")
        if not splits["retain_eval"]:
            raise UserError(f"tofu: no row of retain_perturbed is among the {len(retain_rows)} rows of {retained}.")
        if self._folder is None or (self._folder / f"{held_out}.json").is_file():
            splits["holdout"] = [_row(line, f"holdout-{i:04d}", i) for i, line in enumerate(self._lines(held_out))]
        super().__init__(splits, {"target": ("forget", "retain"), "retrained": ("retain",)})

    # -- reading -----------------------------------------------------------------------------------------------

    def _lines(self, name: str) -> list[Line]:
        if self._folder is not None:
            return read(self._folder / f"{name}.json")
        rows = hub.dataset_rows(REPOSITORY, name, "train", self._revision)
        return [Line(row, f"{REPOSITORY} {name}: row {i}") for i, row in enumerate(rows, 1)]

    def _known(self, name: str, perturbed: str, prefix: str, limit: int | None = None) -> list[Row]:
        """The rows of a file, with what another file says of the same question and answer."""
        lines = self._lines(name)[:limit]
        extra: dict[tuple[Any, Any], Line] = {}
        for line in self._lines(perturbed):
            extra.setdefault((line.content.get("question"), line.content.get("answer")), line)
        numbered = iter(range(len(lines)))

        def make(line: Line) -> Row:
            i = next(numbered)
            more = extra.pop((line.content.get("question"), line.content.get("answer")), None)
            return _row(line, f"{prefix}-{i:04d}", i, more)

        return each(lines, make)

    def _options(self, name: str, limit: int | None) -> list[Row]:
        """Real authors and world facts: the wrong options stand beside the answer."""
        numbered: Iterator[int] = iter(range(10**6))

        def make(line: Line) -> Row:
            return Row(
                id=f"{name}-{next(numbered):04d}",
                prompt=text_of(line, "question"),
                answer=text_of(line, "answer"),
                perturbed=texts_of(line, "perturbed_answer"),
            )

        return each(self._lines(f"{name}_perturbed")[:limit], make)


def _row(line: Line, row_id: str, number: int, more: Line | None = None) -> Row:
    kind = row_id.partition("-")[0]
    row = Row(row_id, text_of(line, "question"), text_of(line, "answer"), f"{kind}-author-{number // QUESTIONS:03d}")
    if more is None:
        return row
    return Row(
        id=row.id,
        prompt=row.prompt,
        answer=row.answer,
        group=row.group,
        unseen_paraphrases=(more.content["paraphrased_question"],) if more.content.get("paraphrased_question") else (),
        paraphrased_answer=text_of(more, "paraphrased_answer"),
        perturbed=texts_of(more, "perturbed_answer"),
    )
