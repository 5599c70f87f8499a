"""Doubts before hours of work: room, parts that are missing, and models in the wrong roles."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from tests.support.memorised import write_rows
from unlearnbench import hub, models, preflight, schema
from unlearnbench.benchmarks.base import Benchmark
from unlearnbench.evaluation import evaluate
from unlearnbench.finetuning import finetune
from unlearnbench.plan import plan
from unlearnbench.reference import Reference, run
from unlearnbench.settings import LoraSettings, ModelSettings, TrainSettings
from unlearnbench.testing.tiny import tiny_encoder, tiny_lm, tiny_rows
from unlearnbench.text import collate


def accelerator() -> Any:
    from accelerate import Accelerator

    return Accelerator(cpu=True)


class Tiny(Benchmark):
    name = "tiny"


@pytest.fixture(scope="module")
def scores() -> dict[str, dict[str, float | None]]:
    """The forget probability of a model that learned the rows, of one that learned others, and of a random one."""
    forget, retain = tiny_rows(4, "f"), tiny_rows(4, "r", 20)
    settings = TrainSettings(epochs=60, learning_rate=1e-2, batch_size=8)
    found = {}
    for role, rows in {"target": [*forget, *retain], "retrained": retain, "random": []}.items():
        lm = tiny_lm()
        if rows:
            finetune(lm, tiny_encoder(), rows, settings, 0, accelerator())
        values = evaluate({"model": lm}, tiny_encoder(), Tiny({"forget": forget}), ["forget_prob"]).values
        found[role] = {"forget_prob": values["forget_prob"].score}
    return found


def test_models_in_their_roles_give_no_doubt(scores: dict[str, dict[str, float | None]]) -> None:
    assert preflight.roles(scores["target"], scores["retrained"]) == []
    assert preflight.roles(scores["target"]) == []


@pytest.mark.parametrize("wrong", ["retrained", "random"])
def test_a_target_that_does_not_know_the_forget_set_is_doubted(
    scores: dict[str, dict[str, float | None]], wrong: str
) -> None:
    """B36: the retrained model, or one that was never trained on anything, in the place of the target."""
    (line,) = preflight.roles(scores[wrong])
    assert "the target hardly knows the forget set" in line and "probability of the answers" in line


def test_a_retrained_model_that_knows_the_forget_set_is_doubted(scores: dict[str, dict[str, float | None]]) -> None:
    """B36: the target in the place of the retrained model, and the two swapped."""
    (line,) = preflight.roles(scores["target"], scores["target"])
    assert "the retrained model knows the forget set" in line and "swapped" not in line
    lines = preflight.roles(scores["retrained"], scores["target"])
    assert len(lines) == 2 and "are the two swapped?" in lines[1]


def test_knowledge_is_read_from_what_was_scored() -> None:
    assert preflight.known({"one_minus_prob": 0.25, "forget_exact": 1.0}) == ("one_minus_prob", 0.75)
    assert preflight.known({"verbmem_forget": 90.0}) == ("verbmem_forget", 0.9)  # out of 100
    assert preflight.known({"forget_prob": None, "mink_auc": 1.0}) is None
    assert preflight.roles({"mink_auc": 1.0}) == []


@pytest.mark.parametrize("lora", [False, True], ids=["all weights", "LoRA"])
def test_the_reference_is_the_target_whatever_it_was_loaded_from(tmp_path: Path, lora: bool) -> None:
    """B36: nobody can name another model as the reference; of a target that is an adapter it is base and adapter."""
    models.save(tiny_lm(), tiny_encoder(), tmp_path / "base")
    target = models.load(ModelSettings(name=str(tmp_path / "base"), template="plain")).lm
    if lora:
        adapted = models.add_lora(target, LoraSettings(r=2, dropout=0.5), 0)
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(parameter, generator=torch.Generator().manual_seed(0))
        adapted.hf.save_pretrained(tmp_path / "adapter")
        target = models.load(ModelSettings(name=str(tmp_path / "adapter"), template="plain")).lm
    target.eval()
    batch = collate([tiny_encoder().encode("What is it?", "A lamp.")], 2)
    with torch.no_grad():
        before = run(target, batch, "answers", None)
        trained = models.add_lora(target, LoraSettings(r=2), 1) if lora else target
        reference = Reference(trained)
        for parameter in trained.parameters():
            if parameter.requires_grad or not lora:
                parameter.add_(0.1)
        assert torch.equal(reference.forward(batch, "answers", None), before)
        assert not torch.allclose(run(trained, batch, "answers", None), before, atol=1e-3)


# -- room ------------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    models.save(tiny_lm(), tiny_encoder(), tmp_path / "model")
    return tmp_path / "model"


def planned(model: str, **unlearn: Any) -> Any:
    files = [str(write_rows(Path(model).parent / f"{name}.jsonl", tuple(tiny_rows(4, name)))) for name in "fr"]
    content = {
        "title": "x", "benchmark": {"name": "jsonl", "forget": files[0], "retain": files[1]}, "unlearn": unlearn,
        "model": {"name": model, "template": "plain"}, "target": "given", "methods": ["npo+klr"],
    }  # fmt: skip
    return plan(schema.make(content))


def test_memory_and_disk_are_those_of_the_cost_model(folder: Path) -> None:
    score, unlearned, _ = planned(str(folder))
    found = preflight.estimates([score, unlearned])
    count = models.parameter_count(tiny_lm())
    assert found[unlearned.name].work.trained == count and found[unlearned.name].disk == 4 * count
    assert found[unlearned.name].memory > found[score.name].memory > 4 * count
    adapted = planned(str(folder), lora={"r": 1})[1]
    assert preflight.estimates([adapted])[adapted.name].work.trained < count


class Disk(NamedTuple):
    free: int


def test_too_little_room_is_one_line_each_with_the_way_out(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    todo = planned(str(folder))
    assert preflight.room(todo, folder / "runs") == []
    monkeypatch.setattr(preflight.shutil, "disk_usage", lambda path: Disk(1000))
    monkeypatch.setattr(preflight, "memory_available", lambda: 1000)
    disk, memory = preflight.room(todo, folder / "runs")
    assert disk.startswith("disk: models of about") and "are free" in disk
    assert memory.startswith("memory: unlearn-npo") and "--lora" in memory
    assert preflight.room([], folder) == []


def test_embedded_models_are_not_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    todo = plan(schema.load("quickstart", methods=["ga"], seeds=[0]))
    monkeypatch.setattr(preflight, "memory_available", lambda: 1000)
    assert preflight.room(todo, tmp_path) == []


# -- parts -----------------------------------------------------------------------------------------------------


def test_metrics_that_need_the_network_are_named_before_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (line,) = preflight.parts(["forget_prob", "lm-eval:mmlu"], ["none"])
    assert line.startswith("lm-eval:mmlu: ") and "HF_HUB_OFFLINE forbids the network" in line
    assert preflight.parts(["forget_prob"], ["none"]) == []
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setattr(hub, "reachable", lambda: True)
    assert preflight.parts(["lm-eval:mmlu"], ["none"]) == []


def test_an_attack_without_its_library_is_named_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight.importlib.util, "find_spec", lambda name: None)
    (line,) = preflight.parts([], ["none", "4bit"])
    assert line.endswith("pip install 'unlearnbench[quant]'.")


@pytest.mark.parametrize(
    ("flag", "there", "said"),
    [("1", True, "not asked, HF_HUB_OFFLINE is set"), ("", False, "is out of reach"), ("", True, "https://")],
)
def test_env_says_whether_the_hub_can_be_had_and_the_way_out(
    flag: str, there: bool, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from unlearnbench.catalogue import environment

    for name in hub.FLAGS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", flag)
    monkeypatch.setattr(hub, "reachable", lambda: there)
    environment()
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("Hub ")]
    assert said in line
    assert ("--data-dir" in line) == (not there or bool(flag))
