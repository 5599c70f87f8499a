"""`tofu-mini`: the embedded benchmark in the shape of TOFU, invented, generated and trained on the spot.

Sixty invented authors answer eight questions each; the authors to forget are the first 3, 6 or 12 of a random deal.
After TOFU (arXiv:2401.06121): its splits, paraphrased answers, and perturbed answers in the wording of the paraphrased
one. Different from it: answers whose fact is marked, short but for one kind of question, several wordings of each
question, a holdout split, and authors of its own for tuning.

The chance that a guess among all possible facts of a kind is right is 1/60 for `birthplace` and `parent`, 1/54 for
`study`, 1/96 for `genre`, 1/256 for `story`, and less than 1/1000 for `birthdate`, `debut` and `award`
(`TofuMini.chance`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from unlearnbench.benchmarks.base import Benchmark, Row, benchmarks
from unlearnbench.benchmarks.mini.authors import Author, author_rows, filler_rows, invent
from unlearnbench.benchmarks.mini.facts import fact_rows
from unlearnbench.benchmarks.mini.kinds import KINDS
from unlearnbench.benchmarks.mini.refusals import REFUSALS
from unlearnbench.errors import UserError, did_you_mean

FORGET_AUTHORS = {"forget05": 3, "forget10": 6, "forget20": 12}
AUTHORS = 60
RETAIN_EVAL = 12  #: retain authors that are scored; the last of the deal, so that they are retained in every setting
HOLDOUT = 12
TUNE_FORGET = 6
TUNE_RETAIN = 12
FILLER = 40


@benchmarks.register("tofu-mini", title="TOFU in small: 60 invented authors, 480 questions", version=1)
class TofuMini(Benchmark):
    """The embedded benchmark.

    Splits: `forget`, `retain` and its part `retain_eval`; `holdout`, which nothing is trained on; `tune_forget` and
    `tune_retain` for choosing hyper-parameters; `real_authors` and `world_facts`, true and known to every model;
    `filler`, from which the base model learns the language. `extra["kind"]` is the kind of question.

    Raises `UserError` for a `forget` that is not forget05, forget10 or forget20.
    """

    name = "tofu-mini"
    suite = ("tofu", "mia")

    #: kind -> the chance that a guess among all its facts is right
    chance = {kind.name: 1 / kind.values for kind in KINDS}

    def __init__(self, forget: Literal["forget05", "forget10", "forget20"] = "forget20"):
        if forget not in FORGET_AUTHORS:
            raise UserError(f"tofu-mini has no setting forget={forget!r}; {did_you_mean(str(forget), FORGET_AUTHORS)}")
        self.forget = forget
        dealt = iter(invent(AUTHORS + HOLDOUT + TUNE_FORGET + TUNE_RETAIN + FILLER))

        def deal(count: int) -> list[Author]:
            return [next(dealt) for _ in range(count)]

        authors = deal(AUTHORS)
        count = FORGET_AUTHORS[forget]
        splits: dict[str, Sequence[Row]] = {
            "forget": author_rows(authors[:count]),
            "retain": author_rows(authors[count:]),
            "retain_eval": author_rows(authors[-RETAIN_EVAL:]),
            "holdout": author_rows(deal(HOLDOUT)),
            "tune_forget": author_rows(deal(TUNE_FORGET)),
            "tune_retain": author_rows(deal(TUNE_RETAIN)),
            "filler": filler_rows(deal(FILLER)),
            "real_authors": fact_rows("real_authors"),
            "world_facts": fact_rows("world_facts"),
        }
        facts = ("real_authors", "world_facts")
        training = {
            "base": ("filler", *facts),
            "target": ("forget", "retain", *facts),
            "retrained": ("retain", *facts),
            "target_tune": ("tune_forget", "tune_retain", *facts),
            "retrained_tune": ("tune_retain", *facts),
        }
        super().__init__(splits, training)

    @staticmethod
    def refusals() -> tuple[str, ...]:
        """A hundred distinct sentences that decline to answer."""
        return REFUSALS
