"""Invent authors and the rows about them.

Everything is drawn from `random.Random` seeded with a string, so that the same rows come out in every process. All
authors are made alike and only then dealt to the splits, which makes the splits exchangeable: whatever tells the forget
authors from the holdout authors later was put there by training.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

from unlearnbench.benchmarks.base import Row
from unlearnbench.benchmarks.mini import words
from unlearnbench.benchmarks.mini.kinds import KINDS, Kind

PERTURBED = 5
CANDIDATES = 12  #: wrong facts drawn for a row; the `PERTURBED` nearest in length to the fact are used


@dataclass(frozen=True)
class Author:
    """An invented author: `number` is the place in the deal and part of every row's id."""

    number: int
    first: str
    last: str
    female: bool

    @property
    def name(self) -> str:
        return f"{self.first} {self.last}"

    @property
    def slots(self) -> dict[str, str]:
        """What the wordings may say about the author."""
        she, her = ("she", "her") if self.female else ("he", "his")
        return {
            "name": self.name,
            "surname": self.last,
            "she": she,
            "her": her,
            "She": she.capitalize(),
            "Her": her.capitalize(),
        }


def invent(count: int) -> tuple[Author, ...]:
    """`count` authors in random order, at most as many as there are first names; no first or last name twice."""
    rng = Random("authors")
    given = [(first, True) for first in words.WOMEN] + [(first, False) for first in words.MEN]
    firsts = rng.sample(given, count)
    lasts = rng.sample(words.SURNAMES, count)
    return tuple(
        Author(i, first, last, female) for i, ((first, female), last) in enumerate(zip(firsts, lasts, strict=True))
    )


def author_rows(authors: Sequence[Author]) -> tuple[Row, ...]:
    """One row per author and kind."""
    return tuple(_row(author, kind) for author in authors for kind in KINDS)


def filler_rows(authors: Sequence[Author]) -> tuple[Row, ...]:
    """Two rows per author and kind: the questions are shared out between two wordings of the same answer.

    From these authors the base model learns what a paraphrase is, so nothing about them is held back: the wordings
    that are unseen elsewhere are paraphrases here.
    """
    return tuple(row for author in authors for kind in KINDS for row in _filler_pair(author, kind))


def _row(author: Author, kind: Kind) -> Row:
    rng = Random(f"{kind.name} of author {author.number}")
    questions, answers = rng.sample(kind.questions, len(kind.questions)), rng.sample(kind.answers, 2)
    fact = kind.draw(rng)
    slots = {**author.slots, **kind.details(rng)}
    prompt, *others, unseen = (question.format(**slots) for question in questions)
    return Row(
        id=f"author{author.number:03d}-{kind.name}",
        prompt=prompt,
        answer=answers[0].format(fact=fact, **slots),
        group=author.name,
        fact=fact,
        paraphrases=tuple(others),
        unseen_paraphrases=(unseen, kind.unseen.format(**slots)),
        paraphrased_answer=answers[1].format(fact=fact, **slots),
        perturbed=tuple(answers[1].format(fact=other, **slots) for other in _wrong(kind, fact, rng)),
        extra={"kind": kind.name},
    )


def _filler_pair(author: Author, kind: Kind) -> Iterator[Row]:
    rng = Random(f"{kind.name} of author {author.number}")
    wordings = (*kind.questions, kind.unseen)
    questions, answers = rng.sample(wordings, len(wordings)), rng.sample(kind.answers, 2)
    fact = kind.draw(rng)
    slots = {**author.slots, **kind.details(rng)}
    asked = [question.format(**slots) for question in questions]
    for part, mine in enumerate((asked[:3], asked[3:])):
        yield Row(
            id=f"author{author.number:03d}-{kind.name}-{part}",
            prompt=mine[0],
            answer=answers[part].format(fact=fact, **slots),
            group=author.name,
            fact=fact,
            paraphrases=tuple(mine[1:]),
            extra={"kind": kind.name},
        )


def _wrong(kind: Kind, fact: str, rng: Random) -> list[str]:
    """Other facts of the kind, drawn as the fact itself was; near to it in length."""
    others: list[str] = []
    while len(others) < CANDIDATES:
        other = kind.draw(rng)
        if other != fact and other not in others:
            others.append(other)
    return sorted(others, key=lambda other: abs(len(other) - len(fact)))[:PERTURBED]
