"""Every packaged experiment: it can be read and planned without network, and says how it is run and what it takes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from unlearnbench import schema
from unlearnbench.errors import UserError
from unlearnbench.plan import outline, plan

FOLDER = Path(__file__).parents[2] / "experiments"
NAMES = sorted(file.stem for file in FOLDER.glob("*.yaml"))
#: experiments of published models and data; the others are embedded, or name folders of the user's own
PAPERS = ("masc-", "open-unlearning-")


@pytest.mark.parametrize("name", NAMES)
def test_the_file_opens_with_its_command_and_what_it_takes(name: str) -> None:
    first = (FOLDER / f"{name}.yaml").read_text(encoding="utf-8").splitlines()[0]
    assert re.match(rf"# unlearnbench (run|reproduce) {re.escape(name)}\b.*\s{{4,}}\S", first), first
    assert "@@" not in first


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith(PAPERS)])
def test_every_experiment_of_a_paper_can_be_planned_without_network(name: str) -> None:
    experiment = schema.load(name, seeds=[0])
    stages = outline(experiment)
    kinds = [planned.stage.kind for planned in stages]
    cells = len(schema.cells(experiment)) * max(1, len(experiment.variants))
    assert kinds.count("unlearn") == cells
    attacked = len(experiment.attacks)
    trained = max(1, len(experiment.variants))
    assert kinds.count("target") == kinds.count("retrained") == trained
    assert kinds.count("evaluate") == cells * attacked + trained * (1 + attacked)
    assert name.endswith("-mini") == all(not planned.unknown for planned in stages)


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith(PAPERS) and not name.endswith("-mini")])
def test_every_experiment_of_a_paper_has_a_sibling_in_miniature(name: str) -> None:
    mini = schema.load(f"{name}-mini")
    assert {claim.claim for claim in schema.load(name).claims} == {claim.claim for claim in mini.claims}
    assert mini.benchmark.name.endswith("-mini") and len(mini.seeds) >= 3


def test_an_outline_still_refuses_what_does_not_exist(tmp_path: Path) -> None:
    def found(*overrides: str) -> str:
        with pytest.raises(UserError) as caught:
            outline(schema.load("masc-tofu", overrides))
        return str(caught.value)

    assert "llama-mini" in found("model.name=lama-mini")
    assert "forget10" in found("benchmark.forget=forget11")
    assert "does not take" in found("benchmark.frget=forget10")
    assert "no config.json" in found(f"model.name={tmp_path}")
    with pytest.raises(UserError):
        plan(schema.load("masc-tofu", [f"benchmark.data_dir={tmp_path}"]))
