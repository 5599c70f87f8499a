"""`muse-mini`: the embedded benchmark in the shape of MUSE, invented and generated on the spot.

Short news articles, or book chapters, are forgotten as raw text, and what remains of them is asked in three ways: the
continuation of their beginnings, questions, and membership against pieces never trained on. After MUSE
(arXiv:2407.06460): its splits, its suite, growing forget sets (`scal`) and folds to forget one after the other
(`sust_1` …). Different from it: no solved questions stand in front of a question, and the target is also trained on
questions about what it read, in other wordings than those asked, because a model of this size would not learn to answer
them from the texts alone. Take the template `question-answer`, which is how KnowMem asks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from unlearnbench.benchmarks.base import Benchmark, Row, benchmarks
from unlearnbench.benchmarks.mini.pieces import Piece, lessons, questions, texts, verbatim
from unlearnbench.benchmarks.mini.press import articles
from unlearnbench.benchmarks.mini.stories import chapters
from unlearnbench.errors import UserError, did_you_mean

FOLDS = 4

#: pieces in each part, dealt in this order
SIZES = {
    "news": {"forget": 16, "retain": 32, "holdout": 16, "tune_forget": 8, "tune_retain": 16, "filler": 40},
    "books": {"forget": 8, "retain": 16, "holdout": 8, "tune_forget": 4, "tune_retain": 8, "filler": 24},
}


@benchmarks.register("muse-mini", title="MUSE in small: invented news or book chapters", version=1)
class MuseMini(Benchmark):
    """The embedded benchmark.

    Splits: `forget`, `retain`, `holdout` and `filler`, texts; `…_qa`, questions about them to train on;
    `knowmem_forget` and `knowmem_retain`, questions to ask; `verbmem_forget`, beginnings and continuations;
    `tune_forget` and `tune_retain` (with `…_qa`); `sust_1` … `sust_4`, the folds of `forget`. The base model learns the
    language from `filler`.

    `corpus`: news or books. `scal`: forget only the first 1, 2, 3 or 4 quarters.
    Raises `UserError` for another corpus or number.
    """

    name = "muse-mini"
    suite = ("muse",)

    def __init__(self, corpus: Literal["news", "books"] = "news", scal: int | None = None):
        if corpus not in SIZES:
            raise UserError(f"muse-mini has no corpus '{corpus}'; {did_you_mean(str(corpus), SIZES)}")
        if scal is not None and scal not in range(1, FOLDS + 1):
            raise UserError(f"muse-mini: scal is a number from 1 to {FOLDS}, got {scal}.")
        sizes = SIZES[corpus]
        dealt = iter((articles if corpus == "news" else chapters)(sum(sizes.values())))
        parts = {name: [next(dealt) for _ in range(count)] for name, count in sizes.items()}
        forget = _folds(parts["forget"])
        asked = [piece for fold in forget[: scal or FOLDS] for piece in fold]
        splits: dict[str, Sequence[Row]] = {name: texts(pieces) for name, pieces in parts.items() if name != "forget"}
        splits |= {
            "forget": texts(asked),
            "verbmem_forget": verbatim(asked),
            "knowmem_forget": questions(asked),
            "knowmem_retain": questions(parts["retain"][: len(parts["forget"])]),
        }
        splits |= {f"sust_{k}": texts(fold) for k, fold in enumerate(forget, 1)}
        splits |= {f"{name}_qa": lessons(parts[name]) for name in parts if name != "holdout"}
        rest = () if scal in (None, FOLDS) else ("kept",)  # the other quarters are known and stay so
        if rest:
            splits["kept"] = texts([piece for fold in forget[scal or FOLDS :] for piece in fold])
        training = {
            "base": ("filler", "filler_qa"),
            "target": ("forget", *rest, "forget_qa", "retain", "retain_qa"),
            "retrained": (*rest, "retain", "retain_qa"),
            "target_tune": ("tune_forget", "tune_forget_qa", "tune_retain", "tune_retain_qa"),
            "retrained_tune": ("tune_retain", "tune_retain_qa"),
        }
        super().__init__(splits, training)


def _folds(pieces: Sequence[Piece]) -> list[Sequence[Piece]]:
    size = len(pieces) // FOLDS
    return [pieces[k * size : (k + 1) * size] for k in range(FOLDS)]
