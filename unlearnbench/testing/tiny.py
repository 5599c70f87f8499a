"""Tiny random models of each supported architecture, a byte-level tokenizer and rows: enough to test a method in a
second.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from accelerate import Accelerator
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers import models as tokenizer_models
from transformers import (
    Gemma2Config,
    GPT2Config,
    GPTNeoXConfig,
    LlamaConfig,
    MistralConfig,
    Phi3Config,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
)
from transformers.models.auto.modeling_auto import AutoModelForCausalLM

from unlearnbench.benchmarks.base import Row
from unlearnbench.finetuning import finetune
from unlearnbench.language_model import LanguageModel
from unlearnbench.models import frozen_copy
from unlearnbench.settings import TrainSettings
from unlearnbench.text import Encoder

_COMMON: dict[str, Any] = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}
_GPT2 = {"n_embd": 16, "n_inner": 24, "n_layer": 2, "n_head": 2, "n_positions": 256}
_NEOX = {key: value for key, value in _COMMON.items() if key != "num_key_value_heads"}
_SMOL = {  # the proportions of SmolLM2-135M: narrow and deep, three query heads to a key head
    "hidden_size": 24,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
}
#: architecture name -> (config class, its settings)
ARCHITECTURES: dict[str, tuple[type, dict[str, Any]]] = {
    "llama": (LlamaConfig, {**_COMMON, "tie_word_embeddings": False}),
    "smollm2": (LlamaConfig, {**_COMMON, **_SMOL, "tie_word_embeddings": True}),
    "qwen2": (Qwen2Config, {**_COMMON, "tie_word_embeddings": True}),
    "qwen3": (Qwen3Config, {**_COMMON, "head_dim": 8, "tie_word_embeddings": False}),
    "gpt2": (GPT2Config, _GPT2),
    "gpt-neox": (GPTNeoXConfig, _NEOX),
    "phi3": (Phi3Config, {**_COMMON, "pad_token_id": 2}),
    "gemma2": (Gemma2Config, {**_COMMON, "head_dim": 8}),
    "mistral": (MistralConfig, {**_COMMON, "sliding_window": None}),
}


@lru_cache(maxsize=1)
def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """One id per byte, with BOS, EOS and pad; no chat template."""
    specials = ["<s>", "</s>", "<pad>"]
    vocabulary = {token: i for i, token in enumerate([*specials, *sorted(pre_tokenizers.ByteLevel.alphabet())])}
    backend = Tokenizer(tokenizer_models.BPE(vocabulary, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, special=True) for token in specials])
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>", pad_token="<pad>")


def tiny_encoder(max_length: int = 256) -> Encoder:
    """An encoder with the `plain` template over `tiny_tokenizer`."""
    return Encoder(tiny_tokenizer(), "plain", max_length)


def tiny_lm(
    architecture: str = "llama", seed: int = 0, dtype: torch.dtype = torch.float32, **overrides: Any
) -> LanguageModel:
    """A random model (a few thousand parameters) of an architecture in `ARCHITECTURES`, without touching the global
    RNG.

    Weights are drawn large enough (standard deviation 0.3) for losses and gradients that are not all alike.
    """
    config_class, settings = ARCHITECTURES[architecture]
    values = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2, **settings, **overrides}
    config = config_class(vocab_size=len(tiny_tokenizer()), initializer_range=0.3, **values)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        hf = AutoModelForCausalLM.from_config(config)
    hf.generation_config.eos_token_id = 1
    hf.generation_config.pad_token_id = 2
    return LanguageModel(hf.to(dtype).eval())


@lru_cache
def tiny_target(architecture: str = "llama", seed: int = 0, dtype: torch.dtype = torch.float32) -> LanguageModel:
    """A tiny model that knows `FORGET_ROWS` and `RETAIN_ROWS` nearly by heart, so that there is something to forget.

    Trained once per process (a second or two) and shared: copy it before changing it (`models.frozen_copy`).
    """
    if dtype != torch.float32:
        return frozen_copy(tiny_target(architecture, seed)).to(dtype).requires_grad_(True)
    lm = tiny_lm(architecture, seed)
    settings = TrainSettings(epochs=60, batch_size=16, learning_rate=2e-2)
    finetune(lm, tiny_encoder(), [*FORGET_ROWS, *RETAIN_ROWS], settings, seed, Accelerator())
    return lm


def tiny_rows(count: int = 8, prefix: str = "row", start: int = 0) -> list[Row]:
    """Distinct short questions and answers of unequal length."""
    words = ["harbour", "lamp", "quiet river", "stone", "orchard in spring", "salt"]
    return [
        Row(
            id=f"{prefix}{i}",
            prompt=f"What is number {i}?",
            answer=f"The {words[i % len(words)]} {i * 7 % 11}.",
            group=f"group{i // 4}",
            fact=words[i % len(words)],
            paraphrases=(f"Number {i} is what?", f"Say what {i} is."),
            unseen_paraphrases=(f"Tell me {i}.",),
            paraphrased_answer=f"It is the {words[i % len(words)]} {i * 7 % 11}.",
            perturbed=tuple(f"The {words[(i + k) % len(words)]} {i * 5 % 13}." for k in range(1, 4)),
        )
        for i in range(start, start + count)
    ]


FORGET_ROWS = tiny_rows(6)  #: what `tiny_target` is to forget
RETAIN_ROWS = tiny_rows(5, "retain", 50)  #: what it is to keep
