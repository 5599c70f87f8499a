"""The aggregate scores of the OpenUnlearning paper (arXiv:2506.12618), which its code does not contain.

With HM the harmonic mean and a membership AUC A against that of the retrained model A_r:

    memorisation  HM(1 - ES, 1 - EM, 1 - paraphrase probability, 1 - truth preference)
    privacy       HM over loss, zlib, Min-K, Min-K++ of s = 1 - |A - A_r| / max(A_r, 1 - A_r)
    utility       HM(Model Utility, fluency)
    total         HM(memorisation, privacy, utility)

That is the protocol `open-unlearning`; two places of the paper need a choice. Its fluency is a gibberish classifier's
verdict, which needs a download: here it is 1 - the repetition rate of the forget answers. Its truth ratio is taken as
P(right) / (P(right) + P(wrong)).

The memorisation of the paper rewards saying less than a model that never saw the rows. `ours` puts the same s in the
place of every part, x against the retrained model's x_r, so that too little and too much forgetting both cost:

    s(x) = 1 - |x - x_r| / max(x_r, 1 - x_r)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field

from unlearnbench.metric import Context, Metric, Value, metrics

from .model_utility import harmonic_mean

PARTS = {
    "memorization": (
        "forget_extraction_strength",
        "forget_exact_memorization",
        "forget_paraphrased_answer_prob",
        "forget_truth_preference",
    ),
    "privacy": ("loss_auc", "zlib_auc", "mink_auc", "minkpp_auc"),
    "utility": ("model_utility", "forget_repetition"),
}
TOTAL = tuple(f"aggregate_{part}" for part in PARTS)
VARIANTS = {"forget_repetition"}  #: parts that OpenUnlearning has no variant of


def closeness(value: float, reference: float) -> float:
    """1 - |x - x_r| / max(x_r, 1 - x_r) for numbers in [0, 1]: 1 when equal, 0 at the far end."""
    return 1 - abs(value - reference) / max(reference, 1 - reference)


@metrics.register(
    "aggregate_memorization",
    title="Aggregate: memorisation",
    direction="higher",
    range=(0, 1),
    side="descriptive",
    unit="harmonic mean",
    source="OpenUnlearning, arXiv:2506.12618",
)
class Aggregate(Metric):
    """One aggregate, from the values of other metrics; null as soon as one of them is. `details` lists the parts."""

    protocols: ClassVar[Mapping[str, str]] = {
        "ours": "closeness to the retrained model in every part",
        "open-unlearning": "the paper's formulas; only privacy looks at the retrained model",
    }
    part: Literal["memorization", "privacy", "utility", "total"] = Field("memorization", description="which aggregate")

    @property
    def depends(self) -> tuple[str, ...]:
        names = TOTAL if self.part == "total" else PARTS[self.part]
        return tuple(name if name in VARIANTS else self.under(name)[0] for name in names)

    def compute(self, context: Context) -> Value:
        numbers: dict[str, float] = {}
        for name in self.depends:
            value = context.value(name)
            if value.score is None:
                return Value(None, reason=f"{name} is null: {value.reason}")
            numbers[name] = value.score
            if self.part == "total":
                continue
            if self.protocol == "open-unlearning" and self.part != "privacy":
                keep = name.startswith("model_utility")
                numbers[name] = value.score if keep else 1 - value.score
                continue
            reference = context.retrained(name)
            if reference.score is None:
                return Value(None, reason=f"{name}: {reference.reason}")
            numbers[name] = closeness(value.score, reference.score)
        return Value(harmonic_mean(list(numbers.values())), details=numbers)


for _part, _title in (("privacy", "privacy"), ("utility", "utility"), ("total", "memorisation, privacy and utility")):
    metrics.preset(
        "aggregate" if _part == "total" else f"aggregate_{_part}",
        of="aggregate_memorization",
        title=f"Aggregate: {_title}",
        part=_part,
    )
