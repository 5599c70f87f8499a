"""The real logs of the golden data in the form the code bases write them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

GOLDEN = Path(__file__).parents[1] / "golden" / "data"
TOFU_FILES = {
    "forget": "eval_log_forget.json",
    "retain": "eval_log.json",
    "real_authors": "eval_real_author_wo_options.json",
    "world_facts": "eval_real_world_wo_options.json",
}
#: Model Utility that OpenUnlearning logged for its retain90 model; the parts on real authors and world facts are not
#: in the golden data
UTILITY = 0.6130190411998432


def by_index(values: list[Any]) -> dict[str, Any]:
    return {str(i): value for i, value in enumerate(values)}


def tofu_log(model: str) -> dict[str, Any]:
    """`eval_log_aggregated.json` of a Llama-2-7B model: full, retain90 (whole), retain95, retain99 (in part)."""
    content = json.loads((GOLDEN / "real_logs_tofu_llama2.json").read_text())
    stored = [*content["models"], *content["forget_losses_of_further_retain_models"]]
    (arrays,) = (m["arrays"] for m in stored if m["model"].endswith(f"{model}_wd0.01") and "arrays" in m)
    return {
        TOFU_FILES[split]: {name: by_index(values) for name, values in columns.items()}
        for split, columns in arrays.items()
    }


def open_log() -> dict[str, Any]:
    """`TOFU_EVAL.json` of OpenUnlearning's retain90 model, without real authors and world facts."""
    content = json.loads((GOLDEN / "real_logs_openunlearning_retain90.json").read_text())
    logged = {name: numbers["logged"] for name, numbers in content["expected"].items()}
    log: dict[str, Any] = {name: {"agg_value": number} for name, number in logged.items()}
    for name, columns in content["arrays"].items():
        if name.startswith("mia_"):
            log[name] |= {side: {"value_by_index": by_index([{"score": x} for x in columns[side]])} for side in columns}
        else:
            rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
            log[name]["value_by_index"] = by_index(rows)
    return {**log, "model_utility": {"agg_value": UTILITY}, "forget_quality": {"agg_value": None}}


def write(file: Path, log: dict[str, Any]) -> Path:
    """Write a log, NaN and all, as the code bases do."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(log, indent=4))
    return file
