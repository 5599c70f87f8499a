"""Experiment files: what may stand in one, how files extend each other, and the cells an experiment spans."""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Discriminator, Field, PrivateAttr, Tag, ValidationError, model_validator

from unlearnbench import yaml12
from unlearnbench.claims import Claim
from unlearnbench.errors import SeveralErrors, UserError, did_you_mean
from unlearnbench.settings import ModelSettings, Settings, TrainSettings

Places = dict[yaml12.Path, str]  #: where each value of an experiment stands: `file:line`, or the option that set it


class BenchmarkSettings(Settings):
    """Which benchmark, and its options. In YAML: `tofu-mini`, or `{name: tofu-mini, forget: forget10}`."""

    name: str
    options: dict[str, Any] = {}

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, value: Any) -> Any:
        if isinstance(value, str):
            return {"name": value}
        if isinstance(value, Mapping) and "options" not in value:
            return {"name": value.get("name"), "options": {k: v for k, v in value.items() if k != "name"}}
        return value


class MethodSettings(Settings):
    """A method with hyper-parameters, and unlearn settings of its own. In YAML: `npo`, `npo: {beta: 0.1}`,
    `masc: {rho: {grid: [0.5, 0.7]}, unlearn: {epochs: 5}}`."""

    name: str
    params: dict[str, Any] = {}
    unlearn: dict[str, Any] = {}

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, value: Any) -> Any:
        if isinstance(value, str):
            return {"name": value}
        if isinstance(value, Mapping) and len(value) == 1 and "name" not in value:
            (name, content), *_ = value.items()
            content = {} if content is None else content
            if not isinstance(content, Mapping):
                raise ValueError(f"the method '{name}' takes a mapping of hyper-parameters")
            params = {k: v for k, v in content.items() if k != "unlearn"}
            return {"name": name, "params": params, "unlearn": content.get("unlearn", {})}
        return value


class TrajectorySettings(Settings):
    """Metrics scored `points` times during unlearning, off the clock, for the trajectory plot."""

    points: int = Field(6, ge=0)
    metrics: tuple[str, ...] = ("one_minus_prob", "forget_exact", "retain_exact")


class ReportSettings(Settings):
    """Which tables and plots the report has."""

    tables: tuple[Literal["main", "cost"], ...] = ("main", "cost")
    plots: tuple[
        Literal[
            "wallclock",
            "radar",
            "tradeoff",
            "trajectory",
            "violation",
            "stops",
            "heatmap",
            "panels",
            "scaling",
            "slopes",
        ],
        ...,
    ] = (
        "wallclock",
        "radar",
        "tradeoff",
        "trajectory",
        "violation",
    )


class PublishedSettings(Settings):
    """Whose printed numbers stand beside the measured ones: `masc`, or `{paper: masc, benchmark: tofu-forget10}`."""

    paper: str
    benchmark: str | None = None  #: null: the one that is run
    model: str | None = None  #: null: the paper's only one of that benchmark

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, value: Any) -> Any:
        return {"paper": value} if isinstance(value, str) else value


class Variant(Settings):
    """A benchmark and a model that the cells of an experiment are run on."""

    benchmark: BenchmarkSettings
    model: ModelSettings


class GivenModel(Settings):
    """A model that is there and not trained here. In YAML: `retrained: {model: tofu-llama-3.2-1b-retrained90}`."""

    model: ModelSettings

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, value: Any) -> Any:
        if isinstance(value, Mapping) and isinstance(value.get("model"), str):
            return {**value, "model": {"name": value["model"]}}
        return value


class DeliverSettings(Settings):
    """What unlearning leaves for use elsewhere: the weights in this dtype (null: as they were trained), and whether the
    LoRA adapter is kept beside the merged weights."""

    dtype: Literal["float32", "bfloat16", "float16"] | None = None
    adapter: bool = False


def _source(value: Any) -> str:
    """Which of the forms a role has: `given`, a model by name, or settings to train it with."""
    if isinstance(value, str):
        return "str"
    named = isinstance(value, GivenModel) or (isinstance(value, Mapping) and "model" in value)
    return "GivenModel" if named else "TrainSettings"


class Experiment(Settings):
    """An experiment file. `benchmark` and `model` may hold values marked `{grid: […]}`: each combination is a variant,
    and every method is run on every variant; `benchmark` and `model` are those of the first.

    `target: given`: `model` is the target as it is and nothing is trained before unlearning; `retrained` is then a
    model by name, or there is none. `sequence`: splits that are forgotten one after the other, each from what the one
    before left (the sustainability experiment of MUSE); every step is a row of the table.
    """

    title: str
    benchmark: BenchmarkSettings
    model: ModelSettings
    base: TrainSettings | None = None
    target: Annotated[
        Annotated[TrainSettings, Tag("TrainSettings")] | Annotated[Literal["given"], Tag("str")], Discriminator(_source)
    ]
    retrained: (
        Annotated[
            Annotated[TrainSettings, Tag("TrainSettings")] | Annotated[GivenModel, Tag("GivenModel")],
            Discriminator(_source),
        ]
        | None
    ) = None  #: None: as the target; with `target: given`, none
    unlearn: TrainSettings
    methods: tuple[MethodSettings, ...]
    sequence: tuple[str, ...] = ()
    deliver: DeliverSettings | None = None
    stops: dict[str, dict[str, Any]] | None = Field(None, min_length=1)  #: every method under each of these, by name
    attacks: tuple[str, ...] = ("none",)
    metrics: tuple[str, ...] | None = None  #: None: the benchmark's own suite
    max_new_tokens: int | None = Field(None, ge=1)  #: generated answers are cut here; None: as long as metrics ask for
    seeds: tuple[Annotated[int, Field(ge=0)], ...] = Field((0,), min_length=1)
    trajectory: TrajectorySettings = TrajectorySettings()
    report: ReportSettings = ReportSettings()
    published: PublishedSettings | None = None
    claims: tuple[Claim, ...] = ()
    variants: tuple[Variant, ...] = ()
    _places: Places = PrivateAttr(default_factory=dict)

    def where(self, *path: str | int) -> str:
        """Where a value (or what holds it) was written: `file:line`; empty for an experiment made in Python."""
        return _where(self._places, path)

    def each(self) -> list[Experiment]:
        """One experiment per variant, in the order of the grids."""
        if len(self.variants) < 2:
            return [self]
        made = []
        for variant in self.variants:
            made.append(self.model_copy(update={**dict(variant), "variants": ()}))
            made[-1]._places = self._places
        return made

    @model_validator(mode="before")
    @classmethod
    def _short_forms(cls, value: Any) -> Any:
        if not isinstance(value, Mapping):
            raise ValueError("an experiment is a mapping")
        value = {key: _tuples(inner) for key, inner in value.items()}
        if isinstance(value.get("model"), str):
            value["model"] = {"name": value["model"]}
        places = [(part, key) for part in ("benchmark", "model") for key, v in _items(value.get(part)) if _is_grid(v)]
        if places:
            options = [value[part][key]["grid"] for part, key in places]
            value["variants"] = tuple(_variant(value, places, chosen) for chosen in itertools.product(*options))
            value |= value["variants"][0]
        if isinstance(value.get("seeds"), int) and not isinstance(value["seeds"], bool):
            if value["seeds"] < 1:
                raise ValueError("seeds: at least 1")
            value["seeds"] = tuple(range(value["seeds"]))
        return value

    @model_validator(mode="after")
    def _distinct(self) -> Experiment:
        if len(set(self.seeds)) != len(self.seeds):
            raise ValueError(f"seeds: {list(self.seeds)} has a seed twice")
        return self

    @model_validator(mode="after")
    def _possible_roles(self) -> Experiment:
        if self.target == "given" and isinstance(self.retrained, TrainSettings):
            raise ValueError("retrained: with `target: given` nothing is trained here; name a model: {model: NAME}")
        if len(set(self.sequence)) != len(self.sequence):
            raise ValueError(f"sequence: {list(self.sequence)} has a split twice")
        return self


def _items(value: Any) -> list[tuple[str, Any]]:
    return list(value.items()) if isinstance(value, Mapping) else []


def _variant(content: Mapping[str, Any], places: Sequence[tuple[str, str]], chosen: Sequence[Any]) -> dict[str, Any]:
    """Benchmark and model with the chosen values in the places of their grids."""
    made = {part: content.get(part) for part in ("benchmark", "model")}
    for (part, key), value in zip(places, chosen, strict=True):
        made[part] = {**dict(made[part] or {}), key: value}
    return made


def _tuples(value: Any) -> Any:
    """Lists as tuples, all the way down: strict validation takes no list for a tuple."""
    if isinstance(value, Mapping):
        return {key: _tuples(inner) for key, inner in value.items()}
    return tuple(_tuples(inner) for inner in value) if isinstance(value, list | tuple) else value


@dataclass(frozen=True)
class Cell:
    """One (method, hyper-parameters, seed) of an experiment. `params` and `settings` are complete."""

    method: str
    label: str
    title: str
    version: int
    source: str | None  #: None for what is built in, else what tells one state of a plug-in from another
    params: dict[str, Any]
    settings: TrainSettings
    seed: int

    def spec(self) -> dict[str, Any]:
        """The part of the cell that goes into keys and specs."""
        return {name: getattr(self, name) for name in ("method", "version", "label", "title", "params", "source")}


def cells(experiment: Experiment, source: str = "experiment") -> list[Cell]:
    """All cells, seeds outermost. Raises `SeveralErrors` for unknown methods, hyper-parameters and values out of
    range.
    """
    from unlearnbench.method import methods
    from unlearnbench.stopping import make_rule

    errors: list[str] = []
    made: list[Cell] = []
    names = [method.name for method in experiment.methods]
    for i, method in enumerate(experiment.methods):
        for params, unlearn, suffix in _crossed(method, experiment.stops):
            place: yaml12.Path = ("methods", i, method.name)
            try:
                entry = methods.get(method.name)
                if experiment.stops and "stop" in method.params:
                    raise UserError(f"method '{method.name}': `stop` stands beside `stops`, which sets it for all")
                built = _strict(entry.cls, {**entry.defaults, **params})
                if built.stop is not None:
                    make_rule(built.stop)
                place = (*place, "unlearn")
                settings = _strict(TrainSettings, {**experiment.unlearn.model_dump(mode="json"), **unlearn})
            except ValidationError as error:
                for at, line in _explained(error, None):
                    errors.append(f"{experiment.where(*place, *at) or source}: method '{method.name}': {line}")
                continue
            except UserError as error:
                errors.append(f"{experiment.where(*place) or source}: {error}")
                continue
            twice = names.count(method.name) > 1 and not suffix
            label = method.name + (suffix or (_suffix({**params, **unlearn}) if twice else ""))
            made.append(
                Cell(method.name, label, entry.title + label[len(method.name) :], entry.version, entry.source,
                     built.model_dump(mode="json"), settings, -1)
            )  # fmt: skip
    labels = [cell.label for cell in made]
    errors += [
        f"{source}: the cell '{label}' is there twice" for label in sorted(set(labels)) if labels.count(label) > 1
    ]
    if errors:
        raise SeveralErrors(dict.fromkeys(errors))
    return [Cell(**{**vars(cell), "seed": seed}) for seed in experiment.seeds for cell in made]


def _grid(method: MethodSettings) -> Iterator[tuple[dict[str, Any], dict[str, Any], str]]:
    """Every combination of the values marked `{grid: […]}`, however deep, with the suffix that tells them apart."""
    content = {"params": method.params, "unlearn": method.unlearn}
    places = list(_grids(content))
    for values in itertools.product(*(_at(content, place)["grid"] for place in places)):
        chosen = copy.deepcopy(content)
        for (*above, key), value in zip(places, values, strict=True):
            _at(chosen, above)[key] = value
        named = {".".join(place[1:]): value for place, value in zip(places, values, strict=True)}
        yield chosen["params"], chosen["unlearn"], _suffix(named)


def _grids(value: Any, place: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Where a mapping holds grids."""
    if _is_grid(value):
        yield place
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _grids(inner, (*place, key))


def _at(content: Any, place: Sequence[str]) -> Any:
    for key in place:
        content = content[key]
    return content


def _crossed(
    method: MethodSettings, stops: Mapping[str, Any] | None
) -> Iterator[tuple[dict[str, Any], dict[str, Any], str]]:
    """The grid of a method, once per stop rule of the experiment."""
    if stops is None:
        yield from _grid(method)
        return
    for name, stop in stops.items():
        stopped = method.model_copy(update={"params": {**method.params, "stop": stop}})
        for params, unlearn, suffix in _grid(stopped):
            yield params, unlearn, f"{suffix}[stop={name}]"


def _is_grid(value: Any) -> bool:
    return (
        isinstance(value, Mapping)
        and set(value) == {"grid"}
        and isinstance(value["grid"], list | tuple)
        and bool(value["grid"])
    )


def _suffix(values: Mapping[str, Any]) -> str:
    return "[" + ",".join(f"{key}={_short(value)}" for key, value in values.items()) + "]" if values else ""


def _short(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


def _strict(model: type[BaseModel], values: Mapping[str, Any]) -> Any:
    return model.model_validate_json(json.dumps(values), strict=True)


# -- reading ---------------------------------------------------------------------------------------------------


def load(
    source: str | Path,
    overrides: Sequence[str] = (),
    methods: Sequence[str] | None = None,
    seeds: Sequence[int] | None = None,
) -> Experiment:
    """Read an experiment: a file, or the name of a packaged one (`quickstart`).

    `overrides`: `unlearn.epochs=5`, `methods.masc.rho=0.7`. `methods` keeps these only (those not in the file are added
    with their defaults); `seeds` replaces the file's. `retrained` is merged over `target`. All mistakes are reported
    together, with their lines.
    """
    file = find(source)
    content, places = _read(file)
    if methods is not None:
        _choose(content, methods, places)
    for override in overrides:
        _override(content, override, places)
    if seeds is not None:
        content["seeds"] = list(seeds)
        places["seeds",] = "--seeds"
    target, retrained = content.get("target"), content.get("retrained")
    if isinstance(target, dict) and isinstance(retrained, dict) and "model" not in retrained:
        content["retrained"] = _merge(target, retrained)
    return _checked(content, places, str(file))


def make(content: Mapping[str, Any], overrides: Sequence[str] = (), source: str = "the command line") -> Experiment:
    """An experiment that a verb puts together, with the user's `--set` values over it; mistakes as in `load`."""
    own, places = copy.deepcopy(dict(content)), Places()
    for override in overrides:
        _override(own, override, places)
    return _checked(own, places, source)


def _checked(content: dict[str, Any], places: Places, source: str) -> Experiment:
    try:
        experiment: Experiment = _strict(Experiment, content)
    except ValidationError as error:
        raise SeveralErrors(
            f"{_where(places, place) or source}: {line}" for place, line in _explained(error, Experiment)
        ) from None
    experiment._places = places
    return experiment


def find(source: str | Path) -> Path:
    """The file of an experiment: a path, or a packaged name. Raises `UserError` with the nearest name."""
    path = Path(source)
    if path.suffix in (".yaml", ".yml") or path.is_file():
        if not path.is_file():
            raise UserError(f"There is no experiment file {path}.")
        return path
    import unlearnbench.experiments as packaged

    known = {file.stem: file for folder in packaged.__path__ for file in Path(folder).glob("*.yaml")}
    if str(source) not in known:
        raise UserError(f"There is no experiment '{source}'; {did_you_mean(str(source), known)}")
    return known[str(source)]


def _read(file: Path, seen: tuple[Path, ...] = ()) -> tuple[dict[str, Any], Places]:
    """The file's content merged over what it extends, and where each path stands."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{file}: cannot be read as text: {error}") from error
    content, lines = yaml12.read(text, str(file))
    if not isinstance(content, dict):
        raise UserError(f"{file}:1: an experiment is a mapping of keys.")
    places = {path: f"{file}:{line}" for path, line in lines.items()}
    parent = content.pop("extends", None)
    if parent is None:
        return content, places
    beside = file.parent / str(parent)
    if beside.resolve() in {f.resolve() for f in (*seen, file)}:
        raise UserError(f"{file}: extends itself through {parent}.")
    base, base_places = _read(beside if beside.is_file() else find(str(parent)), (*seen, file))
    return _merge(base, content), {**base_places, **places}


def _merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _merge(merged[key], value) if both else value
    return merged


def _override(content: dict[str, Any], override: str, places: Places) -> None:
    path, equals, text = override.partition("=")
    keys = path.split(".")
    if not equals or not all(keys):
        raise UserError(f"--set takes key.key=value, got '{override}'.")
    value, inside = yaml12.read(text, f"--set {path}")
    if keys[0] == "methods" and len(keys) > 2:
        entries = content.get("methods") or []
        found = [i for i, entry in enumerate(entries) if _method_name(entry) == keys[1]]
        if not found:
            names = [name for entry in entries if (name := _method_name(entry))]
            raise UserError(f"--set {path}: the experiment has no method '{keys[1]}'; {did_you_mean(keys[1], names)}")
        for i in found:
            inner = {} if isinstance(entries[i], str) else copy.deepcopy(entries[i][keys[1]]) or {}
            _put(inner, keys[2:], value)
            entries[i] = {keys[1]: inner}
            places |= {("methods", i, *keys[1:], *at): f"--set {path}" for at in inside}
        return
    if keys[0] == "unlearn" and len(keys) > 1:  # said on the command line, it holds for every method
        for entry in content.get("methods") or []:
            for settings in entry.values() if isinstance(entry, dict) else ():
                if isinstance(settings, dict) and isinstance(settings.get("unlearn"), dict):
                    settings["unlearn"] = {k: v for k, v in settings["unlearn"].items() if k != keys[1]}
    _put(content, keys, value)
    places |= {(*keys, *at): f"--set {path}" for at in inside}


def _put(content: dict[str, Any], keys: Sequence[str], value: Any) -> None:
    for key in keys[:-1]:
        inner = content.get(key)
        content[key] = {"name": inner} if isinstance(inner, str) else dict(inner) if isinstance(inner, dict) else {}
        content = content[key]
    content[keys[-1]] = value


def _choose(content: dict[str, Any], wanted: Sequence[str], places: Places) -> None:
    """Keep the methods asked for, in the order asked for, with what the file says of them."""
    entries = content.get("methods") or []
    chosen: list[Any] = []
    moved: Places = {}
    for want in wanted:
        found = [i for i, entry in enumerate(entries) if _method_name(entry) == want]
        if not found:
            moved["methods", len(chosen)] = "--methods"
            chosen.append(want)
        for i in found:
            inside = {path: place for path, place in places.items() if path[:2] == ("methods", i)}
            moved |= {("methods", len(chosen), *path[2:]): place for path, place in inside.items()}
            chosen.append(entries[i])
    for path in [path for path in places if path[:1] == ("methods",) and len(path) > 1]:
        del places[path]
    places |= moved
    content["methods"] = chosen


def _method_name(entry: Any) -> str | None:
    if isinstance(entry, str):
        return entry
    return str(next(iter(entry))) if isinstance(entry, dict) and len(entry) == 1 else None


# -- errors ----------------------------------------------------------------------------------------------------


def explain(error: ValidationError, model: type[BaseModel] | None) -> list[str]:
    """A validation error as lines: field, value, what is allowed, and the nearest name."""
    return [line for _, line in _explained(error, model)]


def _explained(error: ValidationError, model: type[BaseModel] | None) -> list[tuple[yaml12.Path, str]]:
    found = []
    items = error.errors()
    for item in items:
        if item["type"] == "too_short" and any(len(i["loc"]) > 1 and i["loc"][:-1] == item["loc"] for i in items):
            continue  # its entries were refused one by one
        place = tuple(p for p in item["loc"] if not (isinstance(p, str) and ("[" in p or p in _UNION_TAGS)))
        if place[:1] == ("variants",):
            if model is Experiment and any(i["loc"] == item["loc"][2:] for i in items):
                continue  # said of the first variant already
            place = place[2:] or place
        name = ".".join(map(str, place)) or "file"
        if item["type"] == "extra_forbidden":
            owner = _model_at(model, place[:-1]) if model else None
            allowed = owner.model_fields if owner else _fields_of(error)
            hint = f"; {did_you_mean(str(place[-1]), allowed)}" if allowed else ""
            found.append((place, f"unknown key '{name}'{hint}"))
        elif item["type"] == "missing":
            found.append((place, f"the key '{name}' is missing"))
        else:
            message = item["msg"].removeprefix("Value error, ")
            message = message[0].lower() + message[1:]
            given = "" if isinstance(item["input"], dict) else f", got {json.dumps(item['input'], default=str)}"
            if found and found[-1][0] == place and item["loc"] != place:  # what each member of a union has to say
                before, _, _ = found.pop()[1].partition(", got ")
                message = f"{before.removeprefix(name + ': ')}, or {message}"
            found.append((place, f"{name}: {message}{given}"))
    return found


_UNION_TAGS = {
    "str",
    "int",
    "GivenModel",
    "LoraSettings",
    "SelectSettings",
    "TrainSettings",
}  #: how pydantic names members of a union


def _fields_of(error: ValidationError) -> list[str]:
    from unlearnbench.method import methods

    for model in (TrainSettings, *(entry.cls for entry in methods)):
        if issubclass(model, BaseModel) and model.__name__ == error.title:
            return list(model.model_fields)
    return []


def _model_at(model: type[BaseModel], place: yaml12.Path) -> type[BaseModel] | None:
    current: Any = model
    for part in place:
        if isinstance(part, int):
            continue
        field = current.model_fields.get(part) if current is not None else None
        current = _model_in(field.annotation) if field is not None else None
    return current if isinstance(current, type) and issubclass(current, BaseModel) else None


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for inner in getattr(annotation, "__args__", ()):
        found = _model_in(inner)
        if found is not None:
            return found
    return None


def _where(places: Places, path: yaml12.Path) -> str:
    while path and path not in places:
        path = path[:-1]
    return places.get(path, "")
