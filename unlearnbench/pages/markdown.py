"""Docstrings and values as Markdown."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Sequence

_CODE = re.compile(r"(`[^`]*`)")


def document(*parts: str) -> str:
    """Blocks with an empty line between them; empty ones are left out."""
    return "\n\n".join(part.strip("\n") for part in parts if part.strip()) + "\n"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table, or nothing when it has no row."""
    lines = [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows]
    if not lines:
        return ""
    return "\n".join([f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}", *lines])


def code(text: str, language: str = "text") -> str:
    """A block that is shown as it is."""
    return f"```{language}\n{text.rstrip()}\n```"


def names(items: Iterable[str]) -> str:
    """Names in code type, with commas; a dash when there is none."""
    return ", ".join(f"`{item}`" for item in items) or "–"


def blocks(thing: object) -> list[str]:
    """The blocks of a docstring, separated by empty lines; a block whose lines are all indented is an equation."""
    return [block for block in re.split(r"\n\s*\n", inspect.getdoc(thing) or "") if block.strip()]


def prose(block: str) -> str:
    """A block of a docstring as Markdown: equations as code, links to arXiv, nothing taken for HTML."""
    if is_equation(block):
        return code("\n".join(line[4:] for line in block.splitlines()))
    parts = _CODE.split(" ".join(block.split()) if not _is_list(block) else block)
    return "".join(part if part.startswith("`") else _escaped(part) for part in parts)


def sentence(text: str) -> str:
    """The text with a capital at the beginning and a full stop at the end."""
    text = text.strip()
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", ":", "!", "?")) else ".")


def is_equation(block: str) -> bool:
    """Whether a block stands indented, as equations do."""
    return all(line.startswith("    ") for line in block.splitlines())


def _is_list(block: str) -> bool:
    return any(line.startswith("- ") for line in block.splitlines())


def _escaped(text: str) -> str:
    text = text.replace("<", "&lt;")
    return re.sub(r"arXiv:(\d{4}\.\d{5})", r"[arXiv:\1](https://arxiv.org/abs/\1)", text)
