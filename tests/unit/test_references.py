"""What others are compared with: a published log or a run, refused when rows, benchmark or protocol differ."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.support import logs
from tests.support.synthetic import dump, write_results
from unlearnbench.benchmarks.base import Benchmark, Row
from unlearnbench.errors import UserError
from unlearnbench.evaluation import rescore
from unlearnbench.metric import Score, TokenScores
from unlearnbench.references import load_reference


class Tofu(Benchmark):
    name = "tofu"


class Mini(Benchmark):
    name = "tofu-mini"


def tofu(rows: int = 400) -> Benchmark:
    return Tofu({"forget": [Row(f"forget-{i:04d}", f"question {i}?", f"answer {i}") for i in range(rows)]})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("logs")
    for model in ("full", "retain90", "retain95", "retain99"):
        logs.write(root / model / "eval_log_aggregated.json", logs.tofu_log(model))
    logs.write(root / "TOFU_EVAL.json", logs.open_log())
    return root


def test_a_published_log_is_the_reference_of_its_rows(folder: Path) -> None:
    found = load_reference(folder / "TOFU_EVAL.json", tofu(), "open-unlearning")
    values = found.evaluation.values
    ids = [row.id for row in tofu().rows("forget")]
    assert list(values["forget_log_truth_ratio"].per_sample) == ids
    assert values["mink_auc@open-unlearning"].score == pytest.approx(0.38666875)
    assert values["model_utility@open-unlearning"].score == logs.UTILITY
    assert len(found.identity) == 64 and found.origin == "OpenUnlearning log TOFU_EVAL.json"


def test_our_own_model_against_a_published_log(folder: Path) -> None:
    """Forget Quality and PrivLeak of a model scored here, with the log in the place of the retrained model."""
    at = "@open-unlearning"
    data, log = tofu(), logs.open_log()
    rows = [replace(row, paraphrased_answer="right", perturbed=("wrong",)) for row in data.rows("forget")]
    holdout = [Row(f"holdout-{i:04d}", f"held out {i}?", "answer") for i in range(400)]
    data = Tofu({"forget": rows, "holdout": holdout})
    losses = [log[f"forget_Q_A_{name}"]["value_by_index"] for name in ("PARA_Prob", "PERT_Prob")]
    answers = {}
    for i, row in enumerate(rows):
        right, wrong = losses[0][str(i)]["avg_loss"], float(np.mean(losses[1][str(i)]["avg_loss"]))
        for text, loss in (("right", right), ("wrong", wrong), (row.answer, 1.0)):
            answers[Score(row.prompt, text)] = TokenScores(np.array([-loss, -loss]), np.zeros(2, bool))
    for i, row in enumerate(holdout):  # half of them likelier than the forget rows: an AUC of one half
        answers[Score(row.prompt, row.answer)] = TokenScores(np.array([-0.5 - i % 2] * 2), np.zeros(2, bool))
    reference = load_reference(folder / "TOFU_EVAL.json", data, "open-unlearning").evaluation
    names = [f"forget_quality{at}", "forget_quality", f"privleak{at}"]
    found = rescore(answers, data, names, reference).values
    assert found["forget_quality"].details["p"] == found[f"forget_quality{at}"].details["p"] == 1.0
    # 100 ((1 - 1/2) - (1 - 0.38666875)) / (1 - 0.38666875)
    assert found[f"privleak{at}"].score == pytest.approx(100 * (0.38666875 - 0.5) / 0.61333125)


def test_another_split_benchmark_or_protocol_is_refused(folder: Path) -> None:
    log = folder / "retain95" / "eval_log_aggregated.json"
    with pytest.raises(UserError, match=r"has 200 forget rows.*has 400.*it is a log of forget05"):
        load_reference(log, tofu(), "tofu")
    load_reference(log, tofu(200), "tofu")
    with pytest.raises(UserError, match=r"has 300 forget rows.*has 200"):
        load_reference(folder / "full" / "eval_log_aggregated.json", tofu(200), "tofu")
    with pytest.raises(UserError, match="scored under the protocol 'tofu', this evaluation is under 'ours'"):
        load_reference(log, tofu(200))
    with pytest.raises(UserError, match="a log of tofu, not of muse-news"):
        muse = tofu(200)
        muse.name = "muse-news"
        load_reference(log, muse, "tofu")


def test_other_rows_of_the_same_number_are_refused(folder: Path, tmp_path: Path) -> None:
    log = logs.tofu_log("retain99")
    log["eval_log_forget.json"]["generated_text"] = logs.by_index(
        [["question", "said", f" Answer,  {i}"] for i in range(40)]
    )
    file = logs.write(tmp_path / "eval_log_aggregated.json", log)
    load_reference(file, tofu(40), "tofu")
    others = Tofu({"forget": [Row(f"forget-{i:04d}", f"question {i}?", f"another {i}") for i in range(40)]})
    with pytest.raises(UserError, match="made from other rows: 40 of 40 answers of forget"):
        load_reference(file, others, "tofu")


def test_a_log_of_muse_is_held_to_the_rows(tmp_path: Path) -> None:
    rows = [{"rougeL_f1": 0.5, "ground_truth": f"It was in year {i}"} for i in range(5)]
    log = {"forget_knowmem_ROUGE": {"agg_value": 0.5, "value_by_index": logs.by_index(rows)}}
    file = logs.write(tmp_path / "MUSE_EVAL.json", log)

    def muse(name: str, text: str) -> Benchmark:
        data = Benchmark({"knowmem_forget": [Row(f"knowmem_forget-{i:04d}", "when?", f"{text} {i}") for i in range(5)]})
        data.name = name
        return data

    load_reference(file, muse("muse-news", "It was in year"), "open-unlearning")
    with pytest.raises(UserError, match="made from other rows: 5 of 5 answers of knowmem_forget"):
        load_reference(file, muse("muse-books", "A wizard, aged"), "open-unlearning")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("TOFU_EVAL.json", "{", "is no evaluation log"),
        ("TOFU_EVAL.json", '{"a": 1}', "is no evaluation log"),
        ("TOFU_EVAL.json", '{"other": {"agg_value": 1}}', "has none of the metrics"),
        ("results.json", '{"avg_gt_loss": {"0": 1.0}}', "the name of a TOFU log says which rows"),
        ("TOFU_EVAL.json", '{"forget_Q_A_Prob": {"agg_value": 1, "value_by_index": {"x": 1}}}', "of an unknown form"),
    ],
)
def test_what_is_no_log_is_one_line(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=message) as error:
        load_reference(tmp_path / name, tofu(), "open-unlearning")
    assert "\n" not in str(error.value)


def test_a_folder_names_one_retrained_run(tmp_path: Path) -> None:
    root = write_results(tmp_path / "runs", methods=["npo"])
    rows = [Row(f"forget-{i}-{j}", "q", "a") for i in range(4) for j in range(2)]
    data = Mini({"forget": rows})
    (one,) = root.glob("evaluate-retrained-s0-*")
    found = load_reference(one, data)
    assert found.evaluation.values["mink_auc"].score == pytest.approx(0.475)
    assert found.identity == json.loads((one / "record.json").read_text()).get("key", one.name[-8:])
    with pytest.raises(UserError, match="2 evaluations of retrained models in"):
        load_reference(root, data)
    with pytest.raises(UserError, match="is of a target model"):
        load_reference(next(root.glob("evaluate-target-s0-*")), data)
    with pytest.raises(UserError, match="was scored under the protocol 'ours', this evaluation is under 'tofu'"):
        load_reference(one, data, "tofu")
    with pytest.raises(UserError, match="is of another split: it has 8 forget rows, not 4"):
        load_reference(one, Mini({"forget": rows[:4]}))
    spec = json.loads((one / "spec.json").read_text())
    dump(one / "spec.json", {**spec, "benchmark": {"name": "muse-mini"}})
    with pytest.raises(UserError, match="is a run on muse-mini, not on tofu-mini"):
        load_reference(one, data)
