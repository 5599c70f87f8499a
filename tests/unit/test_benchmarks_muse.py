"""MUSE and WMDP from folders of files, made here in small, and `muse-mini`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from unlearnbench import hub
from unlearnbench.benchmarks.base import Benchmark, benchmarks
from unlearnbench.benchmarks.muse_mini import FOLDS, SIZES, MuseMini
from unlearnbench.benchmarks.wmdp import Wmdp
from unlearnbench.errors import UserError
from unlearnbench.metric import expand, resolve

TEXTS = ["raw/forget", "raw/retain1", "raw/retain2", "privleak/forget", "privleak/holdout"]
TEXTS += [f"{part}/forget_{k}" for part in ("scal", "sust") for k in range(1, 5)]
QUESTIONS = ["knowmem/forget_qa", "knowmem/forget_qa_icl", "knowmem/retain_qa", "knowmem/retain_qa_icl"]


def content(name: str) -> list[dict[str, str]]:
    if name in QUESTIONS:
        return [{"question": f"{name} {i}?", "answer": f"answer {i}"} for i in range(3)]
    if name == "verbmem/forget":
        return [{"prompt": "It was", "gt": " late."}]
    return [{"text": f"{name} text {i}"} for i in range(2)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in (*TEXTS, *QUESTIONS, "verbmem/forget"):
        file = tmp_path / f"{name}.json"
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps(content(name)))
    return tmp_path


def build(folder: Path, **options: Any) -> Benchmark:
    made: Benchmark = benchmarks.get("muse-news").build(data_dir=str(folder), **options)
    return made


def test_every_part_of_muse_is_a_split(folder: Path) -> None:
    data = build(folder)
    said = {name: rows[-1].prompt or rows[-1].answer for name, rows in data.splits.items()}
    assert said == {
        "forget": "raw/forget text 1",
        "retain": "raw/retain1 text 1",
        "retain2": "raw/retain2 text 1",
        "forget_eval": "privleak/forget text 1",
        "holdout": "privleak/holdout text 1",
        "verbmem_forget": "It was",
        "knowmem_forget": "knowmem/forget_qa 2?",
        "knowmem_forget_icl": "knowmem/forget_qa_icl 2?",
        "knowmem_retain": "knowmem/retain_qa 2?",
        "knowmem_retain_icl": "knowmem/retain_qa_icl 2?",
        **{f"sust_{k}": f"sust/forget_{k} text 1" for k in range(1, 5)},
    }
    assert data.rows("verbmem_forget")[0].answer == " late."
    assert data.training == {"target": ("forget", "retain", "retain2"), "retrained": ("retain", "retain2")}


def test_the_suite_scores_the_texts_of_the_membership_test(folder: Path) -> None:
    data = build(folder)
    asked = {getattr(r, "answer", "") for name in expand(data.suite) for r in resolve(name)[1].requests(data)}
    assert {"privleak/forget text 0", "privleak/holdout text 1", " late."} <= asked
    assert "raw/forget text 0" not in asked


def test_scalability_folds(folder: Path) -> None:
    assert [row.answer for row in build(folder, scal=3).rows("forget")] == [f"scal/forget_3 text {i}" for i in (0, 1)]
    with pytest.raises(UserError, match="scal is a number from 1 to 4, got 5"):
        build(folder, scal=5)


def test_other_layouts_of_the_folder(folder: Path) -> None:
    (folder / "knowmem" / "retain_qa.json").rename(folder / "knowmem" / "retain2_qa.json")
    (folder / "knowmem" / "retain_qa_icl.json").rename(folder / "knowmem" / "retain2_qa_icl.json")
    (folder / "raw" / "forget.json").unlink()
    (folder / "raw" / "forget.txt").write_text("One text.\n\nStill the same.")
    (folder / "raw" / "retain1.json").write_text(json.dumps(["a", "b", "c"]))
    data = build(folder)
    assert [row.answer for row in data.rows("forget")] == ["One text.\n\nStill the same."]
    assert [row.answer for row in data.rows("retain")] == ["a", "b", "c"]
    assert len(data.rows("knowmem_retain")) == 3
    (folder / "sust" / "forget_1.json").unlink()
    assert "sust_1" not in build(folder).splits


def test_what_is_missing_is_named(folder: Path) -> None:
    (folder / "verbmem" / "forget.json").write_text(
        json.dumps([{"prompt": "a", "gt": "b"}, {"prompt": "c", "text": "d"}])
    )
    with pytest.raises(UserError, match=r"verbmem/forget.json: row 2: the key 'gt' is missing"):
        build(folder)
    (folder / "raw" / "retain2.json").unlink()
    with pytest.raises(UserError, match=r"There is no file .*raw/retain2.json"):
        build(folder)


def test_the_hub_is_asked_for_the_pinned_revision(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = set()

    def rows(name: str, config: str | None, split: str, revision: str | None) -> list[dict[str, Any]]:
        asked.add((name, revision))
        return content(f"{config}/{split}")  # type: ignore[return-value]

    monkeypatch.setattr(hub, "dataset_rows", rows)
    assert benchmarks.get("muse-news").build().data_hash == build(folder).data_hash
    benchmarks.get("muse-books").build(revision="abc")
    assert {name for name, _ in asked} == {"muse-bench/MUSE-News", "muse-bench/MUSE-Books"}
    assert {len(revision) for name, revision in asked if name.endswith("News")} == {40}
    assert {revision for name, revision in asked if name.endswith("Books")} == {"abc"}


# -- WMDP ------------------------------------------------------------------------------------------------------


def test_wmdp_corpora(tmp_path: Path) -> None:
    long = "x" * 60
    for part in ("forget", "retain"):
        rows = [{"text": f"{part} {i} {long}"} for i in range(4)] + [{"text": "Heading"}]
        (tmp_path / f"cyber-{part}-corpus.jsonl").write_text("\n".join(map(json.dumps, rows)))
    data = Wmdp(data_dir=str(tmp_path))
    assert [len(data.rows(split)) for split in ("forget", "retain")] == [4, 4]
    assert data.suite == ("lm-eval:wmdp_cyber", "lm-eval:mmlu") and data.training == {}
    assert len(Wmdp(data_dir=str(tmp_path), limit=2).rows("forget")) == 2
    own = tmp_path / "own.jsonl"
    own.write_text(json.dumps({"text": f"own {long}"}))
    assert Wmdp(data_dir=str(tmp_path), retain=str(own)).rows("retain")[0].answer == f"own {long}"
    with pytest.raises(UserError, match="no subject 'chem'"):
        Wmdp("chem")  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"bio-retain-corpus.jsonl"):
        Wmdp("bio", data_dir=str(tmp_path))


# -- muse-mini -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=SIZES)
def mini(request: pytest.FixtureRequest) -> MuseMini:
    return MuseMini(request.param)


def test_pieces_are_dealt_once(mini: MuseMini) -> None:
    parts = ("forget", "retain", "holdout", "tune_forget", "tune_retain", "filler")
    texts = [row.answer for part in parts for row in mini.rows(part)]
    assert len(set(texts)) == len(texts) == sum(SIZES["news" if len(texts) > 100 else "books"].values())
    ids = [row.id for part in parts for row in mini.rows(part)]
    assert len(set(ids)) == len(ids)


def test_every_answer_stands_in_its_text_and_is_asked_in_words_nobody_trained_on(mini: MuseMini) -> None:
    for side in ("forget", "retain"):
        texts = {row.group: row.answer for row in mini.rows(side)}
        trained = {wording for row in mini.rows(f"{side}_qa") for wording in (row.prompt, *row.paraphrases)}
        asked = mini.rows(f"knowmem_{side}")
        assert asked and not trained & {row.prompt for row in asked}
        for row in asked:
            assert row.answer in texts[row.group]
    assert {row.group for row in mini.rows("knowmem_forget")} == {row.id for row in mini.rows("forget")}


def test_a_question_has_one_answer(mini: MuseMini) -> None:
    answers: dict[str, str] = {}
    for name, rows in mini.splits.items():
        if name.endswith("_qa") or name.startswith("knowmem"):
            for row in rows:
                for wording in (row.prompt, *row.paraphrases):
                    assert answers.setdefault(wording, row.answer) == row.answer, wording


def test_verbatim_prompts_are_the_beginnings(mini: MuseMini) -> None:
    texts = {row.id: row.answer for row in mini.rows("forget")}
    for row in mini.rows("verbmem_forget"):
        assert row.prompt + row.answer == texts[row.group]
        assert row.answer.startswith(" ") and len(row.answer) > len(row.prompt)


def test_folds_and_growing_forget_sets(mini: MuseMini) -> None:
    folds = [row.id for k in range(1, FOLDS + 1) for row in mini.rows(f"sust_{k}")]
    assert folds == [row.id for row in mini.rows("forget")]
    corpus = "news" if len(mini.rows("forget")) > 10 else "books"
    half = MuseMini(corpus, scal=2)  # type: ignore[arg-type]
    assert [row.id for row in half.rows("forget")] == folds[: len(folds) // 2]
    assert [row.id for row in half.rows("kept")] == folds[len(folds) // 2 :]
    assert half.training["retrained"][0] == "kept" and "kept" in half.training["target"]
    known = {row.id for split in half.training["target"] for row in half.rows(split)}
    assert known == {row.id for split in mini.training["target"] for row in mini.rows(split)}


def test_the_rows_are_the_same_in_every_process() -> None:
    code = "from unlearnbench.benchmarks.muse_mini import MuseMini as M; print(M().data_hash, M('books').data_hash)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert found.stdout.split() == [MuseMini().data_hash, MuseMini("books").data_hash]


def test_the_target_has_what_the_retrained_model_lacks(mini: MuseMini) -> None:
    target, retrained = (
        {row.group for split in mini.training[role] for row in mini.rows(split)} for role in ("target", "retrained")
    )
    assert target - retrained == {row.id for row in mini.rows("forget")}
    assert not {row.id for row in mini.rows("holdout")} & target
    with pytest.raises(UserError, match="no corpus 'new'; did you mean 'news'"):
        MuseMini("new")  # type: ignore[arg-type]
