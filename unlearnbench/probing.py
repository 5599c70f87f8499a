"""The online probe: it gets the numbers a stop rule looks at, from a few rows, while training goes on.

Eval mode, no gradients, no randomness; which rows are probed is drawn once. A probe that is `held-out` (the default)
is kept out of training. Its time is charged to the method, in a column of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from unlearnbench.benchmarks.base import Row
from unlearnbench.errors import UserError
from unlearnbench.language_model import evaluating
from unlearnbench.margins import (
    Margin,
    buffered_hinge,
    continuation,
    fixed_unit,
    log_reproduction_bound,
    rho_of,
    spread,
    tau_of,
)
from unlearnbench.margins import violation_rate as rates_of
from unlearnbench.method import Method, View
from unlearnbench.reference import run, token_nll
from unlearnbench.retain import kl
from unlearnbench.stopping import StopRule, Violation, hoeffding_ucb, make_rule
from unlearnbench.text import Batch, Encoded, Encoder, collate

ROWS_PER_FORWARD = 32
_CONFIRMED = {"violation_rate": "confirm_rate"}


class Frozen(Protocol):
    """The reference as the probe sees it (`reference.Reference`)."""

    def forward(self, batch: Batch, kind: str, layer: int | float | None) -> Tensor: ...


@dataclass(frozen=True)
class Reading:
    """What one look saw: the numbers of the first stage; `confirm_rate` and other `confirm_…` of the second, if it ran;
    `ucb` and `retain_kl` where the rule asks for them; the ids of the rows looked at; whether to stop, and why.
    """

    step: int
    values: dict[str, float]
    rows: tuple[str, ...]
    stop: bool
    reason: str


@dataclass(frozen=True)
class ViolationSettings:
    """The margin, threshold and active tokens that a violation rate is about."""

    margin: Margin = field(default_factory=Margin)
    tau: float = tau_of(0.7)
    eta: float = 0.25
    cut: tuple[float, float] | None = (0.2, 0.6)
    min_prefix: int = 32
    min_suffix: int = 32
    salt: int = 0

    @classmethod
    def of(cls, rule: Violation, method: Method) -> ViolationSettings:
        """The rule's own values, else the method's, else MASC's for TOFU."""
        plain = cls()
        source = method if isinstance(getattr(method, "margin", None), Margin) else None  # else its fields mean others
        margin: Margin = getattr(source, "margin", plain.margin)
        own = {name: getattr(rule, name) for name in ("k", "beta", "alternatives", "within", "form")}
        margin = Margin(**{**vars(margin), **{name: value for name, value in own.items() if value is not None}})
        tau = tau_of(rule.rho) if rule.rho is not None else rule.tau
        cut = getattr(source, "cut", plain.cut) if rule.cut == "method" else rule.cut
        return cls(
            margin=margin,
            tau=getattr(source, "threshold", plain.tau) if tau is None else tau,
            eta=getattr(source, "eta", plain.eta),
            cut=None if cut == "none" else cut,
            min_prefix=getattr(source, "min_prefix", 32) if rule.min_prefix is None else rule.min_prefix,
            min_suffix=getattr(source, "min_suffix", 32) if rule.min_suffix is None else rule.min_suffix,
            salt=rule.salt,
        )

    def active(self, mask: Tensor, sources: Sequence[int], windows: Sequence[int] | None = None) -> Tensor:
        """The active tokens [B, L] of rows with these source (and window) numbers, the same at every look."""
        if self.cut is None:
            return mask
        windows = windows or [0] * len(sources)
        units = [fixed_unit(source, window, self.salt) for source, window in zip(sources, windows, strict=True)]
        return continuation(mask, spread(units, self.cut), self.min_prefix, self.min_suffix)


def violation_values(margins: Tensor, active: Tensor, settings: ViolationSettings) -> dict[str, float]:
    """The numbers of a violation reading, from margins and active tokens [B, L]; rows without active tokens left out.

    `violation_rate`: mean over rows of the share of active tokens with margin > tau; `token_violation_rate` pools the
    tokens. `surrogate`: mean buffered hinge over tokens. `mean_margin`: mean over rows of a row's mean. `log_share`:
    mean over rows of sum log sigmoid(m), which for beta = 1 bounds the log-probability of the active tokens from
    above.
    `log_bound`, for beta = 1 alone: Proposition 1's bound on it at the measured rate, for a row of mean length
    (`mean_length` tokens).
    """
    there = active.any(1)
    margins, active = margins[there], active[there]
    n = int(there.sum())
    if n == 0:
        raise UserError("The stop rule's probe has no active token; widen `cut` or lower `min_suffix`.")
    rate = float(rates_of(margins, settings.tau, active).double().mean())
    tokens, lengths = margins[active], active.sum(1)
    shares = torch.nn.functional.logsigmoid(margins).masked_fill(~active, 0.0)
    length = float(lengths.double().mean())
    return {
        "violation_rate": rate,
        "rows": n,
        "token_violation_rate": float((tokens > settings.tau).double().mean()),
        "surrogate": float(buffered_hinge(tokens, settings.tau, settings.eta).mean()),
        "mean_margin": float((margins.masked_fill(~active, 0.0).sum(1) / lengths).mean()),
        "mean_length": length,
        "log_share": float(shares.sum(1).mean()),
        **(
            {"log_bound": log_reproduction_bound(rate, length, rho_of(settings.tau))}
            if settings.margin.beta == 1
            else {}
        ),
    }


@dataclass(frozen=True)
class _Probed:
    """A row to probe: its number in the forget set (for the fixed cut) and its ids."""

    source: int
    row: Encoded


class Prober:
    """Looks at the model when a rule is due. Built once per run; `held_out` rows must be kept out of training.

    `numbers`: further readings by name, for rules that name them in `reads`: functions of the model and the probed
    row ids.
    """

    def __init__(
        self,
        rule: StopRule,
        method: Method,
        encoder: Encoder,
        forget_rows: Sequence[Row],
        retain_rows: Sequence[Row],
        holdout_rows: Sequence[Row],
        generator: torch.Generator,
        reference: Frozen | None = None,
        numbers: Mapping[str, Callable[[Any, Sequence[str]], float]] | None = None,
    ):
        self.rule, self.encoder, self.reference, self.numbers = rule, encoder, reference, dict(numbers or {})
        self.settings = ViolationSettings.of(rule, method) if isinstance(rule, Violation) else ViolationSettings()
        self._check_supply(retain_rows, holdout_rows)
        usable = list(self._usable(forget_rows if rule.reads else ()))
        count = rule.confirm_rows(len(usable))
        if rule.source == "held-out":
            order = torch.randperm(len(usable), generator=generator).tolist()
            usable = [usable[i] for i in order]
        self._confirm = usable[:count]
        self._retain = list(self._usable(retain_rows if rule.retain_kl_below is not None else (), rule.retain_probe))
        self._holdout = list(self._usable(holdout_rows if "holdout" in rule.needs else ()))
        self._frozen_retain: list[Tensor] = []
        self._made: dict[tuple[str, ...], list[tuple[list[_Probed], Batch]]] = {}
        self._alpha: float | None = None
        if isinstance(rule, Violation) and isinstance(rule.alpha, float):
            self._alpha = rule.alpha
        self._streak = self._looks = 0

    def _check_supply(self, retain_rows: Sequence[Row], holdout_rows: Sequence[Row]) -> None:
        name = self.rule.registered_name
        there = {"retain": bool(retain_rows), "holdout": bool(holdout_rows), "reference": self.reference is not None}
        margin_needs = {"reference"} if self.settings.margin.alternatives == "reference" else set()
        for need in sorted(self.rule.needs | margin_needs):
            if not there.get(need, True):
                raise UserError(f"The stop rule '{name}' needs {need} and there is none.")
        for reading in sorted(self.rule.reads - {"violation", "forget_prob"} - self.numbers.keys()):
            raise UserError(f"The stop rule '{name}' reads '{reading}', which this runner does not supply.")

    def _usable(self, rows: Sequence[Row], most: int | None = None) -> Iterator[_Probed]:
        """Rows with an answer token, each with its number."""
        found = 0
        for i, row in enumerate(rows):
            if found == most:
                return
            encoded = self.encoder.encode(row.prompt, row.answer, row.id)
            if encoded.answer_length > 0:
                found += 1
                yield _Probed(i, encoded)

    # -- what the loop asks ------------------------------------------------------------------------------------

    @property
    def held_out(self) -> frozenset[str]:
        """Ids of the rows kept out of training."""
        return frozenset(p.row.row_id for p in self._confirm) if self.rule.source == "held-out" else frozenset()

    @property
    def rows(self) -> tuple[str, ...]:
        """Ids of all rows that may be probed; the first `probe` of them are the first stage."""
        return tuple(p.row.row_id for p in self._confirm)

    def due(self, step: int) -> bool:
        """Whether to look after `step` optimiser steps. The look at step 0 shows the target and calibrates alpha."""
        return step % self.rule.every == 0

    def check(self, lm: Any, step: int) -> Reading:
        """One look. The model's mode is restored. A look at step 0 never stops."""
        with evaluating(lm):
            if self._alpha is None and isinstance(self.rule, Violation):
                self._calibrate(lm, step)
            rows = self._confirm[: self.rule.probe]
            stage = self._values(lm, step, rows)
            values = dict(stage)
            holds = self.rule.holds(stage)
            if holds and len(self._confirm) > len(rows):
                rows = self._confirm
                stage = self._values(lm, step, rows)
                values |= {
                    _CONFIRMED.get(name, f"confirm_{name}"): value for name, value in stage.items() if name != "step"
                }
            if holds and isinstance(self.rule, Violation) and self.rule.hoeffding_delta is not None:
                rate, n = stage["violation_rate"], int(stage["rows"])
                stage["ucb"] = values["ucb"] = hoeffding_ucb(rate, n, self.rule.hoeffding_delta, self._looks)[0]
                self._looks += 1
            held = holds and self.rule.holds(stage)
            if held and self.rule.retain_kl_below is not None:
                values["retain_kl"] = self._retain_kl(lm)
                held = values["retain_kl"] <= self.rule.retain_kl_below
        if step > 0:
            self._streak = self._streak + 1 if held else 0
        stop = self._streak > self.rule.patience
        return Reading(step, values, tuple(p.row.row_id for p in rows), stop, self.rule.reason(stage) if stop else "")

    def state_dict(self) -> dict[str, Any]:
        """What a resume restores."""
        return {"rows": list(self.rows), "alpha": self._alpha, "streak": self._streak, "looks": self._looks}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state_dict()`. Raises `UserError` when other rows were probed."""
        if list(state["rows"]) != list(self.rows):
            raise UserError("The checkpoint's stop rule probed other rows: it belongs to another run.")
        self._alpha, self._streak, self._looks = state["alpha"], state["streak"], state["looks"]

    # -- numbers -----------------------------------------------------------------------------------------------

    def _calibrate(self, lm: Any, step: int) -> None:
        if step > 0:
            raise RuntimeError("alpha: holdout is the target's own rate: look at step 0 first")
        self._alpha = self._violation(lm, self._holdout)["violation_rate"]

    def _values(self, lm: Any, step: int, probed: Sequence[_Probed]) -> dict[str, float]:
        values: dict[str, float] = {"step": step}
        if "violation" in self.rule.reads:
            values |= self._violation(lm, probed)
            assert self._alpha is not None
            values["alpha"] = self._alpha
        if "forget_prob" in self.rule.reads:
            means = [float(nll.mean()) for nll in self._nll(lm, probed)]
            values["forget_prob"] = sum(math.exp(-m) for m in means) / len(means)
        ids = [p.row.row_id for p in probed]
        return values | {name: self.numbers[name](lm, ids) for name in sorted(self.rule.reads & self.numbers.keys())}

    def _batches(self, probed: Sequence[_Probed], device: torch.device) -> list[tuple[list[_Probed], Batch]]:
        """The rows in batches, made once."""
        key = tuple(p.row.row_id for p in probed)
        if key not in self._made:
            chunks = [list(probed[i : i + ROWS_PER_FORWARD]) for i in range(0, len(probed), ROWS_PER_FORWARD)]
            pad_id = self.encoder.pad_id
            self._made[key] = [(chunk, collate([p.row for p in chunk], pad_id).to(device)) for chunk in chunks]
        return self._made[key]

    def _violation(self, lm: Any, probed: Sequence[_Probed]) -> dict[str, float]:
        margins, active = [], []
        for chunk, batch in self._batches(probed, _device(lm)):
            frozen = None
            if self.settings.margin.alternatives == "reference":
                assert self.reference is not None
                frozen = self.reference.forward(batch, "answers", None)
            margins += list(self.settings.margin(run(lm, batch, "answers", None), batch.targets, frozen))
            active += list(self.settings.active(batch.mask, [p.source for p in chunk]))
        pad = torch.nn.utils.rnn.pad_sequence
        return violation_values(pad(margins, batch_first=True), pad(active, batch_first=True), self.settings)

    def _nll(self, lm: Any, probed: Sequence[_Probed]) -> list[Tensor]:
        found: list[Tensor] = []
        for _, batch in self._batches(probed, _device(lm)):
            nll = View(batch, lambda batch, kind, layer: run(lm, batch, kind, layer)).token_nll
            found += [row[mask] for row, mask in zip(nll, batch.mask, strict=True)]
        return found

    def _retain_kl(self, lm: Any) -> float:
        """Mean over retain answer tokens of KL(reference || policy)."""
        assert self.reference is not None
        total, tokens = 0.0, 0
        for i, (_, batch) in enumerate(self._batches(self._retain, _device(lm))):
            if i == len(self._frozen_retain):
                self._frozen_retain.append(self.reference.forward(batch, "answers", None))
            divergence = kl(self._frozen_retain[i], run(lm, batch, "answers", None))
            total += float(divergence[batch.mask].double().sum())
            tokens += int(batch.mask.sum())
        return total / tokens


def _device(lm: Any) -> torch.device:
    device: torch.device = next(lm.parameters()).device
    return device


def make_prober(
    method: Method,
    encoder: Encoder,
    forget_rows: Sequence[Row],
    retain_rows: Sequence[Row],
    holdout_rows: Sequence[Row],
    generator: torch.Generator,
    reference: Frozen | None = None,
    numbers: Mapping[str, Callable[[Any, Sequence[str]], float]] | None = None,
) -> Prober | None:
    """The prober for `method.stop`, or None when the method has no online stop."""
    if method.stop is None:
        return None
    rule = make_rule(method.stop)
    if rule.registered_name == "budget" and getattr(rule, "steps", None) is None:
        return None
    return Prober(rule, method, encoder, forget_rows, retain_rows, holdout_rows, generator, reference, numbers)


def oracle_numbers(
    retrained: Any, encoder: Encoder, forget_rows: Sequence[Row]
) -> dict[str, Callable[[Any, Sequence[str]], float]]:
    """`numbers` for oracle rules: `retrained_prob` of the probed rows, from a retrained model looked at once."""
    rows = [encoder.encode(row.prompt, row.answer, row.id) for row in forget_rows]
    rows = [row for row in rows if row.answer_length > 0]
    known = {row_id: math.exp(-float(nll.mean())) for row_id, nll in token_nll(retrained, rows, encoder.pad_id).items()}
    return {"retrained_prob": lambda lm, row_ids: sum(known[row_id] for row_id in row_ids) / len(row_ids)}
