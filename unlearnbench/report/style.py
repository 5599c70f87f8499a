"""One look for every plot: a colour, marker and hatch per method, the same everywhere; print-ready, readable in
grey.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

INK, MUTED, GRID = "#22272e", "#6b7280", "#d9dde3"


@dataclass(frozen=True)
class Look:
    """How a method is drawn. Colours are safe for colour-blind readers (after Okabe and Ito); shapes tell them apart
    in grey.
    """

    colour: str
    marker: str
    hatch: str


ROLES = {
    "target": Look("#6b7280", "X", "xx"),
    "retrained": Look("#111111", "*", ""),
    "base": Look("#9ca3af", "P", "++"),
}
_KNOWN = {
    "ga": Look("#D55E00", "o", "//"),
    "graddiff": Look("#E69F00", "s", "\\\\"),
    "npo": Look("#0072B2", "^", ".."),
    "npo+klr": Look("#56B4E9", "v", "--"),
    "rmu": Look("#CC79A7", "D", "||"),
    "simnpo": Look("#009E73", "<", "oo"),
    "masc": Look("#6A3D9A", "h", "**"),
}
_OTHERS = ("#8C6D31", "#17A2A2", "#B22222", "#7A9A01", "#B07AA1", "#3D5A80", "#FF9DA7", "#5F4B8B", "#A0522D", "#2E8B57")
_MARKERS, _HATCHES = "p>d8PH1234", ("/", "\\", "|", "-", "+", "x", "o", "O", ".", "*")


def look(label: str, role: str = "unlearned") -> Look:
    """The look of a row. Methods without one of their own, plug-ins among them, get one by their name, always the
    same.
    """
    if role in ROLES:
        return ROLES[role]
    if label in _KNOWN:
        return _KNOWN[label]
    number = int.from_bytes(hashlib.sha256(label.encode()).digest()[:4], "big")
    return Look(
        _OTHERS[number % len(_OTHERS)], _MARKERS[number // 16 % len(_MARKERS)], _HATCHES[number // 256 % len(_HATCHES)]
    )


@contextmanager
def styled() -> Iterator[Any]:
    """matplotlib.pyplot on the Agg backend with our settings, which end with the block."""
    import matplotlib

    matplotlib.use("Agg", force=False)
    import matplotlib.pyplot as plt

    settings: dict[Any, Any] = {
        "font.size": 9,
        "font.family": "DejaVu Sans",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.edgecolor": MUTED,
        "axes.labelcolor": INK,
        "axes.titlesize": 10,
        "axes.titleweight": "bold",
        "axes.titlelocation": "left",
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.color": GRID,
        "grid.linewidth": 0.6,
        "xtick.color": INK,
        "ytick.color": INK,
        "text.color": INK,
        "legend.frameon": False,
        "hatch.linewidth": 0.5,
        "svg.hashsalt": "unlearnbench",
        "svg.fonttype": "path",
        "figure.dpi": 100,
        "savefig.bbox": "tight",
        "savefig.facecolor": "white",
    }
    with plt.rc_context(settings):
        try:
            yield plt
        finally:
            plt.close("all")


def save(figure: Any, folder: Path, name: str) -> list[Path]:
    """Write PNG and SVG, without dates, so that the same numbers give the same files."""
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"{name}.png", folder / f"{name}.svg"]
    figure.savefig(files[0], dpi=160, metadata={"Software": None})
    figure.savefig(files[1], metadata={"Date": None, "Creator": None})
    return files
