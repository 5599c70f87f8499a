"""The model card of an unlearned model: what was forgotten (counts and hashes, not the records), how, and how well."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any

from unlearnbench import __version__
from unlearnbench.benchmarks.base import Benchmark
from unlearnbench.comparison import Comparison
from unlearnbench.schema import Experiment, cells

LIMITS = """\
- Unlearning is no proof of erasure. The scores say what the model answers when it is asked as it was asked here; other
  wordings, further training, quantisation or an attacker with the weights may bring some of it back.
- Only what was measured is known: the rows of the forget and retain files. Abilities that no retain row stands for may
  have changed.
- The records themselves are in neither this folder nor this card. Copies of the model from before, checkpoints and
  training data still hold them."""


def card(
    facts: Mapping[str, Any], data: Benchmark, experiment: Experiment, record: Mapping[str, Any], found: Comparison
) -> str:
    """The text of README.md. `facts`: the request; `record`: of the unlearning stage."""
    (cell,) = cells(experiment)
    parts = [
        "---\n" + _front(facts) + "---\n",
        f"# {facts['model']}, with records forgotten\n",
        "A copy of a model, trained further so that it no longer gives certain answers. Made by unlearnbench.\n",
        "## What was forgotten\n",
        _files(facts, {name: len(data.splits.get(name, ())) for name in facts["files"]}),
        "## Scores before and after\n",
        _scores(found),
        *(f"> **Warning:** {line}\n" for line in found.warnings),
        "## How\n",
        f"Method: {cell.title} (`{cell.method}`, version {cell.version}), {_changed(facts, record)}. Ended after "
        f"{found.stop}.\n",
        "```json\n" + json.dumps({"method": cell.params, "training": _training(cell)}, indent=1, ensure_ascii=False)
        + "\n```\n",
        "## Limits\n",
        LIMITS + "\n",
        "## Reproduce\n",
        "```sh\n" + _command(facts) + "\n```\n",
        _versions(record),
    ]  # fmt: skip
    return "\n".join(parts)


def _front(facts: Mapping[str, Any]) -> str:
    lines = [f"base_model: {facts['model']}", "tags: [unlearning]"]
    lines.append(f"library_name: {'peft' if facts['adapter'] else 'transformers'}")
    return "\n".join(lines) + "\n"


def _files(facts: Mapping[str, Any], counts: Mapping[str, int]) -> str:
    lines = ["| | rows | file | SHA-256 of the file |", "|---|---:|---|---|"]
    for name, file in facts["files"].items():
        lines.append(f"| {name} | {counts[name]} | {file['name']} | `{file['sha256']}` |")
    if "retain" not in facts["files"]:
        lines.append("| retain | none | | |")
    return "\n".join(lines) + "\n"


def _scores(found: Comparison) -> str:
    lines = ["| side | | before | after |", "|---|---|---:|---:|"]
    for line in found.lines:
        lines.append(f"| {line.side} | {line.title} | {line.text(line.before)} | {line.text(line.after)} |")
    return "\n".join(lines) + "\n"


def _changed(facts: Mapping[str, Any], record: Mapping[str, Any]) -> str:
    if facts["adapter"]:
        return "this folder is a LoRA adapter for the model named above"
    if facts["lora"]:
        return "a LoRA adapter, merged into the weights"
    return f"all {record['parameters']:,} weights trained"


def _training(cell: Any) -> dict[str, Any]:
    settings = cell.settings.model_dump(mode="json")
    return {name: value for name, value in settings.items() if value is not None}


def _command(facts: Mapping[str, Any]) -> str:
    words = ["unlearnbench", "unlearn", facts["model"]]
    for name, file in facts["files"].items():
        words += [f"--{name}", file["name"]]
    words += ["--method", facts["method"], "--seed", str(facts["seed"])]
    for override in facts["overrides"]:
        words += ["--set", override]
    words += ["--adapter"] if facts["adapter"] else ["--lora"] if facts["lora"] else []
    return shlex.join(words)


def _versions(record: Mapping[str, Any]) -> str:
    versions = record.get("versions", {})
    named = ", ".join(f"{name} {versions[name]}" for name in ("torch", "transformers", "peft") if name in versions)
    return (
        f"unlearnbench {__version__}, {named}. Key of the run: `{record['key']}`; hash of the weights: "
        f"`{record['weights']}`. The whole record is in `record/`.\n"
    )
