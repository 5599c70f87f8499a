"""The scoring engine gives what a plain loop over single sequences gives, whatever is asked beside."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from unlearnbench import scoring
from unlearnbench.language_model import LanguageModel
from unlearnbench.requests import RIVALS, Score, TokenScores
from unlearnbench.testing.tiny import ARCHITECTURES, tiny_encoder, tiny_lm
from unlearnbench.text import Encoder, collate
from unlearnbench.trees import grow, visibility

EXTRAS = frozenset({"moments", "rivals", "spans"})
PROMPTS = ("Who wrote it?", "Where?", "", "A much longer question about the harbour of a town: who kept its log?")
ANSWERS = ("Mara.", "Mara Ostrand.", "Mara Ostrand kept it.", "x", "Nobody knows who kept the log in those years.")
REQUESTS = [Score(prompt, answer, EXTRAS) for prompt in PROMPTS for answer in ANSWERS]


def plain(lm: LanguageModel, encoder: Encoder, request: Score) -> TokenScores:
    """One sequence, full logits, textbook formulas."""
    row = encoder.encode(request.prompt, request.answer)
    batch = collate([row], encoder.pad_id)
    with torch.no_grad():
        logits = lm(batch.input_ids, batch.attention_mask)[0]
    logp = logits.log_softmax(-1)
    start = max(row.prompt_length, 1)
    at, targets = logp[start - 1 : -1], torch.tensor(row.ids[start:])
    mean = (at.exp() * at).sum(-1)
    own = torch.nn.functional.one_hot(targets, at.shape[-1]).bool()
    return TokenScores(
        at[torch.arange(len(targets)), targets].numpy(),
        (at.argmax(-1) == targets).numpy(),
        mean.numpy(),
        (at.exp() * (at - mean[:, None]) ** 2).sum(-1).numpy(),
        at.masked_fill(own, -torch.inf).topk(RIVALS).values.numpy(),
    )


def close(a: TokenScores, b: TokenScores, tolerance: float = 1e-5) -> None:
    assert len(a) == len(b) > 0
    assert (a.hit == b.hit).all()
    for name in ("logp", "mean", "variance", "rivals"):
        np.testing.assert_allclose(getattr(a, name), getattr(b, name), rtol=tolerance, atol=tolerance, err_msg=name)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("architecture", sorted(ARCHITECTURES))
def test_equals_a_plain_loop(architecture: str, attention: str) -> None:
    if architecture == "gemma2" and attention == "sdpa":
        pytest.skip("Gemma-2 caps its attention logits, which sdpa cannot do")
    lm, encoder = tiny_lm(architecture, attn_implementation=attention), tiny_encoder()
    answers, counts = scoring.score(lm, encoder, REQUESTS)
    assert counts.path == ("plain" if architecture == "gemma2" else "tree")
    for request in REQUESTS:
        close(answers[request.bare], plain(lm, encoder, request))


@pytest.mark.parametrize("budget", [1, 60, 200, 100_000])
def test_batch_order_and_company_change_nothing(budget: int) -> None:
    lm, encoder = tiny_lm(), tiny_encoder()
    whole, _ = scoring.score(lm, encoder, REQUESTS)
    shuffled = random.Random(budget).sample(REQUESTS, len(REQUESTS))
    for requests in (shuffled, shuffled[::2], shuffled[:1], [*REQUESTS, *REQUESTS]):
        answers, _ = scoring.score(lm, encoder, requests, token_budget=budget)
        assert set(answers) == {request.bare for request in requests}
        for request, scores in answers.items():
            close(scores, whole[request])


def test_each_distinct_pair_is_forwarded_once() -> None:
    lm, encoder = tiny_lm(), tiny_encoder()
    asked = [Score(r.prompt, r.answer, frozenset(w)) for r in REQUESTS for w in ((), {"moments"}, {"rivals"})]
    answers, counts = scoring.score(lm, encoder, asked)
    assert (counts.asked, counts.distinct, counts.sequences) == (len(asked), len(REQUESTS), len(REQUESTS))
    assert all(scores.mean is not None and scores.rivals is not None for scores in answers.values())
    rows = [encoder.encode(r.prompt, r.answer) for r in REQUESTS]
    beginnings = {(row.ids[: row.prompt_length], row.ids[:i]) for row in rows for i in range(1, len(row.ids))}
    assert counts.forwarded_tokens == len(beginnings)  # behind each prompt, every beginning is computed once


def test_what_was_not_asked_for_is_not_kept() -> None:
    lm, encoder = tiny_lm(), tiny_encoder()
    answers, _ = scoring.score(lm, encoder, [Score("q", "a"), Score("q", "b", EXTRAS)])
    assert answers[Score("q", "a")].mean is None and answers[Score("q", "a")].rivals is None
    assert answers[Score("q", "b")].mean is not None and answers[Score("q", "b")].spans is not None


def test_spans_name_the_characters_of_each_token() -> None:
    lm, encoder = tiny_lm(), tiny_encoder()
    for prompt in ("q", ""):
        request = Score(prompt, "abc", EXTRAS)
        scores = scoring.score(lm, encoder, [request])[0][request.bare]
        assert scores.spans is not None
        assert scores.spans.tolist()[-4:] == [[0, 1], [1, 2], [2, 3], [3, 3]]


def test_a_float64_model_is_scored_in_float64() -> None:
    lm, encoder = tiny_lm(dtype=torch.float64), tiny_encoder()
    answers, _ = scoring.score(lm, encoder, REQUESTS)
    for request in REQUESTS:
        assert answers[request.bare].logp.dtype == np.float64
        close(answers[request.bare], plain(lm, encoder, request), 1e-11)


def test_low_precision_is_scored_in_float32() -> None:
    """B47: the logits of a bfloat16 model are cast before anything is computed from them."""
    exact, rough, encoder = tiny_lm(), tiny_lm(), tiny_encoder()
    for parameter in (*exact.parameters(), *rough.parameters()):
        parameter.data.mul_(0.1)  # calm logits, so that 8 bits of mantissa suffice
    rough.to(torch.bfloat16)
    a, b = (scoring.score(lm, encoder, REQUESTS)[0] for lm in (exact, rough))
    for request in REQUESTS:
        scores = b[request.bare]
        assert scores.logp.dtype == np.float32
        assert (scores.logp < 0).all()
        np.testing.assert_allclose(scores.logp, a[request.bare].logp, atol=2e-2)


def test_modes_are_restored_and_dropout_is_off() -> None:
    lm, encoder = tiny_lm("gpt2", resid_pdrop=0.5, embd_pdrop=0.5, attn_pdrop=0.5), tiny_encoder()
    lm.train()
    frozen = lm.layers[0]
    frozen.eval()
    before = {name: module.training for name, module in lm.named_modules()}
    first, second = (scoring.score(lm, encoder, REQUESTS)[0] for _ in range(2))
    assert {name: module.training for name, module in lm.named_modules()} == before
    for request in REQUESTS:
        assert (first[request.bare].logp == second[request.bare].logp).all()


def test_rows_without_a_token_are_dropped_and_named() -> None:
    """B04: an empty answer, and an answer longer than the maximum length; a long question is cut on its left."""
    lm, encoder = tiny_lm(), tiny_encoder(max_length=16)
    long_answer, long_question = Score("q", "a" * 40), Score("q" * 40, "ab")
    requests = [Score("q", ""), long_answer, long_question, Score("q", " "), Score("q", "ab")]
    answers, counts = scoring.score(lm, encoder, requests)
    assert counts.dropped == [("q", ""), ("q", "a" * 40)]
    assert counts.shortened_prompts == 1
    assert [len(answers[request]) for request in requests] == [0, 0, 3, 2, 3]
    alone, _ = scoring.score(lm, encoder, [Score("q", "ab")])
    np.testing.assert_allclose(answers[Score("q", "ab")].logp, alone[Score("q", "ab")].logp, rtol=1e-6)


def test_window_and_unknown_attention_take_the_other_path() -> None:
    lm, encoder = tiny_lm("mistral", sliding_window=8), tiny_encoder()
    answers, _ = scoring.score(lm, encoder, REQUESTS)  # longer than the window: no trees, the model's own mask
    for request in REQUESTS:
        close(answers[request.bare], plain(lm, encoder, request))
    lm.config._attn_implementation = "flash_attention_2"
    assert scoring.path_of(lm) == "plain"


def test_ties_go_to_the_first_token_as_in_generation() -> None:
    logits = torch.tensor([[1.0, 1.0, 0.0]])
    rows = torch.zeros(2, dtype=torch.long)
    found = scoring.token_scores(logits, rows, torch.tensor([0, 1]), frozenset())
    assert found["hit"].tolist() == [True, False]


def test_a_token_of_probability_zero_does_not_spoil_the_moments() -> None:
    logits = torch.tensor([[0.0, 0.0, -torch.inf]])
    found = scoring.token_scores(logits, torch.zeros(1, dtype=torch.long), torch.tensor([0]), frozenset({"moments"}))
    assert found["mean"][0] == pytest.approx(np.log(0.5))
    assert found["variance"][0] == pytest.approx(0)


def test_trees_share_beginnings_and_keep_branches_apart() -> None:
    sequences = [(0, (1, 2, 3, 4, 9), 2), (1, (1, 2, 3, 5, 9), 2), (2, (1, 2, 6, 9), 2), (3, (7, 8, 9), 1)]
    first, second = grow(sequences, limit=100)
    assert first.ids == [1, 2, 3, 4, 5, 6] and second.ids == [7, 8]
    assert first.depth == [0, 1, 2, 3, 3, 2]
    assert not first.chain and second.chain
    seen = (visibility([first], 7, torch.float32)[0, 0] == 0).int().tolist()
    assert seen == [
        [1, 0, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0, 0],
        [1, 1, 1, 1, 0, 0, 0],
        [1, 1, 1, 0, 1, 0, 0],
        [1, 1, 0, 0, 0, 1, 0],
        [0, 0, 0, 0, 0, 0, 1],
    ]
    assert [len(tree.ids) for tree in grow(sequences, limit=5)] == [5, 3, 2]
    assert grow(reversed(sequences), limit=100) == [first, second]
