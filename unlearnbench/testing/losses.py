"""What must hold of every method's losses: checks over one method, on tiny targets in float64.

Each `check_…` raises AssertionError. A protocol or retain regulariser that breaks an invariant declares it (`breaks`),
and then the check asserts the break, so that a declaration cannot go stale.
"""

from __future__ import annotations

import dataclasses
import math
import pickle
from collections.abc import Callable, Sequence
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor

from unlearnbench.language_model import LanguageModel
from unlearnbench.method import INVARIANTS, NEEDS, Method, PrepareContext, State, Step, Terms, View, Views
from unlearnbench.reference import run
from unlearnbench.registry import Entry
from unlearnbench.settings import TrainSettings
from unlearnbench.testing.tiny import FORGET_ROWS, RETAIN_ROWS, tiny_encoder, tiny_target
from unlearnbench.text import Batch, Encoded, collate

RELATIVE, ABSOLUTE = 1e-9, 1e-11
PARTS = ("forget", "retain")


def _model(seed: int) -> LanguageModel:
    return tiny_target(seed=seed, dtype=torch.float64)


class Stage:
    """A policy and another, frozen model with forget, retain and alternate rows; `prepare` has run on the frozen one.

    `twins`: the policy is the frozen model, as before the first optimiser step.
    """

    def __init__(self, method: Method, twins: bool = False):
        self.method, self.encoder = method, tiny_encoder()
        self.frozen = _model(1)
        self.policy = self.frozen if twins else _model(0)
        forget, retain = FORGET_ROWS, RETAIN_ROWS
        context = PrepareContext(
            lm=self.frozen,
            encoder=self.encoder,
            forget=forget,
            retain=retain,
            generator=torch.Generator().manual_seed(7),
            generate=lambda prompts, n=1, **_: [[f"Some other thing {i}." for i in range(n)] for _ in prompts],
            finetune=lambda rows, settings: _model(2),
            settings=TrainSettings(),
        )
        self.state: State = method.prepare(context)
        encode = self.encoder.encode
        self.rows = {
            "forget": [encode(row.prompt, row.answer, row.id) for row in forget],
            "retain": [encode(row.prompt, row.answer, row.id) for row in retain],
        }
        others = self.state.get("alternates", {row.id: ["Something else."] for row in forget})
        self.rows["alternate"] = [encode(row.prompt, others[row.id][0], row.id) for row in forget]

    def batches(self, side: str = "right", extra: int = 0) -> dict[str, Batch]:
        """All rows, padded on a side, with `extra` columns of padding that nobody needs."""
        return {part: pad(rows, self.encoder.pad_id, side, extra) for part, rows in self.rows.items()}

    def single(self, part: str, index: int) -> dict[str, Batch]:
        """One row of a part (and its alternate), without padding."""
        parts = ("forget", "alternate") if part == "forget" else (part,)
        return {name: collate([self.rows[name][index]], self.encoder.pad_id) for name in parts}

    def terms(
        self, part: str, batches: dict[str, Batch], shift: float | Tensor = 0.0, frozen_shift: float = 0.0
    ) -> Terms:
        """The method's terms of a part (`forget` or `retain`); the shifts are added to all logits of either model."""
        policy = self._views(self.policy, batches, part, shift)
        step = Step(policy, self._views(self.frozen, batches, part, frozen_shift), self.state)
        return self.method.forget_loss(step) if part == "forget" else self.method.retain_loss(step)

    def loss(
        self,
        part: str,
        batches: dict[str, Batch] | None = None,
        shift: float | Tensor = 0.0,
        frozen_shift: float = 0.0,
    ) -> Tensor:
        """The mean of the terms."""
        return self.terms(part, batches or self.batches(), shift, frozen_shift).mean()

    def gradient(self, part: str, shift: float = 0.0) -> Tensor:
        """The gradient of the mean of the terms by the policy's parameters, in one row."""
        parameters = list(self.policy.parameters())
        found = torch.autograd.grad(self.loss(part, shift=shift), parameters, allow_unused=True)
        known = [p.new_zeros(p.shape) if g is None else g for p, g in zip(parameters, found, strict=True)]
        return torch.cat([g.flatten() for g in known])

    def parts(self) -> tuple[str, ...]:
        """The parts the method has."""
        return PARTS if self.method.uses_retain else PARTS[:1]

    def _views(self, lm: LanguageModel, batches: dict[str, Batch], part: str, shift: float | Tensor) -> Views:
        frozen = lm is self.frozen and lm is not self.policy

        def forward(batch: Batch, kind: str, layer: int | float | None) -> Tensor:
            with torch.set_grad_enabled(not frozen):
                output = run(lm, batch, kind, layer)
            return output if kind == "hidden" else output + shift

        view = {name: View(batch, forward) for name, batch in batches.items()}
        if part == "retain":
            return Views(retain=view["retain"])
        return Views(forget=view["forget"], alternate=view["alternate"])


def pad(rows: Sequence[Encoded], pad_id: int, side: str, extra: int) -> Batch:
    """A batch, `extra` columns wider than needed."""
    batch = collate(rows, pad_id, side)
    if extra == 0:
        return batch
    widths = (extra, 0) if side == "left" else (0, extra)
    fill = torch.nn.functional.pad
    return Batch.from_labels(
        fill(batch.input_ids, widths, value=pad_id),
        fill(batch.labels, widths, value=-100),
        fill(batch.attention_mask, widths, value=0),
        batch.row_ids,
    )


def part_of(batch: Batch, rows: slice) -> Batch:
    """Some rows of a batch, the padding as it is."""
    tensors = {name: value[rows] for name, value in vars(batch).items() if isinstance(value, Tensor)}
    return dataclasses.replace(batch, row_ids=batch.row_ids[rows], **tensors)


# -- the invariants --------------------------------------------------------------------------------------------


def _hold(method: Method, invariant: str, differences: dict[str, tuple[Tensor, Tensor]]) -> None:
    """All pairs agree, or, when the break is declared, at least one does not."""
    broken = invariant in method.broken_invariants
    agree = {name: torch.allclose(a, b, RELATIVE, ABSOLUTE) for name, (a, b) in differences.items()}
    if broken:
        assert not all(agree.values()), f"the declared break of '{invariant}' does not show: {differences}"
    else:
        for name, (a, b) in differences.items():
            _close(a, b, f"{invariant}, {name}")


def _close(a: Tensor, b: Tensor, what: str) -> None:
    torch.testing.assert_close(a, b, rtol=RELATIVE, atol=ABSOLUTE, msg=lambda text: f"{what}: {text}")


def check_shift(method: Method) -> None:
    """A constant added to all logits of the policy, or of the reference, changes neither losses nor gradients."""
    stage = Stage(method)
    pairs = {}
    for part in stage.parts():
        shift = torch.zeros((), dtype=torch.float64, requires_grad=True)
        loss = stage.loss(part, shift=shift)
        (slope,) = torch.autograd.grad(loss, shift, allow_unused=True)
        pairs[part] = (loss.detach(), stage.loss(part, shift=5.0).detach())
        pairs[f"{part}, the reference shifted"] = (loss.detach(), stage.loss(part, frozen_shift=5.0).detach())
        pairs[f"gradient of {part}"] = (stage.gradient(part), stage.gradient(part, shift=5.0))
        pairs[f"slope of {part}"] = (
            torch.zeros(1).double(),
            (torch.zeros(()) if slope is None else slope).double().view(1),
        )
    _hold(method, "shift", pairs)


def check_padding(method: Method) -> None:
    """Left, right, wider and no padding give the same losses."""
    stage = Stage(method)
    right = {part: stage.loss(part, stage.batches("right")).detach() for part in stage.parts()}
    pairs = {}
    for part in stage.parts():
        for name, batches in {"left": stage.batches("left"), "wide": stage.batches("right", extra=4)}.items():
            pairs[f"{part} {name}"] = (right[part], stage.loss(part, batches).detach())
        if "accumulation" not in method.broken_invariants:
            alone = [stage.terms(part, stage.single(part, i)).sums() for i in range(len(stage.rows[part]))]
            total = sum(value.detach() for value, _ in alone) / sum(weight for _, weight in alone)
            pairs[f"{part} none"] = (right[part], torch.as_tensor(total))
    _hold(method, "padding", pairs)


def check_accumulation(method: Method) -> None:
    """Terms of two micro-batches add up to those of the whole batch."""
    stage = Stage(method)
    whole = stage.batches()
    pairs = {}
    for part in stage.parts():
        halves = [
            {name: part_of(batch, rows) for name, batch in whole.items()} for rows in (slice(0, 2), slice(2, None))
        ]
        sums = [stage.terms(part, half).sums() for half in halves]
        total = (sums[0][0] + sums[1][0]) / (sums[0][1] + sums[1][1])
        pairs[part] = (stage.loss(part, whole).detach(), total.detach())
    _hold(method, "accumulation", pairs)


def check_step_zero(method: Method, expected: Callable[[Any], float] | None = None) -> None:
    """Before the first step policy and reference agree: every divergence from the reference is 0.

    `expected(method)` is the forget loss where the formula fixes it.
    """
    stage = Stage(method, twins=True)
    if method.uses_retain and method.retain != "nll":
        bound = stage.state.get("epsilon", 0.0)  # PDU measures the retain loss from its bound
        wanted = torch.tensor(-bound, dtype=torch.float64)
        _close(stage.loss("retain").detach(), wanted, "retain loss")
    if expected is not None:
        wanted = torch.tensor(expected(method), dtype=torch.float64)
        _close(stage.loss("forget").detach(), wanted, "forget loss")


def check_gradient(method: Method) -> None:
    """Finite losses; a finite gradient reaches the policy, none the frozen model; the global random state is kept."""
    before = torch.get_rng_state()
    stage = Stage(method)
    weights = [p.detach().clone() for p in stage.frozen.parameters()]
    stage.frozen.requires_grad_(True)
    for part in stage.parts():
        stage.policy.zero_grad()
        loss = stage.loss(part)
        assert torch.isfinite(loss), f"the {part} loss is {float(loss)}"
        loss.backward()  # type: ignore[no-untyped-call]
        gradients = [p.grad for p in stage.policy.parameters() if p.grad is not None]
        assert all(bool(torch.isfinite(g).all()) for g in gradients), f"the gradient of {part} is not finite"
        assert any(bool((g != 0).any()) for g in gradients), f"the {part} loss has no gradient"
        assert all(p.grad is None for p in stage.frozen.parameters()), f"the {part} loss reaches the reference"
    stage.policy.zero_grad()
    same = (torch.equal(p, w) for p, w in zip(stage.frozen.parameters(), weights, strict=True))
    assert all(same), "the weights of the reference changed"
    assert torch.equal(before, torch.get_rng_state()), "the global random state was used"


def check_repeatable(method: Method) -> None:
    """The same seed gives the same losses, state included."""
    first, second = Stage(method), Stage(method)
    for part in first.parts():
        assert torch.equal(first.loss(part), second.loss(part)), f"the {part} loss is not repeatable"


def check_single_rows(method: Method) -> None:
    """A batch of one row has a finite loss, without a gradient that is not."""
    stage = Stage(method)
    for part in stage.parts():
        for i in range(len(stage.rows[part])):
            stage.policy.zero_grad()
            loss = stage.loss(part, stage.single(part, i))
            loss.backward()  # type: ignore[no-untyped-call]
            gradients = [p.grad for p in stage.policy.parameters() if p.grad is not None]
            finite = torch.isfinite(loss) and all(bool(torch.isfinite(g).all()) for g in gradients)
            assert finite, f"the {part} loss of one row alone is {float(loss)}, or its gradient is not finite"
    stage.policy.zero_grad()


def losses_of(method: Method) -> dict[str, float]:
    """The losses of each part: what another process must find too."""
    stage = Stage(method)
    return {part: float(stage.loss(part)) for part in stage.parts()}


# -- hyper-parameters ------------------------------------------------------------------------------------------


def check_round_trip(method: Method) -> None:
    """The method survives JSON and pickle."""
    assert type(method).model_validate_json(method.model_dump_json(), strict=True) == method
    assert type(method)(**method.model_dump(mode="json")) == method
    assert pickle.loads(pickle.dumps(method)) == method


def check_declaration(entry: Entry) -> None:
    """A title, a docstring, and protocols, broken invariants and needs that the harness knows."""
    cls = entry.cls
    assert issubclass(cls, Method), f"{cls.__name__} is no Method"
    assert entry.title and entry.title != entry.name, "there is no title"
    assert cls.__doc__ and cls.__doc__ != Method.__doc__, "the class has no docstring: idea and equation"
    assert "ours" in cls.protocols and all(cls.protocols.values()), "each protocol is described, 'ours' among them"
    unknown = {*cls.breaks, *cls.protocol_needs} - set(cls.protocols)
    assert not unknown, f"`breaks` and `protocol_needs` name protocols that do not exist: {sorted(unknown)}"
    unknown = set().union(*cls.breaks.values()) - set(INVARIANTS)
    assert not unknown, f"`breaks` names unknown invariants: {sorted(unknown)}; allowed: {', '.join(INVARIANTS)}"
    unknown = cls.needs.union(*cls.protocol_needs.values()) - set(NEEDS)
    assert not unknown, f"`needs` names what nobody supplies: {sorted(unknown)}; allowed: {', '.join(NEEDS)}"


def check_bounds(method: Method) -> None:
    """Every default has a source; what lies outside a bound, or has no name, is refused in a line that names it."""
    for name, field in type(method).model_fields.items():
        source = (field.json_schema_extra or {}).get("source") if isinstance(field.json_schema_extra, dict) else None
        assert source, f"the default of '{name}' has no source"
        for bound in field.metadata:
            for kind, inside in (("gt", False), ("ge", True), ("lt", False), ("le", True)):
                limit = getattr(bound, kind, None)
                if limit is not None:
                    away = 1 if kind in ("lt", "le") else -1
                    _refused(method, name, limit + away if inside else limit)
        if field.annotation in (float, float | None):
            for value in (math.nan, math.inf, "many"):
                _refused(method, name, value)
    _refused(method, "no_such_knob", 1)


def _refused(method: Method, name: str, value: Any) -> None:
    try:
        type(method)(**{**method.model_dump(mode="json"), name: value})
    except ValidationError as error:
        assert any(name in (str(part) for part in line["loc"]) for line in error.errors()), (
            f"{error} does not name '{name}'"
        )
        return
    raise AssertionError(f"'{name}: {value}' is not refused")


LOSS_CHECKS = (
    check_shift,
    check_padding,
    check_accumulation,
    check_gradient,
    check_repeatable,
    check_single_rows,
)
VALUE_CHECKS = (check_round_trip, check_bounds)
