"""The leaderboard in all its forms: CSV to verify, Markdown and LaTeX to paste, a page to sort, filter and point at."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from unlearnbench.errors import UserError
from unlearnbench.report.catalogue import ARROWS, decimals, headline, title
from unlearnbench.report.forms import markdown, tex
from unlearnbench.report.leaderboard import write_csv
from unlearnbench.report.results import Results
from unlearnbench.report.standings import Standing, Table, tables
from unlearnbench.report.tables import Grid, number, place


def write_board(results: Results, out: Path) -> list[Path]:
    """Write `out` (a CSV) and beside it `.md`, `.tex` and `.html` of the same name; the files.

    Raises `UserError` for a name that does not end in .csv, and for results of different versions or protocols.
    """
    from unlearnbench.report.page import board
    from unlearnbench.report.plots import DRAW
    from unlearnbench.report.style import save, styled

    if out.suffix != ".csv":
        raise UserError(f"--out names the CSV file, for instance leaderboard.csv; got {out}.")
    results.refuse_mixtures()
    found = tables(results)
    grid = merged(found)
    write_csv(results, out)
    files = [out, *(out.with_suffix(ending) for ending in (".md", ".tex", ".html"))]
    files[1].write_text(markdown(grid), encoding="utf-8")
    files[2].write_text(tex(grid), encoding="utf-8")
    with TemporaryDirectory() as folder, styled() as plt:
        drawn = {}
        for i, table in enumerate(found):
            figure = DRAW["tradeoff"](table, plt)
            if figure is not None:
                drawn[i] = save(figure, Path(folder), f"tradeoff{i}")[1]
                plt.close(figure)
        files[3].write_text(board(grid, found, drawn), encoding="utf-8")
    return files


def merged(found: Sequence[Table]) -> Grid:
    """All comparisons as one table; ranks and scores hold within a comparison only."""
    names = list(dict.fromkeys(name for table in found for name in headline(table.group.metric_names)))
    shown = [(table, row) for table in found for row in table.rows if row.arm.role != "base"]
    arrows = {}
    for name in names:
        metric = next((m for table in found if (m := table.group.metric(name)) is not None), None)
        arrows[name] = ARROWS.get(metric.direction, "") if metric else ""
    heads = ["place", "method", "benchmark", "model", "protocol", "attack", "seeds", "score ↓"]
    heads += [f"{title(name)} {arrows[name]}".strip() for name in names]
    heads += ["seconds", "steps", "GFLOP", "machine", "provenance"]
    rows = [tuple(_cells(table, row, names)) for table, row in shown]
    note = (
        "A place (rank, or tier below five seeds) and a score hold among the rows of one benchmark, model, protocol "
        "and attack. *: on the Pareto front. ±: half the 95 % interval, or half the range below five seeds. Seconds of "
        "different machines do not compare."
    )
    words = f"{len(rows)} rows of {len(found)} comparisons"
    return Grid(words, tuple(heads), tuple(rows), (note,), tuple(row.arm.label for _, row in shown))


def _cells(table: Table, row: Standing, names: Sequence[str]) -> list[str]:
    key, unlearned = table.group.key, row.arm.role == "unlearned"
    cells = [
        place(row),
        row.arm.title + ("*" if row.pareto else ""),
        key.benchmark,
        key.model,
        key.protocol,
        key.attack,
    ]
    cells += [str(len(row.arm.seeds)), number(row.score, 2)]
    cells += [number(row.metrics[n], decimals(n)) if n in row.metrics else "" for n in names]
    total, counts = row.cost.seconds.get("total"), row.cost.counts
    cells.append(number(total, 1) if unlearned and total is not None else "")
    for name, unit, digits in (("steps", 1.0, 0), ("flops", 1e9, 1)):
        mean = counts[name].mean if name in counts else None
        cells.append(f"{mean / unit:.{digits}f}" if unlearned and mean is not None else "")
    return [*cells, row.cost.hardware if unlearned else "", row.provenance]
