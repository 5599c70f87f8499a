"""The tables and their forms."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console

from tests.support import synthetic
from tests.support.synthetic import TITLES, dump, write_results
from unlearnbench.report import terminal
from unlearnbench.report.catalogue import check_names
from unlearnbench.report.forms import markdown, rich, tex
from unlearnbench.report.results import Results
from unlearnbench.report.standings import Summary, Table, tables
from unlearnbench.report.tables import GRIDS, Grid, number


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Table:
    root = write_results(
        tmp_path_factory.mktemp("tables") / "runs",
        seeds=3,
        failed={"rmu": [1]},
        null={("simnpo", "forget_quality"): [0, 1, 2], ("npo", "mink_auc"): [2]},
    )
    return tables(Results.load([root]))[0]


def row_of(grid: Grid, title: str) -> dict[str, str]:
    (row,) = (row for row in grid.rows if title in (row[0], row[1].rstrip("*")))
    return dict(zip(grid.heads, row, strict=True))


def test_numbers_say_how_many_seeds_they_stand_on() -> None:
    assert number(Summary(0.514, 0.50, 0.54, 3, 3), 2) == "0.51 ±0.02"
    assert number(Summary(0.514, 0.514, 0.514, 2, 3), 2) == "0.51 (2 of 3)"
    assert number(Summary(-0.001, -0.001, -0.001, 1, 1), 2) == "0.00"
    assert number(Summary(None, of=3), 2) == "null"


def test_main_table(table: Table) -> None:
    grid = GRIDS["main"](table)
    assert row_of(grid, "MASC")["1-ROUGE-L ≈"] == "0.31 ±0.01"
    assert row_of(grid, "MASC")["tier"] == "T1" and row_of(grid, "MASC")["seconds"] == "1.8 ±0.1"
    assert row_of(grid, "RMU")["1-ROUGE-L ≈"] == "0.34 ±0.01 (2 of 3)" and row_of(grid, "RMU")["tier"] == "-"
    assert row_of(grid, "SimNPO")["log10 FQ ↑"] == "null"
    assert row_of(grid, "target")["tier"] == row_of(grid, "target")["seconds"] == ""
    notes = "\n".join(grid.notes)
    assert "3 seeds: tiers (T1 best), no ranks; ranks need 5." in notes
    assert "floor -48.0" in notes
    assert "RMU has no place: failed: the forget loss is nan at step 3." in notes


def test_the_warnings_of_a_metric_stand_under_the_table(tmp_path: Path) -> None:
    """B38: an AUC of one row a side looks like any other number."""
    root = write_results(tmp_path / "runs", seeds=2)
    assert "few rows" not in "\n".join(GRIDS["main"](tables(Results.load([root]))[0]).notes)
    for file in root.glob("evaluate-npo-*/metrics.json"):
        content = json.loads(file.read_text())
        for entry in content["metrics"]:
            if entry["name"] == "mink_auc":
                entry["details"]["warning"] = "few rows: 1 forget and 1 holdout"
        dump(file, content)
    notes = GRIDS["main"](tables(Results.load([root]))[0]).notes
    (note,) = (note for note in notes if "few rows" in note)
    assert note.endswith(": few rows: 1 forget and 1 holdout.")


def test_cost_table(table: Table) -> None:
    grid = GRIDS["cost"](table)
    masc = row_of(grid, "MASC")
    assert (masc["total s"], masc["probe"], masc["prepare"]) == ("1.85 ±0.10", "0.50", "0.25")
    assert (masc["steps"], masc["tokens"], masc["GFLOP"], masc["peak MB"]) == ("8", "4,000", "2.5", "300")
    assert masc["machine"] == "cpu-a" and masc["evaluate"] == "1.00"  # reported, not counted
    assert {row[0] for row in grid.rows} == set(TITLES.values())
    rmu = row_of(grid, "RMU")  # one of its seeds failed: its cost is a mean over two of three, and says so
    assert rmu["total s"] == "4.10 ±0.10 (2 of 3)" and rmu["steps"] == "20 (2 of 3)"
    assert row_of(GRIDS["main"](table), "RMU")["seconds"] == "4.1 ±0.1 (2 of 3)"
    assert row_of(GRIDS["main"](table), "RMU")["steps"] == "20 (2 of 3)"


def test_score_table_adds_up(table: Table) -> None:
    grid = GRIDS["score"](table)
    assert {cell.endswith(" (2 of 3)") for cell in row_of(grid, "RMU").values()} == {True, False}
    assert all(cell.endswith(" (2 of 3)") for head, cell in row_of(grid, "RMU").items() if head != "method")
    for row in grid.rows:
        cells = [cell.split(" ")[0] for cell in row]
        if row[0] in TITLES.values() and "null" not in cells:
            forget, utility, score = float(cells[2]), float(cells[3]), float(cells[1])
            assert score == pytest.approx((forget + utility) / 2, abs=0.0101)
            parts = [float(cell) for cell in cells[4:]]
            assert forget == pytest.approx(sum(parts[:5]) / 5, abs=0.0101)
            assert utility == pytest.approx(sum(parts[5:]) / 3, abs=0.0101)


def test_stop_table(table: Table) -> None:
    rows = GRIDS["stop"](table).rows
    assert [row[:2] for row in rows] == [("MASC", "0"), ("MASC", "1"), ("MASC", "2")]
    assert row_of(Grid("", GRIDS["stop"](table).heads, rows[:1]), "MASC") | {"why": ""} == {
        "method": "MASC", "seed": "0", "rule": "violation", "step": "8", "rate": "", "tolerance": "0.300",
        "rows probed": "12", "oracle": "no", "why": "",
    }  # fmt: skip


def test_missing_table_says_what_and_why(table: Table) -> None:
    assert set(GRIDS["missing"](table).rows) == {
        ("RMU", "all", "1", "failed: the forget loss is nan at step 3"),
        ("SimNPO", "log10 FQ", "0 1 2", "no row is defined"),
        ("SimNPO", "place", "0 1 2", "forget_quality is null: no row is defined"),
        ("NPO", "Min-K AUC", "2", "no row is defined"),
        ("NPO", "place", "0 1 2", "mink_auc is null: no row is defined"),
    }


def test_comparisons_need_five_seeds(table: Table, tmp_path: Path) -> None:
    assert GRIDS["comparison"](table).rows == ()
    (ranked,) = tables(Results.load([write_results(tmp_path / "runs", seeds=5, methods=("masc", "ga"))]))
    ((first, second, gap, effect, _, _, verdict),) = GRIDS["comparison"](ranked).rows
    assert (first, second, verdict) == ("MASC", "GA", "better")
    assert float(gap) < 0 and float(effect) < 0
    assert any(note.startswith("Rank: 1 + the number") for note in GRIDS["main"](ranked).notes)


def test_retrained_seeds_give_forget_quality_its_noise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(synthetic.METRICS, "forget_log_truth_ratio", ("retrained", "descriptive"))
    for arm, means in list(synthetic.MEANS.items()):
        monkeypatch.setitem(synthetic.MEANS, arm, (*means, 0.0))
    (table,) = tables(Results.load([write_results(tmp_path / "runs", methods=("masc",))]))
    # eight rows against the same eight rows moved by 0.01, with ties: D = 2 / 8, p = 1 - ... = 0.98 -> log10 p = -0.0
    assert any("retrained models of two seeds 0.0;" in note for note in GRIDS["main"](table).notes)


def test_markdown_and_tex_keep_what_they_are_given() -> None:
    grid = Grid("A|B", ("method", "d ↓"), (("my_method*", "0.1 ±0.2"), ("a|b<c> \\x{}", "null")), ("50 % & more",))
    text = markdown(grid)
    assert "| my\\_method\\* | 0.1 ±0.2 |" in text and "a\\|b\\<c> \\\\x{}" in text
    assert text.splitlines()[3] == "| --- | ---: |"
    latex = tex(grid)
    assert r"my\_method$^*$ & 0.1 $\pm$0.2 \\" in latex and r"a|b$<$c$>$ \textbackslash{}x\{\}" in latex
    assert latex.startswith("% A|B\n% 50 % & more\n") and r"\begin{tabular}{lr}" in latex


@pytest.mark.parametrize("width", [80, 100, 120, 140])
def test_terminal_fits(table: Table, width: int) -> None:
    console = Console(width=width, record=True, file=open("/dev/null", "w"))  # noqa: SIM115, PTH123
    console.print(rich(GRIDS["main"](table), width))
    lines = console.export_text().splitlines()
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    assert "…" not in text
    for title in TITLES.values():
        assert title in text
    assert "0.31" in text and "seconds" in text


def test_terminal_of_results(tmp_path: Path) -> None:
    console = Console(width=140, record=True, file=open("/dev/null", "w"))  # noqa: SIM115, PTH123
    console.print(terminal(Results.load([write_results(tmp_path / "runs")]), 140))
    assert "tofu-mini, llama-mini" in console.export_text()


def test_unknown_names_are_refused_together() -> None:
    from unlearnbench.errors import SeveralErrors

    with pytest.raises(SeveralErrors) as caught:
        check_names(["main", "costs"], ["radar", "wallclok"])
    assert "no table 'costs'; did you mean 'cost'?" in str(caught.value)
    assert "no plot 'wallclok'; did you mean 'wallclock'?" in str(caught.value)


def test_the_stops_plot_pairs_the_rows_that_differ_in_their_stop_alone(tmp_path: Path) -> None:
    from unlearnbench.report.plots.stops import paired, rule, stops
    from unlearnbench.report.style import styled

    online = {"rule": "violation", "alpha": "holdout"}
    same = {
        "npo": {"params": {"beta": 0.1, "stop": online}},
        "npo+klr": {"method": "npo", "params": {"beta": 0.1, "stop": {"rule": "budget"}}},
        "rmu": {"method": "npo", "params": {"beta": 0.2, "stop": None}},
    }
    (table,) = tables(Results.load([write_results(tmp_path, 2, cells=same)]))
    (pair,) = paired(table)
    assert [(row.arm.label, rule(row.arm)) for row in pair] == [("npo+klr", "budget"), ("npo", "violation")]
    with styled() as plt:
        figure = stops(table, plt)
        steps = figure.axes[0].lines
        assert sorted(line.get_xdata()[0] for line in steps if line.get_marker() != "None") == [20, 20]
        assert {text.get_text() for text in figure.axes[0].get_yticklabels()} == {"NPO+KLR +klr"}
    (table,) = tables(Results.load([write_results(tmp_path / "none", 2)]))
    with styled() as plt:
        assert stops(table, plt) is None


def test_one_reason_for_having_no_place_is_one_note(tmp_path: Path) -> None:
    (one,) = tables(Results.load([write_results(tmp_path / "one", 1)]))
    places = [note for note in GRIDS["main"](one).notes if " no place" in note or " a place" in note]
    assert len(places) == 1 and places[0].startswith("No method has a place: ")
    two = write_results(tmp_path / "two", 2, failed={"rmu": [0, 1], "npo": [0, 1]})
    (failing,) = tables(Results.load([two]))
    places = [note for note in GRIDS["main"](failing).notes if " no place" in note]
    assert len(places) == 1 and places[0].startswith("NPO, RMU have no place: ")
