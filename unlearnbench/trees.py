"""Token trees: sequences that begin alike are computed once.

A tree holds one prompt and all the answers asked for behind it, in depth-first order. A token may look at its
ancestors only; its position is its depth. Because the order is depth-first, the descendants of token k are exactly
k+1 … end[k]-1, so `end` alone says who sees whom: q sees k iff k <= q < end[k].
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass
class Branch:
    """One answer in a tree: its token l is predicted at node `nodes[l]` and is `targets[l]`."""

    key: int
    nodes: list[int]
    targets: Sequence[int]


@dataclass
class Tree:
    """Tokens of sequences with a common prompt. The last token of a sequence is only predicted and never fed."""

    prompt_length: int
    ids: list[int] = field(default_factory=list)
    depth: list[int] = field(default_factory=list)
    end: list[int] = field(default_factory=list)
    branches: list[Branch] = field(default_factory=list)

    @property
    def chain(self) -> bool:
        """Without a fork: plain causal attention is right."""
        return not self.depth or self.depth[-1] == len(self.depth) - 1

    @property
    def heads(self) -> int:
        """The first node at which something is predicted; all nodes from there on predict."""
        return self.prompt_length - 1


def grow(sequences: Iterable[tuple[int, tuple[int, ...], int]], limit: int) -> list[Tree]:
    """Trees from (key, ids, prompt length >= 1), each of at most `limit` tokens unless one sequence is longer.

    The trees depend on the set of sequences only, not on their order.
    """
    trees: list[Tree] = []
    tree, path, last = Tree(0), [], ()  # type: tuple[Tree, list[int], tuple[int, ...]]
    for key, ids, start in sorted(sequences, key=lambda s: (s[1][: s[2]], s[1][s[2] :])):
        fed = ids[:-1]
        shared = _common(fed, last) if trees and tree.prompt_length == start and ids[:start] == last[:start] else 0
        if shared == 0 or len(tree.ids) + len(fed) - shared > limit:
            if trees:
                _close(tree, path, 0)
            tree, path, shared = Tree(start), [], 0
            trees.append(tree)
        _close(tree, path, shared)
        first = len(tree.ids)
        path = path[:shared] + list(range(first, first + len(fed) - shared))
        tree.ids.extend(fed[shared:])
        tree.depth.extend(range(shared, len(fed)))
        tree.end.extend([0] * (len(fed) - shared))
        tree.branches.append(Branch(key, path[start - 1 :], ids[start:]))
        last = fed
    if trees:
        _close(tree, path, 0)
    return trees


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    n = min(len(a), len(b))
    for i in range(n):
        if a[i] != b[i]:
            return i
    return n


def _close(tree: Tree, path: list[int], keep: int) -> None:
    """Nothing more will hang below the nodes of `path` from `keep` on."""
    for node in path[keep:]:
        tree.end[node] = len(tree.ids)


def visibility(trees: Sequence[Tree], width: int, dtype: torch.dtype) -> Tensor:
    """The additive 4-D attention mask [B, 1, T, T]: 0 where q sees k. Padding sees itself only."""
    end = torch.arange(1, width + 1).repeat(len(trees), 1)
    for row, tree in zip(end, trees, strict=True):
        row[: len(tree.end)] = torch.tensor(tree.end)
    at = torch.arange(width)
    seen = (at <= at[:, None]) & (at[:, None] < end[:, None, :])
    return torch.zeros(seen.shape, dtype=dtype).masked_fill_(~seen, torch.finfo(dtype).min)[:, None]
