"""What a machine does per second: published peaks of accelerators, or this processor measured in a few seconds."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from unlearnbench.costs.shapes import Shape, config_of
from unlearnbench.errors import UserError, did_you_mean
from unlearnbench.language_model import LanguageModel
from unlearnbench.settings import ModelSettings

GB = 1e9
UTILISATION, BANDWIDTH_SHARE = 0.4, 0.8  #: of the peaks; assumed
KERNELS = 1.5e-4  #: seconds that the kernels of one layer take to be launched in one pass; assumed


@dataclass(frozen=True)
class Machine:
    """FLOP/s and byte/s that are reached, seconds a layer costs per pass whatever its size, and memory in bytes."""

    name: str
    bf16: float
    fp32: float
    bandwidth: float
    overhead: float
    memory: float
    update: float | None = None  #: seconds of an optimiser step of the whole model; None: from the bandwidth
    measured: bool = False

    def rate(self, precision: str) -> float:
        """FLOP/s in `bf16` or `fp32`."""
        return self.bf16 if precision == "bf16" else self.fp32


def _accelerator(name: str, bf16: float, fp32: float, bandwidth: float, memory: float) -> Machine:
    return Machine(name, bf16 * UTILISATION, fp32 * UTILISATION, bandwidth * BANDWIDTH_SHARE, KERNELS, memory)


#: dense peaks of the vendors' data sheets: bf16 and fp32 FLOP/s, byte/s, bytes
MACHINES = {
    machine.name: machine
    for machine in (
        _accelerator("h200", 989e12, 67e12, 4.8e12, 141 * GB),
        _accelerator("h100", 989e12, 67e12, 3.35e12, 80 * GB),
        _accelerator("a100", 312e12, 19.5e12, 2.04e12, 80 * GB),
        _accelerator("l40s", 362e12, 91.6e12, 0.864e12, 48 * GB),
        _accelerator("4090", 165e12, 82.6e12, 1.01e12, 24 * GB),
    )
}


def machine(name: str | None, model: ModelSettings, threads: int = 1) -> Machine:
    """A machine by name; `cpu` is measured here and now with a piece of the model; None: what is here.

    Raises `UserError` for another name.
    """
    if name is None and torch.cuda.is_available():
        here = torch.cuda.get_device_name(0).lower()
        name = next((known for known in MACHINES if known in here), None)
        if name is None:
            raise UserError(f"'{here}' has no figures here; name one of them: --hardware {'|'.join(MACHINES)}")
    if name in (None, "cpu"):
        return measured(model, threads)
    if name not in MACHINES:
        raise UserError(f"There are no figures of '{name}'; {did_you_mean(str(name), [*MACHINES, 'cpu'])}")
    return MACHINES[str(name)]


# -- measuring this processor ----------------------------------------------------------------------------------

LAYERS = 2  #: of the model are built for the measurement
SMALL, LARGE = (1, 8), (16, 32)  #: rows and tokens of the two batches


def measured(model: ModelSettings, threads: int = 1) -> Machine:
    """This processor, on a piece of the model: how long two batches and an optimiser step take.

    The time of a training pass is taken as (overhead of a layer) x layers x 3 + FLOPs / rate; two batches give both.
    """
    from transformers import AutoModelForCausalLM

    from unlearnbench.costs.shapes import measure
    from unlearnbench.provenance import memory_gib

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with torch.random.fork_rng(devices=[]):
            config = config_of(model)
            whole = config.num_hidden_layers
            config.num_hidden_layers = min(LAYERS, whole)
            if getattr(config, "layer_types", None):
                config.layer_types = config.layer_types[: config.num_hidden_layers]
            built = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
            piece = measure(LanguageModel(built))
            small, large = (_training(piece, *size) for size in (SMALL, LARGE))
            update = _update(piece)
    finally:
        torch.set_num_threads(before)
    flops = [6.0 * rows * tokens * (piece.body + piece.head) for rows, tokens in (SMALL, LARGE)]
    rate = (flops[1] - flops[0]) / max(large - small, 1e-9)
    overhead = max(0.0, small - flops[0] / rate) / (3 * piece.layers)
    memory = (memory_gib() or 0) * 2.0**30
    return Machine(
        "cpu", rate, rate, float("inf"), overhead, memory or float("inf"), update * whole / piece.layers, True
    )


def _training(piece: Shape, rows: int, tokens: int) -> float:
    """Seconds of a forward and a backward pass."""
    ids = torch.randint(0, min(1000, piece.head // piece.hidden), (rows, tokens))
    hf: Any = piece.lm.hf

    def run() -> None:
        hf(input_ids=ids, labels=ids).loss.backward()

    return _least(run)


def _update(piece: Shape) -> float:
    """Seconds of clipping and of an AdamW step, gradients being there."""
    parameters = [p for p in piece.lm.parameters() if p.grad is not None]
    optimizer = torch.optim.AdamW(parameters, lr=1e-12, fused=True)

    def run() -> None:
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()

    return _least(run)


def _least(run: Callable[[], None], repeats: int = 5) -> float:
    """The least of the times of several runs, after one that is not counted: others' work only makes them longer."""
    run()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)
