"""Prompt and answer to ids and masks: the only place where text is encoded, and the collation of rows to batches.

Training, scoring, generation and membership inference all come here, so they see the same ids. Masks are made from
lengths, never by looking for the pad id, so a pad token that equals EOS or BOS does no harm.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from unlearnbench.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

IGNORE = -100


class Template(NamedTuple):
    """A framing in text: `before` prompt `after` `tag` answer, and `closing` when another question follows."""

    before: str = ""
    after: str = ""
    tag: str = ""
    closing: str = ""

    def question(self, prompt: str, solved: Iterable[tuple[str, str]] = ()) -> str:
        """The framed prompt up to `tag`, behind (question, answer) pairs framed alike."""
        shots = "".join(f"{self.before}{q}{self.after}{self.tag}{a}{self.closing}" for q, a in solved)
        return f"{shots}{self.before}{prompt}{self.after}"


#: Prompt framings by name. `chat` is the tokenizer's own chat template.
TEMPLATES: dict[str, Template] = {
    "plain": Template(),
    "question-answer": Template("Question: ", "\n", "Answer: ", "\n\n"),
    "llama-2": Template("[INST] ", " [/INST]", "", " "),
}

PROTOCOLS = ("ours", "tofu", "open-unlearning")


@dataclass(frozen=True)
class Encoded:
    """The ids of one row. Tokens from `prompt_length` on are the answer, its EOS included."""

    row_id: str
    ids: tuple[int, ...]
    prompt_length: int
    cut: int = 0  #: prompt tokens dropped on the left to fit the maximum length

    @property
    def answer_length(self) -> int:
        """Answer tokens that can be predicted (the very first token of a text cannot)."""
        return len(self.ids) - max(self.prompt_length, 1)


class Encoder:
    """Encode rows for one tokenizer.

    The protocol `ours` encodes prompt and answer separately and joins them, so that no merge crosses the boundary;
    exactly one BOS is in front when the tokenizer has one, EOS closes the answer and is supervised.
    `open-unlearning` and `tofu` encode the whole text at once, as those code bases do: a merge may cross the boundary,
    whose place is the length of the encoded prompt; a text too long is cut on its right. `tofu` supervises the
    template's tag (`Answer: `) too, and EOS only if there is room for it.
    `template`: `auto` (the tokenizer's chat template, else `question-answer`), `chat`, or a name of `TEMPLATES`.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, template: str = "auto", max_length: int = 512, protocol: str = "ours"
    ):
        if protocol not in PROTOCOLS:
            raise UserError(f"There is no encoding protocol '{protocol}'; {did_you_mean(protocol, PROTOCOLS)}")
        if template == "auto":
            template = "chat" if tokenizer.chat_template else "question-answer"
        if template not in ("chat", *TEMPLATES):
            raise UserError(
                f"There is no template '{template}'; {did_you_mean(template, ['auto', 'chat', *TEMPLATES])}"
            )
        if template == "chat" and not tokenizer.chat_template:
            raise UserError("The template 'chat' needs a tokenizer with a chat template; use 'question-answer'.")
        if tokenizer.eos_token_id is None:
            raise UserError("The tokenizer has no EOS token, which closes every answer; set `eos_token`.")
        self.tokenizer, self.template, self.max_length, self.protocol = tokenizer, template, max_length, protocol
        self.eos_id: int = tokenizer.eos_token_id
        pad = tokenizer.pad_token_id
        self.pad_id: int = self.eos_id if pad is None else pad
        self._known: dict[str, list[int]] = {}

    # -- text to ids -------------------------------------------------------------------------------------------

    def _ids(self, text: str) -> list[int]:
        # Markers of the template inside the data stay data: special tokens are not parsed out of a row's text.
        if text not in self._known:
            coded = self.tokenizer(text, add_special_tokens=False, split_special_tokens=True)
            self._known[text] = list(coded["input_ids"])
        return list(self._known[text])

    def _bos(self, ids: list[int]) -> list[int]:
        bos = self.tokenizer.bos_token_id
        if bos is None or (ids and ids[0] == bos):
            return ids
        return [bos, *ids]

    def prompt_ids(self, prompt: str, raw: bool = False) -> list[int]:
        """The framed prompt, ready for a continuation; `raw`: unframed; for an empty prompt only BOS (or nothing)."""
        if prompt == "":
            return self._bos([])
        if self.protocol != "ours":
            return self._whole(self._framed(prompt, raw), raw)
        if raw:
            return self._bos(self._ids(prompt))
        if self.template == "chat":
            before, after = self._chat_frame()
            return self._bos([*before, *self._ids(prompt), *after])
        return self._bos(self._ids(self._framed(prompt, raw)))

    def _framed(self, prompt: str, raw: bool, answer: str | None = None) -> str:
        """The prompt's text in its frame, up to where an answer starts, and the answer where one is given."""
        if not raw and self.template == "chat":
            turns = [{"role": "user", "content": prompt}]
            turns += [] if answer is None else [{"role": "assistant", "content": answer}]
            return self._rendered(turns, answer is None)
        template = Template() if raw else TEMPLATES[self.template]
        return template.question(prompt) + template.tag + (answer or "")

    def _rendered(self, turns: list[dict[str, str]], open_end: bool) -> str:
        text = self.tokenizer.apply_chat_template(
            turns, tokenize=False, add_generation_prompt=open_end, date_string="26 Jul 2024"
        )
        return str(text)

    def _chat_frame(self) -> tuple[list[int], list[int]]:
        """The ids the chat template puts before and after a user's text."""
        if not hasattr(self, "_frame"):
            hole = "\u2766hole\u2766"
            text = self._rendered([{"role": "user", "content": hole}], True)
            if text.count(hole) != 1:
                raise UserError(
                    "The chat template does not repeat the user's text exactly once; name another template."
                )
            parts = (self.tokenizer(part, add_special_tokens=False)["input_ids"] for part in text.split(hole))
            before, after = (list(part) for part in parts)
            self._frame = (before, after)
        return self._frame

    def answer_ids(self, answer: str) -> list[int]:
        """The answer and the EOS that closes it; nothing for an empty answer."""
        ids = self._ids(answer)
        return [*ids, self.eos_id] if ids else []

    def spans(self, prompt: str, answer: str, raw: bool = False) -> list[tuple[int, int]] | None:
        """Characters [start, end) of `answer` behind each answer token; EOS stands at its end. None: not known."""
        if not self.tokenizer.is_fast:
            return None
        joint = self.protocol != "ours"
        text = self._framed(prompt, raw, answer) if joint else answer
        coded = self.tokenizer(
            text,
            add_special_tokens=joint and self._adds_specials(raw),
            split_special_tokens=not joint,
            return_offsets_mapping=True,
        )
        shift = text.rfind(answer) if joint else 0
        pairs = [(int(start) - shift, int(end) - shift) for start, end in coded["offset_mapping"]]
        row = self.encode(prompt, answer, raw=raw)
        clipped = [(min(max(s, 0), len(answer)), min(max(e, 0), len(answer))) for s, e in pairs]
        clipped = clipped[row.prompt_length :] if joint else clipped
        return [*clipped, *[(len(answer), len(answer))] * (len(row.ids) - row.prompt_length - len(clipped))]

    def encode(self, prompt: str, answer: str, row_id: str = "", raw: bool = False) -> Encoded:
        """One row. A prompt too long for `max_length` is cut on its left, after BOS; the answer never is."""
        if self.protocol != "ours":
            return self._encode_jointly(prompt, answer, row_id, raw)
        before, after = self.prompt_ids(prompt, raw), self.answer_ids(answer)
        room = self.max_length - len(after)
        cut = max(0, len(before) - room)
        if room < 1 and after:
            raise UserError(
                f"The answer of row '{row_id}' has {len(after)} tokens; max_length {self.max_length} leaves no room."
            )
        if cut:
            keep = before[:1] if before[0] == self.tokenizer.bos_token_id else []
            before = [*keep, *before[cut + len(keep) :]]
        return Encoded(row_id, (*before, *after), len(before), cut)

    def _encode_jointly(self, prompt: str, answer: str, row_id: str, raw: bool) -> Encoded:
        ids = self._whole(self._framed(prompt, raw, answer), raw)[: self.max_length]
        tofu = self.protocol == "tofu" and not raw and self.template != "chat"
        before = TEMPLATES[self.template].question(prompt) if tofu else self._framed(prompt, raw)
        if ids[-1:] != [self.eos_id] and not (self.protocol == "tofu" and len(ids) >= self.max_length):
            ids.append(self.eos_id)
        return Encoded(row_id, tuple(ids), min(len(self._whole(before, raw)), len(ids)) if prompt else 0)

    def _whole(self, text: str, raw: bool = False) -> list[int]:
        """The ids of a whole text with the special tokens the tokenizer adds (a chat template brings its own)."""
        return list(self.tokenizer(text, add_special_tokens=self._adds_specials(raw))["input_ids"])

    def _adds_specials(self, raw: bool) -> bool:
        return raw or self.template != "chat"

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, without special tokens."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False))

    @property
    def fingerprint(self) -> str:
        """A hash of all that decides the ids: tokenizer, template, maximum length, protocol. Part of every key."""
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        vocabulary = backend.to_str() if backend is not None else json.dumps(self.tokenizer.get_vocab(), sort_keys=True)
        parts = [vocabulary, self.template, str(self.max_length), self.protocol, str(self.tokenizer.chat_template)]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


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


def supervised(rows: Iterable[Encoded]) -> tuple[list[Encoded], list[str]]:
    """Rows with something to learn, and the ids of the rows without, which are left out everywhere."""
    kept, dropped = [], []
    for row in rows:
        if row.answer_length > 0:
            kept.append(row)
        else:
            dropped.append(row.row_id)
    return kept, dropped
