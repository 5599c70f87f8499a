"""Rows from files: JSON lines, a JSON list, or plain text. Every mistake with its file and line."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from unlearnbench.errors import SeveralErrors, UserError, nearest

SHOWN = 10  #: mistakes shown of one file


class Line(NamedTuple):
    """A mapping, and where it stands."""

    content: dict[str, Any]
    place: str


def read(path: str | Path) -> list[Line]:
    """The mappings of a file: `.jsonl`, or `.json` with a list or with one mapping a line (as on the Hub).

    A list of strings (as in MUSE's files) gives mappings with the key `text`. Raises `UserError` with file and line.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise UserError(f"There is no file {path}{_near(path)}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read as UTF-8 text: {error}") from error
    if path.suffix == ".txt":
        return [Line({"text": text}, f"{path}:1")]
    if text.lstrip().startswith("["):
        return _listed(path, text)
    lines, errors = [], []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        place = f"{path}:{number}"
        try:
            content = json.loads(line)
        except json.JSONDecodeError as error:
            errors.append(f"{place}: no JSON: {error.msg} at column {error.colno}")
            continue
        if isinstance(content, dict):
            lines.append(Line(content, place))
        else:
            errors.append(f"{place}: a row is a JSON object in braces, not {_kind(content)}")
    fail(errors)
    if not lines:
        raise UserError(f"{path} has no rows.")
    return lines


def each(lines: Iterable[Line], make: Callable[[Line], Any]) -> list[Any]:
    """`make` of every line; the `UserError`s of all lines are raised together."""
    made, errors = [], []
    for line in lines:
        try:
            made.append(make(line))
        except UserError as error:
            errors.append(f"{line.place}: {error}")
    fail(errors)
    return made


def text_of(line: Line, key: str) -> str:
    """The text under a key. Raises `UserError` when it is missing, no text, or blank."""
    if key not in line.content:
        close = nearest(key, line.content)
        raise UserError(f"the key '{key}' is missing" + (f" (is it '{close}'?)" if close else ""))
    value = line.content[key]
    if not isinstance(value, str):
        raise UserError(f"'{key}' must be text, got {_kind(value)}")
    if not value.strip():
        raise UserError(f"'{key}' is empty")
    return value


def texts_of(line: Line, key: str) -> tuple[str, ...]:
    """A list of texts under a key; () when the key is missing. Raises `UserError` for anything else."""
    value = line.content.get(key, [])
    if not isinstance(value, list) or not all(isinstance(item, str) and item.strip() for item in value):
        raise UserError(f"'{key}' must be a list of texts, got {_kind(value)}")
    return tuple(value)


def fail(errors: Sequence[str]) -> None:
    """Raise the first `SHOWN` of the errors together, if there are any."""
    if errors:
        more = [f"… and {len(errors) - SHOWN} more"] if len(errors) > SHOWN else []
        raise SeveralErrors([*errors[:SHOWN], *more])


def _listed(path: Path, text: str) -> list[Line]:
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        raise UserError(f"{path}:{error.lineno}: no JSON: {error.msg} at column {error.colno}") from None
    rows = [{"text": item} if isinstance(item, str) else item for item in content]
    errors = [
        f"{path}: row {i} is no JSON object but {_kind(row)}"
        for i, row in enumerate(rows, 1)
        if not isinstance(row, dict)
    ]
    fail(errors)
    if not rows:
        raise UserError(f"{path} has no rows.")
    return [Line(row, f"{path}: row {i}") for i, row in enumerate(rows, 1)]


def _near(path: Path) -> str:
    there = [file.name for file in path.parent.iterdir()] if path.parent.is_dir() else []
    close = nearest(path.name, there)
    return f"; did you mean {close}?" if close else "."


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number" if isinstance(value, int | float) else type(value).__name__)
