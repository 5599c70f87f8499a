"""From an experiment to its stages: which models to train, cells to run and evaluations to make, each with a key
known beforehand.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, TypeVar

from unlearnbench import schema
from unlearnbench.attacks.base import attacks
from unlearnbench.benchmarks.base import Benchmark, benchmarks
from unlearnbench.benchmarks.mini.model import MODELS
from unlearnbench.benchmarks.outline import outline as outlined
from unlearnbench.claims import COSTS
from unlearnbench.errors import SeveralErrors, UserError
from unlearnbench.hub import no_network
from unlearnbench.method import Method, methods
from unlearnbench.metric import expand, resolve
from unlearnbench.model_files import base_folder, identity, parameters_of
from unlearnbench.models import encoder_for
from unlearnbench.published import PUBLISHED
from unlearnbench.schema import Cell, Experiment, GivenModel
from unlearnbench.settings import ModelSettings, TrainSettings
from unlearnbench.store import Stage

Known = TypeVar("Known")

SMALL = 20_000_000  #: parameters below which one thread is faster than several
#: bumped when the numbers a stage makes change
VERSIONS = {"base": 1, "target": 1, "retrained": 1, "unlearn": 1, "evaluate": 1}


@dataclass(frozen=True)
class Planned:
    """A stage, the stages it is built from by the name it knows them under, and whether its time is a result.

    `unknown` says what its key depends on and is not at hand: such a stage is only an outline.
    """

    stage: Stage
    parents: dict[str, Planned] = field(default_factory=dict)
    timed: bool = False
    unknown: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.stage.folder_name


@dataclass(frozen=True)
class Given:
    """A model that is there: the experiment's own (`spec` None), or another one, by its settings and identity."""

    spec: dict[str, Any] | None = None


def plan(experiment: Experiment, whole: bool = True) -> list[Planned]:
    """The stages of an experiment in the order they run. Raises `UserError` for whatever does not exist; unless it is
    `whole`, published benchmarks and models that are not at hand are taken by their sizes (see `outline`).
    """
    _check_claims(experiment)
    stages = [stage for variant in experiment.each() for stage in _Planner(variant, whole).stages()]
    return list({stage.stage.key: stage for stage in stages}.values())


def _check_claims(experiment: Experiment) -> None:
    """Raise `SeveralErrors` for claims about methods, metrics and attacks that do not exist."""
    errors = []
    for i, claim in enumerate(experiment.claims):
        measured = [name for name in (claim.metric, claim.minus) if name not in (None, "score", *COSTS)]
        measured += [] if claim.until is None else [claim.until.metric, claim.until.floor_metric]
        compared = [name.partition("[")[0] for name in (claim.of, *claim.against)]
        asked: list[tuple[str, Callable[[str], Any], Sequence[str | None]]] = [
            ("metric", resolve, measured),
            ("of", methods.get, [name for name in compared if name not in ("target", "retrained")]),
            ("after", attacks.get, [name for name in (claim.after, claim.other_after) if name != "none"]),
        ]
        for key, find, names in asked:
            for name in names:
                try:
                    find(str(name))
                except UserError as error:
                    place = experiment.where("claims", i, key) or experiment.title
                    errors.append(f"{place}: claim {i + 1}: {error}")
    if errors:
        raise SeveralErrors(dict.fromkeys(errors))


def outline(experiment: Experiment) -> list[Planned]:
    """The stages as `plan` gives them, without fetching anything: what is not at hand is left `unknown` in them."""
    with no_network():
        return plan(experiment, whole=False)


def benchmark_of(experiment: Experiment) -> Benchmark:
    """The benchmark of an experiment. Raises `UserError` for options it does not take, and for missing data."""
    entry = benchmarks.get(experiment.benchmark.name)
    try:
        data: Benchmark = entry.build(**experiment.benchmark.options)
    except TypeError as error:
        raise UserError(f"The benchmark '{entry.name}' does not take these options: {error}") from error
    return data


class _Planner:
    def __init__(self, experiment: Experiment, whole: bool = True):
        self.experiment, self.whole, self.unknown = experiment, whole, list[str]()
        entry = benchmarks.get(experiment.benchmark.name)
        self.data = self._known(
            lambda: benchmark_of(experiment), lambda: outlined(entry.name, experiment.benchmark.options)
        )
        self.benchmark = {
            "name": entry.name,
            "version": entry.version,
            "options": experiment.benchmark.options,
            "data_hash": self.data.data_hash,
        }
        if experiment.target == "given" and experiment.model.name in MODELS:
            raise UserError(
                f"The embedded model '{experiment.model.name}' is untrained: with `target: given` name a model folder, "
                "a short name or a name on the Hub."
            )
        self.encoder = self._known(lambda: encoder_for(experiment.model).fingerprint, self._remote("unknown"))
        self.model = {
            "name": experiment.model.name,
            "settings": experiment.model.model_dump(mode="json"),
            "identity": self._known(lambda: identity(experiment.model), self._remote(dict[str, Any]())),
        }
        self.metrics = expand(experiment.metrics if experiment.metrics is not None else self.data.suite)
        for name in experiment.attacks:
            if name != "none":
                attacks.get(name)
        cut = experiment.max_new_tokens
        self.cut = {} if cut is None else {"max_new_tokens": cut}
        self.planned: list[Planned] = []

    def _known(self, find: Callable[[], Known], instead: Callable[[], Known | None]) -> Known:
        """What `find` finds; in an outline what stands `instead` of it when it is not at hand."""
        try:
            return find()
        except UserError as error:
            other = None if self.whole else instead()
            if other is None:
                raise
            self.unknown.append(str(error).partition(" is not ")[0])
            return other

    def _remote(self, value: Known, name: str | None = None) -> Callable[[], Known | None]:
        """`value` for a model of the Hub; a folder or a misspelt name stays an error."""
        name = name or self.experiment.model.name
        there = name in PUBLISHED or ("/" in name and not Path(name).expanduser().exists())
        return lambda: value if there else None

    def stages(self) -> list[Planned]:
        experiment = self.experiment
        cells = schema.cells(experiment, experiment.title)
        base = self._base()
        for seed in experiment.seeds:
            target, retrained = self._roles(seed, base)
            beside = {}
            if retrained is not None:
                beside["retrained"] = self._evaluate("retrained", "retrained", seed, retrained, None, {})
            self._evaluate("target", "target", seed, target, None, beside)
            for attack in experiment.attacks:
                if attack != "none":  # the attack on the target shows what it does to a model that was not unlearned
                    self._evaluate(f"target-{attack}", "target", seed, target, None, beside, attack)
            for cell in cells:
                if cell.seed == seed:
                    self._forgotten(cell, target, base, retrained, beside)
        return self.planned

    def _roles(self, seed: int, base: Planned | None) -> tuple[Planned | Given, Planned | Given | None]:
        """Target and retrained model of a seed: trained here, or given."""
        experiment = self.experiment
        if experiment.target == "given":
            target: Planned | Given = Given()
        else:
            target = self._trained("target", experiment.target, seed, base)
        if isinstance(experiment.retrained, GivenModel):
            return target, self._given(experiment.retrained.model)
        settings = experiment.retrained or experiment.target
        return target, None if settings == "given" else self._trained("retrained", settings, seed, base)

    def _given(self, settings: ModelSettings) -> Given:
        """A model by name that stands beside the experiment's own: with the same encoding."""
        encoder = self._known(lambda: encoder_for(settings).fingerprint, self._remote("unknown", settings.name))
        if encoder != self.encoder:
            raise UserError(
                f"The retrained model '{settings.name}' encodes text in another way than '{self.model['name']}': "
                "give it the same tokenizer, template, max_length and protocol."
            )
        found = self._known(lambda: identity(settings), self._remote(dict[str, Any](), settings.name))
        return Given({"settings": settings.model_dump(mode="json"), "identity": found})

    def _forgotten(
        self,
        cell: Cell,
        target: Planned | Given,
        base: Planned | None,
        retrained: Planned | Given | None,
        beside: dict[str, Planned],
    ) -> None:
        """Unlearn and score: the forget split at once, or the splits of `sequence` one after the other."""
        start = target
        for split in self.experiment.sequence or ("forget",):
            step = cell
            if self.experiment.sequence:
                self.data.rows(split)
                tail = f"[{split}]"
                step = replace(cell, label=cell.label + tail, title=f"{cell.title} {tail}")
            start = unlearned = self._unlearn(step, start, base, retrained, split)
            for attack in self.experiment.attacks:
                label = step.label if attack == "none" else f"{step.label}-{attack}"
                self._evaluate(label, "unlearned", cell.seed, unlearned, step, beside, attack)

    # -- stages ------------------------------------------------------------------------------------------------

    def _add(
        self, kind: str, label: str, spec: dict[str, Any], parents: dict[str, Planned], timed: bool = False
    ) -> Planned:
        whole = {
            "stage_version": VERSIONS[kind],
            "benchmark": self.benchmark,
            "model": self.model,
            "encoder": self.encoder,
            "dtype": self.experiment.model.dtype,
            "device": device_kind(),
            "versions": {name: _version(name) for name in ("torch", "transformers")},
            **spec,
            "parents": {name: parent.stage.key for name, parent in parents.items()},
        }
        made = Planned(Stage(kind, label, whole), parents, timed, tuple(dict.fromkeys(self.unknown)))
        self.planned.append(made)
        return made

    def _base(self) -> Planned | None:
        """The base model is trained here only when it is an embedded one; it is shared by all seeds."""
        if self.experiment.model.name not in MODELS:
            return None
        settings = self.experiment.base or MODELS[self.experiment.model.name].base
        return self._trained("base", settings, 0, None)

    def _trained(self, role: str, settings: TrainSettings, seed: int, base: Planned | None) -> Planned:
        splits = self.data.training.get(role)
        if not splits:
            raise UserError(
                f"The benchmark '{self.benchmark['name']}' does not say which splits the {role} is trained on."
            )
        label = self.experiment.model.name if role == "base" else f"s{seed}"
        return self._add(
            role,
            label,
            {
                "role": role,
                "seed": seed,
                "splits": list(splits),
                "settings": settings.model_dump(mode="json"),
                "threads": self._threads(settings),
            },
            {} if base is None else {"base": base},
        )

    def _unlearn(
        self, cell: Cell, target: Planned | Given, base: Planned | None, retrained: Planned | Given | None, split: str
    ) -> Planned:
        method: Method = methods.get(cell.method).cls(**cell.params)
        parents = {"target": target} if isinstance(target, Planned) else {}
        parents |= {"base": base} if base is not None else {}
        if "retrained" in method.requirements and isinstance(retrained, Planned):  # an oracle stop rule
            parents["retrained"] = retrained
        more: dict[str, Any] = {}
        if "retrained" in method.requirements and isinstance(retrained, Given):
            more["retrained"] = retrained.spec
        if self.experiment.deliver is not None:
            more["deliver"] = self.experiment.deliver.model_dump(mode="json")
        return self._add(
            "unlearn",
            f"{cell.label}-s{cell.seed}",
            {
                "role": "unlearned",
                "seed": cell.seed,
                "cell": cell.spec(),
                "forget": split,
                "retain": "retain",
                "settings": cell.settings.model_dump(mode="json"),
                "trajectory": self.experiment.trajectory.model_dump(mode="json"),
                **self.cut,
                "threads": self._threads(cell.settings),
                **more,
            },
            parents,
            timed=True,
        )

    def _evaluate(
        self,
        label: str,
        role: str,
        seed: int,
        model: Planned | Given,
        cell: Cell | None,
        parents: dict[str, Planned],
        attack: str = "none",
    ) -> Planned:
        given = {} if isinstance(model, Planned) or model.spec is None else {"given": model.spec}
        entry = attacks.get(attack) if attack != "none" else None
        return self._add(
            "evaluate",
            f"{label}-s{seed}",
            {
                "role": role,
                "seed": seed,
                "attack": attack,
                "attack_version": entry.version if entry else None,
                "cell": cell.spec() if cell else None,
                "metrics": self.metrics,
                "metric_versions": {name: resolve(name)[0].version for name in self.metrics},
                "metric_sources": sorted({s for name in self.metrics if (s := resolve(name)[0].source) is not None}),
                "threads": self._threads(self.experiment.unlearn),
                **self.cut,
                **given,
            },
            ({"model": model} if isinstance(model, Planned) else {}) | parents,
        )

    def _threads(self, settings: TrainSettings) -> int:
        if settings.threads is not None:
            return settings.threads
        import os

        return 1 if self._small else os.cpu_count() or 1

    @cached_property
    def _small(self) -> bool:
        """Whether threads would cost more than they give."""
        model = self.experiment.model
        if model.name in MODELS:
            return True
        if self.unknown:  # an outline
            return False
        return 0 < parameters_of(base_folder(model)) < SMALL


_version = lru_cache(importlib.metadata.version)  # reading it takes as long as all the rest of a stage


def device_kind() -> str:
    """`cpu`, or the name of the GPU."""
    import torch

    return torch.cuda.get_device_name(0) if torch.cuda.is_available() else "cpu"
