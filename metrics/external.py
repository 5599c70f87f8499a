"""Metrics of other libraries: `evaluate:NAME` and `lm-eval:NAME`.

- `evaluate:rouge`, `evaluate:./my_metric`: a metric of the Hugging Face `evaluate` library, by name or local path, on
  the greedy answers against the true ones
- `lm-eval:mmlu`, `lm-eval:./task.yaml`: an lm-eval task on the model in memory, by name or local YAML file

What is not on this machine needs the network; without it the value is null, with one line that says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from pydantic import Field

from unlearnbench.benchmarks.base import Benchmark, Row
from unlearnbench.metric import Context, External, Generate, Metric, Request, Value, metrics, no_rows, rows_of


@metrics.register(
    "evaluate",
    title="A metric of the `evaluate` library: evaluate:NAME",
    direction="higher",
    side="descriptive",
    source="the library",
    adapter=True,
)
class HuggingFaceEvaluate(Metric):
    """The number a metric of the `evaluate` library gives to the greedy answers of a split.

    `key` picks it among several; by default the only number, the one named like the metric, `f1`, or the first. Where
    the library gives one number a row, the score is their mean and has an interval.
    """

    name: str = Field("", description="of the metric or the task: what stands behind the colon")
    key: str = Field("", description="which of the library's numbers; empty: see above")
    max_new_tokens: int = Field(128, ge=1, description="of an answer")

    def requests(self, data: Benchmark) -> Iterable[Request]:
        for row in rows_of(data, self.split):
            yield self._request(row)

    def _request(self, row: Row) -> Generate:
        return Generate(row.prompt, self.max_new_tokens)

    def compute(self, context: Context) -> Value:
        rows = rows_of(context.data, self.split)
        if not self.name:
            return Value(None, reason="name a metric of the evaluate library: evaluate:NAME")
        if not rows:
            return no_rows(context.data, self.split)
        said, true = [context.ask(self._request(row)).text for row in rows], [row.answer for row in rows]
        try:
            import evaluate

            found = evaluate.load(self.name).compute(predictions=said, references=true)
        except (OSError, ImportError, ValueError, KeyError, TypeError) as error:
            line = (str(error).strip().splitlines() or [type(error).__name__])[0]
            return Value(None, reason=f"evaluate:{self.name} did not run: {line} (what is not local needs the network)")
        return self._value(found or {}, rows)

    def _value(self, found: Mapping[str, Any], rows: Iterable[Row]) -> Value:
        ids = [row.id for row in rows]
        numbers = {k: v for k, v in found.items() if _is_number(v) or (_is_list(v) and len(v) == len(ids))}
        preferred = [self.key] if self.key else [self.name.rsplit("/", 1)[-1], "f1", *numbers]
        key = next((k for k in preferred if k in numbers), None)
        if key is None:
            return Value(
                None, reason=f"evaluate:{self.name} gave no number '{self.key}' but {', '.join(found) or 'nothing'}"
            )
        details = {k: float(np.mean(v)) for k, v in numbers.items()}
        if _is_list(numbers[key]):
            return Value.mean_of(dict(zip(ids, map(float, numbers[key]), strict=True)), key=key, **details)
        if not np.isfinite(details[key]):
            return Value(None, reason=f"evaluate:{self.name} gave {details[key]}")
        return Value(details[key], details={"key": key, "rows": len(ids), **details})


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)


def _is_list(value: Any) -> bool:
    return isinstance(value, (list, tuple, np.ndarray)) and len(value) > 0 and all(_is_number(v) for v in value)


@metrics.register(
    "lm-eval",
    title="A task of lm-evaluation-harness: lm-eval:NAME",
    direction="higher",
    side="utility",
    source="the library",
    adapter=True,
)
class LmEval(Metric):
    """The accuracy of an lm-eval task, or its first number where it has no accuracy; `details` lists all."""

    name: str = Field("", description="of the metric or the task: what stands behind the colon")
    limit: int | None = Field(None, ge=1, description="only the first so many examples")
    num_fewshot: int | None = Field(None, ge=0, description="solved examples in front; null: the task's own number")
    batch_size: int = Field(16, ge=1, description="sequences a batch")

    def requests(self, data: Benchmark) -> Iterable[Request]:
        if self.name:
            yield self._request()

    def _request(self) -> External:
        options = {"limit": self.limit, "num_fewshot": self.num_fewshot, "batch_size": self.batch_size}
        return External("lm-eval", self.name, tuple(options.items()))

    def compute(self, context: Context) -> Value:
        if not self.name:
            return Value(None, reason="name a task of lm-eval: lm-eval:NAME")
        found = context.ask(self._request())
        if "error" in found:
            return Value(None, reason=found["error"])
        details = {**found["results"], **{k: found[k] for k in ("metric", "n", "shortened", "lm_eval")}}
        if found["all_options_tie"]:
            return Value(None, reason="all options of all rows have the same log-likelihood", details=details)
        return Value(found["value"], details=details)
