"""The pages of docs/methods/: one for each method, the shared settings, and the table of all."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from unlearnbench.catalogue import Setting, plain, settings_of
from unlearnbench.method import INVARIANTS, NEEDS, RETAIN, RETAIN_BREAKS, Method, methods
from unlearnbench.pages.costs import BATCH, BLOCKS, Costs, measure
from unlearnbench.pages.markdown import blocks, code, document, names, prose, sentence, table
from unlearnbench.registry import Entry
from unlearnbench.retain import REGULARISERS

#: what methods do to a forget answer, in the order of the table
FAMILIES = {
    "ascent": "push its probability down, token by token",
    "preference": "make it the losing side of a comparison",
    "margin": "push a token down only while it dominates its alternatives",
    "distillation": "teach another distribution in its place",
    "representation": "ruin the hidden states or the logits behind it",
    "weights": "take what learned it out of the weights",
}
NOTATION = """\
x, y        the prompt and the answer of a row; y_t its token at place t (EOS is one of them)
p, p_ref    probabilities under the policy (the model being trained) and under the frozen reference
z           logits: p_t = softmax(z_t) predicts y_t
nll         -log p, in nats
E, E_x      mean over the rows of an optimiser step, all micro-batches and processes together
E_t         mean over the answer tokens of an optimiser step
mean_t      mean over the answer tokens of one row
sg(a)       a as a constant: no gradient flows through it
KL(p || q)  sum_v p(v) (log p(v) - log q(v)) over the vocabulary, in nats
"""
TOTAL = "L = forget_weight L_forget + retain_weight L_retain"
ASKED = {
    "answers": "logits at the answer tokens",
    "all logits": "logits at every position",
    "hidden": "hidden states of one block",
}
DIFFERENCES = "Differences from the reference code:"


def pages() -> dict[str, str]:
    """Path under docs/ -> text."""
    found = {f"methods/{entry.name}.md": page(entry) for entry in classes()}
    return {"methods/index.md": index(), "methods/shared.md": shared(), **found}


def classes() -> list[Entry]:
    """The built-in methods without the presets, in the order of the table."""
    found = [entry for entry in methods if entry.built_in and entry.preset_of is None]
    return sorted(found, key=lambda entry: (list(FAMILIES).index(entry.meta["family"]), entry.name))


def presets(of: Entry) -> list[Entry]:
    """The built-in presets of a method."""
    return [entry for entry in methods if entry.built_in and entry.preset_of is not None and entry.cls is of.cls]


# -- one method ------------------------------------------------------------------------------------------------


def page(entry: Entry) -> str:
    """The page of a method."""
    summary, *body = blocks(inspect.getmodule(entry.cls))
    differences = [block for block in body if block.startswith(DIFFERENCES)]
    method, file = entry.build(), Path(entry.origin).name
    return document(
        f"# {entry.title}",
        " · ".join([f"`{entry.name}`", f"version {entry.version}", prose(entry.meta["paper"]), f"`methods/{file}`"]),
        f"**{sentence(prose(summary))}**",
        "## Loss",
        *(prose(block) for block in body if block not in differences),
        f"Symbols that mean the same on every page: [notation](index.md#notation). {_total(method)}",
        "## Differences from the reference code",
        *(sentence(prose(block.removeprefix(DIFFERENCES))) for block in differences),
        *_protocols(entry),
        "## Hyper-parameters",
        settings_table(own(entry)) or "It has none of its own.",
        _others(entry),
        *_presets(entry),
        "## What it needs",
        _needs(method),
        "## What it costs",
        *_costs(entry),
    )


def _total(method: Method) -> str:
    if not method.is_loop:
        return "There is no training loop on the forget rows, and so no retain term and no stop rule."
    return f"The whole loss is `{TOTAL}`, with a [retain regulariser](shared.md#retain-regularisers) of your choice."


def own(entry: Entry) -> list[Setting]:
    """The settings that the class adds, and the shared ones whose default it changes."""
    common = {setting.name: setting.default for setting in settings_of(_BASE)}
    found = [s for s in settings_of(entry) if common.get(s.name) != s.default]
    return sorted(found, key=lambda setting: setting.name in common)


_BASE = Entry("method", Method, "Method", 1, "unlearnbench/method.py")


def settings_table(settings: Iterable[Setting]) -> str:
    """Settings as a table."""
    rows = [(f"`{s.name}`", f"`{s.default}`", s.allowed, prose(s.meaning), prose(s.source)) for s in settings]
    return table(("name", "default", "allowed", "what it is", "where the default comes from"), rows)


def _others(entry: Entry) -> str:
    if not entry.build().is_loop:
        return "The shared settings of the training loop have no effect on it; changing them is an error."
    changed = {setting.name for setting in own(entry)}
    rest = [setting.name for setting in settings_of(_BASE) if setting.name not in changed]
    return f"And those of every method, with their [usual defaults](shared.md): {names(rest)}." if rest else ""


def _protocols(entry: Entry) -> list[str]:
    protocols: dict[str, str] = entry.cls.protocols  # type: ignore[attr-defined]
    if len(protocols) < 2:
        return []
    rows = []
    for name, text in protocols.items():
        method = entry.build(protocol=name)
        broken = method.breaks.get(name, frozenset())
        needs = method.protocol_needs.get(name, method.needs)
        rows.append((f"`{name}`", prose(text), _list(INVARIANTS[b] for b in sorted(broken)), names(sorted(needs))))
    used = f"`{entry.name}: {{protocol: {list(protocols)[1]}}}` takes another one."
    return [
        "## Protocols",
        f"The code bases disagree; each form has a name, and {used}",
        table(("protocol", "what it computes", "what does not hold in it", "needs"), rows),
    ]


def _list(items: Iterable[str]) -> str:
    return "; ".join(items) or "–"


def _presets(entry: Entry) -> list[str]:
    rows = [
        (f"`{preset.name}`", preset.title, "<br>".join(f"`{k}: {plain(v)}`" for k, v in preset.defaults.items()))
        for preset in presets(entry)
    ]
    return ["## Presets", "The same class under other names:", table(("name", "title", "sets"), rows)] if rows else []


def _needs(method: Method) -> str:
    needed = sorted(method.requirements)
    if not needed:
        return "Nothing but the target and its forget rows."
    lines = "\n".join(f"- `{name}`: {NEEDS[name]}" for name in needed)
    return f"{lines}\n\nWhere one of them is missing the cell is skipped, and the record says why."


# -- costs -----------------------------------------------------------------------------------------------------


@cache
def costs(name: str, protocol: str = "ours", lora: bool = False) -> Costs:
    """What a method costs, counted once."""
    return measure(methods.get(name).build(protocol=protocol), lora)


def _costs(entry: Entry) -> list[str]:
    found = costs(entry.name)
    method: Method = entry.build()
    parts = [f"Counted while it ran on a tiny model of {BLOCKS} blocks, with its defaults and no stop rule."]
    if method.is_loop:
        rows = []
        for which, n in found.step.items():
            rows.append((which.model, which.rows, _number(n), _number(n) if which.backward else "–", ASKED[which.kind]))
        quarter = any(n != round(n) for n in found.step.values())
        parts += [
            "Each optimiser step, in passes over its rows"
            + (" (0.25: a quarter of the blocks is run):" if quarter else ":"),
            table(("model", "rows", "forward", "backward", "asked for"), rows),
        ]
    parts += ["\n".join(f"- {line}" for line in _lines(entry, found, method.is_loop))]
    variants = [(f"`{e.name}`", e.name, "ours") for e in presets(entry)]
    variants += [(f"`{entry.name}: {{protocol: {p}}}`", entry.name, p) for p in _named(entry)]
    others = [
        (label, *cells) for label, name, p in variants if (cells := cost_cells(name, p)) != cost_cells(entry.name)
    ]
    if others:
        parts += ["Presets and protocols that cost something else:", table(("", *COST_HEAD), others)]
    if method.stop is not None:
        parts.append("Looks of the stop rule come on top: see [what a look costs](../stop-rules.md#what-a-look-costs).")
    return parts


def _named(entry: Entry) -> list[str]:
    protocols: dict[str, str] = entry.cls.protocols  # type: ignore[attr-defined]
    return [name for name in protocols if name != "ours"]


def _lines(entry: Entry, found: Costs, loop: bool) -> list[str]:
    work = _before(found) or "nothing"
    if not loop:
        return [f"all its work: {work}"]
    lines = [f"before the first step: {work}"]
    if found.copies:
        lora = _number(costs(entry.name, lora=True).copies)
        lines.append(
            f"in memory beside the model that is trained: {_number(found.copies)} frozen copy of it; with LoRA {lora}, "
            "because the adapter is switched off instead"
        )
    else:
        lines.append("in memory beside the model that is trained: no other model")
    if found.numbers:
        lines.append(f"kept for each token of the forget answers: {_some(found.numbers, 'number')}")
    if found.trained:
        lines.append(f"trained: {names(name.removeprefix('hf.') for name in found.trained)} of the tiny model")
    return lines


def _before(found: Costs) -> str:
    parts = []
    if found.samples:
        parts.append(f"{_some(found.samples, 'sampled answer')} for each forget row")
    second = " of a second model" if found.copies_prepare else ""
    for which, n in sorted(found.prepare.items(), key=lambda item: not item[0].backward):
        kind = (
            f"forward and backward pass{'es' * (n != 1)}{second}"
            if which.backward
            else f"forward pass{'es' * (n != 1)}"
        )
        parts.append(f"{_number(n)} {kind} over the {which.rows} rows")
    return ", ".join(parts)


COST_HEAD = ("forward", "backward", "copies", "before the first step")


def cost_cells(name: str, protocol: str = "ours") -> tuple[str, ...]:
    """A method's costs for one line of a table."""
    found = costs(name, protocol)
    return (*map(_number, (found.total(False), found.total(True), found.copies)), _before(found) or "–")


def _number(value: float) -> str:
    return f"{value:g}"


def _some(value: float, what: str) -> str:
    return f"{value:g} {what}{'s' * (value != 1)}"


# -- all methods -----------------------------------------------------------------------------------------------


def index() -> str:
    """The table of all methods."""
    rows = []
    for entry in classes():
        for e in (entry, *presets(entry)):
            link = f"[`{e.name}`]({entry.name}.md)" + ("" if e is entry else "<br>preset")
            rows.append(
                (link, e.title, entry.meta["family"], names(sorted(e.build().requirements)), *cost_cells(e.name))
            )
    return document(
        "# Methods",
        "A method is a forget objective, a retain regulariser and a stop rule, with hyper-parameters. Every name below "
        "can stand in an experiment under `methods:`, and `unlearnbench show NAME` prints its page.",
        "## Families",
        table(("family", "what it does to a forget answer"), [(f"*{k}*", v) for k, v in FAMILIES.items()]),
        "## All of them",
        f"Costs are counted on a tiny model while an optimiser step of {BATCH} forget and {BATCH} retain rows ran: "
        "*forward* and *backward* are passes over a batch in one step, the frozen reference's among them; *copies* are "
        "models in memory beside the one that is trained, when all its weights are. With LoRA the reference is the "
        "same model with its adapter switched off, and there is no copy.",
        table(("name", "title", "family", "needs", *COST_HEAD), rows),
        "What the needs mean:",
        table(("need", "what the harness supplies"), [(f"`{k}`", v) for k, v in NEEDS.items()]),
        "## Notation",
        code(NOTATION),
    )


def shared() -> str:
    """The settings of every method, and the retain regularisers."""
    rows = []
    for name, needs in RETAIN.items():
        broken = RETAIN_BREAKS.get(name, frozenset())
        rows.append((f"`{name}`", names(sorted(needs)), _list(INVARIANTS[b] for b in sorted(broken))))
    sections = []
    for name, function in REGULARISERS.items():
        sections += [f"### {name}", *map(prose, blocks(function))]
    return document(
        "# Settings of every method",
        code(TOTAL),
        "With `retain: none` or `retain_weight: 0` the retain forward pass is not run. Both losses are means over the "
        "whole optimiser step, so accumulation and the number of processes change nothing.",
        settings_table(settings_of(_BASE)),
        "A setting that has no effect where it stands is an error: `layer` without `retain: hidden`, `retain_weight` "
        "with `retain: none`. `stop` takes a [stop rule](../stop-rules.md).",
        "## Retain regularisers",
        "Any method takes any of them: `npo: {retain: kl}`. Presets such as `npo+klr` are these combinations by name.",
        table(("name", "needs", "what does not hold in it"), rows),
        *sections,
    )
