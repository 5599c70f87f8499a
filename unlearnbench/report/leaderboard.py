"""The leaderboard: one row per arm, every number with its spread, as a DataFrame and as a CSV that can be verified."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unlearnbench.errors import UserError
from unlearnbench.report.results import PHASES, Results
from unlearnbench.report.standings import Standing, Summary, Table, tables
from unlearnbench.statistics import MIN_SEEDS

if TYPE_CHECKING:
    import pandas as pd

IDENTITY = ("benchmark", "model", "protocol", "attack", "label")  #: what names a row
_FIRST = ("rank", "tier", "label", "method", "title", "version", "role", *IDENTITY[:4], "seeds", "complete", "spread")
_SCORE = ("score", "score_low", "score_high", "forget_distance", "utility_distance")
_FLAGS = ("pareto", "oracle", "unranked")
_COUNTS = ("steps", "tokens", "flops", "peak_memory_bytes")
_LAST = ("hardware", "compared_with", "notes", "provenance")
DIGITS = 6  #: significant digits in the CSV


def leaderboard(results: Results) -> pd.DataFrame:
    """One row per arm.

    Columns: who (`label`, `method`, `version`, `benchmark`, …), `complete` ("2 of 3" seeds), `spread` ("95% interval
    of rows" of a single seed, "range" below five seeds, else "95% interval"), the score with its parts (`d_<metric>`),
    `pareto`, `oracle`, `unranked` (why a method has no place), each metric as `<metric>`, `_low`, `_high` and `_n`
    (seeds in the mean), and the cost.
    """
    import pandas as pd

    columns, rows = _cells(results)
    return pd.DataFrame(rows, columns=columns)


def write_csv(results: Results, file: Path) -> None:
    """Write the leaderboard: UTF-8, empty cells for nulls, six significant digits, `true` and `false`."""
    columns, rows = _cells(results)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_text(row.get(column)) for column in columns] for row in rows)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text.getvalue(), encoding="utf-8")


def _cells(results: Results) -> tuple[list[str], list[dict[str, Any]]]:
    found = tables(results)
    rows = [_row(table, row) for table in found for row in table.rows]
    return _columns(found, rows), rows


def _columns(found: Sequence[Table], rows: Sequence[dict[str, Any]]) -> list[str]:
    metrics = dict.fromkeys(name for table in found for name in table.group.metric_names)
    scored = dict.fromkeys(name for table in found for names in table.scored.values() for name in names)
    seconds = dict.fromkeys(key for row in rows for key in row if key.startswith("seconds_"))
    order = [
        *_FIRST,
        *_SCORE,
        *(f"d_{name}" for name in scored),
        *_FLAGS,
        *(column for name in metrics for column in _spread(name)),
        *sorted(seconds, key=_phase_order),
        *_COUNTS,
        *_LAST,
    ]
    return list(dict.fromkeys(order))


def _phase_order(column: str) -> tuple[int, str]:
    phases = ("seconds_total", "seconds_total_low", "seconds_total_high", *(f"seconds_{phase}" for phase in PHASES))
    return (phases.index(column) if column in phases else len(phases), column)


def _spread(name: str) -> tuple[str, ...]:
    return name, f"{name}_low", f"{name}_high", f"{name}_n"


def _row(table: Table, row: Standing) -> dict[str, Any]:
    arm, key = row.arm, row.group.key
    done = sum(run.status == "complete" for run in arm.runs.values())
    cells: dict[str, Any] = {
        "rank": row.rank,
        "tier": row.tier,
        "label": arm.label,
        "method": arm.method,
        "title": arm.title,
        "version": arm.version,
        "role": arm.role,
        "benchmark": key.benchmark,
        "model": key.model,
        "protocol": key.protocol,
        "attack": key.attack,
        "seeds": " ".join(map(str, arm.seeds)),
        "complete": f"{done} of {len(arm.seeds)}",
        "spread": "95% interval" if done >= MIN_SEEDS else "range" if len(arm.runs) > 1 else "95% interval of rows",
        "score": row.score.mean,
        "score_low": row.score.low,
        "score_high": row.score.high,
        "forget_distance": row.sides["forget"].mean,
        "utility_distance": row.sides["utility"].mean,
        "pareto": row.pareto if arm.role == "unlearned" else None,
        "oracle": arm.oracle,
        "unranked": row.unranked,
        "hardware": row.cost.hardware,
        "compared_with": ", ".join(f"{role} without attack" for role in row.group.borrowed),
        "notes": "; ".join(row.notes),
        "provenance": row.provenance,
    }
    for names in table.scored.values():
        cells.update({f"d_{name}": row.scores.mean(name) for name in names})
    for name, summary in row.metrics.items():
        cells.update(zip(_spread(name), _numbers(summary), strict=True))
    for phase, summary in row.cost.seconds.items():
        cells[f"seconds_{phase}"] = summary.mean
        if phase == "total":
            cells.update(seconds_total_low=summary.low, seconds_total_high=summary.high)
    cells.update({name: summary.mean for name, summary in row.cost.counts.items()})
    return cells


def _numbers(summary: Summary) -> tuple[float | None, float | None, float | None, int]:
    return summary.mean, summary.low, summary.high, summary.n


def _text(cell: Any) -> str:
    if cell is None:
        return ""
    if isinstance(cell, bool):
        return "true" if cell else "false"
    return f"{cell:.{DIGITS}g}" if isinstance(cell, float) else str(cell)


def read_csv(file: Path) -> list[dict[str, str]]:
    """The rows of a leaderboard as text. Raises `UserError` when the file is none."""
    if not file.is_file():
        raise UserError(f"There is no leaderboard {file}.")
    with file.open(newline="", encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines))
    missing = [column for column in IDENTITY if rows and column not in rows[0]]
    if missing or not rows:
        raise UserError(f"{file} is not a leaderboard: it has no {'column ' + missing[0] if missing else 'rows'}.")
    return rows


def rows_as_text(results: Results) -> list[dict[str, str]]:
    """The rows that `write_csv` would write."""
    columns, rows = _cells(results)
    return [{column: _text(row.get(column)) for column in columns} for row in rows]
