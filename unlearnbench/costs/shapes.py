"""The shape of a model, without its weights: from its config, or from what is published of it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import nn

from unlearnbench.benchmarks.mini import model as embedded
from unlearnbench.errors import UserError
from unlearnbench.language_model import LanguageModel
from unlearnbench.model_files import base_folder
from unlearnbench.published import PUBLISHED
from unlearnbench.settings import LoraSettings, ModelSettings

#: end of a model's name -> (architecture, hidden, layers, inner, heads, key-value heads, vocabulary, tied)
KNOWN: dict[str, tuple[str, int, int, int, int, int, int, bool]] = {
    "llama-2-7b": ("llama", 4096, 32, 11008, 32, 32, 32000, False),
    "llama-3.2-1b": ("llama", 2048, 16, 8192, 32, 8, 128256, True),
    "llama-3.2-3b": ("llama", 3072, 28, 8192, 24, 8, 128256, True),
    "llama-3.1-8b": ("llama", 4096, 32, 14336, 32, 8, 128256, False),
    "qwen2.5-0.5b": ("qwen2", 896, 24, 4864, 14, 2, 151936, True),
    "qwen2.5-1.5b": ("qwen2", 1536, 28, 8960, 12, 2, 151936, True),
    "qwen2.5-3b": ("qwen2", 2048, 36, 11008, 16, 2, 151936, True),
    "qwen2.5-7b": ("qwen2", 3584, 28, 18944, 28, 4, 152064, False),
    "smollm2-135m": ("llama", 576, 30, 1536, 9, 3, 49152, True),
    "smollm2-360m": ("llama", 960, 32, 2560, 15, 5, 49152, True),
    "smollm2-1.7b": ("llama", 2048, 24, 8192, 32, 32, 49152, True),
}


@dataclass(frozen=True)
class Shape:
    """A model whose parameters have shapes and no values. Counts are parameters."""

    lm: LanguageModel
    body: int  #: all but embedding and head
    head: int
    total: int
    layers: int
    hidden: int
    inner: int  #: width of the MLP
    cache: int  #: keys and values of one token in all layers

    def lora(self, settings: LoraSettings) -> int:
        """How many parameters an adapter has."""
        chosen, head = settings.target_modules, self.lm.model.get_output_embeddings()
        return sum(
            settings.r * (module.in_features + module.out_features)
            for name, module in self.lm.model.named_modules()
            if isinstance(module, nn.Linear) and module is not head
            if chosen == "all-linear" or name.rsplit(".", 1)[-1] in chosen
        )

    def named(self, names: list[str]) -> int:
        """How many parameters these tensors have."""
        wanted = set(names)
        return sum(p.numel() for name, p in self.lm.named_parameters() if name in wanted)


def shape_of(settings: ModelSettings) -> Shape:
    """The shape of the model `settings` names. Raises `UserError` for a model that is neither here nor known."""
    return _shape(settings.name, settings.revision, settings.width)


@lru_cache(maxsize=32)
def _shape(name: str, revision: str | None, width: int | None) -> Shape:
    if name in embedded.MODELS:
        hf, _ = embedded.build(name, 0, width)
        return measure(LanguageModel(hf))
    return measure(LanguageModel(_hollow(config_of(ModelSettings(name=name, revision=revision)))))


def config_of(settings: ModelSettings) -> Any:
    """The config of a model: its own where it is at hand, else the published one."""
    from transformers import AutoConfig

    if settings.name in embedded.MODELS:
        return embedded.build(settings.name, 0, settings.width)[0].config
    try:
        return AutoConfig.from_pretrained(base_folder(settings))
    except UserError:
        told = PUBLISHED[settings.name].repository if settings.name in PUBLISHED else settings.name
        known = next((sizes for key, sizes in KNOWN.items() if key in told.lower().replace("_", "-")), None)
        if known is None and settings.name.startswith("muse-"):
            known = KNOWN["llama-2-7b"]
        if known is None:
            raise
    kind, hidden, layers, inner, heads, kv_heads, vocabulary, tied = known
    return AutoConfig.for_model(
        kind,
        hidden_size=hidden,
        num_hidden_layers=layers,
        intermediate_size=inner,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        vocab_size=vocabulary,
        tie_word_embeddings=tied,
    )


def _hollow(config: Any) -> Any:
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]


def measure(lm: LanguageModel) -> Shape:
    """Count the parameters of a model."""
    embedding = lm.model.get_input_embeddings().weight
    head = lm.model.get_output_embeddings().weight
    total = sum(p.numel() for p in lm.parameters())
    config = lm.config.get_text_config(decoder=True)
    heads = config.num_attention_heads
    per_head = getattr(config, "head_dim", None) or config.hidden_size // heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    return Shape(
        lm=lm,
        body=total - embedding.numel() - (0 if head is embedding else head.numel()),
        head=head.numel(),
        total=total,
        layers=len(lm.layers),
        hidden=config.hidden_size,
        inner=getattr(config, "intermediate_size", None) or 4 * config.hidden_size,
        cache=2 * len(lm.layers) * kv_heads * per_head,
    )
