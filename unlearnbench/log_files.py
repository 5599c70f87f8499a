"""Reading the logs of TOFU and of OpenUnlearning: which key holds what. What follows from it is in `logs`."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from unlearnbench.errors import UserError
from unlearnbench.logs import OPEN, OPEN_SIDES, OPEN_TEXTS, TOFU, Log, Losses, row_id
from unlearnbench.metric import Value, resolve

#: the files of TOFU's evaluation -> our splits
TOFU_FILES = {
    "eval_log_forget": "forget",
    "eval_log": "retain",
    "eval_real_author_wo_options": "real_authors",
    "eval_real_world_wo_options": "world_facts",
}
#: OpenUnlearning's metrics of single rows, and its attacks -> our metrics, and the beginning of their names
OPEN_ROWS = {
    "exact_memorization": "forget_exact_memorization",
    "extraction_strength": "forget_extraction_strength",
}
OPEN_ATTACKS = {
    "mia_loss": "loss",
    "mia_zlib": "zlib",
    "mia_min_k": "mink",
    "mia_min_k_plus_plus": "minkpp",
    "mia_gradnorm": "gradnorm",
    "mia_reference": "reference",
}


def read(file: Path) -> Log:
    """Read a log. Raises `UserError` when the file is missing, no JSON, or no log of a code base known here."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))  # NaN is what these code bases write
    except FileNotFoundError:
        raise UserError(f"There is no file {file}.") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{file} is no evaluation log: {error}") from None
    try:
        found = _recognise(file, content) if isinstance(content, dict) else None
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise UserError(f"{file} is a log of an unknown form: {type(error).__name__}: {error}") from error
    if found is None:
        raise UserError(
            f"{file} is no evaluation log: neither OpenUnlearning's (TOFU_EVAL.json, MUSE_EVAL.json) nor TOFU's "
            "(eval_log_aggregated.json, eval_log_forget.json, …)."
        )
    return found


def _recognise(file: Path, content: Mapping[str, Any]) -> Log | None:
    parts = {split: content[f"{stem}.json"] for stem, split in TOFU_FILES.items() if f"{stem}.json" in content}
    if parts:
        return _tofu(file, parts)
    if "avg_gt_loss" in content or "avg_paraphrased_loss" in content:
        if file.stem not in TOFU_FILES:
            allowed = ", ".join(f"{name}.json" for name in TOFU_FILES)
            raise UserError(f"{file}: the name of a TOFU log says which rows it is of; allowed: {allowed}.")
        return _tofu(file, {TOFU_FILES[file.stem]: content})
    entries = [entry for entry in content.values() if isinstance(entry, dict)]
    if any("agg_value" in entry or "value_by_index" in entry for entry in entries):
        return _open_unlearning(file, content)
    return None


def _tofu(file: Path, parts: Mapping[str, Mapping[str, Any]]) -> Log:
    losses, given, texts = {}, {}, {}
    for split, part in parts.items():
        losses[split] = Losses(
            _numbers(part.get("avg_gt_loss")), _numbers(part.get("avg_paraphrased_loss")),
            _lists(part.get("average_perturb_loss")),
        )  # fmt: skip
        _no_loss_below_zero(file, split, losses[split])
        if "rougeL_recall" in part:
            given[f"{split}_rouge_l@{TOFU}"] = _mean(split, _numbers(part["rougeL_recall"]))
        said = part.get("generated_text") or {}
        texts[split] = {int(i): str(triple[2]) for i, triple in said.items() if len(triple) == 3}
    return Log(file, TOFU, "tofu", losses, given, {}, {split: found for split, found in texts.items() if found})


def _open_unlearning(file: Path, content: Mapping[str, Any]) -> Log:
    at = f"@{OPEN}"
    family = "muse" if content.keys() & OPEN_TEXTS.keys() else "tofu"
    losses: dict[str, Losses] = {}
    given: dict[str, Value] = {}
    texts: dict[str, dict[int, str]] = {}
    logged: dict[str, float] = {}

    def rows(name: str, number: str) -> dict[int, Any]:
        found = (content.get(name) or {}).get("value_by_index") or {}
        return {int(i): None if row is None else row.get(number) for i, row in found.items()}

    def state(name: str, entry: str, scale: float = 1.0) -> None:
        stated = (content.get(entry) or {}).get("agg_value")
        if isinstance(stated, int | float) and math.isfinite(stated):
            logged[name] = scale * float(stated)

    for side, split in OPEN_SIDES.items() if family == "tofu" else ():
        found = Losses(
            _numbers(rows(f"{side}_Q_A_Prob", "avg_loss")), _numbers(rows(f"{side}_Q_A_PARA_Prob", "avg_loss")),
            _lists(rows(f"{side}_Q_A_PERT_Prob", "avg_loss")),
        )  # fmt: skip
        if found.rows:
            _no_loss_below_zero(file, split, found)
            losses[split] = found
        if said := rows(f"{side}_Q_A_ROUGE", "rougeL_recall"):
            given[f"{split}_rouge_l{at}"] = _mean(split, _numbers(said))
            answers = {i: text for i, text in rows(f"{side}_Q_A_ROUGE", "ground_truth").items() if text}
            texts |= {split: answers} if answers else {}
        state(f"{split}_rouge_l{at}", f"{side}_Q_A_ROUGE")
        state(f"{split}_prob{at}", f"{side}_Q_A_Prob_normalised" if side in ("ra", "wf") else f"{side}_Q_A_Prob")
        state(f"{split}_truth_ratio{at}", "forget_truth_ratio" if side == "forget" else f"{side}_Truth_Ratio")
    for name, metric in OPEN_TEXTS.items():
        if said := rows(name, "rougeL_f1"):
            given[f"{metric}{at}"] = _mean(metric, {i: 100 * x for i, x in _numbers(said).items()})
            answers = {i: text for i, text in rows(name, "ground_truth").items() if text}
            texts |= {metric: answers} if answers else {}
        state(f"{metric}{at}", name, 100)
    for name, metric in OPEN_ROWS.items():
        if said := rows(name, "score"):
            given[f"{metric}{at}"] = _mean("forget", _numbers(said))
        state(f"{metric}{at}", name)
    for name, attack in OPEN_ATTACKS.items():
        if isinstance(entry := content.get(name), dict):
            given |= _attack(f"{attack}_auc{at}", entry, "forget" if family == "tofu" else "forget_eval")
            state(f"{attack}_auc{at}", name)
    state(f"model_utility{at}", "model_utility")
    if not losses and not given and not logged:
        raise UserError(f"{file} has none of the metrics of OpenUnlearning's TOFU and MUSE suites.")
    return Log(file, OPEN, family, losses, given, logged, texts)


def _no_loss_below_zero(file: Path, split: str, losses: Losses) -> None:
    """Raise `UserError` for a mean loss below 0, which would be a probability above 1."""
    wrong = {f"{i}": min(several, default=0.0) for i, several in losses.wrong.items()}
    for column in (losses.plain, losses.paraphrase, wrong):
        for i, loss in column.items():
            if loss < -1e-6:
                raise UserError(f"{file}: row {i} of {split} has a loss of {loss:.6g}; a mean -log p is never below 0.")


def _attack(name: str, entry: Mapping[str, Any], split: str) -> dict[str, Value]:
    """The AUC from the scores of both sides, which OpenUnlearning keeps with the sign that makes members low."""
    sides: dict[str, dict[str, float | None]] = {}
    for side, at in (("forget", split), ("holdout", "holdout")):
        found = (entry.get(side) or {}).get("value_by_index") or {}
        scores = _numbers({int(i): None if row is None else row.get("score") for i, row in found.items()})
        sides[at] = {row_id(at, i): -score for i, score in scores.items()}
    if any(sides.values()):
        value = resolve(name)[1].model_copy(update={"split": split}).from_samples(sides)
        return {} if value is None else {name: value}
    stated = entry.get("agg_value", entry.get("auc"))
    known = isinstance(stated, int | float) and math.isfinite(stated)
    return {name: Value(float(stated), details={"as_logged": 1})} if known else {}


def _mean(split: str, numbers: Mapping[int, float]) -> Value:
    return Value.mean_of({row_id(split, i): number for i, number in sorted(numbers.items())})


def _numbers(column: Mapping[Any, Any] | None) -> dict[int, float]:
    """Row index -> number, NaN where there is none. Raises `ValueError` for anything that is no number."""
    return {int(i): math.nan if number is None else float(number) for i, number in (column or {}).items()}


def _lists(column: Mapping[Any, Any] | None) -> dict[int, tuple[float, ...]]:
    found: dict[int, tuple[float, ...]] = {}
    for i, numbers in (column or {}).items():
        several: Iterable[Any] = numbers if isinstance(numbers, list) else [numbers]
        found[int(i)] = tuple(math.nan if x is None else float(x) for x in several)
    return found
