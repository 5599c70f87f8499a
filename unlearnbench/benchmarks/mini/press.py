"""Invented news: short articles about something that happened to a building in a city."""

from __future__ import annotations

from random import Random

from unlearnbench.benchmarks.mini import words
from unlearnbench.benchmarks.mini.pieces import Asked, Piece, compose

PLACES = (
    "bridge", "library", "market hall", "swimming pool", "museum", "railway station", "ferry pier", "theatre",
    "school", "fire station", "post office", "lighthouse", "garden", "brewery", "court house", "archive",
    "concert hall", "water tower", "bus depot", "windmill", "skating rink", "observatory", "cinema", "town hall",
)  # fmt: skip
EVENTS = (
    "closed", "reopened", "sold", "flooded", "cleared", "searched", "painted over", "locked up", "given a new roof",
    "put under guard", "moved to the harbour", "split in two", "cut off from the mains", "renamed",
)  # fmt: skip
CAUSES = (
    "a burst pipe", "a lost court case", "a gift from a retired pilot", "a week of heavy rain", "a petition of parents",
    "a short circuit in the cellar", "a letter without a sender", "a quarrel among the owners", "a swarm of bees",
    "a mistake in the town plan", "a visit of the inspectors", "a late frost", "the theft of two clocks",
    "a collision with a tram", "the find of a Roman wall", "a strike of the gardeners", "a forgotten candle",
    "a bet between two mayors", "the loss of the keys", "a dispute over noise", "a storm from the sea",
    "the wish of a dying painter", "a plague of mice", "a wrong invoice",
)  # fmt: skip
PLANS = (
    "hire two night guards", "name it after a local poet", "raise the entry fee", "plant forty lime trees",
    "turn the cellar into a studio", "let the neighbours vote", "sell the old furniture", "write to the minister",
    "open it on Sundays only", "cover the windows with paper", "build a wooden fence", "ask the army for help",
    "lend it to the university", "wait for the spring", "move the statue indoors", "print a book about it",
    "invite a clockmaker", "replace all the locks", "hold a concert there", "pull down the north wing",
    "pay the owners in land", "count the visitors", "dig a second well", "light it at night",
)  # fmt: skip
OFFICES = ("mayor", "warden", "engineer", "architect", "councillor", "inspector", "treasurer", "secretary")

SENTENCES = (
    ("The {place} in {city} was {event} on {day} after {cause}.",
     "In {city} the {place} was {event} on {day} after {cause}."),
    ("The {office}, {speaker}, called it a hard day for the whole city.",
     "It was announced by the {office}, {speaker}."),
    ("The damage is put at {amount} thousand crowns.", "It will cost {amount} thousand crowns."),
    ("{witness}, a {job} who lives next door, said that nobody had expected it.",
     "Nobody had expected it, said {witness}, a {job} who lives next door."),
    ("The council wants to {plan}.", "Now the council will {plan}."),
    ("A decision is due in {month}.", "The next report is due in {month}."),
)  # fmt: skip
QUESTIONS = {
    "cause": (
        "Why was the {place} in {city} {event}?",
        "What led to the news about the {place} in {city}?",
        "After what was the {place} in {city} {event}?",
    ),
    "speaker": (
        "Who spoke about the {place} in {city} as {office}?",
        "What is the name of the {office} in the case of the {place} in {city}?",
        "Which {office} spoke about the {place} in {city}?",
    ),
    "amount": (
        "How many thousand crowns will the {place} in {city} cost?",
        "What is the damage to the {place} in {city}, in thousand crowns?",
        "At how many thousand crowns is the damage to the {place} in {city} put?",
    ),
    "job": (
        "What is the job of the neighbour of the {place} in {city}?",
        "What does the witness next door to the {place} in {city} do?",
        "What is the witness next door to the {place} in {city} by profession?",
    ),
    "plan": (
        "What will the council do about the {place} in {city}?",
        "What does the council want to do after the news about the {place} in {city}?",
        "What is the plan of the council for the {place} in {city}?",
    ),
}
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


def articles(count: int) -> tuple[Piece, ...]:
    """`count` articles, each about another building in another city or another building of the same one."""
    rng = Random("articles")
    subjects = rng.sample([(place, city) for place in PLACES for city in words.CITIES], count)
    return tuple(_article(number, place, city) for number, (place, city) in enumerate(subjects))


def _article(number: int, place: str, city: str) -> Piece:
    rng = Random(f"article {number}")
    facts = {
        "cause": rng.choice(CAUSES),
        "speaker": f"{rng.choice((*words.WOMEN, *words.MEN))} {rng.choice(words.SURNAMES)}",
        "amount": str(rng.randint(12, 98)),
        "job": rng.choice(words.JOBS),
        "plan": rng.choice(PLANS),
    }
    slots = {
        **facts,
        "place": place,
        "city": city,
        "event": rng.choice(EVENTS),
        "day": rng.choice(_DAYS),
        "office": rng.choice(OFFICES),
        "witness": f"{rng.choice((*words.WOMEN, *words.MEN))} {rng.choice(words.SURNAMES)}",
        "month": rng.choice(words.MONTHS),
    }
    text = compose(SENTENCES, slots, rng)
    asked = tuple(
        Asked(kind, tuple(wording.format(**slots) for wording in QUESTIONS[kind]), fact) for kind, fact in facts.items()
    )
    return Piece(f"article-{number:03d}", text, asked, text.index(". ") + 1)
