"""Strict JSON: equal values have one text, files are whole, and NaN never gets in or out."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from unlearnbench.canonical import canonical, file_hash, key, plain, read_json, write_json
from unlearnbench.errors import UserError


def test_equal_values_have_one_text() -> None:
    assert canonical({"b": [1.0, None, True], "a": (0.1, "é")}) == '{"a":[0.1,"\\u00e9"],"b":[1,null,true]}'
    assert key({"a": 1, "b": 2}) == key({"b": 2.0, "a": 1})
    assert key({"a": 1}) != key({"a": True})
    assert key({"a": 1}) != key({"a": "1"})
    assert key([1, 2]) != key([2, 1])


def test_a_key_is_the_same_in_every_process() -> None:
    code = "from unlearnbench.canonical import key; print(key({'x': {'b': 1e-3, 'a': ['u', 'v']}}))"
    seen = {
        subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, text=True
        ).stdout.strip()
        for seed in ("1", "2")
    }
    assert seen == {key({"x": {"a": ["u", "v"], "b": 0.001}})}


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        ({"a": {"b": [0.0, float("nan")]}}, ValueError, r"a\.b\[1\] is nan: write null"),
        (float("-inf"), ValueError, "the value is -inf"),
        ({"a": np.float32(1)}, TypeError, "a is a float32"),
        ({"a": {1: 2}}, TypeError, "a has the key 1, which is no string"),
        ({"a": {3}}, TypeError, "a is a set"),
    ],
)
def test_what_json_has_no_word_for_is_refused_with_its_place(
    tmp_path: Path, value: Any, error: type[Exception], message: str
) -> None:
    for use in (plain, canonical, lambda v: write_json(tmp_path / "f.json", v)):
        with pytest.raises(error, match=message):
            use(value)
    assert list(tmp_path.iterdir()) == []


def test_files_come_back_as_they_were(tmp_path: Path) -> None:
    value = {"z": 1, "a": [1.5, None, "naïve ☃"], "e": 1e-300}
    write_json(tmp_path / "f.json", value)
    assert read_json(tmp_path / "f.json") == value
    assert list(read_json(tmp_path / "f.json")) == ["z", "a", "e"], "the order is kept"
    assert [f.name for f in tmp_path.iterdir()] == ["f.json"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not strict JSON"),
        ('{"a": 1', "is not strict JSON"),
        ('{"a": NaN}', "NaN is no number"),
        ('{"a": -Infinity}', "-Infinity is no number"),
        ('{"a": 1, "b": 2, "a": 3}', "the key 'a' is there twice"),
        (b"\xff\xfe", "is not strict JSON"),
    ],
)
def test_a_file_that_is_no_strict_json_is_one_line(tmp_path: Path, text: str | bytes, message: str) -> None:
    file = tmp_path / "f.json"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UserError, match=message) as caught:
        read_json(file)
    assert str(file) in str(caught.value)
    with pytest.raises(UserError, match="There is no file"):
        read_json(tmp_path / "other.json")


def test_a_killed_writer_leaves_the_old_file(tmp_path: Path) -> None:
    """Kill a process that rewrites a file all the time: what is there is always one of its whole versions."""
    code = (
        "import sys; from pathlib import Path; from unlearnbench.canonical import write_json\n"
        "i = 0\n"
        "while True:\n"
        "    i += 1; write_json(Path(sys.argv[1]), {'n': i, 'text': 'x' * 200_000, 'again': i})\n"
    )
    file = tmp_path / "f.json"
    for _ in range(5):
        process = subprocess.Popen([sys.executable, "-c", code, str(file)])
        while not file.exists():
            time.sleep(0.01)
        time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
        process.wait()
        content = read_json(file)
        assert content["n"] == content["again"]
        file.unlink()


def test_file_hash_is_sha256_of_the_bytes(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"abc")
    assert file_hash(tmp_path / "f") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
