"""Claims: what a YAML may say of them, and the verdict on an interval."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from unlearnbench.claims import Claim, judge

SAYS = {"claim": "it is so", "metric": "one_minus_prob", "of": "masc", "better": "higher"}


def made(**changes):
    return Claim(**{**SAYS, "kind": "superiority", "against": ("npo",), **changes})


@pytest.mark.parametrize(
    "changes, low, high, verdict",
    [
        ({}, 0.01, 0.2, "supported"),
        ({}, -0.1, 0.2, "undecided"),
        ({}, -0.2, -0.1, "refuted"),
        ({"margin": 0.1}, 0.01, 0.09, "refuted"),  # better, but not by the margin
        ({"margin": 0.1}, 0.05, 0.2, "undecided"),
        ({"compare": "ratio"}, 1.1, 1.2, "supported"),
        ({"compare": "ratio", "margin": 5}, 7.1, 9.6, "supported"),
        ({"compare": "ratio", "margin": 5}, 4.9, 9.6, "undecided"),
        ({"compare": "ratio", "margin": 5}, 2.0, 4.9, "refuted"),
        ({"kind": "non-inferiority", "margin": 0.1}, -0.09, 0.02, "supported"),
        ({"kind": "non-inferiority", "margin": 0.1}, -0.3, -0.11, "refuted"),
        ({"kind": "non-inferiority", "margin": 0.1}, -0.11, 0.3, "undecided"),
        ({"kind": "non-inferiority", "margin": 2, "compare": "ratio"}, 0.51, 0.9, "supported"),
        ({"kind": "non-inferiority", "margin": 2, "compare": "ratio"}, 0.1, 0.49, "refuted"),
        ({"kind": "equivalence", "margin": 0.1}, -0.09, 0.09, "supported"),
        ({"kind": "equivalence", "margin": 0.1}, 0.11, 0.2, "refuted"),
        ({"kind": "equivalence", "margin": 0.1}, -0.2, -0.11, "refuted"),
        ({"kind": "equivalence", "margin": 0.1}, -0.2, 0.05, "undecided"),
        ({"kind": "equivalence", "margin": 2, "compare": "ratio"}, 0.6, 1.9, "supported"),
        ({"kind": "equivalence", "margin": 2, "compare": "ratio"}, 0.1, 0.4, "refuted"),
        ({"kind": "superiority", "compare": "trend", "against": ()}, 0.1, 0.2, "supported"),
    ],
)
def test_the_verdict_follows_from_the_interval(changes, low, high, verdict):
    assert judge(made(**changes), low, high) == verdict


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"against": ()}, "what is compared with"),
        ({"kind": "equivalence"}, "needs a `margin`"),
        ({"kind": "non-inferiority"}, "needs a `margin`"),
        ({"compare": "ratio", "margin": 0.0}, "above 0"),
        ({"compare": "ratio", "kind": "equivalence", "margin": 0.9}, "above 1"),
        ({"margin": -0.1}, "0 or above"),
        ({"compare": "trend"}, "no effect"),
        ({"minus": "forget_exact"}, "trend"),
        ({"better": "nearer"}, "higher"),
        ({"until": {"metric": "a", "at": 1, "better": "lower", "floor_metric": "b", "floor": 0}}, "seconds"),
    ],
)
def test_a_claim_that_says_nothing_is_refused(changes, message):
    with pytest.raises(ValidationError, match=message):
        made(**changes)
