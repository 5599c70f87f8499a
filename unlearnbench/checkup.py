"""`unlearnbench eval`: score any checkpoint on a benchmark. One stage of the usual kind, in the usual store."""

from __future__ import annotations

import inspect
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from unlearnbench import pipeline, preflight, schema, stages
from unlearnbench.benchmarks.base import benchmarks
from unlearnbench.canonical import read_json
from unlearnbench.errors import UserError, did_you_mean
from unlearnbench.metric import expand, resolve
from unlearnbench.plan import benchmark_of, plan
from unlearnbench.references import Reference, load_reference
from unlearnbench.schema import Experiment
from unlearnbench.store import Stage, Store

ROLE = "evaluated"  #: a model of which nothing is claimed: neither target nor retrained
ARROWS = {"higher": "↑", "lower": "↓", "retrained": "≈"}
SPLIT_OPTIONS = ("forget", "corpus", "subject")  #: what `--split` sets, whichever the benchmark has


@dataclass(frozen=True)
class Request:
    """What was asked for on the command line. `files`: forget, retain, holdout and data_dir, where given."""

    model: str
    benchmark: str
    split: str | None = None
    files: Mapping[str, str] | None = None
    protocol: str = "ours"
    reference: Path | None = None
    metrics: Sequence[str] | None = None
    overrides: Sequence[str] = ()
    out: Path = Path("evaluation")


def experiment_of(request: Request) -> Experiment:
    """An experiment without methods: the model that was given, scored. Metrics stand under the protocol's formulas
    where they have them. `UserError` for options the benchmark does not take.
    """
    options = _options(request)
    content: dict[str, Any] = {
        "title": f"{request.model} on {request.benchmark}",
        "benchmark": {"name": request.benchmark, **options},
        "model": {"name": request.model, "protocol": request.protocol},
        "target": "given",
        "unlearn": {},
        "methods": [],
    }
    if request.metrics is not None:
        content["metrics"] = list(request.metrics)
    experiment = schema.make(content, request.overrides)
    protocol = experiment.model.protocol
    if protocol == "ours":
        return experiment
    data = benchmark_of(experiment)
    names = experiment.metrics if experiment.metrics is not None else data.suite
    return experiment.model_copy(update={"metrics": tuple(_under(name, protocol) for name in expand(names))})


def _under(name: str, protocol: str) -> str:
    """The metric under the protocol, where it has a formula of its own there."""
    if "@" in name or ":" in name:
        return name
    return f"{name}@{protocol}" if protocol in resolve(name)[0].cls.protocols else name  # type: ignore[attr-defined]


def _options(request: Request) -> dict[str, Any]:
    entry = benchmarks.get(request.benchmark)
    takes = list(inspect.signature(entry.cls).parameters)
    options = dict(request.files or {})
    for name in options:
        if name not in takes:
            raise UserError(
                f"The benchmark '{entry.name}' takes no --{name.replace('_', '-')}; {did_you_mean(name, takes)}"
            )
    if request.split is None:
        return options
    found = next((name for name in SPLIT_OPTIONS if name in takes and name not in options), None)
    if entry.name == "jsonl" or found is None:
        raise UserError(f"The benchmark '{entry.name}' takes no --split.")
    return {**options, found: request.split}


def evaluate(
    request: Request, root: Path = Path("runs"), rerun: str = "missing", console: Console | None = None
) -> None:
    """Score the model (or find that it was scored), print the table, and leave the run's files in `request.out`."""
    console = console or Console()
    _usable(request.out)
    experiment = experiment_of(request)
    data = benchmark_of(experiment)
    reference = (
        None if request.reference is None else load_reference(request.reference, data, experiment.model.protocol)
    )
    (planned,) = plan(experiment)
    stage = _stage(planned.stage, reference)
    store = Store(root, rerun)
    room = preflight.room([planned], root) if store.due(stage) else []
    for line in [*data.notes, *room, *preflight.parts(stage.spec["metrics"], ())]:
        pipeline.warn(console, line)
    with store.build(stage) as building:
        if building.reused:
            console.print(f"scored before: {building.folder}", markup=False, highlight=False, soft_wrap=True)
        else:
            retrained = reference.evaluation if reference is not None else None
            building.record.update(stages.evaluate(stage.spec, {}, building.folder, retrained))
    console.print(_table(building.folder, reference))
    _copy(building.folder, request.out)
    console.print(f"written: {request.out}", markup=False, highlight=False, soft_wrap=True)


def _stage(stage: Stage, reference: Reference | None) -> Stage:
    """The evaluation of a target, of a model of which nothing is claimed; with what it is compared with."""
    beside = {} if reference is None else {"reference": {"identity": reference.identity, "origin": reference.origin}}
    name = Path(str(stage.spec["model"]["name"])).name
    return Stage("evaluate", name, {**stage.spec, "role": ROLE, **beside})


def _table(folder: Path, reference: Reference | None) -> Table:
    grid = Table(box=None, pad_edge=False)
    grid.add_column("metric")
    grid.add_column("value", justify="right")
    grid.add_column("interval", justify="right")
    grid.add_column("rows", justify="right")
    if reference is not None:
        grid.add_column("reference", justify="right")
    grid.add_column("", overflow="fold")
    for line in read_json(folder / "metrics.json")["metrics"]:
        interval = "" if line["interval"] is None else "{:.3g} … {:.3g}".format(*line["interval"])
        cells = [f"{line['name']} {ARROWS[line['direction']]}", _number(line["value"]), interval, str(line["n"] or "")]
        if reference is not None:
            other = reference.evaluation.values.get(line["name"])
            cells.append(_number(other.score if other is not None else None))
        grid.add_row(*cells, line["reason"])
    return grid


def _number(value: float | None) -> str:
    return "null" if value is None else f"{value:.4g}"


def _usable(out: Path) -> None:
    """Raise `UserError` before the work when the folder holds something else."""
    if out.exists() and (not out.is_dir() or (any(out.iterdir()) and not (out / "metrics.json").is_file())):
        raise UserError(f"{out} is there and holds no evaluation: name another folder with --out.")


def _copy(folder: Path, out: Path) -> None:
    """The run's files, so that `out` is a run folder itself; it appears whole or not at all."""
    making = out.with_name(f".{out.name}.making")
    shutil.rmtree(making, ignore_errors=True)
    out.parent.mkdir(parents=True, exist_ok=True)
    shutil.copytree(folder, making)
    if out.exists():
        shutil.rmtree(out)
    making.rename(out)
