"""Put an experiment's report and records where they are committed, and its table into the README.

    python -m unlearnbench.publish quickstart --runs runs --out results/quickstart --readme README.md

Copied are the tables, plots and page, and into `runs.tar.xz` of each stage the request, the record, the curve and the
metrics; no weights and no answers. `tar xf runs.tar.xz && unlearnbench report runs` makes the tables again. A README.md
in the folder is kept.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path

from unlearnbench.errors import UserError

KEPT = ("spec.json", "record.json", "log.jsonl", "metrics.json")
REPORT = ("*.csv", "*.md", "*.tex", "*.png", "*.svg", "*.pdf", "*.html")


def publish(name: str, runs: Path, out: Path) -> None:
    """Replace `out` by the report and the records of the experiment `name`.

    Raises `UserError`, and leaves `out` as it is, when a stage of the experiment or its report is not in `runs`.
    """
    from unlearnbench import schema
    from unlearnbench.plan import plan
    from unlearnbench.store import Store

    store, stages = Store(runs), plan(schema.load(name))
    absent = [planned.name for planned in stages if store.find(planned.stage) is None]
    if absent:
        raise UserError(f"{runs} lacks {len(absent)} of the {len(stages)} stages of '{name}': {absent[0]}, …")
    if not (runs / "reports" / name / "report.html").is_file():
        raise UserError(f"{runs} has no report of '{name}': unlearnbench run {name} --runs {runs}")
    out.mkdir(parents=True, exist_ok=True)
    for old in out.iterdir():
        if old.is_dir():
            shutil.rmtree(old)
        elif old.name != "README.md":
            old.unlink()
    for pattern in REPORT:
        for file in sorted((runs / "reports" / name).glob(pattern)):
            shutil.copyfile(file, out / file.name)
    pack(sorted(store.folder(planned.stage) for planned in stages), out / "runs.tar.xz")


def pack(folders: Sequence[Path], file: Path) -> None:
    """Write what is kept of run folders as `runs/NAME/…`; the same contents give the same bytes."""
    with tarfile.open(file, "w:xz", preset=6) as archive:
        for kept in (folder / name for folder in folders for name in KEPT):
            if kept.is_file():
                entry = tarfile.TarInfo(f"runs/{kept.parent.name}/{kept.name}")
                entry.size = kept.stat().st_size
                with kept.open("rb") as content:
                    archive.addfile(entry, content)


def inject(readme: Path, marker: str, text: str) -> None:
    """Replace what stands between `<!-- marker -->` and `<!-- end -->`."""
    before, _, rest = readme.read_text(encoding="utf-8").partition(f"<!-- {marker} -->\n")
    if not rest:
        raise SystemExit(f"{readme} has no marker <!-- {marker} -->")
    _, _, after = rest.partition("<!-- end -->\n")
    readme.write_text(f"{before}<!-- {marker} -->\n{text}<!-- end -->\n{after}", encoding="utf-8")


def first_table(file: Path) -> str:
    """The first table of a Markdown file, without its title and notes."""
    lines = file.read_text(encoding="utf-8").splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("|"))
    end = next((i for i in range(start, len(lines)) if not lines[i].startswith("|")), len(lines))
    return "\n".join(lines[start:end]) + "\n"


def main() -> None:
    """The command line of this module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment")
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--readme", type=Path)
    given = parser.parse_args()
    try:
        publish(given.experiment, given.runs, given.out)
    except UserError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(2)
    if given.readme is not None:
        inject(given.readme, f"table: {given.experiment}", first_table(given.out / "table.md"))


if __name__ == "__main__":
    main()
