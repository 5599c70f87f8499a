"""The contract of a method: hyper-parameters (`Method`), a loss as `Terms`, read from a `Step`, changing `State`.

A method file holds one pure loss function on tensors and one class:

    @methods.register("npo", title="NPO", paper="arXiv:2404.05868", version=1)
    class NPO(Method):
        beta: float = hyper(0.1, gt=0, source="paper, section 5")
        needs = frozenset({"reference_nll"})

        def forget_loss(self, step: Step) -> Terms:
            return Terms(npo(step.forget.sequence_nll(), step.reference.forget.sequence_nll(), self.beta))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StrictFloat,
    StrictInt,
    ValidationError,
    field_validator,
    model_validator,
)
from torch import Tensor

from unlearnbench.errors import UserError, did_you_mean
from unlearnbench.registry import Registry
from unlearnbench.stopping import make_rule
from unlearnbench.text import Batch

if TYPE_CHECKING:
    from unlearnbench.benchmarks.base import Row
    from unlearnbench.language_model import LanguageModel
    from unlearnbench.text import Encoder

methods: Registry = Registry("method", package="unlearnbench.methods")

#: What a method may declare in `needs`; the runner supplies it or records the cell as skipped, with the reason.
NEEDS = {
    "retain": "rows of the retain split",
    "reference": "the frozen target, for forward passes during training",
    "reference_nll": "the frozen target's log-probabilities of the forget rows, computed once before training",
    "alternate": "another answer for each forget row, from the state's `alternates`",
    "holdout": "rows that were never trained on",
    "base": "the model before it saw the benchmark",
    "retrained": "the retrained model: for oracle stop rules only",
}

#: The retain regularisers and what each needs: see `unlearnbench.retain`.
RETAIN = {
    "none": frozenset(),
    "nll": frozenset({"retain"}),
    "kl": frozenset({"retain", "reference"}),
    "kl-all": frozenset({"retain", "reference"}),
    "kl-muse": frozenset({"retain", "reference"}),
    "hidden": frozenset({"retain", "reference"}),
}
Retain = Literal["none", "nll", "kl", "kl-all", "kl-muse", "hidden"]

#: The invariants of the conformance suite, and the retain regularisers that break one.
INVARIANTS = {
    "shift": "a constant added to all logits changes nothing",
    "padding": "left, right and no padding give the same loss",
    "accumulation": "the loss of a batch is the weighted mean over its micro-batches",
}
RETAIN_BREAKS = {"kl-all": frozenset({"padding"}), "kl-muse": frozenset({"shift", "padding"})}


def hyper(default: Any, *, source: str, meaning: str = "", **bounds: Any) -> Any:
    """A hyper-parameter: its default, its bounds (`gt`, `ge`, `lt`, `le`), what it is, where the default comes from."""
    return Field(default, description=meaning or None, json_schema_extra={"source": source}, **bounds)


@dataclass(frozen=True)
class Terms:
    """Loss terms: the loop computes sum(values * weights) / sum(weights) over the whole optimiser step.

    All micro-batches and processes count together, so batch 8 x 1 and batch 2 x 4 give the same update. `values` and
    `weights` have one shape: (B,) for a mean over rows, [B, L] for a mean over tokens (weights = the mask). `weights`
    default to ones and carry no gradient.
    """

    values: Tensor
    weights: Tensor | None = None

    def __post_init__(self) -> None:
        """Raises `UserError` for weights of another shape: they would be spread, and the loss a multiple of itself."""
        if self.weights is not None and self.weights.shape != self.values.shape:
            raise UserError(
                f"Terms has values of shape {list(self.values.shape)} and weights of shape {list(self.weights.shape)}: "
                "they must be equal."
            )

    def sums(self) -> tuple[Tensor, Tensor]:
        """(sum of values * weights, sum of weights), both scalars. Where a weight is 0 the value may be anything."""
        if self.weights is None:
            return self.values.sum(), torch.tensor(float(self.values.numel()), device=self.values.device)
        weights = self.weights.detach().to(self.values.dtype)
        return (self.values * weights).masked_fill(weights == 0, 0.0).sum(), weights.sum()

    def mean(self) -> Tensor:
        """The mean over this batch alone."""
        total, weight = self.sums()
        return total / weight


class View:
    """What a model says about a batch: computed when first asked for, then remembered.

    `forward(batch, kind, layer)` runs the model: kind `answers` gives logits [B, L, V] at the answer positions,
    `full` [B, T, V], `hidden` the output [B, T, D] of block `layer`.
    """

    def __init__(
        self,
        batch: Batch,
        forward: Callable[[Batch, str, int | float | None], Tensor],
        cached_nll: Mapping[str, Tensor] | None = None,
    ):
        self.batch = batch
        self._forward = forward
        self._cached_nll = cached_nll
        self._memory: dict[tuple[str, int | float | None], Tensor] = {}

    def _get(self, kind: str, layer: int | float | None = None) -> Tensor:
        if (kind, layer) not in self._memory:
            self._memory[kind, layer] = self._forward(self.batch, kind, layer)
        return self._memory[kind, layer]

    @property
    def logits(self) -> Tensor:
        """Logits [B, L, V] that predict the answer tokens."""
        if ("full", None) in self._memory:
            full = self._memory["full", None]
            return full.gather(1, self.batch.positions.unsqueeze(-1).expand(-1, -1, full.shape[-1]))
        return self._get("answers")

    @property
    def full_logits(self) -> Tensor:
        """Logits [B, T, V] of every position, prompt and padding included. For protocols that ask for them."""
        return self._get("full")

    def hidden(self, layer: int | float) -> Tensor:
        """The output [B, T, D] of decoder block `layer` (index, or share of the depth); blocks above it are not run."""
        return self._get("hidden", layer)

    @property
    def targets(self) -> Tensor:
        """Answer token ids [B, L]."""
        return self.batch.targets

    @property
    def mask(self) -> Tensor:
        """Which of the L answer slots are real [B, L], bool."""
        return self.batch.mask

    @property
    def answer_lengths(self) -> Tensor:
        """Answer tokens per row (B,)."""
        return self.batch.lengths

    @cached_property
    def token_nll(self) -> Tensor:
        """-log p of each answer token [B, L], nats, 0 where there is none."""
        if self._cached_nll is not None:
            rows = [self._cached_nll[row_id] for row_id in self.batch.row_ids]
            padded = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
            return torch.nn.functional.pad(padded, (0, self.mask.shape[1] - padded.shape[1])).to(self.mask.device)
        logits = self.logits
        nll = torch.logsumexp(logits, -1) - logits.gather(-1, self.targets.unsqueeze(-1)).squeeze(-1)
        return nll.masked_fill(~self.mask, 0.0)

    def sequence_nll(self) -> Tensor:
        """-log p of the whole answer (B,), nats, summed over its tokens."""
        return self.token_nll.sum(-1)


class State(dict[str, Any]):
    """Everything of a method that changes: tensors, numbers and plain containers of them. A resume restores it."""


class Views:
    """The views of one model on the batches of a micro-step: forget (and alternate) rows, or retain rows."""

    def __init__(self, forget: View | None = None, retain: View | None = None, alternate: View | None = None):
        self._forget, self._retain, self._alternate = forget, retain, alternate

    @property
    def forget(self) -> View:
        """The forget rows."""
        assert self._forget is not None, "there are no forget rows in a retain step"
        return self._forget

    @property
    def retain(self) -> View:
        """The retain rows."""
        assert self._retain is not None, "there are no retain rows in a forget step"
        return self._retain

    @property
    def alternate(self) -> View:
        """The alternate answers to the forget prompts, row by row."""
        assert self._alternate is not None, "the method does not declare that it needs alternates"
        return self._alternate


@dataclass
class Step:
    """What a loss may look at: the policy's views, the frozen reference's, and the method's state.

    `progress` is the share of the optimiser steps already taken (0 to 1), `number` their count. `generator(row_id)` is
    a source of randomness for a row at this step: the same however the step is cut into batches and processes.
    """

    policy: Views
    frozen: Views | None = None
    state: State = field(default_factory=State)
    number: int = 0
    progress: float = 0.0
    generator: Callable[[str], torch.Generator] = lambda row_id: torch.Generator()

    @property
    def forget(self) -> View:
        """The policy on the forget rows."""
        return self.policy.forget

    @property
    def retain(self) -> View:
        """The policy on the retain rows."""
        return self.policy.retain

    @property
    def alternate(self) -> View:
        """The policy on the alternate answers to the forget prompts, row by row."""
        return self.policy.alternate

    @property
    def reference(self) -> Views:
        """The frozen reference on the same batches, without gradient."""
        assert self.frozen is not None, "the method does not declare that it needs the reference"
        return self.frozen


@dataclass
class PrepareContext:
    """What `prepare` and `unlearn` may use. Time spent here is charged to the method (column `prepare`).

    `generate(prompts, n=, max_new_tokens=, temperature=, seed=)` samples n answers per prompt from the target;
    `finetune(rows, settings)` gives a copy of the target trained further on rows (with LoRA, its adapter only).
    `generator` is the method's own source of randomness, `settings` the cell's `TrainSettings`.
    """

    lm: LanguageModel
    encoder: Encoder
    forget: Sequence[Row]
    retain: Sequence[Row]
    generator: torch.Generator
    generate: Callable[..., list[list[str]]]
    finetune: Callable[..., LanguageModel]
    settings: Any = None
    load_base: Callable[[], LanguageModel] | None = None  #: the model before it saw the benchmark, where there is one


class Method(BaseModel):
    """Frozen hyper-parameters of an unlearning method, and its loss.

    Total loss: `forget_weight * forget + retain_weight * retain`. With `retain: none` or weight 0 the retain forward
    is not run. Everything that changes during training lives in `State`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, ignored_types=(cached_property,))

    registered_name: ClassVar[str] = ""
    version: ClassVar[int] = 1
    needs: ClassVar[frozenset[str]] = frozenset()
    #: named variants of the loss: name -> what it does differently, and whose code does so
    protocols: ClassVar[Mapping[str, str]] = {"ours": "the paper's formula"}
    #: protocol -> what it needs in place of `needs`
    protocol_needs: ClassVar[Mapping[str, frozenset[str]]] = {}
    #: protocol -> the `INVARIANTS` it breaks; one that breaks `accumulation` refuses to be accumulated
    breaks: ClassVar[Mapping[str, frozenset[str]]] = {}

    forget_weight: float = hyper(1.0, ge=0, meaning="factor of the forget loss", source="plain sum")
    retain_weight: float = hyper(1.0, ge=0, meaning="factor of the retain loss", source="plain sum")
    retain: Retain = hyper(
        "none", meaning="the retain regulariser", source="no retain term unless the method asks for one"
    )
    layer: StrictInt | StrictFloat = hyper(
        0.25,
        meaning="decoder block whose output is compared: an int is its index, a float its share of the depth",
        source="RMU: block 7 of 32",
    )
    protocol: str = hyper("ours", meaning="which variant of the loss", source="the mathematically right form")
    stop: dict[str, Any] | None = hyper(None, meaning="online stop rule and its settings", source="no online stop")

    @field_validator("protocol")
    @classmethod
    def _known_protocol(cls, value: str) -> str:
        if value not in cls.protocols:
            raise ValueError(f"no protocol '{value}'; {did_you_mean(value, cls.protocols)}")
        return value

    @field_validator("stop")
    @classmethod
    def _possible_stop(cls, value: dict[str, Any] | None) -> dict[str, Any] | None:
        if value is not None:
            try:
                make_rule(value)
            except ValidationError as error:
                first = error.errors()[0]
                where = ".".join(str(part) for part in first["loc"])
                raise ValueError(
                    f"stop rule '{value['rule']}', {where}: {first['msg']}, got {first['input']!r}"
                ) from error
        return value

    @field_validator("layer")
    @classmethod
    def _possible_layer(cls, value: int | float) -> int | float:
        if value < 0 or (isinstance(value, float) and not 0 < value <= 1):
            raise ValueError(
                "a block is named by its index (an int from 0) or by its share of the depth (a float in (0, 1])"
            )
        return value

    @model_validator(mode="after")
    def _no_knob_without_effect(self) -> Method:
        if not self._looks_at_layer:
            self._without_effect("without `retain: hidden`", "layer")
        if self.retain == "none":
            self._without_effect("with `retain: none`", "retain_weight")
        return self

    def _without_effect(self, where: str, *names: str) -> None:
        """Refuse hyper-parameters that were changed and are never looked at. For validators."""
        idle = [name for name in names if getattr(self, name) != type(self).model_fields[name].default]
        if idle:
            raise ValueError(f"{' and '.join(idle)} has no effect {where}")

    @property
    def _looks_at_layer(self) -> bool:
        return self.retain == "hidden"

    # -- what a method writes ----------------------------------------------------------------------------------

    def prepare(self, context: PrepareContext) -> State:
        """Make the state before the first step: alternates, control vectors, reinforced models … Timed."""
        return State()

    def forget_loss(self, step: Step) -> Terms:
        """The forget objective on one micro-batch."""
        raise UserError(f"The method '{self.registered_name}' defines no forget_loss.")

    def retain_loss(self, step: Step) -> Terms:
        """The retain regulariser on one micro-batch: `retain` names one of the shared ones."""
        from unlearnbench.retain import REGULARISERS

        return REGULARISERS[self.retain](step, self)

    def weights(self, state: State) -> tuple[float, float]:
        """(forget weight, retain weight) of the next step."""
        return self.forget_weight, self.retain_weight if self.retain != "none" else 0.0

    def after_step(self, state: State, forget_loss: float, retain_loss: float | None) -> None:
        """Called after each optimiser step with the unweighted losses of the step: update the state here."""

    def trained_parameters(self, lm: LanguageModel) -> list[str] | None:
        """Names of the parameters that may move; None: all of them (or, with LoRA, the adapter's)."""
        return None

    #: set to a function `unlearn(context) -> None` by methods that are no gradient loop (it changes `context.lm`)
    def unlearn(self, context: PrepareContext) -> None:
        """For methods that are no gradient loop: change `context.lm` in place. See `is_loop`."""
        raise NotImplementedError

    # -- what the harness asks ---------------------------------------------------------------------------------

    @property
    def is_loop(self) -> bool:
        """Whether the method runs the training loop (it does unless it overrides `unlearn`)."""
        return type(self).unlearn is Method.unlearn

    @property
    def requirements(self) -> frozenset[str]:
        """What the protocol, the stop rule and, when it has weight, the retain regulariser need."""
        own = self.protocol_needs.get(self.protocol, self.needs)
        retain = RETAIN[self.retain] if self.uses_retain else frozenset()
        return own | retain | (make_rule(self.stop).needs if self.stop is not None else frozenset())

    @property
    def uses_retain(self) -> bool:
        """Whether there is a retain term. A dual variable that happens to be 0 does not switch it off."""
        return self.retain != "none" and self.retain_weight > 0

    @property
    def broken_invariants(self) -> frozenset[str]:
        """The conformance invariants that the chosen protocol and retain regulariser do not hold."""
        retain = RETAIN_BREAKS.get(self.retain, frozenset()) if self.uses_retain else frozenset()
        return self.breaks.get(self.protocol, frozenset()) | retain
