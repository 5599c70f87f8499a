"""The whole path on small embedded models, as a user would run it: from the command line to the report."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest

SMOKE = """\
title: A small run
benchmark: {name: tofu-mini, forget: forget05}
model: {name: llama-mini, width: 16, max_length: 256}
base: {epochs: 0.05, learning_rate: 2e-3, batch_size: 8}
target: {epochs: 0.1, learning_rate: 2e-3, batch_size: 8}
unlearn: {epochs: 1, learning_rate: 1e-3, batch_size: 8, retain_batch_size: 8, checkpoint_every: 1}
trajectory: {points: 2, metrics: [one_minus_prob]}
methods: [npo, graddiff]
metrics: [one_minus_prob, forget_exact, retain_exact, forget_quality]
seeds: [0]
report: {tables: [main], plots: [wallclock, tradeoff]}
claims:
  - {claim: GradDiff keeps more, kind: superiority, metric: retain_exact, of: graddiff, against: [npo], better: higher}
"""
PLUGIN = '''\
"""A method of one's own, in a file outside the project."""

from torch import Tensor

from unlearnbench.method import Method, Step, Terms, hyper, methods


def mine(nll: Tensor, level: float) -> Tensor:
    return (level - nll).relu()


@methods.register("mine", title="My method")
class Mine(Method):
    level: float = hyper(20.0, gt=0, source="a guess")
    retain: str = "nll"

    def forget_loss(self, step: Step) -> Terms:
        return Terms(mine(step.forget.sequence_nll(), self.level))
'''


def command(*arguments: str, cwd: Path) -> list[str]:
    code = "import sys; from unlearnbench.cli import main; sys.argv[0] = 'unlearnbench'; main()"
    return [sys.executable, "-c", code, *arguments]


def unlearnbench(*arguments: str, cwd: Path, code: int = 0) -> str:
    """Run the command line in a folder; its output. B62: no network is needed, and there is none."""
    done = subprocess.run(
        command(*arguments, cwd=cwd), cwd=cwd, env=environment(), capture_output=True, text=True, timeout=1800
    )
    assert done.returncode == code, done.stdout[-3000:] + done.stderr[-3000:]
    assert "Traceback" not in done.stdout + done.stderr, done.stderr[-3000:]
    return done.stdout + done.stderr


def environment() -> dict[str, str]:
    here = Path(__file__).resolve().parents[2]
    parts = [str(here / "tests" / "support" / "offline"), str(here), os.environ.get("PYTHONPATH", "")]
    path = os.pathsep.join(parts).rstrip(os.pathsep)
    return {**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "COLUMNS": "100"}


def numbers(runs: Path) -> dict[str, bytes]:
    """Every metrics.json by the name of its stage."""
    return {f.parent.name: f.read_bytes() for f in sorted(runs.glob("evaluate-*/metrics.json"))}


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A folder with a finished run, and what the run printed."""
    folder = tmp_path_factory.mktemp("done")
    (folder / "smoke.yaml").write_text(SMOKE)
    (folder / "my.py").write_text(PLUGIN)
    return folder, unlearnbench("run", "smoke.yaml", cwd=folder)


def test_a_run_leaves_stages_tables_plots_and_a_page(done: tuple[Path, str]) -> None:
    folder, output = done
    report = folder / "runs" / "reports" / "smoke"
    for name in ("leaderboard.csv", "table.md", "table.tex", "report.html", "wallclock.png", "wallclock.svg"):
        assert (report / name).stat().st_size > 100, name
    board = pd.read_csv(report / "leaderboard.csv")
    assert set(board["label"]) == {"target", "retrained", "npo", "graddiff"}
    assert "NPO" in output and "report.html" in output
    assert len(numbers(folder / "runs")) == 4
    for file in (folder / "runs").glob("*/*.json"):
        json.loads(file.read_text(), parse_constant=pytest.fail)


def test_reproduce_says_what_is_left_and_what_came_of_the_claims(done: tuple[Path, str]) -> None:
    folder, _ = done
    output = unlearnbench("reproduce", "smoke.yaml", cwd=folder)
    assert "9 of 9 stages are there." in output and "reused 9 of 9 stages" in output
    verdict = next(line for line in output.splitlines() if "GradDiff keeps more" in line)
    assert verdict.startswith("undecided") and "1 seed; 5 are needed" in verdict and "against npo" in verdict
    claims = pd.read_csv(folder / "runs" / "reports" / "smoke" / "claims.csv")
    assert list(claims["verdict"]) == ["undecided"] and list(claims["seeds"]) == [1]
    assert "What came of the claims" in (folder / "runs" / "reports" / "smoke" / "report.html").read_text()


def test_the_record_says_what_was_done(done: tuple[Path, str]) -> None:
    folder, _ = done
    (file,) = (folder / "runs").glob("unlearn-npo-s0-*/record.json")
    record = json.loads(file.read_text())
    assert (record["status"], record["steps"], record["effective_batch"], record["rows_seen"]) == ("complete", 3, 8, 24)
    assert record["cost_seconds"] == pytest.approx(
        sum(record["seconds"][phase] for phase in ("prepare", "optimise", "probe", "select"))
    )
    assert record["hardware"]["fingerprint"] and record["versions"]["torch"] and record["flops"] > 0
    steps = [json.loads(line) for line in file.with_name("log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in steps if "forget_loss" in line] == [1, 2, 3]
    assert [line["step"] for line in steps if "trajectory" in line] == [0, 2, 3]


def test_a_second_run_reuses_everything_and_says_so(done: tuple[Path, str]) -> None:
    folder, _ = done
    before = numbers(folder / "runs")
    start = time.monotonic()
    output = unlearnbench("run", "smoke.yaml", cwd=folder)
    assert "reused 9 of 9 stages" in output
    assert numbers(folder / "runs") == before
    assert time.monotonic() - start < 60
    plan = unlearnbench("run", "smoke.yaml", "--dry-run", "--set", "unlearn.epochs=2", cwd=folder)
    assert plan.count("to build") == 4 and plan.count("complete") == 5


def test_rescoring_gives_the_bytes_of_the_run(done: tuple[Path, str]) -> None:
    """Every metric of a real run again from its answers: nothing is forwarded, nothing differs, nothing is written."""
    folder, _ = done
    before = numbers(folder / "runs")
    output = unlearnbench("rescore", "runs", cwd=folder)
    assert [line.split()[0] for line in output.splitlines()] == ["identical"] * 4
    assert numbers(folder / "runs") == before


def test_a_run_killed_again_and_again_ends_with_the_same_numbers(done: tuple[Path, str], tmp_path: Path) -> None:
    folder, _ = done
    (tmp_path / "smoke.yaml").write_text(SMOKE)
    kills = 0
    for moment in ("target-", "unlearn-", "evaluate-"):
        process = subprocess.Popen(
            command("run", "smoke.yaml", cwd=tmp_path),
            cwd=tmp_path,
            env=environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        while process.poll() is None:  # kill as soon as a first stage of the kind is complete: others are under way
            if any((tmp_path / "runs").glob(f"{moment}*")):
                os.killpg(process.pid, signal.SIGKILL)
                kills += 1
                break
            time.sleep(0.02)
        process.wait()
    assert kills == 3
    output = unlearnbench("run", "smoke.yaml", cwd=tmp_path)
    assert "reused" in output
    assert numbers(tmp_path / "runs") == numbers(folder / "runs")


def test_methods_seeds_and_values_from_the_command_line(done: tuple[Path, str]) -> None:
    folder, _ = done
    output = unlearnbench(
        "run", "smoke.yaml", "--methods", "graddiff", "--seeds", "2", "--set", "unlearn.epochs=2", cwd=folder
    )
    board = pd.read_csv(folder / "runs" / "reports" / "smoke" / "leaderboard.csv")
    assert set(board["label"]) == {"target", "retrained", "graddiff"} and set(board["seeds"]) == {"0 1"}
    records = [json.loads(f.read_text()) for f in (folder / "runs").glob("unlearn-graddiff-s1-*/record.json")]
    assert [record["steps"] for record in records] == [6]
    assert "reused 5 of 13 stages" in output


def test_a_plugin_gets_its_row_and_its_colour(done: tuple[Path, str]) -> None:
    folder, _ = done
    output = unlearnbench("run", "smoke.yaml", "--plugin", "my.py", "--methods", "mine,npo", cwd=folder)
    report = folder / "runs" / "reports" / "smoke"
    board = pd.read_csv(report / "leaderboard.csv").set_index("label")
    assert board.loc["mine", "title"] == "My method" and board.loc["mine", "steps"] == 3
    assert "My method" in output
    from unlearnbench.report.style import look

    assert look("mine").colour in (report / "report.html").read_text()
    (folder / "my.py").write_text(PLUGIN.replace("20.0", "10.0"))
    plan = unlearnbench("run", "smoke.yaml", "--plugin", "my.py", "--methods", "mine,npo", "--dry-run", cwd=folder)
    assert plan.count("to build") == 2, "an edited plug-in is not mistaken for its former self"


def test_a_failed_cell_is_shown_and_the_others_go_on(done: tuple[Path, str]) -> None:
    folder, _ = done
    arguments = ("run", "smoke.yaml", "--methods", "npo,ga", "--set", "methods.ga.unlearn={learning_rate: 1e30}")
    output = unlearnbench(*arguments, cwd=folder, code=1)
    assert "failed unlearn-ga-s0" in output and "at step" in output
    board = pd.read_csv(folder / "runs" / "reports" / "smoke" / "leaderboard.csv").set_index("label")
    assert board.loc["ga", "complete"] == "0 of 1" and pd.isna(board.loc["ga", "score"])
    assert board.loc["npo", "complete"] == "1 of 1"
    again = unlearnbench(*arguments, cwd=folder, code=1)
    assert "failed before" in again and "--rerun failed" in again


MISTAKES = [
    (("run", "smoke.yaml", "--methods", "npoo"), "There is no method 'npoo'; did you mean 'npo'?"),
    (("run", "smoke.yaml", "--set", "methods.npo.betta=1"), "unknown key 'betta'; did you mean 'beta'?"),
    (("run", "smoke.yaml", "--set", "methods.npo.beta=-1"), "beta: input should be greater than 0, got -1"),
    (("run", "smoke.yaml", "--set", "unlearn.epocs=3"), "did you mean 'epochs'?"),
    (("run", "smoke.yaml", "--set", "metrics=[forget_exactt]"), "did you mean 'forget_exact'?"),
    (("run", "smoke.yaml", "--set", "attacks=[4bits]"), "There is no attack '4bits'; did you mean '4bit'?"),
    (("run", "smoke.yaml", "--set", "benchmark.name=tofu-mino"), "did you mean 'tofu-mini'?"),
    (("run", "smoke.yaml", "--rerun", "sometimes"), "--rerun"),
    (("run", "smoke.yaml", "--plugin", "none.py"), "There is no plug-in file none.py."),
    (("run", "smok.yaml"), "There is no experiment file smok.yaml."),
    (("run", "quickstrat"), "did you mean 'quickstart'?"),
    (("list", "method"), "did you mean 'methods'?"),
    (("show", "mascc"), "did you mean 'masc'?"),
    (("report", "nowhere"), "There is no folder nowhere"),
]


@pytest.mark.parametrize("arguments, message", MISTAKES, ids=lambda value: value if isinstance(value, str) else None)
def test_a_mistake_is_one_line_and_exit_code_2(
    done: tuple[Path, str],
    arguments: tuple[str, ...],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from unlearnbench.cli import main

    monkeypatch.chdir(done[0])
    monkeypatch.setattr(sys, "argv", ["unlearnbench", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    captured = capsys.readouterr()
    assert ended.value.code == 2
    (line,) = captured.err.strip().splitlines()
    assert message in line


def test_help_answers_at_once_and_without_torch() -> None:
    code = (
        "import sys, time; start = time.perf_counter(); sys.argv = ['unlearnbench', '--help']\n"
        "from unlearnbench.cli import main\n"
        "try: main()\nexcept SystemExit: pass\n"
        "print('TORCH' if 'torch' in sys.modules else 'LIGHT', time.process_time())"
    )
    output = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True).stdout
    word, seconds = output.strip().splitlines()[-1].split()
    assert word == "LIGHT" and float(seconds) < 0.5


def test_everything_that_is_there_is_listed_and_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from unlearnbench.cli import main

    for arguments, words in {
        ("list",): ("masc", "forget_exact", "tofu-mini", "4bit", "violation", "quickstart"),
        ("show", "masc"): ("arXiv:2606.02920", "rho", "paper, TOFU", "violation"),
        ("show", "quickstart"): ("llama-mini",),
        ("env",): ("torch", "memory", "bitsandbytes"),
    }.items():
        monkeypatch.setattr(sys, "argv", ["unlearnbench", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code in (0, None)
        output = capsys.readouterr().out
        assert all(word in output for word in words), output
