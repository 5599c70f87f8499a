"""Which model plays which role: splits forgotten one after the other, and targets that are there already."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from tests.e2e.test_run import unlearnbench
from unlearnbench import models, schema
from unlearnbench.benchmarks.mini import model as embedded
from unlearnbench.errors import UserError
from unlearnbench.language_model import LanguageModel
from unlearnbench.plan import Planned, plan
from unlearnbench.settings import ModelSettings

SEQUENCE = """\
title: Sustainability
benchmark: muse-mini
model: {name: llama-mini, width: 16, max_length: 256, template: question-answer}
base: {epochs: 0.02, learning_rate: 2e-3, batch_size: 8}
target: {epochs: 0.02, learning_rate: 2e-3, batch_size: 8}
unlearn: {max_steps: 2, learning_rate: 1e-3, batch_size: 2, retain_batch_size: 2}
trajectory: {points: 0}
methods: [graddiff]
sequence: [sust_1, sust_2, sust_3]
metrics: [verbmem_forget]
report: {tables: [main], plots: [tradeoff]}
"""
GIVEN: dict[str, Any] = {
    "title": "A model that is there",
    "benchmark": {"name": "tofu-mini", "forget": "forget05"},
    "target": "given",
    "unlearn": {"epochs": 1, "learning_rate": 1e-3},
    "methods": ["graddiff"],
    "metrics": ["one_minus_prob", "mink_auc_gap"],
    "trajectory": {"points": 0},
}


def saved(folder: Path, seed: int) -> str:
    hf, tokenizer = embedded.build("llama-mini", seed, 16)
    models.save(LanguageModel(hf), models.make_encoder(hf, tokenizer, ModelSettings(name="llama-mini")), folder)
    return str(folder)


def by_label(planned: list[Planned]) -> dict[str, Planned]:
    return {f"{p.stage.kind} {p.stage.label}": p for p in planned}


def spec_and_record(file: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    return json.loads(file.with_name("spec.json").read_text()), json.loads(file.read_text())


def test_splits_are_forgotten_one_after_the_other(tmp_path: Path) -> None:
    """Each step starts from the weights that the one before left, and is a row of the table."""
    (tmp_path / "sust.yaml").write_text(SEQUENCE)
    unlearnbench("run", "sust.yaml", cwd=tmp_path)
    runs = [spec_and_record(file) for file in (tmp_path / "runs").glob("unlearn-*/record.json")]
    steps = {spec["forget"]: (spec["parents"]["target"], record["key"], record["weights"]) for spec, record in runs}
    ((_, target),) = (spec_and_record(file) for file in (tmp_path / "runs").glob("target-*/record.json"))
    assert steps["sust_1"][0] == target["key"]
    assert steps["sust_2"][0] == steps["sust_1"][1] and steps["sust_3"][0] == steps["sust_2"][1]
    assert len({weights for _, _, weights in steps.values()} | {target["weights"]}) == 4
    board = pd.read_csv(tmp_path / "runs" / "reports" / "sust" / "leaderboard.csv")
    assert set(board["label"]) == {"target", "retrained", *(f"graddiff[{split}]" for split in steps)}


def test_the_packaged_sequence_is_a_chain_for_each_method() -> None:
    planned = plan(schema.load("muse-mini-sustainability"))
    steps = [p for p in planned if p.stage.kind == "unlearn"]
    assert len(steps) == 12
    for one, after in itertools.pairwise(steps):
        first = after.stage.spec["forget"] == "sust_1"
        assert after.parents["target"].stage.kind == ("target" if first else "unlearn")
        assert first or after.parents["target"] == one


def test_a_split_of_the_sequence_that_is_not_there_is_named() -> None:
    with pytest.raises(UserError, match="no split 'sust_9'; did you mean 'sust_"):
        plan(
            schema.make(
                {**GIVEN, "target": {}, "benchmark": "muse-mini", "model": "llama-mini", "sequence": ["sust_9"]}
            )
        )


def test_a_given_target_is_unlearned_as_it_is(tmp_path: Path) -> None:
    """Nothing is trained before, and the keys follow the weights of the models that are there."""
    one, other = saved(tmp_path / "one", 0), saved(tmp_path / "other", 1)
    planned = by_label(plan(schema.make({**GIVEN, "model": one})))
    assert list(planned) == ["evaluate target-s0", "unlearn graddiff-s0", "evaluate graddiff-s0"]
    unlearned = planned["unlearn graddiff-s0"]
    assert unlearned.parents == {} and planned["evaluate graddiff-s0"].parents == {"model": unlearned}
    changed = by_label(plan(schema.make({**GIVEN, "model": other})))
    assert all(changed[name].stage.key != planned[name].stage.key for name in planned)

    beside = by_label(plan(schema.make({**GIVEN, "model": one, "retrained": {"model": other}})))
    retrained = beside["evaluate retrained-s0"]
    assert retrained.stage.spec["given"]["settings"]["name"] == other
    assert beside["evaluate graddiff-s0"].parents["retrained"] == retrained
    assert beside["unlearn graddiff-s0"].stage.key == unlearned.stage.key


def test_the_models_that_are_scored_are_those_that_were_given(tmp_path: Path) -> None:
    import yaml

    one, other = saved(tmp_path / "one", 0), saved(tmp_path / "other", 1)
    content = {**GIVEN, "model": one, "retrained": {"model": other}, "report": {"tables": ["main"], "plots": []}}
    content["unlearn"] = {"max_steps": 1, "learning_rate": 1e-3}
    (tmp_path / "given.yaml").write_text(yaml.safe_dump(content))
    said = unlearnbench("run", "given.yaml", cwd=tmp_path)
    assert "the target hardly knows the forget set" in said.replace("\n", " ")  # B36: it is not trained
    board = pd.read_csv(tmp_path / "runs" / "reports" / "given" / "leaderboard.csv").set_index("label")
    assert set(board.index) == {"target", "retrained", "graddiff"}
    assert len(set(board["one_minus_prob"])) == 3


MISTAKES = [
    ({"model": "llama-mini"}, "The embedded model 'llama-mini' is untrained"),
    ({"retrained": {"epochs": 3}}, "retrained: with `target: given` nothing is trained here"),
    ({"retrained": {"model": "x", "revision": "y"}}, "unknown key 'retrained.revision'"),
    ({"target": "givn"}, "target: input should be 'given', got \"givn\""),
    ({"target": {"epoch": 3}}, "unknown key 'target.epoch'; did you mean 'epochs'?"),
    ({"sequence": ["forget", "forget"]}, "sequence: ['forget', 'forget'] has a split twice"),
]


@pytest.mark.parametrize(("change", "message"), MISTAKES, ids=[message[:40] for _, message in MISTAKES])
def test_mistakes_about_roles_are_one_line(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    content = {**GIVEN, "model": "somewhere", **change}
    if content["model"] == "somewhere":
        content["model"] = saved(tmp_path, 0)
    with pytest.raises(UserError) as caught:
        plan(schema.make(content))
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_a_retrained_model_with_another_encoding_is_refused(tmp_path: Path) -> None:
    one, other = saved(tmp_path / "one", 0), saved(tmp_path / "other", 1)
    config = json.loads((tmp_path / "other" / "tokenizer_config.json").read_text())
    (tmp_path / "other" / "tokenizer_config.json").write_text(json.dumps({**config, "bos_token": "<eos>"}))
    with pytest.raises(UserError, match="encodes text in another way than"):
        plan(schema.make({**GIVEN, "model": one, "retrained": {"model": other}}))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_weights_are_delivered_as_they_are_scored(tmp_path: Path, dtype: str) -> None:
    from unlearnbench.stages import _save

    settings = ModelSettings(name=saved(tmp_path / "one", 0))
    loaded = models.load(settings)
    record = _save(loaded, tmp_path / "stage", "float32", dtype=dtype)
    again = models.load(settings, tmp_path / "stage" / "model")
    assert models.weights_hash(again.lm) == record["weights"]
    assert {p.dtype for p in again.lm.parameters()} == {torch.float32}
    plain = torch.nn.Module.state_dict(
        models.load(settings.model_copy(update={"dtype": dtype}), tmp_path / "stage" / "model").lm.hf
    )
    assert {tensor.dtype for tensor in plain.values()} == {getattr(torch, dtype)}
    assert json.loads((tmp_path / "stage" / "model" / "config.json").read_text())["dtype"] == dtype
