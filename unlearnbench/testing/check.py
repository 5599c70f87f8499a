"""`unlearnbench check method NAME`: the conformance suite over one method or metric, a line per check.

The checks are the functions that the tests of the built-in methods and metrics call. In a test of your own:

    @pytest.mark.parametrize("check", method_checks("my-method"), ids=str)
    def test_conformance(check: Check) -> None:
        check.run()
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from unlearnbench.method import Method, methods
from unlearnbench.registry import Entry
from unlearnbench.testing import losses, runs
from unlearnbench.testing.variants import quick


@dataclass(frozen=True)
class Check:
    """One promise: `run` raises when it does not hold."""

    promise: str
    run: Callable[[], None] = field(repr=False, compare=False)

    def __str__(self) -> str:
        return self.promise

    def failure(self) -> str | None:
        """Why the promise does not hold, in one line; None when it does."""
        try:
            self.run()
        except Exception as error:  # whatever a plug-in raises is a failed check
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            text = "; ".join(lines[:3]) or "no reason given"
            return text if isinstance(error, AssertionError) else f"{type(error).__name__}: {text}"
        return None


def report(checks: list[Check], say: Callable[[str], None]) -> int:
    """Run checks and say a line for each; how many failed."""
    failed = 0
    for check in checks:
        reason = check.failure()
        failed += reason is not None
        say(f"ok    {check}" if reason is None else f"FAIL  {check}: {reason}")
    say(f"{len(checks) - failed} of {len(checks)} checks hold" + (f", {failed} do not" if failed else ""))
    return failed


# -- methods ---------------------------------------------------------------------------------------------------

LOSSES: dict[str, Callable[[Method], None]] = {
    "a constant added to all logits changes nothing": losses.check_shift,
    "left, right and no padding give the same losses": losses.check_padding,
    "the loss of a batch is the weighted mean over its parts": losses.check_accumulation,
    "losses and gradients are finite, and reach the policy only": losses.check_gradient,
    "the same seed gives the same losses": losses.check_repeatable,
    "a batch of one row works": losses.check_single_rows,
    "before the first step nothing diverges from the reference": losses.check_step_zero,
}


#: The invariants that a check asserts, or, where they are declared broken, asserts the break of.
BREAKABLE: dict[Callable[[Method], None], frozenset[str]] = {
    losses.check_shift: frozenset({"shift"}),
    losses.check_padding: frozenset({"padding"}),
    losses.check_accumulation: frozenset({"accumulation"}),
    runs.check_accumulation: frozenset({"padding", "accumulation"}),
}


def method_checks(name: str) -> list[Check]:
    """Everything that must hold of a registered method, with each of its protocols. `UserError` for unknown names."""
    entry = methods.get(name)
    checks = [
        Check("title, docstring, protocols and needs are declared", partial(losses.check_declaration, entry)),
        Check("values out of range are refused", lambda: losses.check_bounds(entry.build())),
        Check("the method survives JSON and pickle", lambda: losses.check_round_trip(entry.build())),
    ]
    protocols = list(entry.cls.protocols) if entry.preset_of is None else [entry.build().protocol]
    for protocol in protocols if entry.build().is_loop else []:
        suffix = f" (protocol {protocol})" if len(protocols) > 1 else ""
        broken = quick(entry, protocol=protocol).broken_invariants
        for promise, check in {**LOSSES, "batches do not change the update": runs.check_accumulation}.items():
            declared = bool(broken & BREAKABLE.get(check, frozenset()))
            line = f"a declared break shows: not so that {promise}" if declared else promise
            checks.append(Check(line + suffix, partial(_with, check, entry, protocol)))
    if entry.build().is_loop:
        checks.append(Check("another process finds the same losses", partial(check_fresh_process, entry)))
    for lora in (False, True):
        pair, what = _Pair(entry, lora), "LoRA" if lora else "all weights"
        checks.append(Check(f"{what}: two steps move the named weights and no others", pair.steps))
        checks.append(Check(f"{what}: a run killed and resumed ends with the same weights", pair.resume))
    return checks


def _with(check: Callable[[Method], None], entry: Entry, protocol: str) -> None:
    check(quick(entry, protocol=protocol))


class _Pair:
    """Two checks of one run."""

    def __init__(self, entry: Entry, lora: bool):
        self.entry, self.lora = entry, lora

    @cached_property
    def run(self) -> runs.Run:
        return self.start()

    def start(self, hooks: Any = None) -> runs.Run:
        return runs.start(quick(self.entry), lora=self.lora, hooks=hooks)

    def steps(self) -> None:
        runs.check_steps(self.run)

    def resume(self) -> None:
        runs.check_resume(self.run, self.start)


FRESH = """
import json, sys
from unlearnbench.method import methods
from unlearnbench.registry import load_plugin
from unlearnbench.testing.losses import losses_of

plugins, wanted = json.loads(sys.argv[1])
for plugin in plugins:
    load_plugin(plugin)
found = {name: losses_of(methods.get(name).cls(**values)) for name, values in wanted.items()}
print(json.dumps(found))
"""


def check_fresh_process(*entries: Entry) -> None:
    """A new process, with another hash seed, builds the methods from JSON and finds the same losses."""
    built = {entry.name: quick(entry) for entry in entries}
    plugins = sorted({entry.origin for entry in entries if not entry.built_in and Path(entry.origin).is_file()})
    wanted = {name: method.model_dump(mode="json") for name, method in built.items()}
    command = [sys.executable, "-W", "ignore", "-c", FRESH, json.dumps([plugins, wanted])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "the process died"
    found = json.loads(done.stdout.splitlines()[-1])
    for name, method in built.items():
        for part, value in losses.losses_of(method).items():
            other = found[name][part]
            same = math.isclose(value, other, rel_tol=1e-9, abs_tol=1e-11)
            assert same, f"{name}: the {part} loss is {value} here and {other} in a new process"


# -- metrics ---------------------------------------------------------------------------------------------------


def metric_checks(name: str) -> list[Check]:
    """Everything that must hold of a registered metric. `UserError` for unknown names."""
    from unlearnbench.metric import metrics
    from unlearnbench.testing import scores

    entry = metrics.get(name)
    return [Check(promise, partial(check, entry)) for promise, check in scores.CHECKS.items()]
