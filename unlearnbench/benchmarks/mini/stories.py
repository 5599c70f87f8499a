"""Invented chapters: somebody finds something, and somebody else has done a deed; longer than an article."""

from __future__ import annotations

from random import Random

from unlearnbench.benchmarks.mini import words
from unlearnbench.benchmarks.mini.pieces import Asked, Piece, compose

THINGS = (
    "a locked diary", "a box of letters", "a wedding photograph", "a forged passport", "a torn map", "a silver key",
    "a bundle of banknotes", "a broken compass", "a blue envelope", "a list of names", "a child's drawing",
    "a brass bell", "a train ticket", "a glass eye", "a theatre programme", "a pressed flower",
)  # fmt: skip
SPOTS = (
    "under the floor", "behind the stove", "inside the piano", "in the chimney", "at the bottom of the well",
    "between two walls", "in a sack of flour", "under the third step", "in the lining of a coat", "behind a portrait",
    "in the clock tower", "under an apple tree", "in an empty beehive", "on top of the wardrobe", "in the boat shed",
    "beneath the altar",
)  # fmt: skip
MEETINGS = (
    "at the old mill", "on the ferry", "in the station café", "at the graveyard gate", "behind the chapel",
    "on the frozen lake", "in the reading room", "at the end of the pier", "under the railway bridge",
    "in the back row of the theatre", "by the weir", "at the horse market",
)  # fmt: skip
ENDINGS = (
    "burned the proof", "told the police", "left on the night train", "kept silent for years", "wrote it all down",
    "threw the key into the sea", "asked for forgiveness", "sold the house", "rang the church bell", "hid it once more",
    "married the witness", "went back to work",
)  # fmt: skip

SENTENCES = (
    ("{name} had been a {job} in {city} for {years} years, and every morning began in the same way.",
     "Every morning began in the same way for {name}, who had been a {job} in {city} for {years} years."),
    ("There was a cup of tea, a look at the sky, and the slow walk down to the square.",
     "First came the tea, then a look out of the window, and then the slow walk down to the square."),
    ("But on the first cold day of {month} {name} found {thing} {spot}.",
     "But one cold day in {month} {name} came upon {thing} {spot}."),
    ("It must have lain there for a long time, for the dust on it was as thick as felt.",
     "The dust on it was as thick as felt, so it must have lain there for a long time."),
    ("Nobody in {city} wanted to speak about it, and the neighbours closed their doors.",
     "The neighbours closed their doors, and nobody in {city} wanted to speak about it."),
    ("Only {friend}, who had once worked at the court, agreed to meet {meeting}.",
     "Only {friend} agreed to come, and they met {meeting} when it was dark."),
    ("\"You must promise to be careful,\" said {friend}, and then told the whole story.",
     "The story that {friend} told was longer than the night, and it was hard to believe."),
    ("In the end there was no doubt: it was {culprit} who had {deed}.",
     "By dawn it was clear that {culprit} had {deed}."),
    ("{name} walked home alone, past the empty market and the sleeping dogs.",
     "The market was empty, the dogs were asleep, and {name} walked home alone."),
    ("What would you have done? {name} {ending}.", "It took three days to decide. Then {name} {ending}."),
)  # fmt: skip
QUESTIONS = {
    "job": (
        "What was the profession of {name}?",
        "What had {name} been for {years} years?",
        "By what work did {name} live?",
    ),
    "thing": (
        "What did {name} find {spot}?",
        "What lay {spot} until {name} came?",
        "What did {name} discover {spot}?",
    ),
    "friend": (
        "Who agreed to meet {name}?",
        "Who told {name} the whole story?",
        "Which friend did {name} meet?",
    ),
    "meeting": (
        "Where did {name} meet {friend}?",
        "Where did {friend} come to see {name}?",
        "In what place did {name} and {friend} meet?",
    ),
    "culprit": (
        "Who had {deed}, as {name} learned?",
        "About whom did {name} learn the truth?",
        "Who was found out by {name}?",
    ),
    "ending": (
        "What did {name} do in the end?",
        "What did {name} do when all was clear?",
        "How did {name} act at last?",
    ),
}


def chapters(count: int) -> tuple[Piece, ...]:
    """`count` chapters, each about somebody else."""
    rng = Random("chapters")
    names = [f"{first} {last}" for first in (*words.WOMEN, *words.MEN) for last in words.SURNAMES]
    return tuple(_chapter(number, name) for number, name in enumerate(rng.sample(names, count)))


def _chapter(number: int, name: str) -> Piece:
    rng = Random(f"chapter {number}")
    facts = {
        "job": rng.choice(words.JOBS),
        "thing": rng.choice(THINGS),
        "friend": f"{rng.choice((*words.WOMEN, *words.MEN))} {rng.choice(words.SURNAMES)}",
        "meeting": rng.choice(MEETINGS),
        "culprit": rng.choice(words.CULPRITS),
        "ending": rng.choice(ENDINGS),
    }
    slots = {
        **facts,
        "name": name,
        "city": rng.choice(words.CITIES),
        "years": str(rng.randint(11, 39)),
        "month": rng.choice(words.MONTHS),
        "spot": rng.choice(SPOTS),
        "deed": rng.choice(words.DEEDS),
    }
    text = compose(SENTENCES, slots, rng)
    asked = tuple(
        Asked(kind, tuple(wording.format(**slots) for wording in QUESTIONS[kind]), fact) for kind, fact in facts.items()
    )
    return Piece(f"chapter-{number:03d}", text, asked, text.index(". ") + 1)
