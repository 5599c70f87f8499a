"""Prompt and answer to ids: the only place where text is encoded.

Training, scoring, generation and membership inference all come here, so they see the same ids.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from unlearnbench.batch import IGNORE, Batch, Encoded, collate
from unlearnbench.errors import UserError, did_you_mean
from unlearnbench.templates import CHAT_STYLES, TEMPLATES, ChatStyle, Template, render

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from unlearnbench.benchmarks.base import Row

__all__ = ["IGNORE", "PROTOCOLS", "TEMPLATES", "Batch", "Coded", "Encoded", "Encoder", "Template", "collate"]

PROTOCOLS = ("ours", "tofu", "open-unlearning", "muse")
VERSION = 1  #: of the encoding: goes up when a change here changes ids


@dataclass
class Coded:
    """Rows ready for training, and what became of the others. Every entry is a row id."""

    rows: list[Encoded] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)  #: without a token to supervise: left out everywhere
    cut: dict[str, int] = field(default_factory=dict)  #: tokens dropped to fit the maximum length
    windows: dict[str, int] = field(default_factory=dict)  #: pieces of a text longer than the maximum length

    def notes(self, what: str = "rows") -> list[str]:
        """One line for each thing worth knowing; nothing when every row came through whole."""
        lines = []
        if self.dropped:
            lines.append(f"{what} without an answer token, left out: {', '.join(self.dropped)}")
        if self.cut:
            total = sum(self.cut.values())
            lines.append(
                f"{what} shortened to fit max_length: {len(self.cut)}, by {total} tokens: {', '.join(self.cut)}"
            )
        return lines


class Encoder:
    """Encode rows for one tokenizer.

    The protocol `ours` encodes prompt and answer separately and joins them, so that no merge crosses the boundary;
    exactly one BOS is in front when the tokenizer has one, EOS closes the answer and is supervised, and a prompt too
    long is cut on its left.

    The others encode the whole text at once, as those code bases do: a merge may cross the boundary, whose place is the
    length of the encoded prompt, a text too long is cut on its right, and markers of special tokens inside the data are
    parsed. `open-unlearning` closes answers with EOS, but not texts. `tofu` supervises the template's tag (`Answer: `)
    too, generates it, and supervises EOS only if there is room for it. `muse` adds no EOS, and labels the first token
    of a text too.

    A text (an empty prompt) is never framed; one longer than `max_length` is cut into windows of tokens.
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
        self.style = CHAT_STYLES.get(protocol, ChatStyle())
        self.eos_id: int = tokenizer.eos_token_id
        pad = tokenizer.pad_token_id
        self.pad_id: int = self.eos_id if pad is None else pad
        self._known: dict[str, list[int]] = {}

    # -- rows --------------------------------------------------------------------------------------------------

    def rows(self, rows: Iterable[Row]) -> Coded:
        """All that training sees of `rows`: texts in windows, and a record of what was dropped or cut."""
        coded = Coded()
        for row in rows:
            if row.prompt:
                pieces = [self.encode(row.prompt, row.answer, row.id)]
            else:
                pieces = self.windows(row.answer, row.id)
            kept = [piece for piece in pieces if piece.answer_length > 0]
            coded.rows += kept
            if not kept:
                coded.dropped.append(row.id)
            if len(pieces) > 1:
                coded.windows[row.id] = len(pieces)
            elif pieces[0].cut:
                coded.cut[row.id] = pieces[0].cut
        return coded

    def encode(self, prompt: str, answer: str, row_id: str = "", raw: bool = False) -> Encoded:
        """One row. A prompt too long for `max_length` is cut on its left, after BOS; the answer never is.

        Of a text longer than `max_length` the first window. `raw`: the prompt is not framed.
        """
        if prompt == "":
            first, *rest = self.windows(answer, row_id)
            lost = sum(len(window.ids) - len(self._bos([])) for window in rest)
            return replace(first, row_id=row_id, window=0, cut=lost)
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

    def windows(self, text: str, row_id: str = "") -> list[Encoded]:
        """A text as windows of at most `max_length` tokens, each behind BOS; the last one may be shorter and is kept.

        The text is encoded once and its ids are cut, so that no window is decoded and encoded again. (MUSE fills the
        last window with the beginning of the first; OpenUnlearning decodes each window and encodes it again.)
        """
        bos = self._bos([])
        labelled_from = {"ours": len(bos), "muse": 0}.get(self.protocol, 1)
        ids = self.answer_ids(text)
        if self.protocol != "ours":
            ids = self._plain_ids(text)
            ids += [self.eos_id] if ids and self.protocol == "tofu" else []
        room = self.max_length - len(bos)
        pieces = [ids[i : i + room] for i in range(0, len(ids), room)] or [[]]
        if len(pieces) == 1:
            return [Encoded(row_id, (*bos, *ids), labelled_from)]
        return [Encoded(f"{row_id}#{k}", (*bos, *piece), labelled_from, window=k) for k, piece in enumerate(pieces, 1)]

    # -- text to ids -------------------------------------------------------------------------------------------

    def prompt_ids(self, prompt: str, raw: bool = False) -> list[int]:
        """The framed prompt, ready for a continuation; `raw`: unframed; for an empty prompt only BOS (or nothing)."""
        if prompt == "":
            return self._bos([])
        if self.protocol != "ours":
            return self._open(self._whole(self._framed(prompt, raw), raw))
        if raw:
            return self._bos(self._ids(prompt))
        if self.template == "chat":
            ids, before, after, more = self._chat_frame
            return self._bos([*ids, *self._ids(before + prompt + after), *more])
        return self._bos(self._ids(self._framed(prompt, raw)))

    def answer_ids(self, answer: str) -> list[int]:
        """The answer and the EOS that closes it; nothing for an empty answer."""
        ids = self._ids(answer)
        return [*ids, self.eos_id] if ids else []

    def _ids(self, text: str) -> list[int]:
        # Markers of the template inside the data stay data: special tokens are not parsed out of a row's text.
        if text not in self._known:
            coded = self.tokenizer(text, add_special_tokens=False, split_special_tokens=True)
            self._known[text] = list(coded["input_ids"])
        return list(self._known[text])

    def _plain_ids(self, text: str) -> list[int]:
        """The ids of a text as the public code bases see it, without the special tokens that a tokenizer adds."""
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def _bos(self, ids: list[int]) -> list[int]:
        bos = self.tokenizer.bos_token_id
        if bos is None or (ids and ids[0] == bos):
            return ids
        return [bos, *ids]

    def _framed(self, prompt: str, raw: bool, answer: str | None = None) -> str:
        """The prompt's text in its frame, up to where an answer starts, and the answer where one is given."""
        if not raw and self.template == "chat":
            turns = [{"role": "user", "content": prompt}]
            turns += [] if answer is None else [{"role": "assistant", "content": answer}]
            return render(self.tokenizer, turns, answer is None, self.style)
        template = Template() if raw else TEMPLATES[self.template]
        if answer is None and self.protocol == "tofu":
            return template.question(prompt)  # the tag belongs to what is learned, and generated
        return template.question(prompt) + template.tag + (answer or "")

    @cached_property
    def _chat_frame(self) -> tuple[list[int], str, str, list[int]]:
        """What the chat template puts around a user's text: ids, text up to it, text behind it, ids.

        The text between the nearest two special tokens is encoded together with the user's, as it would be by itself.
        """
        hole = "\u2766hole\u2766"
        text = render(self.tokenizer, [{"role": "user", "content": hole}], True, self.style)
        if text.count(hole) != 1:
            raise UserError("The chat template does not repeat the user's text exactly once; name another template.")
        before, after = text.split(hole)
        start, end = 0, len(after)
        opening = closing = None
        for token in self.tokenizer.added_tokens_decoder.values():
            at = before.rfind(token.content)
            if at >= 0 and at + len(token.content) > start:
                start, opening = at + len(token.content), token
            at = after.find(token.content)
            if 0 <= at < end:
                end, closing = at, token
        inner_before = before[start:].lstrip() if opening is not None and opening.rstrip else before[start:]
        inner_after = after[:end].rstrip() if closing is not None and closing.lstrip else after[:end]
        return self._plain_ids(before[:start]), inner_before, inner_after, self._plain_ids(after[end:])

    def _encode_jointly(self, prompt: str, answer: str, row_id: str, raw: bool) -> Encoded:
        whole = self._whole(self._framed(prompt, raw, answer), raw)
        if self.protocol == "muse":
            whole = self._open(whole)
        ids = whole[: self.max_length]
        full = self.protocol == "tofu" and len(ids) >= self.max_length
        if ids[-1:] != [self.eos_id] and not full and self.protocol != "muse":
            ids.append(self.eos_id)
        boundary = len(self.prompt_ids(prompt, raw))
        return Encoded(row_id, tuple(ids), min(boundary, len(ids)), max(0, len(whole) - self.max_length))

    def _whole(self, text: str, raw: bool = False, what: str = "input_ids") -> list[Any]:
        """The ids of a whole text with the special tokens a tokenizer adds (a chat brings its own), and BOS once."""
        coded = self.tokenizer(
            text, add_special_tokens=self._adds_specials(raw), return_offsets_mapping=what == "offset_mapping"
        )
        ids, bos, start = coded["input_ids"], self.tokenizer.bos_token_id, 0
        while bos is not None and list(ids[start : start + 2]) == [bos, bos]:
            start += 1
        return list(coded[what])[start:]

    def _open(self, ids: list[int]) -> list[int]:
        """A beginning that is to be continued: without the EOS that some tokenizers close every text with."""
        return ids[:-1] if len(ids) > 1 and ids[-1] == self.eos_id and self._closes else ids

    @cached_property
    def _closes(self) -> bool:
        return bool(self.tokenizer("a")["input_ids"][-1] == self.eos_id)

    def _adds_specials(self, raw: bool) -> bool:
        return raw or self.template != "chat"

    # -- ids to text -------------------------------------------------------------------------------------------

    def spans(self, prompt: str, answer: str, raw: bool = False) -> list[tuple[int, int]] | None:
        """Characters [start, end) of `answer` behind each answer token; EOS stands at its end. None: not known.

        Of a text: behind each token after BOS.
        """
        if not self.tokenizer.is_fast:
            return None
        row, shift = self.encode(prompt, answer, raw=raw), 0
        count = len(row.ids) - (row.prompt_length if prompt else len(self._bos([])))
        if prompt and self.protocol != "ours":
            text = self._framed(prompt, raw, answer)
            shift = text.rfind(answer)
            places = self._whole(text, raw, "offset_mapping")[row.prompt_length :]
        else:
            own = self.protocol == "ours"
            coded = self.tokenizer(
                answer, add_special_tokens=False, split_special_tokens=own, return_offsets_mapping=True
            )
            places = coded["offset_mapping"]
        end = len(answer)
        inside = [(s - shift, e - shift) if e else (end, end) for s, e in places]  # (0, 0): an EOS the tokenizer adds
        found = [(min(max(s, 0), end), min(max(e, 0), end)) for s, e in inside][:count]
        return found + [(end, end)] * (count - len(found))

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, without special tokens."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False))

    @cached_property
    def fingerprint(self) -> str:
        """A hash of all that decides the ids: tokenizer, template, maximum length, protocol. Part of every key."""
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        content = json.loads(backend.to_str()) if backend is not None else self.tokenizer.get_vocab()
        for passing in ("truncation", "padding"):  # what the last call left behind
            content.pop(passing, None)
        template = self.tokenizer.chat_template if self.template == "chat" else TEMPLATES[self.template]
        specials = [self.tokenizer.bos_token_id, self.eos_id, self.pad_id]
        parts = [VERSION, content, self.template, template, self.style, specials, self.max_length, self.protocol]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]
