"""Verdicts of claims and published numbers, on made-up runs whose effects can be worked out in the head."""

from __future__ import annotations

import csv
import math
import statistics
from pathlib import Path
from typing import Any

import pytest

from tests.support import synthetic
from tests.support.synthetic import base_spec, write_results
from unlearnbench import report
from unlearnbench.claims import Claim
from unlearnbench.errors import UserError
from unlearnbench.report import printed, verdicts
from unlearnbench.report.forms import markdown
from unlearnbench.report.results import Results
from unlearnbench.report.standings import tables
from unlearnbench.schema import PublishedSettings

MASC = PublishedSettings(paper="masc", benchmark="tofu-forget10")


def claim(**changes: Any) -> Claim:
    says = {"claim": "so it is", "kind": "superiority", "metric": "model_utility", "of": "masc", "better": "higher"}
    return Claim(**{**says, "against": ("ga",), **changes})


def judged(root: Path, one: Claim, published: PublishedSettings | None = None) -> list[verdicts.Finding]:
    return verdicts.find(Results.load([root]), [one], published)


@pytest.fixture(scope="module")
def five(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_results(tmp_path_factory.mktemp("five") / "runs", seeds=5)


def test_a_difference_is_paired_over_the_seeds(five: Path) -> None:
    # every method moves alike with the seed: the differences are those of the means, without spread
    (found,) = judged(five, claim())
    assert found.effect == pytest.approx(0.25) and found.seeds == 5 and found.verdict == "supported"
    assert found.low == pytest.approx(0.25) and found.high == pytest.approx(0.25)
    (found,) = judged(five, claim(margin=0.3))
    assert found.verdict == "refuted"
    (found,) = judged(five, claim(metric="forget_exact", better="lower", against=("rmu",)))
    assert found.effect == pytest.approx(0.34 - 0.11)


def test_a_ratio_of_seconds_is_taken_seed_by_seed_on_a_log_scale(five: Path) -> None:
    (found,) = judged(
        five, claim(metric="seconds", better="lower", compare="ratio", margin=2.5, against=("npo+klr",)), MASC
    )
    # seconds: MASC 1.75 + .1 s, NPO+KLR 6 + .1 s in seed s
    logs = [math.log((6 + 0.1 * s) / (1.75 + 0.1 * s)) for s in range(5)]
    half = 2.776445 * statistics.stdev(logs) / math.sqrt(5)
    ends = (math.exp(statistics.mean(logs) - half), math.exp(statistics.mean(logs) + half))
    assert (found.low, found.high) == pytest.approx(ends, rel=1e-6)
    assert found.effect == pytest.approx(3.19, abs=0.01) and found.verdict == "supported"
    assert found.paper == "10.7, read off a figure; 10.2"  # 986 / 92, and 900 / 88 as the summary has it
    assert found.text.startswith("3.19 times, 95 % interval ")


def test_time_to_target_counts_until_the_level_with_the_floor_kept(five: Path) -> None:
    # 1-ROUGE-L goes from .02 to .31 (MASC, 8 steps) or .45 (GA, 20 steps), .1 s a step, scored every fourth
    level = {
        "metric": "one_minus_rouge_l",
        "at": 0.14,
        "better": "higher",
        "floor_metric": "model_utility",
        "floor": 0.5,
    }
    until = claim(metric="seconds", better="lower", compare="ratio", until=level)
    (found,) = judged(five, until, MASC)
    # MASC: .02 + .29 / 2 = .165 at step 4; GA: .02 + .43 x 8 / 20 = .19 at step 8, seeds +-.02
    assert found.effect == pytest.approx(2.0) and found.seeds == 5 and found.paper == "not public"
    high = claim(metric="seconds", better="lower", compare="ratio", until={**level, "floor": 0.9})
    (found,) = judged(five, high)
    assert found.verdict == "undecided" and "one_minus_rouge_l >= 0.14" in found.reason and "GA" in found.reason


def test_every_comparison_must_hold(five: Path) -> None:
    found = judged(five, claim(against=("ga", "simnpo")))
    assert [f.verdict for f in found] == ["supported", "refuted"] and verdicts.overall(found) == "refuted"
    found = judged(five, claim(against=("ga", "absent")))
    assert found[1].reason == "absent was not run" and verdicts.overall(found) == "undecided"


def test_ruined_baselines_are_left_out_and_named(five: Path) -> None:
    # GA has .4 of .67 utility and .2 of .98 retain exact: more than half is gone
    found = judged(five, claim(against=("ga", "npo"), unless_ruined=True, kind="non-inferiority", margin=0.05))
    assert [f.against for f in found] == ["npo"] and found[0].verdict == "supported"
    assert found[0].reason.endswith("gone: ga")
    (found,) = judged(five, claim(unless_ruined=True))
    assert found.verdict == "undecided" and found.reason.endswith("gone: ga")


def test_below_five_seeds_the_range_is_shown_and_nothing_decided(tmp_path: Path) -> None:
    (found,) = judged(write_results(tmp_path / "runs", seeds=3), claim())
    assert found.verdict == "undecided" and found.reason == "3 seeds; 5 are needed"
    assert found.effect == pytest.approx(0.25) and "range of 3 seeds" in found.text


@pytest.mark.parametrize(
    "changes, options, reason",
    [
        ({"metric": "seconds", "better": "lower"}, {"machines": {("ga", 0): "cpu-b"}}, "not timed on one machine"),
        ({"metric": "forget_quality"}, {"null": {("masc", "forget_quality"): range(5)}}, "log10 FQ was not measured"),
        ({"of": "undial"}, {}, "undial was not run"),
        ({"after": "4bit"}, {}, "masc was not run after 4bit"),
        ({"against_after": "4bit"}, {}, "ga was not run after 4bit"),
        ({"metric": "forget_quality", "compare": "ratio"}, {}, "numbers above 0"),
        ({"compare": "trend", "against": ()}, {}, "parameters were not recorded"),
    ],
)
def test_what_cannot_be_compared_is_undecided_with_its_reason(
    tmp_path: Path, changes: dict[str, Any], options: dict[str, Any], reason: str
) -> None:
    (found,) = judged(write_results(tmp_path / "runs", seeds=5, **options), claim(**changes))
    assert found.verdict == "undecided" and found.effect is None and reason in found.reason


def test_before_and_after_an_attack(tmp_path: Path) -> None:
    root = write_results(tmp_path / "runs", seeds=5)
    write_results(tmp_path / "attacked", seeds=5, attack="4bit")
    results = Results.load([root, tmp_path / "attacked"])
    same = claim(after="4bit", against=("masc",), against_after="none", kind="equivalence", margin=0.02)
    (found,) = verdicts.find(results, [same])
    assert found.effect == pytest.approx(0.0) and found.verdict == "supported"


def test_a_trend_is_a_slope_per_doubling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for i in range(3):  # three sizes of model, utility .1 higher with each doubling
        with monkeypatch.context() as patch:
            made, recorded, valued = synthetic.key, synthetic.unlearn_record, synthetic.value
            patch.setattr(synthetic, "key", lambda *parts, i=i, made=made: made(i, *parts))
            patch.setattr(
                synthetic,
                "unlearn_record",
                lambda *given, i=i, recorded=recorded: {**recorded(*given), "parameters": 1000 * 2**i},
            )
            patch.setattr(
                synthetic,
                "value",
                lambda arm, metric, *given, i=i, valued=valued: (
                    valued(arm, metric, *given) + (0.1 * i if metric == "model_utility" else 0.0)
                ),
            )
            model = {**base_spec()["model"], "width": 16 * 2**i}
            write_results(tmp_path / str(i), seeds=5, methods=("masc",), model=model)
    results = Results.load([tmp_path / str(i) for i in range(3)])
    for changes, effect in (
        ({"margin": 0.05}, 0.1),
        ({"metric": "forget_exact", "kind": "equivalence", "margin": 0.01, "better": "lower"}, 0.0),
        ({"minus": "forget_exact"}, 0.1),
    ):
        (found,) = verdicts.find(results, [claim(compare="trend", against=(), **changes)])
        assert found.effect == pytest.approx(effect, abs=1e-9) and found.verdict == "supported", changes
    (found,) = verdicts.find(results, [claim(compare="trend", against=(), better="lower")])
    assert found.effect == pytest.approx(-0.1) and found.verdict == "refuted" and "per doubling" in found.text
    (found,) = verdicts.find(Results.load([tmp_path / "0", tmp_path / "1"]), [claim(compare="trend", against=())])
    assert found.verdict == "undecided" and found.reason == "models of 2 sizes; a trend needs 3"


def test_the_report_shows_claims_and_published_numbers_apart(five: Path, tmp_path: Path) -> None:
    claims = [claim(claim="<b>MASC</b> keeps utility"), claim(metric="seconds", better="lower", compare="ratio")]
    report.write(Results.load([five]), tmp_path, "Title", published=MASC, claims=claims)
    table, page = (tmp_path / "table.md").read_text(), (tmp_path / "report.html").read_text()
    assert (
        "**Claims**" in table
        and "supported" in table
        and "<b>MASC</b> keeps" not in page
        and "What came of the claims" in page
    )
    assert "Published and measured" in table and "Published and measured" in page
    with (tmp_path / "claims.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["verdict"] for row in rows] == ["supported", "supported"]
    assert float(rows[0]["effect"]) == pytest.approx(0.25) and rows[0]["margin"] == ""
    assert next(verdict for verdict, _ in report.lines(verdicts.find(Results.load([five]), claims))) == "supported"


# -- published numbers -----------------------------------------------------------------------------------------


def test_every_published_number_is_of_a_metric_we_know() -> None:
    from unlearnbench.claims import COSTS
    from unlearnbench.method import methods
    from unlearnbench.metric import metrics

    entries = printed.load()
    assert {entry.paper for entry in entries} == {"masc", "open-unlearning"}
    assert {entry.metric for entry in entries} - set(metrics.names()) - set(COSTS) == set()
    assert {entry.method for entry in entries} - set(methods.names()) == {"target", "retrained"}


def test_printed_values_come_in_our_units() -> None:
    head = "paper,source,benchmark,model,method,metric,value,uncertainty,how"
    text = [
        head,
        "p,s,b,m,finetuned,forget_quality,1e-3,,reported",
        "p,s,b,m,ga,one_minus_knowmem_forget,0.25,,digitised",
    ]
    first, second = printed.read(text, "x.csv")
    assert (first.method, first.metric, first.value, first.reported) == ("target", "forget_quality", -3.0, True)
    assert (second.metric, second.value, second.reported) == ("knowmem_forget", 75.0, False)
    with pytest.raises(UserError, match=r"x\.csv:2"):
        printed.read([head, "p,s,b,m,ga,accuracy,1,,reported"], "x.csv")
    with pytest.raises(UserError, match="'masc'"):
        printed.known(PublishedSettings(paper="mask"))


def test_published_stands_beside_measured_with_the_difference(five: Path) -> None:
    (table,) = tables(Results.load([five]))
    grid = printed.compared(table, MASC)
    rows = {(row[0], row[1], row[5]): row for row in grid.rows}
    row = rows["MASC", "Utility", "digitised radar marker, +-0.02"]
    assert row[2:5] == ("≈ 0.66", "0.65 ±0.02", "-0.01")
    row = rows["MASC", "Seconds", "reported as about 88 s"]
    assert row[2] == "88.0" and row[4].startswith("-86")
    assert "Llama-2-7B family" in grid.notes[0] and "tofu-mini, llama-mini" in grid.notes[0]
    assert "| MASC |" in markdown(grid)
    assert printed.compared(table, PublishedSettings(paper="masc")).rows == ()  # nothing is printed of tofu-mini
    assert printed.compared(table, None).rows == ()


def test_numbers_belong_to_the_model_that_was_run(tmp_path: Path) -> None:
    spec = {
        "benchmark": {"name": "tofu", "options": {"forget": "forget05"}},
        "model": {"name": "x/Llama-3.2-1B-Instruct"},
    }
    root = write_results(tmp_path / "runs", methods=("ga",), **spec)
    (group,) = Results.load([root]).groups
    found = printed.beside(PublishedSettings(paper="open-unlearning"), group)
    assert {(entry.benchmark, entry.model) for entry in found} == {("tofu-forget05", "Llama-3.2-1B-Instruct")}
    assert printed.beside(PublishedSettings(paper="open-unlearning", model="no-such"), group) == []
