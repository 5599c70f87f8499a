"""Task-vector negation: fine-tune a copy of the target on the forget rows, then walk the other way.

    theta <- theta - strength (theta_reinforced - theta)

(Ilharco et al., arXiv:2212.04089) with theta the target's weights, theta_reinforced those of the copy. No loss on
forget rows is ascended and no retain row is used; the cost is the fine-tuning of the copy. MUSE (arXiv:2407.06460) has
it among its baselines.

With LoRA the copy trains an adapter and the walk goes along it: B A becomes -strength B A.

Differences from the reference code: none in MUSE, but that the copy is trained with the cell's own optimiser settings.
"""

from __future__ import annotations

import torch
from pydantic import model_validator

from unlearnbench.method import Method, PrepareContext, hyper, methods


@methods.register("task-vector", title="Task vector", family="weights", paper="arXiv:2212.04089", version=1)
class TaskVector(Method):
    """Negation of the direction that learns the forget rows."""

    strength: float = hyper(1.0, gt=0, meaning="how far to walk", source="MUSE: scaling coefficient 1")
    epochs: float = hyper(10, gt=0, meaning="passes of the copy over the forget rows", source="MUSE")
    learning_rate: float | None = hyper(None, gt=0, meaning="of the copy", source="null: that of the cell")

    @model_validator(mode="after")
    def _no_loop(self) -> TaskVector:
        self._without_effect("on a method without a training loop", "forget_weight", "retain", "stop")
        return self

    def unlearn(self, context: PrepareContext) -> None:
        changes = {"epochs": self.epochs, "max_steps": None, "lora": None, "checkpoint_every": None}
        if self.learning_rate is not None:
            changes["learning_rate"] = self.learning_rate
        reinforced = context.finetune(context.forget, context.settings.model_copy(update=changes))
        learned = dict(reinforced.named_parameters())
        with torch.no_grad():
            for name, parameter in context.lm.named_parameters():
                if "lora_A" in name:  # a product changes its sign when one of its factors does
                    parameter.copy_(learned[name])
                else:
                    parameter.sub_(self.strength * (learned[name].to(parameter) - parameter))
