"""Every registered metric declares what tables and pages need; suites name metrics that exist."""

from __future__ import annotations

import pytest

from unlearnbench.errors import UserError
from unlearnbench.metric import SUITES, expand, metrics, resolve
from unlearnbench.registry import Entry
from unlearnbench.testing import scores

ENTRIES = list(metrics)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
@pytest.mark.parametrize("promise", [promise for promise in scores.CHECKS if "tiny model" not in promise])
def test_what_holds_of_every_metric(entry: Entry, promise: str) -> None:
    """B21: direction, range, goal, side and unit stand with the metric and nowhere else. No split, no number."""
    scores.CHECKS[promise](entry)


@pytest.mark.slow
@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_a_value_on_a_tiny_model(entry: Entry) -> None:
    scores.check_value(entry)


def test_suites() -> None:
    assert {"tofu", "mia", "muse"} <= set(SUITES)
    for suite in SUITES:
        names = expand([suite])
        assert names and len(set(names)) == len(names)
        for name in names:  # dependencies come first
            assert all(names.index(needed) < names.index(name) for needed in resolve(name)[1].depends)


def test_a_suite_under_a_protocol() -> None:
    """Each metric in the variant of that code base, and as it is where the code base has none."""
    found = expand(["tofu@open-unlearning"])
    assert "model_utility@open-unlearning" in found and "retain_prob@open-unlearning" in found
    assert "model_utility" not in found and "forget_exact" in found
    assert expand(["tofu@ours"]) == expand(["tofu"])
    with pytest.raises(UserError, match="The suite 'tofu' has no protocol 'openunlearning'; did you mean 'open-unl"):
        expand(["tofu@openunlearning"])


def test_the_names_the_tables_stand_on() -> None:
    sides = ("retain", "real_authors", "world_facts")
    wanted = [f"{side}_{kind}" for side in (*sides, "forget") for kind in ("prob", "rouge_l", "truth_ratio")]
    wanted += ["one_minus_rouge_l", "one_minus_prob", "model_utility", "forget_quality", "mink_auc"]
    wanted += ["forget_exact", "retain_exact", "forget_fact", "retain_fact"]
    wanted += ["forget_paraphrase_prob", "forget_paraphrase_fact"]
    assert set(wanted) <= set(metrics.names())
    assert set(expand(["tofu"])) >= {"model_utility", "forget_quality", "forget_truth_ratio"}


def test_looking_metrics_up_needs_no_torch() -> None:
    import subprocess
    import sys

    code = "import sys; from unlearnbench.metric import metrics; metrics.names(); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
