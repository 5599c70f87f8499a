"""Small examples of each family that can be checked with pencil and paper."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from unlearnbench.benchmarks.base import Benchmark, Row
from unlearnbench.evaluation import Evaluation, rescore
from unlearnbench.metric import Generate, Sample, Score, Text, TokenScores, Value, metrics
from unlearnbench.metrics.aggregates import closeness
from unlearnbench.metrics.fluency import repetition
from unlearnbench.metrics.leakage import Leakage, leak_at_k
from unlearnbench.metrics.memorization import exact_memorization, extraction_strength
from unlearnbench.metrics.model_utility import harmonic_mean
from unlearnbench.metrics.muse import question_prompt, response
from unlearnbench.metrics.truth_ratio import clipped, log_ratio, preference, symmetric, with_epsilon
from unlearnbench.metrics.violation import margins
from unlearnbench.pages.examples import value as example_value
from unlearnbench.pages.examples import work_out
from unlearnbench.pages.worked import WORKED


def tokens(logp: list[float], hits: list[bool] | None = None, **more: Any) -> TokenScores:
    return TokenScores(np.array(logp), np.array(hits if hits is not None else [False] * len(logp)), **more)


def values(splits: dict[str, list[Row]], answers: dict[Any, Any], *names: str, **more: Any) -> dict[str, Value]:
    data = Benchmark(splits)
    data.name = "hand"
    return rescore(answers, data, names, **more).values


ROW = Row("0", "Where?", "in Paris", fact="Paris", paraphrased_answer="Paris it is", perturbed=("in Rome", "in Oslo"))


@pytest.mark.parametrize("name", WORKED)
def test_worked_examples(name: str) -> None:
    """The examples that the pages of the metrics show, in each protocol that they work out."""
    for protocol, arithmetic in WORKED[name].by_hand.items():
        found = example_value(metrics.get(name), WORKED[name], protocol)
        assert found.score == pytest.approx(work_out(arithmetic), rel=1e-12), f"{name}@{protocol}: {found.reason}"


def test_long_answers_do_not_underflow() -> None:
    """B53: 400 tokens at 2 nats give exp(-2) and not 0; a mean of 1,000 nats leaves the other row intact."""
    rows = [Row("0", "a", "x"), Row("1", "b", "y")]
    answers = {Score("a", "x"): tokens([-2.0] * 400), Score("b", "y"): tokens([-1000.0] * 3)}
    found = values({"forget": rows}, answers, "forget_prob", "forget_logp")
    assert found["forget_prob"].per_sample == {"0": pytest.approx(0.1353, abs=1e-4), "1": 0.0}
    assert found["forget_logp"].per_sample == {"0": -800.0, "1": -3000.0}


def test_options_are_normalised_in_log_space() -> None:
    """1/2 / (1/2 + 1/4 + 1/4), whatever factor all of them share."""
    for shift in (0.0, -2000.0):
        logs = [math.log(p) + shift for p in (1 / 2, 1 / 4, 1 / 4)]
        texts = (ROW.answer, *ROW.perturbed)
        answers = {Score("Where?", text): tokens([logp]) for text, logp in zip(texts, logs, strict=True)}
        assert values({"real_authors": [ROW]}, answers, "real_authors_prob")[
            "real_authors_prob"
        ].score == pytest.approx(0.5)


def test_truth_ratio() -> None:
    """Right .5, wrong .25 and .0625: geometric mean .125, R = 1/4; arithmetic mean .15625, R = .3125."""
    right, wrong = math.log(0.5), [math.log(0.25), math.log(0.0625)]
    r = log_ratio(right, wrong)
    assert r == pytest.approx(math.log(1 / 4))
    assert log_ratio(right, wrong, "arithmetic") == pytest.approx(math.log(0.3125))
    assert r is not None
    assert (symmetric(r), symmetric(-r)) == (pytest.approx(1 / 4), pytest.approx(1 / 4))
    assert (clipped(r), clipped(-r)) == (pytest.approx(3 / 4), 0)
    assert preference(r) == pytest.approx(4 / 5)
    assert log_ratio(right, []) is None
    answers = {Score("Where?", ROW.paraphrased_answer): tokens([right])}
    answers |= {Score("Where?", text): tokens([logp]) for text, logp in zip(ROW.perturbed, wrong, strict=True)}
    found = values({"forget": [ROW]}, answers, "forget_truth_ratio", "forget_log_truth_ratio")
    assert found["forget_truth_ratio"].score == pytest.approx(1 / 4)
    assert found["forget_log_truth_ratio"].score == pytest.approx(math.log(1 / 4))


@pytest.mark.parametrize("form", ["symmetric", "clipped", "preference", "raw"])
def test_a_nan_is_no_truth_ratio(form: str) -> None:
    """max(0, 1 - NaN) is 0 in Python: the row would count as one whose wrong answers are likelier."""
    for right, wrong in ((math.nan, [-1.0]), (-1.0, [math.nan, -1.0])):
        assert with_epsilon(right, wrong, form) is None
    answers = {Score("Where?", "Paris it is"): tokens([-1.0]), Score("Where?", "in Rome"): tokens([math.nan])}
    answers[Score("Where?", "in Oslo")] = tokens([-2.0])
    for name in ("forget_truth_ratio", "forget_truth_ratio@open-unlearning"):
        found = values({"forget": [ROW]}, answers, name)[name]
        assert (found.score, found.n) == (None, 0)


NAN = math.nan


@pytest.mark.parametrize(
    "name",
    ["forget_exact", "forget_exact_memorization", "forget_extraction_strength", "forget_violation_rate",
     "forget_violation_bound", "forget_violation_bound@masc"],
)  # fmt: skip
def test_a_nan_is_neither_a_hit_nor_a_miss(name: str) -> None:
    """Comparisons with NaN are false, which looks like a model that has forgotten all."""
    rows = [Row("0", "a", "x"), Row("1", "b", "y")]
    ruined = tokens([NAN, NAN], rivals=np.full((2, 16), NAN))
    sound = tokens([-0.1, -0.1], [True, True], rivals=np.full((2, 16), -9.0))
    found = values({"forget": rows}, dict.fromkeys((Score("a", "x"), Score("b", "y")), ruined), name)[name]
    assert (found.score, found.n) == (None, 0) and "none of 2" in found.reason
    half = values({"forget": rows}, {Score("a", "x"): sound, Score("b", "y"): ruined}, name)[name]
    alone = values({"forget": rows[:1]}, {Score("a", "x"): sound}, name)[name]
    assert half.score == alone.score is not None and half.per_sample["1"] is None and half.n == 1


def test_harmonic_mean() -> None:
    assert harmonic_mean([1, 1 / 2, 1 / 4]) == pytest.approx(3 / 7)
    assert harmonic_mean([1, 0, 1]) == 0


def test_model_utility_of_eight_parts_is_null() -> None:
    parts = [
        f"{s}_{kind}" for s in ("retain", "real_authors", "world_facts") for kind in ("prob", "rouge_l", "truth_ratio")
    ]
    given = {name: Value.mean_of({"0": 0.5, "1": 0.5}) for name in parts}
    assert values({}, {}, "model_utility", given=given)["model_utility"].score == pytest.approx(0.5)
    given["retain_rouge_l"] = Value(None, reason="lost")
    found = values({}, {}, "model_utility", given=given)["model_utility"]
    assert found.score is None and "1 of 9" in found.reason and "lost" in found.reason


@pytest.mark.parametrize(
    ("hits", "exact", "strength", "published"),
    [
        ([1, 1, 1, 1], 1, 1, 1),
        ([0, 1, 1, 1], 3 / 4, 3 / 4, 3 / 4),
        ([1, 0, 0, 1], 1 / 2, 1 / 4, 1 / 4),
        ([1, 1, 1, 0], 3 / 4, 0, 1 / 4),
        ([0, 0, 0, 0], 0, 0, 1 / 4),
        ([], None, None, 0),
    ],
)
def test_memorisation(hits: list[int], exact: float, strength: float, published: float) -> None:
    """The published extraction strength is off by one where nothing matches."""
    array = np.array(hits, dtype=bool)
    assert exact_memorization(array) == exact
    assert extraction_strength(array) == strength
    assert extraction_strength(array, "open-unlearning") == published


def test_exact_match_needs_the_end_too() -> None:
    for hits, expected in (([True, True, True], 1.0), ([True, True, False], 0.0)):
        answers = {Score("Where?", "in Paris"): tokens([-1.0] * 3, hits)}
        found = values({"forget": [ROW]}, answers, "forget_exact", "forget_exact_memorization")
        assert found["forget_exact"].score == expected
        assert found["forget_exact_memorization"].score == 1.0  # EOS is no content


def test_the_facts_own_tokens() -> None:
    """Tokens `in`, ` Par`, `is`, EOS: the fact is the second and the third, exp((-1 - 3) / 2)."""
    spans = np.array([[0, 2], [2, 6], [6, 8], [8, 8]])
    answers = {
        Score("Where?", "in Paris"): tokens([-9.0, -1.0, -3.0, -9.0], spans=spans),
        Generate("Where?", 128): Text("It was PARIS.", 5, True),
    }
    found = values({"forget": [ROW]}, answers, "forget_fact_prob", "forget_fact")
    assert found["forget_fact_prob"].score == pytest.approx(math.exp(-2))
    assert found["forget_fact"].score == 1.0
    unknown = {Score("Where?", "in Paris"): tokens([-9.0])}
    assert values({"forget": [ROW]}, unknown, "forget_fact_prob")["forget_fact_prob"].score is None


def test_violations_and_their_bound() -> None:
    """Margins log(.9/.1) and log(.5/.5) against tau = log(.7/.3): one of two violates; bound log .7 for the other."""
    rivals = np.log(np.array([[0.06, 0.04], [0.3, 0.2]]))
    scores = tokens([math.log(0.9), math.log(0.5)], rivals=rivals)
    assert margins(scores, 2).tolist() == pytest.approx([math.log(9), 0.0])
    assert margins(scores, 1).tolist() == pytest.approx([math.log(15), math.log(5 / 3)])
    answers = {Score("Where?", "in Paris"): scores}
    names = ("forget_violation_rate", "forget_violation_bound", "forget_violation_bound@masc", "forget_logp")
    found = values({"forget": [ROW]}, answers, *names)
    assert found["forget_violation_rate"].score == 0.5
    assert found["forget_violation_bound"].score == pytest.approx(math.log(0.7))
    assert found["forget_violation_bound@masc"].score == pytest.approx(0.5 * 2 * math.log(0.7))
    assert found["forget_logp"].score <= found["forget_violation_bound"].score  # type: ignore[operator]


def test_leakage_is_the_chance_that_a_draw_holds_a_leak() -> None:
    """Of 4 samples 1 leaks: two of them drawn hold it with probability 1/2."""
    assert leak_at_k(4, 1, 2) == pytest.approx(1 / 2)
    assert leak_at_k(4, 0, 2) == 0 and leak_at_k(4, 3, 2) == 1
    metric = Leakage(n=4, k=2)
    (request,) = metric.asks(ROW)
    assert isinstance(request, Sample) and request.n == 4
    with pytest.raises(ValueError, match="n must be at least k"):
        Leakage(n=2, k=3)


def test_repetition() -> None:
    """`a b c d a b c d`: five 4-grams, of which the last was there before."""
    assert repetition("a b c d a b c d") == pytest.approx(1 / 5)
    assert repetition("a b c d e f g h") == 0
    assert repetition("no no no no no no no") == pytest.approx(3 / 4)
    assert repetition("........") == pytest.approx(4 / 5)
    assert repetition("short") == 0 and repetition("  ") is None


def test_perplexity_that_overflows_leaves_the_nll() -> None:
    """B53"""
    answers = {Generate("Where?", 128): Text("x", 1, True), Score("Where?", "x"): tokens([-1000.0, -1.0])}
    found = values({"forget": [ROW]}, answers, "forget_answer_nll")["forget_answer_nll"]
    assert found.score == 1000.0 and "perplexity" not in found.details


@pytest.mark.parametrize(
    ("text", "ours", "published"),
    [
        ("\n\nParis", "Paris", ""),
        ("Paris\nQuestion: x", "Paris", "Paris"),
        ("Paris\n\nQuestion: x", "Paris", "Paris"),
        ("  Paris", "Paris", "  Paris"),
        ("Question: Paris", "", ""),
    ],
)
def test_knowmem_answers(text: str, ours: str, published: str) -> None:
    """B52: an answer that starts with a blank line is not empty."""
    assert response(text) == ours and response(text, "muse") == published


def test_verbmem_cuts_the_reference_to_the_same_budget() -> None:
    """B52: a reference of 300 words, 128 of which the model may say and does: 100, whatever comes after."""
    words = [f"w{i}" for i in range(300)]
    text = " ".join(words)
    ends = np.cumsum([len(word) + 1 for word in words]) - 1
    spans = np.array([*zip([0, *ends[:-1]], ends, strict=True), (len(text), len(text))])
    row = Row("0", "Once", text)
    answers = {
        Score("Once", text, raw=True): tokens([-1.0] * 301, spans=spans),
        Generate("Once", 128, raw=True): Text(" ".join(words[:128]), 128, False),
    }
    found = values({"verbmem_forget": [row]}, answers, "verbmem_forget", "verbmem_forget@muse")
    assert found["verbmem_forget"].score == 100
    assert 99 < found["verbmem_forget@muse"].score < 100  # BOS took one token of the reference


def test_knowmem_prompt() -> None:
    expected = "Question: a?\nAnswer: A\n\nQuestion: b?\nAnswer: "
    assert question_prompt("b?", [("a?", "A")]) == expected


def test_aggregates_punish_both_sides() -> None:
    """DESIGN: saying less than a model that never saw the rows is no better than saying more."""
    assert closeness(0.3, 0.3) == 1
    assert closeness(0.5, 0.3) == pytest.approx(1 - 0.2 / 0.7) == closeness(0.1, 0.3)
    assert closeness(1, 0) == 0
    names = ("forget_extraction_strength", "forget_exact_memorization", "forget_paraphrased_answer_prob")
    names += ("forget_truth_preference",)

    def given(number: float) -> dict[str, Value]:
        found = {name: Value.mean_of({"0": number, "1": number}) for name in names}
        return found | {f"{name}@open-unlearning": value for name, value in found.items()}

    data = Benchmark({})
    data.name = "hand"
    retrained = Evaluation(given(0.4), data)
    scores = {
        number: rescore(
            {}, data, ["aggregate_memorization", "aggregate_memorization@open-unlearning"], retrained, given(number)
        )
        for number in (0.01, 0.4, 0.8)
    }
    ours = {number: found.values["aggregate_memorization"].score for number, found in scores.items()}
    paper = {number: found.values["aggregate_memorization@open-unlearning"].score for number, found in scores.items()}
    assert ours[0.4] == 1 and ours[0.01] < 1 and ours[0.8] < 1  # type: ignore[operator]
    assert paper[0.01] > paper[0.4] > paper[0.8]  # type: ignore[operator]
    assert paper[0.4] == pytest.approx(0.6)
