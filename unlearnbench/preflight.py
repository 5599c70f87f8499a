"""Before hours of work: is there room for it, is everything there, and do the models know what they should?

One line for each doubt; nothing here stops a run. What cannot work at all (a model or a data set that is missing) is an
error of the plan already.
"""

from __future__ import annotations

import importlib.util
import math
import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from unlearnbench import hub
from unlearnbench.benchmarks.mini.model import MODELS
from unlearnbench.costs import Estimate, Estimator, Machine
from unlearnbench.costs.table import size
from unlearnbench.errors import UserError
from unlearnbench.metric import resolve
from unlearnbench.plan import Planned

KNOWS = 0.3  #: a model that was trained on rows gives their answers at least this probability, or recalls this share
#: how well a model knows the forget set, in [0, 1]: the first of these that was scored
KNOWLEDGE = ("forget_prob", "one_minus_prob", "verbmem_forget", "knowmem_forget", "forget_exact")


# -- room ------------------------------------------------------------------------------------------------------


def estimates(planned: Sequence[Planned]) -> dict[str, Estimate]:
    """Memory, disk and steps by the names of stages (see `costs`); what is embedded is small and left out, and so is a
    stage that no estimate is had of.
    """
    estimator = Estimator(Machine("here", 1.0, 1.0, 1.0, 0.0, math.inf, measured=not on_gpu()))
    found = {}
    for p in planned:
        if p.stage.spec["model"]["settings"]["name"] not in MODELS:
            with suppress(UserError):  # whatever is wrong, the stage itself says it better
                found[p.name] = estimator.of(p.stage.kind, p.stage.spec)
    return found


def room(todo: Sequence[Planned], root: Path) -> list[str]:
    """Doubts about disk and memory for what is to be built; nothing is said of embedded models."""
    found = estimates(todo)
    if not found:
        return []
    lines = []
    needed, free = sum(one.disk for one in found.values()), shutil.disk_usage(_existing(root)).free
    if needed > free:
        lines.append(f"disk: models of about {size(needed)} go into {root}, where {size(free)} are free.")
    name, peak = max(((name, one.memory) for name, one in found.items()), key=lambda pair: pair[1])
    available = memory_available()
    if available is not None and peak > available:
        where = "GPU memory" if on_gpu() else "memory"
        lines.append(
            f"{where}: {name} takes about {size(peak)} and {size(available)} are free: take LoRA "
            "(`unlearn.lora: {}`, `--lora`) or smaller batches (`unlearn.batch_size`, `unlearn.retain_batch_size`)."
        )
    return lines


def memory_available() -> int | None:
    """Bytes that a new process can have: of the GPU where there is one; None where the system does not say."""
    if on_gpu():
        import torch

        return int(torch.cuda.mem_get_info()[0])
    try:
        for line in Path("/proc/meminfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return None


def on_gpu() -> bool:
    """Whether there is a GPU to train on."""
    import torch

    return bool(torch.cuda.is_available())


def _existing(path: Path) -> Path:
    """The nearest folder above that is there."""
    path = path.absolute()
    while not path.exists():
        path = path.parent
    return path


# -- what is used ----------------------------------------------------------------------------------------------


def parts(metrics: Iterable[str], attacks: Iterable[str]) -> list[str]:
    """Doubts about what metrics and attacks need beyond this package: other libraries, and the network."""
    lines = []
    if "4bit" in attacks and importlib.util.find_spec("bitsandbytes") is None:
        lines.append("the attack '4bit' needs bitsandbytes: pip install 'unlearnbench[quant]'.")
    remote = [name for name in metrics if ":" in name and not Path(name.partition(":")[2]).exists()]
    if remote:
        flag = hub.offline_flag()
        away = f"{flag} forbids the network" if flag else "" if hub.reachable() else "the Hub is out of reach"
        if away:
            names = ", ".join(remote)
            lines.append(f"{names}: what is not in the local cache will be null, because {away}.")
    return lines


# -- roles -----------------------------------------------------------------------------------------------------


def known(metrics: Mapping[str, float | None]) -> tuple[str, float] | None:
    """(metric, how much of the forget set a model knows, in [0, 1]); None when nothing of the kind was scored."""
    for name in KNOWLEDGE:
        value = metrics.get(name)
        if value is not None:
            share = value / resolve(name)[0].meta["range"][1]
            return name, 1 - share if name.startswith("one_minus") else share
    return None


def roles(target: Mapping[str, float | None], retrained: Mapping[str, float | None] | None = None) -> list[str]:
    """Doubts about which model is which, from their scores: the target knows the forget set, the retrained does not."""
    lines, knows = [], known(target)
    if knows is None:
        return []
    name, level = knows
    if level < KNOWS:
        lines.append(
            f"the target hardly knows the forget set ({_said(name)} {level:.2f}, expected {KNOWS} or more): is it the "
            "model that was trained on these rows, and asked in the same template and protocol?"
        )
    other = known(retrained) if retrained is not None else None
    if other is not None and other[0] == name and other[1] > max(level, KNOWS) / 2:
        swapped = "; are the two swapped?" if other[1] > level else ""
        lines.append(
            f"the retrained model knows the forget set ({_said(name)} {other[1]:.2f}, the target {level:.2f}): it was "
            f"trained on it, or the rows can be guessed{swapped}"
        )
    return lines


def _said(name: str) -> str:
    words = {"forget_prob": "probability of the answers", "one_minus_prob": "probability of the answers"}
    return words.get(name, name)
