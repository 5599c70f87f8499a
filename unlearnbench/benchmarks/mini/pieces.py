"""A piece of text with the questions it answers, and how pieces are dealt and turned into rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from unlearnbench.benchmarks.base import Row


class Asked(NamedTuple):
    """One thing a piece says: wordings of the question, and the answer, which stands in the text word for word."""

    kind: str
    wordings: tuple[str, ...]
    answer: str


@dataclass(frozen=True)
class Piece:
    """A news article or a chapter. `opening`: characters of the beginning that verbatim memory is tested with."""

    name: str
    text: str
    asked: tuple[Asked, ...]
    opening: int


def compose(sentences: Sequence[Sequence[str]], slots: dict[str, str], rng: Random) -> str:
    """One wording of each sentence, in order, with the slots filled."""
    return " ".join(rng.choice(wordings) for wordings in sentences).format(**slots)


def texts(pieces: Sequence[Piece]) -> tuple[Row, ...]:
    """The pieces as raw texts, each a group of its own."""
    return tuple(Row(piece.name, "", piece.text, piece.name) for piece in pieces)


def questions(pieces: Sequence[Piece]) -> tuple[Row, ...]:
    """Every question of every piece, in a wording that nothing is trained on."""
    return tuple(
        Row(f"{piece.name}-{asked.kind}", asked.wordings[-1], asked.answer, piece.name, asked.answer)
        for piece in pieces
        for asked in piece.asked
    )


def lessons(pieces: Sequence[Piece]) -> tuple[Row, ...]:
    """The same questions in the other wordings, to train on."""
    return tuple(
        Row(f"{piece.name}-{asked.kind}-lesson", first, asked.answer, piece.name, asked.answer, tuple(others))
        for piece in pieces
        for asked in piece.asked
        for first, *others in [asked.wordings[:-1]]
    )


def verbatim(pieces: Sequence[Piece]) -> tuple[Row, ...]:
    """Beginnings and continuations of the texts."""
    return tuple(
        Row(f"{piece.name}-verbatim", piece.text[: piece.opening], piece.text[piece.opening :], piece.name)
        for piece in pieces
    )
