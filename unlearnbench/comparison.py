"""One model before and after unlearning: the scores side by side, and whether they say that it worked."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from unlearnbench import answers as answer_files
from unlearnbench.benchmarks.base import Benchmark, benchmarks
from unlearnbench.metric import resolve
from unlearnbench.requests import Generate

KNOWN = 0.3  #: below this, a model did not know the rows to begin with, and no fall is asked for
EXACT = 0.05  #: share of forget rows that may still be answered word for word
HALF = 0.5  #: probability and verbatim recall of the forget side must fall to this share at least
LOSS = 0.1  #: how much the retain side may lose of exact answers and ROUGE-L, in absolute terms
#: what must fall, by share; what may not be left; what must not fall
FALLS, GONE = ("forget_prob", "verbmem_forget"), ("forget_exact", "forget_fact")
KEPT = ("retain_prob", "retain_rouge_l", "retain_exact", "retain_fact")


@dataclass(frozen=True)
class Line:
    """One number before and after; None where it is not defined, with the reason."""

    name: str
    side: str
    title: str
    before: float | None
    after: float | None
    reason: str = ""

    @staticmethod
    def text(value: float | None) -> str:
        return "–" if value is None else f"{value:.2f}"


@dataclass(frozen=True)
class Comparison:
    """The lines, and what they say: `achieved` unless rows are still known or the retain side was damaged."""

    lines: tuple[Line, ...]
    warnings: tuple[str, ...]
    achieved: bool
    stop: str  #: why training ended

    def as_json(self) -> dict[str, Any]:
        """What `record/scores.json` holds."""
        return {"achieved": self.achieved, "stop": self.stop, "warnings": list(self.warnings),
                "scores": [asdict(line) for line in self.lines]}  # fmt: skip


def compare(before: Path, unlearned: Path, after: Path, retain: bool) -> Comparison:
    """From the stage folders of the target's evaluation, of the unlearning, and of the evaluation of what came out."""
    lines = [*_scores(before, after), *_unchanged(before, after), *_probe(unlearned)]
    lines.sort(key=lambda line: ("forget", "retain", "other").index(line.side))
    record = json.loads((unlearned / "record.json").read_text())
    stop = record.get("stop")
    ended = f"{record['steps']} steps" + (f"; {stop['reason']}" if stop else "")
    failed, damaged = _still_known(lines), _damage(lines)
    others = [] if retain else ["there were no retain rows: what became of the rest of the model was not measured"]
    if stop and not stop["fired"]:
        others.append(f"the stop rule never held within {record['steps']} steps: raise unlearn.epochs or learning_rate")
    others += [line for line in record.get("warnings", ()) if "may not know" not in line]  # the pre-flight said so
    achieved = not failed and not damaged
    return Comparison(tuple(lines), (*failed, *damaged, *others), achieved, ended)


# -- numbers ---------------------------------------------------------------------------------------------------


def _scores(before: Path, after: Path) -> list[Line]:
    """Every metric that both evaluations have."""
    one, two = (
        {line["name"]: line for line in json.loads((folder / "metrics.json").read_text())["metrics"]}
        for folder in (before, after)
    )
    found = []
    for name, line in one.items():
        other = two[name]
        side = next((s for s in ("forget", "retain") if s in name.split("_")), "other")
        title = resolve(name)[0].title.removesuffix(f", {side}")
        reason = line["reason"] or other["reason"]
        if line["value"] is not None or other["value"] is not None:
            found.append(Line(name, side, title, line["value"], other["value"], reason))
    return found


def _unchanged(before: Path, after: Path) -> list[Line]:
    """The share of retain questions whose greedy answer is the same text as before."""
    spec = json.loads((after / "spec.json").read_text())
    data: Benchmark = benchmarks.get(spec["benchmark"]["name"]).build(**spec["benchmark"]["options"])
    asked = {row.prompt for row in data.splits.get("retain", ()) if row.prompt}
    one, two = (
        {
            request.prompt: text.text
            for request, text in answer_files.load(folder / "answers.parquet").items()
            if isinstance(request, Generate) and request.prompt in asked
        }
        for folder in (before, after)
    )
    if not one:
        return []
    same = sum(two.get(prompt) == text for prompt, text in one.items()) / len(one)
    return [Line("retain_unchanged", "retain", "Answers word for word as before", 1.0, same)]


def _probe(unlearned: Path) -> list[Line]:
    """What the stop rule saw at its first and at its last look."""
    log = [json.loads(line) for line in (unlearned / "log.jsonl").read_text().splitlines()]
    looks: list[Mapping[str, float]] = [line["probe"] for line in log if "probe" in line]
    if len(looks) < 2:
        return []
    titles = {"violation_rate": "Tokens that dominate their alternatives (stop rule)", "retain_kl": ""}
    for name in ("violation_rate", "forget_prob"):
        if name in looks[0]:
            title = titles.get(name, "Probability of the probed answers (stop rule)")
            last = looks[-1].get("confirm_rate", looks[-1][name]) if name == "violation_rate" else looks[-1][name]
            return [Line(f"probe_{name}", "forget", title, looks[0][name], last)]
    return []


# -- judgement -------------------------------------------------------------------------------------------------


def _still_known(lines: list[Line]) -> list[str]:
    found = []
    for line in lines:
        if line.before is None or line.after is None:
            continue
        known = KNOWN * float(resolve(line.name)[0].meta["range"][1]) if line.name in FALLS else math.inf
        if line.before >= known and line.after > HALF * line.before:
            found.append(f"forgetting failed: {_change(line)}")
        if line.name in GONE and line.after > EXACT and line.after > EXACT * 2 * line.before:
            found.append(f"forgetting failed: {_change(line)}")
    return found


def _damage(lines: list[Line]) -> list[str]:
    return [
        f"the retain side was damaged: {_change(line)}"
        for line in lines
        if line.name in KEPT and line.before is not None and line.after is not None and line.after < line.before - LOSS
    ]


def _change(line: Line) -> str:
    return f"{line.title} ({line.side}) {line.text(line.before)} → {line.text(line.after)}"
