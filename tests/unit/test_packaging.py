"""What is installed: every package and data file under `unlearnbench`, the pins, and what CI prints."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
MAPPED = ("methods", "metrics", "experiments", "results/published")  # folders that are sub-packages of unlearnbench
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def packages_on_disk() -> set[str]:
    found = {".".join(f.parent.relative_to(ROOT).parts) for f in (ROOT / "unlearnbench").rglob("__init__.py")}
    mapped = [name for name in MAPPED if (ROOT / name / "__init__.py").is_file()]
    return found | {f"unlearnbench.{name.replace('/', '.')}" for name in mapped}


def test_every_package_is_listed() -> None:
    assert set(PYPROJECT["tool"]["setuptools"]["packages"]) == packages_on_disk()


def test_mapped_folders_are_flat() -> None:
    for name in MAPPED:
        inside = [p.name for p in (ROOT / name).iterdir() if p.is_dir() and p.name != "__pycache__"]
        assert inside == [], f"{name}/ holds folders: {inside}"


def test_nothing_is_imported_as_a_top_level_methods_or_metrics() -> None:
    code = (
        "import sys\n"
        "from unlearnbench.method import methods\n"
        "from unlearnbench.metric import metrics\n"
        "assert methods.names(), 'no built-in method'\n"
        "metrics.names()\n"
        "import unlearnbench.experiments, unlearnbench.results.published\n"
        "bad = sorted({'methods', 'metrics', 'experiments', 'results'} & set(sys.modules))\n"
        "assert not bad, bad\n"
        "assert any(name.startswith('unlearnbench.methods.') for name in sys.modules)\n"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel of a copy of the sources, so that no build folder is left in the checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    for name in ("unlearnbench", *MAPPED):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    command = [
        "-m",
        "pip",
        "wheel",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
        "-q",
        "-w",
        str(folder),
        str(source),
    ]
    result = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    (built,) = folder.glob("unlearnbench-*.whl")
    return built


def test_the_wheel_holds_every_source_and_experiment_under_unlearnbench(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        entry_points = archive.read(next(n for n in archive.namelist() if n.endswith("entry_points.txt"))).decode()
    expected = {str(f.relative_to(ROOT)) for f in (ROOT / "unlearnbench").rglob("*.py")}
    for name in MAPPED:
        files = [f for f in (ROOT / name).iterdir() if f.suffix in (".py", ".yaml", ".csv")]
        expected |= {f"unlearnbench/{f.relative_to(ROOT)}" for f in files}
    assert expected <= names, sorted(expected - names)
    assert "unlearnbench/py.typed" in names
    assert {name.split("/")[0] for name in names} == {"unlearnbench"}
    assert "unlearnbench = unlearnbench.cli:main" in entry_points


def test_the_wheel_works_without_the_checkout(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    code = (
        "import unlearnbench, unlearnbench.methods, unlearnbench.metrics, unlearnbench.experiments as e\n"
        "from unlearnbench.report.printed import load\n"
        "assert load(), 'no published number'\n"
        "from importlib.metadata import version\n"
        "assert version('unlearnbench') == unlearnbench.__version__\n"
        "assert len(unlearnbench.__path__) == 1\n"
        "print(unlearnbench.methods.__file__)"
    )
    env = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60
    )
    assert result.returncode == 0, result.stderr
    assert Path(result.stdout.strip()).is_relative_to(tmp_path)


# -- the pins ------------------------------------------------------------------------------------------------------


def pins(python: str) -> dict[str, str]:
    """constraints.txt as name -> version, for one Python version."""
    found: dict[str, str] = {}
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            continue
        assert re.fullmatch(r'[a-z0-9-]+==[A-Za-z0-9.]+(; python_version (>=|<) "3\.11")?', line), line
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate({"python_version": python}):
            assert requirement.name not in found, f"{requirement.name} is pinned twice on Python {python}"
            found[requirement.name] = next(iter(requirement.specifier)).version
    return found


@pytest.mark.parametrize("python", ["3.10", "3.11", "3.12", "3.13"])
def test_every_dependency_is_pinned_within_its_bound(python: str) -> None:
    pinned = pins(python)
    extras = PYPROJECT["project"]["optional-dependencies"]
    needed = list(PYPROJECT["project"]["dependencies"])
    for name, requirements in extras.items():
        needed += [] if name == "docs" and python == "3.10" else requirements  # its pins start at Python 3.11
    assert len(needed) > 20
    for requirement in map(Requirement, needed):
        name = re.sub(r"[-_.]+", "-", requirement.name).lower()
        assert name in pinned, f"{name} has no pin on Python {python}"
        assert requirement.specifier.contains(pinned[name]), (
            f"{name}: pin {pinned[name]} is outside {requirement.specifier}"
        )
    assert pinned["torch"] == "2.13.0"


# -- what CI runs --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("status", "summary"), [(0, "3 passed in 0.10s"), (2, "1 failed, 2 passed in 0.10s")])
def test_ci_ends_with_the_summary_and_the_status_of_the_tests(tmp_path: Path, status: int, summary: str) -> None:
    fake = tmp_path / "make"  # stands for make, which prints a line of its own when a recipe fails
    fake.write_text(
        f'#!/bin/sh\necho "$@"\necho "{summary}"\n[ {status} = 0 ] && exit\n'
        f'echo "make: *** [Makefile: test] Error 1" >&2\nexit {status}\n'
    )
    fake.chmod(0o755)
    env = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "CI": "true"}
    result = subprocess.run(["bash", str(ROOT / ".ci" / "run")], env=env, cwd=tmp_path, capture_output=True, text=True)
    lines = result.stdout.splitlines()
    assert lines[0].split()[-1] == "test"
    assert lines[-1] == summary
    assert result.returncode == status


def test_make_lists_its_targets() -> None:
    result = subprocess.run(["make", "-C", str(ROOT), "help"], capture_output=True, text=True, timeout=60)
    for target in ("quickstart", "test", "test-full", "lint", "type", "docs"):
        assert f"make {target} " in result.stdout
