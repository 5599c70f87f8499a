"""The pictures that show several tables at once, and the ablation: what is in them, and when there is none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import synthetic
from tests.support.synthetic import base_spec, write_results
from unlearnbench import report
from unlearnbench.report.plots.heatmap import heatmap, settings_of
from unlearnbench.report.plots.panels import panels
from unlearnbench.report.plots.scaling import scaling
from unlearnbench.report.plots.slopes import slopes
from unlearnbench.report.results import Results
from unlearnbench.report.standings import tables
from unlearnbench.report.style import styled
from unlearnbench.schema import PublishedSettings

MASC = PublishedSettings(paper="masc", benchmark="tofu-forget10")


@pytest.fixture
def plt() -> Iterator[Any]:
    with styled() as pyplot:
        yield pyplot


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Results:
    folder = tmp_path_factory.mktemp("attacked")
    roots = [write_results(folder / "a", seeds=5), write_results(folder / "b", seeds=5, attack="4bit")]
    return Results.load(roots)


def labels(axes: Any) -> set[str]:
    return {text.get_text() for text in axes.get_legend().get_texts()} if axes.get_legend() else set()


def test_panels_show_published_numbers_apart(attacked: Results, plt: Any) -> None:
    figure = panels(tables(attacked), MASC, plt)
    bars, measured, printed = figure.axes  # one benchmark, its attacked twin left out
    assert len(bars.patches) == 7
    diamonds = [line for line in bars.lines if line.get_marker() == "D"]
    assert sorted(float(line.get_ydata()[0]) for line in diamonds) == [92, 546, 908, 986]
    assert bars.get_yscale() == "log"
    assert {line.get_label() for line in measured.lines} == set(synthetic.TITLES)
    assert {line.get_label() for line in printed.lines} == {"masc", "simnpo", "graddiff", "npo+klr"}
    assert labels(printed) == set(synthetic.TITLES.values()) and not labels(measured)  # one legend a line
    assert "llama-mini" in measured.get_title() and "Llama-2-7B" in printed.get_title()
    assert len(panels(tables(attacked), None, plt).axes) == 2


def test_slopes_pair_before_and_after(attacked: Results, plt: Any) -> None:
    figure = slopes(tables(attacked), None, plt)
    forget, utility = figure.axes
    assert labels(utility) == {"retrained", "target", *synthetic.TITLES.values()}
    assert [tick.get_text() for tick in forget.get_xticklabels()] == ["before", "after 4bit"]
    assert slopes(tables(attacked)[:1], None, plt) is None


def test_scaling_draws_every_row_over_the_sizes(tmp_path: Path, plt: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for i in range(3):
        with monkeypatch.context() as patch:
            made, recorded, plain = synthetic.key, synthetic.unlearn_record, synthetic.record
            patch.setattr(synthetic, "key", lambda *parts, i=i, made=made: made(i, *parts))
            more = {"parameters": 1000 * 2**i}
            patch.setattr(synthetic, "unlearn_record", lambda *a, f=recorded, more=more: {**f(*a), **more})
            patch.setattr(synthetic, "record", lambda *a, f=plain, more=more: {**f(*a), **more})
            model = {**base_spec()["model"], "width": 16 * 2**i}
            write_results(tmp_path / str(i), methods=("masc", "simnpo"), model=model)
    found = tables(Results.load([tmp_path / str(i) for i in range(3)]))
    figure = scaling(found, None, plt)
    first = figure.axes[0]
    assert labels(figure.axes[-1]) == {"target", "retrained", "masc", "simnpo"}
    masc = next(line for line in first.lines if line.get_label() == "masc")
    assert list(masc.get_xdata()) == [1000, 2000, 4000] and masc.get_ydata()[0] == pytest.approx(0.11)
    assert [tick.get_text() for tick in first.get_xticklabels()] == ["1k", "2k", "4k"]
    assert scaling(found[:2], None, plt) is None


def test_an_ablation_is_a_map_and_strips(tmp_path: Path, plt: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    arms = [f"masc[rho={r},eta={e}]" for r in (0.5, 0.7) for e in (0.1, 1.0)] + [f"masc[k={k}]" for k in (10, 3)]
    for place, arm in enumerate(arms):
        values = tuple(v + 0.01 * place for v in synthetic.MEANS["masc"])
        monkeypatch.setitem(synthetic.MEANS, arm, values)
        monkeypatch.setitem(synthetic.TITLES, arm, arm)
        monkeypatch.setitem(synthetic.SECONDS, arm, (0.0, 1.0, 0.0, 0.0))
    (table,) = tables(Results.load([write_results(tmp_path / "runs", methods=arms)]))
    square, strip = heatmap(table, plt).axes[:2]
    assert square.images[0].get_array().shape == (2, 2) and strip.images[0].get_array().shape == (1, 2)
    assert [tick.get_text() for tick in strip.get_xticklabels()] == ["3", "10"]  # in the order of numbers
    score = table.row(arms[1]).score.mean  # type: ignore[union-attr]  # rho .5, eta 1
    assert square.images[0].get_array()[1, 0] == pytest.approx(score)
    assert {text.get_text() for text in square.texts} == {f"{table.row(a).score.mean:.2f}" for a in arms[:4]}  # type: ignore[union-attr]
    assert settings_of("masc[stop.alpha=0.2,k=3]") == {"stop.alpha": "0.2", "k": "3"} and settings_of("npo") == {}


def test_no_sweep_no_map(attacked: Results, plt: Any) -> None:
    assert heatmap(tables(attacked)[0], plt) is None


def test_the_report_has_them_as_png_svg_and_pdf(attacked: Results, tmp_path: Path) -> None:
    report.write(attacked, tmp_path / "a", "Title", plots=("panels", "slopes"), published=MASC)
    report.write(attacked, tmp_path / "b", "Title", plots=("panels", "slopes"), published=MASC)
    for name in ("panels.png", "panels.svg", "panels.pdf", "slopes.pdf"):
        one, other = (tmp_path / folder / name for folder in "ab")
        assert one.read_bytes() == other.read_bytes() and one.stat().st_size > 1000
    assert (tmp_path / "a" / "report.html").read_text().count("<figure>") == 2
