"""A published log as a run: `unlearnbench import`. It stands in tables like any other, marked as imported.

The run is an evaluation without answers: samples and metrics, computed by our code from the numbers of the log. It has
no training, so no cost, and keeps the protocol it was made under, which tables do not mix with another.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from unlearnbench import log_files
from unlearnbench.benchmarks.base import benchmarks
from unlearnbench.errors import UserError, did_you_mean
from unlearnbench.evaluation import Evaluation
from unlearnbench.logs import FORGET_SIZES, Log, disagreements
from unlearnbench.metric import resolve
from unlearnbench.references import recorded, retrained_run, same_protocol
from unlearnbench.stages import save_values
from unlearnbench.store import Stage, Store

ROLES = ("unlearned", "target", "retrained")
VERSION = 1  #: bumped when the numbers of an import change


@dataclass(frozen=True)
class Imported:
    """Where the run is, what it holds, whether it was there before, and what does not fit together in the log."""

    folder: Path
    evaluation: Evaluation
    reused: bool
    notes: list[str] = field(default_factory=list)


def import_log(
    file: Path,
    benchmark: str = "tofu",
    split: str | None = None,
    model: str = "imported",
    role: str = "unlearned",
    name: str | None = None,
    seed: int = 0,
    reference: Path | None = None,
    out: Path = Path("runs"),
) -> Imported:
    """Make a run of a log of TOFU or OpenUnlearning under `out`.

    `split` is TOFU's forget set (default forget10). `reference`: the retrained model's log, which becomes a run too, or
    its run. `name` labels an unlearned model (default: the folder of the file). Raises `UserError`, one line, for what
    is no log, one of another split or benchmark, or a reference under another protocol.
    """
    if role not in ROLES:
        raise UserError(f"--role cannot be '{role}'; {did_you_mean(role, ROLES)}")
    log = log_files.read(file)
    about = _benchmark(log, benchmark, split)
    retrained, parents = None, {}
    if reference is not None:
        retrained, parents["retrained"] = _reference(reference, log, about, model, seed, out)
    label = name or file.resolve().parent.name
    cell = {"method": label, "version": 1, "label": label, "title": label, "params": {}, "origin": f"{log.code} log"}
    found = log.evaluate(retrained)
    spec = {
        "import_version": VERSION,
        "imported": {"code": log.code, "file": file.name, "sha256": log.sha256},
        "benchmark": about,
        "model": {"name": model},
        "protocol": log.protocol,
        "role": role,
        "seed": seed,
        "attack": "none",
        "cell": cell if role == "unlearned" else None,
        "metrics": list(found.values),
        "metric_versions": {metric: resolve(metric)[0].version for metric in found.values},
        "parents": parents,
    }
    stage = Stage("evaluate", f"{label if role == 'unlearned' else role}-s{seed}", spec)
    with Store(out).build(stage) as building:
        if not building.reused:
            save_values(found, building.folder)
            building.record.update(imported=spec["imported"], forget_rows=log.forget_rows)
    return Imported(building.folder, found, building.reused, disagreements(log, found))


def _benchmark(log: Log, name: str, split: str | None) -> dict[str, Any]:
    """The benchmark part of the spec, once the log is known to be of it."""
    entry = benchmarks.get(name)
    if entry.name.partition("-")[0] != log.family or entry.name.endswith("-mini"):
        raise UserError(f"{log.file} is a log of {log.family}, not of {entry.name}.")
    log.check_corpus(entry.name)
    options: dict[str, Any] = {}
    if log.family == "tofu":
        default = str(inspect.signature(entry.cls).parameters["forget"].default)
        split = split or default
        if split not in FORGET_SIZES:
            raise UserError(f"--split cannot be '{split}'; {did_you_mean(split, FORGET_SIZES)}")
        log.check_split(split, FORGET_SIZES[split])
        options = {} if split == default else {"forget": split}
    elif split is not None:
        raise UserError(f"--split is for TOFU; {entry.name} has one forget set.")
    return {"name": entry.name, "version": entry.version, "options": options}


def _reference(
    path: Path, log: Log, about: Mapping[str, Any], model: str, seed: int, out: Path
) -> tuple[Evaluation, str]:
    """The retrained model's evaluation, and the key of its run; a log becomes a run first."""
    if path.is_file():
        split = about["options"].get("forget")
        made = import_log(path, about["name"], split, model, "retrained", None, seed, None, out)
        path = made.folder
    stage = retrained_run(path)
    same_protocol(f"{stage.folder} was scored under", stage.protocol, log.protocol)
    there = stage.spec.get("benchmark") or {}
    if (there.get("name"), (there.get("options") or {}).get("forget")) != (
        about["name"],
        about["options"].get("forget"),
    ):
        raise UserError(f"{stage.folder} is a run on other rows: {there.get('name')} {there.get('options') or ''}.")
    return recorded(stage), stage.key
