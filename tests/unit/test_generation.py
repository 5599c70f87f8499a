"""Batched greedy and sampled texts equal those made one by one with the textbook loop."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from unlearnbench import generation
from unlearnbench.language_model import LanguageModel
from unlearnbench.metric import Generate, Sample, Text
from unlearnbench.testing.tiny import ARCHITECTURES, tiny_encoder, tiny_lm
from unlearnbench.text import Encoder

PROMPTS = ("abc", "a much longer question", "x", "where", "who kept the log of the harbour?", "nine char")


def stopping(lm: LanguageModel, bias: float = 6.0) -> LanguageModel:
    """Make EOS likely enough that some texts end early: scale its output row."""
    head = lm.model.get_output_embeddings()
    with torch.no_grad():
        head.weight[1] = head.weight[1] * bias
    return lm


def textbook(lm: LanguageModel, encoder: Encoder, request: Generate) -> Text:
    """No batch, no cache: the whole text through the model for every token."""
    ids, new, ended = encoder.prompt_ids(request.prompt), [], False
    while len(new) < request.max_new_tokens:
        with torch.no_grad():
            token = int(lm.hf(input_ids=torch.tensor([[*ids, *new]]), use_cache=False).logits[0, -1].argmax())
        if token in generation.stop_ids(lm, encoder):
            ended = True
            break
        new.append(token)
    return Text(encoder.decode(new), len(new), ended)


@pytest.mark.parametrize("architecture", sorted(ARCHITECTURES))
def test_batched_equals_one_by_one(architecture: str) -> None:
    """B37"""
    lm, encoder = stopping(tiny_lm(architecture)), tiny_encoder()
    requests = [Generate(prompt, n) for prompt in PROMPTS for n in (3, 20)]
    answers = generation.generate(lm, encoder, requests)
    assert generation.path_of(lm) == ("transformers" if architecture == "gemma2" else "own")
    for request in requests:
        assert answers[request] == textbook(lm, encoder, request), request
        assert answers[request].tokens <= request.max_new_tokens


def test_some_texts_end_and_some_run_on() -> None:
    lm, encoder = stopping(tiny_lm()), tiny_encoder()
    answers = generation.generate(lm, encoder, [Generate(prompt, 20) for prompt in PROMPTS])
    assert {text.ended for text in answers.values()} == {True, False}


@pytest.mark.parametrize("cache_bytes", [1, 20_000, 2**28])
def test_order_and_batch_change_nothing(cache_bytes: int) -> None:
    lm, encoder = stopping(tiny_lm()), tiny_encoder()
    requests = [Generate(prompt, 16) for prompt in PROMPTS]
    whole = generation.generate(lm, encoder, requests)
    shuffled = random.Random(0).sample(requests, len(requests))
    assert generation.generate(lm, encoder, [*shuffled, *shuffled], cache_bytes=cache_bytes) == whole


@pytest.mark.parametrize("pad", ["<pad>", "</s>", "<s>"])
def test_the_pad_token_does_not_matter(pad: str) -> None:
    """B20, B37: pad = EOS, and pad = id 0."""
    lm, encoder, other = stopping(tiny_lm()), tiny_encoder(), tiny_encoder()
    other.pad_id = other.tokenizer.convert_tokens_to_ids(pad)
    side = other.tokenizer.padding_side
    requests = [Generate(prompt, 16) for prompt in PROMPTS]
    assert generation.generate(lm, other, requests) == generation.generate(lm, encoder, requests)
    assert other.tokenizer.padding_side == side


def test_stops_at_every_end_token_of_the_generation_config() -> None:
    lm, encoder = tiny_lm(), tiny_encoder()
    free = textbook(lm, encoder, Generate("abc", 8))
    second = encoder._ids(free.text)[1]
    lm.hf.generation_config.eos_token_id = [1, second]
    text = generation.generate(lm, encoder, [Generate("abc", 8)])[Generate("abc", 8)]
    assert text == textbook(lm, encoder, Generate("abc", 8))
    assert text.ended and text.tokens <= 1


def test_drafts_change_the_work_and_not_the_text() -> None:
    lm, encoder = stopping(tiny_lm()), tiny_encoder()
    requests = [Generate(prompt, n) for prompt in PROMPTS for n in (2, 16)]
    plain = generation.generate(lm, encoder, requests)
    drafts = {}
    for prompt in PROMPTS:
        longest = plain[Generate(prompt, 16)]
        ids = encoder._ids(longest.text)
        if len(ids) == longest.tokens:  # byte tokens that form no text do not come back
            drafts[prompt, False] = ((*ids, 1) if longest.ended else tuple(ids[:5]), 9)
    assert drafts
    assert generation.generate(lm, encoder, requests, drafts) == plain


def test_a_draft_ends_where_the_text_ends() -> None:
    lm, encoder = tiny_lm(), tiny_encoder()
    first = encoder._ids(textbook(lm, encoder, Generate("abc", 1)).text)
    lm.hf.generation_config.eos_token_id = [1, *first]
    plain = generation.generate(lm, encoder, [Generate("abc", 8)])
    assert generation.generate(lm, encoder, [Generate("abc", 8)], {("abc", False): ((*first, 9, 9), 3)}) == plain


def test_a_prompt_beyond_the_positions_is_cut_on_its_left() -> None:
    lm, encoder = tiny_lm("gpt2", n_positions=32), tiny_encoder()
    long, short = Generate("y" * 20 + "z" * 21, 10), Generate("z" * 21, 10)
    answers = generation.generate(lm, encoder, [long, short], {("y" * 20 + "z" * 21, False): ((5, 5, 5), 3)})
    assert answers[long] == answers[short]


def test_sampling_follows_the_model_and_repeats() -> None:
    lm, encoder = tiny_lm(), tiny_encoder()
    request = Sample("abc", n=2000, max_new_tokens=1)
    texts = generation.sample(lm, encoder, [request])[request]
    with torch.no_grad():
        logits = lm.hf(input_ids=torch.tensor([encoder.prompt_ids("abc")])).logits[0, -1]
    expected = logits.softmax(-1)
    best = int(expected.argmax())
    share = np.mean([encoder._ids(text.text) == [best] for text in texts])
    assert share == pytest.approx(float(expected[best]), abs=4 * np.sqrt(0.25 / 2000))
    assert generation.sample(lm, encoder, [request])[request] == texts
    few = Sample("abc", n=3, max_new_tokens=1)
    assert generation.sample(lm, encoder, [Sample("who", n=4), few])[few] == texts[:3]
    assert generation.sample(lm, encoder, [Sample("abc", n=3, max_new_tokens=1, seed=1)]) != {few: texts[:3]}


def test_cold_sampling_is_greedy() -> None:
    lm, encoder = stopping(tiny_lm()), tiny_encoder()
    cold = Sample("who", n=2, max_new_tokens=12, temperature=1e-6)
    greedy = generation.generate(lm, encoder, [Generate("who", 12)])[Generate("who", 12)]
    assert generation.sample(lm, encoder, [cold])[cold] == (greedy, greedy)
    assert generation.sample_texts(lm, encoder, ["who"], 2, 12, 0) == [[greedy.text] * 2]


def test_training_mode_is_restored() -> None:
    lm, encoder = tiny_lm("gpt2", resid_pdrop=0.9), tiny_encoder()
    lm.train()
    answers = [generation.generate(lm, encoder, [Generate("abc", 8)]) for _ in range(2)]
    assert answers[0] == answers[1]
    assert lm.training and lm.layers[0].training
