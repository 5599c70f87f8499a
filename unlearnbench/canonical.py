"""Strict JSON: one text for equal values, its hash, and files that are there whole or not at all.

NaN and infinity are no JSON: a value that cannot be computed is null with a reason beside it, so they are refused with
the place they stand at, and so is every type that JSON has no word for.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from unlearnbench.errors import UserError


def plain(value: Any, place: str = "") -> Any:
    """`value` as dicts with string keys, lists, strings, finite numbers, booleans and None.

    Raises `ValueError` for NaN and infinity and `TypeError` for anything else, both naming the place (`loss.curve[3]`).
    """
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{place or 'the value'} is {value}: write null, and the reason beside it")
        return value
    if isinstance(value, Mapping):
        for name in value:
            if not isinstance(name, str):
                raise TypeError(f"{place or 'the mapping'} has the key {name!r}, which is no string")
        return {name: plain(inner, f"{place}.{name}" if place else name) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner, f"{place}[{i}]") for i, inner in enumerate(value)]
    raise TypeError(f"{place or 'the value'} is a {type(value).__name__}, which JSON has no word for")


def canonical(value: Any) -> str:
    """One text for equal values: JSON with sorted keys and no spaces; 1.0 and 1 are the same number."""
    return json.dumps(_whole(plain(value)), sort_keys=True, separators=(",", ":"), allow_nan=False)


def key(value: Any) -> str:
    """The hash of the canonical form: 16 hex digits of its SHA-256."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()[:16]


def _whole(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _whole(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_whole(inner) for inner in value]
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 2**53 else value


def as_text(value: Any) -> str:
    """The text of a JSON file with this value."""
    return json.dumps(plain(value), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def write_json(path: str | Path, value: Any) -> None:
    """Write strict JSON: whoever looks, even after a kill or a power cut, sees the old file or the whole new one."""
    path = Path(path)
    text = as_text(value)
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def read_json(path: str | Path) -> Any:
    """Read strict JSON. Raises `UserError` when the file is missing, empty, cut off, or holds NaN or a key twice."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"), parse_constant=_no_constant, object_pairs_hook=_once)
    except FileNotFoundError:
        raise UserError(f"There is no file {path}.") from None
    except (ValueError, OSError) as error:
        raise UserError(f"{path} is not strict JSON: {error}") from error


def _no_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is no number")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key '{next(n for n in names if names.count(n) > 1)}' is there twice")
    return content


def file_hash(path: str | Path) -> str:
    """The SHA-256 of a file's bytes, in hex."""
    digest = hashlib.sha256()
    with Path(path).open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
