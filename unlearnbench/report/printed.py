"""Numbers printed in papers (`results/published/`), in the unit of our metrics, beside what was measured."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from unlearnbench.errors import UserError, did_you_mean
from unlearnbench.report.catalogue import decimals, title
from unlearnbench.report.results import Group
from unlearnbench.report.standings import Standing, Summary, Table
from unlearnbench.report.tables import Grid, number
from unlearnbench.schema import PublishedSettings

#: printed metric -> our metric, and how a printed value becomes one of ours
METRICS: dict[str, tuple[str, Callable[[float], float | None]]] = {
    "wall_clock_seconds": ("seconds", lambda v: v),
    "one_minus_rouge_l": ("one_minus_rouge_l", lambda v: v),
    "one_minus_prob": ("one_minus_prob", lambda v: v),
    "truth_ratio": ("forget_truth_ratio", lambda v: v),
    "forget_truth_ratio": ("forget_truth_ratio", lambda v: v),
    "model_utility": ("model_utility", lambda v: v),
    "forget_quality": ("forget_quality", lambda v: math.log10(v) if v > 0 else None),
    "one_minus_knowmem_forget": ("knowmem_forget", lambda v: 100 * (1 - v)),
    "one_minus_verbmem_forget": ("verbmem_forget", lambda v: 100 * (1 - v)),
    "knowmem_retain": ("knowmem_retain", lambda v: 100 * v),
    "forget_knowmem_rouge": ("knowmem_forget", lambda v: 100 * v),
    "forget_verbmem_rouge": ("verbmem_forget", lambda v: 100 * v),
    "retain_knowmem_rouge": ("knowmem_retain", lambda v: 100 * v),
    "privleak": ("privleak", lambda v: v),
}
#: what a source calls a row -> what we call it
ROWS = {"finetuned": "target", "idkdpo": "dpo"}


@dataclass(frozen=True)
class Printed:
    """One printed number: `metric` and `value` are ours, `method` is a method's name or a role."""

    paper: str
    source: str
    benchmark: str
    model: str
    method: str
    metric: str
    value: float
    how: str

    @property
    def reported(self) -> bool:
        """Whether the number stands in the source; otherwise it was read off a figure."""
        return self.how.startswith("reported")


@cache
def load() -> tuple[Printed, ...]:
    """All printed numbers. Raises `UserError` with file and line for a file that is not of this shape."""
    found: list[Printed] = []
    folder = resources.files("unlearnbench.results.published")
    for file in sorted(folder.iterdir(), key=lambda file: file.name):
        if file.name.endswith(".csv"):
            found += read(file.read_text(encoding="utf-8").splitlines(), file.name)
    return tuple(found)


def read(lines: Iterable[str], name: str) -> list[Printed]:
    """The numbers of one file. Values that have no place on our scale (a p of 0) are left out."""
    found = []
    for line, row in enumerate(csv.DictReader(lines), 2):
        try:
            metric, convert = METRICS[row["metric"]]
            value = convert(float(row["value"]))
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"{name}:{line}: cannot be read: {error!r}") from error
        method = ROWS.get(row["method"], row["method"])
        if value is not None:
            place = row["benchmark"], row["model"], method
            found.append(Printed(row["paper"], row["source"], *place, metric, value, row["how"]))
    return found


def known(settings: PublishedSettings) -> list[Printed]:
    """The numbers of a paper. Raises `UserError` with the nearest name when there are none."""
    papers = sorted({entry.paper for entry in load()})
    if settings.paper not in papers:
        raise UserError(f"There are no published numbers of '{settings.paper}'; {did_you_mean(settings.paper, papers)}")
    return [entry for entry in load() if entry.paper == settings.paper]


def beside(settings: PublishedSettings | None, group: Group) -> list[Printed]:
    """The printed numbers that belong beside a group: of the same benchmark and model, or of those `settings` names.

    None after an attack: the numbers are of models that were not attacked.
    """
    if settings is None or group.key.attack != "none":
        return []
    spec = _spec(group)
    benchmark = settings.benchmark or benchmark_name(spec.get("benchmark") or {})
    found = [entry for entry in known(settings) if entry.benchmark == benchmark]
    models = dict.fromkeys(entry.model for entry in found)
    own = str((spec.get("model") or {}).get("name", ""))
    wanted = settings.model or (next(iter(models)) if len(models) == 1 else None)
    if wanted is None:
        wanted = next((model for model in models if own.lower().endswith(model.lower())), None)
    return [entry for entry in found if entry.model == wanted]


def benchmark_name(spec: Mapping[str, Any]) -> str:
    """What papers call a benchmark with its options: `tofu-forget10`, `muse-news`."""
    name = str(spec.get("name", ""))
    if name != "tofu":
        return name
    return f"{name}-{(spec.get('options') or {}).get('forget', 'forget10')}"


def compared(table: Table, settings: PublishedSettings | None) -> Grid:
    """Published and measured numbers, one pair a row, with the difference; no rows when nothing is printed."""
    entries = beside(settings, table.group)
    known_rows = {row.arm.label: row for row in table.rows}
    order = {label: i for i, label in enumerate(known_rows)}
    rows, labels = [], []
    for entry in sorted(entries, key=lambda entry: order.get(entry.method, len(order))):
        row, digits = known_rows.get(entry.method), decimals(entry.metric)
        summary = None if row is None else _measured(row, entry.metric)
        printed = f"{entry.value:.{digits}f}" if entry.reported else f"≈ {entry.value:.{digits}f}"
        missing = "not run" if row is None else "not measured"
        measured = missing if summary is None or summary.mean is None else number(summary, digits)
        gap = "" if summary is None or summary.mean is None else f"{summary.mean - entry.value:+.{digits}f}"
        name = row.arm.title if row is not None else entry.method
        rows.append((name, title(entry.metric), printed, measured, gap, entry.how))
        labels.append(entry.method if row is not None else "")
    heads = ("method", "metric", "published", "measured here", "difference", "how the published number was read")
    sources = dict.fromkeys(f"{entry.source}: {entry.benchmark}, {entry.model}" for entry in entries)
    note = (
        f"Published: {'; '.join(sources)}. Measured: {table.group.key}. A difference says something as far as "
        "benchmark, model and definition agree; seconds also need the same hardware. ≈: read off a figure."
    )
    return Grid(f"Published and measured: {table.group.key}", heads, tuple(rows), (note,), tuple(labels))


def _measured(row: Standing, metric: str) -> Summary | None:
    return row.cost.seconds.get("total") if metric == "seconds" else row.metrics.get(metric)


def _spec(group: Group) -> dict[str, Any]:
    stages = (stage for arm in group.arms for stage in arm.evaluations)
    return next((stage.spec for stage in stages), {})
