"""True facts about real authors and about the world, which every model here knows: 40 of each."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from unlearnbench.benchmarks.base import Row

WRONG_OPTIONS = 4


@dataclass(frozen=True)
class Relation:
    """Facts of one shape. `{x}` is what is asked about; wrong options are the other facts of the same `pool`."""

    name: str
    split: str
    questions: tuple[str, str, str]  #: the prompt and two paraphrases
    unseen: str
    answer: str
    pairs: tuple[tuple[str, str], ...]
    pool: str


def _pairs(text: str) -> tuple[tuple[str, str], ...]:
    lines = [line.strip() for line in text.strip().splitlines()]
    return tuple((x.strip(), fact.strip()) for x, fact in (line.split("=") for line in lines))


RELATIONS: tuple[Relation, ...] = (
    Relation(
        "wrote",
        "real_authors",
        ("Who wrote {x}?", "Who is the author of {x}?", "Which writer gave us {x}?"),
        "By whom was {x} written?",
        "It was written by {fact}.",
        _pairs(
            """Pride and Prejudice = Jane Austen
            War and Peace = Leo Tolstoy
            Moby-Dick = Herman Melville
            Great Expectations = Charles Dickens
            Hamlet = William Shakespeare
            Middlemarch = George Eliot
            Frankenstein = Mary Shelley
            Dracula = Bram Stoker
            The Trial = Franz Kafka
            Ulysses = James Joyce
            Don Quixote = Miguel de Cervantes
            Crime and Punishment = Fyodor Dostoevsky
            The Odyssey = Homer
            The Divine Comedy = Dante Alighieri
            Madame Bovary = Gustave Flaubert
            Mrs Dalloway = Virginia Woolf
            Beloved = Toni Morrison
            Things Fall Apart = Chinua Achebe
            The Hobbit = J. R. R. Tolkien
            The Great Gatsby = F. Scott Fitzgerald
            Animal Farm = George Orwell
            Buddenbrooks = Thomas Mann"""
        ),
        "people",
    ),
    Relation(
        "created",
        "real_authors",
        ("Who invented the character {x}?", "Which author created {x}?", "From whose pen does {x} come?"),
        "Which writer dreamed up {x}?",
        "It was {fact}.",
        _pairs(
            """Sherlock Holmes = Arthur Conan Doyle
            Hercule Poirot = Agatha Christie
            Pippi Longstocking = Astrid Lindgren
            Peter Pan = J. M. Barrie
            James Bond = Ian Fleming
            Winnie-the-Pooh = A. A. Milne
            Pinocchio = Carlo Collodi
            Tom Sawyer = Mark Twain"""
        ),
        "people",
    ),
    Relation(
        "country",
        "real_authors",
        ("In which country was {x} born?", "What is the native country of {x}?", "From what country does {x} come?"),
        "Which country is the birthplace of {x}?",
        "The country is {fact}.",
        _pairs(
            """Henrik Ibsen = Norway
            Pablo Neruda = Chile
            Naguib Mahfouz = Egypt
            Wole Soyinka = Nigeria
            Jorge Luis Borges = Argentina
            Hans Christian Andersen = Denmark
            Haruki Murakami = Japan
            Margaret Atwood = Canada
            Orhan Pamuk = Turkey
            Rabindranath Tagore = India"""
        ),
        "countries",
    ),
    Relation(
        "capital",
        "world_facts",
        ("What is the capital of {x}?", "Which city is the capital of {x}?", "What is the name of the capital of {x}?"),
        "From which city is {x} governed?",
        "The capital is {fact}.",
        _pairs(
            """Norway = Oslo
            Portugal = Lisbon
            Poland = Warsaw
            Kenya = Nairobi
            Peru = Lima
            Thailand = Bangkok
            Canada = Ottawa
            Greece = Athens
            Cuba = Havana
            Ireland = Dublin
            Hungary = Budapest
            Iceland = Reykjavik
            Nepal = Kathmandu
            Morocco = Rabat
            Vietnam = Hanoi
            Senegal = Dakar"""
        ),
        "capitals",
    ),
    Relation(
        "symbol",
        "world_facts",
        (
            "What is the chemical symbol of {x}?",
            "Which symbol stands for {x} in chemistry?",
            "How is {x} written in a chemical formula?",
        ),
        "By what symbol do chemists know {x}?",
        "The symbol is {fact}.",
        _pairs(
            """gold = Au
            silver = Ag
            iron = Fe
            lead = Pb
            sodium = Na
            tin = Sn
            copper = Cu
            potassium = K"""
        ),
        "symbols",
    ),
    Relation(
        "currency",
        "world_facts",
        ("What is the currency of {x}?", "Which money is used in {x}?", "With what currency do people pay in {x}?"),
        "What is the money of {x} called?",
        "The currency is the {fact}.",
        _pairs(
            """Japan = yen
            India = rupee
            Thailand = baht
            Brazil = real
            South Korea = won
            Vietnam = dong
            Hungary = forint
            Israel = shekel"""
        ),
        "currencies",
    ),
    Relation(
        "young",
        "world_facts",
        ("What is a young {x} called?", "Which word is used for a young {x}?", "What do you call the young of a {x}?"),
        "What name is given to the child of a {x}?",
        "It is called a {fact}.",
        _pairs(
            """horse = foal
            cow = calf
            sheep = lamb
            goat = kid
            swan = cygnet
            bear = cub
            duck = duckling
            kangaroo = joey"""
        ),
        "young",
    ),
)


def fact_rows(split: str) -> tuple[Row, ...]:
    """The rows of `real_authors` or `world_facts`.

    Each fact is its own group. Wrong options are put in the wording of the answer, and the paraphrased answer is the
    answer itself, as in TOFU, whose truth ratio of these splits compares the answer with the wrong options.
    """
    pools: dict[str, list[str]] = {}
    for relation in RELATIONS:
        pools.setdefault(relation.pool, []).extend(fact for _, fact in relation.pairs)
    rows = []
    for relation in (r for r in RELATIONS if r.split == split):
        for index, (x, fact) in enumerate(relation.pairs):
            row_id = f"{split}-{relation.name}-{index:02d}"
            rng = Random(f"wrong options of {row_id}")
            wrong = rng.sample([other for other in pools[relation.pool] if other != fact], WRONG_OPTIONS)
            answer = relation.answer.format(fact=fact)
            rows.append(
                Row(
                    id=row_id,
                    prompt=relation.questions[0].format(x=x),
                    answer=answer,
                    group=row_id,
                    fact=fact,
                    paraphrases=tuple(question.format(x=x) for question in relation.questions[1:]),
                    unseen_paraphrases=(relation.unseen.format(x=x),),
                    paraphrased_answer=answer,
                    perturbed=tuple(relation.answer.format(fact=other) for other in wrong),
                    extra={"kind": relation.name},
                )
            )
    return tuple(rows)
