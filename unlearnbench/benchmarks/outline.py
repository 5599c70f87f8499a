"""Published benchmarks by their sizes alone: what a plan knows of them where the data is not at hand.

Rows are placeholders of the right number and length, so that the same code that counts the work of a real benchmark
counts theirs. TOFU's lengths are means over its files; MUSE's follow from the sizes that its data cards state.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from unlearnbench.benchmarks.base import Benchmark, Row
from unlearnbench.benchmarks.muse import MuseBooks, MuseNews
from unlearnbench.benchmarks.tofu import QUESTIONS, Tofu

FORGET = {"forget01": 40, "forget05": 200, "forget10": 400}  #: rows of TOFU's settings, of 4,000
#: MUSE: split -> (rows, characters of the prompt, characters of the answer or text)
NEWS = {
    "forget": (889, 0, 3691),
    "retain": (1777, 0, 3634),
    "retain2": (1778, 0, 3621),
    "forget_eval": (100, 0, 8062),
    "holdout": (100, 0, 8063),
    "knowmem_forget": (100, 85, 25),
    "knowmem_retain": (100, 89, 25),
    "knowmem_forget_icl": (10, 90, 25),
    "knowmem_retain_icl": (10, 100, 26),
    "verbmem_forget": (100, 900, 3300),
}
BOOKS = NEWS | {
    "forget": (4, 0, 1_024_214),
    "retain": (12, 0, 69_744),
    "retain2": (13, 0, 151_510),
    "forget_eval": (100, 0, 7440),
    "holdout": (100, 0, 7063),
    "knowmem_forget": (100, 75, 24),
    "knowmem_retain": (100, 70, 24),
}


def outline(name: str, options: dict[str, Any]) -> Benchmark | None:
    """A stand-in with the splits of a published benchmark, or None when its sizes with these options are not known."""
    if name not in MADE:
        return None
    kind, make = MADE[name]
    try:
        inspect.signature(kind).bind(**options)
        return make(options)
    except (TypeError, KeyError):
        return None


def _tofu(options: dict[str, Any]) -> Benchmark:
    count = FORGET[options.get("forget", "forget10")]
    retained = 4000 - count
    if options.get("retain_authors") is not None:
        retained = min(retained, int(options["retain_authors"]) * QUESTIONS)
    facts = options.get("facts")
    retain = _rows("retain", retained, 69, 168)
    scored = min(400, retained)
    retain[:scored] = _rows("retain", scored, 63, 166, 197, (195,) * 5, 83)
    splits = {
        "forget": _rows("forget", count, 77, 182, 207, (202,) * 5, 94),
        "retain": retain,
        "retain_eval": retain[:scored],
        "real_authors": _rows("real_authors", min(100, facts or 100), 58, 14, 0, (13,) * 3),
        "world_facts": _rows("world_facts", min(117, facts or 117), 56, 10, 0, (10,) * 3),
        "holdout": _rows("holdout", count, 77, 182),
    }
    return _made(Tofu, splits, {"target": ("forget", "retain"), "retrained": ("retain",)})


def _muse(kind: type[Benchmark], sizes: dict[str, tuple[int, int, int]]) -> Callable[[dict[str, Any]], Benchmark]:
    def make(options: dict[str, Any]) -> Benchmark:
        if options.get("scal") is not None:
            raise KeyError("the sizes of the growing forget sets are not here")
        splits = {split: _rows(split, *size) for split, size in sizes.items()}
        return _made(kind, splits, {"target": ("forget", "retain", "retain2"), "retrained": ("retain", "retain2")})

    return make


MADE: dict[str, tuple[type[Benchmark], Callable[[dict[str, Any]], Benchmark]]] = {
    "tofu": (Tofu, _tofu),
    "muse-news": (MuseNews, _muse(MuseNews, NEWS)),
    "muse-books": (MuseBooks, _muse(MuseBooks, BOOKS)),
}


def _made(kind: type[Benchmark], splits: dict[str, list[Row]], training: dict[str, tuple[str, ...]]) -> Benchmark:
    made = Benchmark({**splits}, training)
    made.name, made.suite = kind.name, kind.suite
    return made


def _rows(
    split: str,
    count: int,
    prompt: int,
    answer: int,
    paraphrased: int = 0,
    perturbed: Sequence[int] = (),
    question: int = 0,
) -> list[Row]:
    """Rows whose texts have these lengths in characters; no two texts are equal."""
    return [
        Row(
            id=f"{split}-{i:04d}",
            prompt=_text(f"{split} {i} q", prompt),
            answer=_text(f"{split} {i} a", answer),
            group=f"{split}-{i // QUESTIONS}",
            paraphrased_answer=_text(f"{split} {i} p", paraphrased),
            perturbed=tuple(_text(f"{split} {i} w{j}", length) for j, length in enumerate(perturbed)),
            unseen_paraphrases=(_text(f"{split} {i} u", question),) if question else (),
        )
        for i in range(count)
    ]


def _text(start: str, length: int) -> str:
    return (f"{start} " + "word " * (length // 5 + 1))[:length]
