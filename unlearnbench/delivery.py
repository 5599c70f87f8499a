"""`unlearnbench unlearn`: a model and a file of records in, a model without them out, with scores before and after.

It is an experiment of one cell whose target is the model that was given: the same stages, store and records as any
other run. What is put together here is the request, the comparison and the folder that is handed over.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from unlearnbench import pipeline, preflight, schema
from unlearnbench.benchmarks.base import benchmarks
from unlearnbench.benchmarks.mini.model import MODELS
from unlearnbench.canonical import file_hash, write_json
from unlearnbench.card import card
from unlearnbench.comparison import Comparison, compare
from unlearnbench.costs.table import size
from unlearnbench.errors import UserError
from unlearnbench.method import Method, methods
from unlearnbench.model_files import base_folder, dtype_of, parameters_of
from unlearnbench.models import encoder_for
from unlearnbench.plan import Planned, benchmark_of, plan
from unlearnbench.schema import Experiment
from unlearnbench.settings import ModelSettings
from unlearnbench.store import Store

#: From this size on the published learning rates hold; smaller models take larger ones, by the square root.
LARGE = 5e8
LEARNING_RATES = {"full": 1e-5, "lora": 1e-4}
STEPS, EPOCHS = 200, 5  #: the budget: at least so many optimiser steps and passes; the stop rule ends it before
PROBE, CONFIRM = 32, 256  #: forget rows that the stop rule looks at, first and to be sure
RETAIN_KL = 0.03  #: nats per token that the answers to the retain rows may have moved when training stops
PARTS = ("benchmark", "model", "unlearn", "metrics", "max_new_tokens", "deliver")  #: of an experiment, for `--set`


@dataclass(frozen=True)
class Request:
    """What was asked for on the command line."""

    model: str
    forget: Path
    retain: Path | None = None
    holdout: Path | None = None
    method: str = "masc"
    overrides: Sequence[str] = ()
    lora: bool = False
    adapter: bool = False
    seed: int = 0
    out: Path = Path("unlearned")


def experiment_of(request: Request) -> Experiment:
    """The experiment: defaults for a model and a forget set of this size, and the user's values over them.

    Every forget row is trained on, and the stop rule looks at those same rows: a request to delete is about these
    records, not about others like them. `UserError` for whatever is wrong with the files, the method or a value.
    """
    files = {"forget": request.forget, "retain": request.retain, "holdout": request.holdout}
    options = {name: str(file) for name, file in files.items() if file is not None}
    rows = len(benchmarks.get("jsonl").build(**options).rows("forget"))
    if request.model in MODELS:
        raise UserError(f"The embedded model '{request.model}' is untrained and knows no records: give a model folder.")
    folder = base_folder(ModelSettings(name=request.model))
    batch = min(8, rows)
    lora = request.lora or request.adapter
    unlearn: dict[str, Any] = {
        "learning_rate": learning_rate(parameters_of(folder), lora),
        "batch_size": batch,
        "retain_batch_size": 2 * batch,
        "epochs": max(EPOCHS, math.ceil(STEPS / math.ceil(rows / batch))),
        "precision": "bf16" if preflight.on_gpu() else "fp32",
        **({"lora": {}} if lora else {}),
    }
    content = {
        "title": f"Forgetting {request.forget.name}",
        "benchmark": {"name": "jsonl", **options},
        "model": request.model,
        "target": "given",
        "unlearn": unlearn,
        "methods": [{request.method: _params(request, rows)}],
        "deliver": {"dtype": None if request.adapter else dtype_of(folder), "adapter": request.adapter},
        "trajectory": {"points": 0},
        "seeds": [request.seed],
    }
    experiment = schema.make(content, [_placed(override, request.method) for override in request.overrides])
    if request.retain is None and "retain" in _needs(schema.cells(experiment)[0]):
        raise UserError(f"The method '{request.method}' needs retain rows with these settings: give --retain.")
    return experiment


def learning_rate(parameters: int, lora: bool) -> float:
    """The published rate of the method's papers, times sqrt(5e8 / parameters) for smaller models; two digits."""
    rate = LEARNING_RATES["lora" if lora else "full"] * math.sqrt(max(1.0, LARGE / max(1, parameters)))
    return float(f"{rate:.2g}")


def _params(request: Request, rows: int) -> dict[str, Any]:
    """The stop rule, and no retain term where there is nothing to retain."""
    entry = methods.get(request.method)
    built = entry.cls.model_construct(**entry.defaults)  # type: ignore[attr-defined]
    params: dict[str, Any] = {}
    if request.retain is None and built.retain != "none":
        params["retain"] = "none"
    if not built.is_loop:
        return params
    own = built.stop or {"rule": "violation"}
    looks = {"source": "first", "probe": min(rows, PROBE), "confirm": min(rows, CONFIRM)}
    keeps = {"retain_kl_below": RETAIN_KL} if request.retain is not None else {}
    return {**params, "stop": {**looks, **keeps, **own, "source": "first"}}


def _placed(override: str, method: str) -> str:
    """`rho=0.6` is a hyper-parameter of the method; what begins with a part of an experiment stands there."""
    head = override.partition("=")[0].partition(".")[0]
    return override if head in (*PARTS, "methods") else f"methods.{method}.{override}"


# -- running ---------------------------------------------------------------------------------------------------


def unlearn(
    request: Request,
    root: Path = Path("runs"),
    rerun: str = "missing",
    plugins: Sequence[str] = (),
    dry_run: bool = False,
    tidy: bool = False,
    console: Console | None = None,
) -> bool:
    """Do what was asked for, say what came of it, write the folder. True when it was not achieved: a stage failed, the
    rows are still known, or the retain side was damaged.
    """
    console = console or Console()
    _usable(request.out)
    experiment = experiment_of(request)
    planned = plan(experiment)
    store = Store(root, rerun)
    todo = [p for p in planned if store.due(p.stage)]
    for line in describe(experiment, request, planned[1]):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    for line in preflight.room(todo, root) + preflight.parts(pipeline.planned_metrics(planned), experiment.attacks):
        pipeline.warn(console, line)
    if dry_run:
        return False
    before, unlearned, after = planned
    if pipeline.build(console, store, [before], plugins=plugins):
        return True
    if pipeline.build(console, store, [unlearned, after], plugins=plugins):
        return True
    one, between, two = (store.folder(p.stage) for p in planned)
    found = compare(one, between, two, retain=request.retain is not None)
    console.print(table(found))
    for line in found.warnings:
        pipeline.warn(console, line)
    hand_over(request, experiment, store, planned, found)
    console.print(f"written: {request.out}", markup=False, highlight=False, soft_wrap=True)
    if tidy:
        for stage in planned:
            shutil.rmtree(store.folder(stage.stage))
    else:
        line = f"{root} keeps the text of the rows and of the answers to them; --tidy removes it"
        console.print(line, style="dim", markup=False, highlight=False, soft_wrap=True)
    return not found.achieved


def describe(experiment: Experiment, request: Request, unlearned: Planned) -> list[str]:
    """What will be done: rows, tokens, steps, memory."""
    data = benchmark_of(experiment)
    encoder = encoder_for(experiment.model)
    lines = []
    for split in ("forget", "retain"):
        if split not in data.splits:
            lines.append("retain   nothing: without --retain nothing holds the rest of the model in its place")
            continue
        coded = encoder.rows(data.rows(split))
        tokens = sum(row.answer_length for row in coded.rows)
        longest = max((len(row.ids) for row in coded.rows), default=0)
        file = request.forget if split == "forget" else request.retain
        lines.append(f"{split:<8} {len(data.rows(split))} rows of {file}, {tokens} tokens to answer, longest {longest}")
        lines += [f"         {note}" for note in coded.notes(f"{split} rows")]
    lines += [f"note     {note}" for note in data.notes]
    (cell,) = schema.cells(experiment)
    settings = cell.settings
    steps = math.ceil(settings.epochs * math.ceil(len(data.rows("forget")) / settings.batch_size))
    steps = min(steps, settings.max_steps or steps)
    what = "a LoRA adapter" if settings.lora else "all weights"
    lines.append(
        f"method   {cell.title}: at most {steps} steps of {settings.batch_size} forget rows, learning rate "
        f"{settings.learning_rate:g}, {what}"
    )
    for estimate in preflight.estimates([unlearned]).values():
        lines.append(f"memory   about {size(estimate.memory)}, for {estimate.work.trained:,} weights that are trained")
    return lines


def _needs(cell: schema.Cell) -> frozenset[str]:
    method: Method = methods.get(cell.method).cls(**cell.params)
    return method.requirements


def table(found: Comparison) -> Table:
    """Before and after, for a terminal."""
    grid = Table(box=None, pad_edge=False, title="before and after", title_justify="left", title_style="bold")
    grid.add_column("")
    grid.add_column("")
    for name in ("before", "after"):
        grid.add_column(name, justify="right")
    side = ""
    for line in found.lines:
        grid.add_row("" if line.side == side else line.side, line.title, line.text(line.before), line.text(line.after))
        side = line.side
    return grid


# -- handing over ----------------------------------------------------------------------------------------------


def _usable(out: Path) -> None:
    """Raise `UserError` now when the folder could not be written after hours of work."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())) and not (out / "record" / "scores.json").is_file():
        raise UserError(f"{out} is there and was not made by this command: name another folder with --out.")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        probe = out.with_name(f".{out.name}.probe")
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise UserError(f"{out} cannot be written: {error.strerror}.") from error


def hand_over(
    request: Request, experiment: Experiment, store: Store, planned: Sequence[Planned], found: Comparison
) -> None:
    """The folder: the model (or the adapter) as transformers (or peft) loads it, its card, and the record without the
    rows. It appears whole or not at all.
    """
    stage = store.folder(planned[1].stage)
    making = request.out.with_name(f".{request.out.name}.making")
    shutil.rmtree(making, ignore_errors=True)
    shutil.copytree(stage / ("adapter" if request.adapter else "model"), making)
    record = json.loads((stage / "record.json").read_text())
    (making / "record").mkdir()
    write_json(making / "record" / "record.json", without_rows(record))
    shutil.copy(stage / "log.jsonl", making / "record" / "log.jsonl")
    write_json(making / "record" / "scores.json", found.as_json())
    text = card(request_facts(request), benchmark_of(experiment), experiment, record, found)
    (making / "README.md").write_text(text, encoding="utf-8")
    if request.out.exists():
        shutil.rmtree(request.out)
    making.rename(request.out)


def request_facts(request: Request) -> dict[str, Any]:
    """What the card says of the request: names, sizes and hashes of files, and nothing of what stands in them."""
    files = {"forget": request.forget, "retain": request.retain, "holdout": request.holdout}
    return {
        "model": Path(request.model).name if Path(request.model).exists() else request.model,
        "files": {n: {"name": f.name, "sha256": file_hash(f)} for n, f in files.items() if f is not None},
        "method": request.method,
        "overrides": list(request.overrides),
        "lora": request.lora,
        "adapter": request.adapter,
        "seed": request.seed,
    }


def without_rows(record: Mapping[str, Any]) -> dict[str, Any]:
    """The record with counts in place of row ids, which may name people."""
    stop = record.get("stop")
    if not stop:
        return dict(record)
    return {**record, "stop": {k: len(v) if k in ("rows", "held_out") else v for k, v in stop.items()}}
