"""Run folders: whole or not at all, one builder at a time, never another stage's numbers."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from unlearnbench import provenance
from unlearnbench.canonical import key, read_json
from unlearnbench.errors import UserError
from unlearnbench.store import Skip, Stage, Store

ROOT = Path(__file__).parents[2]
HERE = {"hardware": {"fingerprint": "here"}, "versions": {"python": "3"}, "git": None}


def here() -> dict[str, Any]:
    return HERE


def stage(label: str = "masc-s0", **spec: Any) -> Stage:
    return Stage("unlearn", label, {"seed": 0, "learning_rate": 1e-3, "parents": {"target": "00ff"}, **spec})


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "runs", provenance=here)


def again(store: Store, rerun: str) -> Store:
    return Store(store.root, rerun, store.provenance)


def build(store: Store, wanted: Stage, text: str = "weights", **record: Any) -> Path:
    with store.build(wanted) as building:
        assert not building.reused
        (building.folder / "model").mkdir()
        (building.folder / "model" / "w.bin").write_text(text)
        building.record.update(record)
    return building.folder


def reuse(store: Store, wanted: Stage) -> Path:
    with store.build(wanted) as building:
        assert building.reused
    return building.folder


def leftovers(store: Store) -> list[str]:
    return sorted(p.name for p in store.root.iterdir() if p.name.startswith(".") and p.name != ".locks")


# -- keys and names ------------------------------------------------------------------------------------------------


def test_the_key_is_known_before_anything_runs_and_follows_from_the_whole_request() -> None:
    assert stage().key == key({"kind": "unlearn", "label": "masc-s0", **stage().spec})
    others = [
        stage(seed=1),
        stage(parents={"target": "00fe"}),
        stage("npo-s0"),
        stage(torch="2.13.0"),
        stage(threads=2),
    ]
    assert len({stage().key, *(other.key for other in others)}) == 6
    assert Stage("attack", "masc-s0", stage().spec).key != stage().key


def test_folder_names_suit_shells_and_stay_apart() -> None:
    assert (
        stage("masc[rho=0.5,k=3] s0").folder_name
        == f"unlearn-masc-rho=0.5-k=3-s0-{stage('masc[rho=0.5,k=3] s0').key[:8]}"
    )
    assert stage("../../etc").folder_name.startswith("unlearn-etc-")
    assert stage("").folder_name == f"unlearn-{stage('').key[:8]}"
    assert len(stage("x" * 500).folder_name) < 120


def test_a_spec_that_is_no_json_is_refused_before_anything_runs(store: Store) -> None:
    with pytest.raises(ValueError, match="learning_rate is nan"):
        store.due(stage(learning_rate=float("nan")))


# -- building and reusing ------------------------------------------------------------------------------------------


def test_a_built_stage_has_its_request_its_record_and_nothing_temporary(store: Store) -> None:
    assert store.due(stage())
    folder = build(store, stage(), steps=12)
    assert folder == store.root / stage().folder_name == store.folder(stage())
    assert read_json(folder / "spec.json") == {"kind": "unlearn", "label": "masc-s0", **stage().spec}
    record = read_json(folder / "record.json")
    assert (record["status"], record["key"], record["steps"], record["attempts"]) == ("complete", stage().key, 12, 1)
    assert {name: record[name] for name in HERE} == HERE
    assert set(record["files"]) == {"spec.json", "model/w.bin"}
    assert record["files"]["model/w.bin"]["size"] == 7
    assert record["wall_seconds"] >= 0
    assert leftovers(store) == []
    assert (store.state(stage()), store.due(stage())) == ("complete", False)


def test_a_second_run_reuses_it(store: Store) -> None:
    folder = build(store, stage(), steps=12)
    before = (folder / "record.json").read_bytes()
    with store.build(stage()) as building:
        assert building.reused
        assert (building.folder, building.record["steps"]) == (folder, 12)
    assert (folder / "record.json").read_bytes() == before


def test_two_seeds_are_two_folders(store: Store) -> None:
    build(store, stage(seed=0), "zero")
    build(store, stage(seed=1), "one")
    assert [(run.spec["seed"], (run.folder / "model/w.bin").read_text()) for run in store.runs("unlearn")] in (
        [(0, "zero"), (1, "one")],
        [(1, "one"), (0, "zero")],
    )
    assert store.runs("evaluate") == []


def test_nothing_is_there_until_it_is_whole(store: Store) -> None:
    with store.build(stage()) as building:
        (building.folder / "metrics.json").write_text("{}")
        assert store.find(stage()) is None
        assert store.runs() == []
        assert not store.folder(stage()).exists()
    assert store.find(stage()) is not None


def test_a_record_with_nan_fails_the_stage_and_says_where(store: Store) -> None:
    with pytest.raises(ValueError, match=r"loss\[1\] is nan"):
        build(store, stage(), loss=[0.1, float("nan")])
    run = store.find(stage())
    assert run is not None
    assert (run.status, run.reason) == ("failed", "ValueError: loss[1] is nan: write null, and the reason beside it")
    read_json(run.folder / "record.json")


@pytest.mark.parametrize("name", ["status", "key", "files", "hardware"])
def test_a_builder_cannot_write_what_the_store_writes(store: Store, name: str) -> None:
    with pytest.raises(ValueError, match=name):
        build(store, stage(), **{name: "mine"})


def test_a_store_travels_to_another_process() -> None:
    store = pickle.loads(pickle.dumps(Store("runs", "failed")))
    assert (store.root, store.rerun) == (Path("runs"), "failed")


# -- failures and the rerun policy ---------------------------------------------------------------------------------


def test_a_failed_stage_keeps_its_record_its_log_and_its_traceback(store: Store) -> None:
    with pytest.raises(ZeroDivisionError), store.build(stage()) as building:
        (building.folder / "log.jsonl").write_text('{"step": 1}\n')
        (building.folder / "model").mkdir()
        (building.folder / "model" / "half").write_text("half a model")
        (building.folder / "checkpoint").mkdir()
        (building.folder / "checkpoint" / "state").write_text("of a run that went wrong")
        _ = 1 / 0
    run = store.find(stage())
    assert run is not None
    assert (run.status, run.record["error"]) == ("failed", "ZeroDivisionError: division by zero")
    assert "_ = 1 / 0" in (run.folder / "traceback.txt").read_text()
    assert sorted(p.name for p in run.folder.iterdir()) == ["log.jsonl", "record.json", "spec.json", "traceback.txt"]
    assert leftovers(store) == []


def test_a_failed_stage_is_reported_and_built_again_only_when_asked(store: Store) -> None:
    with pytest.raises(UserError), store.build(stage()):
        raise UserError("no\nsplit")
    assert (store.state(stage()), store.due(stage()), store.why(stage())) == ("failed", False, "no split")
    with pytest.raises(UserError, match="is not built again: no split"), store.build(stage()):
        raise AssertionError("must not be built")
    retry = again(store, "failed")
    assert retry.due(stage())
    build(retry, stage())
    assert (store.state(stage()), retry.due(stage())) == ("complete", False)
    assert not (store.folder(stage()) / "traceback.txt").exists()


def test_a_skipped_stage_says_why(store: Store) -> None:
    with pytest.raises(Skip), store.build(stage()):
        raise Skip("the benchmark has no holdout split")
    run = store.find(stage())
    assert run is not None
    assert (run.status, run.reason, store.due(stage())) == ("skipped", "the benchmark has no holdout split", False)
    assert not (run.folder / "traceback.txt").exists()
    assert again(store, "failed").due(stage())


def test_always_builds_again_and_never_builds_nothing(store: Store) -> None:
    never = again(store, "never")
    assert not never.due(stage())
    with pytest.raises(UserError, match="nothing is there"), never.build(stage()):
        raise AssertionError("must not be built")
    build(store, stage(), "old")
    assert not never.due(stage())
    reuse(never, stage())
    always = again(store, "always")
    assert always.due(stage())
    folder = build(always, stage(), "new")
    assert (folder / "model/w.bin").read_text() == "new"
    assert leftovers(store) == []


def test_an_unknown_policy_is_one_line() -> None:
    with pytest.raises(UserError, match=r"--rerun cannot be 'allways'; did you mean 'always'\?"):
        Store("runs", "allways")


def test_a_builder_that_died_without_a_word_is_recorded_by_its_parent(store: Store) -> None:
    store.fail(stage(), "the worker process died\n(out of memory)", "trace")
    run = store.find(stage())
    assert run is not None
    assert (run.status, run.reason) == ("failed", "the worker process died (out of memory)")
    assert (run.folder / "traceback.txt").read_text() == "trace"
    build(again(store, "failed"), stage())
    store.fail(stage(), "too late")
    assert store.state(stage()) == "complete", "a result is not thrown away"


def test_a_runs_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file")
    with pytest.raises(UserError, match="cannot be written"), Store(tmp_path / "runs", provenance=here).build(stage()):
        pass


# -- damage --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["record.json", "spec.json", "metrics.json"])
@pytest.mark.parametrize("damage", ["empty", "half", "gone"])
def test_a_damaged_folder_does_not_count_and_is_built_again(store: Store, name: str, damage: str) -> None:
    with store.build(stage()) as building:
        (building.folder / "metrics.json").write_text(json.dumps({"metrics": [{"name": "mu", "value": 0.5}] * 20}))
    file = building.folder / name
    content = file.read_bytes()
    if damage == "gone":
        file.unlink()
    else:
        file.write_bytes(content[: len(content) // 2] if damage == "half" else b"")
    assert (store.state(stage()), store.find(stage()), store.due(stage())) == ("damaged", None, True)
    assert name in store.why(stage())
    assert store.runs() == []
    build(store, stage(), "mended")
    assert (store.state(stage()), leftovers(store)) == ("complete", [])


def test_a_folder_without_a_record_is_no_run(store: Store) -> None:
    store.folder(stage()).mkdir(parents=True)
    assert (store.state(stage()), store.runs()) == ("damaged", [])
    build(store, stage())


def test_a_request_changed_by_hand_is_refused(store: Store) -> None:
    file = build(store, stage()) / "spec.json"
    file.write_text(file.read_text().replace("0.001", "0.002"))
    for ask in (store.find, store.due, store.state):
        with pytest.raises(UserError, match=r"spec\.json was changed by hand"):
            ask(stage())
    assert store.runs() == []
    assert (file.parent / "model/w.bin").exists(), "nothing is thrown away"


def test_eight_equal_digits_are_not_taken_for_the_same_stage(store: Store) -> None:
    folder = build(store, stage())
    other = stage(seed=1)
    folder.rename(store.folder(other))  # as if both keys began with the same digits
    with pytest.raises(UserError, match="belongs to a request with another key"):
        store.find(other)
    with pytest.raises(UserError, match="another key"), store.build(other):
        raise AssertionError("must not be built")


def test_changed_bytes_of_the_same_length_are_found_by_verify(store: Store) -> None:
    folder = build(store, stage(), "weights")
    run = store.find(stage())
    assert run is not None
    assert run.verify() == []
    (folder / "model/w.bin").write_text("wEights")
    assert run.verify() == [f"{folder / 'model/w.bin'} is not what was recorded"]
    (folder / "model/w.bin").unlink()
    assert run.verify() == [f"{folder / 'model/w.bin'} is missing"]


# -- several processes, and kills ----------------------------------------------------------------------------------

BUILDER = """
import sys, time
from pathlib import Path
from tests_store_support import here, stage
from unlearnbench.store import Store
root, mark = Path(sys.argv[1]), Path(sys.argv[2])
with Store(root, provenance=here).build(stage()) as building:
    folder = building.folder
    (folder / "log.jsonl").write_text('{"step": 1}\\n')
    (folder / "metrics.json").write_text('{"half')
    if "checkpoint" in sys.argv:
        (folder / "checkpoint").mkdir(exist_ok=True)
        (folder / "checkpoint" / "step-5").write_text("five steps")
    mark.write_text(str(folder))
    time.sleep(60)
"""


@pytest.fixture
def killed(store: Store, tmp_path: Path) -> Any:
    """Start a builder in another process and kill it in the middle."""
    (tmp_path / "tests_store_support.py").write_text(
        f"from unlearnbench.store import Stage\nSPEC = {dict(stage().spec)!r}\nHERE = {HERE!r}\n"
        "def here(): return HERE\n"
        "def stage(): return Stage('unlearn', 'masc-s0', SPEC)\n"
    )

    def run(*options: str) -> None:
        mark = tmp_path / "mark"
        mark.unlink(missing_ok=True)
        env = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
        process = subprocess.Popen([sys.executable, "-c", BUILDER, str(store.root), str(mark), *options], env=env)
        deadline = time.monotonic() + 60
        while not mark.exists() or not mark.read_text():
            assert process.poll() is None, "the builder ended by itself"
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait()

    return run


def test_a_killed_builder_leaves_nothing_that_counts(store: Store, killed: Any) -> None:
    killed()
    assert (store.state(stage()), store.runs()) == ("missing", [])
    with store.build(stage()) as building:
        assert sorted(p.name for p in building.folder.iterdir()) == ["attempts.json", "spec.json"]
    assert read_json(building.folder / "record.json")["attempts"] == 1
    assert (store.state(stage()), leftovers(store)) == ("complete", [])
    assert not (building.folder / "attempts.json").exists()


def test_a_killed_builders_checkpoint_is_found_by_the_next_one(store: Store, killed: Any) -> None:
    killed("checkpoint")
    killed("checkpoint")
    assert store.state(stage()) == "missing"
    with store.build(stage()) as building:
        names = sorted(p.name for p in building.folder.iterdir())
        assert names == ["attempts.json", "checkpoint", "log.jsonl", "spec.json"]
        assert (building.folder / "checkpoint" / "step-5").read_text() == "five steps"
    assert read_json(building.folder / "record.json")["attempts"] == 3
    assert not (building.folder / "checkpoint").exists(), "a finished stage has no use for it"


def test_a_checkpoint_belongs_to_one_key(store: Store, killed: Any) -> None:
    killed("checkpoint")
    with store.build(stage(learning_rate=2e-3)) as building:
        assert not (building.folder / "checkpoint").exists()


def test_always_starts_from_the_start(store: Store, killed: Any) -> None:
    killed("checkpoint")
    with again(store, "always").build(stage()) as building:
        assert not (building.folder / "checkpoint").exists()


def test_an_interrupt_is_no_failure_and_keeps_the_checkpoint(store: Store) -> None:
    with pytest.raises(KeyboardInterrupt), store.build(stage()) as building:
        (building.folder / "checkpoint").mkdir()
        (building.folder / "checkpoint" / "step-1").write_text("one")
        raise KeyboardInterrupt
    assert store.state(stage()) == "missing"
    with store.build(stage()) as building:
        assert (building.folder / "checkpoint" / "step-1").exists()


def test_a_worker_that_died_resumes_from_its_checkpoint_when_failed_stages_are_retried(
    store: Store, killed: Any
) -> None:
    killed("checkpoint")
    store.fail(stage(), "the worker process died")
    with again(store, "failed").build(stage()) as building:
        assert (building.folder / "checkpoint" / "step-5").exists()


def test_a_folder_sealed_by_a_builder_that_could_not_publish_it_is_published(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed_here(*_: Any) -> Path:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Store, "_publish", killed_here)
        build(store, stage())
    assert (store.state(stage()), store.runs()) == ("missing", [])
    folder = reuse(store, stage())
    assert (store.state(stage()), folder, leftovers(store)) == ("complete", store.folder(stage()), [])


def race(root: str, number: int, barrier: Any, results: Any) -> None:
    waited: list[bool] = []
    barrier.wait()
    with Store(root, provenance=here).build(stage(), on_wait=lambda: waited.append(True)) as building:
        if not building.reused:
            time.sleep(0.5)
            (building.folder / "who.txt").write_text(str(number))
    results.put((number, building.reused, bool(waited), (building.folder / "who.txt").read_text()))


def test_two_processes_never_build_the_same_stage(store: Store) -> None:
    context = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    barrier, results = context.Barrier(3), context.Queue()
    processes = [context.Process(target=race, args=(str(store.root), i, barrier, results)) for i in range(3)]
    for process in processes:
        process.start()
    found = [results.get(timeout=60) for _ in processes]
    for process in processes:
        process.join()
    builders = [number for number, reused, _, _ in found if not reused]
    assert len(builders) == 1
    assert {who for _, _, _, who in found} == {str(builders[0])}, "the others got the builder's result"
    assert all(waited == reused for _, reused, waited, _ in found)


def test_a_racing_always_takes_the_fresh_result(store: Store) -> None:
    """Two processes that were both asked to build everything again build each stage once, not one after the other."""
    import threading

    always, seen = again(store, "always"), []
    entered, go = threading.Event(), threading.Event()

    def first() -> None:
        with always.build(stage()):
            entered.set()
            go.wait(30)

    thread = threading.Thread(target=first)
    thread.start()
    assert entered.wait(30)
    with always.build(stage(), on_wait=go.set) as building:
        seen.append(building.reused)
    thread.join()
    assert seen == [True]


# -- where numbers come from ---------------------------------------------------------------------------------------


def test_durations_are_those_of_this_hardware(store: Store) -> None:
    build(store, stage())
    elsewhere = Store(store.root, provenance=lambda: {**HERE, "hardware": {"fingerprint": "there"}})
    build(elsewhere, stage(seed=1))
    assert (len(store.durations("unlearn")), len(elsewhere.durations("unlearn"))) == (1, 1)
    assert store.durations("evaluate") == []


def test_the_environment_is_strict_json_and_stable() -> None:
    found = provenance.environment()
    assert key(found) == key(provenance.environment())
    assert set(found) == {"hardware", "versions", "git"}
    hardware = found["hardware"]
    assert hardware["cores"] >= 1
    assert hardware["fingerprint"] == key({k: v for k, v in hardware.items() if k != "fingerprint"})[:8]
    import torch

    assert found["versions"]["torch"] == torch.__version__
    assert os.uname().nodename not in json.dumps(hardware), "records are published: no host name"


def test_git_knows_commit_and_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*command: str) -> str:
        identity = ("-c", "user.name=n", "-c", "user.email=e@example.org")
        result = subprocess.run(
            ["git", "-C", str(tmp_path), *identity, *command], capture_output=True, text=True, check=True
        )
        return result.stdout.strip()

    code = tmp_path / "unlearnbench"
    code.mkdir()
    (code / "provenance.py").write_text("")
    monkeypatch.setattr(provenance, "__file__", str(code / "provenance.py"))
    provenance.git.cache_clear()
    try:
        assert provenance.git() is None, "an installed copy has no commit"
        git("init", "-q")
        git("add", ".")
        git("commit", "-qm", "one")
        provenance.git.cache_clear()
        assert provenance.git() == {"commit": git("rev-parse", "HEAD"), "dirty": False}
        (tmp_path / "notes.txt").write_text("no code")
        provenance.git.cache_clear()
        assert provenance.git()["dirty"] is False  # type: ignore[index]
        (code / "new.py").write_text("")
        provenance.git.cache_clear()
        assert provenance.git()["dirty"] is True  # type: ignore[index]
    finally:
        provenance.git.cache_clear()
