"""Run folders: named by kind, label and key; built under a lock and a temporary name; checked before they are used.

    stage = Stage("unlearn", "masc-s0", spec)
    with Store("runs").build(stage) as building:
        if not building.reused:
            building.record.update(work(spec, building.folder))     # writes files into the folder
    building.folder                                                 # runs/unlearn-masc-s0-5f1c0e9a

The folder appears whole or not at all: `record.json`, written last, lists every other file with its size and SHA-256.
Only the process that holds the stage's lock works under the temporary name, which follows from the key. What a killed
builder leaves counts for nothing, but its `checkpoint/` and `log.jsonl` are handed to the next builder of the stage.
"""

from __future__ import annotations

import os
import re
import shutil
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

from filelock import FileLock, Timeout

from unlearnbench.canonical import file_hash, key, plain, read_json, write_json
from unlearnbench.errors import UserError, did_you_mean
from unlearnbench.provenance import environment

Rerun = Literal["missing", "failed", "always", "never"]
State = Literal["complete", "failed", "skipped", "damaged", "missing"]

HANDED_ON = ("checkpoint", "log.jsonl")  #: what a killed builder leaves to the next one
ATTEMPTS = "attempts.json"


class Skip(Exception):
    """Raised inside `build` by what cannot run for a reason that is no fault, such as a split the benchmark lacks."""


class Damaged(Exception):
    """A folder whose files are not what its record says."""


@dataclass(frozen=True)
class Stage:
    """One piece of work. Its key is the hash of kind, label and spec, known before anything runs.

    `spec` holds all that the result depends on: settings, seed, the parents' keys, data and tokenizer hashes, declared
    versions, torch and transformers versions, dtype, device kind, threads.
    """

    kind: str
    label: str
    spec: Mapping[str, Any]

    @cached_property
    def content(self) -> dict[str, Any]:
        """What goes into `spec.json`: the spec, with kind and label."""
        return {**plain(self.spec), "kind": self.kind, "label": self.label}

    @cached_property
    def key(self) -> str:
        """The hash of `content`, 16 hex digits."""
        return key(self.content)

    @property
    def folder_name(self) -> str:
        """Kind, label (as far as file names allow) and the first eight digits of the key."""
        label = re.sub(r"[^A-Za-z0-9._=+]+", "-", self.label).strip("-.")[:80]
        return "-".join(part for part in (self.kind, label, self.key[:8]) if part)


@dataclass(frozen=True)
class Run:
    """A finished folder: its request and its record."""

    folder: Path
    spec: dict[str, Any]
    record: dict[str, Any]

    @property
    def key(self) -> str:
        return str(self.record["key"])

    @property
    def status(self) -> Literal["complete", "failed", "skipped"]:
        status: Literal["complete", "failed", "skipped"] = self.record["status"]
        return status

    @property
    def reason(self) -> str:
        """Why it failed or was skipped: one line."""
        return str(self.record.get("error") or self.record.get("reason") or "")

    def verify(self) -> list[str]:
        """What is wrong with its files, one line each, after reading all of them against their SHA-256."""
        problems = []
        for name, entry in self.record["files"].items():
            file = self.folder / name
            if not file.is_file():
                problems.append(f"{file} is missing")
            elif file_hash(file) != entry["sha256"]:
                problems.append(f"{file} is not what was recorded")
        return problems


@dataclass
class Building:
    """A stage being built, or, when `reused`, one that is there: then nothing may be changed.

    Write files into `folder`; put into `record` what `record.json` should say (strict JSON values). After the `with`
    block `folder` is the finished folder.
    """

    folder: Path
    reused: bool = False
    record: dict[str, Any] = field(default_factory=dict)


class Store:
    """The run folders under `root`. Cheap to make, picklable, safe with any number of processes.

    `rerun` says which stages are built: `missing` (default) those that are not there, `failed` also those that failed
    or were skipped, `always` all, from the start, `never` none. `provenance` gives `hardware`, `versions` and `git`.
    """

    def __init__(
        self, root: str | Path, rerun: str = "missing", provenance: Callable[[], Mapping[str, Any]] = environment
    ):
        if rerun not in get_args(Rerun):
            raise UserError(f"--rerun cannot be '{rerun}'; {did_you_mean(rerun, get_args(Rerun))}")
        self.root = Path(root)
        self.rerun = rerun
        self.provenance = provenance

    # -- asking ------------------------------------------------------------------------------------------------

    def folder(self, stage: Stage) -> Path:
        """Where the stage's run is, or will be."""
        return self.root / stage.folder_name

    def find(self, stage: Stage) -> Run | None:
        """The stage's run, whether it is complete, failed or skipped; None when there is none or it is damaged.

        Raises `UserError` when the folder holds another request: its `spec.json` was changed by hand, or two keys begin
        with the same eight digits.
        """
        try:
            return self._find(stage)
        except Damaged:
            return None

    def state(self, stage: Stage) -> State:
        """What is there: `complete`, `failed`, `skipped`, `damaged` (files missing or cut off) or `missing`."""
        try:
            found = self._find(stage)
        except Damaged:
            return "damaged"
        return "missing" if found is None else found.status

    def due(self, stage: Stage) -> bool:
        """Whether `build` would build the stage."""
        if self.rerun in ("always", "never"):
            return self.rerun == "always"
        state = self.state(stage)
        return state in ("missing", "damaged") or (self.rerun == "failed" and state != "complete")

    def why(self, stage: Stage) -> str:
        """Why the stage is not complete: the error of the run, or what is damaged. One line."""
        try:
            found = self._find(stage)
        except Damaged as damage:
            return str(damage)
        return "nothing is there" if found is None else found.reason

    def runs(self, kind: str | None = None) -> list[Run]:
        """All runs in the store, by name. Damaged folders and those that hold no run are left out."""
        found = []
        for folder in sorted(self.root.iterdir()) if self.root.is_dir() else ():
            if folder.is_dir() and not folder.name.startswith("."):
                try:
                    run = _read(folder)
                except Damaged:
                    continue
                if kind in (None, run.spec["kind"]) and key(run.spec) == run.key:
                    found.append(run)
        return found

    def durations(self, kind: str) -> list[float]:
        """Seconds that complete runs of a kind took on this hardware, all attempts but the killed ones."""
        here = self.provenance().get("hardware")
        return [
            float(run.record["wall_seconds"])
            for run in self.runs(kind)
            if run.status == "complete" and run.record.get("hardware") == here
        ]

    # -- building ----------------------------------------------------------------------------------------------

    @contextmanager
    def build(self, stage: Stage, on_wait: Callable[[], None] | None = None) -> Iterator[Building]:
        """Build the stage under its lock, or hand out the run that is there (`reused`).

        When another process is building it, `on_wait` is called, and its result is reused. An exception inside the
        block becomes a failed run with its error and `traceback.txt`, a `Skip` a skipped run; both are raised again.
        An interrupt or a kill leaves no run, and the checkpoint for the next attempt. Raises `UserError` when `rerun`
        does not allow to build.
        """
        with self._lock(stage, on_wait) as waited:
            if not self.due(stage) or (waited and self.state(stage) == "complete"):
                found = self.find(stage)
                if found is None or found.status != "complete":
                    raise UserError(f"{stage.folder_name} is not built again: {self.why(stage)}")
                yield Building(found.folder, reused=True, record=found.record)
                return
            adopted = self._adopt(stage) if self.rerun != "always" else None
            if adopted is not None:
                yield Building(adopted.folder, reused=True, record=adopted.record)
                return
            building, attempts = self._start(stage)
            started = time.time()
            outcome: dict[str, Any] = {"status": "complete"}
            raised: Exception | None = None
            try:
                yield building
                said = self._said(building.record)
            except Exception as error:
                raised, said = error, {}
                if isinstance(error, Skip):
                    outcome = {"status": "skipped", "reason": _line(error)}
                else:
                    outcome = {"status": "failed", "error": _line(error)}
                    (building.folder / "traceback.txt").write_text(traceback.format_exc(), encoding="utf-8")
            self._seal(stage, building.folder, {**outcome, **said}, started, attempts)
            building.folder = self._publish(stage, building.folder)
            if raised is not None:
                raise raised

    def fail(self, stage: Stage, error: str, trace: str = "") -> None:
        """Record a builder that died without a word (killed, out of memory). Its checkpoint stays for a retry."""
        with self._lock(stage, None):
            if self.state(stage) == "complete":
                return
            folder = self.root / f".failed-{stage.key}"
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            write_json(folder / "spec.json", stage.content)
            (folder / "traceback.txt").write_text(trace, encoding="utf-8")
            self._seal(stage, folder, {"status": "failed", "error": " ".join(error.split())}, time.time(), 1)
            self._publish(stage, folder)

    def _start(self, stage: Stage) -> tuple[Building, int]:
        """The temporary folder, emptied but for what a killed builder hands on; and the number of this attempt."""
        folder, attempts = self.root / f".building-{stage.key}", 1
        if folder.is_dir():
            checkpoint = folder / "checkpoint"
            usable = self.rerun != "always" and checkpoint.is_dir() and any(checkpoint.iterdir())
            if usable and (folder / ATTEMPTS).is_file():
                attempts += int(read_json(folder / ATTEMPTS)["attempts"])
            for entry in folder.iterdir():
                if not (usable and entry.name in HANDED_ON):
                    _remove(entry)
        folder.mkdir(exist_ok=True)
        write_json(folder / ATTEMPTS, {"attempts": attempts})
        write_json(folder / "spec.json", stage.content)
        return Building(folder), attempts

    def _said(self, record: dict[str, Any]) -> dict[str, Any]:
        said: dict[str, Any] = plain(record)
        ours = {
            "status",
            "error",
            "key",
            "files",
            "attempts",
            "started",
            "finished",
            "wall_seconds",
            *self.provenance(),
        }
        if ours & said.keys():
            raise ValueError(f"a builder may not put {sorted(ours & said.keys())} into the record: the store does")
        return said

    def _seal(self, stage: Stage, folder: Path, record: dict[str, Any], started: float, attempts: int) -> None:
        """Write the record. With it the folder is finished, whatever its name. A failed stage keeps no models."""
        (folder / ATTEMPTS).unlink(missing_ok=True)
        for entry in folder.iterdir() if record["status"] != "complete" else ():
            if entry.is_dir():
                _remove(entry)
        files = sorted(f for f in folder.rglob("*") if f.is_file() and f.relative_to(folder).parts[0] != "checkpoint")
        finished = time.time()
        sealed = {
            **record,
            "key": stage.key,
            "attempts": attempts,
            "started": _utc(started),
            "finished": _utc(finished),
            "wall_seconds": round(finished - started, 3),
            **self.provenance(),
            "files": {
                f.relative_to(folder).as_posix(): {"size": f.stat().st_size, "sha256": file_hash(f)} for f in files
            },
        }
        write_json(folder / "record.json", sealed)

    def _publish(self, stage: Stage, folder: Path) -> Path:
        """Give a sealed folder its name. What had the name before is removed once it is out of the way."""
        if (folder / "checkpoint").is_dir():
            _remove(folder / "checkpoint")
        final, old = self.folder(stage), self.root / f".replaced-{stage.key}"
        shutil.rmtree(old, ignore_errors=True)
        if final.exists():
            final.rename(old)
        folder.rename(final)
        _sync(self.root)
        shutil.rmtree(old, ignore_errors=True)
        return final

    def _adopt(self, stage: Stage) -> Run | None:
        """A folder that was sealed complete by a builder killed before it could publish it."""
        folder = self.root / f".building-{stage.key}"
        if not (folder / "record.json").is_file():
            return None
        try:
            run = _read(folder)
        except Damaged:
            return None
        if run.status != "complete" or run.key != stage.key:
            return None
        return _read(self._publish(stage, folder))

    @contextmanager
    def _lock(self, stage: Stage, on_wait: Callable[[], None] | None) -> Iterator[bool]:
        """Hold the stage's lock; says whether somebody else held it. The system frees it when a process dies."""
        folder = self.root / ".locks"
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"The runs folder {self.root} cannot be written: {error.strerror}.") from error
        lock = FileLock(folder / f"{stage.key}.lock", thread_local=False)
        waited = False
        try:
            lock.acquire(blocking=False)
        except Timeout:
            waited = True
            if on_wait is not None:
                on_wait()
            lock.acquire()
        try:
            yield waited
        finally:
            lock.release()

    def _find(self, stage: Stage) -> Run | None:
        folder = self.folder(stage)
        if not folder.is_dir():
            return None
        run = _read(folder)
        if run.key != stage.key:
            raise UserError(
                f"{folder} belongs to a request with another key ({run.key}, not {stage.key}): move it away."
            )
        if key(run.spec) != stage.key:
            raise UserError(f"{folder / 'spec.json'} was changed by hand: put it back as it was, or remove the folder.")
        return run


def _read(folder: Path) -> Run:
    """The run in a folder. Raises `Damaged` when a file is missing, cut off or of another size than recorded."""
    try:
        spec, record = read_json(folder / "spec.json"), read_json(folder / "record.json")
        sizes = {name: entry["size"] for name, entry in record["files"].items()}
        whole = isinstance(spec["kind"], str) and isinstance(record["key"], str) and record["status"] in _STATUS
    except UserError as error:
        raise Damaged(str(error)) from error
    except (KeyError, TypeError, AttributeError):
        whole, sizes = False, {}
    if not whole:
        raise Damaged(f"{folder} holds no run: spec.json or record.json lacks its fields")
    sizes.pop("spec.json", None)  # the key says whether this one is what it was
    for name, size in sizes.items():
        file = folder / name
        if not file.is_file() or file.stat().st_size != size:
            raise Damaged(f"{file} is missing or cut off")
    return Run(folder, spec, record)


_STATUS = ("complete", "failed", "skipped")


def _line(error: BaseException) -> str:
    """An error as one line; the type is named unless the text was written for people."""
    text = " ".join(str(error).split())
    return text if isinstance(error, UserError | Skip) else f"{type(error).__name__}: {text}".removesuffix(": ")


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def _utc(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="seconds")


def _sync(folder: Path) -> None:
    """Make a rename last through a power cut, where the system can."""
    if hasattr(os, "O_DIRECTORY"):
        handle = os.open(folder, os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
