"""The forward engine: token log-probabilities of answers behind prompts, each distinct pair computed once.

Sequences with a common prompt form a token tree (`trees`), which is one row of a batch; the output head runs at the
answer positions only and piece by piece. Which path is taken is fixed by the architecture and the attention kind
(`path_of`) and recorded. The order of the requests, their batch and their neighbours do not change a value.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unlearnbench.errors import UserError
from unlearnbench.language_model import LanguageModel, Reader, evaluating
from unlearnbench.requests import RIVALS, Score, TokenScores
from unlearnbench.text import Encoded, Encoder
from unlearnbench.trees import Tree, grow, visibility

TOKEN_BUDGET = 2048  #: tokens (padding included) of one forward pass on a CPU
TREE_LIMIT = 512  #: tokens of one tree: attention over a tree is quadratic in it
PIECE = 1 << 23  #: logits held at a time on a CPU (32 MiB); a matrix product of few rows is slow
ACCELERATOR = 16  #: on an accelerator all of these budgets are so many times larger

#: Architectures on which a 4-D mask with position ids was found equal to plain scoring.
TREES_WORK = frozenset({"llama", "mistral", "qwen2", "qwen3", "gpt2", "gpt_neox", "phi3"})


@dataclass
class Counts:
    """What scoring cost: how much was asked, what was left after removing duplicates, what was computed."""

    asked: int = 0
    distinct: int = 0
    sequences: int = 0  #: distinct (prompt, answer) pairs that were forwarded
    answer_tokens: int = 0
    forwarded_tokens: int = 0  #: tokens fed to the decoder, without padding
    padded_tokens: int = 0
    batches: int = 0
    path: str = ""
    shortened_prompts: int = 0
    dropped: list[tuple[str, str]] = field(default_factory=list)  #: (prompt, answer) with nothing to score

    def as_dict(self) -> dict[str, Any]:
        return {**vars(self), "dropped": [list(pair) for pair in self.dropped]}


def path_of(lm: LanguageModel) -> str:
    """`tree` or `plain`, by architecture and attention kind alone."""
    attention = getattr(lm.config, "_attn_implementation", None)
    known = lm.head_path == "positions" and lm.config.model_type in TREES_WORK
    return "tree" if known and attention in ("sdpa", "eager") else "plain"


def roominess(lm: LanguageModel) -> int:
    """The factor of the budgets on the model's device."""
    return 1 if lm.device.type == "cpu" else ACCELERATOR


def score(
    lm: LanguageModel, encoder: Encoder, requests: Sequence[Score], token_budget: int | None = None
) -> tuple[dict[Score, TokenScores], Counts]:
    """Answer every request; the keys are the requests without their `want`, which are joined where they differ."""
    wants: dict[Score, frozenset[str]] = {}
    for request in requests:
        wants[request.bare] = wants.get(request.bare, frozenset()) | request.want
    budget = token_budget or TOKEN_BUDGET * roominess(lm)
    counts = Counts(asked=len(requests), distinct=len(wants), path=path_of(lm))
    distinct = list(wants)
    coded = [_encode(encoder, request, counts) for request in distinct]
    window = getattr(lm.config, "sliding_window", None) or np.inf
    scores: list[TokenScores] = [TokenScores(np.zeros(0), np.zeros(0, bool))] * len(distinct)

    sequences = [(i, row.ids, max(row.prompt_length, 1)) for i, row in enumerate(coded) if row is not None]
    counts.sequences = len(sequences)
    fits = all(len(ids) <= window for _, ids, _ in sequences)
    trees = grow(sequences, TREE_LIMIT if counts.path == "tree" and fits else 0)
    extras = [frozenset().union(*(wants[distinct[b.key]] for b in tree.branches)) - {"spans"} for tree in trees]
    ordered = sorted(zip(extras, trees, strict=True), key=lambda x: (sorted(x[0]), -len(x[1].ids), x[1].ids))
    with evaluating(lm, inference=True):
        for wanted, batch in _batches(ordered, budget):
            for key, scored in _forward(lm, encoder, batch, wanted, counts):
                scores[key] = scored
    answers = {}
    for request, row, scored in zip(distinct, coded, scores, strict=True):
        asked = "spans" in wants[request] and row is not None
        spans = encoder.spans(request.prompt, request.answer, request.raw) if asked else None
        if spans is not None:
            scored = replace(scored, spans=np.array(spans[len(spans) - len(scored) :], np.int32).reshape(-1, 2))
        if "moments" not in wants[request]:
            scored = replace(scored, mean=None, variance=None)
        if "rivals" not in wants[request]:
            scored = replace(scored, rivals=None)
        answers[request] = scored
    return answers, counts


def _encode(encoder: Encoder, request: Score, counts: Counts) -> Encoded | None:
    try:
        row = encoder.encode(request.prompt, request.answer, raw=request.raw)
    except UserError:  # the answer alone is longer than the maximum length
        row = None
    if row is None or row.answer_length < 1:
        counts.dropped.append((request.prompt, request.answer))
        return None
    counts.shortened_prompts += row.cut > 0
    counts.answer_tokens += row.answer_length
    return row


def _batches(
    ordered: Sequence[tuple[frozenset[str], Tree]], budget: int
) -> Iterator[tuple[frozenset[str], list[Tree]]]:
    """Neighbours in length that want the same, up to `budget` padded tokens; a longer tree goes alone."""
    for wanted, group in itertools.groupby(ordered, key=lambda pair: pair[0]):
        batch: list[Tree] = []
        for _, tree in group:
            if batch and (len(batch) + 1) * len(batch[0].ids) > budget:
                yield wanted, batch
                batch = []
            batch.append(tree)
        yield wanted, batch


def _forward(
    lm: LanguageModel, encoder: Encoder, trees: list[Tree], extras: frozenset[str], counts: Counts
) -> Iterator[tuple[int, TokenScores]]:
    width, device = len(trees[0].ids), lm.device
    input_ids = torch.full((len(trees), width), encoder.pad_id)
    for row, tree in zip(input_ids, trees, strict=True):
        row[: len(tree.ids)] = torch.tensor(tree.ids)
    counts.batches += 1
    counts.forwarded_tokens += sum(len(tree.ids) for tree in trees)
    counts.padded_tokens += input_ids.numel()

    position_ids = None
    if any(not tree.chain for tree in trees):
        mask = visibility(trees, width, lm.model.get_input_embeddings().weight.dtype)
        position_ids = torch.zeros_like(input_ids)
        for row, tree in zip(position_ids, trees, strict=True):
            row[: len(tree.depth)] = torch.tensor(tree.depth)
        position_ids = position_ids.to(device)
    else:  # padding stands on the right, where causal attention never looks
        mask = torch.ones_like(input_ids)
        if counts.path == "plain":
            for row, tree in zip(mask, trees, strict=True):
                row[len(tree.ids) :] = 0

    index = torch.cat([torch.arange(b * width + t.heads, b * width + len(t.ids)) for b, t in enumerate(trees)])
    firsts = np.cumsum([0] + [len(t.ids) - t.heads for t in trees])
    branches = [
        (first - tree.heads, branch) for first, tree in zip(firsts, trees, strict=False) for branch in tree.branches
    ]
    slots = np.concatenate([np.asarray(branch.nodes) + shift for shift, branch in branches])
    targets = np.concatenate([np.asarray(branch.targets) for _, branch in branches])
    collected = read_logits(lm, input_ids.to(device), mask.to(device), position_ids, index, slots, targets, extras)
    ends = np.cumsum([len(branch.nodes) for _, branch in branches])
    for end, (_, branch) in zip(ends, branches, strict=True):
        yield branch.key, TokenScores(**{name: v[end - len(branch.nodes) : end] for name, v in collected.items()})


def read_logits(
    lm: LanguageModel,
    input_ids: Tensor,
    mask: Tensor,
    position_ids: Tensor | None,
    index: Tensor,
    slots: np.ndarray,
    targets: np.ndarray,
    extras: frozenset[str],
) -> dict[str, np.ndarray]:
    """One forward pass. Target e (E,) is predicted at flat position `index[slots[e]]`; arrays (E, …) come back."""
    order = np.argsort(slots, kind="stable")
    sorted_slots, sorted_targets = slots[order], torch.from_numpy(targets[order]).to(lm.device)
    pieces: list[dict[str, np.ndarray]] = []

    def read(logits: Tensor, first: int) -> None:
        low, high = np.searchsorted(sorted_slots, [first, first + len(logits)])
        rows = torch.from_numpy(sorted_slots[low:high] - first).to(logits.device)
        pieces.append(token_scores(logits, rows, sorted_targets[low:high], extras))

    vocabulary = int(lm.config.get_text_config(decoder=True).vocab_size)
    piece = max(1, PIECE * roominess(lm) // vocabulary)
    lm(input_ids, mask, position_ids, reader=Reader(index.to(lm.device), read, piece))
    back = np.argsort(order, kind="stable")
    return {name: np.concatenate([piece[name] for piece in pieces])[back] for name in pieces[0]}


def token_scores(logits: Tensor, rows: Tensor, targets: Tensor, extras: frozenset[str]) -> dict[str, np.ndarray]:
    """What is asked about `targets` (E,), predicted by `logits[rows]`, from logits [n, V] in float32 or better."""
    norm = logits.logsumexp(-1)
    best = logits.argmax(-1)
    found = {"logp": logits[rows, targets] - norm[rows], "hit": best[rows] == targets}
    if "moments" in extras:
        logp = logits - norm[:, None]
        p = logp.exp()
        weighted = torch.where(p > 0, p * logp, 0)  # a token of probability 0 adds nothing, even at -inf
        mean = weighted.sum(-1)
        variance = torch.where(p > 0, p * (logp - mean[:, None]) ** 2, 0).sum(-1)
        found |= {"mean": mean[rows], "variance": variance[rows]}
    if "rivals" in extras:
        top = logits.topk(min(RIVALS + 1, logits.shape[-1]), dim=-1)
        own = top.indices[rows] == targets[:, None]
        rivals = (top.values - norm[:, None])[rows].masked_fill(own, -torch.inf)
        found["rivals"] = rivals.sort(dim=-1, descending=True).values[:, : top.indices.shape[1] - 1]
    return {name: value.cpu().numpy() for name, value in found.items()}
