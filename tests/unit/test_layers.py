"""Who may import whom: the contract of pyproject.toml, and what static analysis cannot see."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def lint_imports(root: Path) -> subprocess.CompletedProcess[str]:
    code = "from importlinter.cli import lint_imports_command as run; run()"
    return subprocess.run(
        [sys.executable, "-c", code, "--no-cache", "--config", str(ROOT / "pyproject.toml")],
        cwd=root, capture_output=True, text=True, timeout=120,
    )  # fmt: skip


def test_rooms_import_only_from_rooms_below_them() -> None:
    result = lint_imports(ROOT)
    assert result.returncode == 0, result.stdout + result.stderr
    assert " 0 broken" in result.stdout


def test_the_contract_sees_a_breach_and_a_room_without_a_place(tmp_path: Path) -> None:
    for folder in ("unlearnbench", "methods", "metrics"):
        for file in (ROOT / folder).rglob("*.py"):
            copy = tmp_path / file.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(file.read_text(encoding="utf-8"), encoding="utf-8")
    (tmp_path / "unlearnbench" / "attic.py").write_text("")
    with (tmp_path / "unlearnbench" / "text.py").open("a") as file:
        file.write("\nimport unlearnbench.training\n")
    with (tmp_path / "methods" / "npo.py").open("a") as file:
        file.write("\nimport unlearnbench.unlearning\n")
    result = lint_imports(tmp_path)
    assert result.returncode != 0
    for breach in (
        "unlearnbench.text is not allowed to import unlearnbench.training",
        "methods is not allowed to import unlearnbench.unlearning",
        "- unlearnbench.attic",
    ):
        assert breach in result.stdout


def test_the_harness_names_no_method_and_no_metric_file() -> None:
    """They are reached through the registries alone, so that a built-in has no privilege."""
    sources = list((ROOT / "unlearnbench").rglob("*.py"))
    assert sources
    for source in sources:
        for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            for name in names:
                breach = re.match(r"(unlearnbench\.)?(methods|metrics)(\.|$)", name)
                assert not breach, f"{source.relative_to(ROOT)}:{node.lineno} imports {name}"
