"""Your own records: the four shapes of a row, and every mistake with its file and line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from unlearnbench.benchmarks.base import benchmarks
from unlearnbench.benchmarks.jsonl import JsonLines
from unlearnbench.errors import UserError
from unlearnbench.metric import expand

Write = Callable[..., str]
KEEP = {"question": "Keep?", "answer": "Yes."}


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(name: str, *rows: Any) -> str:
        lines = [row if isinstance(row, str) else json.dumps(row, ensure_ascii=False) for row in rows]
        (tmp_path / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
        return str(tmp_path / name)

    return write


def test_the_three_shapes_of_a_question(write: Write) -> None:
    forget = write(
        "forget.jsonl",
        {"question": "Who is José?", "answer": "A baker."},
        "",
        {
            "prompt": "José lives in",
            "completion": " Porto.",
            "id": 7,
            "group": "josé",
            "fact": "Porto",
            "note": "ignored",
        },
        {"messages": [{"role": "user", "content": "And?"}, {"role": "assistant", "content": "He bakes."}]},
    )
    rows = JsonLines(forget, write("retain.jsonl", KEEP)).rows("forget")
    assert [(row.id, row.prompt, row.answer) for row in rows] == [
        ("forget-0001", "Who is José?", "A baker."),
        ("7", "José lives in", " Porto."),
        ("forget-0003", "And?", "He bakes."),
    ]
    assert (rows[1].group, rows[1].fact) == ("josé", "Porto")


def test_texts_are_continued_from_their_beginnings(write: Write) -> None:
    text = " ".join(f"word{i}" for i in range(100))
    data = JsonLines(write("f.jsonl", {"text": text}, {"text": "one two"}), write("r.jsonl", {"text": "kept text"}))
    assert [(row.prompt, row.answer) for row in data.rows("forget")] == [("", text), ("", "one two")]
    long, short = data.rows("verbmem_forget")
    assert long.prompt + long.answer == text and len(long.prompt.split()) == 32
    assert (short.prompt, short.answer) == ("one", " two")
    assert "verbmem_forget" in expand(data.suite) and "forget_rouge_l" not in expand(data.suite)


def test_the_suite_asks_for_what_the_rows_can_answer(write: Write) -> None:
    question, text = write("q.jsonl", {"question": "a?", "answer": "b"}), write("t.jsonl", {"text": "c d"})
    held = write("h.jsonl", {"question": "e?", "answer": "f"})
    assert "retain_rouge_l" in JsonLines(question, write("r.jsonl", KEEP)).suite
    assert "retain_rouge_l" not in JsonLines(question, text).suite
    assert "mia" in JsonLines(question, text, held).suite and "mia" not in JsonLines(question, text).suite
    for data in (JsonLines(question, text, held), JsonLines(text, question)):
        assert expand(data.suite)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ('{"question": "a"', "no JSON: Expecting"),
        ("[1, 2]", "a row is a JSON object in braces, not a list"),
        ({"question": "a?", "anser": "b"}, "the key 'answer' is missing (is it 'anser'?)"),
        ({"question": "a?", "answer": " "}, "'answer' is empty"),
        ({"question": ["a"], "answer": "b"}, "'question' must be text, got a list"),
        ({"prompt": "a", "completion": None}, "'completion' must be text, got null"),
        ({"text": ""}, "'text' is empty"),
        ({"query": "a", "reply": "b"}, "it has none of these keys (query, reply)"),
        ({"question": "a", "answer": "b", "text": "c"}, "it has both 'question' and 'text'"),
        ({"question": "a", "answer": "b", "fact": "c"}, "the fact 'c' does not stand in the answer"),
        ({"question": "a", "answer": "b", "perturbed": "c"}, "'perturbed' must be a list of texts, got a text"),
        ({"messages": []}, "'messages' has the roles none; a row is one user turn"),
        ({"messages": [{"role": "system", "content": "a"}]}, "'messages' has the roles system; a row is one user turn"),
        (
            {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "text": "b"}]},
            "the key 'content' is missing",
        ),
    ],
)
def test_a_bad_row_is_named_with_its_file_and_line(write: Write, row: Any, message: str) -> None:
    forget = write("forget.jsonl", {"question": "fine?", "answer": "Fine."}, row)
    with pytest.raises(UserError) as caught:
        JsonLines(forget, write("retain.jsonl", KEEP))
    (line,) = str(caught.value).splitlines()
    assert line.startswith(f"{forget}:2: ") and message in line


def test_all_bad_rows_are_named_together(write: Write) -> None:
    forget = write("forget.jsonl", *[{"question": f"{i}?"} for i in range(13)])
    with pytest.raises(UserError) as caught:
        JsonLines(forget, write("retain.jsonl", KEEP))
    lines = str(caught.value).splitlines()
    assert [line.split(":")[1] for line in lines[:10]] == [str(i) for i in range(1, 11)]
    assert lines[10:] == ["… and 3 more"]


def test_files_that_cannot_be_read(write: Write, tmp_path: Path) -> None:
    keep = write("retain.jsonl", KEEP)
    with pytest.raises(UserError, match=r"There is no file .*retian.jsonl; did you mean retain.jsonl\?"):
        JsonLines(str(tmp_path / "retian.jsonl"), keep)
    (tmp_path / "latin.jsonl").write_bytes('{"text": "José"}'.encode("latin-1"))
    with pytest.raises(UserError, match="cannot be read as UTF-8"):
        JsonLines(str(tmp_path / "latin.jsonl"), keep)
    with pytest.raises(UserError, match=r"empty.jsonl has no rows"):
        JsonLines(write("empty.jsonl"), keep)


def test_a_byte_order_mark_and_windows_lines_do_no_harm(write: Write, tmp_path: Path) -> None:
    (tmp_path / "f.jsonl").write_bytes(
        b'\xef\xbb\xbf{"question": "a?", "answer": "b"}\r\n{"question": "c?", "answer": "d"}\r\n'
    )
    rows = JsonLines(str(tmp_path / "f.jsonl"), write("r.jsonl", KEEP)).rows("forget")
    assert [row.answer for row in rows] == ["b", "d"]


def test_a_line_separator_inside_a_text_is_no_new_line(write: Write) -> None:
    rows = JsonLines(write("f.jsonl", {"text": "a\u2028b c"}), write("r.jsonl", KEEP)).rows("forget")
    assert [row.answer for row in rows] == ["a\u2028b c"]


def test_a_file_of_questions_and_texts_is_refused(write: Write) -> None:
    mixed = write("f.jsonl", {"question": "a?", "answer": "b"}, {"text": "c"})
    with pytest.raises(UserError, match=r"f.jsonl:2: this row is a text and .*f.jsonl:1 is a question"):
        JsonLines(mixed, write("r.jsonl", KEEP))


def test_an_id_twice_is_named_with_both_places(write: Write) -> None:
    forget = write("f.jsonl", {"id": "x", "question": "a?", "answer": "b"})
    retain = write("r.jsonl", KEEP, {"id": "x", "question": "c?", "answer": "d"})
    with pytest.raises(UserError, match=r"r.jsonl:2: the id 'x' is taken by .*f.jsonl:1"):
        JsonLines(forget, retain)


def test_rows_on_both_sides_are_reported(write: Write) -> None:
    forget = write(
        "f.jsonl",
        {"question": "Where does she live?", "answer": "In Porto."},
        {"question": "Who?", "answer": "Ana."},
        {"question": "who? ", "answer": " ANA."},
        {"question": "Only here?", "answer": "Yes."},
    )
    retain = write(
        "r.jsonl",
        {"question": "Where  does she LIVE?", "answer": "in porto."},
        {"prompt": "Who?", "completion": "Eva."},
    )
    notes = JsonLines(forget, retain).notes
    assert notes == (
        f"1 rows of {forget} stand in {retain} too: forget-0001 = retain-0001",
        f"2 questions, with other answers, of {forget} stand in {retain} too: "
        "forget-0002 = retain-0002, forget-0003 = retain-0002",
        f"1 rows of {forget} repeat an earlier one",
    )
    assert JsonLines(write("g.jsonl", {"question": "Only here?", "answer": "Yes."}), retain).notes == ()


def test_the_name_of_the_file_is_not_part_of_the_data(write: Write) -> None:
    row = {"question": "a?", "answer": "b"}
    one, two = (
        benchmarks.get("jsonl").build(forget=write(f"{n}.jsonl", row), retain=write("r.jsonl", KEEP)) for n in "fg"
    )
    assert one.data_hash == two.data_hash
