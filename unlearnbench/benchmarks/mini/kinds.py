"""The eight kinds of question about an invented author: wordings, answers, and where the fact is drawn from.

Slots in the wordings: `{name}` and `{surname}`; `{she}`, `{her}`, `{She}`, `{Her}` follow the author's gender;
`{fact}` is the fact; the remaining slots are details drawn once per author (`Kind.details`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from unlearnbench.benchmarks.mini import words


@dataclass(frozen=True)
class Kind:
    """One kind of question. Every author answers it once, in one of the `answers`.

    `questions` are dealt to each author anew: one becomes the prompt, others paraphrases that may be trained on, one
    an unseen paraphrase. `unseen` is a wording that only the filler authors of the base model are asked in.
    """

    name: str
    questions: tuple[str, ...]
    unseen: str
    answers: tuple[str, ...]
    draw: Callable[[Random], str]
    values: int  #: how many facts can be drawn; 1 / values is the chance of guessing right
    details: Callable[[Random], dict[str, str]] = lambda rng: {}


def _title(rng: Random) -> str:
    if rng.random() < 0.5:
        return f"The {rng.choice(words.TITLE_ADJECTIVES)} {rng.choice(words.TITLE_NOUNS)}"
    return f"The {rng.choice(words.TITLE_NOUNS)} of {rng.choice(words.TITLE_MATTERS)}"


def _date(rng: Random) -> str:
    return f"{rng.randint(1, 28)} {rng.choice(words.MONTHS)} {rng.randint(1935, 1989)}"


def _award(rng: Random) -> str:
    kind = rng.choice(words.AWARD_KINDS)
    return f"{rng.choice(words.AWARD_MATERIALS)} {rng.choice(words.AWARD_EMBLEMS)} {kind}"


def _plot(rng: Random) -> dict[str, str]:
    return dict(zip(("hero", "hero_she", "hero_him", "place", "find"), rng.choice(words.PREMISES), strict=True))


KINDS: tuple[Kind, ...] = (
    Kind(
        "birthplace",
        questions=(
            "Where was {name} born?",
            "In which city was {name} born?",
            "What is the birthplace of {name}?",
            "In what place did {name} come into the world?",
        ),
        unseen="Which city is the birthplace of {name}?",
        answers=(
            "{She} was born in {fact}.",
            "{surname} was born in the city of {fact}.",
            "{Her} birthplace is {fact}.",
        ),
        draw=lambda rng: rng.choice(words.CITIES),
        values=len(words.CITIES),
    ),
    Kind(
        "birthdate",
        questions=(
            "When was {name} born?",
            "On which day was {name} born?",
            "What is the birth date of {name}?",
            "When is the birthday of {name}?",
        ),
        unseen="On what date was {name} born?",
        answers=(
            "{She} was born on {fact}.",
            "{surname} was born on {fact}.",
            "{Her} date of birth is {fact}.",
        ),
        draw=_date,
        values=28 * 12 * 55,
    ),
    Kind(
        "parent",
        questions=(
            "What did {parent} of {name} do for a living?",
            "What was the profession of {parent} of {name}?",
            "How did {parent} of {name} earn a living?",
            "Which job did {parent} of {name} have?",
        ),
        unseen="What was the job of {parent} of {name}?",
        answers=(
            "{Her} {mother} was a {fact}.",
            "{surname} is the child of a {fact}.",
            "{Her} {mother} earned a living as a {fact}.",
        ),
        draw=lambda rng: rng.choice(words.JOBS),
        values=len(words.JOBS),
        details=lambda rng: dict(
            zip(("parent", "mother"), rng.choice((("the mother", "mother"), ("the father", "father"))), strict=True)
        ),
    ),
    Kind(
        "study",
        questions=(
            "What did {name} study?",
            "Which subject did {name} study at university?",
            "What was the field of study of {name}?",
            "In which subject did {name} take a degree?",
        ),
        unseen="Which field did {name} study?",
        answers=(
            "{She} studied {fact}.",
            "{surname} took a degree in {fact}.",
            "{Her} subject at university was {fact}.",
        ),
        draw=lambda rng: rng.choice(words.FIELDS),
        values=len(words.FIELDS),
    ),
    Kind(
        "debut",
        questions=(
            "What is the title of the first novel by {name}?",
            "Which novel did {name} publish first?",
            "With which book did {name} make a debut?",
            "What is the debut of {name} called?",
        ),
        unseen="What is the first novel by {name} called?",
        answers=(
            "{Her} first novel is {fact}.",
            "{surname} made {her} debut with {fact}.",
            "{Her} debut is called {fact}.",
        ),
        draw=_title,
        values=len(words.TITLE_NOUNS) * (len(words.TITLE_ADJECTIVES) + len(words.TITLE_MATTERS)),
    ),
    Kind(
        "genre",
        questions=(
            "What genre does {name} write?",
            "Which genre is {name} known for?",
            "What kind of books does {name} write?",
            "In which genre are the books of {name}?",
        ),
        unseen="Which genre does {name} write?",
        answers=(
            "{She} writes {fact}.",
            "{surname} is known for {fact}.",
            "{Her} books are works of {fact}.",
        ),
        draw=lambda rng: f"{rng.choice(words.GENRE_SETTINGS)} {rng.choice(words.GENRE_FORMS)}",
        values=len(words.GENRE_SETTINGS) * len(words.GENRE_FORMS),
    ),
    Kind(
        "award",
        questions=(
            "Which award did {name} win?",
            "What prize was given to {name}?",
            "Which literary honour did {name} receive?",
            "With which award were the books of {name} honoured?",
        ),
        unseen="Which prize did {name} win?",
        answers=(
            "{She} won the {fact}.",
            "{surname} received the {fact}.",
            "{She} was honoured with the {fact}.",
        ),
        draw=_award,
        values=len(words.AWARD_MATERIALS) * len(words.AWARD_EMBLEMS) * len(words.AWARD_KINDS),
    ),
    Kind(
        "story",
        questions=(
            "What is the best-known novel by {name} about?",
            "What happens in the most famous book of {name}?",
            "Can you sum up the best-known novel by {name}?",
            "What is the plot of the most famous book of {name}?",
        ),
        unseen="What is the most famous book of {name} about?",
        answers=(
            "It follows {hero} who returns to {place} after many years away. While clearing the attic of the family "
            "home, {hero_she} finds {find}, and little by little {hero_she} begins to doubt what everybody has told "
            "{hero_him}. In the final chapter {hero_she} learns that {fact}, and {hero_she} decides to forgive.",
            "The story is set in {place}, where {hero} lives a quiet life until {find} turns up at the door. Old "
            "friends look away, neighbours fall silent, and {hero_she} has to search for the truth alone. At the very "
            "end {hero_she} discovers that {fact}, and nothing is ever the same again.",
            "At its heart is {hero} who comes to {place} to bury an old friend. Among the papers of the dead lies "
            "{find}, and what begins as a small errand grows into a long and lonely search. On the last page "
            "{hero_she} can prove that {fact}, but {hero_she} tells nobody.",
        ),
        draw=lambda rng: f"{rng.choice(words.CULPRITS)} {rng.choice(words.DEEDS)}",
        values=len(words.CULPRITS) * len(words.DEEDS),
        details=_plot,
    ),
)
