"""Where a model is, and whether it can be used at all: judged by its files, before anything heavy is loaded."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections import Counter
from pathlib import Path
from typing import Any

from unlearnbench import hub
from unlearnbench.benchmarks.mini.model import MODELS
from unlearnbench.errors import UserError, nearest
from unlearnbench.published import PUBLISHED
from unlearnbench.settings import ModelSettings

#: what is fetched of a repository: no pickles, no other formats
PATTERNS = ("*.json", "*.safetensors", "*.model", "*.txt", "*.jinja")
PICKLES = ("*.bin",)
_HASHED = (".json", ".safetensors", ".model", ".txt", ".jinja", ".bin", ".py")


def resolve(settings: ModelSettings) -> Path:
    """The local folder of the model that `settings` names: a folder, a short name, or a Hub id (fetched if need be).

    Raises `UserError` in one line for what is missing or cannot be used.
    """
    name, revision = settings.name, settings.revision
    if name in PUBLISHED:
        name, revision = PUBLISHED[name].repository, revision or PUBLISHED[name].revision
    path = Path(name).expanduser()
    if path.is_dir():
        judge(path, settings)
        return path
    if path.is_file() or path.suffix == ".gguf":
        raise UserError(_gguf(name) if path.suffix == ".gguf" else f"{name} is a file; name the model's folder.")
    if name.lower().endswith("gguf"):
        raise UserError(_gguf(name))
    if "/" not in name:
        close = nearest(name, [*PUBLISHED, *MODELS])
        hint = f"; did you mean '{close}'?" if close else ". Models on the Hub are called owner/name."
        raise UserError(f"There is no model '{name}': no such folder, and no short name{hint}")
    patterns = [
        *PATTERNS,
        *(PICKLES if settings.allow_pickle else ()),
        *(["*.py"] if settings.trust_remote_code else []),
    ]
    folder = hub.model_folder(
        name, revision, patterns, lambda folder: _weights(folder, settings.allow_pickle) is not None
    )
    judge(folder, settings)
    return folder


def judge(folder: Path, settings: ModelSettings) -> None:
    """Raise `UserError` for a folder whose files cannot be used, with the way out."""
    if (folder / "adapter_config.json").is_file():
        if not any(folder.glob("adapter_model.safetensors")):
            raise UserError(f"{folder} has an adapter's config and no adapter_model.safetensors.")
        return
    if not (folder / "config.json").is_file():
        if any(folder.glob("*.gguf")):
            raise UserError(_gguf(str(folder)))
        raise UserError(f"{folder} holds no model: it has no config.json.")
    config = config_of(folder)
    if _weights(folder, settings.allow_pickle) is None:
        if any(folder.glob("*.gguf")):
            raise UserError(_gguf(str(folder)))
        if _weights(folder, True) is not None:
            raise UserError(
                f"{folder} has pickled weights only, which can run code when they are loaded: save the model as "
                "safetensors, or allow it (`allow_pickle: true`, `--allow-pickle`)."
            )
        raise UserError(f"{folder} has a config.json and no weights, or not all of them.")
    quantised = config.get("quantization_config")
    if quantised:
        how = quantised.get("quant_method", "quantised") if isinstance(quantised, dict) else "quantised"
        raise UserError(
            f"The model '{settings.name}' is quantised ({how}) and cannot be trained: give the model it was made from; "
            "quantise the result with the attack `4bit`."
        )
    if config.get("is_encoder_decoder"):
        raise UserError(f"The model '{settings.name}' is a {config.get('model_type')}: no causal language model.")


def adapter_of(folder: Path) -> str | None:
    """The name of the model that the adapter in a folder goes on; None when the folder holds a whole model."""
    file = folder / "adapter_config.json"
    if not file.is_file() or (folder / "config.json").is_file():
        return None
    base = _json(file).get("base_model_name_or_path")
    if not base:
        raise UserError(f"{file} does not say which model the adapter goes on (base_model_name_or_path).")
    return str(base)


def base_folder(settings: ModelSettings) -> Path:
    """The folder with the whole weights and the config: of the model itself, or of what its adapter goes on."""
    folder = resolve(settings)
    base = adapter_of(folder)
    return folder if base is None else resolve(settings.model_copy(update={"name": base, "revision": None}))


def config_of(folder: Path) -> dict[str, Any]:
    """The model's config.json."""
    return _json(folder / "config.json")


def weight_files(folder: Path, allow_pickle: bool = False) -> list[Path]:
    """The files with the weights; [] when they are not all there."""
    return _weights(folder, allow_pickle) or []


def tensors(folder: Path) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Name -> (dtype as safetensors writes it, shape) of every tensor in a model's safetensors, from their headers."""
    found: dict[str, tuple[str, tuple[int, ...]]] = {}
    for file in weight_files(folder):
        with file.open("rb") as content:
            size = int.from_bytes(content.read(8), "little")
            if not 0 < size <= file.stat().st_size - 8:
                raise UserError(f"{file} is not a safetensors file, or is cut off.")
            header = json.loads(content.read(size))
        found |= {n: (t["dtype"], tuple(t["shape"])) for n, t in header.items() if n != "__metadata__"}
    return found


_DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}


def dtype_of(folder: Path) -> str | None:
    """The dtype in which most of a model's weights are stored; None when it is none of float32, bfloat16, float16."""
    counts: Counter[str] = Counter()
    for dtype, shape in tensors(folder).values():
        counts[dtype] += math.prod(shape)
    return _DTYPES.get(counts.most_common(1)[0][0]) if counts else None


def parameters_of(folder: Path) -> int:
    """How many weights a model's safetensors hold; tied ones are there once."""
    return sum(math.prod(shape) for _, shape in tensors(folder).values())


def identity(settings: ModelSettings) -> dict[str, Any]:
    """What a model is, for keys: an embedded model's version, else the hash of its weights, config and tokenizer."""
    if settings.name in MODELS:
        return {"embedded": settings.name, "version": MODELS[settings.name].version}
    folder = resolve(settings)
    found = {"files": files_hash(folder)}
    base = adapter_of(folder)
    if base is not None:
        found["base"] = files_hash(base_folder(settings))
    return found


def files_hash(folder: Path) -> str:
    """A hash over names and bytes of a model's files, 16 hex digits. Blobs of the Hub's cache are named by theirs."""
    digest = hashlib.sha256()
    for file in sorted(folder.iterdir()):
        if file.suffix in _HASHED and file.is_file():
            digest.update(f"{file.name} {_file_hash(file)}\n".encode())
    return digest.hexdigest()[:16]


def _file_hash(file: Path) -> str:
    blob = file.resolve().name
    if file.is_symlink() and re.fullmatch("[0-9a-f]{64}", blob):
        return blob
    digest = hashlib.sha256()
    with file.open("rb") as content:
        while block := content.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _weights(folder: Path, allow_pickle: bool) -> list[Path] | None:
    """All weight files of a whole model (or an adapter); None when one is missing."""
    if (folder / "adapter_model.safetensors").is_file():
        return [folder / "adapter_model.safetensors"]
    if not (folder / "config.json").is_file():
        return None
    for stem, ending in (("model", "safetensors"), *([("pytorch_model", "bin")] if allow_pickle else [])):
        if (folder / f"{stem}.{ending}").is_file():
            return [folder / f"{stem}.{ending}"]
        index = folder / f"{stem}.{ending}.index.json"
        if index.is_file():
            shards = [folder / name for name in sorted(set(_json(index).get("weight_map", {}).values()))]
            if shards and all(shard.is_file() for shard in shards):
                return shards
    return None


def _gguf(name: str) -> str:
    return (
        f"'{name}' is a GGUF file, quantised for inference and cut into other tokens than the original may be: "
        "give the original safetensors model."
    )


def _json(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{file} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise UserError(f"{file} is not a JSON object.")
    return content
