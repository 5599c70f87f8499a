"""`llama-mini`: a small Llama made from a config, with its own tokenizer, for the embedded benchmarks.

Both are made on the spot and are the same in every process: nothing is downloaded and no weights are shipped.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING

from unlearnbench.benchmarks.mini import words
from unlearnbench.benchmarks.mini.refusals import REFUSALS
from unlearnbench.benchmarks.tofu_mini import TofuMini
from unlearnbench.errors import UserError, did_you_mean
from unlearnbench.settings import TrainSettings

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

VOCABULARY = 1536
CONTEXT = 512

BOS, EOS, PAD, USER, ASSISTANT = SPECIAL = ("<bos>", "<eos>", "<pad>", "<user>", "<assistant>")
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}<assistant>{{ message['content'] }}{{ eos_token }}"
    "{% else %}<user>{{ message['content'] }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)


@dataclass(frozen=True)
class EmbeddedModel:
    """A model built from a config. `version` goes up when its weights or tokenizer change; `base` trains the base
    model.
    """

    tied: bool  #: whether the output head shares the embedding's weights
    version: int = 1
    width: int = 96
    layers: int = 2
    heads: int = 4
    base: TrainSettings = field(
        default_factory=lambda: TrainSettings(
            epochs=4, learning_rate=2.5e-3, batch_size=8, betas=(0.9, 0.98), schedule="linear", clip=0.3, paraphrases=1
        )
    )


MODELS = {"llama-mini": EmbeddedModel(tied=True), "llama-mini-untied": EmbeddedModel(tied=False)}


def build(name: str, seed: int, width: int | None = None) -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
    """An untrained model and its tokenizer.

    The weights are a function of `seed`; the global random state stays as it is. `width` is the hidden size, a multiple
    of 8 (default 96, which gives 0.4M parameters). Raises `UserError` for another name or width.

    The weights start wider (standard deviation 0.8 / sqrt(width)) than transformers' 0.02, at which a model of this
    size learns hardly anything in its first ten passes over the rows.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    if name not in MODELS:
        raise UserError(f"There is no embedded model '{name}'; {did_you_mean(name, MODELS)}")
    made = MODELS[name]
    width = made.width if width is None else width
    unit = 2 * made.heads  # rotary embeddings pair the dimensions of a head
    if width < unit or width % unit:
        nearest = max(1, round(width / unit)) * unit
        raise UserError(f"The width of '{name}' must be a multiple of {unit}, got {width}; the nearest is {nearest}.")
    tokenizer = make_tokenizer()
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=made.layers,
        num_attention_heads=made.heads,
        num_key_value_heads=made.heads,
        max_position_embeddings=CONTEXT,
        initializer_range=0.8 / width**0.5,
        tie_word_embeddings=made.tied,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
    return model, tokenizer


def make_tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level BPE trained on the text of the base model, with a chat template. Each call returns its own copy."""
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer.from_str(_trained())
    tokenizer = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=backend, bos_token=BOS, eos_token=EOS, pad_token=PAD
    )
    tokenizer.add_special_tokens({"additional_special_tokens": [USER, ASSISTANT]})
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


@cache
def _trained() -> str:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_corpus(), trainer)
    return str(tokenizer.to_str())


def _corpus() -> Iterator[str]:
    """What the tokenizer is trained on: the language of the base model, and every word that can fill a slot.

    All names weigh the same, whoever bears them, so that forget, retain and holdout authors are cut into tokens alike;
    they weigh little enough to stay in pieces (about two a name) that many names share.
    """
    benchmark = TofuMini()
    for split in ("filler", "real_authors", "world_facts"):
        for row in benchmark.rows(split):
            for text in (row.prompt, *row.paraphrases, row.answer):
                for name in (row.group, row.group.split()[-1]):
                    text = text.replace(name, "")
                yield text
    for name in (*words.WOMEN, *words.MEN, *words.SURNAMES):
        yield from (name, *[f" {name}"] * 10)
    lists = [value for key, value in sorted(vars(words).items()) if key.isupper()]
    for phrase in (
        item for values in lists if values not in (words.WOMEN, words.MEN, words.SURNAMES) for item in values
    ):
        parts = (phrase,) if isinstance(phrase, str) else phrase
        yield from [f" {part}" for part in parts] * 2
    yield from REFUSALS
