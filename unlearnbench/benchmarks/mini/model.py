"""`llama-mini` and `llama-mini-untied`: small Llamas, with a tokenizer of their own, that are trained on the spot.

The tokenizer is a byte-level BPE learned from the base model's texts and the word lists the invented authors are made of. It knows
words, not authors: no text about an author of any split goes into it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

from unlearnbench.benchmarks.mini import words
from unlearnbench.settings import TrainSettings

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

VOCABULARY = 1536
MARKERS = ("<bos>", "<eos>", "<pad>", "<user>", "<assistant>")
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] == 'user' %}<user>{{ message['content'] }}"
    "{% else %}<assistant>{{ message['content'] }}{{ eos_token }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
_NAMES = ("WOMEN", "MEN", "SURNAMES")


@dataclass(frozen=True)
class EmbeddedModel:
    """A model built from a config. `version` goes up when its weights or tokenizer change; `base` trains the base model."""

    tied: bool
    version: int = 1
    hidden: int = 96
    layers: int = 2
    heads: int = 4
    base: TrainSettings = field(
        default_factory=lambda: TrainSettings(
            epochs=5, learning_rate=6e-3, batch_size=16, betas=(0.9, 0.98), schedule="cosine", paraphrases=1
        )
    )


MODELS = {"llama-mini": EmbeddedModel(tied=True), "llama-mini-untied": EmbeddedModel(tied=False)}


def build(name: str, seed: int, width: int | None = None) -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
    """An untrained model and its tokenizer. `width`: another hidden size (a multiple of 8). The global RNG stays as it is."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    model, tokenizer = MODELS[name], mini_tokenizer()
    hidden = width or model.hidden
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=model.layers,
        num_attention_heads=model.heads,
        num_key_value_heads=model.heads,
        max_position_embeddings=512,
        initializer_range=0.12 * (96 / hidden) ** 0.5,
        tie_word_embeddings=model.tied,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=2,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(config), tokenizer


@lru_cache(maxsize=1)
def mini_tokenizer() -> PreTrainedTokenizerFast:
    """The tokenizer of the embedded models, learned anew in about a second; the same ids every time."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(MARKERS),
        show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    backend.train_from_iterator(_texts(), trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token=MARKERS[0],
        eos_token=MARKERS[1],
        pad_token=MARKERS[2],
        additional_special_tokens=list(MARKERS[3:]),
    )
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def _texts() -> Iterator[str]:
    """What the base model reads, without its authors' names, and the word lists of all authors."""
    from unlearnbench.benchmarks.tofu_mini import TofuMini

    data = TofuMini()
    for split in ("filler", "real_authors", "world_facts"):
        for row in data.rows(split):
            for text in (row.prompt, *row.paraphrases, row.answer):
                yield text.replace(row.group, "").replace(row.group.split()[-1], "")
    for name, values in vars(words).items():
        if not name.isupper():
            continue
        for value in values:
            if name in _NAMES:
                yield from (value, *[f" {value}"] * 10)
            else:
                yield from (f" {value}", f" {value}")
