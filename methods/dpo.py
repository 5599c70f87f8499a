"""DPO for unlearning: prefer an alternate answer to the forget answer, relative to the frozen target.

    L = -(2 / beta) E[ log sigmoid(beta (r(y_a) - r(y_f))) ]
    r(y) = log p(y|x) - log p_ref(y|x)

(Rafailov et al., arXiv:2305.18290) with y_f the forget answer and y_a the alternate, p the policy, p_ref the
reference, log p summed over the answer, in nats, and E the mean over rows. The alternates say what the model should
answer instead:

- `refusals`: sentences of "I do not know" (IdkDPO, Maini et al., arXiv:2401.06121);
- `sampled`: other answers of the target itself, drawn before training (AltPO, Mekala et al., arXiv:2409.13474).

Differences from the reference code: none in the loss. TOFU, NPO and OpenUnlearning have the factor 2 / beta too,
which keeps the gradient at step 0 the same for every beta. AltPO prompts an instruct model for wrong answers in the
same domain (`instruction`, off by default); a sample that repeats the forget answer is drawn again.
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import model_validator
from torch import Tensor
from torch.nn.functional import softplus

from unlearnbench.benchmarks.mini.refusals import REFUSALS
from unlearnbench.errors import UserError
from unlearnbench.method import Method, PrepareContext, State, Step, Terms, hyper, methods

ROUNDS = 4  #: how often a row whose samples all repeat the forget answer is sampled again, each time warmer


def dpo(alternate_gain: Tensor, forget_gain: Tensor, beta: float) -> Tensor:
    """Per-row loss (B,) from log p - log p_ref (B,) of the alternate and the forget answers, nats."""
    return 2 / beta * softplus(beta * (forget_gain - alternate_gain))


@methods.register("dpo", title="DPO", family="preference", paper="arXiv:2305.18290", version=1)
class DPO(Method):
    """Direct preference optimisation with an alternate answer on the winning side."""

    needs = frozenset({"reference", "reference_nll", "alternate"})

    beta: float = hyper(0.1, gt=0, meaning="weight of the log-ratios", source="TOFU and AltPO")
    alternates: Literal["refusals", "sampled"] = hyper("refusals", meaning="what to prefer", source="IdkDPO")
    per_row: int = hyper(5, ge=1, meaning="alternates of a row; one is drawn each step", source="AltPO")
    temperature: float = hyper(1.0, gt=0, meaning="of the sampling", source="AltPO")
    max_new_tokens: int = hyper(128, ge=1, meaning="of a sample", source="longer than the answers")
    instruction: str = hyper("", meaning="text before the prompt when sampling", source="small models follow none")

    @model_validator(mode="after")
    def _sampling_is_used(self) -> DPO:
        if self.alternates == "refusals":
            self._without_effect("with `alternates: refusals`", "temperature", "max_new_tokens", "instruction")
        return self

    def prepare(self, context: PrepareContext) -> State:
        found = self._refusals(context) if self.alternates == "refusals" else self._sampled(context)
        return State(alternates=found)

    def _refusals(self, context: PrepareContext) -> dict[str, list[str]]:
        count = min(self.per_row, len(REFUSALS))
        order = (torch.randperm(len(REFUSALS), generator=context.generator)[:count].tolist() for _ in context.forget)
        return {row.id: [REFUSALS[i] for i in chosen] for row, chosen in zip(context.forget, order, strict=True)}

    def _sampled(self, context: PrepareContext) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        open_rows = list(context.forget)
        for attempt in range(ROUNDS):
            texts = context.generate(
                [self.instruction + row.prompt for row in open_rows],
                n=self.per_row,
                max_new_tokens=self.max_new_tokens,
                temperature=self.temperature * (1 + attempt / 2),
                seed=int(torch.randint(2**31, (1,), generator=context.generator)),
            )
            for row, samples in zip(open_rows, texts, strict=True):
                others = dict.fromkeys(s.strip() for s in samples if _words(s) and _words(s) != _words(row.answer))
                if others:
                    found[row.id] = list(others)
            open_rows = [row for row in open_rows if row.id not in found]
            if not open_rows:
                return found
        raise UserError(
            f"DPO: {len(open_rows)} of {len(context.forget)} forget rows, '{open_rows[0].id}' always "
            f"sample their own answer; raise `temperature` (now {self.temperature}) or take `alternates: refusals`."
        )

    def forget_loss(self, step: Step) -> Terms:
        frozen = step.reference
        alternate_gain = frozen.alternate.sequence_nll() - step.alternate.sequence_nll()
        forget_gain = frozen.forget.sequence_nll() - step.forget.sequence_nll()
        return Terms(dpo(alternate_gain, forget_gain, self.beta))


def _words(text: str) -> list[str]:
    return text.lower().split()


methods.preset("idk-dpo", of="dpo", title="IdkDPO", alternates="refusals", retain="nll")
methods.preset("altpo", of="dpo", title="AltPO", alternates="sampled", retain="nll")
