"""Where a number was made: hardware, package versions, the commit of the code. No host name: records get published."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from functools import lru_cache
from pathlib import Path
from typing import Any

from unlearnbench.canonical import key

PACKAGES = (
    "unlearnbench", "torch", "transformers", "tokenizers", "accelerate", "peft", "datasets", "safetensors",
    "bitsandbytes", "numpy", "scipy", "scikit-learn", "pandas", "pyarrow", "rouge-score", "evaluate", "lm-eval",
)  # fmt: skip


def environment() -> dict[str, Any]:
    """`hardware`, `versions` and `git`, as they go into a record."""
    return {"hardware": hardware(), "versions": versions(), "git": git()}


@lru_cache(maxsize=1)
def hardware() -> dict[str, Any]:
    """Processor, cores this process may use, memory, GPUs; `fingerprint` hashes them.

    Seconds are compared only between stages with the same fingerprint. Memory is in GiB, rounded, so that two boots of
    one machine agree.
    """
    import torch

    gpus = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    affinity = getattr(os, "sched_getaffinity", None)
    content: dict[str, Any] = {
        "system": platform.system(),
        "machine": platform.machine(),
        "processor": _processor(),
        "cores": len(affinity(0)) if affinity else os.cpu_count(),
        "memory_gib": memory_gib(),
        "gpus": [{"name": gpu.name, "memory_gib": round(gpu.total_memory / 2**30)} for gpu in gpus],
    }
    return {**content, "fingerprint": key(content)[:8]}


def memory_gib() -> int | None:
    """The machine's memory in GiB, rounded; None where the system does not say."""
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30)
    except (AttributeError, ValueError, OSError):
        return None


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.lower().startswith("model name"):
                return line.split(":", 1)[1].strip()
    if platform.system() == "Darwin":
        return _output("sysctl", "-n", "machdep.cpu.brand_string") or platform.processor()
    return platform.processor()


@lru_cache(maxsize=1)
def versions() -> dict[str, str]:
    """Installed releases of Python and of the packages that numbers depend on; what is not installed is left out."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    if "unlearnbench" not in found:  # run from a checkout
        from unlearnbench import __version__

        found["unlearnbench"] = __version__
    return found


@lru_cache(maxsize=1)
def git() -> dict[str, Any] | None:
    """The commit of the checkout the code runs from, and whether its code differs; None for an installed copy."""
    root = Path(__file__).resolve().parents[1]
    if not (root / ".git").exists():
        return None
    commit = _output("git", "-C", str(root), "rev-parse", "HEAD")
    code = ("unlearnbench", "methods", "metrics", "experiments", "pyproject.toml")
    changes = _output("git", "-C", str(root), "status", "--porcelain", "--", *code)
    return None if commit is None or changes is None else {"commit": commit, "dirty": bool(changes)}


def _output(*command: str) -> str | None:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
