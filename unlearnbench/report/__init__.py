"""Tables, plots, the leaderboard and the page, from run folders alone: no model, no GPU, no torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import RenderableType

from unlearnbench.claims import Claim
from unlearnbench.report.board import write_board
from unlearnbench.report.catalogue import PLOTS, TABLES, check_names
from unlearnbench.report.leaderboard import leaderboard, write_csv
from unlearnbench.report.results import Results
from unlearnbench.report.sanity import Check, sanity
from unlearnbench.report.verdicts import Finding, find, lines
from unlearnbench.report.verify import verify
from unlearnbench.schema import PublishedSettings

__all__ = [
    "PLOTS",
    "TABLES",
    "Check",
    "Finding",
    "Results",
    "check_names",
    "find",
    "leaderboard",
    "lines",
    "sanity",
    "terminal",
    "verify",
    "write",
    "write_board",
    "write_csv",
]


def write(
    results: Results,
    out: Path,
    title: str,
    tables: Sequence[str] = ("main", "cost"),
    plots: Sequence[str] = tuple(PLOTS),
    published: PublishedSettings | None = None,
    claims: Sequence[Claim] = (),
) -> None:
    """Write `leaderboard.csv`, `table.md`, `table.tex`, the plots (PNG, SVG and PDF) and `report.html` into `out`.

    With `published`, tables show the printed numbers beside the measured ones; with `claims`, there are their verdicts,
    also as `claims.csv`. Raises `UserError` for results of different versions or protocols, and for unknown tables or
    plots.
    """
    from unlearnbench.report import printed, standings, verdicts
    from unlearnbench.report.forms import markdown, tex
    from unlearnbench.report.page import render
    from unlearnbench.report.plots import ACROSS, DRAW
    from unlearnbench.report.style import save, styled
    from unlearnbench.report.tables import GRIDS

    check_names(tables, plots)
    results.refuse_mixtures()
    out.mkdir(parents=True, exist_ok=True)
    found = standings.tables(results)
    write_csv(results, out / "leaderboard.csv")
    grids = [GRIDS[name](table) for table in found for name in tables]
    beside = [printed.compared(table, published) for table in found]
    grids += beside
    judged = verdicts.find(results, claims, published)
    if judged:
        verdicts.write_csv(judged, out / "claims.csv")
        grids.append(verdicts.grid(judged))
    (out / "table.md").write_text("\n".join(markdown(grid) for grid in grids if grid.rows), encoding="utf-8")
    (out / "table.tex").write_text("\n".join(tex(grid) for grid in grids if grid.rows), encoding="utf-8")
    drawn: dict[int, dict[str, Path]] = {}
    with styled() as plt:
        for number, table in enumerate(found):
            suffix = "" if number == 0 else f"-{number + 1}"
            for name in plots:
                if name in DRAW:
                    figure = DRAW[name](table, plt)
                else:
                    figure = ACROSS[name](found, published, plt) if number == 0 else None
                if figure is not None:
                    drawn.setdefault(number, {})[name] = save(figure, out, f"{name}{suffix}")[1]
                    plt.close(figure)
    (out / "report.html").write_text(render(results, found, title, drawn, beside, judged), encoding="utf-8")


def terminal(results: Results, width: int = 100) -> RenderableType:
    """The main table for a terminal of `width` characters."""
    from rich.console import Group

    from unlearnbench.report import standings
    from unlearnbench.report.forms import rich
    from unlearnbench.report.tables import main

    return Group(*[rich(main(table), width) for table in standings.tables(results)])
