"""Probability of the true answer (TOFU, arXiv:2401.06121, section 3.2).

    P(y | x) = exp((1/n) sum_t log p(y_t | x, y_<t))

is the geometric mean over the n answer tokens, EOS included, formed in log space. Where a row offers wrong options
(real authors, world facts), P is normalised over them.

Differences between code bases. TOFU and OpenUnlearning divide by the labels before the shift: for a text without a
prompt that counts the first token, which is never predicted. OpenUnlearning adds 1e-10 to the normalising sum.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

import numpy as np
from pydantic import Field
from scipy.special import logsumexp

from unlearnbench.benchmarks.base import Row
from unlearnbench.metric import Context, Metric, Request, RowMetric, Score, TokenScores, Value, metrics


def mean_logp(scores: TokenScores, extra: int = 0) -> float | None:
    """Mean log-probability per token in nats, over n + `extra` tokens; None without tokens."""
    return float(np.sum(scores.logp, dtype=np.float64)) / (len(scores) + extra) if len(scores) else None


def normalised(right: float, wrong: Sequence[float], epsilon: float = 0.0) -> float | None:
    """P(right) / (P(right) + sum P(wrong) + epsilon) from log-probabilities; None when nothing is finite."""
    terms = [right, *wrong, *([np.log(epsilon)] if epsilon else [])]
    total = logsumexp(terms)
    return float(np.exp(right - total)) if np.isfinite(total) else None


@metrics.register(
    "forget_prob",
    title="Probability of the answer, forget",
    direction="lower",
    target="retrained",
    range=(0, 1),
    side="forget",
    unit="probability",
    source="TOFU, arXiv:2401.06121, section 3.2",
)
class Probability(RowMetric):
    """Mean over rows of P(answer | prompt), or with `paraphrased` of the right answer in other words.

        prob = mean over rows of exp((1/n) sum_t log p(y_t | x, y_<t))

    Rows without an answer token are undefined.
    """

    protocols: ClassVar = {
        "ours": "mean over the predicted answer tokens",
        "tofu": "divides by the labels before the shift (locuslab/tofu evaluate_util.py)",
        "open-unlearning": "divides by the labels before the shift (locuslab/open-unlearning evals/metrics/utils.py)",
    }

    paraphrased: bool = Field(False, description="the right answer in other words, in the place of the answer")

    def asks(self, row: Row) -> Iterable[Request]:
        yield Score(row.prompt, row.paraphrased_answer if self.paraphrased else row.answer)

    def sample(self, row: Row, context: Context) -> float | None:
        unpredicted = 1 if self.protocol != "ours" and row.prompt == "" else 0
        (request,) = self.asks(row)
        logp = mean_logp(context.ask(request), unpredicted)
        return None if logp is None else float(np.exp(logp))


metrics.preset(
    "retain_prob",
    of="forget_prob",
    title="Probability of the answer, retain",
    meta={"direction": "higher", "target": None, "side": "utility"},
    split="retain",
)
metrics.preset(
    "forget_paraphrased_answer_prob",
    of="forget_prob",
    title="Probability of the paraphrased answer, forget",
    paraphrased=True,
)


@metrics.register(
    "real_authors_prob",
    title="Probability of the right option, real authors",
    direction="higher",
    range=(0, 1),
    side="utility",
    unit="probability",
    source="TOFU, arXiv:2401.06121, section 3.2",
)
class OptionProbability(RowMetric):
    """Mean over rows of P(answer) normalised over the answer and the row's wrong options.

        prob = mean over rows of P(answer) / (P(answer) + sum_i P(wrong_i))

    Rows without wrong options are undefined.
    """

    protocols: ClassVar = {
        "ours": "p / (p + sum of wrong p)",
        "tofu": "the same",
        "open-unlearning": "1e-10 added to the sum (locuslab/open-unlearning evals/metrics/memorization.py)",
    }
    split: str = "real_authors"

    def asks(self, row: Row) -> Iterable[Request]:
        for answer in (row.answer, *row.perturbed):
            yield Score(row.prompt, answer)

    def sample(self, row: Row, context: Context) -> float | None:
        right, *wrong = (mean_logp(context.score(row.prompt, answer)) for answer in (row.answer, *row.perturbed))
        known = [logp for logp in wrong if logp is not None]
        if right is None or not known:
            return None
        return normalised(right, known, 1e-10 if self.protocol == "open-unlearning" else 0.0)


metrics.preset(
    "world_facts_prob",
    of="real_authors_prob",
    title="Probability of the right option, world facts",
    split="world_facts",
)


@metrics.register(
    "one_minus_prob",
    title="1 - Prob on forget",
    direction="higher",
    target="retrained",
    range=(0, 1),
    side="forget",
    unit="probability",
    source="MASC, arXiv:2606.02920: the form of its tables",
)
class OneMinus(Metric):
    """1 - x for another metric x in [0, 1]: the form of the MASC tables, where up means forgotten.

        value = mean over rows of 1 - x

    over the rows where x is defined; null where x is.
    """

    protocols: ClassVar = {"ours": "of `ours`", "tofu": "of `tofu`", "open-unlearning": "of `open-unlearning`"}
    metric: str = Field("forget_prob", description="x")

    @property
    def depends(self) -> tuple[str, ...]:
        return self.under(self.metric)

    def compute(self, context: Context) -> Value:
        value = context.value(self.depends[0])
        if value.score is None:
            return value
        return Value.mean_of({k: None if v is None else 1 - v for k, v in value.per_sample.items()})


@metrics.register(
    "forget_logp",
    title="Exact-reproduction log-probability, forget",
    direction="lower",
    target="retrained",
    side="forget",
    unit="nats",
    source="MASC, arXiv:2606.02920",
)
class ReproductionLogProbability(RowMetric):
    """Log-probability of the whole answer and then EOS: not divided by the length.

        logp = mean over rows of sum_t log p(y_t | x, y_<t)

    Rows without an answer token are undefined.
    """

    def asks(self, row: Row) -> Iterable[Request]:
        yield Score(row.prompt, row.answer)

    def sample(self, row: Row, context: Context) -> float | None:
        logp = context.score(row.prompt, row.answer).logp
        return float(np.sum(logp, dtype=np.float64)) if len(logp) else None
