"""Every registered method, preset and protocol holds what its losses promise, or declares the break.

A new method is found here by itself. Those whose loss compares with the reference must say what it is before the first
step (`AT_STEP_ZERO`).
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.variants import MORE
from unlearnbench.method import RETAIN, Method, methods
from unlearnbench.registry import Entry
from unlearnbench.testing import losses
from unlearnbench.testing.variants import variants

#: The forget loss before the first step, where policy and reference agree; None: the formula does not fix it.
TWO_LOG_TWO: Callable[[Any], float] = lambda method: 2 / method.beta * math.log(2)  # noqa: E731
AT_STEP_ZERO: dict[str, Callable[[Any], float] | None] = {
    "npo": TWO_LOG_TWO,
    "dpo": TWO_LOG_TWO,
    "undial": None,
    "masc": None,
    "ga": None,
    "rmu": None,
}


def everything() -> list[Any]:
    """Each class with each of its protocols, each preset, each retain regulariser, and further settings."""
    found = [pytest.param(method, id=name) for name, method in variants()]
    for name, settings in MORE.items():
        for values in settings:
            label = ",".join(f"{k}={v}" for k, v in values.items())
            found.append(pytest.param(methods.get(name).build(**values), id=f"{name}-{label}"))
    npo = methods.get("npo")
    found += [pytest.param(npo.build(retain=retain), id=f"npo-retain-{retain}") for retain in RETAIN]
    return found


VARIANTS = everything()


def test_the_field_is_here() -> None:
    """The published seven, the rest of OpenUnlearning's, and the combinations that papers call by a name."""
    seven = {"ga", "graddiff", "npo", "npo+klr", "rmu", "simnpo", "masc"}
    others = {"dpo", "idk-dpo", "altpo", "undial", "wga", "satimp", "ceu", "pdu", "me", "whp", "task-vector"}
    combined = {"ga+klr", "npo+gdr", "graddiff+kl", "me+gd", "masc@tofu", "masc@muse-news", "masc@qwen-scaling"}
    assert seven | others | combined <= set(methods.names())


@pytest.mark.parametrize("check", losses.LOSS_CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("method", VARIANTS)
def test_invariants(method: Method, check: Callable[[Method], None]) -> None:
    """B26, B27: log-probabilities and not raw logits, in losses and gradients of every method, but where declared."""
    check(method)


@pytest.mark.parametrize("method", VARIANTS)
def test_step_zero(method: Method) -> None:
    name = method.registered_name
    if (
        method.protocol_needs.get(method.protocol, method.needs) & {"reference", "reference_nll"}
    ) or name in AT_STEP_ZERO:
        assert name in AT_STEP_ZERO, f"say what the forget loss of '{name}' is when policy and reference agree"
    losses.check_step_zero(method, AT_STEP_ZERO.get(name))


@pytest.mark.parametrize("check", losses.VALUE_CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("entry", list(methods), ids=lambda entry: entry.name)
def test_hyper_parameters(entry: Entry, check: Callable[[Method], None]) -> None:
    check(entry.build())


@pytest.mark.parametrize("entry", list(methods), ids=lambda entry: entry.name)
def test_declaration(entry: Entry) -> None:
    losses.check_declaration(entry)


@pytest.mark.parametrize("entry", list(methods), ids=lambda entry: entry.name)
def test_what_a_reader_is_told(entry: Entry) -> None:
    """The file says what the method is, gives its equation and what differs from the reference code; it stays short."""
    module = importlib.import_module(entry.cls.__module__)
    text = module.__doc__ or ""
    assert "arXiv:" in text and "Differences from the reference code:" in text
    assert entry.meta["paper"].startswith("arXiv:") and entry.meta["paper"] in text
    assert entry.cls.__doc__ and entry.title
    assert "ours" in entry.cls.protocols and set(entry.cls.breaks) <= set(entry.cls.protocols)
    lines = Path(str(module.__file__)).read_text(encoding="utf-8").splitlines()
    assert len(lines) <= (200 if entry.cls.registered_name == "masc" else 120)


def test_at_step_zero_the_forget_kl_adds_nothing() -> None:
    ours, with_kl = (losses.Stage(methods.get("ga").build(protocol=p), twins=True) for p in ("ours", "forget-kl"))
    torch.testing.assert_close(ours.loss("forget"), with_kl.loss("forget"))


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("npo", {"retain_weight": 0.5}, "retain_weight has no effect with `retain: none`"),
        ("npo", {"layer": 3}, "layer has no effect"),
        ("simnpo", {"protocol": "wmdp", "delta": 1.0}, "delta has no effect"),
        ("dpo", {"temperature": 2.0}, "temperature has no effect"),
        ("masc", {"softness": 2.0}, "softness has no effect"),
        ("masc", {"cut": (0.5, 0.5), "cuts": "fixed"}, "cuts has no effect"),
        ("pdu", {"primal_dual": False, "dual_step": 2.0}, "dual_step has no effect"),
        ("masc", {"cut": None, "min_prefix": 3}, "min_prefix has no effect"),
        ("masc", {"rho": 0.5, "tau": 1.0}, "either rho or tau"),
        ("masc", {"cut": (0.7, 0.2)}, "two ratios"),
        ("pdu", {"epsilon": 0.1, "tolerance": 0.5}, "tolerance has no effect"),
        ("pdu", {"retain": "none"}, "constraint"),
        ("pdu", {"retain": "kl"}, "epsilon must be given"),
        ("task-vector", {"retain": "nll"}, "retain has no effect"),
        ("npo", {"protocol": "mus"}, "did you mean 'muse'"),
        ("rmu", {"layer": 1.5}, "a block is named by"),
        ("npo", {"stop": {"rule": "violation", "alfa": 1}}, "alfa"),
        ("npo", {"stop": {"rule": "forget-prob", "below": 3}}, "below"),
    ],
)
def test_knobs_without_effect_or_out_of_range_are_refused(name: str, values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        methods.get(name).build(**values)
