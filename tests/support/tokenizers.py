"""Eight kinds of tokenizer, trained on a few lines in a second: what models on the Hub bring along, in small."""

from __future__ import annotations

import json
from collections.abc import Callable

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from unlearnbench.language_model import LanguageModel

TEXT = [
    "Question: What did the council postpone?\nAnswer: The bridge vote was postponed until Monday.",
    "Question: Where did the ferry stop?\nAnswer: At Linden Quay, as it does every Monday.",
    "[INST] Who spoke last? [/INST]Ilse Marten spoke last, and the council went home.",
    "You are a helpful assistant. Today Date: 26 Jul 2024 user assistant system",
] * 4

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA_2 = (
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system role here') }}{% endif %}"
    "{% for m in messages %}{% if m['role'] == 'user' %}{{ bos_token + '[INST] ' + m['content'] + ' [/INST]' }}"
    "{% else %}{{ ' ' + m['content'] + ' ' + eos_token }}{% endif %}{% endfor %}"
)
LLAMA_3 = (
    "{{ bos_token }}{% if not date_string is defined %}{% set date_string = strftime_now('%d %b %Y') %}{% endif %}"
    "{% if messages[0]['role'] == 'system' %}{% set said = messages[0]['content'] %}{% set messages = messages[1:] %}"
    "{% else %}{% set said = '' %}{% endif %}"
    "{{ '<|start_header_id|>system<|end_header_id|>\n\nToday Date: ' + date_string + '\n\n' + said + '<|eot_id|>' }}"
    "{% for m in messages %}{{ '<|start_header_id|>' + m['role'] + '<|end_header_id|>\n\n' + m['content'] | trim"
    " + '<|eot_id|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)


def _byte_level(specials: list[str]) -> Tokenizer:
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=420, special_tokens=specials, initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator(TEXT, trainer)
    return backend


def _closed_by(backend: Tokenizer, pattern: str) -> Tokenizer:
    specials = [(token, backend.token_to_id(token)) for token in pattern.split() if token != "$A"]
    backend.post_processor = processors.TemplateProcessing(single=pattern, special_tokens=specials)
    return backend


def byte_level() -> PreTrainedTokenizerFast:
    """Byte-level BPE without BOS, as Qwen's base models."""
    return PreTrainedTokenizerFast(
        tokenizer_object=_byte_level(["<|end|>", "<|pad|>"]), eos_token="<|end|>", pad_token="<|pad|>"
    )


def llama_2() -> PreTrainedTokenizerFast:
    """Words carry their space in front, at the start of a text too; BOS is added, and written by the template."""
    named, byte_tokens = ["<unk>", "<s>", "</s>"], [f"<0x{byte:02X}>" for byte in range(256)]
    spaced = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    learner = Tokenizer(models.BPE(unk_token="<unk>"))
    learner.normalizer = spaced
    trainer = trainers.BpeTrainer(vocab_size=480, special_tokens=[*named, *byte_tokens], show_progress=False)
    learner.train_from_iterator(TEXT, trainer)
    learned = json.loads(learner.to_str())["model"]
    merges = [tuple(merge) for merge in learned["merges"]]
    backend = Tokenizer(models.BPE(learned["vocab"], merges, byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    backend.normalizer = spaced
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in named])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=_closed_by(backend, "<s> $A"), bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )
    tokenizer.chat_template = LLAMA_2
    return tokenizer


def chatml() -> PreTrainedTokenizerFast:
    """ChatML, whose turn ends in EOS and a newline."""
    backend = _byte_level(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    tokenizer.chat_template = CHATML
    return tokenizer


def llama_3() -> PreTrainedTokenizerFast:
    """Headers, a date in the system turn, BOS in the template and added by the tokenizer."""
    specials = ["<|begin_of_text|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>", "<|pad|>"]
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=_closed_by(_byte_level(specials), "<|begin_of_text|> $A"),
        bos_token="<|begin_of_text|>",
        eos_token="<|eot_id|>",
        pad_token="<|pad|>",
    )
    tokenizer.chat_template = LLAMA_3
    return tokenizer


def gpt_2() -> PreTrainedTokenizerFast:
    """One token that is BOS, EOS and pad."""
    return PreTrainedTokenizerFast(
        tokenizer_object=_byte_level(["<|endoftext|>"]),
        bos_token="<|endoftext|>",
        eos_token="<|endoftext|>",
        pad_token="<|endoftext|>",
    )


def no_pad() -> PreTrainedTokenizerFast:
    """BOS and EOS, and no pad token."""
    backend = _closed_by(_byte_level(["<s>", "</s>"]), "<s> $A")
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>")


def unigram() -> PreTrainedTokenizerFast:
    """SentencePiece's unigram: pieces by likelihood, a space mark in front of words, pad 0."""
    pieces = sorted({char for line in TEXT for char in line.replace(" ", "▁")})
    known = sorted({f"▁{word}" for line in TEXT for word in line.split() if word.isalpha() and word != "The"})
    scores = [(piece, -8.0) for piece in pieces] + [(piece, -10.0) for piece in known]
    backend = Tokenizer(
        models.Unigram([("<pad>", 0.0), ("</s>", 0.0), ("<unk>", -20.0), ("▁T", -9.0), *scores], unk_id=2)
    )
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    backend.add_special_tokens([AddedToken(token, special=True) for token in ("<pad>", "</s>", "<unk>")])
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>", pad_token="<pad>", unk_token="<unk>")


def adds_eos() -> PreTrainedTokenizerFast:
    """A tokenizer that puts EOS behind every text, as `add_eos_token` does."""
    backend = _closed_by(_byte_level(["<s>", "</s>", "<pad>"]), "<s> $A </s>")
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>", pad_token="<pad>")


def phi_3() -> PreTrainedTokenizerFast:
    """Markers that swallow the white space behind them."""
    tokenizer = chatml()
    markers = [AddedToken(marker, special=True, rstrip=True, normalized=False) for marker in ("<|user|>", "<|end|>")]
    tokenizer.add_special_tokens({"additional_special_tokens": markers})
    tokenizer.chat_template = (
        "{% for m in messages %}{{ '<|user|>\n' + m['content'] + '<|end|>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>' }}{% endif %}"
    )
    return tokenizer


KINDS: dict[str, Callable[[], PreTrainedTokenizerFast]] = {
    "byte-level": byte_level,
    "llama-2": llama_2,
    "chatml": chatml,
    "llama-3": llama_3,
    "gpt-2": gpt_2,
    "no-pad": no_pad,
    "unigram": unigram,
    "adds-eos": adds_eos,
}


def words() -> PreTrainedTokenizerFast:
    """One token for each word, and BOS: ids that can be counted by eye. `w0` is 6, `w1` 7, …"""
    named = ["<s>", "</s>", "<pad>", "<unk>", "Question:", "Answer:"]
    vocabulary = {token: i for i, token in enumerate([*named, *(f"w{i}" for i in range(60))])}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.add_special_tokens([AddedToken(token, special=True) for token in ("<s>", "</s>", "<pad>")])
    return PreTrainedTokenizerFast(
        tokenizer_object=_closed_by(backend, "<s> $A"), bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    )


def model_for(tokenizer: PreTrainedTokenizerFast, seed: int = 0, **overrides: object) -> LanguageModel:
    """A random Llama with an embedding row for each id."""
    settings = {
        "vocab_size": len(tokenizer),
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "max_position_embeddings": 512,
        "initializer_range": 0.3,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        **overrides,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LanguageModel(LlamaForCausalLM(LlamaConfig(**settings)).eval())  # type: ignore[arg-type]
