"""Distances, scores, tiers and ranks, on numbers that can be checked by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.synthetic import MEANS, METRICS, write_results
from unlearnbench.report.leaderboard import leaderboard
from unlearnbench.report.results import Results
from unlearnbench.report.scores import scale, score_group
from unlearnbench.report.standings import Table, tables
from unlearnbench.report.tables import main
from unlearnbench.statistics import cluster_interval


def only(root: Path) -> Table:
    (table,) = tables(Results.load([root]))
    return table


def test_scale_is_the_largest_of_its_parts() -> None:
    assert scale([0.1, 0.3], [0.7], 0.0) == pytest.approx(0.5)  # |0.2 - 0.7|
    assert scale([0.7], [0.6, 0.8], 0.0) == pytest.approx(0.02**0.5)  # the target equals the mean: sd of the retrained
    assert scale([0.66], [0.67], 0.67) == 0.67
    assert scale([0.5], [0.5], 0.0) == 0.0


def test_distances_by_hand(tmp_path: Path) -> None:
    (group,) = Results.load([write_results(tmp_path / "runs")]).groups
    scores = score_group(group)
    masc = scores["masc"].seeds[0]
    # seed 0 is compared with the retrained model of seed 1: .32 - .005; the targets' mean is .02
    assert masc.parts["one_minus_rouge_l"] == pytest.approx((0.315 - 0.305) / (0.315 - 0.02))
    # utility: the unit is what there is to lose
    assert masc.parts["model_utility"] == pytest.approx((0.665 - 0.645) / 0.665)
    forget = [masc.parts[name] for name in METRICS if METRICS[name][1] == "forget"]
    utility = [masc.parts[name] for name in METRICS if METRICS[name][1] == "utility"]
    assert masc.forget == pytest.approx(sum(forget) / 5) and masc.utility == pytest.approx(sum(utility) / 3)
    assert masc.score == pytest.approx((masc.forget + masc.utility) / 2)
    # the retrained row is compared with the other seeds too
    assert scores["retrained"].seeds[0].parts["one_minus_rouge_l"] == pytest.approx((0.325 - 0.315) / 0.295)
    assert scores["target"].mean("forget") == pytest.approx(1.0, abs=0.001)


def test_too_much_and_too_little_forgetting_cost_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    column = list(METRICS).index("one_minus_prob")
    for arm, number in (("npo", 0.54 + 0.2), ("ga", 0.54 - 0.2)):
        row = list(MEANS[arm])
        row[column] = number
        monkeypatch.setitem(MEANS, arm, tuple(row))
    (group,) = Results.load([write_results(tmp_path / "runs", seeds=3)]).groups
    scores = score_group(group)
    assert scores["npo"].mean("one_minus_prob") == pytest.approx(scores["ga"].mean("one_minus_prob"), abs=1e-3)
    monkeypatch.setitem(MEANS, "ga", (9.0,) * len(METRICS))
    (group,) = Results.load([write_results(tmp_path / "more", seeds=3)]).groups
    assert score_group(group)["ga"].mean("one_minus_prob") > 10  # nothing is clipped


def test_retrained_first_ruined_and_untouched_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # B21: the retrained model is nearest, a ruined model must not win, an untouched one must not either
    monkeypatch.setitem(MEANS, "ga", (1.0, 1.0, 1.6, 0.0, 0.0, -0.1, 0.0, 0.0, 0.0, 0.05))
    monkeypatch.setitem(MEANS, "rmu", MEANS["target"])
    table = only(write_results(tmp_path / "runs", seeds=3))
    order = sorted(table.rows, key=lambda row: row.score.mean)
    labels = [row.arm.label for row in order]
    assert labels[0] == "retrained"
    assert labels[-1] == "ga" and set(labels[-3:]) == {"ga", "rmu", "target"}


def test_one_seed_gives_no_score_and_says_why(tmp_path: Path) -> None:
    table = only(write_results(tmp_path / "runs", seeds=1))
    assert all(row.score.mean is None and row.tier is None and row.rank is None for row in table.rows)
    assert table.rows[2].unranked == "the retrained model of another seed is needed"


def test_one_seed_has_the_interval_of_its_rows(tmp_path: Path) -> None:
    """Groups of the rows are drawn, so that a cell of a single run is no number without an error bar."""
    root = write_results(tmp_path / "runs", seeds=1)
    table = only(root)
    row = table.row("masc")
    assert row is not None
    samples = row.arm.runs[0].evaluation.samples["one_minus_prob"]
    expected = cluster_interval([s.value for s in samples], [s.group for s in samples])
    found = row.metrics["one_minus_prob"]
    assert expected is not None and (found.low, found.high) == expected and found.low < found.mean < found.high
    grid = main(table)
    cells = next(cells for cells in grid.rows if cells[1].startswith("MASC"))
    assert cells[4] == f"0.51 ±{(expected[1] - expected[0]) / 2:.2f}"
    assert "half the 95 % interval over the rows" in grid.notes[0] and "One seed: neither tiers" in grid.notes[1]
    frame = leaderboard(Results.load([root])).set_index("label")
    assert frame.loc["masc", "spread"] == "95% interval of rows"
    # a metric that is no mean of rows has the interval that was recorded with it
    for file in root.glob("evaluate-masc-s0-*/metrics.json"):
        content = json.loads(file.read_text())
        (entry,) = (entry for entry in content["metrics"] if entry["name"] == "model_utility")
        file.write_text(json.dumps(content).replace(json.dumps(entry), json.dumps({**entry, "interval": [0.6, 0.7]})))
    utility = only(root).row("masc").metrics["model_utility"]
    assert (utility.low, utility.high) == (0.6, 0.7)


def test_tiers_below_five_seeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = only(write_results(tmp_path / "runs", seeds=3))
    methods = [row for row in table.rows if row.arm.role == "unlearned"]
    assert all(row.rank is None for row in table.rows)
    assert [row.score.mean for row in methods] == sorted(row.score.mean for row in methods)
    best = methods[0]
    for row in methods:
        assert row.tier is not None
        overlaps = row.score.low <= best.score.high
        assert (row.tier == 1) == overlaps
    # ranges, not intervals
    found = best.scores.by_seed("score").values()
    assert (best.score.low, best.score.high) == (min(found), max(found))
    monkeypatch.setitem(MEANS, "npo", MEANS["masc"])
    tied = {row.arm.label: row.tier for row in only(write_results(tmp_path / "tied", seeds=3)).rows}
    assert tied["npo"] == tied["masc"]


def test_ranks_from_five_seeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    near = list(MEANS["masc"])
    near[1] -= 0.0001  # a gap far below the noise
    monkeypatch.setitem(MEANS, "npo", tuple(near))
    table = only(write_results(tmp_path / "runs", seeds=5))
    ranks = {row.arm.label: row.rank for row in table.rows if row.arm.role == "unlearned"}
    assert all(row.tier is None for row in table.rows)
    assert ranks["simnpo"] == 1 and ranks["ga"] == 7
    assert table.ranked and len(table.comparisons) == 7 * 6 / 2


def test_ranks_share_a_place_when_the_gap_is_noise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.support import synthetic

    def noisy(arm: str, metric: str, seed: int, seeds: int) -> float:
        """masc better than npo in seeds 0, 2, 4 and worse in 1 and 3."""
        base = MEANS["masc" if arm == "npo" else arm][list(METRICS).index(metric)]
        swing = 0.02 if (seed % 2 == 0) == (arm == "npo") else 0.0
        return base + swing if arm in ("npo", "masc") else base + (0.001 * seed if arm == "retrained" else 0.0)

    monkeypatch.setattr(synthetic, "value", noisy)
    table = only(write_results(tmp_path / "runs", seeds=5, methods=("npo", "masc", "ga")))
    ranks = {row.arm.label: row.rank for row in table.rows if row.arm.role == "unlearned"}
    assert ranks == {"npo": 1, "masc": 1, "ga": 3}


def test_null_and_failed_cells_have_no_place_but_are_shown(tmp_path: Path) -> None:
    # B24: a null in any seed is neither averaged in silently nor ranked
    root = write_results(
        tmp_path / "runs",
        seeds=3,
        failed={"rmu": [1]},
        null={("simnpo", "forget_quality"): [0], ("npo", "one_minus_prob"): [2]},
    )
    rows = {row.arm.label: row for row in only(root).rows}
    for label in ("rmu", "simnpo", "npo"):
        assert rows[label].tier is None and rows[label].rank is None and not rows[label].pareto
    assert rows["rmu"].unranked == "failed: the forget loss is nan at step 3"
    assert rows["simnpo"].unranked == "forget_quality is null: no row is defined"
    assert "one_minus_prob is null" in rows["npo"].unranked
    summary = rows["npo"].metrics["one_minus_prob"]
    assert (summary.n, summary.of, summary.mean) == (2, 3, pytest.approx((0.51 + 0.52) / 2))
    assert summary.partial
    assert rows["masc"].tier == 1
    assert [row.arm.label for row in only(root).rows][-3:] == ["simnpo", "npo", "rmu"]


def test_an_oracle_is_marked_and_has_no_place(tmp_path: Path) -> None:
    import json

    from tests.support.synthetic import dump

    root = write_results(tmp_path / "runs")
    for file in root.glob("unlearn-masc-*/record.json"):
        record = json.loads(file.read_text())
        record["stop"]["oracle"] = True
        dump(file, record)
    row = only(root).row("masc")
    assert row is not None and row.arm.oracle and row.tier is None and row.unranked == "oracle"


def test_pareto_front(tmp_path: Path) -> None:
    rows = [row for row in only(write_results(tmp_path / "runs", seeds=3)).rows if row.arm.role == "unlearned"]
    front = {row.arm.label for row in rows if row.pareto}
    for row in rows:
        f, u = row.sides["forget"].mean, row.sides["utility"].mean
        beaten = any(o.sides["forget"].mean <= f and o.sides["utility"].mean <= u for o in rows if o is not row)
        assert (row.arm.label in front) != beaten
    assert "npo" in front and "ga" not in front


def test_seconds_of_two_machines_are_not_averaged(tmp_path: Path) -> None:
    rows = {row.arm.label: row for row in only(write_results(tmp_path / "r", machines={("npo", 1): "gpu-b"})).rows}
    assert rows["npo"].cost.seconds == {} and "2 machines" in rows["npo"].cost.reason
    assert rows["npo"].cost.counts["steps"].mean == 20
    assert rows["masc"].cost.seconds["total"].mean == pytest.approx(0.25 + 1.05 + 0.5)


def test_the_metrics_of_tables_and_score_are_metrics_that_exist() -> None:
    from unlearnbench.metric import metrics
    from unlearnbench.report.catalogue import HEADLINE
    from unlearnbench.report.scores import SCORED

    named = {*HEADLINE, *(name for names in SCORED.values() for name in names)}
    assert sorted(named - set(metrics.names())) == []
