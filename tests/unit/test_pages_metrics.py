"""The pages of metrics and the pages written by hand: worked examples are right, and the code in them runs."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from unlearnbench.metric import metrics
from unlearnbench.pages import examples
from unlearnbench.pages import metrics as metric_pages
from unlearnbench.pages.worked import WORKED
from unlearnbench.registry import Entry, load_plugin
from unlearnbench.report.scores import SCORED

DOCS = Path(__file__).parents[2] / "docs"
GROUPS = metric_pages.groups()


def test_every_metric_stands_on_one_page() -> None:
    names = [entry.name for group in GROUPS for entry in group]
    assert sorted(names) == sorted(entry.name for entry in metrics if entry.built_in)
    assert metric_pages.section("metrics/forget_prob.md") == "Forgetting" and metric_pages.section("index.md") == ""


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: metric_pages.head(group).name)
def test_a_page_has_formula_source_example_and_nulls(group: tuple[Entry, ...]) -> None:
    entry = metric_pages.head(group)
    text = metric_pages.page(group)
    assert entry.meta["source"]
    assert "## When there is no number\n" in text and "| --- |" in text.rpartition("##")[2]
    if not entry.meta.get("adapter"):
        assert "```text\n" in text.partition("## Formula")[2], "no indented equation in the docstrings"
        assert "## Worked example\n" in text and "ours" in WORKED[entry.name].by_hand
    for protocol in entry.cls.protocols:  # type: ignore[attr-defined]
        assert len(entry.cls.protocols) == 1 or f"`{protocol}`" in text  # type: ignore[attr-defined]
    assert all(f"`{other.name}`" in text for other in group)


def test_an_example_whose_arithmetic_gives_another_number_has_no_page(monkeypatch: pytest.MonkeyPatch) -> None:
    group = next(g for g in GROUPS if metric_pages.head(g).name == "forget_fact_prob")
    right = WORKED["forget_fact_prob"]
    monkeypatch.setitem(WORKED, "forget_fact_prob", replace(right, by_hand={"ours": "1/2 * 1/8"}))
    with pytest.raises(ValueError, match=r"by hand 0\.0625, the code 0\.25"):
        metric_pages.page(group)


def test_nulls_are_asked_of_the_code() -> None:
    entry = metrics.get("privleak")
    cases = examples.without(WORKED["privleak"])
    reasons = {case: examples.value(entry, changed) for case, changed in cases.items()}
    assert reasons["there is no retrained run"].score is None
    assert "no retrained model" in reasons["there is no retrained run"].reason


# -- pages written by hand -------------------------------------------------------------------------------------


def plugin(page: str, folder: Path) -> Path:
    """The first Python block of a page, as a plug-in file."""
    (code, *_) = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), re.S)
    file = folder / f"{Path(page).stem.replace('-', '_')}.py"
    file.write_text(code, encoding="utf-8")
    return file


def test_the_method_of_the_page_has_a_loss(tmp_path: Path) -> None:
    from unlearnbench.method import methods
    from unlearnbench.testing.losses import Stage

    load_plugin(plugin("add-a-method.md", tmp_path))
    try:
        method = methods.get("mine").build()
        assert method.level == 20 and method.retain == "nll"
        loss = Stage(method).loss("forget")
        assert torch.isfinite(loss) and loss.requires_grad
    finally:
        methods._entries.pop("mine")


def test_the_metric_of_the_page_has_a_value(tmp_path: Path) -> None:
    load_plugin(plugin("add-a-metric.md", tmp_path))
    try:
        found = examples.value(metrics.get("forget_first_token"), WORKED["forget_logp"])
        assert found.score == pytest.approx(1 / 2)
    finally:
        metrics._entries.pop("forget_first_token")


def test_the_score_s_metrics_are_those_of_the_page() -> None:
    text = (DOCS / "statistics.md").read_text(encoding="utf-8")
    for side, names in SCORED.items():
        assert f"| {side} | {', '.join(f'`{name}`' for name in names)} |" in text


def test_pages_written_by_hand_name_metrics_and_methods_that_exist() -> None:
    from unlearnbench.method import methods

    text = (DOCS / "protocols.md").read_text(encoding="utf-8")
    for kind, name in re.findall(r"\]\((methods|metrics)/([a-z_-]+)\.md", text):
        assert name in ("index", "shared") or name in (methods if kind == "methods" else metrics), f"{kind}/{name}"
    for row in re.findall(r"^\| \[[^]]*\]\((methods|metrics)/([a-z_-]+)\.md\) \|(.*)$", text, re.M):
        kind, name, cells = row
        protocols = (methods if kind == "methods" else metrics).get(name).cls.protocols  # type: ignore[attr-defined]
        for named in re.findall(r"`([a-z-]+)`(?:, `([a-z-]+)`)?:", cells):
            assert all(one in protocols for one in named if one), f"{name} has no protocol {named}"
