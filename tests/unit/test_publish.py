"""Publishing: nothing is replaced by less."""

from __future__ import annotations

from pathlib import Path

import pytest

from unlearnbench.errors import UserError
from unlearnbench.publish import publish


def test_an_experiment_that_was_not_run_leaves_the_published_results_as_they_are(tmp_path: Path) -> None:
    out = tmp_path / "results"
    out.mkdir()
    (out / "table.md").write_text("earlier")
    with pytest.raises(UserError, match="lacks 37 of the 37 stages of 'muse-mini'"):
        publish("muse-mini", tmp_path / "runs", out)
    assert (out / "table.md").read_text() == "earlier"
