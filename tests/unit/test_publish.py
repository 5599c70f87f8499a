"""Publishing: nothing is replaced by less."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from unlearnbench.errors import UserError
from unlearnbench.publish import KEPT, pack, publish


def test_an_experiment_that_was_not_run_leaves_the_published_results_as_they_are(tmp_path: Path) -> None:
    out = tmp_path / "results"
    out.mkdir()
    (out / "table.md").write_text("earlier")
    with pytest.raises(UserError, match="lacks 37 of the 37 stages of 'muse-mini'"):
        publish("muse-mini", tmp_path / "runs", out)
    assert (out / "table.md").read_text() == "earlier"


def test_run_folders_are_packed_without_weights_and_the_same_each_time(tmp_path: Path) -> None:
    folders = []
    for name in ("evaluate-a", "unlearn-b"):
        folder = tmp_path / "runs" / name
        folder.mkdir(parents=True)
        for file in ("record.json", "spec.json", "answers.parquet", "model.safetensors"):
            (folder / file).write_text(f"{name} {file}")
        folders.append(folder)
    pack(folders, tmp_path / "one.tar.xz")
    (folders[0] / "record.json").touch()
    pack(folders, tmp_path / "two.tar.xz")
    assert (tmp_path / "one.tar.xz").read_bytes() == (tmp_path / "two.tar.xz").read_bytes()
    with tarfile.open(tmp_path / "one.tar.xz") as archive:
        names = archive.getnames()
        content = archive.extractfile("runs/unlearn-b/spec.json")
        assert content is not None and content.read() == b"unlearn-b spec.json"
    assert names == [
        f"runs/{f}/{n}" for f in ("evaluate-a", "unlearn-b") for n in KEPT if n in ("record.json", "spec.json")
    ]
