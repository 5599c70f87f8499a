"""Skeletons work as they are written; the conformance suite passes what is right and names what is wrong."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from unlearnbench import registry
from unlearnbench.cli import app
from unlearnbench.errors import UserError
from unlearnbench.registry import load_plugin
from unlearnbench.testing import scaffold
from unlearnbench.testing.check import Check, method_checks, metric_checks, report


@pytest.fixture(autouse=True)
def _forget_plugins(tmp_path: Path) -> Iterator[None]:
    """What a test registers is gone after it."""
    yield
    for known in registry._ALL:
        known._entries = {name: e for name, e in known._entries.items() if not e.origin.startswith(str(tmp_path))}


def failures(checks: list[Check], *promises: str) -> dict[str, str]:
    """The checks that fail: promise -> reason. `promises`: only those that begin so."""
    found = {str(check): check.failure() for check in checks if str(check).startswith(promises or ("",))}
    assert found
    return {promise: reason for promise, reason in found.items() if reason is not None}


def test_a_new_method_passes_every_check(tmp_path: Path) -> None:
    file, test = scaffold.write("method", "half-way", tmp_path)
    load_plugin(file)
    assert failures(method_checks("half-way")) == {}
    spec = importlib.util.spec_from_file_location("test_half_way", test)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.test_the_loss_by_hand()


def test_a_new_metric_passes_every_check(tmp_path: Path) -> None:
    file, _ = scaffold.write("metric", "first_choices", tmp_path)
    load_plugin(file)
    assert failures(metric_checks("first_choices")) == {}


@pytest.mark.parametrize(
    ("old", "new", "promise", "reason"),
    [
        ('retain: Retain = hyper("nll", source="a guess")', 'retain: str = "nll"', "values out", "has no source"),
        ("step.forget.sequence_nll()", "-step.forget.full_logits.mean((1, 2))", "a constant added", "shift"),
        ("Terms(half_way_loss(step.forget.sequence_nll(), self.level))",
         "Terms(half_way_loss(step.forget.sequence_nll(), self.level).mean().unsqueeze(0))", "the loss of a batch",
         "accumulation"),
        ("(level - nll).relu()", "(level - nll).relu() * float('nan')", "losses and gradients", "loss is nan"),
        ("(level - nll).relu()", "(level - nll).relu() * 0 + nll.detach()", "losses and gradients", "no gradient"),
        ("step.forget.sequence_nll()", "step.reference.forget.sequence_nll() - step.forget.sequence_nll()",
         "all weights: two steps", "needs"),
        ("return (level - nll).relu()", "import random\n    return (level - nll).relu() * random.random()",
         "the same seed", "not repeatable"),
        ('version=1)', 'version=1)\n@(lambda cls: setattr(cls, "breaks", {"ours": frozenset({"shift"})}) or cls)',
         "a declared break shows: not so that a constant", "does not show"),
    ],
)  # fmt: skip
def test_a_fault_is_named(tmp_path: Path, old: str, new: str, promise: str, reason: str) -> None:
    file, _ = scaffold.write("method", "half-way", tmp_path)
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))
    load_plugin(file)
    found = failures(method_checks("half-way"), promise)
    assert len(found) == 1 and reason in next(iter(found.values()))
    assert "\n" not in next(iter(found.values()))


@pytest.mark.parametrize("name", ["Mine", "my method", "9lives", "my_method", "npo", ""])
def test_a_name_that_cannot_be_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError):
        scaffold.write("method", name, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text("precious")
    with pytest.raises(UserError, match=r"test_mine\.py is there already"):
        scaffold.write("method", "mine", tmp_path)
    assert (tmp_path / "test_mine.py").read_text() == "precious" and not (tmp_path / "mine.py").exists()


def test_declared_breaks_are_named() -> None:
    lines = [str(check) for check in method_checks("npo")]
    assert "a declared break shows: not so that a constant added to all logits changes nothing (protocol muse)" in lines
    assert "a constant added to all logits changes nothing (protocol ours)" in lines
    assert "a declared break shows: not so that batches do not change the update (protocol wmdp)" in lines


def test_a_line_per_check_and_their_number() -> None:
    def wrong() -> None:
        raise AssertionError("it is\n\nwrong")

    lines: list[str] = []
    assert report([Check("this", lambda: None), Check("that", wrong)], lines.append) == 1
    assert lines == ["ok    this", "FAIL  that: it is; wrong", "1 of 2 checks hold, 1 do not"]


def test_the_command_line(tmp_path: Path) -> None:
    runner = CliRunner()
    made = runner.invoke(app, ["new", "metric", "first_choices", "--out", str(tmp_path)])
    assert made.exit_code == 0 and made.output.splitlines()[0] == str(tmp_path / "first_choices.py")
    plugin = ["--plugin", str(tmp_path / "first_choices.py")]
    done = runner.invoke(app, ["check", "metric", "first_choices", *plugin])
    assert done.exit_code == 0 and done.output.splitlines()[-1] == "6 of 6 checks hold"
    text = (tmp_path / "first_choices.py").read_text()
    (tmp_path / "wrong.py").write_text(text.replace("first_choices", "worse").replace('target="retrained",', ""))
    wrong = runner.invoke(app, ["check", "metric", "worse", "--plugin", str(tmp_path / "wrong.py")])
    assert wrong.exit_code == 1 and "FAIL  title, docstring" in wrong.output
    for arguments in (["check", "metod", "npo"], ["check", "method", "np"], ["new", "methods", "mine"]):
        with pytest.raises(UserError, match="did you mean"):
            runner.invoke(app, arguments, catch_exceptions=False)
