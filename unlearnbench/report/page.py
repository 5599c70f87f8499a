"""`report.html`: one self-contained page, light and dark, without a single request to anywhere."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup

from unlearnbench.report.forms import words_in
from unlearnbench.report.results import Results
from unlearnbench.report.sanity import sanity
from unlearnbench.report.standings import Standing, Table
from unlearnbench.report.style import GRID, INK, MUTED, PAPER, look
from unlearnbench.report.tables import GRIDS, Grid, provenance
from unlearnbench.report.verdicts import Finding
from unlearnbench.report.verdicts import grid as verdict_grid

HERE = Path(__file__).parent
#: plot -> what to look for in it
CAPTIONS = {
    "wallclock": "What a method costs: prepare + optimise + probe + select. Dots are seeds. Steps stand beside the "
    "seconds, for these hold on one machine only.",
    "radar": "One radar per method, 1 - d on each axis: the rim is the retrained model.",
    "tradeoff": "Left, both halves of the score: the retrained model is the corner, the target lies at 1 on the forget "
    "side. Right, one metric of each side as measured. Lines are ranges or intervals over the seeds.",
    "trajectory": "During unlearning: thin lines are seeds, thick ones their mean.",
    "violation": "What the online stop rule read on its probe; it stops where the rate stays below the tolerance.",
    "stops": "The same methods under several stop rules: hollow, the whole budget; filled, an online stop.",
    "heatmap": "The score (lower is better) over hyper-parameters, the others as they are.",
    "panels": "Per benchmark: seconds with their spread, and the metrics as the paper draws them, outside is better. "
    "Published numbers are hollow diamonds, and radars of their own.",
    "scaling": "Over the number of parameters: the target is what is learned, the others what is left.",
    "slopes": "Before and after the attack: a line that goes back towards the target is memory that comes back.",
}
_THEME = {INK: "var(--ink)", MUTED: "var(--muted)", GRID: "var(--grid)", PAPER: "var(--paper)"}


def render(
    results: Results,
    found: Sequence[Table],
    title: str,
    plots: Mapping[int, Mapping[str, Path]],
    beside: Sequence[Grid] = (),
    judged: Sequence[Finding] = (),
) -> str:
    """The page of a report. `plots`: number of the table -> plot name -> SVG file; `beside`: per table the published
    numbers; `judged`: what came of the claims.
    """
    template = _template("page.html.j2")
    seeds = sorted({seed for table in found for row in table.rows for seed in row.arm.seeds})
    machines = sorted({row.cost.hardware for table in found for row in table.rows if row.cost.hardware})
    return template.render(
        title=title,
        subtitle=f"{len(results.of_kind('evaluate'))} evaluations, seeds {', '.join(map(str, seeds))}"
        + (f", machine {', '.join(machines)}" if machines else ""),
        headlines=[line for table in found if (line := _headline(table))],
        checks=sanity(results),
        claims=_shown(verdict_grid(judged), {}) if judged else None,
        groups=[
            _group(number, table, plots.get(number, {}), beside[number : number + 1])
            for number, table in enumerate(found)
        ],
        provenance=_shown(provenance(found), {}),
        **_assets(),
    )


def board(grid: Grid, found: Sequence[Table], plots: Mapping[int, Path]) -> str:
    """The page of a leaderboard: one table of all rows, and a trade-off plot for each comparison that has one."""
    arms = {row.arm.label: row for table in found for row in table.rows}
    return _template("leaderboard.html.j2").render(
        grid={**_shown(grid, arms), "id": "board"},
        plots=[
            {"name": str(found[number].group.key), "svg": _inline(file, "tradeoff")} for number, file in plots.items()
        ],
        caption=CAPTIONS["tradeoff"],
        **_assets(),
    )


def _template(name: str) -> Template:
    loader = FileSystemLoader(HERE)
    environment = Environment(autoescape=True, undefined=StrictUndefined, keep_trailing_newline=True, loader=loader)
    return environment.get_template(name)


def _assets() -> dict[str, Markup]:
    return {name: Markup((HERE / f"page.{name}").read_text(encoding="utf-8")) for name in ("css", "js")}


def _group(number: int, table: Table, plots: Mapping[str, Path], beside: Sequence[Grid]) -> dict[str, Any]:
    arms = {row.arm.label: row for row in table.rows}
    grids = [_shown(grid, arms) for grid in beside]
    grids += [_shown(GRIDS[name](table), arms) for name in ("score", "cost", "stop", "comparison", "missing")]
    examples, seed = _examples(table)
    return {
        "id": f"group{number}",
        "name": str(table.group.key),
        "main": {**_shown(GRIDS["main"](table), arms), "id": f"main{number}"},
        "grids": [grid for grid in grids if grid["rows"]],
        "plots": [{"svg": _inline(file, name), "caption": CAPTIONS.get(name, name)} for name, file in plots.items()],
        "probed": _probed(table),
        "examples": examples,
        "example_seed": seed,
    }


def _headline(table: Table) -> str:
    """The result in a sentence or two, computed from the table."""
    placed = [row for row in table.methods if row.rank == 1 or row.tier == 1]
    goal, target = table.row("retrained"), table.row("target")
    if not placed or goal is None or goal.score.mean is None:
        return ""
    named = ", ".join(f"{row.arm.title} ({row.score.mean:.2f})" for row in placed)
    text = f"{table.group.key}: nearest to the retrained model, by the score: {named}."
    if target is not None and target.score.mean is not None:
        text += f" The untouched target scores {target.score.mean:.2f},"
        text += f" a retrained model of another seed {goal.score.mean:.2f}."
    timed = [row for row in placed if (total := row.cost.seconds.get("total")) is not None and total.mean is not None]
    if len(placed) > 1 and len({row.cost.hardware for row in timed}) == 1 and timed:
        fastest = min(timed, key=lambda row: row.cost.seconds["total"].mean or 0.0)
        text += f" The cheapest of these is {fastest.arm.title}, {fastest.cost.seconds['total'].mean:.3g} s."
    return text


# -- tables ----------------------------------------------------------------------------------------------------


def _shown(grid: Grid, arms: Mapping[str, Standing]) -> dict[str, Any]:
    """A grid with what the template wants to know about heads, rows and cells."""
    words = words_in(grid)
    name = next((i for i, head in enumerate(grid.heads) if head in ("method", "row")), -1)
    hints = grid.hints or ("",) * len(grid.heads)
    css = ["name" if i == name else "words" if i in words else "" for i in range(len(grid.heads))]
    rows = []
    for n, row in enumerate(grid.rows):
        standing = arms.get(grid.labels[n]) if grid.labels else None
        cells = [_cell(text, css[i], _colour(standing) if i == name else "") for i, text in enumerate(row)]
        rows.append({"cells": cells, "css": _row_css(standing, grid.heads)})
    unbroken = [head.replace("-", "\u2011") for head in grid.heads]
    heads = [
        {"text": re.sub(r" (?=[↑↓≈])", "\u00a0", h), "hint": hints[i], "css": css[i]} for i, h in enumerate(unbroken)
    ]
    return {"title": grid.title, "heads": heads, "rows": rows, "notes": grid.notes, "id": ""}


def _cell(text: str, css: str, colour: str) -> dict[str, str]:
    """The spread goes on a small line of its own, so that many columns fit."""
    number, spread = text, ""
    if match := re.fullmatch(r"(-?[\d.,]+)( ±[\d.]+)?( \(\d+ of \d+\))?", text):
        number, spread = match[1], "".join(part or "" for part in match.groups()[1:]).strip()
    extra = "null" if text in ("null", "") else "long" if len(text) > 60 else ""
    return {"text": number, "small": spread, "css": f"{css} {extra}".strip(), "colour": colour}


def _colour(standing: Standing | None) -> str:
    """As a CSS value: the colours of text follow the theme."""
    colour = look(standing.arm.method, standing.arm.role).colour if standing is not None else ""
    return _THEME.get(colour, colour)


def _row_css(standing: Standing | None, heads: Sequence[str]) -> str:
    if standing is None or heads[0] not in ("tier", "rank"):
        return ""
    return "reference" if standing.arm.role != "unlearned" else "best" if 1 in (standing.rank, standing.tier) else ""


# -- pictures and examples -------------------------------------------------------------------------------------


def _inline(file: Path, name: str) -> Markup:
    """The SVG as part of the page: it scales, and its text colours follow the theme."""
    svg = file.read_text(encoding="utf-8")
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<style[^>]*>.*?</style>", "", svg, flags=re.DOTALL)
    width = float(re.search(r'width="([\d.]+)pt"', svg)[1]) * 4 / 3  # type: ignore[index]
    least = min(width, 560)
    style = f'role="img" aria-label="{name}" style="width:{width:.0f}px;max-width:100%;min-width:{least:.0f}px"'
    svg = re.sub(r'<svg ([^>]*?)width="[^"]*"', rf"<svg {style} \1", svg, count=1)
    svg = re.sub(r'(<svg [^>]*?)height="[^"]*"', r"\1", svg, count=1)
    for colour, variable in _THEME.items():
        svg = svg.replace(colour, variable)
    return Markup(svg)


def _probed(table: Table) -> list[tuple[str, str]]:
    """The rows a stop rule looked at, by method and seed."""
    found = [(row, run) for row in table.methods for run in row.arm.runs.values() if run.stop]
    return [(f"{row.arm.title}, seed {run.seed}", ", ".join((run.stop or {}).get("rows") or [])) for row, run in found]


def _examples(table: Table) -> tuple[list[dict[str, Any]], int]:
    """Rows with what each model answers, of the first seed that has them."""
    for seed in sorted({seed for row in table.rows for seed in row.arm.seeds}):
        merged: dict[str, dict[str, Any]] = {}
        for row in table.rows:
            run = row.arm.runs.get(seed)
            file = run.evaluation.folder / "examples.json" if run is not None and run.evaluation is not None else None
            if file is None or not file.is_file():
                continue
            for example in json.loads(file.read_text(encoding="utf-8")):
                kept = merged.setdefault(example["row_id"], {**example, "texts": []})
                kept["texts"].append((row.arm.title, _colour(row), example["text"]))
        if merged:
            return list(merged.values()), seed
    return [], 0
