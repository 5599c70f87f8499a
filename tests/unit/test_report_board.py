"""The leaderboard's page, in a browser where there is one: sort, filter, point at a mark, no request to anywhere."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.synthetic import TITLES, write_results
from unlearnbench.errors import UserError
from unlearnbench.report import verify, write_board
from unlearnbench.report.board import merged
from unlearnbench.report.results import Results
from unlearnbench.report.standings import tables

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
#: what a reader does, and what is to be seen then; left in the document for the test to read
DEEDS = """
const seen = {errors: []};
addEventListener("error", event => seen.errors.push(event.message));
addEventListener("securitypolicyviolation", event => seen.errors.push(event.violatedDirective));
const rows = () => [...document.querySelectorAll("#board tbody tr")];
const column = n => rows().map(row => row.cells[n].dataset.value ?? row.cells[n].textContent.trim());
const heads = [...document.querySelectorAll("#board th")];
const score = heads.findIndex(head => head.textContent.startsWith("score"));
heads[score].click(); seen.up = column(score);
heads[score].click(); seen.down = column(score);
const filter = document.querySelector("input.filter");
filter.value = "masc 4bit"; filter.dispatchEvent(new Event("input"));
seen.filtered = rows().filter(row => !row.hidden).map(row => row.cells[1].textContent + row.cells[5].textContent);
const mark = document.querySelector("figure svg [data-tip]");
mark.dispatchEvent(new PointerEvent("pointermove", {clientX: 50, clientY: 50, bubbles: true}));
seen.tip = document.getElementById("tip").textContent;
const paper = () => getComputedStyle(document.body).backgroundColor;
const before = paper(); document.getElementById("theme").click(); seen.themes = [before, paper()];
seen.requests = performance.getEntriesByType("resource").length;
const note = document.createElement("pre"); note.id = "seen"; note.textContent = JSON.stringify(seen);
document.body.append(note);
"""


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Results]:
    folder = tmp_path_factory.mktemp("board")
    roots = [write_results(folder / "a", seeds=5), write_results(folder / "b", seeds=5, attack="4bit")]
    results = Results.load(roots)
    write_board(results, folder / "board.csv")
    assert verify(folder / "board.csv", roots) == []
    return folder, results


def test_all_forms_hold_all_rows(board: tuple[Path, Results]) -> None:
    folder, results = board
    grid = merged(tables(results))
    assert len(grid.rows) == 18 and {row[5] for row in grid.rows} == {"none", "4bit"}
    masc = next(row for row in grid.rows if row[1].startswith("MASC") and row[5] == "none")
    assert masc[6] == "5" and re.fullmatch(r"0\.\d\d ±0\.\d\d", masc[7]) and len(masc[-1]) == 12
    for ending in (".md", ".tex", ".html"):
        text = (folder / "board").with_suffix(ending).read_text()
        assert all(title in text for title in TITLES.values()), ending
    page = (folder / "board.html").read_text()
    assert not re.search(r"(src|href)=\"(?!data:|#)", page) and "http://" not in page.replace("http://www.w3.org", "")
    with pytest.raises(UserError, match=r"leaderboard\.csv"):
        write_board(results, folder / "board.html")


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium here")
def test_the_page_in_a_browser(board: tuple[Path, Results], tmp_path: Path) -> None:
    page = (board[0] / "board.html").read_text(encoding="utf-8")
    (tmp_path / "page.html").write_text(page.replace("</body>", f"<script>{DEEDS}</script></body>"), encoding="utf-8")
    command = [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    done = subprocess.run(
        [*command, "--virtual-time-budget=5000", "--dump-dom", (tmp_path / "page.html").as_uri()],
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    found = re.search(r'<pre id="seen">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found, done.stdout[-2000:] + done.stderr[-2000:]
    seen = json.loads(found[1].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))
    assert seen["errors"] == [] and seen["requests"] == 0
    numbers = [float(text) for text in seen["up"]]
    assert numbers == sorted(numbers) and len(numbers) == 18
    assert [float(text) for text in seen["down"]] == sorted(numbers, reverse=True)
    assert (
        len(seen["filtered"]) == 1 and seen["filtered"][0].startswith("MASC") and seen["filtered"][0].endswith("4bit")
    )
    assert re.search(r"(forget side|1-ROUGE-L) \d\.\d\d", seen["tip"])
    assert seen["themes"][0] != seen["themes"][1]
