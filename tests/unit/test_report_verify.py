"""A leaderboard is recomputed from row samples, and every cell that differs is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.synthetic import base_spec, dump, key, write_results, write_samples, write_stage
from unlearnbench.errors import UserError
from unlearnbench.report.leaderboard import write_csv
from unlearnbench.report.recompute import recomputed
from unlearnbench.report.results import Results
from unlearnbench.report.verify import verify


@pytest.fixture
def board(tmp_path: Path) -> tuple[Path, Path]:
    """(leaderboard, runs)"""
    root = write_results(tmp_path / "runs")
    write_csv(Results.load([root]), tmp_path / "leaderboard.csv")
    return tmp_path / "leaderboard.csv", root


def test_a_leaderboard_verifies_against_its_runs(board: tuple[Path, Path]) -> None:
    assert verify(board[0], [board[1]]) == []


def test_a_changed_cell_is_named(board: tuple[Path, Path]) -> None:
    file, root = board
    lines = file.read_text().splitlines()
    column, row = lines[0].split(",").index("one_minus_prob"), next(i for i, ln in enumerate(lines) if ",masc," in ln)
    cells = lines[row].split(",")
    assert cells[column] == "0.51"
    cells[column] = "0.52"
    lines[row] = ",".join(cells)
    file.write_text("\n".join(lines) + "\n")
    assert verify(file, [root]) == [
        "tofu-mini / llama-mini / ours / none / masc, one_minus_prob: 0.52 in leaderboard.csv, 0.51 from the runs"
    ]


def test_a_changed_metric_is_found_in_the_samples(board: tuple[Path, Path]) -> None:
    file, root = board
    (folder,) = root.glob("evaluate-masc-s0-*")
    entries = json.loads((folder / "metrics.json").read_text())["metrics"]
    entries[1]["value"] = 0.540  # the retrained model's
    dump(folder / "metrics.json", {"metrics": entries})
    write_csv(Results.load([root]), file)  # the leaderboard believes it
    problems = verify(file, [root])
    assert problems[0] == f"{folder.name}, one_minus_prob: 0.54 in metrics.json, 0.505 from its samples"
    assert any("/ masc, one_minus_prob: 0.5275 in leaderboard.csv, 0.51 from the runs" in line for line in problems)
    assert any("/ masc, score: " in line for line in problems)
    assert not any("/ npo," in line for line in problems)


def test_missing_and_invented_rows_are_named(board: tuple[Path, Path]) -> None:
    file, root = board
    lines = file.read_text().splitlines()
    invented = [line.replace(",npo,", ",mine,") for line in lines if ",npo," in line]
    file.write_text("\n".join([line for line in lines if ",masc," not in line] + invented) + "\n")
    assert verify(file, [root]) == [
        "tofu-mini / llama-mini / ours / none / masc: missing from leaderboard.csv",
        "tofu-mini / llama-mini / ours / none / mine: no run folder gives this row",
    ]


def test_what_is_no_leaderboard(tmp_path: Path) -> None:
    root = write_results(tmp_path / "runs")
    with pytest.raises(UserError, match="There is no leaderboard"):
        verify(tmp_path / "none.csv", [root])
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    with pytest.raises(UserError, match="is not a leaderboard: it has no column benchmark"):
        verify(tmp_path / "other.csv", [root])


PARTS = [f"{s}_{k}" for k in ("prob", "rouge_l", "truth_ratio") for s in ("retain", "real_authors", "world_facts")]


def _evaluation(root: Path, name: str, ratios: list[float], parents: dict[str, str]) -> None:
    """Nine parts of 0.5 (one of 0.25), log truth ratios, and membership scores, with what follows from them."""
    samples = [(part, "retain", "r0", "a", 0.25 if part == "retain_prob" else 0.5) for part in PARTS]
    samples += [("forget_log_truth_ratio", "forget", f"f{i}", "a", ratio) for i, ratio in enumerate(ratios)]
    samples += [("mink_auc", "forget", "f0", "a", 3.0), ("mink_auc", "forget", "f1", "a", 2.0)]
    samples += [("mink_auc", "holdout", "h0", "b", 1.0), ("mink_auc", "holdout", "h1", "b", 2.5)]
    values = {part: (0.25 if part == "retain_prob" else 0.5) for part in PARTS}
    values |= {"model_utility": 9 / (8 / 0.5 + 1 / 0.25), "forget_log_truth_ratio": sum(ratios) / len(ratios)}
    # KS of four against four that do not overlap: p = 2 / C(8, 4) = 1 / 35
    values |= {"forget_quality": -1.5440680443502757 if parents else None, "mink_auc": 0.75, "unheard_of": 0.3}
    means = {*PARTS, "forget_log_truth_ratio"}
    spec = {**base_spec(), "kind": "evaluate", "role": name, "seed": 0, "parents": parents, "attack": "none"}
    folder = write_stage(root, "evaluate", name, key(name), spec, {"status": "complete"})
    write_samples(folder, samples)
    metrics = [{"name": n, "value": v, "mean": n in means, "reason": "" if v else "no retrained model"}
               for n, v in values.items()]  # fmt: skip
    dump(folder / "metrics.json", {"metrics": metrics})


def test_metrics_that_are_no_means_are_recomputed_by_their_own_code(tmp_path: Path) -> None:
    _evaluation(tmp_path, "retrained", [0.1, 0.2, 0.3, 0.4], {})
    _evaluation(tmp_path, "target", [1.1, 1.2, 1.3, 1.4], {"retrained": key("retrained")})
    results = Results.load([tmp_path])
    again, taken = recomputed(results)
    (target,) = (stage for stage in again.stages if stage.spec["role"] == "target")
    (recorded,) = (stage for stage in results.stages if stage.spec["role"] == "target")
    assert taken == ["unheard_of"]
    for name, value in target.metrics.items():
        assert value.value == pytest.approx(recorded.metrics[name].value, abs=1e-12), name
    # and they come from the samples, not from the record
    file = recorded.folder / "metrics.json"
    entries = [{**entry, "value": 0.123} for entry in json.loads(file.read_text())["metrics"]]
    dump(file, {"metrics": entries})
    again, _ = recomputed(Results.load([tmp_path]))
    (target,) = (stage for stage in again.stages if stage.spec["role"] == "target")
    assert target.metrics["mink_auc"].value == 0.75
    assert target.metrics["model_utility"].value == pytest.approx(0.45)
    assert target.metrics["forget_quality"].value == pytest.approx(-1.5440680443502757)
    assert target.metrics["unheard_of"].value == 0.123
