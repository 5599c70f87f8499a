"""The leaderboard as a table and as a file."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from tests.support.synthetic import TITLES, write_results
from unlearnbench.report.leaderboard import leaderboard, read_csv, rows_as_text, write_csv
from unlearnbench.report.results import Results


def test_columns_and_means(tmp_path: Path) -> None:
    frame = leaderboard(Results.load([write_results(tmp_path / "runs", seeds=5)])).set_index("label")
    assert list(frame.index[:2]) == ["target", "retrained"] and set(frame.index[2:]) == set(TITLES)
    masc = frame.loc["masc"]
    assert masc["one_minus_prob"] == pytest.approx(0.51) and masc["one_minus_prob_n"] == 5
    assert masc["one_minus_prob_low"] < 0.49 < 0.53 < masc["one_minus_prob_high"]
    assert masc["spread"] == "95% interval" and masc["complete"] == "5 of 5" and masc["seeds"] == "0 1 2 3 4"
    assert masc["seconds_total"] == pytest.approx(0.25 + 1.2 + 0.5) and masc["steps"] == 8
    parts = [masc[f"d_{name}"] for name in ("model_utility", "retain_exact", "retain_fact")]
    assert masc["utility_distance"] == pytest.approx(sum(parts) / 3)
    assert masc["score"] == pytest.approx((masc["forget_distance"] + masc["utility_distance"]) / 2)
    assert len(masc["provenance"]) == 12 and frame["provenance"].is_unique


def test_interval_counts_the_authors_luck(tmp_path: Path) -> None:
    # authors differ by .02, seeds by .01: both are in the interval of a metric with samples, only seeds in one without
    frame = leaderboard(Results.load([write_results(tmp_path / "runs", seeds=5)])).set_index("label")
    width = frame["retain_exact_high"] - frame["retain_exact_low"]
    plain = frame["model_utility_high"] - frame["model_utility_low"]
    # seeds alone: 2 x 2.776445 x .0158114 / sqrt(5)
    assert plain["masc"] == pytest.approx(0.0392645, abs=1e-6)
    assert width["masc"] > 1.5 * plain["masc"]


def test_range_below_five_seeds(tmp_path: Path) -> None:
    frame = leaderboard(Results.load([write_results(tmp_path / "runs", seeds=2)])).set_index("label")
    assert frame.loc["masc", "spread"] == "range"
    assert frame.loc["masc", ["one_minus_prob_low", "one_minus_prob_high"]].tolist() == [0.505, 0.515]


def test_csv_is_stable_and_plain(tmp_path: Path) -> None:
    root = write_results(tmp_path / "runs", seeds=3, failed={"rmu": [1]}, null={("npo", "forget_quality"): [0, 1, 2]})
    write_csv(Results.load([root]), tmp_path / "a.csv")
    write_csv(Results.load([root]), tmp_path / "b.csv")
    assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "b.csv").read_bytes()
    with (tmp_path / "a.csv").open(newline="") as file:
        rows = {row["label"]: row for row in csv.DictReader(file)}
    assert rows["rmu"]["complete"] == "2 of 3" and rows["rmu"]["rank"] == rows["rmu"]["tier"] == ""
    assert rows["rmu"]["one_minus_prob_n"] == "2"
    assert rows["npo"]["forget_quality"] == "" and rows["npo"]["forget_quality_n"] == "0"
    assert rows["masc"]["pareto"] in ("true", "false") and rows["target"]["pareto"] == ""
    cells = {cell for row in rows.values() for column, cell in row.items() if column != "attack"}
    assert not cells & {"nan", "NaN", "None", "none", "inf", "<NA>", "True", "False"}
    assert [dict(row) for row in read_csv(tmp_path / "a.csv")] == rows_as_text(Results.load([root]))
