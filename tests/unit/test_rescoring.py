"""`unlearnbench rescore`: the metrics of runs from their answers, byte for byte, and never over what is there."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from unlearnbench import answers, cli, evaluation
from unlearnbench.benchmarks.jsonl import JsonLines
from unlearnbench.canonical import write_json
from unlearnbench.metric import expand, metrics, resolve
from unlearnbench.report.results import Results
from unlearnbench.stages import load_evaluation, save_values
from unlearnbench.store import Stage, Store
from unlearnbench.testing.tiny import tiny_encoder, tiny_lm, tiny_rows

NAMES = ["forget_prob", "retain_prob", "forget_rouge_l", "forget_fact", "mink_auc", "mink_auc_gap"]


def rows(file: Path, prefix: str, start: int) -> str:
    lines = [
        {"id": row.id, "question": row.prompt, "answer": row.answer, "group": row.group, "fact": row.fact}
        for row in tiny_rows(6, prefix, start)
    ]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(file)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the evaluations of a retrained model and of an unlearned one."""
    root = tmp_path_factory.mktemp("made")
    files = {name: rows(root / f"{name}.jsonl", name, 20 * i) for i, name in enumerate(("forget", "retain", "holdout"))}
    data = JsonLines(**files)
    names = expand(NAMES)
    parents: dict[str, str] = {}
    retrained = None
    for seed, role in enumerate(("retrained", "unlearned")):
        spec = {
            "benchmark": {"name": "jsonl", "version": 1, "options": files, "data_hash": data.data_hash},
            "model": {"name": "tiny"},
            "role": role,
            "seed": 0,
            "attack": "none",
            "cell": {"method": "npo", "label": "npo"} if role == "unlearned" else None,
            "metrics": names,
            "metric_versions": {name: resolve(name)[0].version for name in names},
            "metric_sources": [],
            "parents": parents,
        }
        scored = evaluation.evaluate({"model": tiny_lm(seed=seed)}, tiny_encoder(), data, names, retrained)
        stage = Stage("evaluate", f"{role}-s0", spec)
        with Store(root / "runs").build(stage) as building:
            answers.save(building.folder / "answers.parquet", scored.answers)
            save_values(scored, building.folder)
            write_json(building.folder / "examples.json", [])
            building.record["counts"] = scored.counts
        parents, retrained = {"retrained": stage.key}, load_evaluation(building.folder, data)
    return root / "runs"


@pytest.fixture
def runs(made: Path, tmp_path: Path) -> Path:
    """A copy to write into."""
    import shutil

    return Path(shutil.copytree(made, tmp_path / "runs"))


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """The command line: (arguments) -> (exit code, the lines it said)."""

    def call(*arguments: str | Path) -> tuple[int, list[str]]:
        monkeypatch.setattr(sys, "argv", ["unlearnbench", "rescore", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        said = capsys.readouterr()
        return int(ended.value.code or 0), [line.strip() for line in (said.out + said.err).splitlines()]

    return call


def bytes_in(root: Path) -> dict[str, bytes]:
    return {str(f.relative_to(root)): f.read_bytes() for f in sorted(root.rglob("*.*")) if ".locks" not in f.parts}


def test_unchanged_code_gives_the_same_bytes_and_writes_nothing(run: Any, runs: Path) -> None:
    """B44: a stored run, scored again."""
    before = bytes_in(runs)
    code, said = run(runs)
    assert code == 0, said
    assert [line.split()[0] for line in said] == ["identical", "identical"]
    (one,) = runs.glob("evaluate-unlearned-*")
    assert run(one, "--check") == (0, [f"identical  {one.name}"])
    assert bytes_in(runs) == before


def test_a_number_that_does_not_follow_from_the_answers_is_named(run: Any, runs: Path) -> None:
    (one,) = runs.glob("evaluate-unlearned-*")
    content = json.loads((one / "metrics.json").read_text())
    (entry,) = (entry for entry in content["metrics"] if entry["name"] == "forget_prob")
    was, entry["value"] = entry["value"], 0.25
    write_json(one / "metrics.json", content)
    before = bytes_in(runs)
    code, said = run(runs)
    assert code == 1
    assert f"forget_prob: recorded 0.25, from the answers {was:.10g}" in said
    assert f"differs    {one.name}" in said
    assert bytes_in(runs) == before


def test_a_new_version_makes_a_new_run_and_leaves_the_old(
    run: Any, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = metrics.get("forget_prob")
    monkeypatch.setitem(metrics._entries, "forget_prob", replace(entry, version=7))
    before = bytes_in(runs)
    code, said = run(runs, "--check")
    assert code == 1 and sum(line.startswith("new") for line in said) == 2
    assert f"forget_prob: version {entry.version} -> 7" in said and bytes_in(runs) == before
    code, said = run(runs)
    assert code == 0
    after = bytes_in(runs)
    assert {name: after[name] for name in before} == before  # nothing was overwritten
    assert len(list(runs.glob("evaluate-*"))) == 4
    # reports see the new ones only, and find the retrained one by either key
    results = Results.load([runs])
    assert {stage.metrics["forget_prob"].version for stage in results.stages} == {7} and len(results.stages) == 2
    new = next(stage for stage in results.stages if stage.spec["role"] == "unlearned")
    retrained = next(stage for stage in results.stages if stage.spec["role"] == "retrained")
    assert new.parent("retrained") == retrained.key and results.find(retrained.replaces[0]) is retrained
    # the key is the one a run would ask for, so that it finds the stage
    spec = {k: v for k, v in new.spec.items() if k not in ("kind", "label")}
    spec["metric_versions"] = {name: resolve(name)[0].version for name in spec["metrics"]}
    assert Store(runs).state(Stage("evaluate", new.spec["label"], spec)) == "complete"
    code, said = run(runs)  # and again: the old ones lead to what is there, the new ones are identical
    assert (
        code == 0 and sorted(line.split()[0] for line in said if "evaluate-" in line) == ["identical"] * 2 + ["new"] * 2
    )
    assert len(list(runs.glob("evaluate-*"))) == 4


def test_more_metrics_and_those_that_cannot_be_computed(run: Any, runs: Path) -> None:
    (one,) = runs.glob("evaluate-retrained-*")
    code, said = run(one, "--metrics", "loss_auc,forget_leak,minkpp_auc,forget_violation_rate,lm-eval:some_task")
    assert code == 0
    assert "forget_leak cannot be recomputed: 6 of its requests have no answer, for instance Sample" in said
    assert "minkpp_auc cannot be recomputed: 12 of its requests have no answer, for instance Score with moments" in said
    rate = (
        "forget_violation_rate cannot be recomputed: 6 of its requests have no answer, for instance Score with rivals"
    )
    assert rate in said
    assert "lm-eval:some_task cannot be recomputed: 1 of its requests have no answer, for instance External" in said
    assert len(said) == 5  # loss_auc needs nothing that is not there
    (new,) = (folder for folder in runs.glob("evaluate-retrained-*") if folder != one)
    values = {entry["name"]: entry for entry in json.loads((new / "metrics.json").read_text())["metrics"]}
    assert values["loss_auc"]["value"] is not None and values["forget_leak"]["value"] is None
    assert values["forget_prob"] == json.loads((one / "metrics.json").read_text())["metrics"][0]


def test_a_reference_of_its_own(run: Any, runs: Path) -> None:
    """What `eval --reference` made names what it was compared with: without that nothing is computed."""
    (retrained,) = runs.glob("evaluate-retrained-*")
    (one,) = runs.glob("evaluate-unlearned-*")
    spec = json.loads((one / "spec.json").read_text())
    key = spec.pop("parents")["retrained"]
    write_json(one / "spec.json", {**spec, "parents": {}, "reference": {"identity": key, "origin": "run X"}})
    assert run(one)[1][1] == "it was compared with run X: name that with --reference"
    assert run(one, "--reference", retrained) == (0, [f"identical  {one.name}"])
    write_json(one / "spec.json", {**spec, "parents": {}, "reference": {"identity": "0", "origin": "run X"}})
    assert run(one, "--reference", retrained)[1][1].startswith("it was compared with another reference than")
    # a run that was compared with nothing gets what it lacked, beside itself
    write_json(one / "spec.json", {**spec, "parents": {}})
    assert run(one)[1][1] == "mink_auc_gap cannot be recomputed: no retrained model to compare with"
    code, said = run(one, "--reference", retrained)
    (new,) = (folder for folder in runs.glob("evaluate-unlearned-*") if folder != one)
    assert code == 0 and said == [f"new        {one.name} -> {new.name}"]
    assert (new / "metrics.json").read_bytes() == (one / "metrics.json").read_bytes()


def test_what_cannot_be_rescored_is_one_line(run: Any, runs: Path, tmp_path: Path) -> None:
    (one,) = runs.glob("evaluate-unlearned-*")
    (retrained,) = runs.glob("evaluate-retrained-*")
    assert run(tmp_path / "none") == (2, [f"error: There is no folder {tmp_path / 'none'} to rescore."])
    (said,) = run(runs, "--metrics", "forget_prop")[1]
    assert said.startswith("error: There is no metric 'forget_prop'; did you mean")
    retrained.rename(tmp_path / "elsewhere")
    parent = json.loads((one / "spec.json").read_text())["parents"]["retrained"]
    assert run(one) == (1, [f"impossible {one.name}", f"the retrained run {parent[:8]} is not in {runs}"])
    (one / "answers.parquet").unlink()
    code, said = run(one)
    assert code == 1 and said == [f"impossible {one.name}", "it keeps no answers.parquet: nothing to compute from"]
    spec = json.loads((one / "spec.json").read_text())
    write_json(one / "spec.json", {**spec, "imported": {"file": "TOFU_EVAL.json"}})
    assert run(one)[1][1] == "it was imported from TOFU_EVAL.json: import that again"


def test_other_rows_are_refused(run: Any, runs: Path) -> None:
    """The rows changed since: what the answers are about is not there any more."""
    (one,) = runs.glob("evaluate-retrained-*")
    file = Path(json.loads((one / "spec.json").read_text())["benchmark"]["options"]["holdout"])
    text = file.read_text()
    try:
        file.write_text(text.replace("number 41", "number 49"))
        code, said = run(one)
    finally:
        file.write_text(text)
    assert code == 2 and len(said) == 1 and said[0].startswith("error: The rows of benchmark 'jsonl' are not those")
