"""`unlearnbench new method NAME`: a working file to change, and its test."""

from __future__ import annotations

import re
from pathlib import Path

from unlearnbench.errors import UserError, did_you_mean
from unlearnbench.registry import Registry

METHOD = '''\
"""{title}: one sentence that says what it does to a forget answer.

L = E_y[ max(0, level - nll(y|x)) ]          with nll the answer's -log p, summed over its tokens, in nats

Every symbol is named; where the idea is somebody's, their paper is too.
"""

from __future__ import annotations

from torch import Tensor

from unlearnbench.method import Method, Retain, Step, Terms, hyper, methods


def {function}(nll: Tensor, level: float) -> Tensor:
    """Per-answer loss (B,) from the answers' -log p (B,), nats: push it up to `level` and no further."""
    return (level - nll).relu()


@methods.register("{name}", title="{title}", version=1)
class {cls}(Method):
    """Gradient ascent that ends at a level."""

    level: float = hyper(20.0, gt=0, source="a guess")
    retain: Retain = hyper("nll", source="a guess")  # none | nll | kl | kl-all | hidden: shared by every method

    def forget_loss(self, step: Step) -> Terms:
        return Terms({function}(step.forget.sequence_nll(), self.level))
'''

METHOD_TEST = '''\
"""{title}: its loss by hand, and everything that must hold of a method."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from unlearnbench.registry import load_plugin
from unlearnbench.testing.check import Check, method_checks

plugin = load_plugin(Path(__file__).with_name("{module}.py"))


def test_the_loss_by_hand() -> None:
    loss = plugin.{function}(torch.tensor([5.0, 25.0]), 20.0)
    assert loss.tolist() == [15.0, 0.0]


@pytest.mark.parametrize("check", method_checks("{name}"), ids=str)
def test_conformance(check: Check) -> None:
    check.run()
'''

METRIC = '''\
"""{title}: one sentence that says what a high value means.

The share of a row's answer tokens that are the model's first choice, mean over rows.
"""

from __future__ import annotations

from collections.abc import Iterable

from unlearnbench.benchmarks.base import Row
from unlearnbench.metric import Context, Request, RowMetric, Score, metrics


@metrics.register(
    "{name}",
    title="{title}",
    direction="lower",
    target="retrained",
    range=(0, 1),
    side="forget",
    unit="share of tokens",
    version=1,
)
class {cls}(RowMetric):
    """Mean over the forget rows of the share of answer tokens that are the argmax."""

    def asks(self, row: Row) -> Iterable[Request]:
        yield Score(row.prompt, row.answer)

    def sample(self, row: Row, context: Context) -> float | None:
        scores = context.score(row.prompt, row.answer)
        return float(scores.hit.mean()) if len(scores) else None
'''

METRIC_TEST = '''\
"""{title}: everything that must hold of a metric."""

from __future__ import annotations

from pathlib import Path

import pytest

from unlearnbench.registry import load_plugin
from unlearnbench.testing.check import Check, metric_checks

plugin = load_plugin(Path(__file__).with_name("{module}.py"))


@pytest.mark.parametrize("check", metric_checks("{name}"), ids=str)
def test_conformance(check: Check) -> None:
    check.run()
'''

TEMPLATES = {"method": (METHOD, METHOD_TEST), "metric": (METRIC, METRIC_TEST)}


def write(kind: str, name: str, folder: Path) -> list[Path]:
    """Write the file and the test of a new `kind` (method or metric) called `name`; their paths.

    Raises `UserError` for a name that is taken or cannot be one, and for files that are there already.
    """
    if kind not in TEMPLATES:
        raise UserError(f"There is no skeleton of a '{kind}'; {did_you_mean(kind, TEMPLATES)}")
    between = "-" if kind == "method" else "_"
    if not re.fullmatch(rf"[a-z][a-z0-9]*({between}[a-z0-9]+)*", name):
        allowed = f"lower-case letters, digits and '{between}', like my{between}{kind}"
        raise UserError(f"A {kind} is named in {allowed}: not '{name}'.")
    if name in _registry(kind):
        raise UserError(f"There is a {kind} '{name}' already, of {_registry(kind).get(name).origin}.")
    words = name.split(between)
    module = "_".join(words)
    values = {
        "name": name,
        "module": module,
        "function": f"{module}_loss",
        "cls": "".join(word.capitalize() for word in words),
        "title": " ".join(words).capitalize(),
    }
    paths = [folder / f"{module}.py", folder / f"test_{module}.py"]
    there = [path for path in paths if path.exists()]
    if there:
        raise UserError(f"{there[0]} is there already; remove it or take another name.")
    folder.mkdir(parents=True, exist_ok=True)
    for path, template in zip(paths, TEMPLATES[kind], strict=True):
        path.write_text(template.format(**values), encoding="utf-8")
    return paths


def _registry(kind: str) -> Registry:
    from unlearnbench.method import methods
    from unlearnbench.metric import metrics

    return methods if kind == "method" else metrics
