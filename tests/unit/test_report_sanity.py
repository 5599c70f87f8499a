"""Each check of a run passes on a sound run and fails on the fault it is for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support import synthetic
from tests.support.synthetic import MEANS, METRICS, dump, write_results
from unlearnbench.report.results import Results
from unlearnbench.report.sanity import Check, sanity

EXACT = list(METRICS).index("forget_exact")


@pytest.fixture(autouse=True)
def sound(monkeypatch: pytest.MonkeyPatch) -> None:
    """A retrained model that answers 2 % of the forget rows; the table's 7 % is more than a run may have."""
    change(monkeypatch, "retrained", forget_exact=0.02)


def change(monkeypatch: pytest.MonkeyPatch, arm: str, **values: float) -> None:
    row = list(MEANS[arm])
    for name, value in values.items():
        row[list(METRICS).index(name)] = value
    monkeypatch.setitem(MEANS, arm, tuple(row))


def checks(root: Path) -> dict[str, Check]:
    return {check.name: check for check in sanity(Results.load([root]))}


def failing(root: Path) -> list[str]:
    return [name for name, check in checks(root).items() if check.ok is False]


def test_a_sound_run_passes(tmp_path: Path) -> None:
    found = checks(write_results(tmp_path / "runs", seeds=3))
    assert all(check.ok for check in found.values()), found
    assert "answers 96% to 98% of the forget rows" in found["the target knows the forget set"].text
    assert found["the stop rule of MASC was read"].text == "read 4 to 4 times, stopped at step 8, 8, 8"
    assert found["every cell finished"].text == "27 of 27"


@pytest.mark.parametrize(
    ("arm", "values", "name"),
    [
        ("target", {"forget_exact": 0.88}, "the target knows the forget set"),
        ("retrained", {"forget_exact": 0.07}, "the retrained model does not"),
    ],
)
def test_models_that_are_not_what_they_should_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arm: str, values: dict[str, float], name: str
) -> None:
    change(monkeypatch, arm, **values)
    assert name in failing(write_results(tmp_path / "runs"))


def test_retrained_models_that_do_not_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = synthetic.value

    def apart(arm: str, metric: str, seed: int, seeds: int) -> float:
        broken = arm == "retrained" and seed == 1 and METRICS[metric][1] == "forget" and metric != "forget_exact"
        return plain("target" if broken else arm, metric, seed, seeds)

    monkeypatch.setattr(synthetic, "value", apart)
    assert "retrained models of different seeds agree" in failing(write_results(tmp_path / "runs", seeds=3))


def test_a_method_that_is_nearer_than_possible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = synthetic.value

    def copied(arm: str, metric: str, seed: int, seeds: int) -> float:
        """npo hits the mean of the other retrained models exactly."""
        if arm != "npo":
            return plain(arm, metric, seed, seeds)
        others = [plain("retrained", metric, other, seeds) for other in range(seeds) if other != seed]
        return sum(others) / len(others)

    monkeypatch.setattr(synthetic, "value", copied)
    assert failing(write_results(tmp_path / "runs", seeds=3)) == ["no method is nearer than a retrained model"]


def test_a_method_farther_than_the_untouched_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    change(monkeypatch, "npo", one_minus_rouge_l=1.0, one_minus_prob=1.0, forget_truth_ratio=1.4)  # utility is kept
    assert failing(write_results(tmp_path / "runs")) == ["an untouched and a ruined model are farthest"]


def test_a_ruined_model_is_named_and_farthest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MEANS, "ga", (1.0, 1.0, 1.6, 0.0, 0.0, -0.1, 0.0, 0.0, 0.0, 0.05))
    check = checks(write_results(tmp_path / "runs"))["an untouched and a ruined model are farthest"]
    assert check.ok and check.text.endswith("half of the utility or more is gone: GA")


def edit(file: Path, **values: Any) -> None:
    dump(file, {**json.loads(file.read_text()), **values})


def test_a_stop_rule_that_was_never_read_or_is_contradicted(tmp_path: Path) -> None:
    root = write_results(tmp_path / "runs")
    (first,), (second,) = root.glob("unlearn-masc-s0-*"), root.glob("unlearn-masc-s1-*")
    (first / "log.jsonl").write_text("")
    (record,) = root.glob("unlearn-masc-s1-*/record.json")
    stop = json.loads(record.read_text())["stop"]
    edit(second / "record.json", stop={**stop, "step": None})
    check = checks(root)["the stop rule of MASC was read"]
    assert check.ok is False
    assert "never read in seed [0]" in check.text and "disagree in seed [1]" in check.text


def test_failed_cells_and_silent_nulls_are_named(tmp_path: Path) -> None:
    root = write_results(tmp_path / "runs", failed={"rmu": [1]}, null={("npo", "mink_auc"): [0]})
    (file,) = root.glob("evaluate-npo-s0-*/metrics.json")
    text = file.read_text()
    assert failing(root) == ["every cell finished"]
    file.write_text(text.replace("no row is defined", ""))
    found = checks(root)
    assert found["every cell finished"].text == "17 of 18; not: RMU, seed 1 (the forget loss is nan at step 3)"
    assert found["no metric is silently missing"].text == "without a reason: NPO/mink_auc"


def test_one_seed_leaves_questions_open(tmp_path: Path) -> None:
    found = checks(write_results(tmp_path / "runs", seeds=1))
    assert found["retrained models of different seeds agree"].ok is None
    assert found["an untouched and a ruined model are farthest"].ok is None
    assert found["the target knows the forget set"].ok
