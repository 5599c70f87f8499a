"""Before hours of work: is there room for it, is everything there, and do the models know what they should?

One line for each doubt; nothing here stops a run. What cannot work at all (a model or a data set that is missing) is an
error of the plan already.
"""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unlearnbench import hub
from unlearnbench.benchmarks.mini.model import MODELS
from unlearnbench.method import methods
from unlearnbench.model_files import base_folder, config_of, parameters_of
from unlearnbench.plan import Planned
from unlearnbench.settings import ModelSettings, TrainSettings

GIB = 2**30
KNOWS = 0.3  #: a model that was trained on rows gives their answers at least this probability, or recalls this share
#: how well a model knows the forget set, in [0, 1]: the first of these that was scored
KNOWLEDGE = ("forget_prob", "one_minus_prob", "verbmem_forget", "knowmem_forget", "forget_exact")


# -- room ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Size:
    """What decides how much memory a model takes: its parameters, and the shape of its activations."""

    parameters: int
    hidden: int
    layers: int
    vocabulary: int

    @classmethod
    def of(cls, settings: ModelSettings) -> Size | None:
        """From the files of a model; None for an embedded model, which is small, and where the files do not say."""
        if settings.name in MODELS:
            return None
        folder = base_folder(settings)
        config = config_of(folder)
        config = {**config, **config.get("text_config", {})}
        names = (("hidden_size", "n_embd"), ("num_hidden_layers", "n_layer"), ("vocab_size",))
        found = [next((int(config[name]) for name in options if name in config), 0) for options in names]
        parameters = parameters_of(folder)
        return cls(parameters, *found) if parameters and all(found) else None


def training_bytes(size: Size, settings: TrainSettings, length: int, reference: bool) -> int:
    """About how much memory training takes: weights in float32, gradients, AdamW's two moments, a frozen reference, and
    the activations of one micro-batch of rows of `length` tokens.

    With LoRA the adapter alone has gradients and moments, and the reference is the model with the adapter off.
    """
    moments = 2 if settings.optimizer == "adamw" else 0
    if settings.lora is not None:  # four matrices a layer and their MLP: about 14 hidden x r each layer
        trained = 14 * size.hidden * settings.lora.r * size.layers
    else:
        trained = size.parameters
    weights = 4 * size.parameters * (2 if reference and settings.lora is None else 1)
    rows = max(settings.batch_size, settings.retain_batch_size or 0)
    width = 2 if settings.precision == "bf16" else 4
    activations = rows * length * (17 * width * size.hidden * size.layers + 3 * 4 * size.vocabulary)
    return weights + 4 * trained * (1 + moments) + activations


def room(todo: Sequence[Planned], root: Path) -> list[str]:
    """Doubts about disk and memory for what is to be built; nothing is said of embedded models."""
    stored = peak = models = 0
    for planned in todo:
        spec = planned.stage.spec
        if "settings" not in spec:
            continue
        model = ModelSettings(**spec["model"]["settings"])
        size = Size.of(model)
        if size is None:
            continue
        settings = TrainSettings(**spec["settings"])
        models += 1
        stored += 4 * size.parameters * (4 if settings.checkpoint_every and stored == 0 else 1)
        peak = max(peak, training_bytes(size, settings, min(model.max_length, 256), _needs_reference(spec)))
    if not models:
        return []
    lines = []
    free = shutil.disk_usage(_existing(root)).free
    if stored > free:
        lines.append(f"disk: {models} models of about {gib(stored)} go into {root}, where {gib(free)} are free.")
    available = memory_available()
    if available is not None and peak > available:
        where, way = ("GPU memory", "LoRA") if on_gpu() else ("memory", "LoRA")
        lines.append(
            f"{where}: training takes about {gib(peak)} and {gib(available)} are free: take {way} "
            "(`unlearn.lora: {}`, `--lora`) or smaller batches (`unlearn.batch_size`, `unlearn.retain_batch_size`)."
        )
    return lines


def _needs_reference(spec: Mapping[str, Any]) -> bool:
    cell = spec.get("cell")
    return bool(cell) and "reference" in methods.get(cell["method"]).cls(**cell["params"]).requirements  # type: ignore[attr-defined]


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


def gib(count: float) -> str:
    """Bytes for people."""
    return f"{count / GIB:.1f} GiB" if count >= 0.1 * GIB else f"{count / 2**20:.0f} MiB"


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
            return name, 1 - value if name.startswith("one_minus") else value
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
