"""The pages of stop rules, benchmarks and attacks."""

from __future__ import annotations

import inspect
from typing import Any

from unlearnbench.attacks.base import attacks
from unlearnbench.benchmarks.base import benchmarks
from unlearnbench.catalogue import Setting, settings_of
from unlearnbench.method import NEEDS, methods
from unlearnbench.pages.costs import measure
from unlearnbench.pages.markdown import blocks, code, document, names, prose, sentence, table
from unlearnbench.registry import Entry
from unlearnbench.stopping import READINGS, StopRule, stop_rules


def pages() -> dict[str, str]:
    """Path under docs/ -> text."""
    return {"stop-rules.md": rules_page(), "benchmarks.md": benchmarks_page(), "attacks.md": attacks_page()}


def settings_table(settings: list[Setting]) -> str:
    """Settings as a table; without the column of meanings where nothing has one."""
    said = any(setting.meaning for setting in settings)
    rows = [(f"`{s.name}`", f"`{s.default}`", s.allowed, *([prose(s.meaning)] if said else [])) for s in settings]
    return table(("name", "default", "allowed", *(["what it is"] if said else [])), rows)


def _about(entry: Entry) -> list[str]:
    return [prose(block) for block in blocks(entry.cls) if not block.startswith("Raises ")]


# -- stop rules ------------------------------------------------------------------------------------------------


def rules_page() -> str:
    """Every rule, what all share, and what a look costs."""
    rules = [entry for entry in stop_rules if entry.built_in]
    common = {setting.name: setting for setting in settings_of(Entry("rule", StopRule, "", 1, ""))}
    overview, sections = [], []
    for entry in rules:
        rule: StopRule = entry.build()
        reads = "; ".join(READINGS[name] for name in sorted(rule.reads)) or "the number of steps"
        overview.append((f"[`{entry.name}`](#{entry.name})", entry.title, reads, "yes" if rule.oracle else "no"))
        own = [s for s in settings_of(entry) if common.get(s.name) != s]
        needs = "\n".join(f"- needs `{name}`: {NEEDS[name]}" for name in sorted(rule.needs))
        sections += [f"## {entry.name}", *_about(entry), needs, settings_table(own)]
    return document(
        "# Stop rules",
        "A stop rule is a part of a method's settings, and any method with a training loop takes any rule:",
        code("methods:\n  - npo: {stop: {rule: violation, alpha: 0.475}}\n  - masc: {stop: {rule: budget}}", "yaml"),
        "A rule looks at a few forget rows while training goes on, in two stages: at `probe` rows first, and at "
        "`confirm` rows when these say stop. The time of the looks is charged to the method, in a column of its own. "
        "An *oracle* looks at the retrained model: it is marked, and never ranked.",
        table(("rule", "title", "looks at", "oracle"), overview),
        "## Settings of every rule",
        settings_table(list(common.values())),
        *sections,
        "## What a look costs",
        "Counted on a tiny model with `probe: 2, confirm: 4, retain_probe: 3`: rows that are run forward for one look, "
        "a mean over two looks (what the reference says of retain rows is kept). There is no backward pass.",
        table(("rule", "of the policy", "of the reference"), _looks()),
    )


def _looks() -> list[tuple[str, str, str]]:
    """Rows of a look, for rules that hold and that do not."""
    base: dict[str, Any] = {"rule": "violation", "every": 1, "probe": 2, "confirm": 4, "cut": "none", "patience": 9}
    cases: dict[str, dict[str, Any]] = {
        "`violation`, first stage above alpha": {"rho": 1e-9, "alpha": 0.0},
        "`violation`, first stage at most alpha": {"alpha": 1.0},
        "the same with `alternatives: reference`": {"alpha": 1.0, "alternatives": "reference"},
        "the same with `retain_kl_below`": {"alpha": 1.0, "retain_kl_below": 9.0, "retain_probe": 3},
    }
    rows = []
    for name, values in cases.items():
        found = measure(methods.get("ga").build(), stop={**base, **values}).look
        policy: dict[str, float] = {}
        frozen: dict[str, float] = {}
        for which, n in found.items():
            side = frozen if which.model == "reference" else policy
            side[which.rows] = side.get(which.rows, 0) + n
        rows.append((name, _rows(policy), _rows(frozen)))
    return rows


def _rows(side: dict[str, float]) -> str:
    return ", ".join(f"{n:g} {kind}" for kind, n in sorted(side.items())) or "–"


# -- benchmarks ------------------------------------------------------------------------------------------------


def benchmarks_page() -> str:
    """Every benchmark: what its rows are, its options, its metrics; of the embedded ones also its splits."""
    overview, sections = [], []
    for entry in benchmarks:
        if not entry.built_in:
            continue
        summary, *body = blocks(inspect.getmodule(entry.cls))
        overview.append((f"[`{entry.name}`](#{entry.name})", entry.title, names(getattr(entry.cls, "suite", ()))))
        sections += [f"## {entry.name}", sentence(prose(summary)), *map(prose, body), *_about(entry)]
        options = settings_of(entry)
        sections.append(settings_table(options))
        if entry.name in EMBEDDED:
            splits = entry.build().splits
            sections.append(table(("split", "rows"), [(f"`{k}`", f"{len(v):,}") for k, v in splits.items()]))
    return document(
        "# Benchmarks",
        "A benchmark is rows in named splits, and the metrics that are run on them. In an experiment: "
        "`benchmark: tofu-mini`, or with options `benchmark: {name: tofu-mini, forget: forget10}`.",
        table(("name", "title", "suite"), overview),
        *sections,
    )


EMBEDDED = ("tofu-mini", "muse-mini")  #: made on the spot, so that their rows can be counted here


# -- attacks ---------------------------------------------------------------------------------------------------


def attacks_page() -> str:
    """Every attack."""
    sections = []
    for entry in attacks:
        if entry.built_in:
            about = [prose(block) for block in blocks(inspect.getmodule(entry.cls))]
            sections += [f"## {entry.name}", f"*{entry.title}*, version {entry.version}", *about, *_about(entry)]
            sections.append(settings_table(settings_of(entry)))
    return document(
        "# Attacks",
        "An attack changes an unlearned model before it is scored again: `attacks: [none, 4bit]` in an experiment "
        "scores every model as it is and attacked, each in rows of its own.",
        *sections,
    )
