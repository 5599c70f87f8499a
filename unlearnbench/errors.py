"""The errors a user may see: one line each, exit code 2, never a traceback."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """Something the user can mend: what is wrong, where, what was allowed and what is nearest."""


class SeveralErrors(UserError):
    """Several mistakes in one input, reported together, one line each."""

    def __init__(self, messages: Iterable[str]):
        self.messages = list(messages)
        super().__init__("\n".join(self.messages))


def nearest(word: str, allowed: Iterable[str]) -> str | None:
    """The allowed word closest to `word`, or None when nothing is near."""
    options = list(allowed)
    folded = {option.lower().replace("-", "_"): option for option in options}
    hits = difflib.get_close_matches(word.lower().replace("-", "_"), folded, n=1, cutoff=0.5)
    return folded[hits[0]] if hits else None


def did_you_mean(word: str, allowed: Iterable[str], limit: int = 12) -> str:
    """The tail of an error line: the nearest allowed word, and the allowed words when they are few."""
    options = sorted(allowed)
    hint = nearest(word, options)
    listing = ", ".join(options[:limit]) + (", …" if len(options) > limit else "")
    return (f"did you mean '{hint}'? " if hint else "") + f"Allowed: {listing}."
