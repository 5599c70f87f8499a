"""Continuations, greedy or sampled: left padded, sorted by length, finished rows dropped, stopped at every EOS.

Greedy decoding starts behind what is already known: when scoring has shown that the first h tokens of a reference
answer are what the model says anyway, generation begins at h. The text is the same, the work is not.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import Cache, DynamicCache
from transformers.cache_utils import DynamicLayer

from unlearnbench.errors import UserError
from unlearnbench.language_model import LanguageModel, evaluating
from unlearnbench.requests import Generate, Sample, Text
from unlearnbench.scoring import TREES_WORK, roominess
from unlearnbench.text import Encoder

CACHE_BYTES = 256 * 2**20  #: room for keys and values of one batch on a CPU
DROP_BELOW = 0.75  #: a batch is compacted when fewer of its rows are still running


@dataclass
class Prompt:
    """A row to continue: `known` new tokens are given; `uniforms` (max_new,) in [0, 1) when it is sampled."""

    ids: list[int]
    max_new: int
    known: tuple[int, ...] = ()
    uniforms: np.ndarray | None = None
    temperature: float = 1.0
    expected: int = 0  #: about how many tokens will come; rows that end together run together

    @property
    def length(self) -> int:
        return len(self.ids) + len(self.known)


def path_of(lm: LanguageModel) -> str:
    """`own` (our loop) or `transformers` (recurrent, sliding-window and unknown architectures): a fixed rule."""
    attention = getattr(lm.config, "_attn_implementation", None)
    windowed = getattr(lm.config, "sliding_window", None) and getattr(lm.config, "use_sliding_window", True)
    return (
        "own"
        if lm.config.model_type in TREES_WORK and attention in ("sdpa", "eager") and not windowed
        else "transformers"
    )


def stop_ids(lm: LanguageModel, encoder: Encoder) -> frozenset[int]:
    """The tokens that end a text: the tokenizer's EOS and all of the generation config."""
    configured = getattr(getattr(lm.hf, "generation_config", None), "eos_token_id", None)
    listed = configured if isinstance(configured, (list, tuple)) else [configured]
    return frozenset([encoder.eos_id, *(i for i in listed if i is not None)])


def generate(
    lm: LanguageModel,
    encoder: Encoder,
    requests: Sequence[Generate],
    drafts: Mapping[tuple[str, bool], tuple[tuple[int, ...], int]] | None = None,
    cache_bytes: int | None = None,
) -> dict[Generate, Text]:
    """Greedy texts. `drafts`: (prompt, raw) -> the first tokens the model is known to say, and the length to expect."""
    rows: dict[tuple[int, ...], Prompt] = {}  # a shorter text is the beginning of a longer one
    fitted, stops = {}, stop_ids(lm, encoder)
    for request in dict.fromkeys(requests):
        known, expected = (drafts or {}).get((request.prompt, request.raw), ((), 0))
        fitted[request] = ids = tuple(_fit(lm, encoder, request))
        if len(ids) < len(encoder.prompt_ids(request.prompt, request.raw)):
            known = ()  # what was found behind the whole prompt does not hold behind a part of it
        ends = [i + 1 for i, token in enumerate(known) if token in stops]
        known = known[: ends[0]] if ends else known  # an answer may hold a token that ends a text
        longest = max(request.max_new_tokens, rows[ids].max_new if ids in rows else 0)
        rows[ids] = Prompt(list(ids), longest, known[:longest], None, 1.0, expected)
    new = dict(zip(rows, run(lm, encoder, list(rows.values()), cache_bytes), strict=True))
    return {request: _text(encoder, new[ids][: request.max_new_tokens], stops) for request, ids in fitted.items()}


def sample(
    lm: LanguageModel, encoder: Encoder, requests: Sequence[Sample], cache_bytes: int | None = None
) -> dict[Sample, tuple[Text, ...]]:
    """`n` sampled texts per request. Every sample has its own random numbers, fixed by the request and its place."""
    distinct = list(dict.fromkeys(requests))
    rows = [
        Prompt(_fit(lm, encoder, r), r.max_new_tokens, (), _uniforms(r, i), r.temperature)
        for r in distinct
        for i in range(r.n)
    ]
    stops = stop_ids(lm, encoder)
    texts = iter(_text(encoder, new, stops) for new in run(lm, encoder, rows, cache_bytes))
    return {request: tuple(next(texts) for _ in range(request.n)) for request in distinct}


def sample_texts(
    lm: LanguageModel,
    encoder: Encoder,
    prompts: Sequence[str],
    n: int = 1,
    max_new_tokens: int = 128,
    temperature: float = 1.0,
    seed: int = 0,
) -> list[list[str]]:
    """`n` texts for each prompt; temperature 0 is greedy. A prompt that stands twice gets the same texts twice."""
    if temperature == 0:
        greedy = generate(lm, encoder, [Generate(prompt, max_new_tokens) for prompt in prompts])
        return [[greedy[Generate(prompt, max_new_tokens)].text] * n for prompt in prompts]
    requests = [Sample(prompt, n, max_new_tokens, temperature, seed) for prompt in prompts]
    answers = sample(lm, encoder, requests)
    return [[text.text for text in answers[request]] for request in requests]


def _fit(lm: LanguageModel, encoder: Encoder, request: Generate | Sample) -> list[int]:
    """The prompt's ids, cut on the left after BOS when prompt and continuation would not fit the model's positions."""
    ids = encoder.prompt_ids(request.prompt, request.raw)
    room = (getattr(lm.config, "max_position_embeddings", None) or 10**9) - request.max_new_tokens
    if room < 1:
        raise UserError(
            f"max_new_tokens {request.max_new_tokens} leaves no room for a prompt: the model has "
            f"{lm.config.max_position_embeddings} positions."
        )
    if len(ids) <= room:
        return ids
    keep = ids[:1] if ids[0] == encoder.tokenizer.bos_token_id and room > 1 else []
    return [*keep, *ids[len(ids) - room + len(keep) :]]


def _uniforms(request: Sample, index: int) -> np.ndarray:
    name = f"{request.seed}\0{index}\0{request.prompt}".encode()
    seed = int.from_bytes(hashlib.sha256(name).digest()[:8], "little")
    return np.random.default_rng(seed).random(request.max_new_tokens)


def run(lm: LanguageModel, encoder: Encoder, rows: Sequence[Prompt], cache_bytes: int | None = None) -> list[list[int]]:
    """The new tokens of every row, the one that stopped it included; order and batch of the rows do not matter."""
    stops = stop_ids(lm, encoder)
    ids: list[list[int]] = [[] for _ in rows]
    waiting = []
    for i, row in enumerate(rows):
        ids[i] = list(row.known)
        if len(row.known) < row.max_new and not (row.known and row.known[-1] in stops):
            waiting.append(i)
    waiting.sort(key=lambda i: (-(rows[i].expected or rows[i].max_new), -rows[i].length, rows[i].ids))
    per_token = _bytes_per_token(lm)
    room = cache_bytes or CACHE_BYTES * roominess(lm)
    path = path_of(lm)
    with evaluating(lm, inference=True):
        while waiting:
            size, longest = 0, 0
            while size < len(waiting):
                row = rows[waiting[size]]
                longest = max(longest, len(row.ids) + row.max_new)
                if size and (size + 1) * longest * per_token > room:
                    break
                size += 1
            batch, waiting = waiting[:size], waiting[size:]
            step = _continue if path == "own" else _continue_by_transformers
            for i, new in zip(batch, step(lm, encoder, [rows[i] for i in batch], stops), strict=True):
                ids[i].extend(new)
    return ids


def _bytes_per_token(lm: LanguageModel) -> int:
    config = lm.config.get_text_config(decoder=True)
    heads = config.num_attention_heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    size = lm.model.get_input_embeddings().weight.element_size()
    return int(2 * config.num_hidden_layers * kv_heads * head_dim * size)


def _text(encoder: Encoder, new: list[int], stops: frozenset[int]) -> Text:
    ended = bool(new) and new[-1] in stops
    body = new[:-1] if ended else new
    return Text(encoder.decode(body), len(body), ended)


# -- the loop --------------------------------------------------------------------------------------------------


class GrowingLayer(DynamicLayer):  # type: ignore[no-untyped-call]
    """Keys and values in buffers with room to spare, so that a step writes its tokens and copies nothing."""

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self._room = (key_states.new_empty(0), value_states.new_empty(0))
        before = self.get_seq_length()
        after = before + key_states.shape[-2]
        if self._room[0].numel() == 0 or after > self._room[0].shape[-2]:
            capacity = after + max(16, after // 2)
            old, self._room = (self.keys, self.values), (_room(key_states, capacity), _room(value_states, capacity))
            if before:
                for room, kept in zip(self._room, old, strict=True):
                    room[:, :, :before].copy_(kept)  # type: ignore[arg-type]
        for room, new in zip(self._room, (key_states, value_states), strict=True):
            room[:, :, before:after] = new
        self.keys, self.values = (room[:, :, :after] for room in self._room)
        return self.keys, self.values

    def batch_select_indices(self, indices: Tensor) -> None:
        length = self.get_seq_length()
        self._room = (self._room[0][indices], self._room[1][indices])
        self.keys, self.values = (room[:, :, :length] for room in self._room)


def _room(like: Tensor, capacity: int) -> Tensor:
    return like.new_empty((*like.shape[:2], capacity, like.shape[3]))


def _continue(lm: LanguageModel, encoder: Encoder, rows: list[Prompt], stops: frozenset[int]) -> list[list[int]]:
    device = lm.device
    width = max(row.length for row in rows)
    room = max(row.max_new - len(row.known) for row in rows)
    input_ids = torch.full((len(rows), width), encoder.pad_id)
    mask = torch.zeros((len(rows), width + room), dtype=torch.long)
    for i, row in enumerate(rows):
        start = width - row.length
        input_ids[i, start:] = torch.tensor([*row.ids, *row.known])
        mask[i, start:] = 1
    position_ids = (mask[:, :width].cumsum(1) - 1).clamp(min=0)
    mask, input_ids, position_ids = mask.to(device), input_ids.to(device), position_ids.to(device)
    dtype = lm.model.get_input_embeddings().weight.dtype
    padded = bool((mask == 0).any())
    hidden_by = torch.zeros(mask.shape, dtype=dtype, device=device)
    hidden_by = hidden_by.masked_fill_(mask == 0, torch.finfo(dtype).min)[:, None, None, :]

    cache = Cache(layer_class_to_replicate=GrowingLayer)
    named = "cache" if "cache" in inspect.signature(lm.model.forward).parameters else "past_key_values"
    choose = _chooser(rows, device)
    stop = torch.tensor(sorted(stops), device=device)
    live = list(range(len(rows)))
    new: list[list[int]] = [[] for _ in rows]
    attention: Tensor | None = mask[:, :width]
    for step in range(room):
        out = lm.hf(
            input_ids=input_ids,
            attention_mask=attention,
            position_ids=position_ids,
            use_cache=True,
            logits_to_keep=1,
            **{named: cache},
        )
        chosen = choose(out.logits[:, -1], live, step)
        stopped = torch.isin(chosen, stop).tolist()
        running = []
        for at, (i, token, end) in enumerate(zip(live, chosen.tolist(), stopped, strict=True)):
            if len(new[i]) + len(rows[i].known) < rows[i].max_new and not (new[i] and new[i][-1] in stops):
                new[i].append(token)
                if not end and len(new[i]) + len(rows[i].known) < rows[i].max_new:
                    running.append(at)
        if not running:
            break
        if len(running) <= DROP_BELOW * len(live):
            kept = torch.tensor(running, device=device)
            cache.batch_select_indices(kept)
            live = [live[at] for at in running]
            chosen, position_ids, hidden_by = chosen[kept], position_ids[kept], hidden_by[kept]
        input_ids = chosen[:, None]
        position_ids = position_ids[:, -1:] + 1
        attention = hidden_by[..., : width + step + 1] if padded else None
    return new


def _chooser(rows: list[Prompt], device: torch.device) -> Callable[[Tensor, list[int], int], Tensor]:
    """logits [B, V] of rows `live` at a step -> tokens (B,): the likeliest, or the one its uniform number falls on."""
    if rows[0].uniforms is None:
        return lambda logits, live, step: logits.argmax(-1)
    temperature = torch.tensor([row.temperature for row in rows], dtype=torch.float64, device=device)
    numbers = np.zeros((len(rows), max(row.max_new for row in rows)))
    for line, row in zip(numbers, rows, strict=True):
        line[: row.max_new] = row.uniforms
    uniforms = torch.from_numpy(numbers).to(device)

    def pick(logits: Tensor, live: list[int], step: int) -> Tensor:
        at = torch.tensor(live, device=device)
        edges = torch.softmax(logits.double() / temperature[at, None], dim=-1).cumsum(-1)
        found = torch.searchsorted(edges, (uniforms[at, step] * edges[:, -1])[:, None], right=True)
        return found[:, 0].clamp(max=logits.shape[-1] - 1)

    return pick


def _continue_by_transformers(
    lm: LanguageModel, encoder: Encoder, rows: list[Prompt], stops: frozenset[int]
) -> list[list[int]]:
    """The same row by row with the architecture's own kind of state; without one, the whole text at each step."""
    new: list[list[int]] = []
    known = inspect.signature(lm.model.forward).parameters
    named = next((name for name in ("cache", "past_key_values") if name in known), None)
    for row in rows:
        choose = _chooser([row], lm.device)
        ids = [*row.ids, *row.known]
        state: dict[str, Any] = {named: DynamicCache(config=lm.config)} if named else {}
        tokens: list[int] = []
        for step in range(row.max_new - len(row.known)):
            fed = ids if step == 0 or not named else ids[-1:]
            out = lm.hf(input_ids=torch.tensor([fed], device=lm.device), use_cache=bool(named), **state)
            ids.append(int(choose(out.logits[:, -1], [0], step)[0]))
            tokens.append(ids[-1])
            if ids[-1] in stops:
                break
        new.append(tokens)
    return new
