"""Run an experiment: plan its stages, build the missing ones, report."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from unlearnbench import __version__, costs, preflight, report, schema
from unlearnbench.canonical import key, read_json
from unlearnbench.costs import table
from unlearnbench.errors import UserError
from unlearnbench.executors import Job, run_jobs
from unlearnbench.plan import Planned, outline, plan
from unlearnbench.progress import Progress
from unlearnbench.settings import ModelSettings
from unlearnbench.store import Stage, Store

_RANK = {"base": 0, "target": 1, "retrained": 1, "unlearn": 3, "evaluate": 4}
_SCORED_FIRST = 2  #: evaluations of the roles that every cell is compared with


def _rank(planned: Planned) -> int:
    unattacked = planned.stage.spec.get("attack") == "none"
    roles = planned.stage.kind == "evaluate" and planned.stage.spec["role"] in ("target", "retrained")
    return _SCORED_FIRST if roles and unattacked else _RANK[planned.stage.kind]


def run(
    source: str | Path,
    overrides: Sequence[str] = (),
    methods: Sequence[str] | None = None,
    seeds: Sequence[int] | None = None,
    plugins: Sequence[str] = (),
    root: Path = Path("runs"),
    out: Path | None = None,
    workers: int = 2,
    rerun: str = "missing",
    dry_run: bool = False,
    hardware: str | None = None,
    estimate: bool = False,
    console: Console | None = None,
) -> bool:
    """Run what is missing of an experiment, write its report, print its table. True when a cell failed.

    `dry_run`: only show the plan, and what it takes on `hardware`. `estimate`: say first what is left to do.
    """
    console = console or Console()
    start = time.monotonic()
    experiment = schema.load(source, overrides, methods, seeds)
    store = Store(root, rerun)
    if dry_run:
        show_plan(outline(experiment), store, console, hardware)
        return False
    planned = plan(experiment)
    todo = [p for p in planned if store.due(p.stage)]
    console.print(f"[bold]{experiment.title}[/bold]")
    for line in preflight.room(todo, root) + preflight.parts(planned_metrics(planned), experiment.attacks):
        warn(console, line)
    if estimate:
        for line in table.summary(*_priced(planned, store, hardware)):
            console.print(line, markup=False, highlight=False, soft_wrap=True)
    failed = build(console, store, planned, workers, plugins)
    keys = {p.stage.key for p in planned}
    name = Path(source).stem
    folder = out or root / "reports" / name
    results = report.Results.load([root], keys)
    extra: dict[str, Any] = {"published": experiment.published, "claims": experiment.claims}
    asked = experiment.model_dump(mode="json", include={"title", "report", *extra}) | {"version": __version__}
    made = key({**asked, "stages": sorted((stage.key, stage.status) for stage in results.stages)})
    note = folder / ".made-of"
    if not (note.is_file() and note.read_text() == made and (folder / "report.html").is_file()):
        note.unlink(missing_ok=True)
        shown: dict[str, Any] = {"tables": experiment.report.tables, "plots": experiment.report.plots}
        report.write(results, folder, experiment.title, **shown, **extra)
        note.write_text(made)
    console.print(report.terminal(results, console.width))
    for check in report.sanity(results):
        mark = "[green]ok  [/green]" if check.ok else "[red]FAIL[/red]" if check.ok is False else "[dim]--  [/dim]"
        console.print(f"{mark} {escape(f'{check.name}: {check.text}')}", highlight=False, soft_wrap=True)
    for verdict, line in report.lines(report.find(results, experiment.claims, experiment.published)):
        style = {"supported": "green", "refuted": "red", "undecided": "dim"}[verdict]
        console.print(f"[{style}]{verdict:<9}[/{style}] {escape(line)}", highlight=False, soft_wrap=True)
    console.print(f"report: {folder / 'report.html'}   ({time.monotonic() - start:.0f} s)")
    return failed


def show_plan(planned: Sequence[Planned], store: Store, console: Console, hardware: str | None = None) -> None:
    """Print the stages, which of them are there, and what the others take on `hardware` (None: on this machine)."""
    priced, machine = _priced(planned, store, hardware)
    unknown = dict.fromkeys(text for p in planned for text in p.unknown)
    lines = table.stages(priced, machine)
    lines += [f"not at hand: {text}; what is built already cannot be told" for text in unknown]
    lines += table.summary(priced, machine)
    for line in [*lines, *(["", *table.elsewhere(priced)] if not machine.measured else [])]:
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _priced(planned: Sequence[Planned], store: Store, hardware: str | None) -> tuple[list[table.Priced], costs.Machine]:
    """The stages with their states and estimates, and the machine these are for."""
    states = {p.name: "to build" if store.due(p.stage) else store.state(p.stage) for p in planned}
    spec = planned[0].stage.spec
    machine = costs.machine(hardware, ModelSettings(**spec["model"]["settings"]), int(spec["threads"]))
    return table.price(planned, states, machine), machine


def write_report(roots: Sequence[Path], experiment: str | None, out: Path, console: Console | None = None) -> None:
    """Write the report of run folders again, of one experiment or of everything in them."""
    console = console or Console()
    keys, title, options = None, "All runs", dict[str, Any]()
    if experiment is not None:
        loaded = schema.load(experiment)
        keys, title = {p.stage.key for p in plan(loaded)}, loaded.title
        options = {"tables": loaded.report.tables, "plots": loaded.report.plots}
        options |= {"published": loaded.published, "claims": loaded.claims}
    results = report.Results.load(list(roots), keys)
    report.write(results, out, title, **options)
    console.print(report.terminal(results, console.width))
    console.print(f"report: {out / 'report.html'}")


def build_stage(root: str, rerun: str, stage: Stage, parents: dict[str, str]) -> None:
    """In a worker: build one stage. What goes wrong is recorded by the store, and raised as `NotBuilt`."""
    from unlearnbench.stages import STAGES

    folders = {name: Path(folder) for name, folder in parents.items()}
    try:
        with Store(root, rerun).build(stage) as building:
            if not building.reused:
                building.record.update(STAGES[stage.kind](stage.spec, folders, building.folder))
    except Exception as error:
        raise NotBuilt(f"{error}" if isinstance(error, UserError) else f"{type(error).__name__}: {error}") from error


class NotBuilt(Exception):
    """A stage that failed or was skipped; its record says so too."""


def build(
    console: Console, store: Store, planned: Sequence[Planned], workers: int = 1, plugins: Sequence[str] = ()
) -> bool:
    """Build what is to be built of `planned`, in workers. True when something failed, now or before.

    Target and retrained model are scored before anything is unlearned, and doubts about their roles are said then.
    """
    todo = [p for p in planned if store.due(p.stage)]
    building = {p.name: p for p in todo}
    states = {p.name: store.state(p.stage) for p in planned if p.name not in building}
    kept = Counter(p.stage.kind for p in planned if states.get(p.name) == "complete")
    if kept:
        counted = ", ".join(f"{n} {kind}" for kind, n in kept.items())
        console.print(f"reused {sum(kept.values())} of {len(planned)} stages: {counted}", highlight=False)
    absent = {p.name: p for p in planned if states.get(p.name, "complete") != "complete"}
    for name, p in absent.items():
        line = f"{states[name]} before: {name}: {store.why(p.stage)}   (--rerun failed tries again)"
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    jobs = []
    for p in todo:
        parents = {name: str(store.folder(parent.stage)) for name, parent in p.parents.items()}
        after = tuple(q.name for q in p.parents.values() if q.name in building or q.name in absent)
        arguments = (str(store.root), store.rerun, p.stage, parents)
        jobs.append(Job(p.name, build_stage, arguments, after, p.timed, _rank(p)))
    failed = bool(absent)
    with Progress(console, {p.name: p.stage.kind for p in todo}, store.durations) as progress:
        for event in run_jobs(jobs, workers, plugins, lost=absent):
            if isinstance(event.cause, NotBuilt):
                event.error = str(event.cause)
            elif event.kind == "failed":  # the worker died, or the store itself failed
                store.fail(building[event.name].stage, event.error, event.trace)
            progress.show(event)
            if event.kind == "finished":
                for line in _doubts(store, planned, event.name):
                    warn(console, line)
            failed = failed or event.kind in ("failed", "blocked")
    return failed


def _doubts(store: Store, planned: Sequence[Planned], name: str) -> list[str]:
    """What the scores of a target say about the roles, once they are there (its retrained model is scored before)."""
    found = next((p for p in planned if p.name == name), None)
    if found is None or found.stage.spec.get("role") != "target" or _rank(found) != _SCORED_FIRST:
        return []
    retrained = found.parents.get("retrained")
    return preflight.roles(scores(store, found), scores(store, retrained) if retrained is not None else None)


def scores(store: Store, planned: Planned) -> dict[str, float | None]:
    """The values of an evaluation, by metric."""
    lines = read_json(store.folder(planned.stage) / "metrics.json")["metrics"]
    return {line["name"]: line["value"] for line in lines}


def warn(console: Console, line: str) -> None:
    """One doubt, in one line."""
    console.print(f"warning: {line}", style="yellow", markup=False, highlight=False, soft_wrap=True)


def planned_metrics(planned: Sequence[Planned]) -> list[str]:
    """The metrics that the stages will score."""
    return list(dict.fromkeys(name for p in planned for name in p.stage.spec.get("metrics", ())))
