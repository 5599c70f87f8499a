"""ROUGE on text pairs against values obtained by running the public implementations (`metrics_rouge*`)."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from unlearnbench.metrics.rouge import rouge_1, rouge_l, text_similarity

FOLDER = Path(os.environ.get("UNLEARNBENCH_GOLDEN_DIR", Path(__file__).parent / "data"))
CONTENT = {file.stem: json.loads(file.read_text()) for file in sorted(FOLDER.glob("metrics_rouge*.json"))}
FIELDS = {"f1": "f1", "recall": "recall", "precision": "precision"}
PROTOCOLS = {"stemmed": ("tofu", "open-unlearning"), "unstemmed": ("muse",)}


def cases(*path: str) -> list[Any]:
    found = []
    for stem, content in CONTENT.items():
        part = content
        for key in path:
            part = part[key]
        found += [pytest.param(case, content["tolerance"]["rel"], id=f"{stem}[{i}]") for i, case in enumerate(part)]
    return found


def check(reference: str, candidate: str, protocol: str, expected: dict[str, float], rel: float) -> None:
    assert expected
    for name, number in expected.items():
        variant, field = name.split("_")
        found = {"rouge1": rouge_1, "rougeL": rouge_l}[variant](reference.strip(), candidate.strip(), protocol)
        assert getattr(found, FIELDS[field]) == pytest.approx(number, rel=rel, abs=0.0), name


@pytest.mark.parametrize(("pair", "rel"), cases("pairs"))
def test_pair(pair: dict[str, Any], rel: float) -> None:
    assert pair["expected"].keys() == PROTOCOLS.keys()
    for kind, protocols in PROTOCOLS.items():
        for protocol in protocols:
            check(pair["reference"], pair["candidate"], protocol, pair["expected"][kind], rel)


@pytest.mark.parametrize(("pair", "rel"), cases("pairs"))
def test_ours_is_the_same_on_ascii_text(pair: dict[str, Any], rel: float) -> None:
    """Apart from a reference without a countable token, which is null in ours and 0 there."""
    if not (pair["reference"] + pair["candidate"]).isascii():
        return
    if rouge_l(pair["reference"], pair["candidate"]) is None:
        assert set(pair["expected"]["stemmed"].values()) == {0}
    else:
        check(pair["reference"], pair["candidate"], "ours", pair["expected"]["stemmed"], rel)


@pytest.mark.parametrize(("case", "rel"), cases("text_similarity", "cases"))
def test_text_similarity(case: dict[str, Any], rel: float) -> None:
    expected = dict(case["expected"])
    reference, said = text_similarity(
        case["prompt"], case["conversation"], case["raw_generation"], case["stop_words"] or (), case["eos_text"]
    )
    assert (reference, said) == (expected.pop("ground_truth"), expected.pop("generation"))
    check(reference, said, "open-unlearning", expected, rel)


def test_every_section_is_known() -> None:
    assert CONTENT
    for content in CONTENT.values():
        assert content.keys() == {"description", "tolerance", "sources", "pairs", "text_similarity"}
        assert content["pairs"] and content["text_similarity"]["cases"]
