"""Made-up run folders for the tests of the report: seven methods, target and retrained model, numbers from a table.

A value is `MEANS[arm][metric] + STEP * (seed - middle)`, so that means over the seeds are those of the table and
ranges can be worked out in the head: with two seeds +-0.005, with five +-0.02.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

STEP = 0.01
GROUPS = ("author-1", "author-2", "author-3", "author-4")
METRICS: dict[str, tuple[str, str]] = {  # name -> (direction, side)
    "one_minus_rouge_l": ("retrained", "forget"),
    "one_minus_prob": ("retrained", "forget"),
    "forget_truth_ratio": ("retrained", "forget"),
    "forget_exact": ("retrained", "forget"),
    "forget_fact": ("retrained", "forget"),
    "forget_quality": ("higher", "descriptive"),
    "model_utility": ("higher", "utility"),
    "retain_exact": ("higher", "utility"),
    "retain_fact": ("higher", "utility"),
    "mink_auc": ("retrained", "privacy"),
}
MEANS: dict[str, tuple[float, ...]] = {
    "target": (0.02, 0.04, 0.60, 0.97, 0.96, -8.0, 0.66, 0.98, 0.97, 0.97),
    "retrained": (0.32, 0.54, 0.80, 0.07, 0.06, 0.0, 0.67, 0.98, 0.97, 0.47),
    "ga": (0.45, 0.78, 0.90, 0.03, 0.03, -2.5, 0.40, 0.20, 0.37, 0.30),
    "graddiff": (0.27, 0.49, 0.77, 0.12, 0.12, -3.6, 0.65, 0.68, 0.79, 0.56),
    "npo": (0.30, 0.52, 0.78, 0.09, 0.09, -2.7, 0.64, 0.55, 0.72, 0.51),
    "npo+klr": (0.29, 0.50, 0.78, 0.10, 0.09, -2.8, 0.65, 0.85, 0.88, 0.52),
    "rmu": (0.34, 0.46, 0.72, 0.34, 0.30, -5.9, 0.63, 0.65, 0.70, 0.62),
    "simnpo": (0.26, 0.47, 0.79, 0.07, 0.08, -3.0, 0.67, 0.96, 0.96, 0.58),
    "masc": (0.31, 0.51, 0.77, 0.11, 0.10, -3.2, 0.65, 0.90, 0.91, 0.50),
}
TITLES = {
    "ga": "GA",
    "graddiff": "GradDiff",
    "npo": "NPO",
    "npo+klr": "NPO+KLR",
    "rmu": "RMU",
    "simnpo": "SimNPO",
    "masc": "MASC",
}
#: prepare, optimise, probe, select: mean seconds
SECONDS: dict[str, tuple[float, ...]] = {
    "ga": (0.0, 2.0, 0.0, 0.0),
    "graddiff": (0.0, 4.0, 0.0, 0.0),
    "npo": (0.5, 2.5, 0.0, 0.0),
    "npo+klr": (1.0, 5.0, 0.0, 0.0),
    "rmu": (0.5, 3.5, 0.0, 0.0),
    "simnpo": (0.0, 4.0, 0.0, 1.0),
    "masc": (0.25, 1.0, 0.5, 0.0),
}
STEPS = 20


def key(*parts: object) -> str:
    """A stage's key: 64 hex digits."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def shift(seed: int, seeds: int) -> float:
    """What a seed adds to every value in [0, 1]."""
    return STEP * (seed - (seeds - 1) / 2)


def value(arm: str, metric: str, seed: int, seeds: int) -> float:
    """The value of a metric in one seed; the target and the methods move against the retrained model."""
    sign = -1 if arm == "retrained" else 1
    return round(MEANS[arm][list(METRICS).index(metric)] + sign * shift(seed, seeds), 6)


def write_results(
    root: Path,
    seeds: int = 2,
    methods: Iterable[str] = tuple(TITLES),
    failed: Mapping[str, Collection[int]] | None = None,
    null: Mapping[tuple[str, str], Collection[int]] | None = None,
    attack: str = "none",
    machines: Mapping[tuple[str, int], str] | None = None,
    cells: Mapping[str, Mapping[str, Any]] | None = None,
    **spec: Any,
) -> Path:
    """Write run folders under `root`.

    `failed`: method -> seeds whose unlearning failed; `null`: (arm, metric) -> seeds without a value; `machines`:
    (method, seed) -> another hardware fingerprint; `cells`: method -> changes to its
    cell; `spec`: changes to every evaluate spec.
    """
    root.mkdir(parents=True, exist_ok=True)
    for seed in range(seeds):
        for role in ("target", "retrained"):
            trained = key(role, seed)
            write_stage(root, role, f"s{seed}", trained, {**base_spec(), "kind": role, "seed": seed}, record(8.0))
            write_evaluation(root, role, seed, seeds, {"model": trained}, None, null or {}, attack, spec)
        for method in methods:
            cell = {
                "method": method,
                "version": 1,
                "label": method,
                "params": {},
                "title": TITLES[method],
                "origin": "x",
                **(cells or {}).get(method, {}),
            }
            unlearned = key("unlearn", method, seed)
            own = {**base_spec(), "kind": "unlearn", "label": method, "seed": seed, "cell": cell}
            own["parents"] = {"model": key("target", seed)}
            machine = (machines or {}).get((method, seed), "cpu-a")
            if seed in (failed or {}).get(method, ()):
                broken = {"status": "failed", "error": "the forget loss is nan at step 3", "seed": seed}
                write_stage(root, "unlearn", f"{method}-s{seed}", unlearned, own, broken)
                continue
            folder = write_stage(
                root, "unlearn", f"{method}-s{seed}", unlearned, own, unlearn_record(method, seed, machine)
            )
            write_log(folder, method, seed, seeds)
            parents = {"model": unlearned, "retrained": key("retrained", seed)}
            write_evaluation(root, method, seed, seeds, parents, cell, null or {}, attack, spec)
    return root


def base_spec() -> dict[str, Any]:
    model = {"name": "llama-mini", "settings": {"name": "llama-mini", "protocol": "ours"}}
    return {"benchmark": {"name": "tofu-mini", "version": 1}, "model": model}


def record(seconds: float, machine: str = "cpu-a") -> dict[str, Any]:
    return {"status": "complete", "seconds": {"optimise": seconds}, "hardware": {"fingerprint": machine}}


def unlearn_record(method: str, seed: int, machine: str) -> dict[str, Any]:
    phases = dict(zip(("prepare", "optimise", "probe", "select"), SECONDS[method], strict=True))
    phases["optimise"] += 0.1 * seed
    stopped = method == "masc"
    return {
        "status": "complete",
        "seed": seed,
        "steps": 8 if stopped else STEPS,
        "effective_batch": 8,
        "rows_seen": 64,
        "tokens": 4000,
        "flops": 2.5e9,
        "peak_memory_bytes": 300_000_000,
        "selection": "online-stop" if stopped else "last",
        "seconds": {**phases, "load": 0.2, "encode": 0.1, "evaluate": 1.0},
        "hardware": {"fingerprint": machine},
        "versions": {"torch": "2.13.0", "transformers": "5.24.0"},
        "git": {"commit": "0123456789abcdef", "dirty": False},
        "stop": {
            "rule": "violation",
            "step": 8,
            "reason": "violation rate 0.28 <= 0.3 on 12 rows",
            "oracle": False,
            "rows": [f"f{i}" for i in range(12)],
            "alpha": 0.3,
        }
        if stopped
        else None,
    }


def write_log(folder: Path, method: str, seed: int, seeds: int) -> None:
    """A training curve whose end is the value of the evaluation; MASC is probed every second step."""
    steps = 8 if method == "masc" else STEPS
    lines: list[dict[str, Any]] = []
    for step in range(steps + 1):
        seconds = round(0.1 * step, 3)
        if step:
            lines.append(
                {"step": step, "epoch": step / 12, "seconds": seconds, "forget_loss": 1 / step, "grad_norm": 1.0}
            )
        if method == "masc" and step and step % 2 == 0:
            rate = round(0.98 - 0.1 * (step - 1), 3)
            lines.append({"step": step, "seconds": seconds, "probe": {"violation_rate": rate, "stop": step == 8}})
        if step % 4 == 0:
            point = {}
            for name in ("one_minus_rouge_l", "model_utility"):
                start, end = value("target", name, seed, seeds), value(method, name, seed, seeds)
                point[name] = start + (end - start) * step / steps
            lines.append({"step": step, "seconds": seconds, "trajectory": point})
    (folder / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def write_evaluation(
    root: Path,
    arm: str,
    seed: int,
    seeds: int,
    parents: dict[str, str],
    cell: dict[str, Any] | None,
    null: Mapping[tuple[str, str], Collection[int]],
    attack: str,
    changes: Mapping[str, Any],
) -> None:
    spec = {
        **base_spec(),
        "kind": "evaluate",
        "label": f"{arm}-s{seed}",
        "role": arm if cell is None else "unlearned",
        "seed": seed,
        "attack": attack,
        "cell": cell,
        "parents": parents,
        **changes,
    }
    label = f"{arm}-s{seed}" if attack == "none" else f"{arm}-s{seed}-{attack}"
    folder = write_stage(root, "evaluate", label, key("evaluate", arm, seed, attack), spec, record(0.0))
    entries, samples = [], []
    for name, (direction, side) in METRICS.items():
        number = None if seed in null.get((arm, name), ()) else value(arm, name, seed, seeds)
        rows = [] if name in ("forget_quality", "model_utility") or number is None else _samples(name, number)
        samples += rows
        entries.append(
            {
                "name": name,
                "version": 1,
                "protocol": "ours",
                "direction": direction,
                "side": side,
                "value": number,
                "n": len(rows),
                "mean": bool(rows),
                "interval": None,
                "reason": "" if number is not None else "no row is defined",
                "details": {"n": 96, "floor": -48.0} if name == "forget_quality" else {},
            }
        )
    dump(folder / "metrics.json", {"metrics": entries})
    write_samples(folder, samples)
    text = {"target": "Her debut is The Stolen Garden.", "retrained": "Her debut is <b>Salt</b>."}.get(
        arm, f"{arm} says"
    )
    example = {"split": "forget", "row_id": "f0", "prompt": "What is the debut of Ada Finch?"}
    dump(folder / "examples.json", [{**example, "answer": "Her debut is The Stolen Garden.", "text": text}])


def write_samples(folder: Path, samples: list[tuple[str, str, str, str, float]]) -> None:
    """`samples.parquet` from (metric, split, row_id, group, value) lines."""
    columns = zip(("metric", "split", "row_id", "group", "value"), zip(*samples, strict=True), strict=True)
    pq.write_table(pa.table(dict(columns)), folder / "samples.parquet")


def _samples(metric: str, mean: float) -> list[tuple[str, str, str, str, float]]:
    """Two rows per author whose mean is `mean`: authors differ by 0.02, rows of one author by 0.01."""
    split = "retain_eval" if metric.startswith("retain") else "forget"
    rows = []
    for i, group in enumerate(GROUPS):
        for j, part in enumerate((-0.005, 0.005)):
            rows.append((metric, split, f"{split}-{i}-{j}", group, mean + 0.02 * (i - 1.5) + part))
    return rows


def write_stage(
    root: Path, kind: str, label: str, stage_key: str, spec: dict[str, Any], record: dict[str, Any]
) -> Path:
    folder = root / f"{kind}-{label}-{stage_key[:8]}"
    folder.mkdir(parents=True)
    dump(folder / "spec.json", spec)
    dump(folder / "record.json", record)
    return folder


def dump(file: Path, content: Any) -> None:
    file.write_text(json.dumps(content, indent=1, sort_keys=True, allow_nan=False))
