"""Check a leaderboard against the run folders it claims to come from: every cell, from the row samples up."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from unlearnbench.report.leaderboard import IDENTITY, read_csv, rows_as_text
from unlearnbench.report.recompute import recomputed, same
from unlearnbench.report.results import Results

TOLERANCE = 2e-5  #: relative: six significant digits, and the last bits of another machine's arithmetic


def verify(file: Path, roots: Iterable[Path]) -> list[str]:
    """What differs, one line per cell: metrics that are not what their samples give, rows that no run gives, numbers of
    the file that are not those of the runs. Empty when all is well.

    Raises `UserError` when the file is no leaderboard or the folders hold no runs.
    """
    recorded = Results.load(roots)
    again, _ = recomputed(recorded)
    problems = [
        f"{stage.folder.name}, {name}: {value.value:.6g} in metrics.json, {found.value:.6g} from its samples"
        for stage, fresh in zip(recorded.stages, again.stages, strict=True)
        if stage.kind == "evaluate"
        for name, value in stage.metrics.items()
        if value.value is not None
        and (found := fresh.metrics[name]).value is not None
        and not same(value.value, found.value)
    ]
    there = {tuple(row[column] for column in IDENTITY): row for row in read_csv(file)}
    made = {tuple(row[column] for column in IDENTITY): row for row in rows_as_text(again)}
    for identity in sorted(there.keys() | made.keys()):
        name = " / ".join(identity)
        if identity not in made:
            problems.append(f"{name}: no run folder gives this row")
        elif identity not in there:
            problems.append(f"{name}: missing from {file.name}")
        else:
            problems += _cells(name, file.name, there[identity], made[identity])
    return problems


def _cells(name: str, file: str, there: dict[str, str], made: dict[str, str]) -> list[str]:
    columns = dict.fromkeys([*made, *there])
    return [
        f"{name}, {column}: {there.get(column) or 'empty'} in {file}, {made.get(column) or 'empty'} from the runs"
        for column in columns
        if not _equal(there.get(column, ""), made.get(column, ""))
    ]


def _equal(a: str, b: str) -> bool:
    try:
        return same(float(a), float(b), TOLERANCE)
    except ValueError:
        return a == b
