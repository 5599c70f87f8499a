"""One look for every plot: a colour, marker and hatch per method, the same everywhere, readable in grey."""

from __future__ import annotations

import colorsys
import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

#: the colours of text, quiet text, grid and paper: the page replaces exactly these by those of its light or dark theme
INK, MUTED, GRID, PAPER = "#22272e", "#6b7280", "#d9dde3", "#ffffff"
DPI = 144


@dataclass(frozen=True)
class Look:
    """How a row is drawn: colours that colour-blind readers can tell apart (after Okabe and Ito), shapes for grey."""

    colour: str
    marker: str
    hatch: str


ROLES = {
    "target": Look(MUTED, "X", "xx"),
    "retrained": Look(INK, "*", ""),
    "base": Look("#9ca3af", "P", "++"),
}
_KNOWN = {
    "ga": Look("#D55E00", "o", "//"),
    "graddiff": Look("#E69F00", "s", "\\\\"),
    "npo": Look("#0072B2", "^", ".."),
    "npo+klr": Look("#56B4E9", "v", "--"),
    "rmu": Look("#CC79A7", "D", "||"),
    "simnpo": Look("#009E73", "<", "oo"),
    "masc": Look("#7B4FB5", "h", "**"),
    "idk-dpo": Look("#8C6D31", "p", "/o"),
    "altpo": Look("#637939", ">", "\\o"),
    "undial": Look("#B5651D", "d", "|-"),
    "wga": Look("#C23B22", "P", "+o"),
    "satimp": Look("#E377A2", "H", "x."),
    "ceu": Look("#17859C", "X", "-o"),
    "pdu": Look("#3B3F8F", "8", "/."),
    "me": Look("#A8A400", "*", "O."),
    "whp": Look("#5C4033", "s", "\\."),
    "task-vector": Look("#7F8C8D", "^", "|."),
}
_MARKERS, _HATCHES = "p>dP8Hsov^", ("/", "\\", "|", "-", "+", "x", "o", "O", ".", "*")


def look(method: str, role: str = "unlearned") -> Look:
    """The look of a row. A method without one of its own, a plug-in's too, gets one from its name: always the same."""
    if role in ROLES:
        return ROLES[role]
    if method in _KNOWN:
        return _KNOWN[method]
    digest = hashlib.sha256(method.encode()).digest()
    red, green, blue = colorsys.hls_to_rgb(digest[0] / 256, (0.36, 0.45, 0.54)[digest[1] % 3], 0.5)
    colour = f"#{round(255 * red):02x}{round(255 * green):02x}{round(255 * blue):02x}"
    return Look(colour, _MARKERS[digest[2] % len(_MARKERS)], _HATCHES[digest[3] % len(_HATCHES)])


@contextmanager
def styled() -> Iterator[Any]:
    """matplotlib.pyplot on the Agg backend with our settings; both end with the block."""
    import matplotlib
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
        "axes.facecolor": "none",
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.color": GRID,
        "grid.linewidth": 0.6,
        "xtick.color": INK,
        "ytick.color": INK,
        "text.color": INK,
        "legend.frameon": False,
        "legend.fontsize": 8,
        "hatch.linewidth": 0.5,
        "svg.hashsalt": "unlearnbench",
        "svg.fonttype": "path",
        "figure.facecolor": PAPER,
        "savefig.bbox": "tight",
        "savefig.facecolor": PAPER,
    }
    backend = matplotlib.get_backend(auto_select=False)
    with plt.rc_context(settings):
        plt.switch_backend("Agg")
        try:
            yield plt
        finally:
            plt.close("all")
    if backend is not None:
        plt.switch_backend(backend)


def tip(artist: Any, text: str) -> None:
    """What a reader sees who points at the artist, in the SVG file and on the page."""
    tips = artist.figure.__dict__.setdefault("tips", {})
    name = f"tip{len(tips)}"
    artist.set_gid(name)
    tips[name] = text


def save(figure: Any, folder: Path, name: str) -> list[Path]:
    """Write PNG, SVG and PDF, without dates, so that the same numbers give the same files."""
    files = [folder / f"{name}.png", folder / f"{name}.svg", folder / f"{name}.pdf"]
    figure.savefig(files[0], dpi=DPI, metadata={"Software": None})
    figure.savefig(files[1], metadata={"Date": None, "Creator": None})
    figure.savefig(files[2], metadata={"CreationDate": None, "Creator": None, "Producer": None})
    files[1].write_text(
        _tidy(files[1].read_text(encoding="utf-8"), name, getattr(figure, "tips", {})), encoding="utf-8"
    )
    return files


def _tidy(svg: str, name: str, tips: dict[str, str]) -> str:
    """Tips as titles, coordinates with two decimals, and ids that stay unique when several plots share a page."""
    svg = re.sub(
        r'(<g id="(tip\d+)">)', lambda m: f"{m[1]}<title>{escape(tips[m[2]])}</title>" if m[2] in tips else m[1], svg
    )
    svg = re.sub(r' (d|x|y|points)="([^"]*)"', lambda m: f' {m[1]}="{_short(m[2])}"', svg)
    return re.sub(r'( id="|href="#|url\(#)', rf"\g<1>{name}-", svg)


def _short(numbers: str) -> str:
    return re.sub(r"-?\d+\.\d{3,}", lambda m: f"{float(m[0]):.2f}", numbers)
