"""Metrics of other libraries: a local folder of `evaluate`, a local task of lm-eval, and nothing from the network."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from unlearnbench import external
from unlearnbench.benchmarks.base import Benchmark
from unlearnbench.evaluation import evaluate
from unlearnbench.language_model import LanguageModel
from unlearnbench.testing.tiny import tiny_encoder, tiny_lm, tiny_rows

METRIC = """
import datasets
import evaluate

class Lengths(evaluate.Metric):
    def _info(self):
        features = datasets.Features({"predictions": datasets.Value("string"), "references": datasets.Value("string")})
        return evaluate.MetricInfo(description="", citation="", features=features)

    def _compute(self, predictions, references):
        return {"said": [float(len(p)) for p in predictions], "true": sum(map(len, references)) / len(references)}
"""


def data() -> Benchmark:
    found = Benchmark({"forget": tiny_rows(4, "f")})
    found.name = "t"
    return found


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    for name in ("HF_HUB_OFFLINE", "HF_EVALUATE_OFFLINE", "HF_DATASETS_OFFLINE"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    return tmp_path


def test_a_metric_of_evaluate_from_a_folder(offline: Path) -> None:
    folder = offline / "lengths"
    folder.mkdir()
    (folder / "lengths.py").write_text(METRIC)
    name = f"evaluate:{folder}"
    found = evaluate({"model": tiny_lm()}, tiny_encoder(), data(), [name, "forget_rouge_l"])
    value = found.values[name]
    texts = {r.prompt: a.text for r, a in found.answers.items()}  # type: ignore[attr-defined]
    assert value.per_sample == {row.id: float(len(texts[row.prompt])) for row in data().rows("forget")}
    assert value.details["true"] == np.mean([len(row.answer) for row in data().rows("forget")])
    assert value.details["key"] == "said" and value.is_mean
    (line,) = (line for line in found.metrics_json() if line["name"] == name)
    json.dumps(line, allow_nan=False)
    assert len(found.answers) == 4  # shared with ROUGE


def test_a_metric_that_is_not_here_says_so_in_one_line(offline: Path) -> None:
    """B62"""
    found = evaluate({"model": tiny_lm()}, tiny_encoder(), data(), ["evaluate:no_such_metric", "forget_prob"])
    value = found.values["evaluate:no_such_metric"]
    assert value.score is None and "needs the network" in value.reason and "\n" not in value.reason
    assert found.values["forget_prob"].score is not None


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("task")
    lines = [{"question": f"What is {i}?", "choices": ["one", "two", "three"], "answer": i % 3} for i in range(12)]
    (folder / "data.jsonl").write_text("\n".join(map(json.dumps, lines)))
    (folder / "local.yaml").write_text(
        f"""task: local_choices
dataset_path: json
dataset_kwargs:
  data_files: {folder / "data.jsonl"}
output_type: multiple_choice
test_split: train
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: answer
metric_list:
  - metric: acc
"""
    )
    return folder / "local.yaml"


def plain_choices(lm: LanguageModel, lines: list[dict[str, Any]]) -> float:
    """Accuracy by hand: the option with the highest log-likelihood behind BOS, question and a space."""
    encoder, right = tiny_encoder(), 0
    for line in lines:
        scores = []
        for choice in line["choices"]:
            before = [0, *encoder._ids(line["question"])]
            ids = [*before, *encoder._ids(f" {choice}")]
            with torch.no_grad():
                logp = lm.hf(input_ids=torch.tensor([ids])).logits[0].log_softmax(-1)
            scores.append(sum(float(logp[i - 1, ids[i]]) for i in range(len(before), len(ids))))
        right += int(np.argmax(scores)) == line["answer"]
    return right / len(lines)


def test_a_local_task_of_lm_eval(offline: Path, task: Path) -> None:
    """B55: our tokenizer, BOS and model; modes, generation config and global randomness as before."""
    lm, encoder = tiny_lm(seed=4), tiny_encoder()
    lm.train()
    config = lm.hf.generation_config.to_dict()
    pad_side, dropout = encoder.tokenizer.padding_side, [m.training for m in lm.modules()]
    states = random.getstate(), torch.random.get_rng_state()
    found = evaluate({"model": lm}, encoder, data(), [f"lm-eval:{task}"])
    value = found.values[f"lm-eval:{task}"]
    lines = [json.loads(line) for line in (task.parent / "data.jsonl").read_text().splitlines()]
    assert value.score == pytest.approx(plain_choices(lm, lines)), value.reason
    assert value.details["n"] == 12 and value.details["shortened"] == 0 and value.details["lm_eval"]
    assert [m.training for m in lm.modules()] == dropout
    assert lm.hf.generation_config.to_dict() == config
    assert encoder.tokenizer.padding_side == pad_side
    assert random.getstate() == states[0] and torch.equal(torch.random.get_rng_state(), states[1])


def test_a_model_that_says_the_same_of_everything_is_flagged(offline: Path, task: Path) -> None:
    """B55"""
    lm = tiny_lm()
    with torch.no_grad():
        for parameter in lm.parameters():
            parameter.zero_()
    flat = task.parent / "flat.yaml"
    text = task.read_text().replace("local_choices", "flat_choices").replace('"{{choices}}"', '["abc", "abd", "abe"]')
    flat.write_text(text)
    value = evaluate({"model": lm}, tiny_encoder(), data(), [f"lm-eval:{flat}"]).values[f"lm-eval:{flat}"]
    assert value.score is None and "same log-likelihood" in value.reason


def test_prompts_that_are_too_long_are_counted(offline: Path, task: Path) -> None:
    """B55"""
    lm = tiny_lm(max_position_embeddings=16)
    value = evaluate({"model": lm}, tiny_encoder(), data(), [f"lm-eval:{task}"]).values[f"lm-eval:{task}"]
    assert value.details["shortened"] > 0


def test_the_cache_is_keyed_by_the_weights(offline: Path, task: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """B07: lm-eval's own cache knows the request only."""
    monkeypatch.setenv(external.CACHE_VARIABLE, str(offline / "cache"))
    scores = []
    for seed in (1, 2, 1):
        value = evaluate({"model": tiny_lm(seed=seed)}, tiny_encoder(), data(), [f"lm-eval:{task}"]).values
        scores.append(value[f"lm-eval:{task}"].score)
    assert scores[0] == scores[2]
    assert len(list((offline / "cache").iterdir())) == 2


@pytest.mark.slow
def test_a_task_that_is_not_here_says_so_in_one_line(offline: Path) -> None:
    value = evaluate({"model": tiny_lm()}, tiny_encoder(), data(), ["lm-eval:no_such_task"]).values[
        "lm-eval:no_such_task"
    ]
    assert value.score is None and "network" in value.reason and "\n" not in value.reason
