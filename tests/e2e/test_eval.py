"""`unlearnbench eval`: any checkpoint, scored in one command, as a run folder."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from rich.console import Console

from tests.e2e.test_roles import saved
from tests.support.memorised import write_rows
from unlearnbench import checkup, evaluation, models
from unlearnbench.benchmarks.jsonl import JsonLines
from unlearnbench.benchmarks.tofu_mini import TofuMini
from unlearnbench.errors import UserError
from unlearnbench.report import Results
from unlearnbench.rescoring import rescore
from unlearnbench.settings import ModelSettings


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    """Four rows to forget and four to keep."""
    rows = TofuMini().rows("forget")
    return {
        "forget": str(write_rows(tmp_path / "f.jsonl", rows[:4])),
        "retain": str(write_rows(tmp_path / "r.jsonl", rows[8:12])),
    }


def run(folder: Path, model: str, benchmark: str = "jsonl", **values: Any) -> tuple[Path, str]:
    """(the folder that was written, what was printed)"""
    out = folder / values.pop("out", "out")
    console = Console(record=True, width=120, file=sys.stderr)
    checkup.evaluate(checkup.Request(model, benchmark, out=out, **values), root=folder / "runs", console=console)
    return out, console.export_text()


def values(out: Path) -> dict[str, float | None]:
    return {line["name"]: line["value"] for line in json.loads((out / "metrics.json").read_text())["metrics"]}


def test_it_leaves_a_run_folder_whose_numbers_are_those_of_the_engine(tmp_path: Path, files: dict[str, str]) -> None:
    """B44: alone or inside a run, a checkpoint has the same scores."""
    model = saved(tmp_path / "model", 0)
    out, said = run(tmp_path, model, files=files)
    assert {"metrics.json", "samples.parquet", "record.json", "spec.json"} <= {f.name for f in out.iterdir()}
    data = JsonLines(**files)
    loaded = models.load(ModelSettings(name=model))
    expected = evaluation.evaluate({"model": loaded.lm}, loaded.encoder, data, data.suite).values
    assert values(out) == pytest.approx({name: value.score for name, value in expected.items()}, abs=1e-6)
    assert set(pd.read_parquet(out / "samples.parquet")["metric"]) == set(data.suite)
    assert all(name in said for name in data.suite) and f"written: {out}" in said.replace("\n", "")
    (arm,) = Results.load([out]).groups[0].arms
    assert arm.role == "evaluated" and arm.values("forget_prob") == {0: values(out)["forget_prob"]}


def test_the_same_model_is_not_scored_twice_and_another_in_its_place_is(tmp_path: Path, files: dict[str, str]) -> None:
    """B07, B44: the key is the hash of weights, tokenizer and generation config, never the name of a folder."""
    model = saved(tmp_path / "model", 0)
    out, said = run(tmp_path, model, files=files, metrics=["forget_prob", "forget_rouge_l"])
    assert "scored before" not in said
    first = values(out)
    out, said = run(tmp_path, model, files=files, metrics=["forget_prob", "forget_rouge_l"])
    assert "scored before" in said and values(out) == first
    config = tmp_path / "model" / "generation_config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "eos_token_id": 300}))
    _, said = run(tmp_path, model, files=files, metrics=["forget_prob", "forget_rouge_l"])
    assert "scored before" not in said
    shutil.rmtree(tmp_path / "model")
    saved(tmp_path / "model", 1)
    out, said = run(tmp_path, model, files=files, metrics=["forget_prob", "forget_rouge_l"])
    assert "scored before" not in said and values(out)["forget_prob"] != first["forget_prob"]


def test_a_reference_is_compared_with(tmp_path: Path) -> None:
    """Forget Quality is null without a retrained model, and a number with its run."""
    asked = {"benchmark": "tofu-mini", "split": "forget05", "metrics": ["forget_quality"]}
    reference, said = run(tmp_path, saved(tmp_path / "retrained", 1), out="reference", **asked)
    assert values(reference)["forget_quality"] is None and "no retrained model to compare with" in said
    model = saved(tmp_path / "model", 0)
    out, said = run(tmp_path, model, reference=reference, **asked)
    found = values(out)["forget_quality"]
    assert found is not None and found <= 0 and "reference" in said
    spec = json.loads((out / "spec.json").read_text())
    assert spec["reference"]["identity"] == json.loads((reference / "record.json").read_text())["key"]
    (kept,) = rescore(out, check=True)
    assert kept.state == "impossible" and "name that with --reference" in kept.lines[0]
    (again,) = rescore(out, check=True, reference=reference)
    assert again.state == "identical"
    with pytest.raises(UserError, match="under the protocol 'ours', this evaluation is under 'open-unlearning'"):
        run(tmp_path, model, reference=reference, protocol="open-unlearning", **asked)


def test_a_protocol_is_that_of_the_encoding_and_of_every_metric_that_has_it() -> None:
    request = checkup.Request("x", "tofu-mini", protocol="open-unlearning", metrics=["tofu", "retain_exact"])
    experiment = checkup.experiment_of(request)
    assert experiment.model.protocol == "open-unlearning"
    assert {"forget_quality@open-unlearning", "forget_rouge_l@open-unlearning", "retain_exact"} <= set(
        experiment.metrics or ()
    )
    assert not any("@" in name for name in checkup.experiment_of(checkup.Request("x", "tofu-mini")).metrics or ())


@pytest.mark.parametrize(
    ("benchmark", "split", "option"),
    [("tofu-mini", "forget05", "forget"), ("muse-mini", "books", "corpus"), ("wmdp", "bio", "subject")],
)
def test_a_split_is_the_setting_of_its_benchmark(benchmark: str, split: str, option: str) -> None:
    assert checkup._options(checkup.Request("x", benchmark, split)) == {option: split}


def test_too_little_memory_is_said_before_the_work(
    tmp_path: Path, files: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkup.preflight, "memory_available", lambda: 1000)
    _, said = run(tmp_path, saved(tmp_path / "model", 0), files=files, metrics=["forget_prob"])
    assert "warning: memory: evaluate-" in said


MISTAKES = [
    ({"benchmark": "tofu-mino"}, "did you mean 'tofu-mini'?"),
    ({"split": "forget99"}, "tofu-mini has no setting forget='forget99'"),
    ({"metrics": ["forget_exactt"]}, "did you mean 'forget_exact'?"),
    ({"protocol": "tofuu"}, "model.protocol: input should be 'ours', 'tofu'"),
    ({"files": {"data_dir": "x"}}, "The benchmark 'tofu-mini' takes no --data-dir"),
    ({"benchmark": "jsonl", "split": "forget"}, "The benchmark 'jsonl' takes no --split"),
    ({"overrides": ("model.templat=plain",)}, "did you mean 'template'?"),
    ({"reference": Path("nowhere.json")}, "There is no file nowhere.json"),
]


@pytest.mark.parametrize(("change", "message"), MISTAKES, ids=[message[:40] for _, message in MISTAKES])
def test_a_mistake_is_one_line(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as caught:
        run(tmp_path, **{"model": saved(tmp_path / "model", 0), "benchmark": "tofu-mini", **change})
    assert message in str(caught.value) and "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_a_folder_of_somebody_else_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("years of work")
    with pytest.raises(UserError, match="holds no evaluation"):
        run(tmp_path, "anything", "tofu-mini")
    assert (tmp_path / "out" / "thesis.txt").exists()
