"""Padding, labels and attention of a batch against OpenUnlearning's collator (`data_collation*`).

Its attention mask comes from comparing ids with the pad id, which hides a genuine EOS that is also the pad token (B20);
that is `attention="ids"`. Ours comes from lengths and differs exactly there.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from unlearnbench.text import IGNORE, Encoded, collate

FOLDER = Path(os.environ.get("UNLEARNBENCH_GOLDEN_DIR", Path(__file__).parent / "data"))
CONTENT = {file.stem: json.loads(file.read_text()) for file in sorted(FOLDER.glob("data_collation*.json"))}
CASES = [
    pytest.param(case, id=f"{stem}[{i}]")
    for stem, content in CONTENT.items()
    for i, case in enumerate(content["cases"])
]


@pytest.mark.parametrize("case", CASES)
def test_collation(case: dict[str, Any]) -> None:
    assert case.keys() == {"pad_token_id", "eos_token_id", "padding_side", "instances", "expected"}
    expected = case["expected"]
    assert expected.keys() == {"input_ids", "attention_mask", "labels", "index"}
    rows = []
    for instance in case["instances"]:
        ids, labels = instance["input_ids"], instance["labels"]
        start = next((i for i, label in enumerate(labels) if label != IGNORE), len(labels))
        assert labels == [IGNORE] * start + ids[start:]
        rows.append(Encoded(str(instance["index"]), tuple(ids), start))
    pad, side = case["pad_token_id"], case["padding_side"]
    theirs, ours = (collate(rows, pad, side, attention) for attention in ("ids", "lengths"))
    for batch in (theirs, ours):
        assert batch.input_ids.tolist() == expected["input_ids"]
        assert batch.labels.tolist() == expected["labels"]
        assert batch.row_ids == tuple(str(index) for index in expected["index"])
    assert theirs.attention_mask.tolist() == expected["attention_mask"]
    assert ours.attention_mask.sum(1).tolist() == [len(row.ids) for row in rows]
    differs = theirs.attention_mask != ours.attention_mask
    assert torch.equal(differs, (ours.input_ids == pad) & (ours.attention_mask == 1))


def test_there_are_cases_and_both_kinds() -> None:
    assert CASES
    for content in CONTENT.values():
        assert content.keys() == {"description", "source", "cases", "note"}
