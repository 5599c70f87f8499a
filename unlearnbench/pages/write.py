"""Write the generated pages, or say which of those that are there differ from what the code gives."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from unlearnbench.pages import methods, metrics, others

NOTE = "<!-- Made from the code by `python -m unlearnbench.pages`: change the docstrings, not this file. -->\n\n"


def generated() -> dict[str, str]:
    """Path under docs/ -> text, of every generated page."""
    return {path: NOTE + text for part in (methods, metrics, others) for path, text in part.pages().items()}


def differing(found: dict[str, str], out: Path) -> list[str]:
    """Paths of pages that are missing, differ or are no longer made."""
    there = {str(file.relative_to(out)): file.read_text(encoding="utf-8") for file in out.rglob("*.md")}
    changed = [path for path, text in found.items() if there.get(path) != text]
    gone = [path for path, text in there.items() if text.startswith(NOTE) and path not in found]
    return sorted(changed + gone)


def navigation(found: dict[str, str], config: str) -> str:
    """mkdocs.yml with the generated pages of a section between its marks, `# methods/` and `# end`."""
    lines: list[str] = []
    inside = False
    for line in config.splitlines():
        mark = line.strip()
        inside = inside and mark != "# end"
        if not inside:
            lines.append(line)
        if mark.startswith("# ") and mark.endswith("/"):
            inside, indent = True, line[: line.index("#")]
            lines += _entries({path: text for path, text in found.items() if path.startswith(mark[2:])}, indent)
    return "\n".join(lines) + "\n"


def _entries(found: dict[str, str], indent: str) -> list[str]:
    """Lines of the navigation, under a heading where the pages have one."""
    lines, heading = [], ""
    for path, text in found.items():
        section = metrics.section(path)
        if section and section != heading:
            lines.append(f"{indent}- {section}:")
        heading = section
        title = "Overview" if path.endswith("/index.md") else _title(text)
        lines.append(f"{indent}{'    ' if section else ''}- {title}: {path}")
    return lines


def _title(page: str) -> str:
    title = next(line[2:] for line in page.splitlines() if line.startswith("# "))
    return f'"{title}"' if ":" in title else title


def write(found: dict[str, str], out: Path) -> list[str]:
    """Write what differs, and remove generated pages that are no longer made. Returns the paths."""
    changed = differing(found, out)
    for path in changed:
        if path in found:
            (out / path).parent.mkdir(parents=True, exist_ok=True)
            (out / path).write_text(found[path], encoding="utf-8")
        else:
            (out / path).unlink()
    return changed


def main() -> None:
    """The command line of this package."""
    parser = argparse.ArgumentParser(prog="python -m unlearnbench.pages", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs"), help="the folder of the pages (docs)")
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 when a page differs")
    given = parser.parse_args()
    found = generated()
    config = given.out.parent / "mkdocs.yml"
    changed = differing(found, given.out) if given.check else write(found, given.out)
    if config.is_file() and (new := navigation(found, old := config.read_text(encoding="utf-8"))) != old:
        changed.append(f"../{config.name}")
        if not given.check:
            config.write_text(new, encoding="utf-8")
    verb = "differs" if given.check else "written"
    sys.stdout.write("".join(f"{given.out / path}: {verb}\n" for path in changed))
    sys.exit(1 if given.check and changed else 0)
