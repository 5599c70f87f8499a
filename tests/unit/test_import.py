"""`unlearnbench import`, on the command line: published logs as runs, with the numbers that were published."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support import logs
from unlearnbench import cli
from unlearnbench import report as reports


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """The command line: (arguments) -> (exit code, what it said)."""

    def call(*arguments: str | Path) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["unlearnbench", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        said = capsys.readouterr()
        return int(ended.value.code or 0), said.out + said.err

    return call


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("logs")
    for model in ("full", "retain90", "retain95"):
        logs.write(root / model / "eval_log_aggregated.json", logs.tofu_log(model))
    logs.write(root / "retain90-open" / "TOFU_EVAL.json", logs.open_log())
    return root


def metrics(root: Path, pattern: str) -> dict[str, dict[str, Any]]:
    (stage,) = root.glob(pattern)
    content = json.loads((stage / "metrics.json").read_text())
    return {entry["name"]: entry for entry in content["metrics"]}


def test_the_published_numbers_of_llama_2_7b(run: Any, folder: Path, tmp_path: Path) -> None:
    log, reference = (folder / model / "eval_log_aggregated.json" for model in ("full", "retain90"))
    runs = tmp_path / "runs"
    published = ("import", log, "--model", "llama-2-7b", "--reference", reference, "--out", runs)
    code, said = run(*published, "--role", "target")
    assert code == 0, said
    found = metrics(runs, "evaluate-target-s0-*")
    assert f"{found['model_utility@tofu']['value']:.5f}" == "0.62268"
    assert f"{found['model_utility@tofu-arithmetic']['value']:.5f}" == "0.58589"
    assert f"{found['forget_quality_p@tofu']['value']:.2e}" == "1.83e-21"
    assert found["forget_quality"]["value"] == pytest.approx(math.log10(1.83406641099474e-21))
    low, high = found["forget_prob@tofu"]["interval"]
    assert low < found["forget_prob@tofu"]["value"] < high
    # the page and the tables: marked, under its protocol, no seconds and no steps, nothing ranked
    assert run(*published, "--name", "mine")[0] == 0
    reports.write(reports.Results.load([runs]), tmp_path / "report", "Imported", plots=())
    lines = (tmp_path / "report" / "table.md").read_text().splitlines()
    head = next(line for line in lines if line.startswith("| tier")).split(" | ")
    row = next(line for line in lines if line.startswith("| - | mine (imported)")).strip("|").split(" | ")
    assert row[head.index("Utility (tofu) ↑")] == "0.62 ±0.03"  # with the interval over groups of rows
    assert row[head.index("log10 FQ ↑")] == "-20.7"
    assert [cell.strip(" |") for cell in row[-2:]] == ["", ""] and head[-2:] == ["seconds", "steps |"]
    assert "**tofu, llama-2-7b, protocol tofu**" in lines
    assert "imported from eval_log_aggregated.json of TOFU" in (tmp_path / "report" / "report.html").read_text()
    board = tmp_path / "leaderboard.csv"
    assert run("leaderboard", runs, "--out", board)[0] == 0
    assert run("verify", board, runs)[0] == 0  # every metric again from the samples, Forget Quality included
    assert run(*published, "--name", "mine")[1].splitlines()[-1].startswith("already there: ")


def test_the_log_of_open_unlearning(run: Any, folder: Path, tmp_path: Path) -> None:
    log, runs = folder / "retain90-open" / "TOFU_EVAL.json", tmp_path / "runs"
    code, said = run("import", log, "--role", "retrained", "--out", runs)
    assert code == 0, said
    found = metrics(runs, "evaluate-retrained-s0-*")
    utility = found["model_utility@open-unlearning"]
    assert utility["value"] == 0.6130190411998432 and utility["details"]["as_logged"] == 1
    assert "model_utility@open-unlearning" in said and "(as logged)" in said
    golden = json.loads((logs.GOLDEN / "real_logs_openunlearning_retain90.json").read_text())["expected"]
    ours = {
        "forget_Q_A_Prob": "forget_prob",
        "retain_Q_A_Prob": "retain_prob",
        "forget_Q_A_ROUGE": "forget_rouge_l",
        "retain_Q_A_ROUGE": "retain_rouge_l",
        "forget_truth_ratio": "forget_truth_ratio",
        "retain_Truth_Ratio": "retain_truth_ratio",
        "exact_memorization": "forget_exact_memorization",
        "extraction_strength": "forget_extraction_strength",
        "mia_loss": "loss_auc",
        "mia_min_k": "mink_auc",
    }
    for theirs, name in ours.items():
        entry = found[f"{name}@open-unlearning"]
        assert entry["value"] == pytest.approx(golden[theirs]["logged"], rel=1e-6), name
        assert "as_logged" not in entry["details"]  # from its rows
    # without a reference there is no PrivLeak: theirs silently takes an AUC of one half
    assert found["privleak@open-unlearning"]["value"] is None
    # as a reference of itself: PrivLeak 0, p = 1
    code, said = run("import", log, "--name", "again", "--reference", log, "--out", runs)
    found = metrics(runs, "evaluate-again-s0-*")
    assert found["privleak@open-unlearning"]["value"] == 0.0
    assert found["forget_quality_p@open-unlearning"]["value"] == 1.0


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["{retain95}"], "has 200 forget rows, forget10 has 400: not a log of forget10; it is a log of forget05."),
        (["{full}", "--split", "forget05"], "has 300 forget rows, forget05 has 200: not a log of forget05."),
        (["{open}", "--split", "forget01"], "has 400 forget rows, forget01 has 40: not a log of forget01; it is"),
        (["{open}", "--split", "forget1"], "--split cannot be 'forget1'; did you mean 'forget10'?"),
        (["{open}", "--benchmark", "muse-news"], "is a log of tofu, not of muse-news."),
        (["{open}", "--benchmark", "tofu-mini"], "is a log of tofu, not of tofu-mini."),
        (["{open}", "--role", "retained"], "--role cannot be 'retained'; did you mean 'retrained'?"),
        (["{open}", "--reference", "{retain90}"], "scored under the protocol 'tofu', this evaluation is under 'open-"),
        (["{full}", "--reference", "{retain95}"], "has 200 forget rows, forget10 has 400"),
        (["{full}", "--reference", "nowhere"], "nowhere"),
        (["nowhere.json"], "There is no file nowhere.json."),
    ],
)
def test_what_does_not_fit_is_one_line(run: Any, folder: Path, tmp_path: Path, arguments: list[str], line: str) -> None:
    places = {name: folder / name / "eval_log_aggregated.json" for name in ("full", "retain90", "retain95")}
    places["open"] = folder / "retain90-open" / "TOFU_EVAL.json"
    code, said = run("import", *(text.format(**places) for text in arguments), "--out", tmp_path / "runs")
    assert code == 2 and said.startswith("error: ") and said.count("\n") == 1, said
    assert line in said


def test_logs_of_two_protocols_are_not_mixed(run: Any, folder: Path, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    for log in ("retain90/eval_log_aggregated.json", "retain90-open/TOFU_EVAL.json"):
        assert run("import", folder / log, "--model", "m", "--name", log[:12], "--out", runs)[0] == 0
    code, said = run("report", runs, "--out", tmp_path / "report")
    assert code == 2 and "The evaluation of tofu is mixed: protocol open-unlearning in" in said


def open_log(rows: dict[str, int], rng: np.random.Generator) -> dict[str, Any]:
    """A made-up TOFU_EVAL.json with all nine parts of Model Utility, and what a plain loop makes of them."""
    log: dict[str, Any] = {}
    for side, n in rows.items():
        wrong = 3 if side in ("ra", "wf") else 5
        log[f"{side}_Q_A_Prob"] = {"value_by_index": logs.by_index([{"avg_loss": x} for x in rng.uniform(0, 3, n)])}
        if wrong == 5:
            para = {"value_by_index": logs.by_index([{"avg_loss": x} for x in rng.uniform(0, 3, n)])}
            log[f"{side}_Q_A_PARA_Prob"] = para
        pert = [{"avg_loss": list(x)} for x in rng.uniform(0, 3, (n, wrong))]
        log[f"{side}_Q_A_PERT_Prob"] = {"value_by_index": logs.by_index(pert)}
        log[f"{side}_Q_A_ROUGE"] = {
            "value_by_index": logs.by_index([{"rougeL_recall": x} for x in rng.uniform(0, 1, n)])
        }
    return log


def test_model_utility_is_computed_when_the_nine_parts_are_there(run: Any, tmp_path: Path) -> None:
    log = open_log({"forget": 400, "retain": 400, "ra": 100, "wf": 117}, np.random.default_rng(0))
    parts = []
    for side in ("retain", "ra", "wf"):
        rows = {
            name: list(log[f"{side}_Q_A_{name}"]["value_by_index"].values()) for name in ("Prob", "PERT_Prob", "ROUGE")
        }
        p = np.exp([-row["avg_loss"] for row in rows["Prob"]])
        wrong = np.exp([[-x for x in row["avg_loss"]] for row in rows["PERT_Prob"]])
        plain = log[f"{side}_Q_A_PARA_Prob"]["value_by_index"].values() if side == "retain" else rows["Prob"]
        right = np.exp([-row["avg_loss"] for row in plain])
        ratio = np.exp(np.log(wrong).mean(1)) / (right + 1e-10)
        parts += [
            (p / (p + wrong.sum(1) + 1e-10) if side != "retain" else p).mean(),
            np.mean([row["rougeL_recall"] for row in rows["ROUGE"]]),
            np.maximum(0, 1 - ratio).mean(),
        ]
    expected = 9 / sum(1 / part for part in parts)
    log["model_utility"] = {"agg_value": 0.987}  # says something else
    code, said = run("import", logs.write(tmp_path / "m" / "TOFU_EVAL.json", log), "--out", tmp_path / "runs")
    assert code == 0
    found = metrics(tmp_path / "runs", "evaluate-m-s0-*")["model_utility@open-unlearning"]
    assert found["value"] == pytest.approx(expected, rel=1e-9) and "as_logged" not in found["details"]
    assert f"note: model_utility@open-unlearning: TOFU_EVAL.json says 0.987, its rows give {expected:.6g}" in said


def test_a_muse_log(run: Any, tmp_path: Path) -> None:
    f = {"forget_knowmem_ROUGE": [0.5, 0.7], "retain_knowmem_ROUGE": [0.2, 0.6], "forget_verbmem_ROUGE": [1.0, 0.5]}
    log: dict[str, Any] = {
        name: {"agg_value": sum(x) / 2, "value_by_index": logs.by_index([{"rougeL_f1": v} for v in x])}
        for name, x in f.items()
    }
    sides = {"forget": [1.0, 2.0], "holdout": [1.5, 3.0]}  # lower is a member: 3 of 4 pairs
    log["mia_min_k"] = {side: {"value_by_index": logs.by_index([{"score": v} for v in x])} for side, x in sides.items()}
    file = logs.write(tmp_path / "m" / "MUSE_EVAL.json", log)
    code, said = run("import", file, "--benchmark", "muse-news", "--out", tmp_path / "runs")
    assert code == 0, said
    found = metrics(tmp_path / "runs", "evaluate-m-s0-*")
    expected = {"knowmem_forget": 60.0, "knowmem_retain": 40.0, "verbmem_forget": 75.0, "mink_auc": 0.75}
    for name, number in expected.items():
        assert found[f"{name}@open-unlearning"]["value"] == pytest.approx(number)
    code, said = run("import", file, "--benchmark", "muse-news", "--split", "forget10", "--out", tmp_path / "runs")
    assert code == 2 and "--split is for TOFU" in said


def muse_texts(text: str) -> dict[str, Any]:
    rows = [{"rougeL_f1": 0.5, "ground_truth": f"{text}, number {i}"} for i in range(12)]
    return {"forget_knowmem_ROUGE": {"agg_value": 0.5, "value_by_index": logs.by_index(rows)}}


@pytest.mark.parametrize(
    ("text", "own", "other"),
    [("Hermione went to the library", "muse-books", "muse-news"), ("The minister resigned", "muse-news", "muse-books")],
)
def test_a_log_of_the_other_corpus_is_refused(run: Any, tmp_path: Path, text: str, own: str, other: str) -> None:
    file = logs.write(tmp_path / "m" / "MUSE_EVAL.json", muse_texts(text))
    code, said = run("import", file, "--benchmark", other, "--out", tmp_path / "runs")
    assert code == 2 and f"is a log of {own} by its texts, not of {other}." in said and said.count("\n") == 1
    code, said = run("import", file, "--benchmark", own, "--out", tmp_path / "runs")
    assert code == 0, said


def test_a_negative_loss_is_refused(run: Any, tmp_path: Path) -> None:
    """Its probability would be exp(1.5) = 4.48."""
    log = logs.open_log()
    log["forget_Q_A_Prob"]["value_by_index"]["7"]["avg_loss"] = -1.5
    code, said = run("import", logs.write(tmp_path / "TOFU_EVAL.json", log), "--out", tmp_path / "runs")
    assert code == 2 and "row 7 of forget has a loss of -1.5" in said and said.count("\n") == 1
    log = logs.tofu_log("retain90")
    log["eval_log.json"]["average_perturb_loss"]["3"][1] = -0.25
    code, said = run("import", logs.write(tmp_path / "eval_log_aggregated.json", log), "--out", tmp_path / "runs")
    assert code == 2 and "row 3 of retain has a loss of -0.25" in said and said.count("\n") == 1


def test_a_number_of_a_log_outside_its_range_is_null(run: Any, tmp_path: Path) -> None:
    log = logs.open_log()
    log["forget_Q_A_ROUGE"]["value_by_index"]["5"]["rougeL_recall"] = 70.0
    code, said = run("import", logs.write(tmp_path / "m" / "TOFU_EVAL.json", log), "--out", tmp_path / "runs")
    assert code == 0, said
    rouge = metrics(tmp_path / "runs", "evaluate-m-s0-*")["forget_rouge_l@open-unlearning"]
    assert rouge["value"] is None and "row 'forget-0005' is 70, outside the range" in rouge["reason"]


def test_b24_an_attack_without_rows_is_taken_as_logged_and_nan_is_not(run: Any, tmp_path: Path) -> None:
    log = logs.open_log()
    log["mia_loss"], log["mia_zlib"] = {"agg_value": 0.25}, {"agg_value": math.nan}
    log["forget_Q_A_Prob"]["agg_value"] = math.nan
    code, said = run("import", logs.write(tmp_path / "m" / "TOFU_EVAL.json", log), "--out", tmp_path / "runs")
    assert code == 0, said
    found = metrics(tmp_path / "runs", "evaluate-m-s0-*")
    loss = found["loss_auc@open-unlearning"]
    assert (loss["value"], loss["n"], loss["details"]["as_logged"]) == (0.25, 0, 1)
    assert "zlib_auc@open-unlearning" not in found and found["forget_prob@open-unlearning"]["n"] == 400


def test_b24_nan_in_a_log_is_an_undefined_row_and_no_number(run: Any, folder: Path, tmp_path: Path) -> None:
    """A collapsed model's log holds NaN, which is no JSON: the row counts as undefined, the others are as before."""
    log = logs.tofu_log("retain90")
    log["eval_log_forget.json"]["avg_gt_loss"]["7"] = math.nan
    log["eval_log_forget.json"]["average_perturb_loss"]["8"] = [
        math.inf,
        *log["eval_log_forget.json"]["average_perturb_loss"]["8"][1:],
    ]
    file = logs.write(tmp_path / "broken" / "eval_log_aggregated.json", log)
    runs = tmp_path / "runs"
    for source in (file, folder / "retain90" / "eval_log_aggregated.json"):
        assert run("import", source, "--out", runs)[0] == 0
    broken, whole = metrics(runs, "evaluate-broken-*"), metrics(runs, "evaluate-retain90-*")
    assert broken["forget_prob@tofu"]["n"] == 299 and broken["forget_prob@tofu"]["details"]["not_finite"] == 1
    assert broken["forget_truth_ratio@tofu"]["n"] == 299
    assert broken["retain_prob@tofu"] == whole["retain_prob@tofu"]
    losses = [x for i, x in logs.tofu_log("retain90")["eval_log_forget.json"]["avg_gt_loss"].items() if i != "7"]
    assert broken["forget_prob@tofu"]["value"] == pytest.approx(float(np.exp(-np.array(losses)).mean()))
