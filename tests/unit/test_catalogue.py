"""What `show` and the pages say of a setting: default, bounds in words, meaning and source."""

from __future__ import annotations

from typing import Literal

import pytest
from pydantic import BaseModel, Field

from unlearnbench.catalogue import settings_of
from unlearnbench.method import Method, hyper, methods
from unlearnbench.metric import metrics
from unlearnbench.registry import Entry, Registry
from unlearnbench.stopping import stop_rules

BUILT_IN = [entry for registry in (methods, metrics, stop_rules) for entry in registry if entry.built_in]


class Example(BaseModel):
    share: float = Field(0.5, gt=0, lt=1, description="a share")
    count: int | None = Field(None, ge=1)
    limit: float | Literal["holdout"] = 0.4
    kind: Literal["a", "b"] = "a"
    cut: tuple[float, float] | None = (0.2, 0.6)
    on: bool = True
    rule: dict[str, float] = {"alpha": 0.1}
    text: str = ""


def test_defaults_and_bounds_in_words() -> None:
    entry = Entry("example", Example, "Example", 1, "here", {"kind": "b"})
    found = {setting.name: (setting.default, setting.allowed) for setting in settings_of(entry)}
    assert found == {
        "share": ("0.5", "> 0 and < 1"),
        "count": ("null", "whole, ≥ 1 or null"),
        "limit": ("0.4", "number or holdout"),
        "kind": ("b", "a, b"),
        "cut": ("[0.2, 0.6]", "2 numbers or null"),
        "on": ("true", "true, false"),
        "rule": ("{alpha: 0.1}", "settings"),
        "text": ('""', "text"),
    }
    assert settings_of(entry)[0].meaning == "a share"


def test_a_preset_shows_its_own_values_and_a_subclass_inherits_the_meaning() -> None:
    registry = Registry("thing", package="unlearnbench.stopping")
    registry._loaded = True

    @registry.register("mine")
    class Mine(Method):
        forget_weight: float = hyper(0.3, ge=0, source="a guess")

    registry.preset("mine+kl", of="mine", retain="kl")
    found = {setting.name: setting for setting in settings_of(registry.get("mine+kl"))}
    assert found["retain"].default == "kl" and found["retain"].source == "preset mine+kl"
    assert found["forget_weight"].default == "0.3" and found["forget_weight"].source == "a guess"
    assert found["forget_weight"].meaning == "factor of the forget loss"


@pytest.mark.parametrize("entry", BUILT_IN, ids=lambda entry: entry.name)
def test_every_setting_has_a_readable_default_and_range(entry: Entry) -> None:
    for setting in settings_of(entry):
        assert setting.default and setting.allowed, setting
        assert "PydanticUndefined" not in setting.default
        assert setting.allowed != "value", f"'{setting.name}' has a type that `catalogue` does not describe"


@pytest.mark.parametrize("entry", BUILT_IN, ids=lambda entry: entry.name)
def test_every_setting_has_a_meaning_and_those_of_methods_a_source(entry: Entry) -> None:
    for setting in settings_of(entry):
        assert setting.meaning, setting
        assert setting.source or not issubclass(entry.cls, Method), setting
