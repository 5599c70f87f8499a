"""`jsonl`: your own records. Two files of JSON lines, one to forget and one to keep, and perhaps one never trained on.

A row is one of

    {"question": "…", "answer": "…"}
    {"prompt": "…", "completion": "…"}
    {"messages": [{"role": "user", "content": "…"}, {"role": "assistant", "content": "…"}]}
    {"text": "…"}

and may have `id`, `group` (what rows share: a person, a document), `fact` (the words of the answer that matter),
`paraphrased_answer`, `paraphrases` of the question and `perturbed` (wrong) answers. Other keys are left alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from unlearnbench.benchmarks.base import Benchmark, Row, benchmarks
from unlearnbench.benchmarks.sources import Line, each, fail, read, text_of, texts_of
from unlearnbench.errors import UserError

SHAPES = ("question", "prompt", "messages", "text")
WORDS = 32  #: a text is continued from its first so many words, at most half of them, to see what comes verbatim


@benchmarks.register("jsonl", title="Your own records: forget.jsonl and retain.jsonl", version=1)
class JsonLines(Benchmark):
    """Rows from files. A file holds questions or texts, not both.

    `forget`, `retain`, `holdout`: paths; there may be no retain and no holdout file. `notes` lists the rows that stand
    on both sides. Texts get a split `verbmem_forget` with their beginnings as prompts.

    Raises `UserError` with file and line: no JSON, missing or empty keys, an `id` twice, a `fact` outside its answer.
    """

    name = "jsonl"

    def __init__(self, forget: str, retain: str | None = None, holdout: str | None = None):
        files = {"forget": forget, "retain": retain, "holdout": holdout}
        places: dict[str, str] = {}
        splits: dict[str, Sequence[Row]] = {
            name: _rows(file, name, places) for name, file in files.items() if file is not None
        }
        if not splits["forget"][0].prompt:
            splits["verbmem_forget"] = [_begun(row) for row in splits["forget"] if len(row.answer.split()) > 1]
        kept = ("retain",) if retain is not None else ()
        super().__init__(splits, {"target": ("forget", *kept), "retrained": kept})
        self.suite = tuple(_suite(splits))
        if retain is not None:
            self.notes = tuple(overlaps(splits["forget"], splits["retain"], forget, retain))


def _suite(splits: Mapping[str, Sequence[Row]]) -> Iterator[str]:
    """The metrics that the rows can answer, forget side first."""
    for side in ("forget", "retain"):
        rows = splits.get(side, ())
        if not rows:
            continue
        yield f"{side}_prob"
        if rows[0].prompt:
            yield from (f"{side}_rouge_l", f"{side}_exact")
        elif side == "forget":
            yield "verbmem_forget"
        if any(row.fact for row in rows):
            yield f"{side}_fact"
        if any(row.unseen_paraphrases for row in rows):
            yield from (f"{side}_paraphrase_prob", f"{side}_paraphrase_rouge_l")
    if "holdout" in splits:
        yield "mia"


def overlaps(forget: Sequence[Row], retain: Sequence[Row], forget_file: str, retain_file: str) -> list[str]:
    """Rows that are to be forgotten and kept at once, one line each kind; case and white space do not count."""
    kept = {_plain(row): row.id for row in retain}
    asked = {_words(row.prompt): row.id for row in retain if row.prompt}
    both = [(row.id, kept[_plain(row)]) for row in forget if _plain(row) in kept]
    same = [
        (r.id, asked[_words(r.prompt)])
        for r in forget
        if r.prompt and _words(r.prompt) in asked and _plain(r) not in kept
    ]
    notes = []
    for pairs, what in ((both, "rows"), (same, "questions, with other answers,")):
        if pairs:
            shown = ", ".join(f"{a} = {b}" for a, b in pairs[:5]) + (", …" if len(pairs) > 5 else "")
            notes.append(f"{len(pairs)} {what} of {forget_file} stand in {retain_file} too: {shown}")
    twice = len(forget) - len({_plain(row) for row in forget})
    if twice:
        notes.append(f"{twice} rows of {forget_file} repeat an earlier one")
    return notes


def _rows(file: str, name: str, places: dict[str, str]) -> list[Row]:
    """The rows of a file; `places` knows where each id was seen before."""
    lines = read(file)
    numbers = {line.place: i for i, line in enumerate(lines, 1)}
    rows: list[Row] = each(lines, lambda line: _row(line, f"{name}-{numbers[line.place]:04d}"))
    errors = []
    for line, row in zip(lines, rows, strict=True):
        if row.id in places:
            errors.append(f"{line.place}: the id '{row.id}' is taken by {places[row.id]}")
        places.setdefault(row.id, line.place)
    fail(errors)
    first = lines[0]
    for line, row in zip(lines, rows, strict=True):
        if bool(row.prompt) != bool(rows[0].prompt):
            kinds = ("a question", "a text") if rows[0].prompt else ("a text", "a question")
            raise UserError(
                f"{line.place}: this row is {kinds[1]} and {first.place} is {kinds[0]}; a file holds one kind "
                '(a text can be written as {"prompt": its beginning, "completion": the rest}).'
            )
    return rows


def _row(line: Line, row_id: str) -> Row:
    found = [key for key in SHAPES if key in line.content]
    if len(found) != 1:
        has = ", ".join(sorted(line.content)) or "nothing"
        what = f"both '{found[0]}' and '{found[1]}'" if found else f"none of these keys ({has})"
        raise UserError(
            f"a row has 'question' and 'answer', 'prompt' and 'completion', 'messages', or 'text'; it has {what}"
        )
    (shape,) = found
    if shape == "text":
        prompt, answer = "", text_of(line, "text")
    elif shape == "messages":
        prompt, answer = _conversation(line.content["messages"])
    else:
        prompt, answer = text_of(line, shape), text_of(line, "answer" if shape == "question" else "completion")
    fact = text_of(line, "fact") if line.content.get("fact") is not None else ""
    if fact not in answer:
        raise UserError(f"the fact '{fact}' does not stand in the answer")
    given = line.content.get("id")
    return Row(
        id=row_id if given is None else str(given),
        prompt=prompt,
        answer=answer,
        group=text_of(line, "group") if line.content.get("group") is not None else "",
        fact=fact,
        unseen_paraphrases=texts_of(line, "paraphrases"),
        paraphrased_answer=text_of(line, "paraphrased_answer") if line.content.get("paraphrased_answer") else "",
        perturbed=texts_of(line, "perturbed"),
    )


def _conversation(messages: Any) -> tuple[str, str]:
    """The question and the answer of one exchange."""
    if not isinstance(messages, list) or not all(isinstance(m, dict) for m in messages):
        raise UserError("'messages' is a list of {role, content}")
    roles = [message.get("role") for message in messages]
    if roles != ["user", "assistant"]:
        raise UserError(
            f"'messages' has the roles {', '.join(map(str, roles)) or 'none'}; a row is one user turn and the "
            "assistant's answer: make a row of each exchange, and put a system text into the user's turn"
        )
    said = [text_of(Line(message, ""), "content") for message in messages]
    return said[0], said[1]


def _begun(row: Row) -> Row:
    """The beginning of a text as the prompt, the rest as the answer; nothing is lost between them."""
    words = row.answer.split()
    at = 0
    for word in words[: max(1, min(WORDS, len(words) // 2))]:
        at = row.answer.index(word, at) + len(word)
    return Row(f"{row.id}-continued", row.answer[:at], row.answer[at:], row.group or row.id)


def _words(text: str) -> str:
    return " ".join(text.lower().split())


def _plain(row: Row) -> tuple[str, str]:
    return _words(row.prompt), _words(row.answer)
