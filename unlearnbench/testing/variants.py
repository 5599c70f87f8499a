"""Methods to check: every registered name with every protocol, and quick settings of methods that prepare much."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from unlearnbench.method import Method, methods
from unlearnbench.registry import Entry

#: Less of what takes long and changes nothing that is checked: passes of further training, sampled tokens.
QUICK: dict[str, Any] = {"epochs": 2, "max_new_tokens": 6, "per_row": 2}


def quick(entry: Entry, **values: Any) -> Method:
    """The method with `values`, and with `QUICK` settings where it has them and they have an effect."""
    method: Method = entry.build(**values)
    for name, value in QUICK.items():
        if name in type(method).model_fields and name not in values and getattr(method, name) > value:
            try:
                method = type(method)(**{**method.model_dump(exclude_unset=True), name: value})
            except ValueError:  # it has no effect with these settings
                continue
    return method


def variants() -> Iterator[tuple[str, Method]]:
    """(name-protocol, method) of every registered method that is a loop, presets with their own protocol only."""
    for entry in methods:
        if entry.build().is_loop:
            for protocol in entry.cls.protocols if entry.preset_of is None else [entry.build().protocol]:
                yield f"{entry.name}-{protocol}", quick(entry, protocol=protocol)
