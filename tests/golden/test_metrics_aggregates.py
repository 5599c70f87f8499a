"""Aggregates against values obtained by running the public code on per-sample numbers (`metrics_aggregates*`).

A stored log becomes answers of one token each, so that the registered metrics compute on it as on any run. A section,
metric or expected value this file does not know fails.
"""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from unlearnbench.benchmarks.base import Benchmark, Row
from unlearnbench.evaluation import Evaluation, rescore
from unlearnbench.metric import Context, Score, TokenScores, Value, metrics
from unlearnbench.metrics.forget_quality import ks_test
from unlearnbench.metrics.membership import auc
from unlearnbench.metrics.model_utility import KINDS, SPLITS, harmonic_mean
from unlearnbench.metrics.privleak import privleak, rel_diff

FOLDER = Path(os.environ.get("UNLEARNBENCH_GOLDEN_DIR", Path(__file__).parent / "data"))
FILES = sorted(FOLDER.glob("metrics_aggregates*.json"))
CONTENT = {file.stem: json.loads(file.read_text()) for file in FILES}
META = {"description", "seed", "tolerance"}
LOGS = {
    "eval_real_author_wo_options.json": "real_authors",
    "eval_real_world_wo_options.json": "world_facts",
    "eval_log.json": "retain",
    "eval_log_forget.json": "forget",
}
OU = "open-unlearning"
Log = dict[str, dict[str, Any]]


class Stored(Benchmark):
    name = "stored"


def evaluate(logs: dict[str, Log], names: list[str], retrained: Evaluation | None = None) -> Evaluation:
    """A log as an evaluation: losses become answers of one token, ROUGE scores are given."""
    splits: dict[str, list[Row]] = {}
    answers: dict[Any, Any] = {}
    given = {}
    for split, log in logs.items():
        splits[split] = []
        for index in log["avg_gt_loss"]:
            wrong = log["average_perturb_loss"][index]
            row = Row(
                f"{split}-{index}",
                f"{split} {index}?",
                "answer",
                paraphrased_answer="paraphrase",
                perturbed=tuple(f"wrong {i}" for i in range(len(wrong))),
            )
            splits[split].append(row)
            losses = [log["avg_gt_loss"][index], log["avg_paraphrased_loss"][index], *wrong]
            texts = [row.answer, row.paraphrased_answer, *row.perturbed]
            for text, loss in zip(texts, losses, strict=True):
                answers[Score(row.prompt, text)] = TokenScores(np.array([-loss]), np.array([False]))
        rouge = Value.mean_of({f"{split}-{i}": number for i, number in log["rougeL_recall"].items()})
        given |= {f"{split}_rouge_l{at}": rouge for at in ("", "@tofu", f"@{OU}")}
    return rescore(answers, Stored(splits), names, retrained, given)


def tofu_names(kind: str, text: str, protocol: str) -> dict[str, str]:
    """Names of TOFU's two scripts -> ours."""
    template = "{0} {1}" if kind == "aggregate" else "{1} {0}"
    words = {
        "ROUGE": "rouge_l",
        ("Prob." if kind == "aggregate" else "Probability"): "prob",
        "Truth Ratio": "truth_ratio",
    }
    sides = {"Real Authors": "real_authors", "Real World": "world_facts", "Retain": "retain", "Forget": "forget"}
    names = {}
    for word, ours in words.items():
        at = protocol if ours == "truth_ratio" else "tofu"
        names |= {template.format(word, side): f"{split}_{ours}@{at}" for side, split in sides.items()}
    return {**names, "Model Utility": f"model_utility@{protocol}"}


AGGREGATE = tofu_names("aggregate", "", "tofu")
UTILS = tofu_names("utils", "", "tofu-arithmetic")
PARTS = {
    **{f"retain_{theirs}": f"retain_{ours}" for theirs, ours in (("Q_A_Prob", "prob"), ("Q_A_ROUGE", "rouge_l"))},
    **{
        f"{short}_{theirs}": f"{split}_{ours}"
        for short, split in (("ra", "real_authors"), ("wf", "world_facts"))
        for theirs, ours in (("Q_A_Prob_normalised", "prob"), ("Q_A_ROUGE", "rouge_l"), ("Truth_Ratio", "truth_ratio"))
    },
    "retain_Truth_Ratio": "retain_truth_ratio",
}
SHORT = {"forget": "forget", "retain": "retain", "ra": "real_authors", "wf": "world_facts"}
FORMS = {"closer_to_1_better": "symmetric", "true_better": "clipped", "prob_mean": "preference"}


@pytest.fixture(params=[(s, i) for s, c in CONTENT.items() for i in range(len(c["tofu_logs"]))], ids=str)
def log(request: pytest.FixtureRequest) -> tuple[dict[str, Any], Evaluation, float, float]:
    """One stored log: its expected values, its evaluation, and the two tolerances."""
    stem, number = request.param
    case, tolerance = CONTENT[stem]["tofu_logs"][number], CONTENT[stem]["tolerance"]
    assert tolerance.keys() == {"rel", "pvalue_rel"}
    assert case.keys() == {"logs", "retain_model_forget_log", "expected"} and case["logs"].keys() == LOGS.keys()
    assert case["expected"].keys() == {"tofu_aggregate_eval_stat", "tofu_utils", "open_unlearning"}
    names = [
        *AGGREGATE.values(),
        *UTILS.values(),
        f"model_utility@{OU}",
        "model_utility",
        "forget_prob",
        "forget_truth_ratio",
    ]
    names += [f"forget_quality@{at}" for at in ("tofu", OU)]
    retrained = evaluate(
        {"forget": case["retain_model_forget_log"]}, [f"forget_log_truth_ratio@{at}" for at in ("tofu", OU)]
    )
    mine = evaluate({split: case["logs"][file] for file, split in LOGS.items()}, names, retrained)
    return case["expected"], mine, tolerance["rel"], tolerance["pvalue_rel"]


def same(found: float | None, expected: float, rel: float) -> None:
    assert found == pytest.approx(expected, rel=rel, abs=0.0)


def test_tofu_aggregate(log: Any) -> None:
    expected, mine, rel, pvalue_rel = log
    numbers = {k: v for k, v in expected["tofu_aggregate_eval_stat"].items() if k != "source"}
    quality = mine.values["forget_quality@tofu"]
    same(quality.details["p"], numbers.pop("Forget Quality"), pvalue_rel)
    same(10**quality.score, quality.details["p"], 1e-12)
    same(quality.details["ks"], numbers.pop("KS Test Forget"), rel)
    assert numbers.keys() == AGGREGATE.keys()
    for name, number in numbers.items():
        same(mine.values[AGGREGATE[name]].score, number, rel)
        same(mine.values[AGGREGATE[name].split("@")[0]].score, number, rel)  # ours is TOFU's own definition


def test_tofu_utils(log: Any) -> None:
    expected, mine, rel, _ = log
    numbers = {k: v for k, v in expected["tofu_utils"].items() if k != "source"}
    assert numbers.keys() == UTILS.keys()
    for name, number in numbers.items():
        same(mine.values[UTILS[name]].score, number, rel)


def test_open_unlearning(log: Any) -> None:
    expected, mine, rel, pvalue_rel = log
    theirs = {k: v for k, v in expected["open_unlearning"].items() if k != "source"}
    assert theirs.keys() == {"metrics", "forget_quality_ks_pvalue", "model_utility_parts", "model_utility"}
    same(mine.values[f"forget_quality@{OU}"].details["p"], theirs["forget_quality_ks_pvalue"], pvalue_rel)
    same(mine.values[f"model_utility@{OU}"].score, theirs["model_utility"], rel)
    assert theirs["model_utility_parts"].keys() == PARTS.keys()
    for name, number in theirs["model_utility_parts"].items():
        same(mine.values[f"{PARTS[name]}@{OU}"].score, number, rel)
    assert theirs["metrics"]
    for name, result in theirs["metrics"].items():
        check_open_unlearning(mine, name, result, rel)


def check_open_unlearning(mine: Evaluation, name: str, result: dict[str, Any], rel: float) -> None:
    short, kind, *form = name.split(".")
    split = SHORT[short]
    context = Context(mine.data, mine.answers, {})
    assert result.keys() <= {"agg_value", "by_index"}
    if kind == "probability_normalised":
        value = metrics.get("real_authors_prob").build(split=split, protocol=OU).compute(context)
        samples: dict[str, float | None] = dict(value.per_sample)
    else:
        assert kind in ("truth_ratio", "truth_ratio_as_configured") and len(form) == 1
        # as a function of the paraphrase everywhere; as configured from the plain answer of ra and wf
        data = mine.data if kind == "truth_ratio_as_configured" else Stored({"plain": mine.data.rows(split)})
        at = split if kind == "truth_ratio_as_configured" else "plain"
        build = metrics.get("forget_truth_ratio").build
        context = Context(data, mine.answers, {})
        value = build(split=at, protocol=OU, form=FORMS[form[0]]).compute(context)
        samples = dict(value.per_sample)
        if form[0] != "prob_mean":  # their samples are R itself
            raw = build(split=at, protocol=OU, form="raw").compute(context)
            samples = {key: None if v is None else math.exp(v) for key, v in raw.per_sample.items()}
    same(value.score, result["agg_value"], rel)
    for index, number in result.get("by_index", {}).items():
        number = number["score"] if isinstance(number, dict) else number
        same(samples[f"{split}-{index}"], number, rel)


def cases(section: str) -> list[Any]:
    return [
        pytest.param(case, content["tolerance"], id=f"{stem}[{i}]")
        for stem, content in CONTENT.items()
        for i, case in enumerate(content[section]["cases"])
    ]


@pytest.mark.parametrize(("case", "tolerance"), cases("harmonic_mean"))
def test_harmonic_mean(case: dict[str, Any], tolerance: dict[str, float]) -> None:
    same(harmonic_mean(case["values"]), case["expected"], tolerance["rel"])
    assert len(SPLITS) * len(KINDS) == 9


@pytest.mark.parametrize(("case", "tolerance"), cases("ks"))
def test_ks(case: dict[str, Any], tolerance: dict[str, float]) -> None:
    found = ks_test(case["model_scores"], case["reference_scores"])
    expected = case["expected"]
    assert expected.keys() == {"pvalue", "pvalue_from_reciprocals", "statistic"}
    same(10**found.log10_p, expected["pvalue"], tolerance["pvalue_rel"])
    same(found.distance, expected["statistic"], tolerance["rel"])
    turned = ks_test(*([1 / x for x in case[side]] for side in ("model_scores", "reference_scores")))
    same(10**turned.log10_p, expected["pvalue_from_reciprocals"], tolerance["pvalue_rel"])


def test_no_retrained_run_no_forget_quality(log: Any) -> None:
    assert all(content["ks"]["without_reference_logs"] is None for content in CONTENT.values())
    _, mine, _, _ = log
    alone = rescore(mine.answers, mine.data, [f"forget_quality@{OU}"])
    assert alone.values[f"forget_quality@{OU}"].score is None


@pytest.mark.parametrize(("case", "tolerance"), cases("privleak"))
def test_privleak(case: dict[str, Any], tolerance: dict[str, float]) -> None:
    reference = 0.5 if case["reference_auc"] is None else case["reference_auc"]
    assert case["expected"].keys() == {"privleak", "rel_diff"}
    for formula in (privleak, rel_diff):
        found = formula(case["auc"], reference, epsilon=1e-10)
        assert found == pytest.approx(case["expected"][formula.__name__], rel=tolerance["rel"], abs=1e-12)
        ours = formula(case["auc"], reference)
        degenerate = (1 - reference if formula is privleak else reference) < 0.01
        assert (ours is None) if degenerate else ours == pytest.approx(found, rel=1e-7, abs=1e-7)


@pytest.mark.parametrize(("case", "tolerance"), cases("auc"))
def test_auc(case: dict[str, Any], tolerance: dict[str, float]) -> None:
    """Stored scores are higher for non-members, ours for members."""
    members, others = ([-score for score in case[side]] for side in ("forget_scores", "holdout_scores"))
    assert case["expected"].keys() == {"open_unlearning_auc", "muse_auc_forget_holdout"}
    same(auc(members, others), case["expected"]["open_unlearning_auc"], tolerance["rel"])
    same(1 - auc(members, others), case["expected"]["muse_auc_forget_holdout"], tolerance["rel"])
    same(auc(others, members), case["expected"]["muse_auc_forget_holdout"], tolerance["rel"])


def test_every_section_is_known() -> None:
    assert CONTENT
    for content in CONTENT.values():
        assert content.keys() - META == {"tofu_logs", "harmonic_mean", "ks", "privleak", "auc"}
        assert all(content[name]["cases"] for name in ("harmonic_mean", "ks", "privleak", "auc"))
