"""Named lists of metrics: what `metrics: [tofu, mia]` stands for."""

from __future__ import annotations

from unlearnbench.metric import SUITES

SUITES["tofu"] = (
    "one_minus_rouge_l",
    "one_minus_prob",
    "forget_truth_ratio",
    "model_utility",
    "forget_quality",
    "forget_exact",
    "retain_exact",
    "forget_fact",
    "retain_fact",
    "forget_fact_prob",
    "retain_fact_prob",
)
SUITES["mia"] = ("mink_auc", "mink_auc_gap")
SUITES["paraphrase"] = ("forget_paraphrase_prob", "forget_paraphrase_fact")
