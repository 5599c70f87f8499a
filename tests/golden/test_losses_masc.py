"""MASC's parts against values obtained by running the authors' code (`masc*.json`), which computes in float32.

Margins, penalties, cuts, the probe's numbers, the confidence bound, the retain terms: each through the code that
training uses. A section, parameter or expected value this file does not know fails; none is skipped.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from unlearnbench.margins import (
    Margin,
    buffered_hinge,
    continuation,
    fixed_unit,
    hinge,
    log_reproduction_bound,
    spread,
    tau_of,
    violation_rate,
)
from unlearnbench.method import Method, State, Step, View, Views, methods
from unlearnbench.probing import ViolationSettings, violation_values
from unlearnbench.retain import REGULARISERS
from unlearnbench.stopping import Violation, hoeffding_ucb
from unlearnbench.text import Batch

FOLDER = Path(os.environ.get("UNLEARNBENCH_GOLDEN_DIR", Path(__file__).parent / "data"))
META = {"description", "seed", "tolerance", "ignore_index", "inputs"}
FORMS = {"tempered_posterior": "tempered", "smoothmax_only": "smoothmax"}
SOURCES = {"self": "own", "teacher": "reference"}

Params = dict[str, Any]


def load() -> Iterator[Any]:
    """Every case of every section of every file."""
    for file in sorted(FOLDER.glob("masc*.json")):
        content = json.loads(file.read_text())
        for section in content.keys() - META:
            for i, case in enumerate(content[section]["cases"]):
                tolerance = {**content["tolerance"], **content[section].get("tolerance", {})}
                if "tolerance" in content[section]:
                    tolerance["abs"] = content[section]["tolerance"].get("abs", 0.0)
                yield pytest.param(section, case, content["inputs"], tolerance, id=f"{file.stem}:{section}[{i}]")


CASES = sorted(load(), key=lambda parameter: str(parameter.id))


def test_there_are_cases() -> None:
    assert CASES, f"no masc*.json in {FOLDER}"


class Check:
    """Compares with a file's tolerance."""

    def __init__(self, tolerance: Params):
        self.rtol, self.atol = tolerance["rel"], tolerance["abs"]

    def __call__(self, name: str, value: Any, expected: Any) -> None:
        wanted = float("nan") if expected == "NaN" else float("inf") if expected == "Infinity" else expected
        np.testing.assert_allclose(
            np.asarray(value, dtype=float), np.asarray(wanted, dtype=float), self.rtol, self.atol, err_msg=name
        )


def exactly(found: Any, known: set[str], what: str) -> None:
    assert set(found) == known, f"{what}: not known {set(found) - known}, missing {known - set(found)}"


class Stored:
    """A stored batch as views of policy and reference."""

    def __init__(self, data: Params):
        size = len(data["input_ids"])
        tensors = [torch.tensor(data[name]) for name in ("input_ids", "labels", "attention_mask")]
        self.batch = Batch.from_labels(*tensors, row_ids=[str(i) for i in range(size)])
        self.policy = torch.tensor(data["policy_logits"], dtype=torch.float64, requires_grad=True)
        self.reference = torch.tensor(data["reference_logits"], dtype=torch.float64)

    def view(self, logits: Tensor) -> View:
        def forward(batch: Batch, kind: str, layer: int | float | None) -> Tensor:
            if kind == "full":
                return logits
            return logits.gather(1, batch.positions.unsqueeze(-1).expand(-1, -1, logits.shape[-1]))

        return View(self.batch, forward)

    def step(self, state: State | None = None) -> Step:
        policy, reference = self.view(self.policy), self.view(self.reference)
        return Step(Views(policy, policy), Views(reference, reference), state or State())

    def on_targets(self, values: Tensor) -> list[list[float | None]]:
        """[B, L] values at answer tokens, laid out over the T - 1 shifted targets, None where ignored."""
        rows: list[list[float | None]] = [[None] * (self.batch.labels.shape[1] - 1) for _ in range(len(self.batch))]
        for i in range(len(self.batch)):
            for position, value, kept in zip(self.batch.positions[i], values[i], self.batch.mask[i], strict=True):
                if kept:
                    rows[i][int(position)] = float(value)
        return rows


def masc(params: Params, **more: Any) -> Method:
    """MASC with the parameters of a case, whatever the section."""
    source, k = SOURCES[params["competitor_source"]], params["k"]
    if not params.get("teacher_available", True) and source == "reference":
        source, k = "own", 1  # what the authors' code does without a reference; ours refuses
    within = {"topk": None, "delta": params["logit_delta"]}[params["set_mode"]]
    form = FORMS[params["beta_parameterization"]]
    return methods.get("masc").build(
        alternatives=source, k=k, within=within, beta=params["beta"], form=form, stop=None, **more
    )


def stats(margins: Tensor, mask: Tensor) -> Params:
    tokens = margins[mask]
    return {
        "mean_margin": tokens.mean().item(),
        "min_margin": tokens.min().item(),
        "frac_margin_le_0": (tokens <= 0).double().mean().item(),
        "valid_tokens": tokens.numel(),
    }


# -- the sections ----------------------------------------------------------------------------------------------


def token_margins(case: Params, inputs: Params, check: Check) -> None:
    exactly(case, {"batch", "params", "expected"}, "a case of token_margins")
    keys = {"competitor_source", "teacher_available", "k", "set_mode", "logit_delta", "beta", "beta_parameterization"}
    exactly(case["params"], keys, "parameters")
    stored, method = Stored(inputs["batches"][case["batch"]]), masc(case["params"])
    step = stored.step()
    margins = method.margins(step.forget, step.reference.forget).detach()  # type: ignore[attr-defined]
    expected = case["expected"]
    exactly(expected, {"margins", "mean_margin", "stats"}, "expected values")
    for ours, theirs in zip(stored.on_targets(margins), expected["margins"], strict=True):
        assert [value is None for value in ours] == [value is None for value in theirs]
        check("margins", [v for v in ours if v is not None], [v for v in theirs if v is not None])
    found = stats(margins, stored.batch.mask)
    found["frac_margin_le_0p5"] = (margins[stored.batch.mask] <= 0.5).double().mean().item()
    check("mean_margin", found["mean_margin"], expected["mean_margin"])
    exactly(expected["stats"], set(found), "stats")
    for name, value in found.items():
        check(name, value, expected["stats"][name])


def tau(case: Params, inputs: Params, check: Check) -> None:
    exactly(case, {"margin_tau", "rho", "expected"}, "a case of tau")
    given = {"tau": case["margin_tau"]} if case["rho"] is None else {"rho": case["rho"]}
    check("tau", methods.get("masc").build(**given).threshold, case["expected"])


def hinges(case: Params, inputs: Params, check: Check) -> None:
    exactly(case, {"margins", "tau", "eta", "expected"}, "a case of buffered_hinge")
    exactly(case["expected"], {"elementwise", "mean", "violation_indicator"}, "expected values")
    margins = torch.tensor(case["margins"], dtype=torch.float64)
    values = buffered_hinge(margins, case["tau"], case["eta"])
    check("elementwise", values, case["expected"]["elementwise"])
    check("mean", values.mean(), case["expected"]["mean"])
    active = torch.ones(len(margins), 1, dtype=torch.bool)
    rates = violation_rate(margins.unsqueeze(1), case["tau"], active)
    assert rates.bool().tolist() == case["expected"]["violation_indicator"]


def cuts(case: Params, inputs: Params, check: Check) -> None:
    exactly(case, {"valid_positions", "length", "params", "expected"}, "a case of continuation_mask")
    params, expected = case["params"], case["expected"]
    names = {"cut_min_ratio", "cut_max_ratio", "min_prefix_tokens", "min_suffix_tokens", "source_indices"}
    exactly(params, names | {"window_indices", "salt", "deterministic"}, "parameters")
    assert params["deterministic"]
    valid = [torch.tensor(positions) for positions in case["valid_positions"]]
    mask = torch.zeros(len(valid), case["length"], dtype=torch.bool)
    for row, positions in zip(mask, valid, strict=True):
        row[positions] = True
    settings = ViolationSettings(
        cut=(params["cut_min_ratio"], params["cut_max_ratio"]),
        min_prefix=params["min_prefix_tokens"],
        min_suffix=params["min_suffix_tokens"],
        salt=params["salt"],
    )
    active = settings.active(mask, params["source_indices"], params["window_indices"])
    assert [row.nonzero().flatten().tolist() for row in active] == expected["suffix_positions"]
    prefix = (mask.sum(1) - active.sum(1)).tolist()
    whole = mask.sum(1) < settings.min_prefix + settings.min_suffix
    exactly(
        expected,
        {"suffix_positions", "prefix_token_counts", "cut_ratio_mean", "suffix_tokens_mean", "fallback_count"},
        "expected values",
    )
    assert prefix == expected["prefix_token_counts"]
    check("fallback_count", whole.sum(), expected["fallback_count"])
    check("suffix_tokens_mean", active.sum(1).double().mean(), expected["suffix_tokens_mean"])
    ratios = [p / n for p, n, w in zip(prefix, mask.sum(1).tolist(), whole.tolist(), strict=True) if not w]
    check("cut_ratio_mean", np.mean(ratios) if ratios else 0.0, expected["cut_ratio_mean"])


def forget_penalty(case: Params, inputs: Params, check: Check) -> None:
    exactly(case, {"batch", "params", "expected", "expected_grad_wrt_policy_logits"}, "a case of forget_penalty")
    params, expected = case["params"], case["expected"]
    names = {"competitor_source", "k", "set_mode", "logit_delta", "beta", "beta_parameterization", "rho", "margin_tau"}
    names |= {"tau_effective", "eta", "penalty_mode", "loss_mode", "sigmoid_beta", "cut_ratio"}
    exactly(params, names | {"min_prefix_tokens", "min_suffix_tokens"}, "parameters")
    penalties = {"buffered_hinge": "buffered", "hinge": "hinge", "sigmoid_hinge": "sigmoid"}
    more: Params = {"rho": params["rho"]} if params["rho"] is not None else {"tau": params["margin_tau"]}
    more |= {"eta": params["eta"], "penalty": penalties[params["loss_mode"]], "cut": None}
    if params["sigmoid_beta"] is not None:
        more["softness"] = params["sigmoid_beta"]
    if params["penalty_mode"] == "continuation":
        more["cut"] = (params["cut_ratio"], params["cut_ratio"])
        more |= {"min_prefix": params["min_prefix_tokens"], "min_suffix": params["min_suffix_tokens"]}
    else:
        assert params["penalty_mode"] == "full"
    method, stored = masc(params, **more), Stored(inputs["batches"][case["batch"]])
    check("tau", method.threshold, params["tau_effective"])  # type: ignore[attr-defined]
    step = stored.step()
    loss = method.forget_loss(step).mean()
    exactly(expected, {"loss", "stats"}, "expected values")
    check("loss", loss.item(), expected["loss"])
    loss.backward()  # type: ignore[no-untyped-call]
    check("gradient", stored.policy.grad, case["expected_grad_wrt_policy_logits"])
    penalty_stats(method, step, params, expected["stats"], check)


def penalty_stats(method: Any, step: Step, params: Params, expected: Params, check: Check) -> None:
    margins, mask = method.margins(step.forget, step.reference.forget).detach(), step.forget.mask
    active, tau = method.active(step), method.threshold
    tokens = margins[active]
    found = stats(margins, mask)
    found |= {
        "frac_margin_gt_tau": (margins[mask] > tau).double().mean().item(),
        "continuation_mean_margin": tokens.mean().item(),
        "continuation_min_margin": tokens.min().item(),
        "continuation_frac_margin_gt_tau": (tokens > tau).double().mean().item(),
        "continuation_valid_tokens": tokens.numel(),
        "hinge_margin_loss": hinge(tokens, tau).mean().item(),
        # the authors' code reports the buffered form only where rho is given
        "buffered_hinge_margin_loss": buffered_hinge(tokens, tau, method.eta).mean().item()
        if method.tau is None
        else 0.0,
        "suffix_tokens_mean": active.sum(1).double().mean().item(),
    }
    n, suffix = mask.sum(1), active.sum(1)
    whole = torch.zeros_like(n, dtype=torch.bool)
    if method.cut is not None:
        whole = n < method.min_prefix + method.min_suffix
    cut = method.cut is not None and not bool(whole.all())
    found["cut_ratio_mean"] = ((n - suffix)[~whole] / n[~whole]).double().mean().item() if cut else 0.0
    found["fallback_count"] = int(whole.sum())
    exactly(expected, set(found), "stats")
    for name, value in found.items():
        check(name, value, expected[name])


def probe(case: Params, inputs: Params, check: Check) -> None:
    exactly(
        case,
        {"forget_batches", "source_indices", "window_indices", "params", "tau_effective", "expected"},
        "a case of probe",
    )
    params, expected = case["params"], case["expected"]
    names = {"source", "k", "mode", "delta", "beta", "rho", "eta", "penalty", "lo", "hi", "mp", "ms", "salt", "alpha"}
    exactly(params, names, "parameters")
    margin = Margin(params["k"], params["beta"], SOURCES[params["source"]], params["delta"])  # type: ignore[arg-type]
    assert params["mode"] in (None, "topk", "delta") and params["penalty"] in ("full", "continuation")
    cut = (params["lo"], params["hi"]) if params["penalty"] == "continuation" else None
    settings = ViolationSettings(
        margin, tau_of(params["rho"]), params["eta"], cut, params["mp"], params["ms"], params["salt"]
    )
    check("tau", settings.tau, case["tau_effective"])
    margins, active, everything = [], [], []
    for name in case["forget_batches"]:
        stored = Stored(inputs["batches"][name])
        step = stored.step()
        margins += list(margin(step.forget.logits.detach(), stored.batch.targets, step.reference.forget.logits))
        everything += list(stored.batch.mask)
        active += list(settings.active(stored.batch.mask, case["source_indices"][name], case["window_indices"][name]))
    pad: Callable[[list[Tensor]], Tensor] = lambda rows: pad_sequence(rows, batch_first=True)  # noqa: E731
    values = violation_values(pad(margins), pad(active), settings)
    found = probe_values(values, pad(margins), pad(active), pad(everything), settings)
    found |= retain_values(inputs, margin, found)
    alpha, rho = params["alpha"], params["rho"]
    found["forget_cont_log_exact_continuation_bound"] = log_reproduction_bound(alpha, values["mean_length"], rho)
    found["forget_cont_exact_continuation_bound"] = math.exp(found["forget_cont_log_exact_continuation_bound"])
    rule = Violation(alpha=alpha)
    bounded = {name for name in expected if name.startswith("hoeffding_ucb_eval_index_")}
    exactly(expected, set(found) | bounded | {"stop_without_ucb"}, "expected values")
    for name, value in found.items():
        check(name, value, expected[name])
    for name in bounded:
        look, bound = int(name.rsplit("_", 1)[1]), expected[name]
        exactly(bound, {"delta", "ucb", "delta_j"}, name)
        ucb, delta_j = hoeffding_ucb(values["violation_rate"], int(values["rows"]), bound["delta"], look)
        check("ucb", ucb, bound["ucb"])
        check("delta_j", delta_j, bound["delta_j"])
    assert rule.holds({**values, "alpha": alpha}) == expected["stop_without_ucb"]


def probe_values(
    values: Params, margins: Tensor, active: Tensor, everything: Tensor, settings: ViolationSettings
) -> Params:
    """What the authors' probe reports: our readings under their names; what only they have, from our margins."""
    rates = violation_rate(margins, settings.tau, active)
    rows = (margins.masked_fill(~everything, 0.0).sum(1) / everything.sum(1)).numpy()
    return {
        "per_example_violation_rates": rates.numpy(),
        "forget_continuation_per_example_violation_mean": values["violation_rate"],
        "forget_continuation_per_example_count": values["rows"],
        "forget_continuation_token_frac_margin_gt_tau": values["token_violation_rate"],
        "forget_continuation_surrogate_mean": values["surrogate"],
        "forget_continuation_mean_margin": values["mean_margin"],
        "forget_continuation_frac_margin_gt_0": violation_rate(margins, 0.0, active).double().mean().item(),
        "forget_continuation_frac_margin_gt_tau_q90": np.quantile(rates.double().numpy(), 0.9),
        "forget_continuation_logsigmoid_sum_mean": values["log_share"],
        "forget_cont_mean_len": values["mean_length"],
        "forget_mean_margin": rows.mean(),
        "forget_mean_margin_se": rows.std(ddof=1) / math.sqrt(len(rows)),
    }


def retain_values(inputs: Params, margin: Margin, found: Params) -> Params:
    stored = Stored(inputs["batches"]["retain"])
    step = stored.step()
    margins = margin(step.retain.logits.detach(), stored.batch.targets, step.reference.retain.logits)
    rows = (margins.masked_fill(~stored.batch.mask, 0.0).sum(1) / stored.batch.lengths).numpy()
    error = math.hypot(rows.std(ddof=1) / math.sqrt(len(rows)), found["forget_mean_margin_se"])
    gap = rows.mean() - found["forget_mean_margin"]
    divergence = REGULARISERS["kl"](step, methods.get("npo").build()).mean()
    return {
        "retain_mean_margin": rows.mean(),
        "retain_forget_margin_gap": gap,
        "retain_forget_margin_gap_lower_bound": gap - 1.96 * error,
        "retain_probe_kl": divergence.item(),
    }


def ucb(case: Params, inputs: Params, check: Check) -> None:
    exactly(case, {"mean", "n", "delta", "eval_index", "alpha", "expected"}, "a case of hoeffding_ucb")
    expected = case["expected"]
    exactly(expected, {"ucb", "delta_j", "stop_with_ucb", "stop_plain"}, "expected values")
    bound, delta_j = hoeffding_ucb(case["mean"], case["n"], case["delta"], case["eval_index"])
    check("ucb", bound, expected["ucb"])
    check("delta_j", delta_j, expected["delta_j"])
    rule, values = Violation(alpha=case["alpha"]), {"violation_rate": case["mean"], "alpha": case["alpha"]}
    assert rule.holds(values) == expected["stop_plain"]
    assert rule.holds({**values, "ucb": bound}) == expected["stop_with_ucb"]


def retain(case: Params, inputs: Params, check: Check) -> None:
    assert case.keys() - {"expected_grad_wrt_policy_logits"} == {"batch", "expected"}, f"unknown fields in {set(case)}"
    names = {"kl_teacher_student": "kl", "cross_entropy": "nll"}
    gradients = case.get("expected_grad_wrt_policy_logits", {})
    assert gradients.keys() <= names.keys()
    exactly(case["expected"], set(names), "expected values")
    for theirs, ours in names.items():
        stored, method = Stored(inputs["batches"][case["batch"]]), methods.get("masc").build(retain=ours)
        loss = method.retain_loss(stored.step()).mean()
        check(theirs, loss.item(), case["expected"][theirs])
        if theirs in gradients:
            loss.backward()  # type: ignore[no-untyped-call]
            check("gradient", stored.policy.grad, gradients[theirs])


def simnpo(case: Params, inputs: Params, check: Check) -> None:
    exactly(case, {"batch", "beta", "delta", "expected"}, "a case of simnpo")
    method = methods.get("simnpo").build(beta=case["beta"], delta=case["delta"])
    loss = method.forget_loss(Stored(inputs["batches"][case["batch"]]).step()).mean()
    check("loss", loss.item(), case["expected"])


SECTIONS: dict[str, Callable[[Params, Params, Check], None]] = {
    "token_margins": token_margins,
    "tau": tau,
    "buffered_hinge": hinges,
    "continuation_mask": cuts,
    "forget_penalty": forget_penalty,
    "probe": probe,
    "hoeffding_ucb": ucb,
    "retain": retain,
    "simnpo": simnpo,
}


@pytest.mark.parametrize(("section", "case", "inputs", "tolerance"), CASES)
def test_masc(section: str, case: Params, inputs: Params, tolerance: Params) -> None:
    assert section in SECTIONS, f"unknown section '{section}'"
    SECTIONS[section](case, inputs, Check(tolerance))


def test_a_fixed_cut_is_the_formula() -> None:
    """u = h / (2^32 - 1), lo + u (hi - lo): by hand for one row."""
    mixed = ((3 + 1) * 1000003 ^ (2 + 1) * 9176 ^ (1 + 1) * 2654435761) % 2**32
    assert fixed_unit(3, 2, 1) == mixed / (2**32 - 1)
    mask = torch.ones(1, 10, dtype=torch.bool)
    assert int(continuation(mask, spread([0.5], (0.2, 0.6)), 1, 1).sum()) == 6
