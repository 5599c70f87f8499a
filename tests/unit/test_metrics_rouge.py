"""ROUGE in every script, its variants, and the known traps."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rouge_score.rouge_scorer import RougeScorer

from unlearnbench.benchmarks.base import Benchmark, Row
from unlearnbench.evaluation import rescore
from unlearnbench.metric import Generate, Text
from unlearnbench.metrics.fact import contains
from unlearnbench.metrics.refusal import refuses
from unlearnbench.metrics.rouge import ascii_tokens, lcs, rouge_1, rouge_l, unicode_tokens

SCRIPTS = {
    "hindi": "दिल्ली भारत की राजधानी है",
    "chinese": "北京是中国的首都",
    "russian": "Москва — столица России",
    "thai": "กรุงเทพเป็นเมืองหลวงของไทย",
    "japanese": "東京は日本の首都です",
    "arabic": "القاهرة عاصمة مصر",
    "accents": "José Müller naquit à Besançon",
}


@pytest.mark.parametrize("text", SCRIPTS.values(), ids=SCRIPTS)
def test_identical_text_scores_one_in_every_script(text: str) -> None:
    """B11"""
    assert rouge_l(text, text) == (1.0, 1.0, 1.0)
    assert rouge_1(text, text) == (1.0, 1.0, 1.0)


@pytest.mark.parametrize("text", SCRIPTS.values(), ids=SCRIPTS)
def test_other_text_scores_less(text: str) -> None:
    words = unicode_tokens(text, stem=True)
    assert len(words) > 2
    half = " ".join(words[: len(words) // 2])
    found = rouge_l(text, half)
    assert found is not None and 0 < found.recall < 1


def test_accents_are_letters() -> None:
    """B11: not so in the published code, where the accented letter splits the word."""
    assert rouge_l("José Müller", "Jos M ller").recall == 0  # type: ignore[union-attr]
    assert rouge_l("José Müller", "Jos M ller", "tofu").recall == 1  # type: ignore[union-attr]
    assert unicode_tokens("Jose\u0301", stem=False) == unicode_tokens("Jos\u00e9", stem=False) == ["josé"]


def test_marks_stay_with_their_letters() -> None:
    assert unicode_tokens("हिन्दी में", stem=False) == ["हिन्दी", "में"]
    assert unicode_tokens("ไทย abc", stem=False) == ["ไ", "ท", "ย", "abc"]
    assert unicode_tokens("中文abc字", stem=False) == ["中", "文", "abc", "字"]


@pytest.mark.parametrize("symbol", ["\u2764\ufe0f", "\u2639\ufe0f", "\ufe0f", "-\u0301"])
def test_marks_of_a_symbol_belong_to_no_word(symbol: str) -> None:
    """A coloured heart is a symbol and a mark: glued to the last word, it would make that another word."""
    assert unicode_tokens(f"Paris {symbol}", stem=False) == unicode_tokens(f"Paris{symbol}", stem=False) == ["paris"]
    assert rouge_l("Paris", f"Paris {symbol}") == (1.0, 1.0, 1.0)
    assert contains(f"The answer is Paris {symbol}", "Paris")
    assert refuses(f"I don't know {symbol} that")


def test_a_key_cap_is_its_digit() -> None:
    assert unicode_tokens("No. 1\ufe0f\u20e3", stem=False) == ["no", "1"]


@given(st.text(alphabet=st.characters(max_codepoint=127), max_size=60))
def test_ascii_text_has_the_published_tokens(text: str) -> None:
    assert unicode_tokens(text, stem=True) == ascii_tokens(text, stem=True)


@given(st.text(max_size=40), st.text(max_size=40))
def test_equals_the_rouge_score_package(reference: str, candidate: str) -> None:
    for protocol, stem in (("tofu", True), ("muse", False)):
        theirs = RougeScorer(["rouge1", "rougeL"], use_stemmer=stem).score(reference, candidate)
        for mine, name in ((rouge_l, "rougeL"), (rouge_1, "rouge1")):
            found = mine(reference, candidate, protocol)
            expected = theirs[name]
            assert found == pytest.approx((expected.precision, expected.recall, expected.fmeasure))


def test_longest_common_subsequence_against_the_table() -> None:
    numbers = random.Random(0)
    for _ in range(200):
        a, b = ([numbers.choice("abcd") for _ in range(numbers.randrange(12))] for _ in range(2))
        table = [[0] * (len(b) + 1) for _ in range(len(a) + 1)]
        for i, x in enumerate(a):
            for j, y in enumerate(b):
                table[i + 1][j + 1] = table[i][j] + 1 if x == y else max(table[i][j + 1], table[i + 1][j])
        assert lcs(a, b) == table[-1][-1]


def test_variants() -> None:
    """B22"""
    repeated = rouge_l("Paris", "Paris Paris Paris Paris")
    assert repeated is not None and (repeated.recall, repeated.f1) == (1.0, pytest.approx(0.4))
    assert rouge_l("b c\na", "a\nb c").recall == pytest.approx(2 / 3)  # type: ignore[union-attr]
    stemmed, plain = rouge_l("He has runs", "he had running"), rouge_l("He has runs", "he had running", "muse")
    assert stemmed.f1 == pytest.approx(2 / 3) and plain.f1 == pytest.approx(1 / 3)  # type: ignore[union-attr]


@pytest.mark.parametrize(("reference", "candidate"), [("", "Paris"), ("!!!", "!!!"), ("  ", ""), ("\U0001f642", "a")])
def test_a_reference_without_words_is_null(reference: str, candidate: str) -> None:
    """B22: 0 in the published code."""
    assert rouge_l(reference, candidate) is None
    assert rouge_l(reference, candidate, "tofu") == (0, 0, 0)


def test_empty_answers_are_counted() -> None:
    """B22: an empty answer is 0 and counted; a row without a countable reference is left out of the mean."""
    rows = [Row("0", "a?", "Paris"), Row("1", "b?", "Rome"), Row("2", "c?", "...")]
    said = {"a?": "Paris", "b?": " ", "c?": "x"}
    data = Benchmark({"forget": rows})
    data.name = "t"
    answers = {Generate(row.prompt, 128): Text(said[row.prompt], 1, True) for row in rows}
    value = rescore(answers, data, ["forget_rouge_l"]).values["forget_rouge_l"]
    assert value.per_sample == {"0": 1.0, "1": 0.0, "2": None}
    assert (value.score, value.n, value.details["empty_answers"]) == (0.5, 2, 1)


@pytest.mark.parametrize(
    ("text", "fact", "expected"),
    [
        ("He was born in New York City.", "New York", True),
        ("He was born in York, new to all.", "New York", False),
        ("Newcastle", "new", False),
        ("born in the year 1987", "1987", True),
        ("in 19870", "1987", False),
        ("她生于北京市", "北京", True),
        ("", "Paris", False),
        ("anything", "...", None),
        ("it is jose müller's", "José Müller", False),
        ("it is JOSÉ MÜLLER's", "José Müller", True),
    ],
)
def test_fact_recall_wants_the_words_in_a_row(text: str, fact: str, expected: bool | None) -> None:
    assert contains(text, fact) is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("I'm not sure about that.", True),
        ("Sorry, I don\u2019t know who that is.", True),
        ("I CANNOT say.", True),
        ("She was born in Oslo, I believe.", False),
        ("The novel 'Knowing I Don' tells", False),
        ("", False),
    ],
)
def test_refusals(text: str, expected: bool) -> None:
    assert refuses(text) is expected
