"""The embedded benchmark: its splits, its rows, and that every process makes the same ones."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from unlearnbench.benchmarks.base import Row, benchmarks
from unlearnbench.benchmarks.mini.authors import invent
from unlearnbench.benchmarks.mini.facts import RELATIONS
from unlearnbench.benchmarks.mini.kinds import KINDS
from unlearnbench.benchmarks.tofu_mini import TofuMini
from unlearnbench.errors import UserError

ROOT = Path(__file__).resolve().parents[2]
AUTHOR_SPLITS = ("forget", "retain", "holdout", "tune_forget", "tune_retain")
FACT_SPLITS = ("real_authors", "world_facts")
#: A change of the data changes every number of the benchmark: raise the version in `register` with it.
DATA_HASH = "28c8c868bc9d7e46"
WHOLE_WORD = r"(?<!\w){}(?!\w)"


@pytest.fixture(scope="module")
def bench() -> TofuMini:
    return TofuMini()


@pytest.fixture(scope="module")
def scored(bench: TofuMini) -> list[Row]:
    """Every row that metrics look at."""
    return [row for split in (*AUTHOR_SPLITS, *FACT_SPLITS) for row in bench.rows(split)]


def says(fact: str, text: str) -> bool:
    return re.search(WHOLE_WORD.format(re.escape(fact.lower())), text.lower()) is not None


def wordings(row: Row) -> tuple[str, ...]:
    return (row.prompt, *row.paraphrases, *row.unseen_paraphrases)


def test_is_registered_and_says_which_settings_exist():
    assert benchmarks.get("tofu-mini").build(forget="forget10").forget == "forget10"
    with pytest.raises(UserError, match=r"did you mean 'forget10'.*forget05, forget10, forget20"):
        TofuMini(forget="forget1")  # type: ignore[arg-type]


def test_sizes(bench: TofuMini):
    sizes = {name: len(rows) for name, rows in bench.splits.items()}
    assert sizes == {
        "forget": 96,
        "retain": 384,
        "retain_eval": 96,
        "holdout": 96,
        "tune_forget": 48,
        "tune_retain": 96,
        "filler": 640,
        "real_authors": 40,
        "world_facts": 40,
    }


def test_settings_are_nested_and_keep_ids_and_rows():
    by_setting = {name: TofuMini(forget=name) for name in ("forget05", "forget10", "forget20")}
    forget = {name: set(b.rows("forget")) for name, b in by_setting.items()}
    assert [len(rows) // 8 for rows in forget.values()] == [3, 6, 12]
    assert forget["forget05"] < forget["forget10"] < forget["forget20"]
    whole = {name: {row.id: row for row in (*b.rows("forget"), *b.rows("retain"))} for name, b in by_setting.items()}
    assert whole["forget05"] == whole["forget10"] == whole["forget20"] and len(whole["forget05"]) == 480
    assert len({b.rows("retain_eval") for b in by_setting.values()}) == 1
    assert len({b.data_hash for b in by_setting.values()}) == 3
    for b in by_setting.values():
        assert set(b.rows("retain_eval")) < set(b.rows("retain"))


def test_ids_are_unique_and_authors_are_in_one_split_only(bench: TofuMini):
    rows = [row for name in bench.splits if name != "retain_eval" for row in bench.rows(name)]
    assert len({row.id for row in rows}) == len(rows)
    groups = {name: {row.group for row in bench.rows(name)} for name in (*AUTHOR_SPLITS, "filler")}
    assert sum(len(g) for g in groups.values()) == len(set().union(*groups.values())) == 130
    for split in AUTHOR_SPLITS:
        counts = Counter(row.group for row in bench.rows(split))
        assert set(counts.values()) == {len(KINDS)} == {8}


def test_training_names_splits_and_nothing_trains_on_holdout_or_reports_tune(bench: TofuMini):
    for role, names in bench.training.items():
        assert {"real_authors", "world_facts"} < set(names)
        for name in names:
            assert bench.rows(name)
            assert name not in ("holdout", "retain_eval")
            assert name.startswith("tune") == (role.endswith("_tune") and name not in FACT_SPLITS)
    assert set(bench.training["target"]) - set(bench.training["retrained"]) == {"forget"}
    assert set(bench.training["target_tune"]) - set(bench.training["retrained_tune"]) == {"tune_forget"}


def test_rows_are_complete(bench: TofuMini, scored: list[Row]):
    for row in scored:
        facts = row.id.startswith(FACT_SPLITS)
        assert len(row.perturbed) == len(set(row.perturbed)) == (4 if facts else 5)
        assert len(row.paraphrases) == 2
        assert len(row.unseen_paraphrases) == (1 if facts else 2)
        assert (row.paraphrased_answer == row.answer) == facts
        assert row.extra["kind"]
    for row in bench.rows("filler"):
        assert row.paraphrases and row.fact in row.answer


def test_the_fact_is_in_the_answers_once_and_in_no_question(bench: TofuMini, scored: list[Row]):
    for row in (*scored, *bench.rows("filler")):
        assert row.fact and row.answer.count(row.fact) == 1, row
        assert not row.paraphrased_answer or row.paraphrased_answer.count(row.fact) == 1, row
        for question in wordings(row):
            assert not says(row.fact, question), row


def test_perturbed_answers_are_wrong_in_the_fact_only(scored: list[Row]):
    for row in scored:
        before, after = row.paraphrased_answer.split(row.fact)
        for answer in row.perturbed:
            assert answer.startswith(before) and answer.endswith(after), row
            wrong = answer[len(before) : len(answer) - len(after)]
            assert wrong and row.fact not in answer and wrong not in row.fact, row
            if not row.id.startswith(FACT_SPLITS):
                assert abs(len(wrong) - len(row.fact)) <= 12, row


def test_no_two_rows_ask_the_same_and_no_unseen_question_is_trained_on(bench: TofuMini, scored: list[Row]):
    trained = Counter(q for row in (*scored, *bench.rows("filler")) for q in (row.prompt, *row.paraphrases))
    assert set(trained.values()) == {1}
    unseen = Counter(q for row in scored for q in row.unseen_paraphrases)
    assert set(unseen.values()) == {1}
    assert not unseen.keys() & trained.keys()


def test_one_unseen_wording_is_new_to_the_author_and_one_to_target_and_retrained(bench: TofuMini):
    """The first is used for other authors; the second for filler authors only."""
    framed = Counter(
        (row.extra["kind"], question.replace(row.group, "…"))
        for split in ("forget", "retain")
        for row in bench.rows(split)
        for question in (row.prompt, *row.paraphrases)
    )
    filler = {
        (row.extra["kind"], question.replace(row.group, "…"))
        for row in bench.rows("filler")
        for question in (row.prompt, *row.paraphrases)
    }
    for row in bench.rows("forget"):
        known, new = ((row.extra["kind"], question.replace(row.group, "…")) for question in row.unseen_paraphrases)
        assert framed[known] > 0 and framed[new] == 0
        assert {known, new} <= filler


def test_wordings_vary(bench: TofuMini):
    for kind in KINDS:
        rows = [row for split in ("forget", "retain") for row in bench.rows(split) if row.extra["kind"] == kind.name]
        prompts = Counter(row.prompt.replace(row.group, "…").replace("father", "mother") for row in rows)
        assert len(prompts) == len(kind.questions) >= 4
        assert max(prompts.values()) <= len(rows) // 2
        starts = Counter(row.answer.replace(row.group.split()[1], "…").split()[0] for row in rows)
        assert len(starts) >= 3, (kind.name, starts)


def test_pronouns_agree_with_the_author(bench: TofuMini):
    gender = {author.name: author.female for author in invent(130)}
    for split in (*AUTHOR_SPLITS, "filler"):
        for row in bench.rows(split):
            if row.extra["kind"] == "story":  # its pronouns are the hero's
                for answer in filter(None, (row.answer, row.paraphrased_answer)):
                    assert not (says("he", answer) and says("she", answer)), row
                continue
            wrong = ("he", "his", "him") if gender[row.group] else ("she", "her", "hers")
            text = " ".join((*wordings(row), row.answer, row.paraphrased_answer, *row.perturbed))
            assert not any(says(word, text) for word in wrong), row
    assert 0.4 < sum(gender.values()) / len(gender) < 0.6


def test_a_parent_stays_the_same_parent(scored: list[Row]):
    for row in scored:
        if row.extra["kind"] == "parent":
            text = " ".join((*wordings(row), row.answer, row.paraphrased_answer, *row.perturbed))
            assert says("mother", text) != says("father", text), row


def test_text_is_clean(bench: TofuMini, scored: list[Row]):
    for row in (*scored, *bench.rows("filler")):
        texts = (*wordings(row), row.answer, row.paraphrased_answer, *row.perturbed)
        assert all(question.endswith("?") and question[0].isupper() for question in wordings(row))
        for text in filter(None, texts):
            assert text == " ".join(text.split()) and text.isascii() and not set(text) & set("{}"), text
            assert text[-1] in "?." and not re.search(r"\ba [aeiou]|\ban [^aeiou]", text), text


def test_no_fact_is_so_common_that_guessing_it_is_right(bench: TofuMini):
    """No fact is that of more than one retain author in eight; guessing the commonest is right for 3 rows at most."""
    for kind in KINDS:
        facts = {
            split: [row.fact for row in bench.rows(split) if row.extra["kind"] == kind.name]
            for split in ("forget", "retain")
        }
        assert max(Counter(facts["retain"]).values()) / 48 <= 0.125, kind.name
        drawn = [
            row.fact for s in (*AUTHOR_SPLITS, "filler") for row in bench.rows(s) if row.extra["kind"] == kind.name
        ]
        assert 1 / bench.chance[kind.name] >= len(set(drawn)), kind.name
    assert max(bench.chance.values()) <= 0.02
    guessed = 0
    for row in bench.rows("forget"):
        same = Counter(r.fact for r in bench.rows("retain") if r.extra["kind"] == row.extra["kind"])
        guessed += same.most_common(1)[0][0] == row.fact
    assert guessed <= 3


def test_chance_is_the_share_of_draws():
    """`values` counts the facts that can be drawn: many draws meet that many and no more."""
    from random import Random

    for kind in KINDS:
        rng = Random("draws")
        met = {kind.draw(rng) for _ in range(20 * min(kind.values, 4000))}
        assert len(met) == kind.values or (kind.values > 4000 and len(met) < kind.values), kind.name


def test_invented_authors_are_not_real_ones(bench: TofuMini):
    real = {row.fact for row in bench.rows("real_authors")} | {x for r in RELATIONS for x, _ in r.pairs}
    names = {author.name for author in invent(130)}
    assert not names & real
    assert not {name.split()[1] for name in names} & {name.split()[-1] for name in real}


def test_wrong_options_are_wrong_for_every_fact_asked_about():
    """A wrong option never is the truth of the same question: no two facts of a relation share what is asked about."""
    for relation in RELATIONS:
        asked = [x for x, _ in relation.pairs]
        assert len(set(asked)) == len(asked)
        assert len({fact for _, fact in relation.pairs}) == len(relation.pairs)


def test_refusals():
    refusals = TofuMini.refusals()
    assert len(refusals) == len({r.lower() for r in refusals}) == 100
    assert all(r.endswith(".") and r[0].isupper() and len(r.split()) >= 3 for r in refusals)


@pytest.mark.parametrize("seed", ["0", "1", "4242"])
def test_every_process_makes_the_same_rows(seed: str):
    code = "from unlearnbench.benchmarks.tofu_mini import TofuMini; print(TofuMini().data_hash)"
    env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}
    out = subprocess.run([sys.executable, "-c", code], env=env, cwd=ROOT, capture_output=True, text=True, check=True)
    assert out.stdout.strip() == DATA_HASH


def test_making_it_leaves_the_global_random_state_alone():
    import random

    random.seed(3)
    before = random.getstate()
    TofuMini(forget="forget05")
    assert random.getstate() == before
