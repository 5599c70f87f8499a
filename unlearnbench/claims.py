"""What an experiment says beforehand that will come out: claims, each with its kind and its margin.

A claim compares numbers seed by seed and turns them into an *effect* that is larger when the claim holds better:

| compare | effect, `better: higher` | effect, `better: lower` |
|---|---|---|
| `difference` | of - against | against - of |
| `ratio` | of / against | against / of |
| `trend` | slope per doubling of the parameters | minus that slope |

and asks, with the 95 % interval of the effect over the seeds:

| kind | supported: the whole interval | refuted: the whole interval | margin |
|---|---|---|---|
| `superiority` | above the margin | below it | 0, or 1 for a ratio, unless given |
| `non-inferiority` | above -margin (ratio: 1 / margin) | below that | required |
| `equivalence` | within +-margin (ratio: 1 / margin to margin) | outside | required |

and `undecided` otherwise: also below five seeds, and where a number is missing. Verdicts are in `report.verdicts`.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from unlearnbench.settings import Settings

Kind = Literal["superiority", "non-inferiority", "equivalence"]
Compare = Literal["difference", "ratio", "trend"]
#: what a claim may be about besides a metric: of the training's record
COSTS = ("seconds", "steps", "tokens", "flops", "peak_memory_bytes")


class Level(Settings):
    """What counts as forgotten: `metric` at the level `at`, while `floor_metric` is at least `floor`."""

    metric: str
    at: float
    better: Literal["higher", "lower"]
    floor_metric: str
    floor: float


class Claim(Settings):
    """One claim. `of` and `against` are labels or names of methods, or `target` and `retrained`."""

    claim: str = Field(min_length=1)  #: the sentence, as a reader says it
    kind: Kind
    metric: str  #: a metric, `score`, or one of `COSTS`
    of: str
    against: tuple[str, ...] = ()  #: the claim must hold against each of them
    compare: Compare = "difference"
    better: Literal["higher", "lower"]
    margin: float | None = None
    after: str = "none"  #: the attack that `of` is scored after
    against_after: str | None = None  #: the attack that `against` is scored after; null: the same
    until: Level | None = None  #: with `seconds`: not of the whole training, but until this level (time to target)
    minus: str | None = None  #: with `trend`: a second metric, whose slope is taken off
    unless_ruined: bool = False  #: leave out of `against` whatever lost half of its utility or more
    benchmark: str | None = None  #: only where the benchmark's name begins so; null: wherever there are the rows

    @model_validator(mode="after")
    def _whole(self) -> Claim:
        if self.compare == "trend" and self.against:
            raise ValueError("a trend is of one row over the models: `against` has no effect")
        if self.compare != "trend" and not self.against:
            raise ValueError("`against` names what is compared with")
        if self.compare != "trend" and self.minus is not None:
            raise ValueError("`minus` has an effect with `compare: trend` only")
        if self.until is not None and self.metric != "seconds":
            raise ValueError("`until` has an effect with `metric: seconds` only")
        if self.kind != "superiority" and self.margin is None:
            raise ValueError(f"{self.kind} needs a `margin`")
        if self.compare == "ratio" and self.kind == "superiority" and self.threshold <= 0:
            raise ValueError("the margin of a ratio is above 0")
        if self.compare == "ratio" and self.kind != "superiority" and self.threshold <= 1:
            raise ValueError(f"the margin of a ratio is above 1: {self.kind} reaches from 1 / margin")
        if self.compare != "ratio" and self.threshold < 0:
            raise ValueError("the margin is 0 or above")
        return self

    @property
    def threshold(self) -> float:
        """The margin, or what stands for it: no difference at all."""
        if self.margin is not None:
            return self.margin
        return 1.0 if self.compare == "ratio" else 0.0

    @property
    def other_after(self) -> str:
        """The attack that `against` is scored after."""
        return self.after if self.against_after is None else self.against_after


Verdict = Literal["supported", "refuted", "undecided"]


def judge(claim: Claim, low: float, high: float) -> Verdict:
    """The verdict on an effect that lies in [low, high]."""
    margin, ratio = claim.threshold, claim.compare == "ratio"
    if claim.kind == "equivalence":
        least = 1 / margin if ratio else -margin
        if least < low and high < margin:
            return "supported"
        return "refuted" if high < least or low > margin else "undecided"
    least = margin if claim.kind == "superiority" else 1 / margin if ratio else -margin
    if low > least:
        return "supported"
    return "refuted" if high < least else "undecided"
