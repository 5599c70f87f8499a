"""Registries: nobody replaces anybody, and a broken plug-in takes nothing else down."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from unlearnbench import registry as registry_module
from unlearnbench.errors import UserError
from unlearnbench.registry import Registry, load_plugin

HEADER = "from zoo_registry import animals\n"


@pytest.fixture
def animals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    """A registry of its own with the built-ins `cat` (version 3) and its preset `tabby`, in a package of two files."""
    package = tmp_path / "zoo"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "cat.py").write_text(
        HEADER
        + "@animals.register('cat', title='Cat', version=3, paper='P')\n"
        + "class Cat:\n    def __init__(self, legs=4, stripes=0): self.legs, self.stripes = legs, stripes\n"
        + "animals.preset('tabby', of='cat', stripes=9)\n"
    )
    (package / "dog.py").write_text(HEADER + "@animals.register('dog')\nclass Dog: pass\n")
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(tmp_path))
    known = list(registry_module._ALL)
    made = Registry("animal", package="zoo")
    module = type(sys)("zoo_registry")
    module.animals = made  # type: ignore[attr-defined]
    sys.modules["zoo_registry"] = module
    importlib.invalidate_caches()
    yield made
    registry_module._ALL[:] = known
    for name in set(sys.modules) - before:
        del sys.modules[name]


def plugin(folder: Path, name: str, body: str) -> Path:
    file = folder / name
    file.write_text(HEADER + body)
    return file


def test_built_ins_are_found_with_their_version_and_origin(animals: Registry, tmp_path: Path) -> None:
    assert animals.names() == ["cat", "dog", "tabby"]
    cat = animals.get("cat")
    assert (cat.title, cat.version, cat.meta) == ("Cat", 3, {"paper": "P"})
    assert cat.origin == str(tmp_path / "zoo" / "cat.py")
    assert (cat.cls.registered_name, cat.cls.version) == ("cat", 3)  # type: ignore[attr-defined]


def test_a_preset_is_the_same_class_with_other_values(animals: Registry) -> None:
    tabby = animals.get("tabby")
    assert (tabby.cls, tabby.preset_of, tabby.version) == (animals.get("cat").cls, "cat", 3)
    assert tabby.build().stripes == 9
    assert (tabby.build(legs=3).legs, tabby.build(stripes=1).stripes) == (3, 1)
    assert animals.get("cat").build().stripes == 0


def test_nothing_is_imported_before_a_name_is_asked_for(animals: Registry) -> None:
    assert "zoo.cat" not in sys.modules
    assert "cat" in animals
    assert "zoo.cat" in sys.modules


def test_an_unknown_name_gets_the_nearest(animals: Registry) -> None:
    with pytest.raises(
        UserError, match=r"There is no animal 'taby'; did you mean 'tabby'\? Allowed: cat, dog, tabby\."
    ):
        animals.get("taby")


@pytest.mark.parametrize("loaded_before", [True, False])
def test_a_plugin_cannot_take_a_built_ins_name(animals: Registry, tmp_path: Path, loaded_before: bool) -> None:
    if loaded_before:
        animals.names()
    file = plugin(
        tmp_path,
        "mine.py",
        "@animals.register('otter')\nclass Otter: pass\n@animals.register('cat')\nclass Mine: pass\n",
    )
    with pytest.raises(UserError, match="'cat' is taken twice") as caught:
        load_plugin(file)
    assert str(tmp_path / "zoo" / "cat.py") in str(caught.value)
    assert str(file) in str(caught.value)
    assert animals.get("cat").build().legs == 4, "the built-in stays usable"
    assert "otter" not in animals, "nothing of the refused file stays behind"


def test_a_preset_cannot_take_a_name_either(animals: Registry, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="'dog' is taken twice"):
        load_plugin(plugin(tmp_path, "mine.py", "animals.preset('dog', of='cat')\n"))
    assert animals.get("dog").preset_of is None


def test_a_preset_of_nothing_is_refused(animals: Registry, tmp_path: Path) -> None:
    animals.names()
    with pytest.raises(UserError, match="built on 'lion', which is not registered"):
        load_plugin(plugin(tmp_path, "mine.py", "animals.preset('simba', of='lion')\n"))


def test_two_plugins_with_one_name(animals: Registry, tmp_path: Path) -> None:
    first = plugin(tmp_path, "first.py", "@animals.register('otter')\nclass Otter: pass\n")
    second = plugin(tmp_path, "second.py", "@animals.register('otter')\nclass Otter: pass\n")
    load_plugin(first)
    with pytest.raises(UserError, match="'otter' is taken twice") as caught:
        load_plugin(second)
    assert str(first) in str(caught.value)
    assert str(second) in str(caught.value)
    assert animals.get("otter").origin == str(first)


def test_one_plugin_given_twice_is_loaded_once(animals: Registry, tmp_path: Path) -> None:
    file = plugin(tmp_path, "mine.py", "@animals.register('otter')\nclass Otter: pass\n")
    load_plugin(file)
    load_plugin(file.parent / "." / "mine.py")
    assert animals.names() == ["cat", "dog", "otter", "tabby"]


def test_a_plugin_that_fails_half_way_leaves_nothing_and_may_be_mended(animals: Registry, tmp_path: Path) -> None:
    file = plugin(tmp_path, "mine.py", "@animals.register('otter')\nclass Otter: pass\nimport no_such_module\n")
    with pytest.raises(UserError, match=r"mine\.py does not load: ModuleNotFoundError: .*no_such_module"):
        load_plugin(file)
    assert "otter" not in animals
    file.write_text(HEADER + "@animals.register('otter')\nclass Otter: 'mended, and of another length'\n")
    load_plugin(file)
    assert "otter" in animals


def test_a_missing_plugin_is_one_line(animals: Registry, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"There is no plug-in file .*nowhere\.py"):
        load_plugin(tmp_path / "nowhere.py")


def entry_point_package(folder: Path, name: str, target: str, body: str) -> None:
    """An installed third-party distribution with one entry point."""
    (folder / f"{target}.py").write_text(body)
    info = folder / f"{target}-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {target}\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text(f"[unlearnbench.animals]\n{name} = {target}\n")


def test_installed_packages_add_names(animals: Registry, tmp_path: Path) -> None:
    entry_point_package(
        tmp_path, "seal", "sealife", HEADER + "@animals.register('seal', version=2)\nclass Seal: pass\n"
    )
    assert "seal" in animals.names()
    assert animals.get("seal").origin == "the package sealife 1.2"


def test_a_broken_installed_plugin_is_listed_and_raises_only_when_asked_for(animals: Registry, tmp_path: Path) -> None:
    entry_point_package(tmp_path, "seal", "sealife", HEADER + "raise RuntimeError('no fish')\n")
    entry_point_package(tmp_path, "eel", "eelife", HEADER + "@animals.register('eel')\nclass Eel: pass\n")
    assert animals.names() == ["cat", "dog", "eel", "tabby"], "the others are there"
    origin, error = animals.broken()["seal"]
    assert (origin, str(error)) == ("the package sealife 1.2", "no fish")
    with pytest.raises(UserError, match=r"'seal' of the package sealife 1\.2 does not load: RuntimeError: no fish"):
        animals.get("seal")


def test_an_installed_plugin_cannot_replace_a_built_in(animals: Registry, tmp_path: Path) -> None:
    entry_point_package(tmp_path, "fatcat", "rival", HEADER + "@animals.register('cat')\nclass Cat: pass\n")
    assert animals.get("cat").origin == str(tmp_path / "zoo" / "cat.py")
    _, error = animals.broken()["fatcat"]
    assert "'cat' is taken twice" in str(error)
    assert "rival 1.2" in str(error)
