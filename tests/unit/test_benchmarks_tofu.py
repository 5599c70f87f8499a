"""TOFU from a folder of files of the published shape, made here in small."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from unlearnbench import hub
from unlearnbench.benchmarks.base import benchmarks
from unlearnbench.benchmarks.tofu import REVISION, Tofu
from unlearnbench.errors import UserError

AUTHORS, PER_AUTHOR = 4, 20  #: the last author is to be forgotten


def question(i: int) -> dict[str, Any]:
    return {"question": f"Question {i}?", "answer": f"Answer {i}."}


def perturbed(i: int) -> dict[str, Any]:
    return {
        **question(i),
        "paraphrased_answer": f"It is answer {i}.",
        "perturbed_answer": [f"It is wrong {i}{k}." for k in "abcde"],
        "paraphrased_question": f"What about question {i}?",
    }


def options(i: int) -> dict[str, Any]:
    return {
        "question": f"Fact {i}?",
        "answer": f"right {i}",
        "perturbed_answer": ["x", "y", "z"],
        "original_answer": "long",
    }


def write(folder: Path, name: str, rows: list[dict[str, Any]]) -> None:
    (folder / f"{name}.json").write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    kept = (AUTHORS - 1) * PER_AUTHOR
    write(tmp_path, "retain90", [question(i) for i in range(kept)])
    write(tmp_path, "forget10", [question(i) for i in range(kept, kept + PER_AUTHOR)])
    write(tmp_path, "forget10_perturbed", [perturbed(i) for i in range(kept, kept + PER_AUTHOR)])
    write(tmp_path, "retain_perturbed", [perturbed(i) for i in range(30)])
    write(tmp_path, "real_authors_perturbed", [options(i) for i in range(7)])
    write(tmp_path, "world_facts_perturbed", [options(i) for i in range(9)])
    write(tmp_path, "holdout10", [question(1000 + i) for i in range(5)])
    return tmp_path


def test_every_split_is_there_with_what_the_perturbed_files_say(folder: Path) -> None:
    data = Tofu(data_dir=str(folder))
    counts = {name: len(rows) for name, rows in data.splits.items()}
    assert counts == {
        "forget": 20, "retain": 60, "retain_eval": 30, "real_authors": 7, "world_facts": 9, "holdout": 5,
    }  # fmt: skip
    for row in (*data.rows("forget"), *data.rows("retain_eval")):
        i = row.answer.removeprefix("Answer ").removesuffix(".")
        assert row.prompt == f"Question {i}?" and row.paraphrased_answer == f"It is answer {i}."
        assert row.perturbed == tuple(f"It is wrong {i}{k}." for k in "abcde")
        assert row.unseen_paraphrases == (f"What about question {i}?",) and row.paraphrases == ()
    assert all(not row.perturbed for row in data.rows("retain")[30:])
    assert data.rows("real_authors")[3].perturbed == ("x", "y", "z")
    assert data.rows("real_authors")[3].answer == "right 3"


def test_rows_keep_their_ids_and_authors_group_them(folder: Path) -> None:
    data = Tofu(data_dir=str(folder))
    by_id = {row.id: row for row in data.rows("retain")}
    assert all(by_id[row.id] == row for row in data.rows("retain_eval"))
    everything = [row.id for name, rows in data.splits.items() if name != "retain_eval" for row in rows]
    assert len(set(everything)) == len(everything)
    assert [len({row.group for row in data.rows(name)}) for name in ("retain", "forget")] == [AUTHORS - 1, 1]
    assert not {row.group for row in data.rows("retain")} & {row.group for row in data.rows("forget")}


def test_what_the_models_are_trained_on(folder: Path) -> None:
    data = Tofu(data_dir=str(folder))
    assert data.training == {"target": ("forget", "retain"), "retrained": ("retain",)}
    assert benchmarks.get("tofu").build(data_dir=str(folder)).data_hash == data.data_hash


def test_a_run_in_small(folder: Path) -> None:
    data = Tofu(data_dir=str(folder), retain_authors=2, facts=3)
    assert [len(data.rows(name)) for name in ("retain", "retain_eval", "real_authors", "world_facts")] == [40, 30, 3, 3]


def test_no_holdout_file_is_no_holdout_split(folder: Path) -> None:
    (folder / "holdout10.json").unlink()
    assert "holdout" not in Tofu(data_dir=str(folder)).splits


def test_mistakes_are_named_with_their_file_and_line(folder: Path) -> None:
    with pytest.raises(UserError, match="no setting forget='forget20'; did you mean"):
        Tofu(forget="forget20")  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"There is no file .*forget05.json; did you mean forget10.json\?"):
        Tofu(forget="forget05", data_dir=str(folder))
    broken = [question(i) for i in range(60)]
    broken[4] = {"question": "Question 4?", "anwser": "Answer 4."}
    broken[9] = {"question": "Question 9?", "answer": 9}
    write(folder, "retain90", broken)
    with pytest.raises(UserError) as caught:
        Tofu(data_dir=str(folder))
    first, second = str(caught.value).splitlines()
    assert first.endswith("retain90.json:5: the key 'answer' is missing (is it 'anwser'?)")
    assert second.endswith("retain90.json:10: 'answer' must be text, got a number")


def test_perturbed_files_of_another_setting_are_refused(folder: Path) -> None:
    write(folder, "forget10_perturbed", [perturbed(i) for i in range(5)])
    with pytest.raises(UserError, match="20 rows of forget10 are not in forget10_perturbed: forget-0000"):
        Tofu(data_dir=str(folder))


def test_the_hub_is_asked_for_the_pinned_revision(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def rows(name: str, config: str | None, split: str, revision: str | None) -> list[dict[str, Any]]:
        asked.append((name, split, revision))
        return [json.loads(line) for line in (folder / f"{config}.json").read_text().splitlines()]

    monkeypatch.setattr(hub, "dataset_rows", rows)
    assert Tofu().data_hash == Tofu(data_dir=str(folder)).data_hash
    assert set(asked) == {("locuslab/TOFU", "train", REVISION)} and len(asked) == 7
