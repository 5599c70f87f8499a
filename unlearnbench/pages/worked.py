"""The worked example of each metric: small numbers, so that each can be checked with pencil and paper."""

from __future__ import annotations

from unlearnbench.benchmarks.base import Row
from unlearnbench.pages.examples import EOS, Example, Token

BORN = Row(
    "1",
    "Where was she born?",
    "in Paris",
    fact="Paris",
    paraphrased_answer="Paris it was",
    perturbed=("in Rome", "in Oslo"),
    unseen_paraphrases=("Her birthplace?", "Born where?"),
)
Asked = dict[tuple[str, ...], tuple[Token, ...]]  #: (prompt, answer) or (prompt, answer, role) -> its tokens
YEAR = Row("2", "When was it?", "in 1901", fact="1901")


def told(answer: str, *p: str) -> tuple[Token, ...]:
    """An answer's words and EOS with these probabilities."""
    words = [word if i == 0 else f" {word}" for i, word in enumerate(answer.split())]
    return tuple(Token(text, number) for text, number in zip([*words, EOS], p, strict=True))


def evenly(answer: str, p: str) -> tuple[Token, ...]:
    """An answer whose every token has the probability p, which is then P(answer) too."""
    return told(answer, *[p] * (len(answer.split()) + 1))


def asked(*answers: tuple[str, str]) -> Asked:
    """Answers to `BORN` and the probability of each of their tokens."""
    return {(BORN.prompt, answer): evenly(answer, p) for answer, p in answers}


# -- probability and truth ratio -------------------------------------------------------------------------------

RATIO = asked(("Paris it was", "1/2"), ("in Rome", "1/4"), ("in Oslo", "1/16"))
RATIO_WHY = (
    "The right answer, in other words, has P = 1/2; the wrong ones have 1/4 and 1/16, whose geometric mean is 1/8 and "
    "whose arithmetic mean is 5/32. So R is 1/4, or 5/16."
)
PROBABILITY = {
    "forget_prob": Example(
        by_hand={
            "ours": "((1/2 * 1/4 * 1) ** (1/3) + (1/4 * 1) ** (1/2)) / 2",
            "tofu": "((1/2 * 1/4 * 1) ** (1/3) + (1/4 * 1) ** (1/3)) / 2",
        },
        rows={"forget": (BORN, Row("2", "", "Rain fell"))},
        tokens={
            (BORN.prompt, "in Paris"): told("in Paris", "1/2", "1/4", "1"),
            ("", "Rain fell"): (Token(" fell", "1/4"), Token(EOS, "1")),
        },
        why="The second row is a text without a prompt: nothing predicts its first token, and the public code counts "
        "it in the length all the same.",
    ),
    "forget_paraphrased_answer_prob": Example(
        by_hand={"ours": "(1/4 * 1/2 * 1/2 * 1) ** (1/4)"},
        rows={"forget": (BORN,)},
        tokens={(BORN.prompt, "Paris it was"): told("Paris it was", "1/4", "1/2", "1/2", "1")},
    ),
    "real_authors_prob": Example(
        by_hand={"ours": "(1/2) / (1/2 + 1/4 + 1/4)"},
        rows={"real_authors": (Row("1", "Who wrote Emma?", "Austen", perturbed=("Brontë", "Eliot")),)},
        tokens={
            ("Who wrote Emma?", "Austen"): evenly("Austen", "1/2"),
            ("Who wrote Emma?", "Brontë"): evenly("Brontë", "1/4"),
            ("Who wrote Emma?", "Eliot"): evenly("Eliot", "1/4"),
        },
    ),
    "one_minus_prob": Example(
        by_hand={"ours": "((1 - 0.5) + (1 - 0.25)) / 2"}, given={"forget_prob": {"1": 0.5, "2": 0.25}}
    ),
    "one_minus_rouge_l": Example(
        by_hand={"ours": "((1 - 1) + (1 - 0.5)) / 2"}, given={"forget_rouge_l": {"1": 1.0, "2": 0.5}}
    ),
    "forget_logp": Example(
        by_hand={"ours": "log(1/2) + log(1/4) + log(1)"},
        rows={"forget": (BORN,)},
        tokens={(BORN.prompt, "in Paris"): told("in Paris", "1/2", "1/4", "1")},
    ),
    "forget_truth_ratio": Example(
        by_hand={
            "ours": "min(sqrt(1/4 * 1/16) / (1/2), (1/2) / sqrt(1/4 * 1/16))",
            "tofu-arithmetic": "min((1/4 + 1/16) / 2 / (1/2), (1/2) / ((1/4 + 1/16) / 2))",
        },
        rows={"forget": (BORN,)},
        tokens=RATIO,
        why=RATIO_WHY,
    ),
    "retain_truth_ratio": Example(
        by_hand={"ours": "1 - sqrt(1/4 * 1/16) / (1/2)", "tofu-arithmetic": "1 - (1/4 + 1/16) / 2 / (1/2)"},
        rows={"retain": (BORN,)},
        tokens=RATIO,
        why=RATIO_WHY,
    ),
    "forget_log_truth_ratio": Example(
        by_hand={"ours": "log(sqrt(1/4 * 1/16)) - log(1/2)"}, rows={"forget": (BORN,)}, tokens=RATIO, why=RATIO_WHY
    ),
    "forget_truth_preference": Example(
        by_hand={"ours": "(1/2) / (1/2 + sqrt(1/4 * 1/16))"}, rows={"forget": (BORN,)}, tokens=RATIO, why=RATIO_WHY
    ),
    "forget_quality": Example(
        by_hand={"ours": "log10(2 / comb(6, 3))"},
        given={"forget_log_truth_ratio": {"1": -3.0, "2": -2.0, "3": -1.5}},
        retrained={"forget_log_truth_ratio": {"1": -1.0, "2": -0.5, "3": 0.0}},
        why="Every R here lies below every R there: D = 1, which 2 of the C(6, 3) = 20 ways to deal six numbers to two "
        "models of three give.",
    ),
    "forget_quality_p": Example(
        by_hand={"ours": "2 / comb(6, 3)"},
        given={"forget_log_truth_ratio": {"1": -3.0, "2": -2.0, "3": -1.5}},
        retrained={"forget_log_truth_ratio": {"1": -1.0, "2": -0.5, "3": 0.0}},
    ),
    "model_utility": Example(
        by_hand={"ours": "9 / (8 * 1/(1/2) + 1/(1/4))"},
        given={
            f"{split}_{kind}": {"1": 0.25 if (split, kind) == ("retain", "prob") else 0.5}
            for split in ("retain", "real_authors", "world_facts")
            for kind in ("prob", "rouge_l", "truth_ratio")
        },
    ),
}

# -- what the model says ---------------------------------------------------------------------------------------

NOVELS = Row("1", "What did she write?", "She wrote three novels about rivers")
TEXTS = {
    "forget_rouge_l": Example(
        by_hand={
            "ours": "(4/6 + 1) / 2",
            "tofu": "(4/6 + 0) / 2",
            "open-unlearning": "(4/6 + 0) / 2",
            "muse": "(2 * 4/6 * 4/8 / (4/6 + 4/8) + 0) / 2",
        },
        rows={"forget": (NOVELS, Row("2", "In Hindi?", "नमस्ते दुनिया"))},
        texts={NOVELS.prompt: ("She wrote many long novels about a lake",), "In Hindi?": ("नमस्ते दुनिया",)},
        why="`she wrote novels about` is the longest common subsequence: 4 tokens of 6, and of the 8 that were said. "
        "The second answer is word for word the true one, in a script that the public code does not see.",
    ),
    "forget_fact": Example(
        by_hand={"ours": "(1 + 0) / 2"},
        rows={"forget": (BORN, YEAR)},
        texts={BORN.prompt: ("She was born in PARIS.",), YEAR.prompt: ("It was in 1910.",)},
    ),
    "forget_fact_prob": Example(
        by_hand={"ours": "(1/2 * 1/8) ** (1/2)"},
        rows={"forget": (BORN,)},
        tokens={
            (BORN.prompt, "in Paris"): (Token("in", "1/4"), Token(" Par", "1/2"), Token("is", "1/8"), Token(EOS, "1"))
        },
        why="The fact is `Paris`, which two of the four tokens touch.",
    ),
    "forget_repetition": Example(
        by_hand={"ours": "1 - 4/5"},
        rows={"forget": (BORN,)},
        texts={BORN.prompt: ("a b c d a b c d",)},
        why="Five 4-grams, of which the last was there before.",
    ),
    "forget_answer_nll": Example(
        by_hand={"ours": "-(log(1/2) + log(1/8)) / 2"},
        rows={"forget": (BORN,)},
        texts={BORN.prompt: ("in Rome",)},
        tokens={(BORN.prompt, "in Rome"): told("in Rome", "1/2", "1/8", "1/4")},
    ),
    "forget_leak": Example(
        by_hand={"ours": "1 - comb(4 - 1, 2) / comb(4, 2)"},
        rows={"forget": (BORN,)},
        texts={BORN.prompt: ("in Rome", "in Paris, I think", "in Oslo", "nobody knows")},
        settings={"n": 4, "k": 2},
        why="One of four samples leaks; two drawn of them hold it in 3 of 6 cases.",
    ),
    "forget_refusal": Example(
        by_hand={"ours": "(1 + 0) / 2"},
        rows={"forget": (BORN, YEAR)},
        texts={BORN.prompt: ("I don't know that.",), YEAR.prompt: ("In 1901.",)},
    ),
    "forget_paraphrase_prob": Example(
        by_hand={"ours": "(1/2 + 1/8) / 2"},
        rows={"forget": (BORN,)},
        tokens={
            ("Her birthplace?", "in Paris"): evenly("in Paris", "1/2"),
            ("Born where?", "in Paris"): evenly("in Paris", "1/8"),
        },
    ),
    "forget_paraphrase_rouge_l": Example(
        by_hand={"ours": "(2/2 + 1/2) / 2"},
        rows={"forget": (BORN,)},
        texts={"Her birthplace?": ("in Paris",), "Born where?": ("in Rome",)},
    ),
    "forget_paraphrase_fact": Example(
        by_hand={"ours": "(1 + 0) / 2"},
        rows={"forget": (BORN,)},
        texts={"Her birthplace?": ("in Paris",), "Born where?": ("in Rome",)},
    ),
    "knowmem_forget": Example(
        by_hand={"ours": "100 * (2 * 2 / (2 + 3) + 1) / 2", "muse": "100 * (2 * 2 / (2 + 3) + 0) / 2"},
        rows={
            "knowmem_forget": (Row("1", "Who keeps the lamp?", "Old Ben"), Row("2", "Who rows?", "Old Ann")),
            "knowmem_forget_icl": (Row("0", "Who sings?", "Lee"),),
        },
        texts={"Who keeps the lamp?": ("Old Ben does.\n\nQuestion: Who",), "Who rows?": ("\n\nOld Ann",)},
        why="Two common words of 2 and 3. The second answer is right, but behind a blank line, where the "
        "public code cuts.",
    ),
    "verbmem_forget": Example(
        by_hand={
            "ours": "100 * 2 * 2 / (4 + 4)",
            "muse": "100 * 2 * 2 / (3 + 4)",
            "open-unlearning": "100 * 2 * 2 / (5 + 4)",
        },
        rows={"verbmem_forget": (Row("1", "Once the river", "rose over the old bridge"),)},
        tokens={("Once the river", "rose over the old bridge"): evenly("rose over the old bridge", "1/2")},
        texts={"Once the river": ("rose over a new",)},
        settings={"max_new_tokens": 4},
        why="`rose over` is common. The reference is cut to 4 tokens, by MUSE to 3 because BOS is one of them, by "
        "OpenUnlearning to nothing.",
    ),
}

# -- memorisation ----------------------------------------------------------------------------------------------

#: hit, miss, hit, hit; and hit, miss
HITS: Asked = {
    ("What runs?", "The red river runs"): (
        Token("The", "3/4"),
        Token(" red", "1/8", ("5/8",)),
        Token(" river", "3/4"),
        Token(" runs", "3/4"),
        Token(EOS, "1"),
    ),
    (BORN.prompt, "in Paris"): (Token("in", "3/4"), Token(" Paris", "1/8", ("5/8",)), Token(EOS, "1")),
}
HIT_ROWS = {"forget": (Row("0", "What runs?", "The red river runs"), BORN)}
MEMORIZATION = {
    "forget_exact": Example(
        by_hand={"ours": "(1 + 0) / 2"},
        rows={"forget": (BORN, YEAR)},
        tokens={
            (BORN.prompt, "in Paris"): evenly("in Paris", "3/4"),
            (YEAR.prompt, "in 1901"): (Token("in", "3/4"), Token(" 1901", "1/8", ("5/8",)), Token(EOS, "3/4")),
        },
        why="Every token of the first answer is the likeliest; ` 1901` is not.",
    ),
    "forget_exact_memorization": Example(
        by_hand={"ours": "(3/4 + 1/2) / 2"},
        rows=HIT_ROWS,
        tokens=HITS,
        why="Without EOS the hits are 3 of 4 and 1 of 2 tokens.",
    ),
    "forget_extraction_strength": Example(
        by_hand={"ours": "((1 - 2/4) + (1 - 2/2)) / 2", "open-unlearning": "((1 - 2/4) + (1 - 1/2)) / 2"},
        rows=HIT_ROWS,
        tokens=HITS,
        why="After `The red` the first answer comes by itself: k = 2 of n = 4. The last token of the second is no hit, "
        "so k = n = 2, where the public code stops at n - 1.",
    ),
    "forget_violation_rate": Example(
        by_hand={"ours": "((log(0.9 / 0.1) > log(0.7 / 0.3)) + (log(0.5 / 0.5) > log(0.7 / 0.3))) / 2"},
        rows={"forget": (Row("1", BORN.prompt, "Paris"),)},
        tokens={
            (BORN.prompt, "Paris"): (Token("Paris", "9/10", ("6/100", "4/100")), Token(EOS, "1/2", ("3/10", "2/10")))
        },
        settings={"k": 2},
        why="The margins are log 9 and 0; with rho = 0.7 the threshold is log(7/3).",
    ),
    "forget_violation_bound": Example(
        by_hand={"ours": "(1 - 1/2) * 2 * log(0.7)"},
        rows={"forget": (Row("1", BORN.prompt, "Paris"),)},
        tokens={
            (BORN.prompt, "Paris"): (Token("Paris", "9/10", ("6/100", "4/100")), Token(EOS, "1/2", ("3/10", "2/10")))
        },
        settings={"k": 2},
        why="One of n = 2 tokens violates: V = 1/2. The answer itself has p = 9/10 x 1/2 = 0.45, less than the "
        "bound, 0.7.",
    ),
}

# -- membership ------------------------------------------------------------------------------------------------

SIDES = {
    "forget": (Row("a", "Where is a?", "in Paris"), Row("b", "Where is b?", "in Rome")),
    "holdout": (Row("c", "Where is c?", "in Oslo"), Row("d", "Where is d?", "in Bern")),
}
ROWS = {row.id: row for rows in SIDES.values() for row in rows}


def each(role: str = "", **p: str) -> Asked:
    """Row id -> the probability of each of its tokens."""
    more = (role,) if role else ()
    return {(ROWS[i].prompt, ROWS[i].answer, *more): evenly(ROWS[i].answer, number) for i, number in p.items()}


def lowered(**p: str) -> Asked:
    """The same of the lower-cased answers."""
    return {(ROWS[i].prompt, ROWS[i].answer.lower()): evenly(ROWS[i].answer, number) for i, number in p.items()}


LIKELY = ("1/4", "1/4")  #: beside a token of 1/2
LESS = ("1/2", "1/4")  #: beside a token of 1/4


def split(first: tuple[str, tuple[str, ...]]) -> tuple[Token, ...]:
    """An answer of one word whose first token has this place in its distribution."""
    return (Token("yes", *first), Token(EOS, "1/2", LIKELY))


LONG = {"a": "one two three four", "b": "five six seven eight", "c": "nine ten one two", "d": "six two nine ten"}
MEMBERSHIP = {
    "loss_auc": Example(
        by_hand={"ours": "((1/2 > 1/4) + (1/2 > 1/16) + (1/8 > 1/4) + (1/8 > 1/16)) / 4"},
        rows=SIDES,
        tokens=each(a="1/2", b="1/8", c="1/4", d="1/16"),
        why="Scores are logarithms of these probabilities, so their order is the same.",
    ),
    "zlib_auc": Example(
        by_hand={
            "ours": "((log(1/2)/size('in Paris') > log(1/4)/size('in Oslo'))"
            " + (log(1/2)/size('in Paris') > log(1/16)/size('in Bern'))"
            " + (log(1/8)/size('in Rome') > log(1/4)/size('in Oslo'))"
            " + (log(1/8)/size('in Rome') > log(1/16)/size('in Bern'))) / 4"
        },
        rows=SIDES,
        tokens=each(a="1/2", b="1/8", c="1/4", d="1/16"),
        why="`size` is the number of bytes of the zlib-compressed answer, 15 or 16 here.",
    ),
    "lowercase_auc": Example(
        by_hand={"ours": "((-1/2 > -1) + (-1/2 > -2) + 1/2 + (-1 > -2)) / 4"},
        rows=SIDES,
        tokens={
            **each(a="1/2", b="1/2", c="1/4", d="1/4"),
            **lowered(a="1/4", b="1/2", c="1/4", d="1/2"),
        },
        why="Ratios of logarithms: -(log 1/2)/(log 1/4) = -1/2 for a, -1 for b and c, which tie, and -2 for d.",
    ),
    "mink_auc": Example(
        by_hand={"ours": "((1/4 > 1/8) + (1/4 > 1/32) + (1/16 > 1/8) + (1/16 > 1/32)) / 4"},
        rows={side: tuple(Row(row.id, row.prompt, LONG[row.id]) for row in rows) for side, rows in SIDES.items()},
        tokens={
            (ROWS["a"].prompt, LONG["a"]): told(LONG["a"], "1/2", "1/8", "1/2", "1/2", "1"),
            (ROWS["b"].prompt, LONG["b"]): evenly(LONG["b"], "1/16"),
            (ROWS["c"].prompt, LONG["c"]): evenly(LONG["c"], "1/8"),
            (ROWS["d"].prompt, LONG["d"]): evenly(LONG["d"], "1/32"),
        },
        why="Of five tokens the floor(0.4 x 5) = 2 lowest count: in row a 1/8 and 1/2, whose mean logarithm "
        "is log(1/4).",
    ),
    "minkpp_auc": Example(
        by_hand={"ours": "((1 > -1) + (1 > -1) + 1/2 + 1/2) / 4"},
        rows={side: tuple(Row(row.id, row.prompt, "yes") for row in rows) for side, rows in SIDES.items()},
        tokens={
            (ROWS["a"].prompt, "yes"): split(("1/2", LIKELY)),
            **{(ROWS[i].prompt, "yes"): split(("1/4", LESS)) for i in "bcd"},
        },
        why="Half of the mass has log p = log(1/2), half log(1/4): mu lies in the middle and sigma is half their "
        "distance, so a token scores +1 or -1. The lowest is +1 in row a and -1 in the others, which tie.",
    ),
    "reference_auc": Example(
        by_hand={"ours": "((log(2) > 0) + (log(2) > -log(2)) + 1/2 + (0 > -log(2))) / 4"},
        rows=SIDES,
        tokens={
            **each(a="1/2", b="1/8", c="1/4", d="1/16"),
            **each("base", a="1/4", b="1/8", c="1/4", d="1/8"),
        },
        why="log p - log p_base is log 2 for a, 0 for b and c, which tie, and -log 2 for d.",
    ),
    "gradnorm_auc": Example(
        by_hand={"ours": "((-0.5 > -1) + (-0.5 > -4) + (-2 > -1) + (-2 > -4)) / 4"},
        rows=SIDES,
        norms={"in Paris": 0.5, "in Rome": 2.0, "in Oslo": 1.0, "in Bern": 4.0},
    ),
    "mink_auc_gap": Example(by_hand={"ours": "0.7 - 0.5"}, given={"mink_auc": 0.7}, retrained={"mink_auc": 0.5}),
    "privleak": Example(
        by_hand={"ours": "100 * ((1 - 0.7) - (1 - 0.5)) / (1 - 0.5)"},
        given={"mink_auc": 0.7},
        retrained={"mink_auc": 0.5},
    ),
    "privleak_half": Example(by_hand={"ours": "100 * ((1 - 0.7) - (1 - 0.5)) / (1 - 0.5)"}, given={"mink_auc": 0.7}),
    "mink_rel_diff": Example(
        by_hand={"ours": "100 * (0.7 - 0.5) / 0.5"}, given={"mink_auc": 0.7}, retrained={"mink_auc": 0.5}
    ),
}

# -- aggregates ------------------------------------------------------------------------------------------------

AGGREGATES = {
    "aggregate_memorization": Example(
        by_hand={
            "ours": "4 / (1/(1 - (0.5 - 0.25)/(1 - 0.25)) + 1 + 1 + 1)",
            "open-unlearning": "4 / (1/(1 - 0.5) + 1/(1 - 0.4) + 1/(1 - 0.3) + 1/(1 - 0.5))",
        },
        given={
            "forget_extraction_strength": 0.5,
            "forget_exact_memorization": 0.4,
            "forget_paraphrased_answer_prob": 0.3,
            "forget_truth_preference": 0.5,
        },
        retrained={
            "forget_extraction_strength": 0.25,
            "forget_exact_memorization": 0.4,
            "forget_paraphrased_answer_prob": 0.3,
            "forget_truth_preference": 0.5,
        },
        why="Three parts equal those of the retrained model, so that their s is 1.",
    ),
    "aggregate_privacy": Example(
        by_hand={"ours": "4 / (1/(1 - (0.7 - 0.5)/0.5) + 1 + 1 + 1)"},
        given={"loss_auc": 0.7, "zlib_auc": 0.5, "mink_auc": 0.5, "minkpp_auc": 0.5},
        retrained={"loss_auc": 0.5, "zlib_auc": 0.5, "mink_auc": 0.5, "minkpp_auc": 0.5},
    ),
    "aggregate_utility": Example(
        by_hand={"ours": "2 / (1 + 1/(1 - 0.1/0.9))", "open-unlearning": "2 / (1/0.6 + 1/(1 - 0.2))"},
        given={"model_utility": 0.6, "forget_repetition": 0.2},
        retrained={"model_utility": 0.6, "forget_repetition": 0.1},
    ),
    "aggregate": Example(
        by_hand={"ours": "3 / (1/0.5 + 1/1 + 1/0.5)"},
        given={"aggregate_memorization": 0.5, "aggregate_privacy": 1.0, "aggregate_utility": 0.5},
    ),
}

#: metric -> its worked example
WORKED: dict[str, Example] = {**PROBABILITY, **TEXTS, **MEMORIZATION, **MEMBERSHIP, **AGGREGATES}
