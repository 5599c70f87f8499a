"""Experiment files: what is accepted as meant, and what is refused with its line."""

from __future__ import annotations

import subprocess
import sys

import pytest

from unlearnbench import schema
from unlearnbench.errors import UserError

GOOD = """\
title: A comparison
benchmark: tofu-mini
model: llama-mini
target: {epochs: 18, learning_rate: 4e-3}
unlearn:
  epochs: 10
  learning_rate: 1e-3
methods:
  - npo
  - npo+klr: {beta: 0.2, unlearn: {epochs: 5}}
seeds: 2
"""


@pytest.fixture
def write(tmp_path):
    def _write(text, name="e.yaml"):
        file = tmp_path / name
        file.write_text(text)
        return file

    return _write


def problems(file, **options):
    with pytest.raises(UserError) as caught:
        schema.cells(schema.load(file, **options))
    return str(caught.value).splitlines()


def test_cells_are_complete_and_seeds_outermost(write):
    cells = schema.cells(schema.load(write(GOOD)))
    assert [(c.label, c.seed) for c in cells] == [("npo", 0), ("npo+klr", 0), ("npo", 1), ("npo+klr", 1)]
    assert cells[1].params["beta"] == 0.2 and cells[1].params["retain"] == "kl"
    assert (cells[0].settings.epochs, cells[1].settings.epochs, cells[1].settings.learning_rate) == (10, 5, 1e-3)


@pytest.mark.parametrize(
    "old, new, line, message",
    [
        ("epochs: 10", "epochs: NO", 6, 'unlearn.epochs: input should be a valid number, got "NO"'),
        ("epochs: 10", "epochs: 1_000", 6, 'unlearn.epochs: input should be a valid number, got "1_000"'),
        ("epochs: 10", "epochs: 010", 6, 'got "010"'),
        ("epochs: 10", "epochs: 12:30", 6, 'got "12:30"'),
        ("epochs: 10", "clip: None", 6, "None is a word in YAML: write null"),
        ("model: llama-mini", "model: {name: llama-mini, revision: None}", 3, "None is a word in YAML: write null"),
        ("model: llama-mini", "model: {name: llama-mini, trust_remote_code: yes}", 3, 'valid boolean, got "yes"'),
        ("epochs: 10", "select: [a]", 6, "unlearn.select: input should be 'last', or input should be an object"),
        ("seeds: 2", "seeds: [-1]", 11, "seeds.0: input should be greater than or equal to 0, got -1"),
        ("epochs: 10", "epochs: true", 6, "got true"),
        ("epochs: 10", "epochs: -1", 6, "input should be greater than 0, got -1"),
        ("epochs: 10", "epocs: 10", 6, "unknown key 'unlearn.epocs'; did you mean 'epochs'?"),
        ("seeds: 2", "seeds: 1_0", 11, 'seeds: input should be a valid array, got "1_0"'),
        ("seeds: 2", "sedes: 2", 11, "unknown key 'sedes'; did you mean 'seeds'?"),
        ("  epochs: 10", "  epochs: 10\n  epochs: 3", 7, "the key 'epochs' is given twice (first on line 6)"),
        ("  - npo\n", "  - NO\n", 9, "There is no method 'NO'; did you mean 'npo'?"),
        ("  - npo\n", "  - npo: {betta: 1}\n", 9, "unknown key 'betta'; did you mean 'beta'?"),
        ("  - npo\n", "  - npo: {beta: -1}\n", 9, "beta: input should be greater than 0, got -1"),
        ("  - npo\n", "  - npo: {beta: 1_0}\n", 9, 'beta: input should be a valid number, got "1_0"'),
        ("  - npo\n", "  - npo: {stop: {rule: violaton}}\n", 9, "did you mean 'violation'?"),
        ("  - npo\n", "  - npo\n  - npo\n", None, "the cell 'npo' is there twice"),
        ("title: A comparison\n", "", 1, "the key 'title' is missing"),
    ],
)
def test_a_mistake_is_one_line_with_its_place(write, old, new, line, message):
    assert old in GOOD
    file = write(GOOD.replace(old, new, 1))
    (found,) = problems(file)
    assert message in found
    if line is not None:
        assert f"e.yaml:{line}:" in found


def test_numbers_written_as_people_write_them(write):
    file = write(GOOD.replace("1e-3", "2e5").replace("epochs: 10", "epochs: 2.5").replace("4e-3", "1E-05"))
    experiment = schema.load(file)
    assert (experiment.unlearn.learning_rate, experiment.unlearn.epochs) == (2e5, 2.5)
    assert experiment.target.learning_rate == 1e-5


def test_words_stay_words(write):
    assert schema.load(write(GOOD.replace("A comparison", "010"))).title == "010"
    assert schema.load(write(GOOD.replace("A comparison", "NO"))).title == "NO"


def test_all_mistakes_of_a_file_come_together(write):
    file = write(GOOD.replace("epochs: 10", "epocs: 10").replace("seeds: 2", "seeds: x").replace("18", "-2"))
    assert len(problems(file)) == 3


def test_a_grid_spans_cells_and_a_plain_list_is_a_value(write):
    file = write(GOOD.replace("  - npo\n", "  - npo: {beta: {grid: [0.1, 0.5]}, unlearn: {epochs: {grid: [1, 2]}}}\n"))
    labels = [c.label for c in schema.cells(schema.load(file, seeds=[0]))]
    assert labels[:4] == [f"npo[beta={b},epochs={e}]" for b in (0.1, 0.5) for e in (1, 2)]
    (found,) = problems(write(GOOD.replace("  - npo\n", "  - npo: {beta: [0.1, 0.5]}\n")))
    assert "beta" in found


def test_a_grid_inside_a_mapping_spans_cells(write):
    line = "  - masc: {stop: {rule: violation, alpha: {grid: [.3, .475]}}, unlearn: {lora: {r: {grid: [2, 4]}}}}\n"
    cells = schema.cells(schema.load(write(GOOD.replace("  - npo\n", line)), seeds=[0]))[:4]
    wanted = [(alpha, r) for alpha in (0.3, 0.475) for r in (2, 4)]
    assert [(c.params["stop"]["alpha"], c.settings.lora.r) for c in cells] == wanted
    assert [c.label for c in cells] == [f"masc[stop.alpha={alpha},lora.r={r}]" for alpha, r in wanted]
    assert cells[0].title.endswith("[stop.alpha=0.3,lora.r=2]")
    (found,) = problems(
        write(GOOD.replace("  - npo\n", "  - npo: {stop: {rule: violation, alpha: {grid: [.3, 7]}}}\n"))
    )
    assert "e.yaml:9:" in found and "alpha 7" in found


def test_a_grid_of_stop_rules(write):
    line = "  - npo: {stop: {grid: [{rule: budget}, {rule: violation, alpha: 0.5}]}}\n"
    cells = schema.cells(schema.load(write(GOOD.replace("  - npo\n", line)), seeds=[0]))[:2]
    assert [c.params["stop"]["rule"] for c in cells] == ["budget", "violation"]
    assert len({c.label for c in cells}) == 2


def test_extends_merges_mappings_and_replaces_lists(write):
    write(GOOD, "parent.yaml")
    child = write("extends: parent.yaml\nunlearn: {epochs: 3}\nmethods: [ga]\n", "child.yaml")
    experiment = schema.load(child)
    assert (experiment.unlearn.epochs, experiment.unlearn.learning_rate) == (3, 1e-3)
    assert [m.name for m in experiment.methods] == ["ga"]
    (found,) = problems(write("extends: parent.yaml\nunlearn: {epocs: 3}\n", "child.yaml"))
    assert "child.yaml:2:" in found
    (found,) = problems(write("extends: child.yaml\n", "child.yaml"))
    assert "extends itself" in found


def test_overrides_methods_and_seeds(write):
    file = write(GOOD)
    experiment = schema.load(
        file, ["unlearn.epochs=5", "methods.npo.beta=0.4", "model.width=32"], methods=["npo", "ga"], seeds=[7]
    )
    cells = schema.cells(experiment)
    assert [(c.label, c.seed) for c in cells] == [("npo", 7), ("ga", 7)]
    assert cells[0].params["beta"] == 0.4 and cells[0].settings.epochs == 5
    assert experiment.model.name == "llama-mini" and experiment.model.width == 32
    assert "no method 'rmu'" in problems(file, overrides=["methods.rmu.layer=1"])[0]
    assert "--set takes" in problems(file, overrides=["unlearn.epochs"])[0]


def test_a_mistake_from_the_command_line_names_the_option(write):
    file = write(GOOD)
    assert problems(file, overrides=["unlearn.epochs=-1"])[0].startswith("--set unlearn.epochs: unlearn.epochs: input")
    assert problems(file, overrides=["methods.npo.betta=1"])[0].startswith("--set methods.npo.betta: method 'npo'")
    assert problems(file, methods=["npo", "npoo"])[0].startswith("--methods: There is no method 'npoo'")
    assert "did you mean 'npo+klr'" in problems(file, overrides=["methods.npo+kl.beta=1"])[0]


def test_methods_keep_their_lines_when_others_are_left_out(write):
    file = write(GOOD.replace("beta: 0.2", "beta: -0.2"))
    (found,) = problems(file, methods=["ga", "npo+klr"])
    assert "e.yaml:10: method 'npo+klr': beta: input should be greater than 0" in found


def test_retrained_is_trained_as_the_target_but_for_what_it_says(write):
    experiment = schema.load(write(GOOD + "retrained: {epochs: 3}\n"))
    assert (experiment.retrained.epochs, experiment.retrained.learning_rate) == (3, 4e-3)
    assert schema.load(write(GOOD)).retrained is None


@pytest.mark.parametrize(
    "content, message",
    [
        (b"\xff\xfe\x00", "cannot be read as text"),
        (b"", "an experiment is a mapping of keys"),
        (b"- 1\n", "an experiment is a mapping of keys"),
        (b"a: [1\n", "e.yaml:2: not YAML"),
        (b"a: &a [*a]\n", "contains itself"),
        (b"a: 1\n---\nb: 2\n", "not YAML"),
        (b"a: \x07\n", "not YAML"),
    ],
)
def test_a_file_that_is_no_experiment_is_one_line(write, content, message):
    file = write("")
    file.write_bytes(content)
    (found,) = problems(file)
    assert message in found and str(file) in found


def test_unknown_experiment_names_the_nearest():
    with pytest.raises(UserError, match="There is no experiment 'quickstar'"):
        schema.load("quickstar")


def test_reading_a_file_imports_no_torch(write):
    load = f"import sys; from unlearnbench import schema; schema.load({str(write(GOOD))!r})"
    code = f"{load}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_an_unlearn_value_from_the_command_line_holds_for_every_method(write):
    cells = schema.cells(schema.load(write(GOOD), ["unlearn.epochs=7"], seeds=[0]))
    assert [cell.settings.epochs for cell in cells] == [7, 7]


def test_a_grid_in_model_or_benchmark_spans_variants(write):
    grid = "benchmark: {name: tofu-mini, forget: {grid: [forget05, forget10]}}\n"
    file = write(
        GOOD.replace("benchmark: tofu-mini\n", grid).replace(
            "model: llama-mini\n", "model: {name: llama-mini, width: {grid: [32, 64]}}\n"
        )
    )
    experiment = schema.load(file)
    found = [(e.benchmark.options["forget"], e.model.width) for e in experiment.each()]
    assert found == [("forget05", 32), ("forget05", 64), ("forget10", 32), ("forget10", 64)]
    assert experiment.model.width == 32 and all(not e.variants for e in experiment.each())
    one = schema.load(file, ["model.width=48", "benchmark.forget=forget20"])
    assert [(e.benchmark.options["forget"], e.model.width) for e in one.each()] == [("forget20", 48)]


def test_mistakes_in_a_grid_of_models_are_told_once_with_their_line(write):
    file = write(GOOD.replace("model: llama-mini\n", "model: {name: llama-mini, width: {grid: [64, 3]}, hight: 2}\n"))
    found = problems(file)
    assert len(found) == 2 and all(":3:" in line for line in found)
    assert "unknown key 'model.hight'" in found[0] or "unknown key 'model.hight'" in found[1]


def test_a_claim_about_what_does_not_exist_is_refused_with_its_line(write):
    from unlearnbench.plan import plan

    claims = """\
claims:
  - {claim: a, kind: superiority, metric: one_minus_prob, of: npoo, against: [npo], better: higher}
  - {claim: b, kind: superiority, metric: one_minus_prop, of: npo, against: [npo+klr], better: higher}
  - {claim: c, kind: superiority, metric: seconds, of: npo, after: 5bit, against: [target], better: lower}
"""
    with pytest.raises(UserError) as caught:
        plan(schema.load(write(GOOD + claims)))
    lines = str(caught.value).splitlines()
    assert len(lines) == 3
    assert ":13:" in lines[0] and "npoo" in lines[0] and "'npo'" in lines[0]
    assert ":14:" in lines[1] and "one_minus_prob" in lines[1]
    assert ":15:" in lines[2] and "4bit" in lines[2]
    (found,) = problems(write(GOOD + claims.replace("against: [npo]", "agains: [npo]").split("  - {claim: b")[0]))
    assert ":13:" in found and "agains" in found


STOPS = "stops: {budget: {rule: budget}, early: {rule: violation, alpha: 0.4}}\n"


def test_stops_cross_every_method_with_every_rule(write):
    cells = schema.cells(schema.load(write(GOOD + STOPS), seeds=[0]))
    assert [cell.label for cell in cells] == [
        "npo[stop=budget]", "npo[stop=early]", "npo+klr[stop=budget]", "npo+klr[stop=early]"
    ]  # fmt: skip
    assert [cell.params["stop"]["rule"] for cell in cells] == ["budget", "violation"] * 2
    assert cells[3].params["stop"]["alpha"] == 0.4 and cells[3].params["beta"] == 0.2


@pytest.mark.parametrize(
    "old, new, message",
    [
        ("- npo\n", "- npo: {stop: {rule: budget}}\n", "`stop` stands beside `stops`"),
        ("rule: violation", "rule: violatoin", "did you mean 'violation'"),
        ("alpha: 0.4", "alpha: 1.4", "must be in [0, 1]"),
        ("- npo\n", "- task-vector\n", "stop"),
    ],
)
def test_stops_that_cannot_be_are_one_line(write, old, new, message):
    found = problems(write((GOOD + STOPS).replace(old, new)))
    assert found and all(message in line for line in found)
