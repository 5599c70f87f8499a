"""Look things up by name: methods, metrics, benchmarks, attacks, stop rules.

A registry is filled from three places, all equal: the files of a built-in package, entry points of installed
packages, and single files given with `--plugin`. Nothing is imported before a name is asked for, a name taken
twice is an error that shows both origins, and a plug-in that does not load is listed as broken, with its error, and
raises only when it is asked for.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import importlib.util
import pkgutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from unlearnbench.errors import UserError, did_you_mean

C = TypeVar("C", bound=type)


@dataclass(frozen=True)
class Entry:
    """A registered name: the class behind it, the values the name presets, and where it comes from."""

    name: str
    cls: type
    title: str
    version: int
    origin: str
    defaults: dict[str, Any] = field(default_factory=dict)
    meta: dict[str, Any] = field(default_factory=dict)
    preset_of: str | None = None

    @property
    def built_in(self) -> bool:
        """Whether it comes with unlearnbench, and not from a plug-in."""
        return self.cls.__module__.startswith("unlearnbench.")

    @property
    def source(self) -> str | None:
        """What tells one state of a plug-in from another: the hash of its file, or its package; None for built-ins."""
        if self.built_in:
            return None
        file = Path(self.origin)
        return hashlib.sha256(file.read_bytes()).hexdigest()[:16] if file.is_file() else self.origin

    def build(self, **values: Any) -> Any:
        """An instance with the preset's values, then `values` over them."""
        return self.cls(**{**self.defaults, **values})


class Registry:
    """One kind of registered thing. `package` holds the built-ins, one file each (or is one module with all of
    them).
    """

    _origin: str | None = None  #: the plug-in being loaded, shared by all registries

    def __init__(self, kind: str, package: str):
        self.kind = kind
        self.package = package
        self.group = f"unlearnbench.{kind}s"  #: the entry-point group of plug-ins
        self._entries: dict[str, Entry] = {}
        self._broken: dict[str, tuple[str, BaseException]] = {}
        self._loaded = False
        _ALL.append(self)

    # -- filling -----------------------------------------------------------------------------------------------

    def register(self, name: str, *, title: str = "", version: int = 1, **meta: Any) -> Callable[[C], C]:
        """Class decorator: make the class known as `name`. `version` goes up whenever its numbers change."""

        def decorate(cls: C) -> C:
            entry = Entry(name, cls, title or name, version, self._origin or _origin_of(cls), {}, meta)
            self._add(entry)
            cls.registered_name = name  # type: ignore[attr-defined]
            cls.version = version  # type: ignore[attr-defined]
            return cls

        return decorate

    def preset(
        self, name: str, of: str, *, title: str = "", meta: dict[str, Any] | None = None, **defaults: Any
    ) -> None:
        """Make `name` stand for the registered `of` with other default values (and `meta`). It shares its version."""
        if of not in self._entries and not self._loaded and self._origin is not None:
            self._load()  # a plug-in may build on a built-in
        if of not in self._entries:
            raise UserError(f"Preset {self.kind} '{name}' is built on '{of}', which is not registered yet.")
        base = self._entries[of]
        origin = self._origin or _caller_origin()
        merged = {**base.defaults, **defaults}
        facts = {**base.meta, **(meta or {})}
        self._add(Entry(name, base.cls, title or name, base.version, origin, merged, facts, preset_of=of))

    def _add(self, entry: Entry) -> None:
        known = self._entries.get(entry.name)
        if known is None and not self._loaded and self._origin is not None:
            self._load()  # a plug-in must meet the built-ins, whoever comes first
            known = self._entries.get(entry.name)
        if known is not None:
            raise UserError(
                f"The {self.kind} name '{entry.name}' is taken twice: by {known.origin} and by {entry.origin}; "
                "rename one of them."
            )
        self._entries[entry.name] = entry

    # -- reading -----------------------------------------------------------------------------------------------

    def get(self, name: str) -> Entry:
        """The entry called `name`. Raises `UserError` with the nearest name, or with a broken plug-in's error."""
        self._load()
        if name in self._entries:
            return self._entries[name]
        if name in self._broken:
            origin, error = self._broken[name]
            raise UserError(f"The {self.kind} '{name}' of {origin} does not load: {type(error).__name__}: {error}")
        raise UserError(f"There is no {self.kind} '{name}'; {did_you_mean(name, self._entries)}")

    def __iter__(self) -> Iterator[Entry]:
        self._load()
        return iter(sorted(self._entries.values(), key=lambda entry: entry.name))

    def __contains__(self, name: str) -> bool:
        self._load()
        return name in self._entries

    def names(self) -> list[str]:
        """All names that can be asked for, sorted."""
        return [entry.name for entry in self]

    def broken(self) -> dict[str, tuple[str, BaseException]]:
        """Plug-ins that do not load: name -> (origin, error)."""
        self._load()
        return dict(self._broken)

    def _load(self) -> None:
        if self._loaded:
            return
        self._loaded = True
        origin, Registry._origin = Registry._origin, None
        try:
            package = importlib.import_module(self.package)
            for module in sorted(m.name for m in pkgutil.iter_modules(getattr(package, "__path__", []))):
                importlib.import_module(f"{self.package}.{module}")
            for point in importlib.metadata.entry_points(group=self.group):
                where = f"the package {point.dist.name} {point.dist.version}" if point.dist else f"{point.value}"
                self._guarded(point.name, where, point.load)
        finally:
            Registry._origin = origin

    def _guarded(self, name: str, origin: str, load: Callable[[], Any]) -> None:
        try:
            with _origin(origin):
                load()
        except Exception as error:  # whatever a plug-in raises, it must not take the program down
            self._broken[name] = (origin, error)


_ALL: list[Registry] = []


@contextmanager
def _origin(origin: str) -> Iterator[None]:
    """Everything registered inside comes from `origin`; when it fails half-way, nothing of it stays behind."""
    Registry._origin = origin
    try:
        yield
    except BaseException:
        for registry in _ALL:
            registry._entries = {n: e for n, e in registry._entries.items() if e.origin != origin}
        raise
    finally:
        Registry._origin = None


def load_plugin(path: str | Path) -> ModuleType:
    """Run a plug-in file, which may register into any registry. The module; loading one file twice gives it again.

    Raises `UserError` when the file is missing, does not run, or takes a name that is taken; what it had
    registered before the error is forgotten.
    """
    file = Path(path).expanduser().resolve()
    if not file.is_file():
        raise UserError(f"There is no plug-in file {path}.")
    module_name = f"unlearnbench_plugin_{file.stem}_{hashlib.sha256(str(file).encode()).hexdigest()[:8]}"
    if module_name in sys.modules:
        return sys.modules[module_name]
    spec = importlib.util.spec_from_file_location(module_name, file)
    if spec is None or spec.loader is None:
        raise UserError(f"The plug-in {path} is not a Python file.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module  # so that classes of the file pickle inside this process
    try:
        with _origin(str(file)):
            spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[module_name]
        if isinstance(error, UserError):
            raise
        raise UserError(f"The plug-in {path} does not load: {type(error).__name__}: {error}") from error
    return module


def _origin_of(cls: type) -> str:
    module = sys.modules.get(cls.__module__)
    return getattr(module, "__file__", None) or cls.__module__


def _caller_origin() -> str:
    return str(sys._getframe(2).f_globals.get("__file__", "?"))
