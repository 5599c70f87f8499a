"""The real evaluation logs of TOFU's Llama-2-7B models and of OpenUnlearning's retain90 model (`real_logs_*`).

Per-sample losses become answers of one token each, and the registered metrics compute on them; ROUGE is given.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from unlearnbench.benchmarks.base import Benchmark, Row
from unlearnbench.evaluation import Evaluation, rescore
from unlearnbench.metric import Context, Score, TokenScores, Value, metrics
from unlearnbench.metrics.membership import compare
from unlearnbench.metrics.model_utility import harmonic_mean
from unlearnbench.metrics.privleak import privleak

FOLDER = Path(os.environ.get("UNLEARNBENCH_GOLDEN_DIR", Path(__file__).parent / "data"))
TOFU = {file.stem: json.loads(file.read_text()) for file in sorted(FOLDER.glob("real_logs_tofu*.json"))}
OPEN = {file.stem: json.loads(file.read_text()) for file in sorted(FOLDER.glob("real_logs_openunlearning*.json"))}
OU = "open-unlearning"
SIDES = {"Real Authors": "real_authors", "Real World": "world_facts", "Retain": "retain", "Forget": "forget"}
FORMS = {"closer_to_1_better": "symmetric", "true_better": "clipped", "prob_mean": "preference"}


class Stored(Benchmark):
    name = "stored"


def evaluate(arrays: dict[str, dict[str, Any]], names: list[str], retrained: Evaluation | None = None) -> Evaluation:
    """Arrays of average losses per split as an evaluation."""
    splits: dict[str, list[Row]] = {}
    answers: dict[Any, Any] = {}
    given = {}
    for split, log in arrays.items():
        wrong = log["average_perturb_loss"]
        texts = ("answer", "paraphrase", *(f"wrong {i}" for i in range(len(wrong[0]))))
        plain = log.get("avg_gt_loss", log["avg_paraphrased_loss"])
        splits[split] = [
            Row(f"{split}-{i}", f"{split} {i}?", "answer", paraphrased_answer="paraphrase", perturbed=texts[2:])
            for i in range(len(wrong))
        ]
        for row, *losses in zip(splits[split], plain, log["avg_paraphrased_loss"], wrong, strict=True):
            flat = [losses[0], losses[1], *losses[2]]
            for text, loss in zip(texts, flat, strict=True):
                answers[Score(row.prompt, text)] = TokenScores(np.array([-loss]), np.array([False]))
        if "rougeL_recall" in log:
            rouge = Value.mean_of({f"{split}-{i}": float(x) for i, x in enumerate(log["rougeL_recall"])})
            given |= {f"{split}_rouge_l{at}": rouge for at in ("", "@tofu", f"@{OU}")}
    return rescore(answers, Stored(splits), names, retrained, given)


def quality(mine: dict[str, Any], reference: dict[str, Any], protocol: str = "tofu") -> Value:
    """Forget Quality of one model's forget losses against another's."""
    at = "" if protocol == "ours" else f"@{protocol}"
    retrained = evaluate({"forget": reference}, [f"forget_log_truth_ratio{at}"])
    return evaluate({"forget": mine}, [f"forget_quality{at}"], retrained).values[f"forget_quality{at}"]


def part(arrays: dict[str, Any], first: int, last: int) -> dict[str, Any]:
    return {name: values[first:last] for name, values in arrays.items()}


def same(found: Any, expected: float, rel: float) -> None:
    assert found == pytest.approx(expected, rel=rel, abs=0.0)


# -- TOFU ------------------------------------------------------------------------------------------------------


def logs() -> list[Any]:
    return [
        pytest.param(content, model, id=f"{stem}:{model['model']}")
        for stem, content in TOFU.items()
        for model in content["models"]
    ]


@pytest.mark.parametrize(("content", "model"), logs())
def test_aggregates_follow_from_their_parts(content: dict[str, Any], model: dict[str, Any]) -> None:
    """Models without stored samples: Model Utility is the harmonic mean of the nine logged parts."""
    rel = content["tolerance"]["rel"]
    known = {"model", "log_file", "sizes", "expected", "arrays", "arrays_reproduce_aggregates_to_rel"}
    assert model.keys() <= known
    for name in ("aggregate_eval_stat", "utils_get_model_utility"):
        numbers = dict(model["expected"][name])
        utility = numbers.pop("Model Utility")
        nine = [number for key, number in numbers.items() if "Forget" not in key]
        assert len(nine) == 9 and len(numbers) == 12
        same(harmonic_mean(nine), utility, rel)


@pytest.mark.parametrize(
    ("content", "model"),
    [p for p in logs() if "arrays" in p.values[1]],  # type: ignore[operator]
)
def test_tofu_model(content: dict[str, Any], model: dict[str, Any]) -> None:
    rel, expected = content["tolerance"]["rel"], model["expected"]
    assert expected.keys() == {
        "aggregate_eval_stat",
        "utils_get_model_utility",
        "open_unlearning_functions_on_the_same_losses",
        "forget_quality_against",
    }
    names = {"Model Utility": ("model_utility@tofu", "model_utility@tofu-arithmetic")}
    for side, split in SIDES.items():
        names |= {
            f"ROUGE {side}": (f"{split}_rouge_l@tofu",) * 2,
            f"Prob. {side}": (f"{split}_prob@tofu",) * 2,
            f"Truth Ratio {side}": (f"{split}_truth_ratio@tofu", f"{split}_truth_ratio@tofu-arithmetic"),
        }
    utils = {
        f"{side} {long}": names[f"{short} {side}"]
        for side in SIDES
        for short, long in (("ROUGE", "ROUGE"), ("Prob.", "Probability"), ("Truth Ratio", "Truth Ratio"))
    } | {"Model Utility": names["Model Utility"]}
    assert {split: len(model["arrays"][split]["avg_gt_loss"]) for split in SIDES.values()} == model["sizes"]
    values = evaluate(model["arrays"], sorted({name for pair in names.values() for name in pair})).values
    assert expected["aggregate_eval_stat"].keys() == names.keys()
    assert expected["utils_get_model_utility"].keys() == utils.keys()
    for name, number in expected["aggregate_eval_stat"].items():
        same(values[names[name][0]].score, number, rel)
    for name, number in expected["utils_get_model_utility"].items():
        same(values[utils[name][1]].score, number, rel)
    for name, number in expected["open_unlearning_functions_on_the_same_losses"].items():
        check_open_unlearning(model["arrays"], name, number, rel)


def check_open_unlearning(arrays: dict[str, Any], name: str, number: float, rel: float) -> None:
    split, kind, *form = name.split(".")
    mine = evaluate({split: arrays[split]}, [])
    if kind == "probability_normalised":
        metric, data = metrics.get("real_authors_prob").build(split=split, protocol=OU), mine.data
    else:
        assert kind in ("truth_ratio", "truth_ratio_from_plain_answer")
        at = split if kind == "truth_ratio_from_plain_answer" else "plain"
        data = Stored({at: mine.data.rows(split)})
        metric = metrics.get("forget_truth_ratio").build(split=at, protocol=OU, form=FORMS[form[0]])
    same(metric.compute(Context(data, mine.answers, {})).score, number, rel)


@pytest.mark.parametrize(("content", "model"), logs())
def test_forget_quality(content: dict[str, Any], model: dict[str, Any]) -> None:
    stored = {m["model"]: m["arrays"]["forget"] for m in content["models"] if "arrays" in m}
    stored |= {m["model"]: m["arrays"]["forget"] for m in content["forget_losses_of_further_retain_models"]}
    for other, numbers in model["expected"]["forget_quality_against"].items():
        assert numbers.keys() == {"forget_quality", "ks_statistic"}
        for protocol in ("tofu", OU):
            found = quality(model["arrays"]["forget"], stored[other], protocol)
            same(found.details["p"], numbers["forget_quality"], content["tolerance"]["pvalue_rel"])
            same(found.details["ks"], numbers["ks_statistic"], content["tolerance"]["rel"])
        sizes = {len(x["average_perturb_loss"]) for x in (model["arrays"]["forget"], stored[other])}
        ours = quality(model["arrays"]["forget"], stored[other], "tofu")
        assert (ours.details["n"] == ours.details["n_retrained"]) == (len(sizes) == 1)


def test_forget_quality_on_matched_questions() -> None:
    for content in TOFU.values():
        matched = content["question_matched_forget05"]
        full = next(m for m in content["models"] if "full_wd0.01" in m["model"])["arrays"]["forget"]
        retain = next(m for m in content["forget_losses_of_further_retain_models"] if "retain95" in m["model"])[
            "arrays"
        ]["forget"]
        ranges = [[int(x) for x in matched[name].split("..")] for name in ("full_items", "retain95_items")]
        found = quality(part(full, ranges[0][0], ranges[0][1] + 1), part(retain, ranges[1][0], ranges[1][1] + 1))
        assert matched["expected"].keys() == {"forget_quality", "ks_statistic"}
        same(found.details["p"], matched["expected"]["forget_quality"], content["tolerance"]["pvalue_rel"])
        same(found.details["ks"], matched["expected"]["ks_statistic"], content["tolerance"]["rel"])


def test_the_published_numbers() -> None:
    """Llama-2-7B fine-tuned on all of TOFU, as its table prints it."""
    for content in TOFU.values():
        full = next((m for m in content["models"] if m["model"] == "lr1e-05_llama2-7b_full_wd0.01"), None)
        retain = next((m for m in content["models"] if m["model"] == "lr1e-05_llama2-7b_retain90_wd0.01"), None)
        if full is None or retain is None:
            continue
        values = evaluate(full["arrays"], ["model_utility", "model_utility@tofu-arithmetic"]).values
        assert f"{values['model_utility'].score:.5f}" == "0.62268"
        assert f"{values['model_utility@tofu-arithmetic'].score:.5f}" == "0.58589"
        found = quality(full["arrays"]["forget"], retain["arrays"]["forget"], "ours")
        assert f"{found.details['p']:.2e}" == "1.83e-21"


# -- OpenUnlearning --------------------------------------------------------------------------------------------


def losses(arrays: dict[str, Any], side: str) -> dict[str, Any]:
    """One side of an OpenUnlearning log in TOFU's names."""
    names = {"avg_gt_loss": "Prob", "avg_paraphrased_loss": "PARA_Prob", "average_perturb_loss": "PERT_Prob"}
    found = {ours: arrays[f"{side}_Q_A_{theirs}"]["avg_loss"] for ours, theirs in names.items()}
    return {**found, "rougeL_recall": arrays[f"{side}_Q_A_ROUGE"]["rougeL_recall"]}


def mean_probability(values: Any) -> float:
    return float(np.exp(-np.array(values)).mean())


@pytest.mark.parametrize("stem", sorted(OPEN))
def test_open_unlearning_log(stem: str) -> None:
    content = OPEN[stem]
    arrays, rel = content["arrays"], content["tolerance"]["rel"]
    expected = {name: numbers["logged"] for name, numbers in content["expected"].items()}
    mine = evaluate({side: losses(arrays, side) for side in ("forget", "retain")}, [])

    def ask(name: str) -> float | None:
        return rescore(mine.answers, mine.data, [name], given=dict(mine.values)).values[name].score

    for side in ("forget", "retain"):
        same(ask(f"{side}_prob@{OU}"), expected.pop(f"{side}_Q_A_Prob"), rel)
        same(mean_probability(arrays[f"{side}_Q_A_PARA_Prob"]["avg_loss"]), expected.pop(f"{side}_Q_A_PARA_Prob"), rel)
        wrong = mean_probability(arrays[f"{side}_Q_A_PERT_Prob"]["avg_loss"])
        same(wrong, expected.pop(f"{side}_Q_A_PERT_Prob"), rel)
        same(ask(f"{side}_rouge_l@{OU}"), expected.pop(f"{side}_Q_A_ROUGE"), rel)
    same(ask(f"forget_truth_ratio@{OU}"), expected.pop("forget_truth_ratio"), rel)
    same(ask(f"retain_truth_ratio@{OU}"), expected.pop("retain_Truth_Ratio"), rel)
    for name in ("exact_memorization", "extraction_strength"):
        same(np.mean(arrays[name]["score"]), expected.pop(name), rel)
    for name in ("mia_loss", "mia_min_k"):
        sides = [{f"{side}{i}": -x for i, x in enumerate(arrays[name][side])} for side in ("forget", "holdout")]
        auc = compare(*sides).score
        assert auc is not None
        same(auc, expected.pop(name), rel)
    same(privleak(auc, 0.5, epsilon=1e-10), expected.pop("privleak"), rel)
    assert not expected


@pytest.mark.parametrize("stem", sorted(OPEN))
def test_open_unlearning_extra(stem: str) -> None:
    content = OPEN[stem]
    extra, tolerance, arrays = content["extra"], content["tolerance"], content["arrays"]
    assert extra.keys() <= {"truth_ratio_prob_mean", "ks_pvalues", "ks_other_side", "model_utility"}
    for name, number in extra["truth_ratio_prob_mean"].items():
        side, form = name.split("_")[0], name.split(".")[1]
        mine = evaluate({side: losses(arrays, side)}, [])
        metric = metrics.get("forget_truth_ratio").build(split=side, protocol=OU, form=FORMS[form])
        same(metric.compute(Context(mine.data, mine.answers, {})).score, number, tolerance["rel"])
    check_ks(extra["ks_pvalues"], losses(arrays, "forget"), tolerance["pvalue_rel"])


def check_ks(pvalues: dict[str, float], log: dict[str, Any], rel: float) -> None:
    n = len(log["avg_gt_loss"])
    (content,) = TOFU.values()
    full, retain90 = (
        next(m["arrays"]["forget"] for m in content["models"] if m["model"].endswith(f"{name}_wd0.01"))
        for name in ("full", "retain90")
    )
    sides = {
        "tofu_full_first_300_vs_this_log_first_300": (full, part(log, 0, 300)),
        "tofu_full_first_300_vs_this_log_400": (full, log),
        "tofu_retain90_vs_this_log_first_300": (retain90, part(log, 0, 300)),
        "this_log_items_0_199_vs_200_399": (part(log, 0, 200), part(log, 200, n)),
        "this_log_against_itself": (log, log),
    }
    assert pvalues.keys() == sides.keys()
    for name, (a, b) in sides.items():
        same(quality(a, b, OU).details["p"], pvalues[name], rel)


def test_model_utility_of_the_open_unlearning_log() -> None:
    """The logged parts give the logged Model Utility; the golden data may come without them."""
    known = [content for content in OPEN.values() if content.get("model_utility_parts") is not None]
    if not known:
        pytest.skip("the parts on real authors and world facts are not in the golden data")
    for content in known:
        parts = content["model_utility_parts"]
        same(harmonic_mean(list(parts.values())), content["model_utility"], content["tolerance"]["rel"])


def test_there_are_files_and_no_others() -> None:
    """Every golden file of metrics has a test module that knows it."""
    known = ("metrics_tokens", "metrics_aggregates", "metrics_rouge", "metrics_muse", "data_collation")
    known += ("real_logs_tofu", "real_logs_openunlearning", "losses_", "masc")
    assert TOFU and OPEN
    assert [file.name for file in FOLDER.glob("*.json") if not file.name.startswith(known)] == []
