"""Two methods compared: paired over seeds, Holm over the metrics, rows clustered, nothing tested below five seeds."""

from __future__ import annotations

import csv
import io
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from tests.support.synthetic import METRICS, write_results, write_samples
from unlearnbench import cli
from unlearnbench.errors import UserError
from unlearnbench.report.compare import Line, compare
from unlearnbench.statistics import holm


def lines(*arguments: Any) -> dict[str, Line]:
    return {line.metric: line for line in compare(*arguments).lines}


def test_five_seeds_are_tested_pair_by_pair(tmp_path: Path) -> None:
    """NPO moves by +0.01 a seed and the retrained model by -0.01: the differences are c - 0.04 … c + 0.04."""
    found = lines("npo", "retrained", [write_results(tmp_path / "runs", seeds=5, methods=["npo"])])
    line = found["retain_exact"]
    differences = 0.55 - 0.98 + 0.02 * np.arange(-2, 3)
    assert line.n == line.of == 5 and line.difference == pytest.approx(-0.43)
    assert line.effect == pytest.approx(-0.43 / (0.02 * np.sqrt(2.5)))
    assert line.p == pytest.approx(stats.ttest_1samp(differences, 0).pvalue)
    assert (line.first, line.second) == (pytest.approx(0.55), pytest.approx(0.98))
    assert line.verdict == "retrained better" and line.spread == "95% interval"
    assert line.low is not None and line.high is not None and line.low < -0.43 < line.high
    tested = [line for line in found.values() if line.p is not None]
    assert [line.p_holm for line in tested] == pytest.approx(holm([line.p or 0.0 for line in tested]))
    assert len(tested) == len(METRICS) + 3  # with the score and its two sides
    # where nearness counts nobody is better: the values differ, or do not
    auc = found["mink_auc"]
    assert (auc.direction, auc.nearer, auc.verdict) == ("retrained", "retrained", "not told apart")
    assert found["score"].direction == "lower" and found["score"].retrained is None


def test_pairing_tells_apart_what_the_spread_hides(tmp_path: Path) -> None:
    """Both methods swing by 0.04 over the seeds and differ by 0.01 in each: unpaired, nothing could be seen."""
    root = write_results(tmp_path / "runs", seeds=5, methods=["npo", "npo+klr"])
    for seed in range(5):  # one of them a hair off, so that there is something to test against
        (file,) = root.glob(f"evaluate-npo-s{seed}-*/metrics.json")
        content = json.loads(file.read_text())
        (entry,) = (e for e in content["metrics"] if e["name"] == "model_utility")
        entry["value"] += 0.0001 * (seed % 2)
        file.write_text(json.dumps(content))
    line = lines("npo+klr", "npo", [root])["model_utility"]
    assert line.difference == pytest.approx(0.01, abs=1e-4) and line.verdict == "npo+klr better"
    swing = np.array([0.65, 0.64])[:, None] + 0.01 * np.arange(-2, 3)
    assert stats.ttest_ind(*swing).pvalue > 0.2


def test_below_five_seeds_nothing_is_tested(tmp_path: Path) -> None:
    found = lines("npo", "retrained", [write_results(tmp_path / "runs", seeds=4, methods=["npo"])])
    for line in found.values():
        assert line.p is None and line.p_holm is None and line.effect is None
        assert line.verdict == "insufficient" and line.spread == "range"
        assert line.reason == "insufficient: 4 seeds in common, 5 are needed"
    line = found["retain_exact"]
    assert (line.low, line.high) == (pytest.approx(-0.46), pytest.approx(-0.40))


def test_rows_are_drawn_by_groups_and_in_pairs(tmp_path: Path) -> None:
    """Two runs: author 1 gains 0.4, the others nothing; with rows drawn alone the interval would be narrower."""
    root = write_results(tmp_path / "runs", seeds=1, methods=["npo", "masc"])
    base = {f"{a}-{i}": 0.1 * i for a in range(4) for i in range(10)}  # rows differ much more than the methods do
    for arm, gain in (("npo", 0.4), ("masc", 0.0)):
        (folder,) = root.glob(f"evaluate-{arm}-s0-*")
        rows = [("forget_exact", "forget", k, k[0], v + (gain if k[0] == "1" else 0)) for k, v in base.items()]
        write_samples(folder, rows)
        content = json.loads((folder / "metrics.json").read_text())
        (entry,) = (e for e in content["metrics"] if e["name"] == "forget_exact")
        entry["value"] = float(np.mean([row[-1] for row in rows]))
        (folder / "metrics.json").write_text(json.dumps(content))
    line = lines("npo", "masc", [root])["forget_exact"]
    assert line.difference == pytest.approx(0.1) and line.n == 1 and line.low is None
    assert line.rows_low == pytest.approx(0.0) and line.rows_high == pytest.approx(0.3, abs=0.05)
    folders = [str(next(root.glob(f"evaluate-{arm}-s0-*"))) for arm in ("npo", "masc")]
    two = lines(*folders, [])["forget_exact"]
    assert (two.difference, two.rows_low, two.rows_high) == (line.difference, line.rows_low, line.rows_high)
    assert two.comparison == "two runs" and two.verdict == "insufficient"


def test_failed_and_null_seeds_are_said_and_left_out(tmp_path: Path) -> None:
    null = {("masc", "model_utility"): range(6), ("masc", "retain_exact"): [2]}
    root = write_results(tmp_path / "runs", seeds=6, methods=["npo", "masc"], failed={"npo": [1]}, null=null)
    found = lines("npo", "masc", [root])
    assert (found["model_utility"].n, found["model_utility"].of) == (0, 6)
    assert found["model_utility"].difference is None and found["model_utility"].verdict == ""
    assert found["model_utility"].reason
    assert (found["retain_exact"].n, found["retain_exact"].of) == (4, 6)
    assert found["retain_exact"].verdict == "insufficient" and "nan at step 3" in found["retain_exact"].reason
    assert found["forget_exact"].n == 5


def test_what_cannot_be_compared_is_one_line(tmp_path: Path) -> None:
    root = write_results(tmp_path / "runs", seeds=2, methods=["npo"])
    other = write_results(tmp_path / "other", seeds=2, methods=["masc"], benchmark={"name": "muse-mini", "version": 1})
    for arguments, message in (
        (("npo", "nop"), "There is no method 'nop' in these runs; did you mean 'npo'"),
        (("npo", "npo"), "are the same: name two"),
        (("npo", "masc"), "No table has both: npo is in tofu-mini, llama-mini; masc in muse-mini, llama-mini"),
    ):
        with pytest.raises(UserError, match=message) as error:
            compare(*arguments, [root, other])
        assert "\n" not in str(error.value)
    (run,) = root.glob("evaluate-npo-s0-*")
    with pytest.raises(UserError, match="are the same run"):
        compare(str(run), str(run), [])


def test_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    root = write_results(tmp_path / "runs", seeds=5, methods=["npo", "masc"])

    def call(*options: str) -> str:
        monkeypatch.setenv("COLUMNS", "200")
        monkeypatch.setattr(sys, "argv", ["unlearnbench", "compare", "npo", "masc", str(root), *options])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert not ended.value.code
        return capsys.readouterr().out

    rows = list(csv.DictReader(io.StringIO(call("--csv"))))
    found = json.loads(call("--json"), parse_constant=pytest.fail)
    assert [row["metric"] for row in rows] == [line["metric"] for line in found["lines"]]
    assert float(rows[-1]["difference"]) == pytest.approx(found["lines"][-1]["difference"], rel=1e-5)
    text = call()
    assert "npo against masc: tofu-mini, llama-mini" in text and "Utility ↑" in text and "not told apart" in text
