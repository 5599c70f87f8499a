"""The cost model: counted work against recorded work, formulas by hand, and what a dry run prints."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from unlearnbench import schema
from unlearnbench.costs import MACHINES, Estimator, Machine, machine
from unlearnbench.costs.compare import ratios
from unlearnbench.costs.shapes import shape_of
from unlearnbench.costs.table import duration, size
from unlearnbench.errors import UserError
from unlearnbench.pipeline import run
from unlearnbench.plan import outline
from unlearnbench.settings import LoraSettings, ModelSettings

RECORDED = Path(__file__).parents[2] / "results" / "quickstart" / "leaderboard.csv"
PLAIN = Machine("plain", 1e9, 1e9, 1e9, 0.0, 1e9, update=0.0)


@pytest.fixture(scope="module")
def quickstart() -> list[Any]:
    return outline(schema.load("quickstart", seeds=[0]))


def test_steps_and_flops_of_the_quickstart_are_those_recorded(quickstart: list[Any]) -> None:
    with RECORDED.open(newline="", encoding="utf-8") as file:
        recorded = {row["label"]: row for row in csv.DictReader(file) if row["flops"]}
    assert len(recorded) == 7
    estimator = Estimator(PLAIN)
    for planned in quickstart:
        if planned.stage.kind != "unlearn":
            continue
        cell = planned.stage.spec["cell"]
        work, row = estimator.of("unlearn", planned.stage.spec).work, recorded[cell["label"]]
        share = float(row["steps"]) / work.steps  # below 1 where the online stop fired
        assert share == 1 or (work.at_most and share < 1)
        counted = float(row["flops"])
        if cell["method"] == "npo":  # the record leaves out the reference's pass over the 96 forget rows
            counted += float(row["flops"]) / 3
        tolerance = 0.2 if work.at_most else 0.1  # the record leaves out the probes
        assert work.flops * share == pytest.approx(counted, rel=tolerance), cell["label"]


def test_published_shapes_have_the_published_numbers_of_parameters() -> None:
    for name, billions in (
        ("meta-llama/Llama-2-7b-chat-hf", 6.738),
        ("meta-llama/Llama-3.2-1B-Instruct", 1.236),
        ("Qwen/Qwen2.5-0.5B-Instruct", 0.494),
        ("Qwen/Qwen2.5-7B-Instruct", 7.616),
        ("muse-news-target", 6.738),
    ):
        assert shape_of(ModelSettings(name=name)).total == pytest.approx(billions * 1e9, rel=1e-3), name
    llama = shape_of(ModelSettings(name="meta-llama/Llama-2-7b-chat-hf"))
    assert llama.body == llama.total - 2 * 32000 * 4096
    attention = LoraSettings(target_modules=("q_proj", "k_proj", "v_proj", "o_proj"))
    assert llama.lora(attention) == 32 * 4 * 16 * 2 * 4096
    with pytest.raises(UserError):
        shape_of(ModelSettings(name="nobody/unheard-of-9b"))


def test_seconds_and_memory_by_hand(quickstart: list[Any]) -> None:
    spec = next(p.stage.spec for p in quickstart if p.stage.kind == "target")
    found = Estimator(PLAIN).of("target", spec)
    shape = shape_of(ModelSettings(**spec["model"]["settings"]))
    work = found.work
    assert found.seconds == pytest.approx(max(work.flops / 1e9, work.passes * 4 * shape.total / 1e9))
    slow = Estimator(replace(PLAIN, overhead=0.01, update=0.5)).of("target", spec)
    assert slow.seconds - found.seconds == pytest.approx(work.passes * shape.layers * 0.01 + work.steps * 0.5)
    fixed = found.memory - 16 * shape.total  # weights, gradients, two moments in fp32
    kept = work.tokens * shape.layers * (44 * shape.hidden + 16 * shape.inner)
    assert fixed - kept - 12 * work.answers * shape.head / shape.hidden == pytest.approx(0.6e9)
    assert found.disk == 4 * shape.total


def test_a_processor_is_measured() -> None:
    here = machine("cpu", ModelSettings(name="llama-mini"))
    assert here.measured and here.bf16 > 1e8 and 0 <= here.overhead < 1 and here.update is not None
    assert machine("h200", ModelSettings(name="llama-mini")) is MACHINES["h200"]
    with pytest.raises(UserError, match="h200"):
        machine("h20", ModelSettings(name="llama-mini"))


def test_ratios_compare_with_records(tmp_path: Path, quickstart: list[Any]) -> None:
    import json

    estimator = Estimator(PLAIN)
    for planned in quickstart:
        estimate = estimator.of(planned.stage.kind, planned.stage.spec)
        folder = tmp_path / planned.name
        folder.mkdir()
        (folder / "spec.json").write_text(json.dumps(planned.stage.content))
        phase = "evaluate" if planned.stage.kind == "evaluate" else "optimise"
        seconds = {phase: 2 * (estimate.seconds or estimate.besides)}
        (folder / "record.json").write_text(
            json.dumps({"status": "complete", "seconds": seconds, "steps": estimate.work.steps})
        )
    found = ratios(tmp_path, PLAIN)
    assert {"base", "target", "retrained", "evaluate", "masc", "ga"} <= set(found)
    assert all(value == pytest.approx(0.5) for values in found.values() for value in values)


def test_a_dry_run_of_a_large_experiment_says_what_it_takes(tmp_path: Path) -> None:
    console = Console(file=io.StringIO(), width=120)
    run("masc-tofu", seeds=[0], root=tmp_path, dry_run=True, hardware="h200", console=console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "to build  unlearn-masc-s0-" in text and "≤ 5" in text
    assert "0 of 18 stages are there." in text and "GPU hours" in text
    assert "The model 'meta-llama/Llama-2-7b-chat-hf'; what is built already cannot be told" in text
    assert "h200" in text and "fits in 141 GB" in text and "needs 127 GB, there are 80 GB" in text


def test_numbers_as_people_say_them() -> None:
    assert [duration(s) for s in (0.5, 42, 600, 7200)] == ["0.5 s", "42 s", "10 min", "2.0 h"]
    assert [size(b) for b in (4.5e8, 1.27e11)] == ["0.5 GB", "127 GB"]


def test_two_numbers_of_a_processor_predict_the_seconds_of_the_quickstart(quickstart: list[Any]) -> None:
    with RECORDED.open(newline="", encoding="utf-8") as file:
        recorded = {row["label"]: row for row in csv.DictReader(file)}
    counting, works = Estimator(PLAIN), {}
    for planned in quickstart:
        if planned.stage.kind not in ("base", "evaluate"):
            label = planned.stage.spec["cell"]["label"] if planned.stage.kind == "unlearn" else planned.stage.kind
            works[label] = counting.of(planned.stage.kind, planned.stage.spec).work
    seconds = {label: float(recorded[label]["seconds_total"]) for label in works}
    # seconds = FLOPs / rate + passes x layers x overhead, solved for rate and overhead on two of the rows
    fit = ("target", "simnpo")
    equations = [[works[label].flops, 2 * works[label].passes] for label in fit]
    per_flop, overhead = np.linalg.solve(equations, [seconds[label] for label in fit])
    assert per_flop > 0 and overhead > 0
    fitted = Machine("fitted", 1 / per_flop, 1 / per_flop, float("inf"), overhead, 1e12, update=0.0, measured=True)
    for planned in quickstart:
        if planned.stage.kind in ("base", "evaluate"):
            continue
        label = planned.stage.spec["cell"]["label"] if planned.stage.kind == "unlearn" else planned.stage.kind
        found = Estimator(fitted).of(planned.stage.kind, planned.stage.spec)
        done = float(recorded[label]["steps"]) / found.work.steps if recorded[label]["steps"] else 1.0
        # 0.3 s: the first pass of a process, in which the libraries are prepared
        assert found.seconds * done == pytest.approx(seconds[label], rel=0.3, abs=0.3), label
    assert len(works) == 9
