"""What run folders say: stages on disk, gathered into groups that may be compared, arms and seeds.

Nothing here needs a model. A *group* is one (benchmark, model, protocol, attack); inside it, an *arm* is one row of a
table: base, target, retrained, or a method with its hyper-parameters; an arm has one *run* per seed.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from unlearnbench.errors import SeveralErrors, UserError

ROLES = ("base", "target", "retrained", "unlearned")
PHASES = ("prepare", "optimise", "probe", "select")  #: the phases that together are a method's cost
TRAINING = ("base", "target", "retrained", "unlearn")  #: kinds of stages that train a model


def read_json(file: Path) -> Any:
    """Strict JSON: NaN and Infinity are refused. Raises `UserError` with the file's name."""

    def refuse(constant: str) -> Any:
        raise ValueError(f"it holds {constant}, which is not JSON")

    try:
        return json.loads(file.read_text(encoding="utf-8"), parse_constant=refuse)
    except (ValueError, OSError) as error:
        raise UserError(f"{file} cannot be read: {error}") from error


def read_lines(file: Path) -> list[dict[str, Any]]:
    """The lines of a log; a last line that a killed run left half-written is dropped."""
    lines: list[dict[str, Any]] = []
    if file.is_file():
        for text in file.read_text(encoding="utf-8").splitlines():
            try:
                lines.append(json.loads(text))
            except ValueError:
                break
    return lines


class Sample(NamedTuple):
    """A metric's value on one row; None where it is undefined."""

    split: str
    row_id: str
    group: str
    value: float | None


@dataclass(frozen=True)
class MetricValue:
    """A metric's value as `metrics.json` holds it."""

    name: str
    version: int
    protocol: str
    direction: str
    side: str
    unit: str
    value: float | None
    n: int
    interval: tuple[float, float] | None
    reason: str
    details: dict[str, Any]
    mean: bool | None  #: whether the value is the mean of the samples; None: not recorded

    @classmethod
    def parse(cls, entry: Mapping[str, Any]) -> MetricValue:
        interval = entry.get("interval")
        return cls(
            name=str(entry["name"]),
            version=int(entry.get("version", 1)),
            protocol=str(entry.get("protocol", "ours")),
            direction=str(entry.get("direction", "higher")),
            side=str(entry.get("side", "descriptive")),
            unit=str(entry.get("unit", "")),
            value=None if entry.get("value") is None else float(entry["value"]),
            n=int(entry.get("n", 0)),
            interval=None if interval is None else (float(interval[0]), float(interval[1])),
            reason=str(entry.get("reason", "")),
            details=dict(entry.get("details") or {}),
            mean=entry.get("mean"),
        )


@dataclass(frozen=True)
class Stage:
    """One stage folder. `given` metrics, where there are some, stand for those of `metrics.json`."""

    folder: Path
    key: str
    spec: dict[str, Any] = field(repr=False)
    record: dict[str, Any] = field(repr=False)
    given: dict[str, MetricValue] | None = field(default=None, repr=False)

    @property
    def kind(self) -> str:
        return str(self.spec.get("kind", ""))

    @property
    def seed(self) -> int:
        return int(self.spec.get("seed") or 0)

    @property
    def status(self) -> str:
        return str(self.record.get("status", "complete"))

    @property
    def reason(self) -> str:
        """Why the stage failed or was skipped; empty when it is complete."""
        if self.status == "complete":
            return ""
        return str(self.record.get("error") or self.record.get("reason") or f"{self.status}, no reason recorded")

    @property
    def replaces(self) -> list[str]:
        """The keys of the evaluations whose answers this one was rescored from."""
        return list((self.record.get("rescored") or {}).get("replaces", []))

    @property
    def fingerprint(self) -> str:
        """The hardware the stage ran on."""
        return str((self.record.get("hardware") or {}).get("fingerprint", "unknown"))

    @property
    def protocol(self) -> str:
        """Whose encoding and formulas the stage keeps to."""
        settings = (self.spec.get("model") or {}).get("settings") or {}
        return str(settings.get("protocol") or self.spec.get("protocol") or "ours")

    def parent(self, name: str) -> str | None:
        """The key of the stage that this one knows as `name`."""
        return (self.spec.get("parents") or {}).get(name)

    @cached_property
    def metrics(self) -> dict[str, MetricValue]:
        if self.given is not None:
            return self.given
        file = self.folder / "metrics.json"
        if not file.is_file():
            return {}
        values = [MetricValue.parse(entry) for entry in read_json(file)["metrics"]]
        return {value.name: value for value in values}

    @cached_property
    def samples(self) -> dict[str, list[Sample]]:
        """metric -> its samples; empty when the stage kept none."""
        file = self.folder / "samples.parquet"
        if not file.is_file():
            return {}
        import pyarrow.parquet as pq

        try:
            columns = pq.read_table(file).to_pydict()
            lines = zip(*(columns[name] for name in ("metric", *Sample._fields)), strict=True)
        except (OSError, ValueError, KeyError) as error:  # pyarrow's errors are ValueErrors
            raise UserError(f"{file} cannot be read: {error}") from error
        found: dict[str, list[Sample]] = defaultdict(list)
        for metric, split, row_id, group, value in lines:
            undefined = value is None or value != value  # NaN is not itself
            found[metric].append(Sample(split, row_id, group, None if undefined else value))
        return dict(found)

    @cached_property
    def log(self) -> list[dict[str, Any]]:
        """The training curve, one dict per line."""
        return read_lines(self.folder / "log.jsonl")


def _stage_folders(root: Path) -> list[Path]:
    """`root` itself when it is a stage folder, else the folders in it; temporary ones start with a dot."""
    if (root / "record.json").is_file():
        return [root]
    return sorted(folder for folder in root.iterdir() if folder.is_dir() and not folder.name.startswith("."))


def read_stage(folder: Path) -> Stage | None:
    """The stage in `folder`, or None when the folder holds none (no record: it was never finished)."""
    if not (folder / "record.json").is_file() or not (folder / "spec.json").is_file():
        return None
    spec, record = read_json(folder / "spec.json"), read_json(folder / "record.json")
    key = str(record.get("key") or spec.get("key") or folder.name.rsplit("-", 1)[-1])
    return Stage(folder, key, spec.get("spec", spec), record)


@dataclass(frozen=True)
class GroupKey:
    """What must be equal for two rows to be compared."""

    benchmark: str
    model: str
    protocol: str
    attack: str = "none"

    def __str__(self) -> str:
        parts = [self.benchmark, self.model]
        parts += [f"protocol {self.protocol}"] if self.protocol != "ours" else []
        parts += [f"after {self.attack}"] if self.attack != "none" else []
        return ", ".join(parts)


@dataclass(frozen=True)
class Run:
    """One seed of an arm: its evaluation, the training that made the model, and why it has no numbers, if so."""

    seed: int
    evaluation: Stage | None = None
    training: Stage | None = None

    @property
    def status(self) -> str:
        """complete, failed or skipped."""
        for stage in (self.training, self.evaluation):
            if stage is not None and stage.status != "complete":
                return stage.status
        return "complete" if self.evaluation is not None else "failed"

    @property
    def reason(self) -> str:
        for stage in (self.training, self.evaluation):
            if stage is not None and stage.status != "complete":
                return stage.reason
        return "" if self.evaluation is not None else "it was trained, but not evaluated"

    @property
    def metrics(self) -> dict[str, MetricValue]:
        return self.evaluation.metrics if self.evaluation is not None and self.status == "complete" else {}

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds by phase of the training."""
        recorded = (self.training.record.get("seconds") if self.training else None) or {}
        return {str(phase): float(value) for phase, value in recorded.items() if value is not None}

    @property
    def cost(self) -> float | None:
        """Seconds that count as the method's cost; None when nothing was timed."""
        seconds = self.seconds
        return sum(seconds.get(phase, 0.0) for phase in PHASES) if seconds else None

    @property
    def stop(self) -> dict[str, Any] | None:
        return (self.training.record.get("stop") if self.training else None) or None

    @property
    def stopped_at(self) -> int | None:
        """The step an online stop ended the training at; None when there was none or it never fired."""
        step = (self.stop or {}).get("step")
        return None if step is None else int(step)

    @property
    def selected(self) -> bool:
        """Whether an earlier checkpoint is reported, not the end of the training."""
        return bool(self.training is not None and self.training.record.get("selection") == "best-checkpoint")

    @property
    def oracle(self) -> bool:
        """Whether the stop or the selection looked at the retrained model or at test metrics."""
        if self.training is None:
            return False
        record = self.training.record
        return bool(record.get("oracle")) or bool((self.stop or {}).get("oracle"))


@dataclass(frozen=True)
class Arm:
    """One row of a table: a role or a method with its hyper-parameters, and its run of each seed."""

    role: str
    label: str
    method: str
    title: str
    version: int | None
    params: dict[str, Any]
    origin: str
    runs: dict[int, Run]

    @property
    def seeds(self) -> list[int]:
        return sorted(self.runs)

    def values(self, metric: str) -> dict[int, float | None]:
        """Seed -> value; None where the run failed or the metric is null."""
        found = {seed: run.metrics.get(metric) for seed, run in sorted(self.runs.items())}
        return {seed: None if value is None else value.value for seed, value in found.items()}

    def null_reason(self, metric: str, seed: int) -> str:
        """Why a seed has no value of a metric; empty when it has one."""
        run = self.runs[seed]
        if run.status != "complete":
            return f"{run.status}: {run.reason}"
        value = run.metrics.get(metric)
        if value is None:
            return "not asked for"
        return value.reason if value.value is None else ""

    @property
    def evaluations(self) -> list[Stage]:
        return [run.evaluation for _, run in sorted(self.runs.items()) if run.evaluation is not None]

    @property
    def oracle(self) -> bool:
        return any(run.oracle for run in self.runs.values())

    @property
    def imported(self) -> str:
        """Which logs of which code base the numbers come from; empty when the runs are ours."""
        logs = [stage.spec["imported"] for stage in self.evaluations if stage.spec.get("imported")]
        return ", ".join(dict.fromkeys(f"{log['file']} of {log['code']}" for log in logs))


@dataclass(frozen=True)
class Group:
    """Arms that may be compared, in a fixed order: base, target, retrained, then methods by label.

    After an attack, roles that were not attacked themselves are taken from the `unattacked` group.
    """

    key: GroupKey
    arms: tuple[Arm, ...]
    unattacked: Group | None = None

    def role(self, role: str) -> Arm | None:
        """The arm of `base`, `target` or `retrained`."""
        own = next((arm for arm in self.arms if arm.role == role), None)
        return own or (self.unattacked.role(role) if self.unattacked else None)

    @property
    def borrowed(self) -> list[str]:
        """Roles that this group compares with but did not attack."""
        own = {arm.role for arm in self.arms}
        return [role for role in ("target", "retrained") if role not in own and self.role(role) is not None]

    @property
    def methods(self) -> tuple[Arm, ...]:
        return tuple(arm for arm in self.arms if arm.role == "unlearned")

    @cached_property
    def metric_names(self) -> list[str]:
        """Every metric of the group, in the order of the files."""
        names: dict[str, None] = {}
        for arm in self.arms:
            for run in arm.runs.values():
                names.update(dict.fromkeys(run.metrics))
        return list(names)

    def metric(self, name: str) -> MetricValue | None:
        """An example of a metric, for its direction and side."""
        found = (run.metrics.get(name) for arm in self.arms for run in arm.runs.values())
        return next((value for value in found if value is not None), None)


@dataclass(frozen=True, eq=False)
class Results:
    """All stages found under some folders."""

    stages: tuple[Stage, ...]

    @classmethod
    def load(cls, roots: Iterable[Path | str], keys: Collection[str] | None = None) -> Results:
        """Read every stage folder in `roots` (a root may be a stage folder itself).

        `keys` (whole, or their first 8 characters) restricts to the stages of one experiment. A stage found twice
        counts once. Raises `UserError` when a root does not exist or nothing was found.
        """
        wanted = None if keys is None else {key[:8] for key in keys}
        stages: dict[tuple[str, str], Stage] = {}
        names = [Path(root) for root in roots]
        for root in names:
            if not root.is_dir():
                raise UserError(f"There is no folder {root} to report on.")
            for folder in _stage_folders(root):
                stage = read_stage(folder)
                if stage is not None and (wanted is None or stage.key[:8] in wanted):
                    stages.setdefault((stage.kind, stage.key), stage)
        if not any(stage.kind in ("evaluate", "unlearn") for stage in stages.values()):
            where = ", ".join(map(str, names)) or "no folder"
            raise UserError(f"No finished run in {where}: a run is a folder with spec.json and record.json.")
        replaced = {key for stage in stages.values() for key in stage.replaces}
        results = cls(tuple(stage for (_, key), stage in stages.items() if key not in replaced))
        results.refuse_mixtures()
        return results

    def of_kind(self, kind: str) -> list[Stage]:
        return [stage for stage in self.stages if stage.kind == kind]

    @cached_property
    def by_key(self) -> dict[str, Stage]:
        """Key -> stage; the key of an evaluation that was rescored leads to the one that replaces it."""
        replaced = {key: stage for stage in self.stages for key in stage.replaces}
        return replaced | {stage.key: stage for stage in self.stages}

    def find(self, key: str | None) -> Stage | None:
        """A stage by its key (or by the first 8 characters that its folder carries)."""
        if not key:
            return None
        return self.by_key.get(key) or self.by_key.get(key[:8])

    def refuse_mixtures(self) -> None:
        """Raise `SeveralErrors` when numbers of different versions or protocols would meet in one table."""
        seen: dict[tuple[str, str], dict[str, Path]] = defaultdict(dict)
        for stage in self.stages:
            benchmark = stage.spec.get("benchmark") or {}
            name = str(benchmark.get("name", "?"))
            if stage.kind in ("evaluate", "unlearn"):
                seen["benchmark", name].setdefault(f"version {benchmark.get('version', 1)}", stage.folder)
                if "data_hash" in benchmark:
                    options = json.dumps(benchmark.get("options"), sort_keys=True)
                    data = f"data {benchmark['data_hash']}"
                    seen["data of", f"{name} with options {options}"].setdefault(data, stage.folder)
                cell = stage.spec.get("cell")
                if cell:
                    seen["method", str(cell["method"])].setdefault(f"version {cell.get('version', 1)}", stage.folder)
            if stage.kind == "evaluate":
                seen["evaluation of", name].setdefault(f"protocol {stage.protocol}", stage.folder)
                for value in stage.metrics.values():
                    variant = f"version {value.version}, protocol {value.protocol}"
                    seen["metric", f"{value.name} on {name}"].setdefault(variant, stage.folder)
        mixed = [
            f"The {kind} {name} is mixed: "
            + "; ".join(f"{variant} in {folder.name}" for variant, folder in sorted(variants.items()))
            + ". Report them apart."
            for (kind, name), variants in sorted(seen.items())
            if len(variants) > 1
        ]
        if mixed:
            raise SeveralErrors(mixed)

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """The groups, sorted by name, the unattacked one first."""
        benchmark = _namer([stage.spec.get("benchmark") or {} for stage in self.stages])
        model = _namer([stage.spec.get("model") or {} for stage in self.stages])
        runs: dict[GroupKey, dict[tuple[str, str], dict[int, Run]]] = defaultdict(lambda: defaultdict(dict))
        used: set[str] = set()
        arms = _ArmNames(self)
        for stage in self.of_kind("evaluate"):
            key = GroupKey(
                benchmark(stage.spec.get("benchmark") or {}),
                model(stage.spec.get("model") or {}),
                stage.protocol,
                str(stage.spec.get("attack") or "none"),
            )
            training = self.training_of(stage)
            if training is not None:
                used.add(training.key)
            self._place(runs[key][arms.of(stage)], Run(stage.seed, stage, training), arms.of(stage)[1])
        for stage in self.of_kind("unlearn"):  # what never got as far as an evaluation
            if stage.key in used:
                continue
            place = benchmark(stage.spec.get("benchmark") or {}), model(stage.spec.get("model") or {})
            homes = [key for key in runs if (key.benchmark, key.model) == place]
            for key in homes or [GroupKey(*place, stage.protocol)]:
                if stage.seed not in runs[key][arms.of(stage)]:
                    runs[key][arms.of(stage)][stage.seed] = Run(stage.seed, None, stage)
        order = sorted(runs, key=lambda key: (key.benchmark, key.model, key.protocol, key.attack != "none", key.attack))
        groups: dict[GroupKey, Group] = {}
        for key in order:
            groups[key] = Group(key, _arms(runs[key]), groups.get(replace(key, attack="none")))
        return tuple(groups.values())

    def training_of(self, stage: Stage | None) -> Stage | None:
        """The training behind an evaluated model: the stage itself, or, through attacks, the one they started from."""
        for _ in range(8):
            if stage is None or stage.kind in TRAINING:
                return stage
            stage = self.find(stage.parent("model"))
        return None

    @staticmethod
    def _place(seeds: dict[int, Run], run: Run, label: str) -> None:
        other = seeds.get(run.seed)
        if other is not None and other.evaluation is not None and run.evaluation is not None:
            raise UserError(
                f"Two evaluations of {label}, seed {run.seed}: {other.evaluation.folder} and {run.evaluation.folder}; "
                "report on one of them."
            )
        seeds[run.seed] = run


class _ArmNames:
    """(role, label) of a stage; where one label stands for several settings, it says what tells them apart."""

    def __init__(self, results: Results):
        self._results = results
        cells = [stage for stage in results.stages if stage.kind in ("evaluate", "unlearn") and stage.spec.get("cell")]
        self._name = _namer([self._settings(stage) for stage in cells])

    def of(self, stage: Stage) -> tuple[str, str]:
        if not stage.spec.get("cell"):
            role = str(stage.spec.get("role", "unlearned"))
            return role, role
        return "unlearned", self._name(self._settings(stage))

    def _settings(self, stage: Stage) -> dict[str, Any]:
        """The label, the hyper-parameters and the training settings of a cell."""
        cell = stage.spec["cell"]
        training = self._results.training_of(stage)
        settings = training.spec.get("settings") if training is not None and training.kind == "unlearn" else None
        return {"name": str(cell.get("label") or cell["method"]), "params": cell.get("params"), "settings": settings}


def _namer(dicts: Sequence[Mapping[str, Any]]) -> Callable[[Mapping[str, Any]], str]:
    """A function from a mapping with a `name` to that name, with the fields that tell equal names apart."""
    flat = [_flat(entry) for entry in dicts]
    seen: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for whole, entry in zip(dicts, flat, strict=True):
        known = {k for k, v in whole.items() if v is not None}  # settings that are not known tell nothing apart
        for place in {place for other in flat if other["name"] == entry["name"] for place in other}:
            if place.split(".")[0] in known or "." not in place:
                seen[entry["name"]][place].add(entry.get(place, ""))

    def name(entry: Mapping[str, Any]) -> str:
        fields = _flat(entry)
        telling = [k for k, values in sorted(seen[fields["name"]].items()) if len(values) > 1]
        told = [f"{k.rsplit('.', 1)[-1]}={fields[k]}" for k in telling if fields.get(k, "") != ""]
        if len(told) > 3:
            told = [*told[:2], f"#{hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()[:4]}"]
        return fields["name"] + (f"[{', '.join(told)}]" if told else "")

    return name


#: fields that are part of a comparison's refusals or of its protocol, or follow from the others
_QUIET = ("version", "data_hash", "hash", "tokenizer_hash", "identity.version", "settings.name", "settings.protocol")


def _flat(entry: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested fields as `outer.inner` -> text; what says nothing is left out."""
    fields: dict[str, str] = {} if prefix else {"name": str(entry.get("name", "?"))}
    for k, v in entry.items():
        place = f"{prefix}{k}"
        if isinstance(v, Mapping):
            fields |= _flat(v, f"{place}.")
        elif place not in _QUIET and place != "name" and v is not None:
            fields[place] = v if isinstance(v, str) else json.dumps(v)
    return fields


def _arms(runs: Mapping[tuple[str, str], dict[int, Run]]) -> tuple[Arm, ...]:
    arms = []
    for role, label in sorted(runs, key=lambda arm: (ROLES.index(arm[0]) if arm[0] in ROLES else 9, arm[1])):
        seeds = runs[role, label]
        stage = next(stage for run in seeds.values() for stage in (run.evaluation, run.training) if stage is not None)
        cell = stage.spec.get("cell") or {}
        imported = " (imported)" if stage.spec.get("imported") else ""
        arms.append(
            Arm(
                role=role,
                label=label,
                method=str(cell.get("method", role)),
                title=(_title(cell, label) if cell else label) + imported,
                version=int(cell.get("version", 1)) if cell else None,
                params=dict(cell.get("params") or {}),
                origin=str(cell.get("origin") or cell.get("source") or ""),
                runs=dict(sorted(seeds.items())),
            )
        )
    return tuple(arms)


def _title(cell: Mapping[str, Any], label: str) -> str:
    """The method's title, with what the label adds to the method's name: `MASC[rho=0.5]`."""
    method = str(cell["method"])
    title = str(cell.get("title") or method)
    added = label[len(method) :].strip() if label.startswith(method) else ""
    return title if title.endswith(added) else f"{title} {added}"
