"""Read YAML without surprises, and remember the lines.

YAML 1.2 core rules, and stricter: `1e-3` is a number; `NO`, `on`, `010`, `1_000` and `12:30` are words, so that a typed
field refuses them instead of getting a changed value. A key given twice is an error, and so is `None`, which would
be a word where null is meant.
"""

from __future__ import annotations

import math
import re
from typing import Any

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from unlearnbench.errors import UserError

Path = tuple[str | int, ...]
_INT = re.compile(r"[-+]?(0|[1-9][0-9]*)$")
_FLOAT = re.compile(r"[-+]?(0|[1-9][0-9]*)?(\.[0-9]+|\.)?([eE][-+]?[0-9]+)?$")
_WORDS = {"true": True, "True": True, "false": False, "False": False, "null": None, "~": None, "": None}


def scalar(text: str) -> Any:
    """The value of an unquoted YAML scalar."""
    if text in _WORDS:
        return _WORDS[text]
    if _INT.match(text):
        return int(text)
    if _FLOAT.match(text) and any(c.isdigit() for c in text):
        return float(text)
    if text in (".inf", "-.inf", ".nan"):
        return math.nan if text == ".nan" else math.copysign(math.inf, -1 if text[0] == "-" else 1)
    return text


def read(text: str, name: str) -> tuple[Any, dict[Path, int]]:
    """The content of a YAML text and the line of each path in it. Raises `UserError` with name and line."""
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise UserError(f"{name}:{line}: not YAML: {error.problem}") from error
    except yaml.YAMLError as error:
        raise UserError(f"{name}: not YAML: {' '.join(str(error).split())}") from error
    lines: dict[Path, int] = {}
    try:
        return (None if node is None else _value(node, (), lines, name)), lines
    except RecursionError:
        raise UserError(f"{name}: not YAML: something in it contains itself") from None


def _value(node: Node, path: Path, lines: dict[Path, int], name: str) -> Any:
    lines.setdefault(path, node.start_mark.line + 1)
    if isinstance(node, ScalarNode):
        if node.style is None and node.value == "None":
            line = node.start_mark.line + 1
            raise UserError(f'{name}:{line}: None is a word in YAML: write null, or "None" in quotes for the word')
        return scalar(node.value) if node.style is None else node.value
    if isinstance(node, SequenceNode):
        return [_value(child, (*path, i), lines, name) for i, child in enumerate(node.value)]
    assert isinstance(node, MappingNode)
    content: dict[str, Any] = {}
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        if not isinstance(key_node, ScalarNode):
            raise UserError(f"{name}:{line}: a key must be a word")
        key = key_node.value
        if key in content:
            raise UserError(f"{name}:{line}: the key '{key}' is given twice (first on line {lines[(*path, key)]})")
        lines[(*path, key)] = line
        content[key] = _value(value_node, (*path, key), lines, name)
    return content
