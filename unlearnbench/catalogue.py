"""What there is: the listings of `list`, `show` and `env`."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import inspect
import os
import platform
import shutil
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin

from rich.console import Console
from rich.table import Table
from rich.text import Text

from unlearnbench import hub
from unlearnbench.errors import UserError, did_you_mean
from unlearnbench.registry import Entry, Registry

_OPTIONAL = {
    "bitsandbytes": ("4-bit attack", "quant"),
    "ray": ("cluster executor", "ray"),
}
_CORE = ("torch", "transformers", "accelerate", "peft", "datasets", "safetensors", "pydantic", "rouge-score", "lm-eval")


def _registries() -> dict[str, Registry]:
    from unlearnbench.attacks.base import attacks
    from unlearnbench.benchmarks.base import benchmarks
    from unlearnbench.method import methods
    from unlearnbench.metric import metrics
    from unlearnbench.stopping import stop_rules

    return {
        "methods": methods,
        "metrics": metrics,
        "benchmarks": benchmarks,
        "attacks": attacks,
        "stop-rules": stop_rules,
    }


def _experiments() -> dict[str, Path]:
    import unlearnbench.experiments as packaged

    return {file.stem: file for folder in packaged.__path__ for file in sorted(Path(folder).glob("*.yaml"))}


def listing(kind: str, console: Console | None = None) -> None:
    """Print the names of one kind, or of all kinds, with their titles and where they come from."""
    console = console or Console()
    registries = _registries()
    kinds = [*registries, "experiments"]
    if kind and kind not in kinds:
        raise UserError(f"There is nothing called '{kind}' to list; {did_you_mean(kind, kinds)}")
    for name in [kind] if kind else kinds:
        if name == "experiments":
            _print_experiments(console)
        else:
            _print_registry(console, name, registries[name])


def _print_registry(console: Console, kind: str, registry: Registry) -> None:
    table = Table(title=kind, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for column in ("name", "title", "version", "from"):
        table.add_column(column, overflow="fold")
    for entry in registry:
        table.add_row(entry.name, entry.title if entry.title != entry.name else "", str(entry.version), _origin(entry))
    for name, (origin, error) in sorted(registry.broken().items()):
        table.add_row(name, f"[red]broken: {type(error).__name__}: {error}[/red]", "", origin)
    console.print(table)
    console.print()


def _print_experiments(console: Console) -> None:
    table = Table(title="experiments", title_justify="left", title_style="bold", box=None, pad_edge=False)
    table.add_column("name")
    table.add_column("what it costs", overflow="fold")
    for name, file in _experiments().items():
        table.add_row(name, file.read_text(encoding="utf-8").splitlines()[0].lstrip("# "))
    console.print(table)


def _origin(entry: Entry) -> str:
    root = Path(__file__).resolve().parent.parent
    where = Path(entry.origin)
    if where.is_absolute() and where.is_relative_to(root):
        return "built in" if not entry.preset_of else f"built in, preset of {entry.preset_of}"
    return entry.origin


def details(name: str, console: Console | None = None) -> None:
    """Print everything about one name, of whatever kind."""
    console = console or Console()
    found = [(kind, registry.get(name)) for kind, registry in _registries().items() if name in registry]
    for _kind, registry in _registries().items():
        if name in registry.broken():
            registry.get(name)  # raises with the plug-in's error
    experiments = _experiments()
    if not found and name not in experiments:
        known = [n for registry in _registries().values() for n in registry.names()] + list(experiments)
        raise UserError(f"There is nothing called '{name}'; {did_you_mean(name, known)}")
    for kind, entry in found:
        _print_entry(console, kind.removesuffix("s"), entry)
    if name in experiments:
        console.print(experiments[name].read_text(encoding="utf-8"), markup=False, highlight=False)


def _print_entry(console: Console, kind: str, entry: Entry) -> None:
    console.print(f"[bold]{entry.name}[/bold]  {kind}, version {entry.version}, {_origin(entry)}")
    for key, value in entry.meta.items():
        console.print(f"{key}: {value}", markup=False)
    for text in (inspect.getdoc(inspect.getmodule(entry.cls)), inspect.getdoc(entry.cls)):
        if text:
            console.print()
            console.print(text, markup=False, highlight=False)
    known = settings_of(entry)
    if known:
        table = Table(box=None, pad_edge=False, title="settings", title_justify="left", title_style="bold")
        for column in ("name", "default", "allowed", "meaning", "source"):
            table.add_column(column, overflow="fold")
        for setting in known:
            table.add_row(*(Text(part) for part in setting))
        console.print()
        console.print(table)
    protocols = getattr(entry.cls, "protocols", {})
    if len(protocols) > 1:
        console.print("\n[bold]protocols[/bold]")
        for protocol, text in protocols.items():
            console.print(f"  {protocol}: {text}", markup=False)
    console.print()


class Setting(NamedTuple):
    """One setting of a registered thing, as text: name, default, what is allowed, what it is, whence the default."""

    name: str
    default: str
    allowed: str
    meaning: str
    source: str


def settings_of(entry: Entry) -> list[Setting]:
    """The settings of a class, in the order of its file, with the values that the name presets."""
    fields: Mapping[str, Any] = getattr(entry.cls, "model_fields", {})
    if not fields:
        return _options(entry)
    found = []
    for name, field in fields.items():
        default = field.default_factory() if field.default_factory else field.default
        extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
        meaning = field.description or _inherited(entry.cls, name)
        choices = getattr(entry.cls, "protocols", {}) if name == "protocol" else {}
        allowed = ", ".join(choices) or _allowed(field.annotation, field.metadata)
        source = f"preset {entry.name}" if name in entry.defaults else str(extra.get("source", ""))
        found.append(Setting(name, plain(entry.defaults.get(name, default)), allowed, meaning, source))
    return found


def _options(entry: Entry) -> list[Setting]:
    """The arguments of a class that is no pydantic model: a benchmark."""
    parameters = inspect.signature(entry.cls, eval_str=True).parameters.values()
    return [
        Setting(p.name, "required" if p.default is p.empty else plain(p.default), _allowed(p.annotation), "", "")
        for p in parameters
    ]


def _inherited(cls: type, name: str) -> str:
    """What a class above says a setting is, where the class only changes the default."""
    fields = (getattr(base, "model_fields", {}).get(name) for base in cls.__mro__)
    return next((field.description for field in fields if field is not None and field.description), "")


def plain(value: Any) -> str:
    """A value as it is written in an experiment file."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {plain(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(plain, value)) + "]"
    return str(value) if value != "" else '""'


_SIGNS = {"gt": ">", "ge": "≥", "lt": "<", "le": "≤"}
_KINDS = {int: "whole number", float: "number", bool: "true, false", str: "text"}


def _allowed(annotation: Any, metadata: Any = ()) -> str:
    """What a type and its bounds allow, in words: `> 0`, `none, nll`, `number or null`."""
    limits = [
        f"{sign} {getattr(item, name)}"
        for item in metadata
        for name, sign in _SIGNS.items()
        if getattr(item, name, None) is not None
    ]
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        null = type(None) in arguments
        kinds = [_allowed(part) for part in arguments if part is not type(None)]
        words = [_with_limits(kinds[0], limits), *kinds[1:]] if kinds else []
        return " or ".join(dict.fromkeys([*words, *(["null"] if null else [])]))
    if origin is Literal:
        return ", ".join(map(plain, arguments))
    if origin is tuple:
        return f"{len(arguments)} numbers" if Ellipsis not in arguments else "a list"
    if hasattr(annotation, "__metadata__"):  # StrictInt and the like
        return _allowed(arguments[0], metadata)
    return _with_limits("settings" if origin is dict else _KINDS.get(annotation, "value"), limits)


def _with_limits(kind: str, limits: list[str]) -> str:
    if not limits:
        return kind
    return f"whole, {' and '.join(limits)}" if kind == _KINDS[int] else " and ".join(limits)


def environment(console: Console | None = None) -> None:
    """Print versions, hardware, and the optional parts that are missing."""
    console = console or Console()
    import torch

    from unlearnbench import __version__

    lines: list[tuple[str, str]] = [("unlearnbench", __version__), ("python", platform.python_version())]
    lines += [(name, _version(name)) for name in _CORE]
    gpu = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "none"
    memory = _memory_gib()
    lines += [
        ("processor", f"{platform.machine()}, {os.cpu_count()} cores"),
        ("memory", f"{memory:.1f} GiB" if memory else "unknown"),
        ("disk free here", f"{shutil.disk_usage('.').free / 2**30:.1f} GiB"),
        ("GPU", gpu),
        ("Hub", _hub()),
    ]
    for name, value in lines:
        console.print(f"{name:<16} {value}", markup=False, highlight=False, soft_wrap=True)
    for name, (what, extra) in _OPTIONAL.items():
        there = importlib.util.find_spec(name) is not None
        state = _version(name) if there else f"missing ({what}): pip install 'unlearnbench[{extra}]'"
        console.print(f"{name:<16} {state}", markup=False, highlight=False)
    for kind, registry in _registries().items():
        for name, (origin, error) in registry.broken().items():
            console.print(f"broken {kind.removesuffix('s')} '{name}' of {origin}: {error}", markup=False, style="red")


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return f"missing: pip install {name}"


def _memory_gib() -> float | None:
    names: Callable[[str], int] | None = getattr(os, "sysconf", None)
    return names("SC_PAGE_SIZE") * names("SC_PHYS_PAGES") / 2**30 if names else None


def _hub() -> str:
    """Whether models and data can be fetched, and the way out where they cannot."""
    way_out = "models and data come from the local cache, or from folders (`--data-dir`)"
    flag = hub.offline_flag()
    if flag is not None:
        return f"not asked, {flag} is set: {way_out}"
    if not hub.reachable():
        mend = "HF_HUB_OFFLINE=1 saves the wait, HF_ENDPOINT names a mirror"
        return f"{hub.endpoint()} is out of reach: {way_out}; {mend}"
    return hub.endpoint()
