"""B01, B58: one update for every method, however an optimiser step is cut into batches and processes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from unlearnbench.method import Method, methods
from unlearnbench.testing import runs
from unlearnbench.testing.tiny import tiny_target
from unlearnbench.testing.variants import quick, variants

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("method", [pytest.param(method, id=name) for name, method in variants()])
def test_batches_do_not_change_the_update(method: Method) -> None:
    """4 x 1, 2 x 2 and 1 x 4 rows, of unequal lengths, and a last step that is not full."""
    runs.check_accumulation(method)


#: Run in each of two processes: every method, 2 rows a batch. The second step has one batch, so one process has none.
PROCESS = """
import sys
import torch
from unlearnbench.method import methods
from unlearnbench.models import frozen_copy
from unlearnbench.testing import runs
from unlearnbench.testing.tiny import tiny_lm
from unlearnbench.testing.variants import quick

target = tiny_lm()
target.load_state_dict(torch.load(sys.argv[1] + "/target", weights_only=True))
runs.tiny_target = lambda architecture, dtype: frozen_copy(target).to(dtype)
found = {}
for name in sys.argv[2:]:
    settings = runs.WHOLE.model_copy(update={"batch_size": 2, "retain_batch_size": 2})
    run = runs.start(quick(methods.get(name)), settings=settings, dtype=torch.float64)
    found[name] = (run.after, run.outcome.tokens, run.outcome.rows_seen, run.outcome.effective_batch, len(run.lines))
torch.save(found, sys.argv[1] + "/" + str(torch.distributed.get_rank()))
torch.distributed.destroy_process_group()
"""


FEW = ["npo+klr", "dpo", "pdu"]  #: both parts and the reference, alternates, a weight that moves
LOOPS = [entry.name for entry in methods if entry.build().is_loop]


@pytest.mark.parametrize("names", [FEW, pytest.param(LOOPS, marks=pytest.mark.slow)], ids=["few", "all"])
def test_two_processes_do_not_change_the_update(names: list[str], tmp_path: Path) -> None:
    torch.save(tiny_target().state_dict(), tmp_path / "target")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "ACCELERATE_USE_CPU": "true"}
    common |= {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-W", "ignore", "-c", PROCESS, str(tmp_path), *names]
    processes = [
        subprocess.Popen(command, env={**os.environ, **common, "RANK": str(rank), "LOCAL_RANK": str(rank)}, cwd=ROOT)
        for rank in range(2)
    ]
    try:
        assert [process.wait(timeout=1800) for process in processes] == [0, 0]
    finally:
        for process in processes:
            process.kill()
    first, second = (torch.load(tmp_path / str(rank), weights_only=True) for rank in range(2))
    assert list(first) == names
    for name in names:
        alone = runs.start(quick(methods.get(name)), settings=runs.WHOLE, dtype=torch.float64)
        weights, tokens, rows, batch, lines = first[name]
        apart = runs.distance(alone, weights)
        same = "padding" not in quick(methods.get(name)).broken_invariants
        assert (apart <= runs.SAME) == same, f"{name}: two processes give another update, by {apart}"
        assert all(torch.equal(value, second[name][0][key]) for key, value in weights.items()), name
        wanted = (alone.outcome.tokens, alone.outcome.rows_seen, alone.outcome.effective_batch, len(alone.lines))
        assert (tokens, rows, batch, lines) == wanted, name
        assert second[name][4] == 0, "only the main process writes the curve"
