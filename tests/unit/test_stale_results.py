"""B07: no number of another model, other rows or other settings is ever taken for the one that is asked for.

Everything an evaluation depends on is part of its key, so whatever changes, the evaluation is made anew.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from unlearnbench import models, schema
from unlearnbench.attacks.base import attacks
from unlearnbench.benchmarks.mini import model as embedded
from unlearnbench.errors import UserError
from unlearnbench.language_model import LanguageModel
from unlearnbench.metric import metrics
from unlearnbench.plan import plan
from unlearnbench.settings import ModelSettings
from unlearnbench.testing.tiny import tiny_rows

Change = Callable[[Path, dict[str, Any], pytest.MonkeyPatch], None]


def save(folder: Path, seed: int) -> None:
    hf, tokenizer = embedded.build("llama-mini", seed, 16)
    models.save(LanguageModel(hf), models.make_encoder(hf, tokenizer, ModelSettings(name="llama-mini")), folder)


def write_rows(file: Path, start: int) -> None:
    lines = [json.dumps({"question": row.prompt, "answer": row.answer}) + "\n" for row in tiny_rows(4, "r", start)]
    file.write_text("".join(lines))


def evaluations(experiment: dict[str, Any], file: Path) -> set[str]:
    file.write_text(json.dumps(experiment))  # JSON is YAML
    return {p.stage.key for p in plan(schema.load(file)) if p.stage.kind == "evaluate"}


def version(registry: Any, name: str) -> Change:
    def change(folder: Path, experiment: dict[str, Any], patch: pytest.MonkeyPatch) -> None:
        entry = registry.get(name)
        patch.setitem(registry._entries, name, replace(entry, version=entry.version + 1))

    return change


def put(*path: str, value: Any) -> Change:
    def change(folder: Path, experiment: dict[str, Any], patch: pytest.MonkeyPatch) -> None:
        *outer, last = path
        for key in outer:
            experiment = experiment[key]
        experiment[last] = value

    return change


CHANGES: dict[str, Change] = {
    "another model under the same name": lambda folder, *_: save(folder / "model", 1),
    "another row in the same file": lambda folder, *_: write_rows(folder / "retain.jsonl", 30),
    "fewer new tokens": put("max_new_tokens", value=7),
    "another metric": put("metrics", value=["forget_rouge_l", "mink_auc"]),
    "a metric's new version": version(metrics, "forget_rouge_l"),
    "an attack's new version": version(attacks, "4bit"),
    "another protocol": put("model", "protocol", value="open-unlearning"),
    "another template": put("model", "template", value="plain"),
    "another dtype": put("model", "dtype", value="bfloat16"),
    "another length": put("model", "max_length", value=128),
}


@pytest.mark.parametrize("what", CHANGES)
def test_whatever_changes_is_evaluated_again(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path / "model", 0)
    for number, name in enumerate(("forget", "retain", "holdout")):
        write_rows(tmp_path / f"{name}.jsonl", 10 * number)
    experiment: dict[str, Any] = {
        "title": "Stale",
        "benchmark": {"name": "jsonl"} | {n: str(tmp_path / f"{n}.jsonl") for n in ("forget", "retain", "holdout")},
        "model": {"name": str(tmp_path / "model")},
        "target": "given",
        "unlearn": {"epochs": 1},
        "methods": ["graddiff"],
        "metrics": ["forget_rouge_l"],
        "attacks": ["4bit"],
        "trajectory": {"points": 0},
    }
    before = evaluations(experiment, tmp_path / "stale.yaml")
    assert before and before == evaluations(experiment, tmp_path / "stale.yaml")
    CHANGES[what](tmp_path, experiment, monkeypatch)
    kept = before & evaluations(experiment, tmp_path / "stale.yaml")
    if what == "an attack's new version":  # what was not attacked stays
        assert len(kept) < len(before)
    else:
        assert not kept


def test_missing_rows_are_named_before_anything_is_trained(tmp_path: Path) -> None:
    """B62: the plan reads every row, so that a run cannot fail after hours for want of a file."""
    experiment = {
        "title": "Missing",
        "benchmark": {"name": "tofu", "data_dir": str(tmp_path)},
        "model": {"name": "llama-mini"},
        "target": {"epochs": 1},
        "unlearn": {"epochs": 1},
        "methods": ["graddiff"],
    }
    with pytest.raises(UserError, match=r"There is no file .*forget10\.json"):
        evaluations(experiment, tmp_path / "missing.yaml")
