"""Reading run folders: what is grouped, what is refused, what failed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.synthetic import TITLES, dump, key, write_results
from unlearnbench.errors import UserError
from unlearnbench.report.results import Results


def edit(file: Path, **changes: object) -> None:
    dump(file, {**json.loads(file.read_text()), **changes})


def edit_spec(folder: Path, **changes: object) -> None:
    edit(folder / "spec.json", **changes)


def one(root: Path, pattern: str) -> Path:
    (folder,) = root.glob(pattern)
    return folder


def test_groups_arms_and_seeds(tmp_path: Path) -> None:
    results = Results.load([write_results(tmp_path / "runs", seeds=3)])
    (group,) = results.groups
    assert str(group.key) == "tofu-mini, llama-mini"
    assert [arm.label for arm in group.arms] == ["target", "retrained", *sorted(TITLES)]
    masc = next(arm for arm in group.arms if arm.label == "masc")
    assert (masc.title, masc.version, masc.seeds) == ("MASC", 1, [0, 1, 2])
    assert masc.values("one_minus_rouge_l") == {0: 0.30, 1: 0.31, 2: 0.32}
    assert masc.runs[1].cost == pytest.approx(0.25 + 1.1 + 0.5)  # load, encode and evaluate do not count
    assert masc.runs[1].stop is not None and masc.runs[1].stop["step"] == 8


def test_report_needs_no_torch(tmp_path: Path) -> None:
    import subprocess
    import sys

    write_results(tmp_path / "runs")
    code = (
        "import sys; from unlearnbench.report import Results; from unlearnbench.report.leaderboard import leaderboard;"
        f"leaderboard(Results.load([{str(tmp_path / 'runs')!r}])); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2]).returncode == 0


def test_failed_runs_are_shown_with_their_reason(tmp_path: Path) -> None:
    root = write_results(tmp_path / "runs", failed={"rmu": [1], "ga": [0, 1]})
    (group,) = Results.load([root]).groups
    arms = {arm.label: arm for arm in group.arms}
    assert arms["rmu"].runs[1].status == "failed"
    assert arms["rmu"].null_reason("one_minus_prob", 1) == "failed: the forget loss is nan at step 3"
    assert arms["rmu"].values("one_minus_prob") == {0: 0.455, 1: None}
    assert arms["ga"].evaluations == [] and arms["ga"].seeds == [0, 1]


def test_keys_restrict_and_duplicates_count_once(tmp_path: Path) -> None:
    root = write_results(tmp_path / "runs")
    keys = {key("evaluate", arm, seed, "none") for arm in ("target", "retrained", "masc") for seed in (0, 1)}
    (group,) = Results.load([root], keys).groups
    assert [arm.label for arm in group.arms] == ["target", "retrained", "masc"]
    assert group.arms[2].runs[0].training is None  # the unlearn stages were not among the keys
    assert len(Results.load([root, root]).stages) == len(Results.load([root]).stages)


def test_folders_without_runs(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="There is no folder"):
        Results.load([tmp_path / "nowhere"])
    with pytest.raises(UserError, match="No finished run"):
        Results.load([tmp_path])
    root = write_results(tmp_path / "runs")
    with pytest.raises(UserError, match="No finished run"):
        Results.load([root], keys={"f" * 64})


def test_an_unfinished_folder_does_not_count(tmp_path: Path) -> None:
    root = write_results(tmp_path / "runs")
    (one(root, "unlearn-masc-s0-*") / "record.json").unlink()
    (group,) = Results.load([root]).groups
    masc = next(arm for arm in group.arms if arm.label == "masc")
    assert masc.runs[0].training is None and masc.runs[0].cost is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"model": {"name": "llama-mini", "settings": {"protocol": "muse"}}},
            ["The evaluation of tofu-mini is mixed", "protocol muse in evaluate-masc-s1"],
        ),
        ({"benchmark": {"name": "tofu-mini", "version": 2}}, ["The benchmark tofu-mini is mixed", "version 2"]),
        ({"cell": {"method": "masc", "version": 2}}, ["The method masc is mixed", "version 1", "version 2"]),
    ],
)
def test_mixtures_are_refused(tmp_path: Path, changes: dict[str, object], words: list[str]) -> None:
    root = write_results(tmp_path / "runs")
    edit(one(root, "evaluate-masc-s1-*") / "spec.json", **changes)
    with pytest.raises(UserError) as caught:
        Results.load([root])
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("change", [{"version": 2}, {"protocol": "open-unlearning"}])
def test_metric_versions_and_protocols_are_not_mixed(tmp_path: Path, change: dict[str, object]) -> None:
    root = write_results(tmp_path / "runs")
    file = one(root, "evaluate-npo-s0-*") / "metrics.json"
    entries = json.loads(file.read_text())["metrics"]
    entries[0].update(change)
    dump(file, {"metrics": entries})
    with pytest.raises(UserError, match="The metric one_minus_rouge_l on tofu-mini is mixed"):
        Results.load([root])


def test_nan_in_a_file_is_refused(tmp_path: Path) -> None:
    root = write_results(tmp_path / "runs")
    file = one(root, "evaluate-npo-s0-*") / "metrics.json"
    file.write_text(file.read_text().replace("-2.7", "NaN").replace("-2.705", "NaN"))
    with pytest.raises(UserError, match=r"metrics\.json cannot be read: it holds NaN"):
        Results.load([root])


def test_one_label_with_two_settings_becomes_two_rows(tmp_path: Path) -> None:
    root = write_results(tmp_path / "runs")
    for pattern in ("unlearn-masc-s1-*", "evaluate-masc-s1-*"):
        spec = json.loads((one(root, pattern) / "spec.json").read_text())
        edit(one(root, pattern) / "spec.json", cell={**spec["cell"], "params": {"rho": 0.5}})
    (group,) = Results.load([root]).groups
    labels = [arm.label for arm in group.arms if arm.method == "masc"]
    assert labels == ["masc", "masc[rho=0.5]"]


def test_training_settings_tell_rows_apart_where_they_are_known(tmp_path: Path) -> None:
    root = write_results(tmp_path / "runs", seeds=3)
    for seed, epochs in ((0, 4), (1, 6)):
        edit_spec(one(root, f"unlearn-masc-s{seed}-*"), settings={"epochs": epochs, "clip": None})
    (group,) = Results.load([root]).groups
    arms = {arm.label: arm.seeds for arm in group.arms if arm.method == "masc"}
    assert arms == {"masc": [2], "masc[epochs=4]": [0], "masc[epochs=6]": [1]}
    edit_spec(one(root, "unlearn-masc-s1-*"), settings={"epochs": 4, "clip": None})
    (group,) = Results.load([root]).groups
    assert [arm.seeds for arm in group.arms if arm.method == "masc"] == [[0, 1, 2]]


def test_data_that_changed_under_one_version_is_refused(tmp_path: Path) -> None:
    root = write_results(tmp_path / "runs", benchmark={"name": "tofu-mini", "version": 1, "data_hash": "aa"})
    edit_spec(one(root, "evaluate-npo-s1-*"), benchmark={"name": "tofu-mini", "version": 1, "data_hash": "bb"})
    with pytest.raises(UserError, match=r"data aa in .*; data bb in evaluate-npo-s1"):
        Results.load([root])


def test_two_evaluations_of_one_seed_are_refused(tmp_path: Path) -> None:
    root = write_results(tmp_path / "runs")
    folder = one(root, "evaluate-masc-s1-*")
    edit(folder / "spec.json", seed=0)
    with pytest.raises(UserError, match="Two evaluations of masc, seed 0"):
        _ = Results.load([root]).groups


def test_models_that_differ_are_told_apart(tmp_path: Path) -> None:
    root = write_results(tmp_path / "a", model={"name": "llama-mini", "width": 32})
    wide = write_results(tmp_path / "b", model={"name": "llama-mini", "width": 64})
    for folder in wide.iterdir():  # other keys, as another width has
        folder.rename(folder.parent / f"{folder.name[:-8]}{key(folder.name)[:8]}")
    for stage in [*root.glob("[tru]*"), *wide.glob("[tru]*")]:
        edit(stage / "spec.json", model={"name": "llama-mini", "width": 32 if stage.parent == root else 64})
    names = [group.key.model for group in Results.load([root, wide]).groups]
    assert names == ["llama-mini[width=32]", "llama-mini[width=64]"]


def test_attacked_models_are_their_own_group_and_keep_their_cost(tmp_path: Path) -> None:
    root = write_results(tmp_path / "runs")
    write_results(tmp_path / "more", attack="4bit")
    for folder in (tmp_path / "more").glob("evaluate-*"):
        if "target" not in folder.name and "retrained" not in folder.name:
            folder.rename(root / folder.name)
    plain, attacked = Results.load([root]).groups
    assert (plain.key.attack, attacked.key.attack) == ("none", "4bit")
    assert attacked.borrowed == ["target", "retrained"] and plain.borrowed == []
    assert attacked.role("retrained") is plain.role("retrained")
    masc = next(arm for arm in attacked.arms if arm.label == "masc")
    assert masc.runs[0].cost == pytest.approx(1.75)
