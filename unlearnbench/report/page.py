"""`report.html`: one self-contained page, light and dark, without a single request to anywhere."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined

from unlearnbench.report.results import Results
from unlearnbench.report.sanity import sanity
from unlearnbench.report.standings import Table
from unlearnbench.report.style import look
from unlearnbench.report.tables import GRIDS, Grid

_ALT = {
    "wallclock": "Bars of the seconds each method takes, by phase",
    "radar": "Radars of each method's closeness to the retrained model",
    "tradeoff": "Scatter of the distances on the forget and on the utility side",
    "trajectory": "Curves of the metrics during unlearning",
    "violation": "Curves of the violation rate that the stop rule read",
}


def render(
    results: Results, found: Sequence[Table], title: str, grids: Sequence[str], plots: Mapping[int, Mapping[str, Path]]
) -> str:
    """The page of a report. `plots`: number of the table -> plot name -> PNG or SVG file."""
    template = (Path(__file__).parent / "page.html.j2").read_text(encoding="utf-8")
    environment = Environment(autoescape=True, undefined=StrictUndefined, keep_trailing_newline=True)
    groups = []
    for number, table in enumerate(found):
        shown = [_shown(name, GRIDS[name](table)) for name in grids]
        colours = {row.arm.title: look(row.arm.method, row.arm.role).colour for row in table.rows}
        drawn = [
            {"alt": _ALT.get(name, name), "source": _data_uri(file)} for name, file in plots.get(number, {}).items()
        ]
        examples, seed = _examples(table)
        groups.append(
            {
                "name": str(table.group.key),
                "grids": shown,
                "plots": drawn,
                "colours": _Colours(colours),
                "examples": examples,
                "example_seed": seed,
            }
        )
    seeds = sorted({seed for table in found for row in table.rows for seed in row.arm.seeds})
    lines = [
        (row.arm.title, " ".join(map(str, row.arm.seeds)), row.arm.version or "", row.cost.hardware, row.provenance)
        for table in found
        for row in table.rows
    ]
    subtitle = f"{sum(len(t.rows) for t in found)} rows, seeds {', '.join(map(str, seeds))}"
    return environment.from_string(template).render(
        title=title, subtitle=subtitle, checks=sanity(results), groups=groups, provenance=lines
    )


class _Colours(dict[str, str]):
    def __missing__(self, key: str) -> str:
        return ""


def _shown(name: str, grid: Grid) -> dict[str, Any]:
    return {**vars(grid), "named": 1 if name == "main" else 0}


def _data_uri(file: Path) -> str:
    kind = "image/svg+xml" if file.suffix == ".svg" else "image/png"
    return f"data:{kind};base64,{base64.b64encode(file.read_bytes()).decode()}"


def _examples(table: Table) -> tuple[list[dict[str, Any]], int]:
    """Rows with what each model answers, of the first seed that has them."""
    seeds = sorted({seed for row in table.rows for seed in row.arm.seeds})
    for seed in seeds:
        merged: dict[str, dict[str, Any]] = {}
        for row in table.rows:
            run = row.arm.runs.get(seed)
            file = run.evaluation.folder / "examples.json" if run is not None and run.evaluation is not None else None
            if file is None or not file.is_file():
                continue
            for example in json.loads(file.read_text(encoding="utf-8")):
                kept = merged.setdefault(example["row_id"], {**example, "texts": []})
                kept["texts"].append((row.arm.title, example["text"]))
        if merged:
            return list(merged.values()), seed
    return [], seeds[0] if seeds else 0
