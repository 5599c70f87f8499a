"""Encoded rows, padded to batches.

Masks are made from lengths, never by looking for the pad id, so a pad token that equals EOS or BOS does no harm.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

IGNORE = -100


@dataclass(frozen=True)
class Encoded:
    """The ids of one row, or of one window of a long text. Tokens from `prompt_length` on are the answer, EOS included.

    `row_id` is unique in a set of rows; the windows of a text are `id#1`, `id#2`, …, and `window` is their number.
    """

    row_id: str
    ids: tuple[int, ...]
    prompt_length: int
    cut: int = 0  #: tokens dropped to fit the maximum length
    window: int = 0

    @property
    def answer_length(self) -> int:
        """Answer tokens that can be predicted (the very first token of a text cannot)."""
        return len(self.ids) - max(self.prompt_length, 1)

    @property
    def source(self) -> str:
        """The id of the row this is, or is a window of."""
        return self.row_id.rpartition("#")[0] if self.window else self.row_id


@dataclass(frozen=True)
class Batch:
    """Rows padded to one length. B rows, T tokens, L the most answer tokens of a row.

    `labels` [B, T] holds the ids of supervised tokens and -100 elsewhere. Answer token l of row b is `targets[b, l]`
    and is predicted by the logits at `positions[b, l]`; `mask[b, l]` says that there is such a token.
    """

    input_ids: Tensor
    attention_mask: Tensor
    labels: Tensor
    positions: Tensor
    targets: Tensor
    mask: Tensor
    row_ids: tuple[str, ...] = ()
    position_ids: Tensor | None = None

    @classmethod
    def from_labels(
        cls, input_ids: Tensor, labels: Tensor, attention_mask: Tensor, row_ids: Sequence[str] = ()
    ) -> Batch:
        """Find the answer positions in labels; position 0 can be labelled but not predicted."""
        supervised = labels[:, 1:] != IGNORE
        width = max(1, int(supervised.sum(1).max()))
        order = supervised.to(torch.int8).sort(dim=1, descending=True, stable=True)
        positions, mask = order.indices[:, :width], order.values[:, :width].bool()
        targets = labels[:, 1:].gather(1, positions).masked_fill(~mask, 0)
        left_padded = bool((attention_mask[:, 0] == 0).any())
        position_ids = (attention_mask.cumsum(1) - 1).clamp(min=0) if left_padded else None
        return cls(input_ids, attention_mask, labels, positions, targets, mask, tuple(row_ids), position_ids)

    @property
    def lengths(self) -> Tensor:
        """Answer tokens per row that can be predicted (B,)."""
        return self.mask.sum(1)

    @property
    def label_counts(self) -> Tensor:
        """Labelled tokens per row before the shift (B,): one more than `lengths` when position 0 is labelled."""
        return (self.labels != IGNORE).sum(1)

    @property
    def tokens(self) -> int:
        """Real (unpadded) tokens."""
        return int(self.attention_mask.sum())

    def __len__(self) -> int:
        return self.input_ids.shape[0]

    def to(self, device: torch.device | str) -> Batch:
        """The batch on a device."""
        moved = {k: v.to(device) for k, v in vars(self).items() if isinstance(v, Tensor)}
        return replace(self, **moved)  # type: ignore[arg-type]


def collate(rows: Sequence[Encoded], pad_id: int, side: str = "right", attention: str = "lengths") -> Batch:
    """Pad encoded rows to a batch (`side`: right for training and scoring, left to test that it makes no difference).

    `attention`: `lengths` is right; `ids` hides every token that equals the pad token, a genuine EOS too when it pads,
    as OpenUnlearning's collator does.
    """
    longest = max(len(row.ids) for row in rows)
    input_ids = torch.full((len(rows), longest), pad_id)
    attention_mask = torch.zeros((len(rows), longest), dtype=torch.long)
    labels = torch.full((len(rows), longest), IGNORE)
    for i, row in enumerate(rows):
        start = longest - len(row.ids) if side == "left" else 0
        ids = torch.tensor(row.ids)
        input_ids[i, start : start + len(ids)] = ids
        attention_mask[i, start : start + len(ids)] = 1
        labels[i, start + row.prompt_length : start + len(ids)] = ids[row.prompt_length :]
    if attention == "ids":
        attention_mask = (input_ids != pad_id).long()
    return Batch.from_labels(input_ids, labels, attention_mask, [row.row_id for row in rows])
