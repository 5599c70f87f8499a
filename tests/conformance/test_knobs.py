"""B14: no hyper-parameter of any method is read and ignored. Each one, changed, changes something or is refused.

What a method does is seen from outside: its losses at several steps, its state and weights over a few steps, what it
asks of `prepare`'s context, which parameters it trains, what it needs, which stop rule it has.
"""

from __future__ import annotations

import typing
from functools import lru_cache
from typing import Any

import pytest
import torch

from tests.support.variants import CUT, MORE, START
from unlearnbench.method import Method, PrepareContext, Step, methods
from unlearnbench.models import frozen_copy
from unlearnbench.registry import Entry
from unlearnbench.settings import TrainSettings
from unlearnbench.stopping import make_rule
from unlearnbench.testing.losses import Stage
from unlearnbench.testing.tiny import FORGET_ROWS, RETAIN_ROWS, tiny_encoder, tiny_lm, tiny_target, tiny_tokenizer
from unlearnbench.text import Encoder


def plain(value: Any) -> Any:
    """Something that can be compared."""
    if isinstance(value, torch.Tensor):
        return value.detach().double().flatten().tolist()
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    return [plain(inner) for inner in value] if isinstance(value, list | tuple) else value


def observe(method: Method) -> dict[str, Any]:
    """All that a method does."""
    asked: list[Any] = []

    def generate(prompts: list[str], **options: Any) -> list[list[str]]:
        asked.append([*prompts, sorted(options.items())])
        return [[f"Some other thing {i}." for i in range(options["n"])] for _ in prompts]

    def finetune(rows: Any, settings: TrainSettings) -> Any:
        asked.append([len(rows), settings.model_dump()])
        return tiny_target(seed=2, dtype=torch.float64)

    context = PrepareContext(
        lm=frozen_copy(tiny_target(seed=1, dtype=torch.float64)),
        encoder=tiny_encoder(),
        forget=FORGET_ROWS,
        retain=RETAIN_ROWS,
        generator=torch.Generator().manual_seed(7),
        generate=generate,
        finetune=finetune,
        settings=TrainSettings(),
    )
    seen: dict[str, Any] = {"asked": asked, "needs": sorted(method.requirements)}
    seen["stop"] = None if method.stop is None else repr(make_rule(method.stop))
    seen["surrogate"] = getattr(method, "eta", None) if method.stop is not None else None  # logged by the probe
    if not method.is_loop:
        method.unlearn(context)
        return {**seen, "weights": plain([p.sum() for p in context.lm.parameters()])}
    stage = Stage(method)
    stage.state = method.prepare(context)
    if len(type(method).protocols) > 1:  # some differ in texts only, whose first token has a label
        texts = Encoder(tiny_tokenizer(), "plain", 256, protocol="muse")
        stage.rows["forget"].append(texts.encode("", "A text.", FORGET_ROWS[0].id))
    batches = stage.batches()
    for number in range(2):
        for part in stage.parts()[: 2 - number]:
            views = (stage._views(lm, batches, part, 0.0) for lm in (stage.policy, stage.frozen))
            step = Step(*views, stage.state, number, number / 3)
            terms = method.forget_loss(step) if part == "forget" else method.retain_loss(step)
            seen[f"{part} {number}"] = plain(list(terms.sums()))
        seen[f"weights {number}"] = method.weights(stage.state)
        method.after_step(stage.state, 1.0, 0.3)
    seen["state"] = plain(dict(stage.state))
    seen["trained"] = method.trained_parameters(_deep())
    return seen


@lru_cache
def _deep() -> Any:
    return tiny_lm(num_hidden_layers=4)


SEEN: dict[str, dict[str, Any]] = {}


def seen_of(base: Method) -> dict[str, Any]:
    """`observe`, once for each setting."""
    if repr(base) not in SEEN:
        SEEN[repr(base)] = observe(base)
    return SEEN[repr(base)]


def others(method: Method, name: str) -> list[Any]:
    """Other values of a hyper-parameter, by its type and value. Some may be out of its range."""
    annotation, value = type(method).model_fields[name].annotation, getattr(method, name)
    if name == "protocol":
        return [protocol for protocol in type(method).protocols if protocol != value]
    if name == "layer":
        return [1]
    if name == "stop":
        return [{"rule": "budget", "steps": 1}]
    literal = typing.get_args(annotation) if typing.get_origin(annotation) is typing.Literal else ()
    if literal:
        return [choice for choice in literal if choice != value]
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 6]
    if isinstance(value, float):
        return [2 * value + 0.1, value / 2 + 0.01]
    if isinstance(value, tuple):
        return [(0.1, 0.9)]
    if isinstance(value, str):
        return ["Say something else. "]
    kinds = [kind for kind in typing.get_args(annotation) if kind is not type(None)]
    return [{float: 0.4, int: 1, str: r".*\.q_proj\.weight"}.get(kind, (0.1, 0.5)) for kind in kinds]


def bases(entry: Entry) -> list[Method]:
    """Settings to start from: the defaults, further settings, the presets, each with `START`."""
    first = START.get(entry.name, {})
    further = [values if "cut" in values else {**first, **values} for values in MORE.get(entry.name, [])]
    presets = [other for other in methods if other.cls is entry.cls and other is not entry]
    return [entry.build(**first), *(entry.build(**values) for values in further), *(p.build(**first) for p in presets)]


def with_value(base: Method, name: str, value: Any) -> Method | None:
    """The method with another value, or None where it is refused."""
    more = CUT if (name, getattr(base, name)) == ("cut", None) else {}
    try:
        return type(base)(**{**base.model_dump(exclude_unset=True), name: value, **more})
    except ValueError:
        return None


CLASSES = [entry for entry in methods if entry.preset_of is None]
FIELDS = [(entry, name) for entry in CLASSES for name in entry.cls.model_fields]
NAMES = [f"{entry.name}-{name}" for entry, name in FIELDS]


def check(base: Method, name: str) -> int:
    """Each value that is accepted changes what the method does; how many were."""
    changed = [method for value in others(base, name) if (method := with_value(base, name, value)) is not None]
    for method in changed[:1] if isinstance(getattr(base, name), float) else changed:
        if name == "form" and getattr(base, "beta", 0) == 1:
            continue  # the two forms are one at beta = 1
        assert observe(method) != seen_of(base), f"`{name}: {getattr(method, name)}` changes nothing of {base!r}"
    return len(changed)


@pytest.mark.parametrize(("entry", "name"), FIELDS, ids=NAMES)
def test_every_knob_does_something_or_is_refused(entry: Entry, name: str) -> None:
    check(bases(entry)[0], name)


@pytest.mark.slow
@pytest.mark.parametrize(("entry", "name"), FIELDS, ids=NAMES)
def test_every_knob_in_all_settings(entry: Entry, name: str) -> None:
    accepted = [check(base, name) for base in bases(entry)]
    idle = name in ("retain_weight", "layer") or (name == "protocol" and len(entry.cls.protocols) == 1)
    assert idle or not bases(entry)[0].is_loop or any(accepted), f"no other value of `{name}` is ever accepted"
