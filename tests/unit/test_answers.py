"""Answers come back from disk bit for bit, and give the same metrics."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from unlearnbench import answers
from unlearnbench.benchmarks.base import Benchmark
from unlearnbench.errors import UserError
from unlearnbench.evaluation import evaluate, rescore
from unlearnbench.metric import External, Generate, GradNorm, Sample, Score, Text, TokenScores
from unlearnbench.testing.tiny import tiny_encoder, tiny_lm, tiny_rows


def scores(dtype: Any, n: int = 3, full: bool = True) -> TokenScores:
    numbers = np.random.default_rng(n)
    extras = (numbers.random(n), numbers.random(n), numbers.random((n, 16))) if full else (None, None, None)
    extras = tuple(None if x is None else x.astype(dtype) for x in extras)
    spans = np.arange(2 * n, dtype=np.int32).reshape(n, 2) if full else None
    return TokenScores(numbers.random(n).astype(dtype), numbers.random(n) > 0.5, *extras, spans)  # type: ignore[arg-type]


def equal(a: Any, b: Any) -> bool:
    if not isinstance(a, TokenScores):
        return bool(a == b)
    pairs = [(getattr(a, name), getattr(b, name)) for name in ("logp", "hit", "mean", "variance", "rivals", "spans")]
    return all(x is y or (x.dtype == y.dtype and x.shape == y.shape and (x == y).all()) for x, y in pairs)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_round_trip(tmp_path: Path, dtype: Any) -> None:
    known = {
        Score("q", "a"): scores(dtype),
        Score("q", "a", raw=True): scores(dtype, 2, full=False),
        Score("", "a", role="base"): TokenScores(np.zeros(0, dtype), np.zeros(0, bool)),
        Generate("q", 5): Text("héllo\n\u0915", 2, True),
        Generate("q", 6, raw=True): Text("", 0, False),
        Sample("q", 2, 3, 0.5, 1): (Text("a", 1, True), Text("b", 1, False)),
        Sample("q", 1): (Text("a", 1, True),),
        GradNorm("q", "a"): 0.1 + 0.2,
        GradNorm("q", ""): None,
        External("lm-eval", "task", (("limit", 3), ("num_fewshot", None))): {"value": 0.5, "results": {"acc": 0.5}},
    }
    answers.save(tmp_path / "answers.parquet", known)
    found = answers.load(tmp_path / "answers.parquet")
    assert list(found) == list(known)
    for request, answer in known.items():
        assert equal(answer, found[request]), request


def test_same_bytes_for_the_same_answers(tmp_path: Path) -> None:
    for name in ("a", "b"):
        answers.save(tmp_path / name, {Score("q", "a"): scores(np.float32), Generate("q"): Text("x", 1, True)})
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_rescoring_needs_no_model(tmp_path: Path) -> None:
    data = Benchmark({"forget": tiny_rows(4, "f"), "holdout": tiny_rows(4, "h", 9)})
    names = ["forget_prob", "mink_auc", "minkpp_auc", "forget_fact_prob", "forget_violation_rate", "forget_rouge_l"]
    scored = evaluate({"model": tiny_lm()}, tiny_encoder(), data, names)
    answers.save(tmp_path / "answers.parquet", scored.answers)
    again = rescore(answers.load(tmp_path / "answers.parquet"), data, names)
    assert json.dumps(again.metrics_json()) == json.dumps(scored.metrics_json())
    assert again.samples().equals(scored.samples())
    other = rescore(answers.load(tmp_path / "answers.parquet"), data, ["forget_leak"])
    assert other.values["forget_leak"].score is None and "no answer" in other.values["forget_leak"].reason


@pytest.mark.parametrize("content", [b"", b"PAR1", b"half a file"])
def test_half_written_files_are_refused(tmp_path: Path, content: bytes) -> None:
    """B07"""
    file = tmp_path / "answers.parquet"
    file.write_bytes(content)
    with pytest.raises(UserError, match="not a complete answers file"):
        answers.load(file)
    with pytest.raises(UserError, match="There is no answers file"):
        answers.load(tmp_path / "none.parquet")
