"""Check a leaderboard against the run folders it came from."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pandas as pd

from unlearnbench.report.leaderboard import IDENTITY, read_csv, rows_as_text
from unlearnbench.report.results import Results

TOLERANCE = 1e-5  #: relative, for six significant digits


def verify(file: Path, roots: Iterable[Path]) -> list[str]:
    """What differs, one line per cell: rows that are missing, numbers that are not those of the runs or their
    samples.
    """
    results = Results.load(roots)
    problems = _against_samples(results)
    there = {tuple(row[k] for k in IDENTITY): row for row in read_csv(file)}
    made = {tuple(row[k] for k in IDENTITY): row for row in rows_as_text(results)}
    for identity in sorted(there.keys() | made.keys()):
        name = "/".join(identity)
        if identity not in made:
            problems.append(f"{name}: no run folder gives this row")
        elif identity not in there:
            problems.append(f"{name}: missing from {file.name}")
        else:
            for column, expected in made[identity].items():
                found = there[identity].get(column, "")
                if not _same(found, expected):
                    problems.append(
                        f"{name}, {column}: {found or 'empty'} in {file.name}, {expected or 'empty'} from the runs"
                    )
    return problems


def _same(a: str, b: str) -> bool:
    try:
        x, y = float(a), float(b)
    except ValueError:
        return a == b
    return abs(x - y) <= TOLERANCE * max(abs(x), abs(y), 1e-12)


def _against_samples(results: Results) -> list[str]:
    """Metrics that are means of their samples must be that."""
    problems = []
    for stage in results.of_kind("evaluate"):
        samples = stage.samples
        if samples.empty:
            continue
        means = samples.dropna(subset=["value"]).groupby("metric")["value"].mean()
        for name, value in stage.metrics.items():
            if value.value is None or value.interval is None or name not in means.index:
                continue
            mean = float(pd.to_numeric(means[name]))
            if abs(mean - value.value) > 1e-6 * max(1.0, abs(mean)):
                problems.append(f"{stage.folder.name}, {name}: {value.value} in metrics.json, {mean} from its samples")
    return problems
