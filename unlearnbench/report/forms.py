"""The forms of a table as text: GitHub Markdown, LaTeX, the terminal."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rich.console import Group as Renderables
from rich.table import Table as RichTable
from rich.text import Text

from unlearnbench.report.tables import Grid


def markdown(grid: Grid) -> str:
    """GitHub Markdown."""
    words = words_in(grid)
    rule = ["---" if i in words else "---:" for i in range(len(grid.heads))]
    lines = [f"**{grid.title}**", "", _bar(grid.heads), _bar(rule), *[_bar(row) for row in grid.rows]]
    return "\n".join([*lines, "", *[f"{_plain(note)}\n" for note in grid.notes]]).rstrip() + "\n"


def _bar(cells: Sequence[str]) -> str:
    return "| " + " | ".join(_plain(cell) for cell in cells) + " |"


def _plain(text: str) -> str:
    """Text that Markdown shows as it is: no table, emphasis or HTML in it."""
    return re.sub(r"([\\|*_<`])", r"\\\1", text.replace("\n", " "))


_TEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "_": r"\_", "#": r"\#", "$": r"\$", "{": r"\{", "}": r"\}",
    "±": r"$\pm$", "↑": r"$\uparrow$", "↓": r"$\downarrow$", "≈": r"$\approx$", "<": "$<$", ">": "$>$", "[": "{[}",
    "]": "{]}", "*": "$^*$", "^": r"\^{}", "~": r"\~{}",
}  # fmt: skip


def tex(grid: Grid) -> str:
    """A booktabs table; the notes are comments above it."""

    def clean(text: str) -> str:
        return "".join(_TEX.get(c, c) for c in text.replace("\n", " "))

    words = words_in(grid)
    columns = "".join("l" if i in words else "r" for i in range(len(grid.heads)))
    return "\n".join(
        [
            *[f"% {note}" for note in [grid.title, *grid.notes]],
            rf"\begin{{tabular}}{{{columns}}}",
            r"\toprule",
            " & ".join(map(clean, grid.heads)) + r" \\",
            r"\midrule",
            *[" & ".join(map(clean, row)) + r" \\" for row in grid.rows],
            r"\bottomrule",
            r"\end{tabular}",
            "",
        ]
    )


def rich(grid: Grid, width: int) -> Renderables:
    """For a terminal of `width` characters: spreads are left out where they do not fit, then columns move below."""
    rows = [list(row) for row in grid.rows]
    notes = list(grid.notes)
    if _width(grid.heads, rows) > width:
        short = [[cell if i < 3 else cell.split(" ±")[0] for i, cell in enumerate(row)] for row in rows]
        if short != rows:
            rows, notes = short, [*notes, "Spreads do not fit here: they are in table.md and report.html."]
    drawn: list[Text | RichTable] = [Text(grid.title, style="bold")]
    for columns in _parts(grid.heads, rows, width):
        table = RichTable(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for i in columns:
            table.add_column(
                Text(grid.heads[i]), justify="left" if i < 2 else "right", width=_column(grid.heads, rows, i)
            )
        for row in rows:
            style = "bold" if row[0] in ("1", "T1") else ""
            table.add_row(*[Text(row[i], style=style) for i in columns])
        drawn += [table, Text("")]
    return Renderables(*drawn, *[Text(note, style="dim") for note in notes])


def words_in(grid: Grid) -> set[int]:
    """Columns of words, which stand on the left; numbers stand on the right."""
    columns = zip(*grid.rows, strict=True) if grid.rows else ()
    return {
        i for i, cells in enumerate(columns) if any(re.match(r"[^\W\d]", cell) and cell != "null" for cell in cells)
    }


def _column(heads: Sequence[str], rows: Sequence[Sequence[str]], i: int) -> int:
    """The characters a column needs; heads may break between words."""
    return max([len(word) for word in heads[i].split()] + [len(row[i]) for row in rows] + [1])


def _width(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    return sum(_column(heads, rows, i) + 2 for i in range(len(heads)))


def _parts(heads: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> list[list[int]]:
    """Columns side by side; what does not fit goes below, with the method's name in front again."""
    parts, current = [], [0, 1]
    used = sum(_column(heads, rows, i) + 2 for i in current)
    for i in range(2, len(heads)):
        needed = _column(heads, rows, i) + 2
        if used + needed > width and len(current) > 2:
            parts.append(current)
            current, used = [1], _column(heads, rows, 1) + 2
        current.append(i)
        used += needed
    return [*parts, current]
