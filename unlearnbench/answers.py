"""Answers on disk: `answers.parquet`, one row per distinct request: metrics can be computed again without a model.

Numbers come back bit for bit: float32 answers are kept as float32, float64 ones as float64.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from unlearnbench.errors import UserError
from unlearnbench.metric import Request, Text, TokenScores

_ARRAYS = ("logp", "mean", "variance", "rivals", "spans")


def save(path: Path, answers: Mapping[Request, Any]) -> None:
    """Write the answers in their order."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [_row(request, answer) for request, answer in answers.items()]
    single = all(r[name].dtype == np.float32 for r in rows for name in _ARRAYS[:-1] if r[name] is not None)
    real = pa.list_(pa.float32() if single else pa.float64())
    schema = pa.schema(
        [(name, pa.string()) for name in ("kind", "role", "prompt", "answer", "request", "dtype")]
        + [(name, real) for name in _ARRAYS[:-1]]
        + [("spans", pa.list_(pa.int32())), ("hit", pa.list_(pa.bool_()))]
        + [("texts", pa.list_(pa.string())), ("tokens", pa.list_(pa.int32())), ("ended", pa.list_(pa.bool_()))]
        + [("other", pa.string())]
    )
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), path, compression="zstd")


def load(path: Path) -> dict[Request, Any]:
    """Read what `save` wrote. Raises `UserError` when the file is missing or not such a file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        rows = pq.read_table(path).to_pylist()
    except FileNotFoundError:
        raise UserError(f"There is no answers file {path}.") from None
    except pa.ArrowInvalid as error:
        raise UserError(f"{path} is not a complete answers file: {error}") from error
    kinds = {kind.__name__: kind for kind in _all_kinds(Request)}
    answers: dict[Request, Any] = {}
    for row in rows:
        if row["kind"] not in kinds:
            raise UserError(f"{path} holds answers to '{row['kind']}' requests, which no loaded plug-in defines.")
        answers[kinds[row["kind"]](**_tuples(json.loads(row["request"])))] = _answer(row)
    return answers


def _row(request: Request, answer: Any) -> dict[str, Any]:
    fields = {k: v for k, v in asdict(request).items() if k != "want"}
    row: dict[str, Any] = dict.fromkeys((*_ARRAYS, "hit", "dtype", "texts", "tokens", "ended", "other"))
    row |= {"kind": type(request).__name__, "role": request.role, "request": json.dumps(fields, sort_keys=True)}
    row |= {name: fields.get(name) for name in ("prompt", "answer")}
    if isinstance(answer, TokenScores):
        row |= {name: None if (v := getattr(answer, name)) is None else v.ravel() for name in _ARRAYS}
        row |= {"hit": answer.hit, "dtype": str(answer.logp.dtype)}
    elif isinstance(answer, Text) or (isinstance(answer, tuple) and all(isinstance(text, Text) for text in answer)):
        texts = (answer,) if isinstance(answer, Text) else answer
        row |= {
            "texts": [t.text for t in texts],
            "tokens": [t.tokens for t in texts],
            "ended": [t.ended for t in texts],
        }
        row["other"] = json.dumps("one" if isinstance(answer, Text) else "many")
    else:
        row["other"] = json.dumps(answer, sort_keys=True)
    return row


def _answer(row: dict[str, Any]) -> Any:
    if row["dtype"] is not None:
        n, dtype = len(row["logp"]), np.dtype(row["dtype"])
        logp, mean, variance, rivals = (None if row[k] is None else np.array(row[k], dtype) for k in _ARRAYS[:-1])
        assert logp is not None
        return TokenScores(
            logp,
            np.array(row["hit"], bool),
            mean,
            variance,
            None if rivals is None else rivals.reshape(n, -1),
            None if row["spans"] is None else np.array(row["spans"], np.int32).reshape(-1, 2),
        )
    other = json.loads(row["other"])
    if row["texts"] is None:
        return other
    texts = tuple(Text(*line) for line in zip(row["texts"], row["tokens"], row["ended"], strict=True))
    return texts[0] if other == "one" else texts


def _tuples(value: Any) -> Any:
    """JSON back to hashable fields: lists become tuples."""
    if isinstance(value, list):
        return tuple(_tuples(v) for v in value)
    return {k: _tuples(v) for k, v in value.items()} if isinstance(value, dict) else value


def _all_kinds(kind: type[Request]) -> list[type[Request]]:
    return [found for sub in kind.__subclasses__() for found in (sub, *_all_kinds(sub))]
