"""Names that tables and plots are asked for by, and how metrics are called in them. Nothing heavy is imported here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from unlearnbench.errors import SeveralErrors, did_you_mean

#: what `report: {tables: [...]}` may name
TABLES = {
    "main": "the metrics people look at first, with the score",
    "cost": "seconds by phase, steps, tokens, FLOPs and memory",
    "score": "the distances to the retrained model that the score is made of",
    "stop": "what the stop rules read, and where they stopped",
    "comparison": "paired tests of every two methods, from five seeds",
    "missing": "what was not computed, and why",
}
#: what `report: {plots: [...]}` may name
PLOTS = {
    "wallclock": "seconds by phase as stacked bars, with every seed",
    "radar": "the metrics of each method against target and retrained model",
    "tradeoff": "forgetting against utility, with the retrained model as the goal",
    "trajectory": "how forgetting and utility move during training, with the stops",
    "violation": "the violation rate of each stop rule against the step",
    "stops": "steps, seconds and distances of each method under each stop rule",
    "heatmap": "an ablation: the score over the values of one or two hyper-parameters",
    "panels": "the MASC paper's picture: per benchmark costs as bars and metrics as radars, published ones beside",
    "scaling": "memory and utility over the size of the model",
    "slopes": "before and after an attack",
}

#: metric -> (short title for tables and axes, decimals)
TITLES: dict[str, tuple[str, int]] = {
    "one_minus_rouge_l": ("1-ROUGE-L", 2),
    "one_minus_prob": ("1-Prob", 2),
    "forget_truth_ratio": ("Truth ratio", 2),
    "forget_exact": ("Forget exact", 2),
    "forget_fact": ("Forget facts", 2),
    "forget_quality": ("log10 FQ", 1),
    "model_utility": ("Utility", 2),
    "retain_exact": ("Retain exact", 2),
    "retain_fact": ("Retain facts", 2),
    "mink_auc": ("Min-K AUC", 2),
    "verbmem_forget": ("VerbMem", 1),
    "knowmem_forget": ("KnowMem", 1),
    "knowmem_retain": ("Retain KnowMem", 1),
    "privleak": ("PrivLeak", 1),
}
#: the columns of the main table, for benchmarks that have them
HEADLINE = tuple(TITLES)
TITLES |= {
    "seconds": ("Seconds", 1),
    "steps": ("Steps", 0),
    "tokens": ("Tokens", 0),
    "flops": ("FLOPs", 0),
    "peak_memory_bytes": ("Peak bytes", 0),
    "score": ("Score", 2),
}
ARROWS = {"higher": "↑", "lower": "↓", "retrained": "≈"}
ARROW_LEGEND = "↑ higher is better, ↓ lower is better, ≈ the nearer to the retrained model the better"


def headline(names: Sequence[str]) -> list[str]:
    """The metrics of the main table: the known ones in their order; of an unknown suite, the first ten."""
    return variants(HEADLINE, names) or list(names)[:10]


def variants(wanted: Iterable[str], names: Sequence[str]) -> list[str]:
    """The wanted metrics that are among `names`; of one that is not, its first variant (`name@protocol`) there."""
    found = []
    for want in wanted:
        options = [name for name in names if name == want] or [n for n in names if n.partition("@")[0] == want]
        found += options[:1]
    return found


def title(name: str) -> str:
    """How a metric is called in a table."""
    plain, _, protocol = name.partition("@")
    called = TITLES[plain][0] if plain in TITLES else plain.replace("_", " ")
    return f"{called} ({protocol})" if protocol else called


def decimals(name: str) -> int:
    """Decimals of a metric in a table."""
    return TITLES.get(name.partition("@")[0], ("", 2))[1]


def check_names(tables: Iterable[str], plots: Iterable[str]) -> None:
    """Raise `SeveralErrors` for names that are neither a table nor a plot."""
    wrong = [f"There is no table '{name}'; {did_you_mean(name, TABLES)}" for name in tables if name not in TABLES]
    wrong += [f"There is no plot '{name}'; {did_you_mean(name, PLOTS)}" for name in plots if name not in PLOTS]
    if wrong:
        raise SeveralErrors(wrong)
