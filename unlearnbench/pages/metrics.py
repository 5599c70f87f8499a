"""The pages of docs/metrics/: one for each metric, and the table of all."""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from unlearnbench.benchmarks.base import Row
from unlearnbench.catalogue import plain, settings_of
from unlearnbench.metric import SUITES, Context, Metric, Value, metrics
from unlearnbench.pages import examples
from unlearnbench.pages.examples import Example, Token
from unlearnbench.pages.markdown import blocks, document, names, prose, sentence, table
from unlearnbench.pages.worked import WORKED
from unlearnbench.registry import Entry
from unlearnbench.requests import Score

#: what a metric is about, as its page is filed
SIDES = {
    "forget": "Forgetting",
    "utility": "Utility",
    "privacy": "Privacy",
    "fluency": "Fluency",
    "descriptive": "Descriptive",
}
SAME = {"split", "statistic", "judge"}  #: names that differ in these only share a page
REQUESTS = {
    "Score": "the log-probability of each token of an answer, and whether it is the likeliest",
    "Generate": "the greedy answer",
    "Sample": "sampled answers",
    "GradNorm": "the norm of the gradient of the mean answer nll: a forward and a backward pass",
    "External": "a whole evaluation by another library",
}


def pages() -> dict[str, str]:
    """Path under docs/ -> text."""
    return {"metrics/index.md": index(), **{f"metrics/{head(group).name}.md": page(group) for group in groups()}}


def section(path: str) -> str:
    """Under which heading of the navigation a page stands; empty: under none."""
    entry = next((head(group) for group in groups() if path == f"metrics/{head(group).name}.md"), None)
    return SIDES[entry.meta["side"]] if entry is not None else ""


@cache
def groups() -> list[tuple[Entry, ...]]:
    """The built-in metrics, those that share a page together, in the order of the table."""
    found: dict[str, list[Entry]] = {}
    for entry in metrics:
        if entry.built_in:
            values = entry.build().model_dump(mode="json", exclude=SAME)
            found.setdefault(f"{entry.cls.__name__} {json.dumps(values, sort_keys=True)}", []).append(entry)
    sides = list(SIDES)
    return sorted((tuple(g) for g in found.values()), key=lambda g: (sides.index(head(g).meta["side"]), head(g).name))


def head(group: tuple[Entry, ...]) -> Entry:
    """The name the page is called after."""
    prefixes = ("forget_", "retain_")
    return min(group, key=lambda e: (e.preset_of is not None, not e.name.startswith(prefixes), e.name))


# -- one metric ------------------------------------------------------------------------------------------------


def page(group: tuple[Entry, ...]) -> str:
    """The page of a metric."""
    entry = head(group)
    first, *formula = blocks(entry.cls)
    summary, *background = blocks(inspect.getmodule(entry.cls))
    example = WORKED.get(entry.name)
    facts = [f"`{entry.name}`", f"version {entry.version}", f"`metrics/{Path(_file(entry)).name}`"]
    return document(
        f"# {entry.title}",
        " · ".join([*facts, f"source: {prose(entry.meta['source'])}"]),
        f"**{sentence(prose(first))}**",
        table(("names on this page", "what it is", "arrow", "goal", "range", "unit", "split"), map(_facts, group)),
        _goal(entry),
        "## Formula",
        *map(prose, formula),
        f"*{sentence(prose(summary))}*",
        *map(prose, background),
        "## What it asks the model",
        _asked(entry, example),
        *_protocols(entry),
        *_settings(entry),
        *_example(entry, example),
        *_nulls(entry, example),
    )


def _goal(entry: Entry) -> str:
    if entry.meta.get("target") != "retrained":
        return ""
    return f"The goal of `{entry.name}` is the value of a model that never saw the forget rows; beyond it is no better."


def _file(entry: Entry) -> str:
    return inspect.getfile(entry.cls)


def _facts(entry: Entry) -> tuple[str, ...]:
    return (f"`{entry.name}`", entry.title, *_direction(entry), str(entry.meta.get("unit", "")), f"`{_split(entry)}`")


def _split(entry: Entry) -> str:
    metric: Metric = entry.build()
    return metric.split


def _direction(entry: Entry) -> tuple[str, str, str]:
    """The arrow of the papers, the goal, and the range."""
    higher = entry.meta["direction"] == "higher"
    bounds = entry.meta.get("range")
    goal = "retrained" if entry.meta.get("target") == "retrained" else "high" if higher else "low"
    return "↑" if higher else "↓", goal, _range(bounds)


def _range(bounds: tuple[float | None, float | None] | None) -> str:
    if bounds is None:
        return "unbounded"
    low, high = bounds
    return f"{'-∞' if low is None else low} … {'∞' if high is None else high}"


def _asked(entry: Entry, example: Example | None) -> str:
    metric = examples.build(entry, example) if example is not None else entry.build()
    if example is None:
        return "What the library behind it wants: answers to the rows of the split, or the model itself."
    if metric.depends:
        return f"Nothing of its own: it stands on {names(dict.fromkeys(d.partition('@')[0] for d in metric.depends))}."
    count = sum(len(rows) for split, rows in example.rows.items() if not split.endswith("_icl"))
    found: dict[tuple[str, str, str], int] = {}
    for request in examples.requests(metric, example):
        want = ", ".join(sorted(request.want)) if isinstance(request, Score) else ""
        key = (type(request).__name__, request.role, want)
        found[key] = found.get(key, 0) + 1
    rows = [
        (f"`{kind}`", REQUESTS[kind] + (f", with its {want}" if want else ""), f"`{role}`", f"{n / count:g}")
        for (kind, role, want), n in found.items()
    ]
    return table(("request", "what it is", "model", "per row of the example"), rows)


def _protocols(entry: Entry) -> list[str]:
    protocols: Mapping[str, str] = entry.cls.protocols  # type: ignore[attr-defined]
    if len(protocols) < 2:
        return []
    another = next(name for name in protocols if name != "ours")
    rows = [(f"`{name}`", prose(text)) for name, text in protocols.items()]
    return [
        "## Protocols",
        f"The code bases disagree. `{entry.name}` is `ours`; `{entry.name}@{another}` is a column of its own.",
        table(("protocol", "what it does, and whose code"), rows),
    ]


def _settings(entry: Entry) -> list[str]:
    rows = [
        (f"`{s.name}`", f"`{s.default}`", s.allowed, prose(s.meaning))
        for s in settings_of(entry)
        if s.name not in ("split", "protocol")
    ]
    return ["## Settings", table(("name", "default", "allowed", "what it is"), rows)] if rows else []


# -- the worked example ----------------------------------------------------------------------------------------


def _example(entry: Entry, example: Example | None) -> list[str]:
    if example is None:
        return []
    return [
        "## Worked example",
        *shown(entry.name, example),
        *(
            [f"Settings: {', '.join(f'`{k}: {plain(v)}`' for k, v in example.settings.items())}."]
            if example.settings
            else []
        ),
        example.why,
        table(("protocol", "by hand", "what the code gives"), _results(entry, example)),
    ]


def _results(entry: Entry, example: Example) -> list[tuple[str, str, str]]:
    """Each protocol's number, as the metric's code computes it; an arithmetic that gives another one is an error."""
    rows = []
    for protocol in entry.cls.protocols:  # type: ignore[attr-defined]
        value = examples.value(entry, example, protocol)
        arithmetic = example.by_hand.get(protocol, "")
        if arithmetic and not (value.score is not None and math.isclose(value.score, examples.work_out(arithmetic))):
            raise ValueError(
                f"{entry.name}@{protocol}: by hand {examples.work_out(arithmetic)}, the code {value.score}"
            )
        rows.append((f"`{protocol}`", f"`{arithmetic}`" if arithmetic else "", _result(value)))
    return rows


def _result(value: Value) -> str:
    return f"**{value.score:.6g}**" if value.score is not None else f"null: {value.reason}"


def shown(name: str, example: Example) -> list[str]:
    """What the example is made of, as tables."""
    parts = [_rows(name, example)] if example.rows else []
    if example.tokens:
        role = any(len(key) > 2 for key in example.tokens)
        lines = [
            (
                _quoted(key[0]),
                _quoted(key[1]),
                *([f"`{key[2] if len(key) > 2 else 'model'}`"] if role else []),
                _tokens(said),
            )
            for key, said in example.tokens.items()
        ]
        parts.append(
            table(("prompt", "answer", *(["model"] if role else []), "its tokens, and their probabilities"), lines)
        )
    if example.texts:
        several = max(map(len, example.texts.values())) > 1
        lines = [(_quoted(prompt), "; ".join(map(_quoted, said))) for prompt, said in example.texts.items()]
        parts.append(table(("asked", "sampled answers" if several else "greedy answer"), lines))
    if example.norms:
        parts.append(
            table(("answer", "norm of its gradient"), [(_quoted(k), f"{v:g}") for k, v in example.norms.items()])
        )
    if example.given:
        known = bool(example.retrained)
        lines = [
            (f"`{name}`", _numbers(numbers), *([_numbers(example.retrained[name])] if known else []))
            for name, numbers in example.given.items()
        ]
        parts.append(table(("metric", "this model", *(["retrained model"] if known else [])), lines))
    return parts


def _rows(name: str, example: Example) -> str:
    """The rows with those of their parts that some row has."""
    parts: dict[str, Any] = {
        "prompt": lambda row: _quoted(row.prompt) if row.prompt else "none",
        "answer": lambda row: _quoted(row.answer),
        "fact": lambda row: _quoted(row.fact),
        "in other words": lambda row: _quoted(row.paraphrased_answer),
        "wrong answers": lambda row: "; ".join(map(_quoted, row.perturbed)),
        "unseen paraphrases": lambda row: "; ".join(map(_quoted, row.unseen_paraphrases)),
    }
    used = _used(name, example)
    rows = [(f"`{split}`", row) for split, rows in example.rows.items() for row in rows]
    columns = {k: get for k, get in parts.items() if k in used and any(get(row) for _, row in rows)}
    return table(("split", *columns), [(split, *(get(row) for get in columns.values())) for split, row in rows])


def _used(name: str, example: Example) -> set[str]:
    """Parts of the rows that stand in the example's tokens or texts, so that a reader needs them."""
    rows: list[Row] = [row for rows in example.rows.values() for row in rows]
    said = {text for key in example.tokens for text in key} | set(example.texts)
    found = {"prompt", "answer"}
    found |= {"in other words"} if any({row.paraphrased_answer} & said - {""} for row in rows) else set()
    found |= {"wrong answers"} if any(set(row.perturbed) & said for row in rows) else set()
    found |= {"unseen paraphrases"} if any(set(row.unseen_paraphrases) & said for row in rows) else set()
    return found | ({"fact"} if any(word in name for word in ("fact", "leak")) else set())


def _tokens(said: tuple[Token, ...]) -> str:
    parts = []
    for token in said:
        others = f" (others {', '.join(token.others)})" if token.others else ""
        parts.append(f"`{token.text}` {token.p}{others}")
    return " · ".join(parts)


def _numbers(numbers: float | Mapping[str, float]) -> str:
    if isinstance(numbers, Mapping):
        return ", ".join(f"{number:g} (row {row})" for row, number in numbers.items())
    return f"{numbers:g}"


def _quoted(text: str) -> str:
    return f"“{text}”".replace("\n", "\\n") if text else ""


# -- nulls -----------------------------------------------------------------------------------------------------


def _nulls(entry: Entry, example: Example | None) -> list[str]:
    """What the code says when something is missing; cases in which there is a number all the same are left out."""
    if example is None:
        value = entry.build().compute(Context(examples.benchmark(Example({})), {}, {}))
        cases = {"it is asked for without a name": value}
    else:
        cases = {case: examples.value(entry, changed) for case, changed in examples.without(example).items()}
    rows = [(case, value.reason) for case, value in cases.items() if value.score is None]
    return [
        "## When there is no number",
        "The value is then null, with its reason, and is neither ranked nor averaged:",
        table(("when", "the reason it gives"), rows),
        "Rows that are undefined are left out of the mean, and counted.",
    ]


# -- all metrics -----------------------------------------------------------------------------------------------


def index() -> str:
    """The table of all metrics, and the suites."""
    parts = []
    for side, title in SIDES.items():
        rows = []
        for group in groups():
            if head(group).meta["side"] == side:
                rows += [_line(entry, head(group)) for entry in sorted(group, key=lambda e: e is not head(group))]
        parts += [f"## {title}", table(("name", "what it is", "arrow", "goal", "range", "protocols"), rows)]
    return document(
        "# Metrics",
        "A metric says what it asks of a model and turns the answers into a number. All metrics of a run are asked "
        "together, and each distinct question is answered once. `name@protocol` is the metric as another code base "
        "computes it ([protocols](../protocols.md)); a number that cannot be computed is null with a reason.",
        "↑ and ↓ are the arrows of the papers. Where the goal is *retrained*, it is the retrained model's value: going "
        "further in the arrow's direction is no better, because a model that never saw the rows does not get there.",
        *parts,
        "## Suites",
        "`metrics: [tofu, mia]` in an experiment stands for these, and for what they stand on:",
        table(("suite", "metrics"), [(f"`{name}`", names(members)) for name, members in SUITES.items()]),
        "## What can be asked of a model",
        table(("request", "what it is"), [(f"`{kind}`", text) for kind, text in REQUESTS.items()]),
    )


def _line(entry: Entry, of: Entry) -> tuple[str, ...]:
    protocols: Mapping[str, str] = entry.cls.protocols  # type: ignore[attr-defined]
    others = names(name for name in protocols if name != "ours")
    name = entry.name if not entry.meta.get("adapter") else f"{entry.name}:NAME"
    return (f"[`{name}`]({of.name}.md)", entry.title, *_direction(entry), others)
