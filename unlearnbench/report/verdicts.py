"""What came of an experiment's claims: an effect per comparison, its interval over the seeds, and the verdict.

Seeds are paired: an effect is computed in each seed that both rows have, ratios on a log scale. From five seeds the
95 % Student-t interval of its mean decides (see `unlearnbench.claims`); below, the range is shown and nothing is
decided. A claim against several methods holds when it holds against each, so nothing is corrected for their number.
"""

from __future__ import annotations

import csv
import io
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np

from unlearnbench.claims import COSTS, Claim, Level, Verdict, judge
from unlearnbench.report.catalogue import decimals, title
from unlearnbench.report.levels import seconds_to, words
from unlearnbench.report.printed import beside
from unlearnbench.report.results import Group, GroupKey, Results, Run
from unlearnbench.report.sanity import RUINED
from unlearnbench.report.standings import Standing, Table, tables
from unlearnbench.report.tables import Grid
from unlearnbench.schema import PublishedSettings
from unlearnbench.statistics import MIN_SEEDS, seeds_interval, value_range


@dataclass(frozen=True)
class Finding:
    """One comparison of a claim. `effect` is larger the better the claim holds; None with its `reason`."""

    claim: Claim
    where: str  #: the comparison's benchmark and model
    against: str = ""
    effect: float | None = None
    low: float | None = None
    high: float | None = None
    seeds: int = 0
    paper: str = "not public"  #: the same effect from the printed numbers
    verdict: Verdict = "undecided"
    reason: str = ""

    @property
    def text(self) -> str:
        """The effect with its interval, for people."""
        if self.effect is None:
            return self.reason
        digits = 2 if self.claim.metric in COSTS else max(2, decimals(self.claim.metric))
        unit = {"ratio": " times", "trend": " per doubling"}.get(self.claim.compare, "")
        spread = "95 % interval" if self.seeds >= MIN_SEEDS else f"range of {self.seeds} seeds"
        known = self.low is not None and self.high is not None
        ends = f", {spread} {self.low:.{digits}f} to {self.high:.{digits}f}" if known else ""
        return f"{self.effect:.{digits}f}{unit}{ends}"


def find(results: Results, claims: Sequence[Claim], published: PublishedSettings | None = None) -> list[Finding]:
    """All comparisons of all claims, in their order; at least one per claim."""
    found: list[Finding] = []
    for claim in claims:
        own = list(_trends(results, claim) if claim.compare == "trend" else _pairs(results, claim, published))
        found += own or [Finding(claim, "", reason=f"{claim.of} was not run" + _after(claim.after))]
    return found


def overall(findings: Sequence[Finding]) -> Verdict:
    """The verdict on a claim: refuted by one comparison, supported by all of them."""
    verdicts = {finding.verdict for finding in findings}
    return "refuted" if "refuted" in verdicts else "supported" if verdicts == {"supported"} else "undecided"


def by_claim(findings: Sequence[Finding]) -> list[tuple[Claim, list[Finding]]]:
    """The comparisons of each claim."""
    grouped: dict[int, list[Finding]] = defaultdict(list)
    for finding in findings:
        grouped[id(finding.claim)].append(finding)
    return [(own[0].claim, own) for own in grouped.values()]


# -- comparisons -----------------------------------------------------------------------------------------------


def _pairs(results: Results, claim: Claim, published: PublishedSettings | None) -> Iterator[Finding]:
    """Differences and ratios: in each benchmark and model, of one row against each of the others."""
    found = {table.group.key: table for table in tables(results)}
    for key, plain in found.items():
        if key.attack != "none" or not key.benchmark.startswith(claim.benchmark or ""):
            continue
        here = found.get(_attacked(plain.group, claim.after))
        there = found.get(_attacked(plain.group, claim.other_after))
        own = _row(here, claim.of)
        if own is None:
            continue
        others = {name: _row(there, name) for name in claim.against}
        ruined = [name for name, row in others.items() if claim.unless_ruined and row and _ruined(row)]
        left_out = f"left out, for half of the utility or more is gone: {', '.join(ruined)}" if ruined else ""
        for name, other in others.items():
            if other is None:
                reason = f"{name} was not run" + _after(claim.other_after)
                yield Finding(claim, str(key), name, reason=reason)
            elif name not in ruined:
                paper = _printed(claim, plain.group, name, published)
                made = _compared(claim, str(key), name, own, other, paper)
                yield replace(made, reason="; ".join(part for part in (made.reason, left_out) if part))
        if len(ruined) == len(others):
            yield Finding(claim, str(key), ", ".join(ruined), reason=left_out)


def _compared(claim: Claim, where: str, name: str, own: Standing, other: Standing, paper: str) -> Finding:
    if claim.metric == "seconds" and own.cost.hardware != other.cost.hardware:
        return Finding(claim, where, name, paper=paper, reason="the rows were not timed on one machine")
    first, second = (_numbers(row, claim.metric, claim.until) for row in (own, other))
    if claim.until is not None and not first.keys() & second.keys():
        late = [row.arm.title for row, found in ((own, first), (other, second)) if not found]
        who = f"{' and '.join(late)} in no seed" if late else "both in no seed"
        return Finding(claim, where, name, reason=f"{words(claim.until)} was reached by {who}")
    effects = {seed: _effect(claim, first[seed], second[seed]) for seed in sorted(first.keys() & second.keys())}
    return _decided(claim, where, name, effects, paper)


def _ruined(row: Standing) -> bool:
    return (row.sides["utility"].mean or 0.0) >= RUINED


def _trends(results: Results, claim: Claim) -> Iterator[Finding]:
    """Slopes over the models of each benchmark, per doubling of the number of parameters."""
    families: dict[str, list[tuple[float, Standing]]] = defaultdict(list)
    for table in tables(results):
        key, row = table.group.key, _row(table, claim.of)
        if row is None or key.attack != claim.after or not key.benchmark.startswith(claim.benchmark or ""):
            continue
        size = parameters_of(row)
        if size is None:
            yield Finding(claim, str(key), reason="the models' parameters were not recorded")
        else:
            families[f"{key.benchmark}{_after(key.attack)}"].append((float(np.log2(size)), row))
    for where, points in families.items():
        if len({size for size, _ in points}) < 3:
            yield Finding(claim, where, reason=f"models of {len(points)} sizes; a trend needs 3")
            continue
        values = [(size, _numbers(row, claim.metric), _less(row, claim.minus)) for size, row in points]
        seeds = set.intersection(*[numbers.keys() & less.keys() for _, numbers, less in values])
        sign = 1 if claim.better == "higher" else -1
        sizes = [size for size, _, _ in values]
        slopes: dict[int, float | None] = {
            seed: sign * float(np.polyfit(sizes, [numbers[seed] - less[seed] for _, numbers, less in values], 1)[0])
            for seed in sorted(seeds)
        }
        yield _decided(claim, where, "", slopes, "not public")


def _decided(claim: Claim, where: str, name: str, effects: dict[int, float | None], paper: str) -> Finding:
    values = [value for value in effects.values() if value is not None]
    if len(values) < len(effects):
        return Finding(claim, where, name, paper=paper, reason="a ratio needs numbers above 0")
    if not values:
        return Finding(claim, where, name, paper=paper, reason=f"{title(claim.metric)} was not measured in both")
    if len(values) < MIN_SEEDS:
        low, high = value_range(values) or (None, None)
        reason = f"{len(values)} seed{'s' if len(values) > 1 else ''}; {MIN_SEEDS} are needed"
        return Finding(claim, where, name, _mean(claim, values), low, high, len(values), paper, "undecided", reason)
    ratio = claim.compare == "ratio"
    low, high = seeds_interval([float(np.log(value)) for value in values] if ratio else values) or (None, None)
    if low is None or high is None:
        return Finding(claim, where, name, paper=paper, reason="no interval")
    ends = (float(np.exp(low)), float(np.exp(high))) if ratio else (low, high)
    return Finding(claim, where, name, _mean(claim, values), *ends, len(values), paper, judge(claim, *ends))


def _mean(claim: Claim, values: Sequence[float]) -> float:
    return float(np.exp(np.mean(np.log(values)))) if claim.compare == "ratio" else float(np.mean(values))


def _effect(claim: Claim, own: float, other: float) -> float | None:
    if claim.compare == "ratio":
        if own <= 0 or other <= 0:
            return None
        return own / other if claim.better == "higher" else other / own
    return own - other if claim.better == "higher" else other - own


def _printed(claim: Claim, group: Group, name: str, published: PublishedSettings | None) -> str:
    """The effect from printed numbers, per source that has both; or that there is none."""
    if {claim.after, claim.other_after} != {"none"} or claim.until is not None:
        return "not public"
    entries = [entry for entry in beside(published, group) if entry.metric == claim.metric]
    found = []
    for source in dict.fromkeys(entry.source for entry in entries):
        value = {entry.method: entry for entry in entries if entry.source == source}
        if claim.of in value and name in value:
            effect = _effect(claim, value[claim.of].value, value[name].value)
            how = "" if value[claim.of].reported and value[name].reported else ", read off a figure"
            if effect is not None:
                found.append(f"{effect:.{1 if claim.compare == 'ratio' else 2}f}{how}")
    return "; ".join(found) or "not public"


# -- numbers ---------------------------------------------------------------------------------------------------


def _attacked(group: Group, attack: str) -> GroupKey:
    return replace(group.key, attack=attack)


def _row(table: Table | None, name: str) -> Standing | None:
    """The row of a label, or the only one of a method."""
    if table is None:
        return None
    own = [row for row in table.rows if row.arm.label == name]
    own = own or [row for row in table.rows if row.arm.method == name]
    return own[0] if len(own) == 1 else None


def _numbers(row: Standing, metric: str, until: Level | None = None) -> dict[int, float]:
    """Seed -> the number, where there is one."""
    if metric == "score":
        return row.scores.by_seed("score")
    runs = {seed: run for seed, run in row.arm.runs.items() if run.status == "complete"}
    if until is not None:
        values = {seed: seconds_to(run, until) for seed, run in runs.items()}
    else:
        values = {s: _cost(run, metric) for s, run in runs.items()} if metric in COSTS else row.arm.values(metric)
    return {seed: value for seed, value in values.items() if value is not None}


def _cost(run: Run, name: str) -> float | None:
    if name == "seconds":
        return run.cost
    value = run.training.record.get(name) if run.training is not None else None
    return None if value is None else float(value)


def _less(row: Standing, metric: str | None) -> dict[int, float]:
    return dict.fromkeys(row.arm.seeds, 0.0) if metric is None else _numbers(row, metric)


def parameters_of(row: Standing) -> float | None:
    """How many parameters the row's models have, when it is recorded and one number."""
    runs = row.arm.runs.values()
    found = {run.training.record.get("parameters") for run in runs if run.training is not None}
    return float(found.pop() or 0) or None if len(found) == 1 else None


def _after(attack: str) -> str:
    return "" if attack == "none" else f" after {attack}"


# -- shown -----------------------------------------------------------------------------------------------------


def grid(findings: Sequence[Finding]) -> Grid:
    """The claims with their verdicts, a row per comparison."""
    rows = []
    for claim, own in by_claim(findings):
        for i, finding in enumerate(own):
            said = (overall(own), claim.claim, _kind(claim)) if i == 0 else ("", "", "")
            single = finding.verdict if len(own) > 1 else ""
            rows.append((*said, finding.where, finding.against, finding.text, finding.paper, single, finding.reason))
    heads = ("verdict", "claim", "kind", "where", "against", "measured", "the paper's numbers give", "alone", "why")
    note = (
        f"Written before the run. An effect is larger the better the claim holds; from {MIN_SEEDS} seeds its 95 % "
        "interval over the seeds decides. A claim against several is supported when each comparison is, refuted when "
        "one is."
    )
    return Grid("Claims", heads, tuple(rows), (note,))


def _kind(claim: Claim) -> str:
    unit = {"ratio": " times", "trend": " per doubling"}.get(claim.compare, "")
    return f"{claim.kind}, margin {claim.threshold:g}{unit}"


def lines(findings: Sequence[Finding]) -> list[tuple[Verdict, str]]:
    """A line per claim, for the terminal: the comparison that is nearest to failing speaks for the claim."""
    said = []
    for claim, own in by_claim(findings):
        verdict = overall(own)
        speakers = [finding for finding in own if finding.verdict == verdict]
        worst = min(speakers or own, key=lambda finding: np.inf if finding.effect is None else finding.effect)
        where = " ".join(part for part in (f"against {worst.against}" if worst.against else "", worst.where) if part)
        why = f" ({worst.reason})" if worst.reason and worst.reason != worst.text else ""
        said.append((verdict, f"{claim.claim}: {worst.text}{f' [{where}]' if where else ''}{why}"))
    return said


def write_csv(findings: Sequence[Finding], file: Path) -> None:
    """`claims.csv`: a row per comparison, the claim's settings beside it."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    settings = [name for name in Claim.model_fields if name != "against"]
    columns = [field.name for field in fields(Finding) if field.name != "claim"]
    writer.writerow([*settings, *columns])
    for finding in findings:
        said = [getattr(finding.claim, name) for name in settings]
        writer.writerow([_cell(value) for value in [*said, *(getattr(finding, name) for name in columns)]])
    file.write_text(text.getvalue(), encoding="utf-8")


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
