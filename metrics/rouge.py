"""ROUGE between the greedy answer and the true answer (TOFU section 3.2; MUSE, arXiv:2407.06460).

    R = LCS(reference, candidate) / |reference|
    P = LCS(reference, candidate) / |candidate|
    F = 2 P R / (P + R)

with LCS the length of the longest common subsequence, and lengths in tokens.

Tokens. The published code keeps runs of a-z and 0-9 (rouge-score), which gives 0 for identical Hindi and cuts José in
two. `ours` counts letters, marks and digits of every script, and single characters where a script writes no spaces;
on ASCII text both are the same. Words of more than 3 ASCII letters go through the Porter stemmer, except in MUSE.
A reference without tokens is null in `ours` and 0 in the published code; empty answers count 0 and are reported.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from functools import cache, lru_cache
from typing import Any, ClassVar, NamedTuple

from pydantic import Field

from unlearnbench.benchmarks.base import Row
from unlearnbench.metric import Context, Generate, Request, RowMetric, Value, metrics, no_rows, rows_of

from . import probability as _one_minus  # noqa: F401  the preset below is built on it

# Thai, Lao, Tibetan, Myanmar, Khmer, kana, CJK: scripts without spaces between words
_UNSPACED = re.compile(
    "[\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u31f0-\u31ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
)
_DRAWN = re.compile("[\ufe00-\ufe0f\u20e3\U000e0100-\U000e01ef]")  # variation selectors, and the frame of a key cap


class Rouge(NamedTuple):
    """Precision, recall and F of one pair."""

    precision: float
    recall: float
    f1: float


@cache
def _stemmer() -> Any:
    from nltk.stem.porter import PorterStemmer  # type: ignore[import-untyped]

    return PorterStemmer()


@lru_cache(maxsize=100_000)
def _stem(word: str) -> str:
    return str(_stemmer().stem(word)) if len(word) > 3 else word


def ascii_tokens(text: str, stem: bool) -> list[str]:
    """The tokens of the rouge-score package: runs of a-z and 0-9 in the lower-cased text."""
    words = re.findall("[a-z0-9]+", text.lower())
    return [_stem(word) for word in words] if stem else words


def unicode_tokens(text: str, stem: bool) -> list[str]:
    """Words of any script; characters where a script has no spaces. Equal to `ascii_tokens` on ASCII text."""
    if text.isascii():
        return ascii_tokens(text, stem)
    tokens: list[str] = []
    word, glued = "", False  # glued: the character before is a letter, a digit, or a mark of one
    for char in unicodedata.normalize("NFC", text).lower():
        kind = unicodedata.category(char)[0]
        if kind == "M":  # a mark belongs to the letter before it; that of a symbol, and how it is drawn, are no text
            if glued and not _DRAWN.match(char):
                if word:
                    word += char
                else:
                    tokens[-1] += char
            continue
        glued = kind in "LN"
        alone = kind in "LN" and _UNSPACED.match(char)
        if kind in "LN" and not alone:
            word += char
            continue
        if word:
            tokens.append(word)
            word = ""
        if alone:
            tokens.append(char)
    if word:
        tokens.append(word)
    return [_stem(token) if stem and token.isascii() else token for token in tokens]


def lcs(a: Sequence[str], b: Sequence[str]) -> int:
    """Length of the longest common subsequence, one row of the table held in the bits of one integer (Hyyrö, 2004)."""
    places: dict[str, int] = {}
    for i, token in enumerate(a):
        places[token] = places.get(token, 0) | 1 << i
    everything = (1 << len(a)) - 1
    row = everything
    for token in b:
        match = row & places.get(token, 0)
        row = (row + match | row - match) & everything
    return len(a) - row.bit_count()


def rouge(reference: Sequence[str], candidate: Sequence[str], common: int) -> Rouge:
    """ROUGE from tokens and the number of common ones; 0 where a side is empty."""
    if not reference or not candidate or not common:
        return Rouge(0.0, 0.0, 0.0)
    precision, recall = common / len(candidate), common / len(reference)
    return Rouge(precision, recall, 2 * precision * recall / (precision + recall))


def rouge_l(reference: str, candidate: str, protocol: str = "ours") -> Rouge | None:
    """ROUGE-L of one pair under a protocol; in `ours` None when the reference has no countable token."""
    tokens = unicode_tokens if protocol == "ours" else ascii_tokens
    stem = protocol != "muse"
    known, said = tokens(reference, stem), tokens(candidate, stem)
    if protocol == "ours" and not known:
        return None
    return rouge(known, said, lcs(known, said))


def rouge_1(reference: str, candidate: str, protocol: str = "ours") -> Rouge | None:
    """ROUGE-1 of one pair: common tokens counted as often as both sides have them."""
    tokens = unicode_tokens if protocol == "ours" else ascii_tokens
    stem = protocol != "muse"
    known, said = tokens(reference, stem), tokens(candidate, stem)
    if protocol == "ours" and not known:
        return None
    return rouge(known, said, sum(min(known.count(token), said.count(token)) for token in set(known)))


def text_similarity(
    prompt: str, conversation: str, raw: str, stops: Iterable[str] = (), eos: str = ""
) -> tuple[str, str]:
    """Reference and candidate as OpenUnlearning cuts them out of the decoded texts.

    The reference is the conversation without any occurrence of the prompt; the candidate is the raw continuation up to
    the EOS text and then up to each stop string. Both are stripped.
    """
    return conversation.replace(prompt, "").strip(), cut_at(raw, [*([eos] if eos else []), *stops]).strip()


def cut_at(text: str, stops: Iterable[str]) -> str:
    """The text before each stop string, cut by one after the other."""
    for stop in stops:
        text = text.split(stop)[0]
    return text


@metrics.register(
    "forget_rouge_l",
    title="ROUGE-L of the answer, forget",
    direction="lower",
    target="retrained",
    range=(0, 1),
    side="forget",
    unit="recall",
    source="TOFU, arXiv:2401.06121, section 3.2",
    version=2,
)
class RougeL(RowMetric):
    """Mean over rows of ROUGE-L recall of the greedy answer (F in MUSE) against the true answer.

    `max_new_tokens`: 128 in `ours` and `muse`, 200 in `tofu` and `open-unlearning`. The 200 of TOFU's own code are a
    length of prompt, padding of the batch and answer together, so that it cuts a long answer earlier than `tofu` here.
    """

    protocols: ClassVar = {
        "ours": "Unicode tokens, stemmed, recall; null without countable tokens",
        "tofu": "ASCII tokens, stemmed, recall (locuslab/tofu evaluate_util.py)",
        "open-unlearning": "ASCII tokens, stemmed, recall (locuslab/open-unlearning evals/metrics/utils.py)",
        "muse": "ASCII tokens, not stemmed, F (jaechan-repo/muse_bench)",
    }
    max_new_tokens: int | None = Field(None, ge=1, description="of an answer; null: the protocol's, see above")

    def asks(self, row: Row) -> Iterable[Request]:
        yield Generate(row.prompt, self.max_new_tokens or (128 if self.protocol in ("ours", "muse") else 200))

    def sample(self, row: Row, context: Context) -> float | None:
        (request,) = self.asks(row)
        found = rouge_l(row.answer.strip(), context.ask(request).text.strip(), self.protocol)
        if found is None:
            return None
        return found.f1 if self.protocol == "muse" else found.recall

    def compute(self, context: Context) -> Value:
        rows = rows_of(context.data, self.split)
        if not rows:
            return no_rows(context.data, self.split)
        empty = sum(not context.ask(request).text.strip() for row in rows for request in self.asks(row))
        return Value.mean_of({row.id: self.sample(row, context) for row in rows}, empty_answers=empty)


for _split, _title in {"retain": "retain", "real_authors": "real authors", "world_facts": "world facts"}.items():
    metrics.preset(
        f"{_split}_rouge_l",
        of="forget_rouge_l",
        title=f"ROUGE-L of the answer, {_title}",
        meta={"direction": "higher", "target": None, "side": "utility"},
        split=_split,
    )
metrics.preset("one_minus_rouge_l", of="one_minus_prob", title="1 - ROUGE-L on forget", metric="forget_rouge_l")
