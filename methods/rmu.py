"""RMU: steer the hidden states of forget text to a random direction, and hold those of retain text where they are.

    L_forget = E_x[ mean_t mean_d (h_t,d - c u_d)^2 ]
    L_retain = E_x[ mean_t mean_d (h_t,d - h_ref,t,d)^2 ]        (`retain: hidden`)

(Li et al., arXiv:2403.03218) with h_t the policy's output of block `layer` at answer token t of row x, h_ref,t the
reference's, D coordinates d each. u is a unit vector with uniform positive entries, drawn once; c the steering
coefficient. Only the MLP
down-projections of blocks layer-2 … layer are trained, and the blocks above `layer` are never run.

Differences from the reference code: the paper has the squared norm where the code has the mean over the D
coordinates; we follow the code, which only rescales the loss. OpenUnlearning divides wrongly: the mean over rows of
the *sums* over tokens times the mean over rows of 1 / length (protocol `open-unlearning`), which is no mean over rows
when lengths differ. It also trains all parameters unless told otherwise: `parameters: .*`.
"""

from __future__ import annotations

import re

import torch
from torch import Tensor, nn

from unlearnbench.errors import UserError
from unlearnbench.language_model import LanguageModel
from unlearnbench.method import Method, PrepareContext, Retain, State, Step, Terms, hyper, methods
from unlearnbench.retain import hidden_distance


def steering(hidden: Tensor, goal: Tensor, labels: Tensor, protocol: str) -> Terms:
    """Distance of hidden states [B, T, D] to a goal (D,) or [B, T, D] over labelled tokens, mean over rows."""
    total, count = hidden_distance(hidden, goal, labels)
    if protocol == "open-unlearning":
        return Terms((total.mean() * (1 / count).mean()).unsqueeze(0))
    return Terms(total / count.clamp(min=1), count > 0)


@methods.register("rmu", title="RMU", family="representation", paper="arXiv:2403.03218", version=1)
class RMU(Method):
    """Representation misdirection: random hidden states on forget text, unchanged ones on retain text."""

    protocols = {
        "ours": "mean over a row's answer tokens, then over rows",
        "open-unlearning": "mean of the rows' sums times the mean of 1 / length (OpenUnlearning)",
    }
    breaks = {"open-unlearning": frozenset({"accumulation"})}

    steering_coefficient: float = hyper(
        2.0, gt=0, meaning="c, the length of the goal", source="OpenUnlearning, TOFU (the paper: 6.5 for Zephyr-7B)"
    )
    retain: Retain = hyper("hidden", source="paper")
    parameters: str | None = hyper(
        None,
        meaning="pattern of the parameters to train",
        source="paper: MLP down-projections of blocks layer-2 … layer, found by structure",
    )

    @property
    def _looks_at_layer(self) -> bool:
        return True

    def prepare(self, context: PrepareContext) -> State:
        direction = torch.rand(context.lm.config.hidden_size, generator=context.generator)
        return State(control=self.steering_coefficient * direction / direction.norm())

    def forget_loss(self, step: Step) -> Terms:
        hidden = step.forget.hidden(self.layer)
        goal = step.state["control"].to(hidden.device, hidden.dtype)
        return steering(hidden, goal, step.forget.batch.labels, self.protocol)

    def retain_loss(self, step: Step) -> Terms:
        if self.retain != "hidden":
            return super().retain_loss(step)
        goal = step.reference.retain.hidden(self.layer)
        return steering(step.retain.hidden(self.layer), goal, step.retain.batch.labels, self.protocol)

    def trained_parameters(self, lm: LanguageModel) -> list[str]:
        """Exact names. `parameters` is a pattern for the whole name as transformers has it; with LoRA, as peft has."""
        names = [name for name, p in lm.named_parameters() if p.requires_grad or not _adapter(lm)]
        if self.parameters is not None:
            try:
                pattern = re.compile(self.parameters)
            except re.error as error:
                raise UserError(f"RMU: '{self.parameters}' is not a pattern: {error}.") from error
            found = [name for name in names if pattern.fullmatch(name.removeprefix("hf."))]
            wanted = f"the pattern '{self.parameters}'"
        else:
            last = lm.layer_index(self.layer)
            found = [n for i in range(max(0, last - 2), last + 1) for n in _down_projection(lm, i, names)]
            wanted = f"an MLP down-projection in blocks {max(0, last - 2)} to {last}"
        if not found:
            example = [name.removeprefix("hf.") for name in names if ".0." in name][:4]
            raise UserError(f"RMU: no parameter matches {wanted}; there are for example {', '.join(example)}.")
        return found


def _adapter(lm: LanguageModel) -> bool:
    return any("lora_" in name for name, _ in lm.named_parameters())


def _is_matrix(module: nn.Module) -> bool:
    weight = getattr(module, "weight", None)  # LoRA layers have it as a property
    return isinstance(weight, Tensor) and weight.dim() == 2


def _down_projection(lm: LanguageModel, block: int, names: list[str]) -> list[str]:
    """The last matrix of a block's MLP: its weight, or what LoRA trains of it."""
    matrices = [
        module
        for name, mlp in lm.layers[block].named_children()
        if "mlp" in name or "feed_forward" in name
        for module in mlp.children()
        if _is_matrix(module)
    ]
    inside = {id(p) for module in matrices[-1:] for p in module.parameters() if p.dim() == 2}
    known = dict(lm.named_parameters())
    return [name for name in names if id(known[name]) in inside]
