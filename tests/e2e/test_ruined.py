"""On really trained models: an untouched and a ruined one are farther from the retrained one than a sane method."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd

from tests.e2e.test_run import unlearnbench

EXPERIMENT = """\
title: A ruined model
benchmark: {name: tofu-mini, forget: forget05}
model: {name: llama-mini, width: 64, max_length: 256}
base: {epochs: 2, learning_rate: 2.5e-3, batch_size: 8, betas: [0.9, 0.98], schedule: linear, clip: 0.3, paraphrases: 1}
target: {epochs: 8, learning_rate: 2.5e-3, batch_size: 8, betas: [0.9, 0.98], schedule: linear, clip: 0.3}
unlearn: {epochs: 8, learning_rate: 1e-3, batch_size: 8, retain_batch_size: 16}
trajectory: {points: 0}
methods:
  - ga: {unlearn: {learning_rate: 0.1}}
  - simnpo: {forget_weight: 0.5}
metrics: [one_minus_prob, one_minus_rouge_l, model_utility, retain_exact]
seeds: 2
report: {tables: [main], plots: [tradeoff]}
"""


def test_an_untouched_and_a_ruined_model_are_farthest(tmp_path: Path) -> None:
    (tmp_path / "ruined.yaml").write_text(EXPERIMENT)
    unlearnbench("run", "ruined.yaml", cwd=tmp_path)
    board = pd.read_csv(tmp_path / "runs" / "reports" / "ruined" / "leaderboard.csv").set_index("label")
    score = board["score"]
    assert score["retrained"] < score["simnpo"] < min(score["target"], score["ga"])
    assert board.loc["ga", "retain_exact"] < 0.05 < board.loc["target", "retain_exact"]
    assert json.loads(next((tmp_path / "runs").glob("unlearn-ga-s0-*/record.json")).read_text())["status"] == "complete"
