"""The command line: thin, each verb calls one function. `--help` never imports torch."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from unlearnbench.errors import UserError

app = typer.Typer(
    name="unlearnbench",
    help="Compare methods that make a language model forget chosen training data.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Runs = Annotated[Path, typer.Option("--runs", help="Folder of the run folders.", envvar="UNLEARNBENCH_RUNS")]
Plugins = Annotated[list[Path], typer.Option("--plugin", help="A Python file with methods or metrics of your own.")]
KINDS = ("methods", "metrics", "benchmarks", "attacks", "stop-rules", "experiments")


def _plugins(files: list[Path]) -> None:
    from unlearnbench.registry import load_plugin

    for file in files:
        load_plugin(file)


def _words(text: str | None) -> list[str] | None:
    return None if text is None else [word.strip() for word in text.split(",") if word.strip()]


def _seeds(text: str | None) -> list[int] | None:
    """`3` means 0, 1, 2; `0,4` means these."""
    if text is None:
        return None
    try:
        numbers = [int(word) for word in text.split(",")]
    except ValueError:
        raise UserError(f"--seeds takes a number or a comma-separated list of numbers, got '{text}'.") from None
    if "," not in text:
        if numbers[0] < 1:
            raise UserError(f"--seeds takes a number of at least 1, got '{text}'.")
        return list(range(numbers[0]))
    return numbers


@app.command("list")
def list_(
    kind: Annotated[str, typer.Argument(help=f"One of: {', '.join(KINDS)}; all of them when left out.")] = "",
    plugin: Plugins = [],  # noqa: B006  (typer copies it)
) -> None:
    """List methods, metrics, benchmarks, attacks, stop rules and experiments."""
    from unlearnbench.catalogue import listing

    _plugins(plugin)
    listing(kind)


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="A method, metric, benchmark, attack, stop rule or experiment.")],
    plugin: Plugins = [],  # noqa: B006
) -> None:
    """Show one thing: what it does, its hyper-parameters with bounds and sources, where it comes from."""
    from unlearnbench.catalogue import details

    _plugins(plugin)
    details(name)


@app.command()
def run(
    experiment: Annotated[str, typer.Argument(help="A YAML file, or the name of a packaged experiment.")],
    methods: Annotated[str | None, typer.Option(help="Only these methods, comma-separated.")] = None,
    seeds: Annotated[str | None, typer.Option(help="A number of seeds, or a comma-separated list.")] = None,
    set_: Annotated[list[str], typer.Option("--set", help="Change a value: unlearn.epochs=5.")] = [],  # noqa: B006
    plugin: Plugins = [],  # noqa: B006
    runs: Runs = Path("runs"),
    out: Annotated[Path | None, typer.Option(help="Folder of the report (default: RUNS/reports/NAME).")] = None,
    workers: Annotated[int, typer.Option(min=1, help="Worker processes.")] = 2,
    rerun: Annotated[
        str, typer.Option(help="Which stages to build again: missing, failed, always, never.")
    ] = "missing",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the plan, what is cached and what the rest takes; run nothing.")
    ] = False,
    hardware: Annotated[
        str | None,
        typer.Option(help="With --dry-run: h200, h100, a100, l40s, 4090, or cpu (measured); else what is here."),
    ] = None,
) -> None:
    """Run an experiment, or what is missing of it, and write its report."""
    from unlearnbench.executors import start_early

    if not dry_run:
        start_early()
    from unlearnbench import pipeline

    _plugins(plugin)
    failed = pipeline.run(
        experiment,
        overrides=set_,
        methods=_words(methods),
        seeds=_seeds(seeds),
        plugins=[str(file) for file in plugin],
        root=runs,
        out=out,
        workers=workers,
        rerun=rerun,
        dry_run=dry_run,
        hardware=hardware,
    )
    raise typer.Exit(1 if failed else 0)


@app.command("eval")
def eval_(
    model: Annotated[str, typer.Argument(help="The model to score: a folder, a short name, or a Hub id.")],
    benchmark: Annotated[str, typer.Option(help="See `unlearnbench list benchmarks`.")],
    split: Annotated[str | None, typer.Option(help="Which of the benchmark's settings: forget10, books …")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Folder with the benchmark's files.")] = None,
    forget: Annotated[Path | None, typer.Option(help="For jsonl: the records to forget.")] = None,
    retain: Annotated[Path | None, typer.Option(help="For jsonl: the records to keep.")] = None,
    holdout: Annotated[Path | None, typer.Option(help="For jsonl: records never trained on.")] = None,
    protocol: Annotated[
        str, typer.Option(help="Whose encoding and formulas: ours, tofu, open-unlearning, muse.")
    ] = "ours",
    reference: Annotated[
        Path | None, typer.Option(help="The retrained model: a run folder, or a log of TOFU or OpenUnlearning.")
    ] = None,
    metrics: Annotated[str | None, typer.Option(help="Metrics or suites (default: the benchmark's suite).")] = None,
    set_: Annotated[list[str], typer.Option("--set", help="Change a value: model.template=plain.")] = [],  # noqa: B006
    out: Annotated[Path, typer.Option(help="Folder for metrics and samples.")] = Path("evaluation"),
    plugin: Plugins = [],  # noqa: B006
    runs: Runs = Path("runs"),
    rerun: Annotated[str, typer.Option(help="Score again: missing, failed, always, never.")] = "missing",
) -> None:
    """Score any checkpoint on a benchmark."""
    from unlearnbench import checkup

    _plugins(plugin)
    given = {"data_dir": data_dir, "forget": forget, "retain": retain, "holdout": holdout}
    files = {name: str(path) for name, path in given.items() if path is not None}
    request = checkup.Request(model, benchmark, split, files, protocol, reference, _words(metrics), tuple(set_), out)
    checkup.evaluate(request, root=runs, rerun=rerun)


@app.command()
def unlearn(
    model: Annotated[str, typer.Argument(help="The model to unlearn from: a folder, a short name, or a Hub id.")],
    forget: Annotated[Path, typer.Option(help="The records to forget, one JSON object a line.")],
    retain: Annotated[Path | None, typer.Option(help="Records whose answers must stay as they are.")] = None,
    holdout: Annotated[Path | None, typer.Option(help="Records never trained on, for the membership test.")] = None,
    method: Annotated[str, typer.Option(help="The method: see `unlearnbench list methods`.")] = "masc",
    set_: Annotated[
        list[str], typer.Option("--set", help="Change a value: rho=0.6, unlearn.epochs=5, model.template=plain.")
    ] = [],  # noqa: B006
    lora: Annotated[bool, typer.Option("--lora", help="Train a LoRA adapter instead of all weights.")] = False,
    adapter: Annotated[
        bool, typer.Option("--adapter/--merged", help="Write the LoRA adapter, or the whole model with it merged in.")
    ] = False,
    out: Annotated[Path, typer.Option(help="Folder of the unlearned model.")] = Path("unlearned"),
    seed: Annotated[int, typer.Option(min=0, help="Seed of the order of rows.")] = 0,
    plugin: Plugins = [],  # noqa: B006
    runs: Runs = Path("runs"),
    rerun: Annotated[
        str, typer.Option(help="Which stages to build again: missing, failed, always, never.")
    ] = "missing",
    tidy: Annotated[bool, typer.Option("--tidy", help="Remove the run folders, which hold the rows' text.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be done; do nothing.")] = False,
) -> None:
    """Forget records: a model folder that transformers loads, with scores before and after and a model card."""
    from unlearnbench.executors import start_early

    if not dry_run:
        start_early()
    from unlearnbench import delivery

    _plugins(plugin)
    request = delivery.Request(model, forget, retain, holdout, method, tuple(set_), lora or adapter, adapter, seed, out)
    failed = delivery.unlearn(
        request,
        root=runs,
        rerun=rerun,
        plugins=[str(file) for file in plugin],
        dry_run=dry_run,
        tidy=tidy,
    )
    raise typer.Exit(1 if failed else 0)


@app.command()
def reproduce(
    experiment: Annotated[str, typer.Argument(help="A packaged experiment (`list experiments`), or a YAML file.")],
    seeds: Annotated[str | None, typer.Option(help="A number of seeds, or a comma-separated list.")] = None,
    set_: Annotated[list[str], typer.Option("--set", help="Change a value: model.name=FOLDER.")] = [],  # noqa: B006
    runs: Runs = Path("runs"),
    out: Annotated[Path | None, typer.Option(help="Folder of the report (default: RUNS/reports/NAME).")] = None,
    workers: Annotated[int, typer.Option(min=1, help="Worker processes.")] = 2,
) -> None:
    """Run a paper's experiment: what it will take, its tables and figures, and what came of the paper's claims."""
    from unlearnbench.executors import start_early

    start_early()
    from unlearnbench import pipeline

    failed = pipeline.run(
        experiment, overrides=set_, seeds=_seeds(seeds), root=runs, out=out, workers=workers, estimate=True
    )
    raise typer.Exit(1 if failed else 0)


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="Folders of run folders.")] = [Path("runs")],  # noqa: B006
    experiment: Annotated[str | None, typer.Option(help="Only the cells of this experiment.")] = None,
    out: Annotated[Path, typer.Option(help="Folder of the report.")] = Path("report"),
    plugin: Plugins = [],  # noqa: B006
) -> None:
    """Write tables, plots and the page again, from run folders alone."""
    from unlearnbench import pipeline

    _plugins(plugin)
    pipeline.write_report(runs, experiment, out)


@app.command()
def leaderboard(
    runs: Annotated[list[Path], typer.Argument(help="Folders of run folders.")] = [Path("runs")],  # noqa: B006
    out: Annotated[Path, typer.Option(help="The CSV file.")] = Path("leaderboard.csv"),
) -> None:
    """Write the leaderboard of run folders: CSV, and beside it Markdown, LaTeX and a page to sort and filter."""
    from unlearnbench import report as reports

    results = reports.Results.load(runs)
    files = reports.write_board(results, out)
    typer.echo(f"{len(reports.leaderboard(results))} rows in {', '.join(map(str, files))}")


@app.command()
def verify(
    file: Annotated[Path, typer.Argument(help="A leaderboard CSV.")],
    runs: Annotated[list[Path], typer.Argument(help="Folders of run folders.")] = [Path("runs")],  # noqa: B006
) -> None:
    """Recompute a leaderboard from run folders and their samples, and name each cell that differs."""
    from unlearnbench import report as reports

    problems = reports.verify(file, runs)
    for problem in problems:
        typer.echo(problem)
    typer.echo(f"{file}: " + (f"{len(problems)} differences" if problems else "every cell is what the runs give"))
    raise typer.Exit(1 if problems else 0)


@app.command()
def compare(
    a: Annotated[str, typer.Argument(help="A method as the table calls it (npo), or the folder of an evaluation.")],
    b: Annotated[str, typer.Argument(help="What it is compared with.")],
    runs: Annotated[list[Path], typer.Argument(help="Folders of run folders.")] = [Path("runs")],  # noqa: B006
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Compare two methods or runs metric by metric: paired over seeds, with intervals, effect sizes and Holm."""
    import json

    from rich.console import Console

    from unlearnbench.report import compare as comparing
    from unlearnbench.report.forms import rich

    found = comparing.compare(a, b, runs)
    if as_csv:
        typer.echo(comparing.as_csv(found), nl=False)
    elif as_json:
        typer.echo(json.dumps(comparing.as_json(found), indent=1, allow_nan=False))
    else:
        console = Console()
        for grid in comparing.grids(found):
            console.print(rich(grid, console.width))


@app.command()
def rescore(
    run: Annotated[Path, typer.Argument(help="The folder of an evaluation, or a folder of run folders.")],
    metrics: Annotated[str | None, typer.Option(help="Also these metrics or suites, comma-separated.")] = None,
    reference: Annotated[Path | None, typer.Option(help="The retrained model an `eval` compared with.")] = None,
    check: Annotated[bool, typer.Option("--check", help="Compare only; write nothing.")] = False,
    plugin: Plugins = [],  # noqa: B006
) -> None:
    """Compute the metrics of runs again from their answers, without a model, and compare or write them anew."""
    from unlearnbench import rescoring

    _plugins(plugin)
    found = rescoring.rescore(run, _words(metrics) or (), check, reference)
    for one in found:
        typer.echo(f"{one.state:<10} {one.run.folder.name}" + (f" -> {one.folder.name}" if one.folder else ""))
        for line in one.lines:
            typer.echo(f"           {line}")
    bad = sum(one.state in ("differs", "impossible") or (check and one.state == "new") for one in found)
    raise typer.Exit(1 if bad else 0)


@app.command("import")
def import_(
    file: Annotated[Path, typer.Argument(help="A log: TOFU_EVAL.json, MUSE_EVAL.json or eval_log_aggregated.json.")],
    benchmark: Annotated[str, typer.Option(help="The benchmark it was made on.")] = "tofu",
    split: Annotated[str | None, typer.Option(help="TOFU's forget set (default: forget10).")] = None,
    model: Annotated[
        str, typer.Option(help="The name of the base model; a table compares models of one name.")
    ] = "imported",
    role: Annotated[str, typer.Option(help="unlearned, target or retrained.")] = "unlearned",
    name: Annotated[str | None, typer.Option(help="How tables call an unlearned model (default: its folder).")] = None,
    seed: Annotated[int, typer.Option(min=0, help="The seed it counts as.")] = 0,
    reference: Annotated[Path | None, typer.Option(help="The retrained model: its log or its run.")] = None,
    out: Annotated[Path, typer.Option("--out", help="Folder of the run folders.")] = Path("runs"),
) -> None:
    """Read an evaluation log of TOFU or OpenUnlearning as a run, for tables and as a reference."""
    from unlearnbench.importing import import_log

    made = import_log(file, benchmark, split, model, role, name, seed, reference, out)
    for metric, value in made.evaluation.values.items():
        logged = "   (as logged)" if value.details.get("as_logged") else ""
        number = f"null: {value.reason}" if value.score is None else f"{value.score:.6g}   n={value.n}{logged}"
        typer.echo(f"{metric:<44} {number}")
    for note in made.notes:
        typer.echo(f"note: {note}")
    typer.echo(f"{'already there' if made.reused else 'imported'}: {made.folder}")


@app.command()
def new(
    kind: Annotated[str, typer.Argument(help="method or metric.")],
    name: Annotated[str, typer.Argument(help="The name it is to have, such as my-method.")],
    out: Annotated[Path, typer.Option(help="Folder of the two files.")] = Path(),
) -> None:
    """Write the file of a new method or metric, which works and waits to be changed, and its test."""
    from unlearnbench.testing import scaffold

    file, test = scaffold.write(kind, name, out)
    typer.echo(f"{file}\n{test}")
    typer.echo(f"try: unlearnbench check {kind} {name} --plugin {file}")


@app.command()
def check(
    kind: Annotated[str, typer.Argument(help="method or metric.")],
    name: Annotated[str, typer.Argument(help="Its registered name.")],
    plugin: Plugins = [],  # noqa: B006
) -> None:
    """Check that everything holds of a method or metric that holds of the built-in ones, a line per check."""
    from unlearnbench.errors import did_you_mean

    if kind not in ("method", "metric"):
        raise UserError(f"There are no checks of a '{kind}'; {did_you_mean(kind, ('method', 'metric'))}")
    from unlearnbench.testing import check as conformance

    _plugins(plugin)
    checks = conformance.method_checks(name) if kind == "method" else conformance.metric_checks(name)
    raise typer.Exit(1 if conformance.report(checks, typer.echo) else 0)


@app.command()
def env() -> None:
    """Show versions, hardware and what optional parts are missing, with the command that mends it."""
    from unlearnbench.catalogue import environment

    environment()


def main() -> None:
    """The entry point: mistakes of the user are one line each on stderr and exit code 2."""
    try:
        app()
    except UserError as error:
        for line in str(error).splitlines():
            print(f"error: {line}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:
        sys.exit(141)
    except KeyboardInterrupt:
        print("interrupted; what is complete is kept, run the same command to go on", file=sys.stderr)
        sys.exit(130)
