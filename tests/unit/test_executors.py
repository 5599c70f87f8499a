"""Worker processes: order, timed jobs alone, failures contained, and no orphans."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from unlearnbench import executors
from unlearnbench.executors import Job, report_progress, run_jobs


@pytest.fixture(autouse=True)
def _light_fork_server(monkeypatch):
    monkeypatch.setattr(executors, "PRELOAD", "unlearnbench.errors")


def spell(folder: str, name: str, seconds: float = 0.2) -> str:
    start = time.time()
    time.sleep(seconds)
    (Path(folder) / name).write_text(f"{start} {time.time()}")
    return name


def fail() -> None:
    raise ValueError("no such luck")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def steps() -> None:
    for i in range(3):
        report_progress(i + 1, 3)
    time.sleep(0.5)


def spans(folder: Path) -> dict[str, tuple[float, float]]:
    return {file.name: tuple(map(float, file.read_text().split())) for file in folder.iterdir()}


def test_a_timed_job_runs_alone_and_dependencies_are_kept(tmp_path):
    jobs = [
        Job("c", spell, (str(tmp_path), "c"), after=("a", "b"), timed=True, rank=1),
        Job("a", spell, (str(tmp_path), "a")),
        Job("b", spell, (str(tmp_path), "b")),
        Job("d", spell, (str(tmp_path), "d"), rank=2),
        Job("e", spell, (str(tmp_path), "e"), after=("c",), rank=2),
    ]
    events = list(run_jobs(jobs, workers=2))
    assert {e.name for e in events if e.kind == "finished"} == set("abcde")
    assert [e.result for e in events if e.name == "a" and e.kind == "finished"] == ["a"]
    span = spans(tmp_path)
    assert span["a"][0] < span["b"][1] and span["b"][0] < span["a"][1], "a and b overlap"
    for other in "abde":
        assert span[other][1] <= span["c"][0] or span[other][0] >= span["c"][1], f"c ran beside {other}"


def test_a_failure_blocks_what_waits_for_it_and_nothing_else(tmp_path):
    jobs = [
        Job("bad", fail),
        Job("child", spell, (str(tmp_path), "child"), after=("bad",)),
        Job("grandchild", spell, (str(tmp_path), "grandchild"), after=("child",)),
        Job("good", spell, (str(tmp_path), "good")),
    ]
    kinds = {(e.name, e.kind): e for e in run_jobs(jobs, workers=2)}
    assert kinds["bad", "failed"].error == "ValueError: no such luck"
    assert "in fail" in kinds["bad", "failed"].trace
    assert ("child", "blocked") in kinds and ("grandchild", "blocked") in kinds and ("good", "finished") in kinds


def test_a_worker_that_dies_takes_no_other_job_with_it(tmp_path):
    jobs = [
        Job("dead", die),
        Job("long", spell, (str(tmp_path), "long", 1.0)),
        Job("late", spell, (str(tmp_path), "late")),
    ]
    kinds = {(e.name, e.kind) for e in run_jobs(jobs, workers=2)}
    assert {("dead", "failed"), ("long", "finished"), ("late", "finished")} <= kinds
    assert ("long", "failed") not in kinds


def test_progress_arrives():
    counts = [(e.done, e.total) for e in run_jobs([Job("p", steps)]) if e.kind == "progress"]
    assert counts == [(1, 3), (2, 3), (3, 3)]


def test_workers_end_with_a_parent_that_is_killed(tmp_path):
    script = tmp_path / "parent.py"
    script.write_text(
        "import os, time\n"
        "from unlearnbench import executors\n"
        "executors.PRELOAD = 'unlearnbench.errors'\n"
        f"from {__name__.rsplit('.', 1)[-1]} import sleeper\n"
        "if __name__ == '__main__':\n"
        f"    list(executors.run_jobs([executors.Job('s', sleeper, ({str(tmp_path)!r},))]))\n"
    )
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    parent = subprocess.Popen([sys.executable, str(script)], env={**os.environ, "PYTHONPATH": path})
    pid_file = tmp_path / "pid"
    for _ in range(200):
        if pid_file.exists() and pid_file.read_text():
            break
        time.sleep(0.1)
    worker = int(pid_file.read_text())
    parent.kill()
    parent.wait()
    for _ in range(50):
        if not _alive(worker):
            return
        time.sleep(0.1)
    raise AssertionError("the worker outlived its parent")


def sleeper(folder: str) -> None:
    (Path(folder) / "pid").write_text(str(os.getpid()))
    time.sleep(60)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
