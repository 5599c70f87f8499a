"""`unlearnbench unlearn`: a model that knows its records by heart, two files, one command, no network."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.e2e.test_run import environment
from tests.support.memorised import Memorised, memorise
from unlearnbench import delivery
from unlearnbench.benchmarks.sources import read
from unlearnbench.comparison import Line, _damage, _still_known
from unlearnbench.errors import UserError


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Memorised:
    """A folder with a model in bfloat16 that knows its records."""
    return memorise(tmp_path_factory.mktemp("own"), "bfloat16")


def run(request: delivery.Request, folder: Path, **options: Any) -> tuple[bool, str]:
    """(whether it failed, what was printed)"""
    console = Console(record=True, width=100, file=sys.stderr)
    failed = delivery.unlearn(request, root=folder / "runs", console=console, **options)
    return failed, console.export_text()


@pytest.fixture(scope="module")
def done(own: Memorised, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder that the command wrote with its defaults, and what it printed."""
    folder = tmp_path_factory.mktemp("done")
    request = delivery.Request(str(own.model), own.forget, own.retain, own.holdout, out=folder / "out")
    failed, said = run(request, folder)
    assert not failed, said
    return folder / "out", said


def scores(out: Path) -> dict[str, tuple[float | None, float | None]]:
    content = json.loads((out / "record" / "scores.json").read_text())
    return {line["name"]: (line["before"], line["after"]) for line in content["scores"]}


def test_it_forgets_and_answers_the_rest_as_before(done: tuple[Path, str]) -> None:
    found = scores(done[0])
    assert found["forget_exact"] == (1.0, 0.0)
    assert found["forget_prob"][0] > 0.95 and found["forget_prob"][1] < 0.4
    assert found["retain_exact"][0] == 1.0 and found["retain_exact"][1] >= 0.9
    assert found["retain_unchanged"][1] >= 0.9 and found["retain_rouge_l"][1] >= 0.95
    assert found["probe_violation_rate"][0] > 0.9 > 0.5 > found["probe_violation_rate"][1]
    assert found["mink_auc"][0] == 1.0


def test_it_says_what_it_will_do_and_what_came_of_it(done: tuple[Path, str], own: Memorised) -> None:
    out, said = done
    plain = " ".join(said.split())
    assert "forget 8 rows" in plain and "retain 16 rows" in plain and "tokens to answer" in plain
    assert "at most 200 steps of 8 forget rows" in plain and "memory about" in plain
    assert "before after" in plain and "Exact match 1.00 0.00" in plain
    assert "warning" not in said and f"written: {out}" in said.replace("\n", "")


def test_a_fresh_python_with_plain_transformers_loads_it(done: tuple[Path, str], own: Memorised) -> None:
    """In the dtype of the original, with its chat template; it answers the retain questions as the original does."""
    code = (
        "import json, sys, torch\n"
        "from transformers import AutoModelForCausalLM, AutoTokenizer\n"
        "said = {}\n"
        "for name in sys.argv[1:3]:\n"
        "    tokenizer, model = AutoTokenizer.from_pretrained(name), AutoModelForCausalLM.from_pretrained(name)\n"
        "    said[name] = [str(model.dtype)]\n"
        "    for line in open(sys.argv[3]):\n"
        "        turns = [{'role': 'user', 'content': json.loads(line)['question']}]\n"
        "        ids = tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_tensors='pt', "
        "return_dict=True)\n"
        "        new = model.generate(**ids, max_new_tokens=60, do_sample=False)[0, ids['input_ids'].shape[1]:]\n"
        "        said[name].append(tokenizer.decode(new, skip_special_tokens=True))\n"
        "print(json.dumps(list(said.values())))\n"
        "assert 'unlearnbench' not in sys.modules\n"
    )
    command = [sys.executable, "-c", code, str(own.model), str(done[0]), str(own.retain)]
    found = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=300)
    assert found.returncode == 0, found.stderr[-2000:]
    before, after = json.loads(found.stdout.strip().splitlines()[-1])
    assert before[0] == after[0] == "torch.bfloat16"
    same = sum(a == b for a, b in zip(before[1:], after[1:], strict=True))
    assert same >= 0.9 * (len(before) - 1)


def test_the_folder_holds_none_of_the_records(done: tuple[Path, str], own: Memorised) -> None:
    """The card and the record name counts and hashes: no question, no answer, no name of a person, no path."""
    texts = "".join(f.read_text() for f in done[0].rglob("*") if f.suffix in (".md", ".json", ".jsonl") and
                    not f.name.startswith("tokenizer"))  # fmt: skip
    for line in read(own.forget):
        for said in (line.content["question"], line.content["answer"], line.content["group"]):
            assert said not in texts
    assert str(own.forget.parent) not in (done[0] / "README.md").read_text()


def test_the_card_says_what_how_how_well_and_how_to_repeat_it(done: tuple[Path, str], own: Memorised) -> None:
    import hashlib

    card = (done[0] / "README.md").read_text()
    assert card.startswith("---\nbase_model: model\n")
    assert f"| forget | 8 | forget.jsonl | `{hashlib.sha256(own.forget.read_bytes()).hexdigest()}` |" in card
    assert "| forget | Exact match | 1.00 | 0.00 |" in card and "violation rate" in card
    assert '"learning_rate"' in card and '"rule": "violation"' in card and "no proof of erasure" in card
    assert "unlearnbench unlearn model --forget forget.jsonl --retain retain.jsonl" in card
    record = json.loads((done[0] / "record" / "record.json").read_text())
    assert record["key"] in card and record["weights"] in card and record["stop"]["rows"] == 8


def test_done_again_nothing_is_trained(done: tuple[Path, str], own: Memorised) -> None:
    out = done[0]
    before = (out / "model.safetensors").read_bytes()
    request = delivery.Request(str(own.model), own.forget, own.retain, own.holdout, out=out)
    failed, said = run(request, out.parent)
    assert not failed and said.count("reused 1 of 1 stages") == 1 and "reused 2 of 2 stages" in said
    assert (out / "model.safetensors").read_bytes() == before


def test_too_few_steps_are_reported_as_a_failure(own: Memorised, tmp_path: Path) -> None:
    """An adapter of one step: the rows are still known, and the exit code says so. No retain file: a warning."""
    overrides = ("unlearn.max_steps=1", "unlearn.learning_rate=1e-5")
    request = delivery.Request(str(own.model), own.forget, lora=True, adapter=True, overrides=overrides,
                               out=tmp_path / "out")  # fmt: skip
    failed, said = run(request, tmp_path, tidy=True)
    assert failed and "forgetting failed: Exact match (forget) 1.00 → 1.00" in said
    assert "without --retain" in said and "no retain rows" in said and "stop rule never held" in said
    assert "retain_exact" not in scores(tmp_path / "out")
    assert (tmp_path / "out" / "adapter_model.safetensors").is_file()
    assert not list((tmp_path / "runs").glob("*-*"))
    from peft import AutoPeftModelForCausalLM

    adapted = AutoPeftModelForCausalLM.from_pretrained(tmp_path / "out")
    assert any("lora_A" in name for name, _ in adapted.named_parameters())
    assert "Warning:** forgetting failed" in (tmp_path / "out" / "README.md").read_text()


JUDGED = [
    ([("forget_prob", "forget", 0.9, 0.5)], ["forgetting failed"]),
    ([("forget_prob", "forget", 0.9, 0.4), ("forget_exact", "forget", 1.0, 0.0)], []),
    ([("forget_prob", "forget", 0.2, 0.2), ("forget_exact", "forget", 0.0, 0.0)], []),
    ([("forget_exact", "forget", 1.0, 0.2), ("forget_fact", "forget", 1.0, 0.5)], ["forgetting failed"] * 2),
    ([("verbmem_forget", "forget", 90.0, 60.0)], ["forgetting failed"]),
    ([("verbmem_forget", "forget", 25.0, 20.0)], []),
    ([("retain_exact", "retain", 1.0, 0.85), ("retain_prob", "retain", 0.9, 0.85)], ["the retain side was damaged"]),
    ([("retain_rouge_l", "retain", None, None)], []),
]


@pytest.mark.parametrize(("scored", "found"), JUDGED)
def test_what_counts_as_failed_and_as_damaged(scored: list[tuple[Any, ...]], found: list[str]) -> None:
    """On each metric's own scale: VerbMem is out of 100."""
    lines = [Line(name, side, "x", before, after) for name, side, before, after in scored]
    assert [text.partition(":")[0] for text in [*_still_known(lines), *_damage(lines)]] == found


def test_the_command_line_hands_everything_over(
    own: Memorised, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from unlearnbench import cli

    asked: list[delivery.Request] = []
    monkeypatch.setattr(delivery, "unlearn", lambda request, **options: asked.append(request) or True)
    words = f"unlearn {own.model} --forget a.jsonl --retain b.jsonl --holdout c.jsonl --method npo --set beta=0.2"
    words += " --set unlearn.epochs=3 --adapter --out d --seed 4 --dry-run"
    monkeypatch.setattr(sys, "argv", ["unlearnbench", *words.split()])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 1
    files = [Path(f"{name}.jsonl") for name in "abc"]
    overrides = ("beta=0.2", "unlearn.epochs=3")
    assert asked == [delivery.Request(str(own.model), *files, "npo", overrides, True, True, 4, Path("d"))]


# -- before anything is done -----------------------------------------------------------------------------------


def test_a_dry_run_shows_the_plan_and_does_nothing(own: Memorised, tmp_path: Path) -> None:
    overrides = ("rho=0.6", "unlearn.batch_size=4", "stop.alpha=0.3", "max_new_tokens=16")
    request = delivery.Request(str(own.model), own.forget, own.retain, overrides=overrides, out=tmp_path / "out")
    failed, said = run(request, tmp_path, dry_run=True)
    assert not failed and "at most 200 steps of 4 forget rows" not in said and "steps of 4 forget rows" in said
    assert list(tmp_path.iterdir()) == []
    experiment = delivery.experiment_of(request)
    (method,) = experiment.methods
    assert experiment.max_new_tokens == 16
    assert method.params["rho"] == 0.6 and method.params["stop"]["alpha"] == 0.3
    assert method.params["stop"]["source"] == "first"


def test_every_row_is_trained_on_and_probed(own: Memorised) -> None:
    """A request to delete is about these records: none is kept out of training, whatever the method's own rule does."""
    for method in ("masc", "masc@tofu", "npo+klr", "ga"):
        stop = (
            delivery.experiment_of(delivery.Request(str(own.model), own.forget, own.retain, method=method))
            .methods[0]
            .params["stop"]
        )
        assert stop["source"] == "first" and stop["rule"] == "violation", method


@pytest.mark.parametrize(("parameters", "lora", "rate"), [
    (7_000_000_000, False, 1e-5), (7_000_000_000, True, 1e-4), (125_000_000, False, 2e-5), (0, True, 2.2),
])  # fmt: skip
def test_smaller_models_take_larger_steps(parameters: int, lora: bool, rate: float) -> None:
    assert delivery.learning_rate(parameters, lora) == pytest.approx(rate, rel=0.05)


MISTAKES = [
    ({"forget": "missing.jsonl"}, "There is no file"),
    ({"method": "mascc"}, "There is no method 'mascc'; did you mean 'masc'?"),
    ({"model": "nowhere"}, "There is no model 'nowhere'"),
    ({"model": "llama-mini"}, "The embedded model 'llama-mini' is untrained"),
    ({"overrides": ("rhoo=0.5",)}, "unknown key 'rhoo'; did you mean 'rho'?"),
    ({"overrides": ("unlearn.epocs=5",)}, "did you mean 'epochs'?"),
    ({"method": "npo+klr", "retain": None, "overrides": ("retain=kl",)}, "needs retain rows"),
]


@pytest.mark.parametrize(("change", "message"), MISTAKES, ids=[message[:30] for _, message in MISTAKES])
def test_a_mistake_is_one_line(own: Memorised, tmp_path: Path, change: dict[str, Any], message: str) -> None:
    values: dict[str, Any] = {"model": str(own.model), "forget": own.forget, "retain": own.retain}
    values |= {k: Path(v) if k == "forget" else v for k, v in change.items()}
    with pytest.raises(UserError) as caught:
        run(delivery.Request(**values, out=tmp_path / "out"), tmp_path, dry_run=True)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_a_bad_row_is_named_with_file_and_line(own: Memorised, tmp_path: Path) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"question": "a?", "answer": "b"}\n{"question": "c?"}\n')
    with pytest.raises(UserError, match=f"{bad}:2: the key 'answer' is missing"):
        run(delivery.Request(str(own.model), bad, own.retain, out=tmp_path / "out"), tmp_path)


def test_rows_on_both_sides_are_reported(own: Memorised, tmp_path: Path) -> None:
    both = tmp_path / "both.jsonl"
    both.write_text(own.retain.read_text() + own.forget.read_text().splitlines()[0] + "\n")
    _, said = run(delivery.Request(str(own.model), own.forget, both, out=tmp_path / "out"), tmp_path, dry_run=True)
    assert "1 rows of" in said and "forget-0001 = retain-0017" in said


def test_a_folder_of_somebody_else_is_not_overwritten(own: Memorised, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("years of work")
    with pytest.raises(UserError, match="was not made by this command"):
        run(delivery.Request(str(own.model), own.forget, own.retain, out=tmp_path / "out"), tmp_path)
    assert (tmp_path / "out" / "thesis.txt").read_text() == "years of work"
