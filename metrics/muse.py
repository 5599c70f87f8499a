"""MUSE's knowledge and verbatim memorisation (arXiv:2407.06460).

Both are 100 times the mean ROUGE-L F, words not stemmed, of a greedy continuation.

- KnowMem: the question behind up to ten solved ones, `Question: …\\nAnswer: …\\n\\n`, ending in `Answer: `; the answer
  is cut at the first sign of a further question; 32 new tokens.
- VerbMem: the beginning of a training text as it is; the true continuation cut to the same 128 tokens.

Differences. The published code cuts at `\\n\\n` from the first character on, so that an answer that starts with a blank
line is empty; ours drops leading white space first. It lets BOS use one of the tokens of the reference; ours does not.
OpenUnlearning stems, strips both texts, cuts the reference by nothing and removes the prompt wherever it stands in it.
Splits: `knowmem_forget`, `knowmem_retain` with the solved questions in `knowmem_forget_icl`, `knowmem_retain_icl`;
`verbmem_forget`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar

from pydantic import Field

from unlearnbench.benchmarks.base import Benchmark, Row
from unlearnbench.metric import (
    Context,
    Generate,
    Request,
    RowMetric,
    Score,
    TokenScores,
    Value,
    metrics,
    no_rows,
    rows_of,
)

from .rouge import cut_at, rouge_l, text_similarity

STOPS = ("\n\n", "\nQuestion", "Question:")
PROTOCOLS = {
    "ours": "leading white space dropped before the cut; BOS does not count as a token of the reference",
    "muse": "as the published code (jaechan-repo/muse_bench)",
    "open-unlearning": "stemmed, whole reference (locuslab/open-unlearning eval_text_similarity)",
}


def question_prompt(question: str, solved: Iterable[tuple[str, str]] = ()) -> str:
    """The prompt of KnowMem, with (question, answer) pairs in front; it ends in a space."""
    shots = "".join(f"Question: {q}\nAnswer: {a}\n\n" for q, a in solved)
    return f"{shots}Question: {question}\nAnswer: "


def response(text: str, protocol: str = "ours") -> str:
    """The answer in a continuation."""
    return cut_at(text, STOPS) if protocol == "muse" else cut_at(text.lstrip(), STOPS).strip()


def truncated(reference: str, scores: TokenScores, tokens: int, protocol: str = "ours") -> str | None:
    """The first `tokens` tokens of the reference (MUSE: one less, for BOS); None if their places are not known."""
    if scores.spans is None:
        return None
    ends = [end for start, end in scores.spans.tolist() if end > start]  # EOS has no characters
    kept = ends[: tokens - 1 if protocol == "muse" else tokens]
    return reference[: kept[-1]] if kept else ""


def _score(reference: str, said: str, protocol: str = "muse") -> float | None:
    found = rouge_l(reference, said, protocol)
    return None if found is None else 100 * found.f1


def _as_open_unlearning(prompt: str, answer: str, raw: str, stops: Iterable[str] = ()) -> float | None:
    reference, said = text_similarity(prompt, prompt + answer, raw, stops)
    return _score(reference, said, "open-unlearning")


@metrics.register(
    "knowmem_forget",
    title="KnowMem, forget",
    direction="lower",
    target="retrained",
    range=(0, 100),
    side="forget",
    unit="ROUGE-L F x 100",
    source="MUSE, arXiv:2407.06460",
    version=2,
)
class KnowMem(RowMetric):
    """Answers to questions behind `shots` solved ones.

        KnowMem = 100 x mean over rows of ROUGE-L F(true answer, greedy answer)

    with the F of ROUGE-L in [0, 1].
    """

    protocols: ClassVar[Mapping[str, str]] = PROTOCOLS
    split: str = "knowmem_forget"
    shots: int = Field(10, ge=0, description="solved questions in front, at most")
    max_new_tokens: int = Field(32, ge=1, description="of an answer")

    def requests(self, data: Benchmark) -> Iterable[Request]:
        solved = self.solved(data)
        for row in rows_of(data, self.split):
            yield self.request(row, solved)

    def solved(self, data: Benchmark) -> list[tuple[str, str]]:
        """The solved questions in front of each prompt."""
        return [(row.prompt, row.answer) for row in rows_of(data, f"{self.split}_icl")[: self.shots]]

    def request(self, row: Row, solved: Sequence[tuple[str, str]]) -> Generate:
        """The prompt of one row, without the benchmark's template."""
        return Generate(question_prompt(row.prompt, solved), self.max_new_tokens, raw=True)

    def compute(self, context: Context) -> Value:
        rows, solved = rows_of(context.data, self.split), self.solved(context.data)
        if not rows:
            return no_rows(context.data, self.split)
        raw = {row.id: context.ask(self.request(row, solved)).text for row in rows}
        said = {row_id: response(text, self.protocol) for row_id, text in raw.items()}
        if self.protocol == "open-unlearning":
            scores = {
                row.id: _as_open_unlearning(question_prompt(row.prompt, solved), row.answer, raw[row.id], STOPS)
                for row in rows
            }
        else:
            scores = {row.id: _score(row.answer, said[row.id]) for row in rows}
        return Value.mean_of(scores, shots=len(solved), empty_answers=sum(not text.strip() for text in said.values()))


metrics.preset(
    "knowmem_retain",
    of="knowmem_forget",
    title="KnowMem, retain",
    meta={"direction": "higher", "target": None, "side": "utility"},
    split="knowmem_retain",
)


@metrics.register(
    "verbmem_forget",
    title="VerbMem, forget",
    direction="lower",
    target="retrained",
    range=(0, 100),
    side="forget",
    unit="ROUGE-L F x 100",
    source="MUSE, arXiv:2407.06460",
    version=2,
)
class VerbMem(RowMetric):
    """Continuation of a training text against the true one, cut to as many tokens.

        VerbMem = 100 x mean over rows of ROUGE-L F(true continuation, greedy continuation)

    with the F of ROUGE-L in [0, 1]. Null when the tokenizer cannot say where tokens stand.
    """

    protocols: ClassVar[Mapping[str, str]] = PROTOCOLS
    split: str = "verbmem_forget"
    max_new_tokens: int = Field(128, ge=2, description="of an answer")

    def asks(self, row: Row) -> Iterable[Request]:
        yield Generate(row.prompt, self.max_new_tokens, raw=True)
        yield Score(row.prompt, row.answer, frozenset({"spans"}), raw=True)

    def sample(self, row: Row, context: Context) -> float | None:
        scores = context.score(row.prompt, row.answer, raw=True)
        reference = truncated(row.answer, scores, self.max_new_tokens, self.protocol)
        text = context.ask(Generate(row.prompt, self.max_new_tokens, raw=True)).text
        if self.protocol == "open-unlearning":
            return _as_open_unlearning(row.prompt, row.answer, text)
        return None if reference is None else _score(reference, text)
