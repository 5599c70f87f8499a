"""WHP, "Who's Harry Potter": teach the model what it would say had it never become good at the forget rows.

    v_generic = z_ref - alpha relu(z_reinforced - z_ref)
    L = E_t[ -sum_v q_t(v) log p_t(v) ]        q_t = softmax(v_generic,t)

(Eldan & Russinovich, arXiv:2310.02238) with E_t the mean over the answer tokens, p_t the policy, z_ref the target's
logits. z_reinforced are the logits of a copy of the target trained further on the forget rows: what it raises is what
the forget rows teach. The soft labels q_t are computed once, before training, for the `keep` most likely tokens of
each answer position.

Differences from the reference code: the paper trains on the most likely token of v_generic and swaps names by a
dictionary first; MUSE subtracts the logits at each forward pass and trains nothing, so it keeps two models for ever.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence

from unlearnbench.language_model import evaluating
from unlearnbench.method import Method, PrepareContext, State, Step, Terms, hyper, methods
from unlearnbench.reference import by_length, run
from unlearnbench.text import collate


def generic_logits(logits: Tensor, reinforced_logits: Tensor, alpha: float) -> Tensor:
    """Logits [..., V] without what the reinforced model raises."""
    return logits - alpha * torch.relu(reinforced_logits - logits)


def soft_cross_entropy(logits: Tensor, tokens: Tensor, probabilities: Tensor) -> Tensor:
    """-sum_k q(k) log p(k) [...] from logits [..., V], token ids and their probabilities [..., K]."""
    return -(probabilities * logits.log_softmax(-1).gather(-1, tokens)).sum(-1)


@methods.register("whp", title="WHP", family="distillation", paper="arXiv:2310.02238", version=1)
class WHP(Method):
    """Fine-tuning on generic labels from a reinforced model."""

    alpha: float = hyper(1.0, gt=0, meaning="how much of the rise is taken away", source="MUSE")
    epochs: float = hyper(10, gt=0, meaning="passes of the reinforced model over the forget rows", source="MUSE")
    learning_rate: float | None = hyper(None, gt=0, meaning="of the reinforced model", source="null: that of the cell")
    keep: int = hyper(
        256, ge=1, meaning="likeliest tokens whose soft labels are kept, renormalised", source="our choice: memory"
    )

    def prepare(self, context: PrepareContext) -> State:
        changes = {"epochs": self.epochs, "max_steps": None, "lora": None, "checkpoint_every": None}
        if self.learning_rate is not None:
            changes["learning_rate"] = self.learning_rate
        reinforced = context.finetune(context.forget, context.settings.model_copy(update=changes))
        rows, lm = context.encoder.rows(context.forget).rows, context.lm
        labels = {}
        with evaluating(lm), evaluating(reinforced):
            for chunk in by_length(rows, 4096):
                batch = collate(chunk, context.encoder.pad_id).to(lm.device)
                logits = generic_logits(
                    run(lm, batch, "answers", None), run(reinforced, batch, "answers", None), self.alpha
                )
                best, tokens = logits.topk(min(self.keep, logits.shape[-1]), dim=-1)
                for i, row in enumerate(chunk):
                    kept = batch.mask[i]
                    labels[row.row_id] = {"tokens": tokens[i][kept].cpu(), "q": best[i][kept].softmax(-1).cpu()}
        return State(labels=labels)

    def forget_loss(self, step: Step) -> Terms:
        view = step.forget
        labels = [step.state["labels"][row_id] for row_id in view.batch.row_ids]
        room = (0, 0, 0, view.mask.shape[1] - max(len(label["q"]) for label in labels))
        tokens = pad(pad_sequence([label["tokens"] for label in labels], batch_first=True), room)
        q = pad(pad_sequence([label["q"] for label in labels], batch_first=True), room).to(view.logits)
        return Terms(soft_cross_entropy(view.logits, tokens.to(q.device), q), view.mask)
