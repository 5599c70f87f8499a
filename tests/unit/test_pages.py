"""The generated pages of docs/: they are those that the code gives, and what they say was counted or computed."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from unlearnbench.method import Method, Step, Terms, methods
from unlearnbench.pages import costs, write
from unlearnbench.pages import methods as method_pages
from unlearnbench.pages.costs import Pass
from unlearnbench.pages.markdown import prose, table
from unlearnbench.registry import Entry

ROOT = Path(__file__).parents[2]
CLASSES = method_pages.classes()


@pytest.fixture(scope="module")
def found() -> dict[str, str]:
    return write.generated()


def test_committed_pages_are_what_the_code_gives(found: dict[str, str]) -> None:
    assert write.differing(found, ROOT / "docs") == [], "run: python -m unlearnbench.pages --out docs"
    config = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert write.navigation(found, config) == config, "run: python -m unlearnbench.pages --out docs"


def test_a_method_that_changes_without_its_page_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    npo = inspect.getmodule(methods.get("npo").cls)
    assert npo is not None and npo.__doc__ is not None
    before = method_pages.page(methods.get("npo"))
    monkeypatch.setattr(npo, "__doc__", npo.__doc__.replace("softplus", "relu"))
    after = method_pages.page(methods.get("npo"))
    assert before != after
    assert write.differing({"methods/npo.md": write.NOTE + after}, ROOT / "docs") != []


def test_pages_are_written_and_old_ones_removed(tmp_path: Path) -> None:
    (tmp_path / "mine.md").write_text("# By hand\n")
    assert write.write({"a/b.md": write.NOTE + "# One\n"}, tmp_path) == ["a/b.md"]
    assert write.differing({"a/b.md": write.NOTE + "# One\n"}, tmp_path) == []
    assert write.write({"c.md": write.NOTE + "# Two\n"}, tmp_path) == ["a/b.md", "c.md"]
    assert sorted(file.name for file in tmp_path.rglob("*.md")) == ["c.md", "mine.md"]


def test_navigation_keeps_what_is_written_by_hand() -> None:
    things = "      # things/\n      - Old: things/old.md\n      # end\n"
    config = f"nav:\n  - Home: index.md\n  - Things:\n{things}  - End: z.md\n"
    new = write.navigation({"things/a.md": "<!-- -->\n\n# A: b\n", "other/c.md": "# C\n"}, config)
    assert new.splitlines() == [
        "nav:",
        "  - Home: index.md",
        "  - Things:",
        "      # things/",
        '      - "A: b": things/a.md',
        "      # end",
        "  - End: z.md",
    ]
    assert write.navigation({"things/a.md": "# A: b\n"}, new) == new


@pytest.mark.parametrize("entry", CLASSES, ids=lambda entry: entry.name)
def test_every_method_says_its_equation_and_how_it_differs(entry: Entry, found: dict[str, str]) -> None:
    text = found[f"methods/{entry.name}.md"]
    loss, _, rest = text.partition("## Loss")[2].partition("## Differences from the reference code")
    assert "```text\n" in loss, "the module's docstring has no indented equation"
    assert rest.partition("##")[0].strip(), "the module's docstring does not say how it differs from the reference code"
    assert all(f"`{name}`" in text for name in entry.cls.protocols if len(entry.cls.protocols) > 1)  # type: ignore[attr-defined]
    assert all(f"`{preset.name}`" in text for preset in method_pages.presets(entry))


def test_every_name_stands_in_the_table(found: dict[str, str]) -> None:
    for entry in methods:
        assert not entry.built_in or f"[`{entry.name}`](" in found["methods/index.md"]


# -- costs -----------------------------------------------------------------------------------------------------


class TwiceOverForget(Method):
    """Runs the forget rows forward a second time, and the retain rows' hidden states."""

    def forget_loss(self, step: Step) -> Terms:
        return Terms(step.forget.full_logits.square().mean((1, 2)) + step.forget.hidden(0.5).square().mean((1, 2)))


def test_passes_are_counted_by_model_rows_and_depth() -> None:
    found = costs.measure(TwiceOverForget(retain="kl"))
    assert found.step == {
        Pass("policy", "forget", "all logits", True): 1.0,
        Pass("policy", "forget", "hidden", True): 0.5,
        Pass("policy", "retain", "answers", True): 1.0,
        Pass("reference", "retain", "answers", False): 1.0,
    }
    assert found.total(backward=False) == 3.5 and found.total(backward=True) == 2.5
    assert found.copies == 1.0 and found.prepare == {} and found.numbers == 0


def test_the_reference_is_a_copy_or_the_adapter_switched_off() -> None:
    assert method_pages.costs("npo").copies == 0  # its forget log-probabilities are cached: one number a token
    assert method_pages.costs("npo").numbers == 1
    assert method_pages.costs("npo+klr").copies == 1
    assert method_pages.costs("npo+klr", lora=True).copies == 0


def test_what_comes_before_the_first_step_is_counted() -> None:
    found = method_pages.costs("whp")
    assert found.prepare[Pass("policy", "forget", "answers", True)] == 10  # its `epochs`, on a second model
    assert found.copies_prepare == 1 and found.copies == 0
    assert method_pages.costs("altpo").samples == methods.get("altpo").build().per_row


# -- Markdown --------------------------------------------------------------------------------------------------


def test_prose_keeps_equations_and_escapes_html() -> None:
    assert prose("    a = b\n    c < d") == "```text\na = b\nc < d\n```"
    assert prose("p(y_t | y_<t),\nsee `y_<t`") == "p(y_t | y_&lt;t), see `y_<t`"
    assert prose("as in arXiv:2404.05868") == "as in [arXiv:2404.05868](https://arxiv.org/abs/2404.05868)"
    assert prose("- one\n- two") == "- one\n- two"


def test_table_escapes_bars_and_is_nothing_without_rows() -> None:
    assert table(("a",), [("p(x|y)",)]) == "| a |\n| --- |\n| p(x\\|y) |"
    assert table(("a",), []) == ""
