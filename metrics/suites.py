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
SUITES["mia-all"] = (
    *(f"{attack}_{statistic}" for attack in ("loss", "zlib", "mink", "minkpp") for statistic in ("auc", "tpr")),
    "mink_auc_gap",
    "privleak",
)
SUITES["muse"] = ("verbmem_forget", "knowmem_forget", "knowmem_retain", "privleak")
SUITES["memorization"] = (
    "forget_exact_memorization",
    "forget_extraction_strength",
    "forget_logp",
    "forget_violation_rate",
    "forget_violation_bound",
)
SUITES["knowledge"] = (
    "forget_paraphrase_prob",
    "forget_paraphrase_rouge_l",
    "forget_paraphrase_fact",
    "forget_leak",
)
SUITES["fluency"] = (
    "forget_repetition",
    "retain_repetition",
    "forget_answer_nll",
    "retain_answer_nll",
    "forget_refusal",
    "retain_refusal",
)
SUITES["open-unlearning"] = (
    "aggregate_memorization",
    "aggregate_privacy",
    "aggregate_utility",
    "aggregate",
)
