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
from unlearnbench.model_files import adapter_of, resolve
from unlearnbench.published import PUBLISHED
from unlearnbench.settings import LoraSettings, ModelSettings
from unlearnbench.text import Encoder

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

#: what two tokenizers are compared on: white space, accents, digits, other scripts, emoji, code, special tokens
PROBES = (
    " leading space",
    "two  spaces and a tab\tend ",
    "line\nbreaks\n\n",
    "Ångström naïve déjà-vu",
    "1234567890 3.14 -7",
    "漢字とかな 한국어",
    "Привет, नमस्ते, สวัสดี",
    "🙂👩‍🚀",
    "def f(x): return {'a': x[0]}",
    "<s></s><|endoftext|><|im_end|>[INST]",
)


@dataclass
class Loaded:
    """A model with the encoder that belongs to it."""

    lm: LanguageModel
    encoder: Encoder


# -- loading ---------------------------------------------------------------------------------------------------


def load(settings: ModelSettings, folder: str | Path | None = None) -> Loaded:
    """The model `settings` names, or the one saved in `folder` with the same settings.

    Safetensors only unless `allow_pickle`; remote code only with `trust_remote_code`. A folder with a LoRA adapter
    gives the adapter merged into its base. Raises `UserError` in one line when the model, or a part of it, is missing.
    """
    own = folder is None
    path = resolve(settings) if folder is None else Path(folder)
    base = adapter_of(path)
    if base is None:
        hf = _load_weights(path, settings)
    else:
        hf = _with_adapter(path, _load_weights(resolve(_of(settings, base)), settings), settings)
    _mend_generation_config(hf)
    return Loaded(LanguageModel(hf), make_encoder(hf, _load_tokenizer(path, settings, own), settings))


def encoder_for(settings: ModelSettings) -> Encoder:
    """The encoder of the model that `settings` names, without its weights. Its fingerprint is part of every key."""
    from transformers import AutoConfig

    if settings.name in embedded.MODELS:
        return _encoder(embedded.make_tokenizer(), embedded.CONTEXT, settings)
    path = resolve(settings)
    base = adapter_of(path)
    with_config = path if base is None else resolve(_of(settings, base))
    try:
        config = AutoConfig.from_pretrained(with_config, trust_remote_code=settings.trust_remote_code)
    except (OSError, ValueError) as error:
        raise UserError(_cannot(settings.name, error)) from error
    return _encoder(_load_tokenizer(path, settings), _positions(config), settings)


def make_encoder(hf: nn.Module, tokenizer: PreTrainedTokenizerBase, settings: ModelSettings) -> Encoder:
    """The encoder for a model and its tokenizer. Raises `UserError` when an id has no embedding row."""
    rows = hf.get_input_embeddings().weight.shape[0]  # type: ignore[operator]
    highest = max(max(tokenizer.get_vocab().values()), tokenizer.pad_token_id or 0)
    if highest >= rows:
        raise UserError(
            f"The tokenizer has ids up to {highest}, the embedding {rows} rows; they do not belong together. "
            "Resize the embedding of the model and save it first."
        )
    return _encoder(tokenizer, _positions(hf.config), settings)


def _load_weights(path: Path, settings: ModelSettings) -> Any:
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM

    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            path,
            dtype=getattr(torch, settings.dtype),
            attn_implementation=settings.attention,
            use_safetensors=None if settings.allow_pickle else True,
            trust_remote_code=settings.trust_remote_code,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # they are refused below, by name
        )
    except (OSError, ValueError, ImportError, RuntimeError, KeyError, SafetensorError) as error:
        if "attn_implementation" in str(error):
            kind = f"its architecture has no {settings.attention} attention: take `attention: eager`."
            raise UserError(f"The model '{settings.name}' cannot be loaded: {kind}") from error
        raise UserError(_cannot(settings.name, error)) from error
    hf, info = loaded
    for problem, said in (("missing_keys", "are missing"), ("mismatched_keys", "have another shape")):
        names = sorted(str(name if isinstance(name, str) else name[0]) for name in info.get(problem, ()))
        if names:
            shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
            raise UserError(f"The model '{settings.name}' is not whole: the weights {shown} {said} in its files.")
    return hf


def _with_adapter(path: Path, hf: Any, settings: ModelSettings) -> Any:
    from peft import PeftModel

    try:
        return PeftModel.from_pretrained(hf, str(path)).merge_and_unload()
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        raise UserError(_cannot(settings.name, error)) from error


def _load_tokenizer(path: Path, settings: ModelSettings, own: bool = True) -> PreTrainedTokenizerBase:
    """The tokenizer named in the settings, else the model's own, else that of the adapter's base."""
    from transformers import AutoTokenizer

    name = settings.tokenizer
    if own and name is None and settings.name in PUBLISHED:
        name = PUBLISHED[settings.name].tokenizer
    if own and name is not None:
        path = resolve_tokenizer(name)
    elif not any((path / file).is_file() for file in ("tokenizer.json", "tokenizer.model", "tokenizer_config.json")):
        base = adapter_of(path)
        if base is None:
            raise UserError(f"The model '{settings.name}' has no tokenizer: name one (`tokenizer`).")
        path = resolve(_of(settings, base))
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            path, trust_remote_code=settings.trust_remote_code
        )
    except (OSError, ValueError, ImportError) as error:
        raise UserError(_cannot(f"{settings.name}", error, "The tokenizer of")) from error
    return tokenizer


def resolve_tokenizer(name: str) -> Path:
    """The local folder of a tokenizer: a folder, or the tokenizer's files of a Hub repository."""
    from unlearnbench import hub

    if Path(name).expanduser().is_dir():
        return Path(name).expanduser()
    patterns = ["*.json", "*.model", "*.txt", "*.jinja"]
    return hub.model_folder(name, None, patterns, lambda folder: (folder / "tokenizer_config.json").is_file())


def _encoder(tokenizer: PreTrainedTokenizerBase, limit: int | None, settings: ModelSettings) -> Encoder:
    length = min(settings.max_length, limit or settings.max_length)
    return Encoder(tokenizer, settings.template, length, settings.protocol)


def _positions(config: Any) -> int | None:
    """How many positions the model has; None when nothing limits them."""
    limit = getattr(config.get_text_config(decoder=True), "max_position_embeddings", None)
    return int(limit) if limit else None


def _of(settings: ModelSettings, base: str) -> ModelSettings:
    return settings.model_copy(update={"name": base, "revision": None})


def _mend_generation_config(hf: Any) -> None:
    """Make a generation config that transformers would refuse to save, after hours of work, one that it saves.

    Many published models have sampling values beside `do_sample=False`; nothing is sampled here either way.
    """
    config = getattr(hf, "generation_config", None)
    if config is None:
        return
    try:
        config.validate(strict=True)
    except ValueError:
        config.do_sample = True


def _cannot(name: str, error: Exception, what: str = "The model") -> str:
    lines = [line for line in str(error).strip().splitlines() if line.strip()] or [type(error).__name__]
    if "Unrecognized configuration class" in lines[0]:
        lines[0] = "its architecture is no causal language model."
    return f"{what} '{name}' cannot be loaded: {lines[0]}"


# -- saving ----------------------------------------------------------------------------------------------------


def save(lm: LanguageModel, encoder: Encoder, folder: str | Path) -> None:
    """Write safetensors (or the LoRA adapter) and the tokenizer, so that transformers (or peft) loads the folder.

    Raises `UserError` when the saved tokenizer gives other ids than the one in memory.
    """
    from transformers import AutoTokenizer

    mind_ties(lm)
    lm.hf.save_pretrained(folder, safe_serialization=True)  # type: ignore[operator]
    encoder.tokenizer.save_pretrained(folder)
    different = differences(encoder.tokenizer, AutoTokenizer.from_pretrained(folder))
    if different:
        raise UserError(f"The tokenizer saved in {folder} encodes {different[0]!r} in another way than before.")


def mind_ties(lm: LanguageModel) -> None:
    """Make the config say whether the output head shares the embedding's weights, as it does in memory.

    Otherwise a head that was changed alone would be lost: the files keep one copy, and loading ties it again.
    """
    model = lm.model
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    if embedding is None or head is None or getattr(head, "weight", None) is None:
        return
    tied = head.weight.data_ptr() == embedding.weight.data_ptr()
    if not tied and model.config.tie_word_embeddings and torch.equal(head.weight, embedding.weight):
        model.tie_weights()
        return
    for config in {id(c): c for c in (model.config, model.config.get_text_config(decoder=True))}.values():
        config.tie_word_embeddings = tied


def differences(one: PreTrainedTokenizerBase, other: PreTrainedTokenizerBase) -> list[str]:
    """The `PROBES`, and special tokens, that two tokenizers encode in different ways; [] for the same tokenizer."""
    marked = sorted({f"{token}." for token in (*one.all_special_tokens, *other.all_special_tokens)})
    return [text for text in (*PROBES, *marked) if list(one(text)["input_ids"]) != list(other(text)["input_ids"])]


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


def master_weights(lm: LanguageModel) -> None:
    """Make half-precision weights and buffers float32, in place: what is trained is kept in full precision."""
    for tensor in (*lm.parameters(), *lm.buffers()):
        if tensor.dtype in (torch.float16, torch.bfloat16):
            tensor.data = tensor.data.float()


def round_weights(lm: LanguageModel, dtype: str) -> None:
    """Round every weight, in place, to a number of `dtype`; the precision of computation stays."""
    with torch.no_grad():
        for parameter in lm.parameters():
            parameter.copy_(parameter.to(getattr(torch, dtype)))


def has_adapter(lm: LanguageModel) -> bool:
    """Whether the model carries a PEFT adapter."""
    return hasattr(lm.hf, "disable_adapter")


def parameter_count(lm: LanguageModel) -> int:
    """Parameters, tied ones once."""
    return sum(parameter.numel() for parameter in lm.parameters())
