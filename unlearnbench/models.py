"""Load, save, adapt and fingerprint models."""

from __future__ import annotations

import copy
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from unlearnbench.benchmarks.mini import model as embedded
from unlearnbench.errors import UserError
from unlearnbench.language_model import LanguageModel
from unlearnbench.settings import LoraSettings, ModelSettings
from unlearnbench.text import Encoder

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass
class Loaded:
    """A model with the encoder that belongs to it."""

    lm: LanguageModel
    encoder: Encoder


def load(settings: ModelSettings, folder: str | Path | None = None) -> Loaded:
    """The model `settings` names, or the one saved in `folder` with the same settings.

    Safetensors only unless `allow_pickle`; remote code only with `trust_remote_code`. Raises `UserError` in one line
    when the model cannot be had.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source = str(folder) if folder is not None else settings.name
    if folder is None and source.endswith(".gguf"):
        raise UserError(
            f"'{source}' is a GGUF file, which was quantised for inference; give the original safetensors folder."
        )
    options: dict[str, Any] = {"trust_remote_code": settings.trust_remote_code}
    if folder is None and settings.revision is not None:
        options["revision"] = settings.revision
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, **options)
        hf = AutoModelForCausalLM.from_pretrained(
            source,
            dtype=getattr(torch, settings.dtype),
            attn_implementation=settings.attention,
            use_safetensors=None if settings.allow_pickle else True,
            **options,
        )
    except (OSError, ValueError) as error:
        first = str(error).strip().splitlines()[0]
        raise UserError(f"The model '{source}' cannot be loaded: {first}") from error
    return Loaded(LanguageModel(hf), make_encoder(hf, tokenizer, settings))


def encoder_for(settings: ModelSettings) -> Encoder:
    """The encoder of the model that `settings` names, without its weights. Its fingerprint is part of every key."""
    from transformers import AutoConfig, AutoTokenizer

    if settings.name in embedded.MODELS:
        return _encoder(embedded.make_tokenizer(), embedded.CONTEXT, settings)
    options = {"trust_remote_code": settings.trust_remote_code, "revision": settings.revision}
    try:
        tokenizer = AutoTokenizer.from_pretrained(settings.name, **options)
        config = AutoConfig.from_pretrained(settings.name, **options)
    except (OSError, ValueError) as error:
        first = str(error).strip().splitlines()[0]
        raise UserError(f"The model '{settings.name}' cannot be loaded: {first}") from error
    return _encoder(tokenizer, getattr(config, "max_position_embeddings", None), settings)


def _encoder(tokenizer: PreTrainedTokenizerBase, limit: int | None, settings: ModelSettings) -> Encoder:
    length = min(settings.max_length, limit or settings.max_length)
    return Encoder(tokenizer, settings.template, length, settings.protocol)


def make_encoder(hf: nn.Module, tokenizer: PreTrainedTokenizerBase, settings: ModelSettings) -> Encoder:
    """The encoder for a model and its tokenizer. Raises `UserError` when an id has no embedding row."""
    rows = hf.get_input_embeddings().weight.shape[0]  # type: ignore[operator]
    highest = max(max(tokenizer.get_vocab().values()), tokenizer.pad_token_id or 0)
    if highest >= rows:
        raise UserError(
            f"The tokenizer has ids up to {highest}, the embedding {rows} rows; they do not belong together. "
            "Resize the embedding of the model and save it first."
        )
    return _encoder(tokenizer, getattr(hf.config, "max_position_embeddings", None), settings)


def save(lm: LanguageModel, encoder: Encoder, folder: str | Path) -> None:
    """Write safetensors (or the LoRA adapter) and the tokenizer, so that transformers (or peft) loads the folder."""
    lm.hf.save_pretrained(folder, safe_serialization=True)  # type: ignore[operator]
    encoder.tokenizer.save_pretrained(folder)


def weights_hash(lm: LanguageModel) -> str:
    """SHA-256 over the names, dtypes, shapes and bytes of all parameters and buffers that are saved. 16 hex digits."""
    digest = hashlib.sha256()
    for name, tensor in sorted(lm.hf.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()[:16]


def frozen_copy(lm: LanguageModel) -> LanguageModel:
    """A second, frozen model in eval mode that shares no memory with `lm`."""
    twin = copy.deepcopy(lm).requires_grad_(False).eval()
    ours = {parameter.data_ptr() for parameter in lm.parameters() if parameter.numel()}
    if any(parameter.data_ptr() in ours for parameter in twin.parameters() if parameter.numel()):
        raise RuntimeError("the reference shares weights with the model being trained")
    return twin


def add_lora(lm: LanguageModel, settings: LoraSettings, seed: int) -> LanguageModel:
    """Wrap with a LoRA adapter, initialised from `seed` without touching the global random state."""
    from peft import LoraConfig, get_peft_model

    modules = settings.target_modules
    config = LoraConfig(
        r=settings.r,
        lora_alpha=settings.alpha,  # type: ignore[arg-type]
        lora_dropout=settings.dropout,
        target_modules=modules if isinstance(modules, str) else list(modules),
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        try:
            return LanguageModel(get_peft_model(lm.hf, config))  # type: ignore[arg-type]
        except ValueError as error:
            raise UserError(f"LoRA finds no layer to adapt: {str(error).splitlines()[0]}") from error


def merge_lora(lm: LanguageModel) -> LanguageModel:
    """The adapter folded into the weights, in the precision of the weights; `lm` itself when it has none."""
    return LanguageModel(lm.hf.merge_and_unload()) if has_adapter(lm) else lm  # type: ignore[operator]


def has_adapter(lm: LanguageModel) -> bool:
    """Whether the model carries a PEFT adapter."""
    return hasattr(lm.hf, "disable_adapter")


def parameter_count(lm: LanguageModel) -> int:
    """Parameters, tied ones once."""
    return sum(parameter.numel() for parameter in lm.parameters())
