"""Losses and gradients against values obtained by running the public implementations (`losses_*.json`).

Every case goes through a registered method: its class, protocol and retain regulariser, fed with the stored logits. A
case this file does not know fails; none is skipped. `UNLEARNBENCH_GOLDEN_DIR` names another folder of such files.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from unlearnbench.method import Method, State, Step, View, Views, methods
from unlearnbench.text import Batch

FOLDER = Path(os.environ.get("UNLEARNBENCH_GOLDEN_DIR", Path(__file__).parent / "data"))
RELATIVE, ABSOLUTE = 1e-6, 1e-11

CASE_FIELDS = {
    "id",
    "method",
    "source",
    "params",
    "expected",
    "note",
    "control_vector",
    "not_from_reference",
    "expected_grad_wrt_policy_logits",
    "expected_grad_wrt_policy_activations",
}
EXPECTED_FIELDS = {"loss", "forget_loss", "retain_loss", "loss_at_steps", "retain_preference_after_steps"}


@dataclass
class Case:
    """One case with the inputs that belong to it."""

    data: dict[str, Any]
    batches: dict[str, dict[str, Any]]
    activations: dict[str, dict[str, Any]] | None


def load() -> list[Any]:
    """All cases of all files, as pytest parameters."""
    found = []
    for file in sorted(FOLDER.glob("losses_*.json")):
        content = json.loads(file.read_text())
        sets = content["sets"].values() if "sets" in content else [content]
        for part in sets:
            for data in part["cases"]:
                case = Case(data, part["inputs"]["batches"], content.get("activations"))
                found.append(pytest.param(case, id=f"{file.stem}:{data['id']}"))
    return found


CASES = load()


def test_there_are_cases() -> None:
    assert CASES, f"no losses_*.json in {FOLDER}"


# -- which method, protocol and retain regulariser a case is about ---------------------------------------------

RETAIN_TYPES = {"NLL": "nll", "KL": "kl-all", "EMBED_DIFF": "hidden"}


def build(data: dict[str, Any]) -> Method:
    """The method of a case. Raises AssertionError for an id, parameter or field that is not known here."""
    unknown = data.keys() - CASE_FIELDS
    assert not unknown, f"unknown fields of a case: {unknown}"
    unknown = data["expected"].keys() - EXPECTED_FIELDS
    assert not unknown, f"unknown expected values: {unknown}"
    convention, kind = data["id"].split(".")[:2]
    params = dict(data["params"])
    makers = {"ou": open_unlearning, "npo": npo_code, "tofu": npo_code, "simnpo": simnpo_tofu}
    makers |= {"muse": muse, "simnpo_muse": simnpo_muse, "simnpo_wmdp": simnpo_wmdp}
    assert convention in makers, f"unknown convention '{convention}'"
    name, values = makers[convention](kind, params)
    assert not params, f"parameters without a meaning here: {params}"
    return methods.get(name).build(**values)


def weighted(values: dict[str, Any], forget: float, retain: float, regulariser: str) -> dict[str, Any]:
    return {**values, "forget_weight": forget, "retain_weight": retain, "retain": regulariser}


def open_unlearning(kind: str, params: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    if kind == "grad_ascent":
        return "ga", {}
    if kind == "ceu":
        return "ceu", {"skip": params.pop("ignore_first_n_answer_tokens"), "protocol": "open-unlearning"}
    retain_type = params.pop("retain_loss_type")
    common = weighted({}, params.pop("gamma"), params.pop("alpha"), RETAIN_TYPES[retain_type])
    if kind == "grad_diff":
        return "ga", common
    if kind in ("npo", "dpo", "wga"):
        return kind, {**common, "beta": params.pop("beta")}
    if kind == "simnpo":
        values = {"beta": params.pop("beta"), "delta": params.pop("delta"), "protocol": "open-unlearning"}
        return kind, {**common, **values}
    if kind == "satimp":
        return kind, {**common, "beta1": params.pop("beta1"), "beta2": params.pop("beta2")}
    if kind == "undial":
        return kind, {**common, "beta": params.pop("beta"), "protocol": "open-unlearning"}
    if kind == "rmu":
        return kind, {
            **common,
            "steering_coefficient": params.pop("steering_coeff"),
            "protocol": "open-unlearning",
        }
    if kind == "pdu":
        assert params.pop("dual_update_upon") == "step"
        values = {"epsilon": params.pop("retain_loss_eps"), "dual_step": params.pop("dual_step_size")}
        values["primal_dual"] = params.pop("primal_dual")
        return kind, {**common, **values, "protocol": "open-unlearning"}
    raise AssertionError(f"unknown method of OpenUnlearning: '{kind}'")


def npo_code(kind: str, params: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Of the NPO and TOFU repositories."""
    loss_type = params.pop("loss_type")
    assert loss_type == kind
    if kind == "grad_ascent":
        return "ga", {}
    if kind == "grad_ascent_forgetKL":
        return "ga", {"protocol": "forget-kl"}
    if kind in ("grad_diff", "KL"):
        return "ga", {"retain": "nll" if kind == "grad_diff" else "kl-all"}
    name, _, suffix = kind.partition("_")
    assert name in ("npo", "dpo"), f"unknown loss type '{kind}'"
    values: dict[str, Any] = {"beta": params.pop("beta")}
    values["forget_weight"] = params.pop("npo_coeff", 1.0)
    if suffix:
        values["retain"] = {"grad_diff": "nll", "KL": "kl-all"}[suffix]
        values["retain_weight"] = params.pop(f"{suffix}_coeff", 1.0)
    return name, values


def simnpo_tofu(kind: str, params: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    assert params.pop("loss_type") == kind and kind in ("simnpo", "simnpo_grad_diff"), f"unknown loss type '{kind}'"
    values = {"beta": params.pop("beta"), "delta": params.pop("gamma"), "protocol": "open-unlearning"}
    if kind == "simnpo":
        return "simnpo", weighted(values, 1.0, 1.0, "none")
    return "simnpo", weighted(values, params.pop("npo_coeff"), params.pop("grad_diff_coeff"), "nll")


def muse(kind: str, params: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    assert params.pop("loss_type") == kind
    name, _, suffix = kind.partition("_")
    assert name in ("ga", "npo"), f"unknown loss type '{kind}'"
    values: dict[str, Any] = {"retain": {"": "none", "gdr": "nll", "klr": "kl-muse"}[suffix]}
    return name, {**values, "beta": params.pop("beta"), "protocol": "muse"} if name == "npo" else values


def simnpo_muse(kind: str, params: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    assert params.pop("loss_type") == kind and kind in ("simnpo", "simnpo_gdr"), f"unknown loss type '{kind}'"
    values = {"beta": params.pop("beta"), "delta": params.pop("gamma") / 1.0, "protocol": "muse"}
    forget, retain = params.pop("npo_coeff"), params.pop("coeff")
    return "simnpo", weighted(values, forget, retain, "nll") if kind == "simnpo_gdr" else weighted(
        values, 1.0, 1.0, "none"
    )


def simnpo_wmdp(kind: str, params: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    if kind == "GA":
        return "ga", {}
    retain = {"forget_weight": 1.0, "retain": "nll", "retain_weight": params.pop("gamma")}
    if kind == "GA_FT":
        return "ga", retain
    assert kind in ("NPO_FT", "SimNPO_FT"), f"unknown method '{kind}'"
    return kind.removesuffix("_FT").lower(), {**retain, "beta": params.pop("beta"), "protocol": "wmdp"}


# -- running a case --------------------------------------------------------------------------------------------


class Stored:
    """Views whose forward passes answer from stored logits and activations in float64."""

    def __init__(self, case: Case):
        self.leaves: dict[tuple[str, str, str], Tensor] = {}
        tensor = torch.tensor
        for part, stored in case.batches.items():
            for role in ("policy", "reference"):
                logits = tensor(stored[f"{role}_logits"], dtype=torch.float64)
                self.leaves[role, part, "logits"] = logits.requires_grad_(role == "policy")
        for role, parts in (case.activations or {}).items():
            for part, values in parts.items():
                hidden = tensor(values, dtype=torch.float64)
                self.leaves[role, part, "hidden"] = hidden.requires_grad_(role == "policy")
        self.batches = {
            part: Batch.from_labels(
                tensor(stored["input_ids"]),
                tensor(stored["labels"]),
                tensor(stored["attention_mask"]),
                [f"{part}{i}" for i in range(len(stored["input_ids"]))],
            )
            for part, stored in case.batches.items()
        }

    def view(self, role: str, part: str) -> View | None:
        if part not in self.batches:
            return None

        def forward(batch: Batch, kind: str, layer: int | float | None) -> Tensor:
            if kind == "hidden":
                return self.leaves[role, part, "hidden"]
            logits = self.leaves[role, part, "logits"]
            if kind == "full":
                return logits
            return logits.gather(1, batch.positions.unsqueeze(-1).expand(-1, -1, logits.shape[-1]))

        return View(self.batches[part], forward)

    def step(self, state: State) -> Step:
        policy, frozen = (
            Views(self.view(role, "forget"), self.view(role, "retain"), self.view(role, "alternate"))
            for role in ("policy", "reference")
        )
        return Step(policy, frozen, state)


def initial_state(method: Method, data: dict[str, Any]) -> State:
    """What `prepare` would make; RMU's control vector is part of the case."""
    if "control_vector" in data:
        return State(control=torch.tensor(data["control_vector"], dtype=torch.float64))
    if method.registered_name == "pdu":
        return method.prepare(None)  # type: ignore[arg-type]
    return State()


def close(value: float | Tensor, expected: Any, what: str, relative: float = RELATIVE) -> None:
    wanted = torch.as_tensor(expected, dtype=torch.float64)
    torch.testing.assert_close(
        torch.as_tensor(value).double(), wanted, rtol=relative, atol=ABSOLUTE, msg=lambda m: f"{what}: {m}"
    )


def total(method: Method, state: State, forget: Tensor, retain: Tensor | None) -> Tensor:
    forget_weight, retain_weight = method.weights(state)
    return forget_weight * forget + (retain_weight * retain if retain is not None else 0.0)


@pytest.mark.parametrize("case", CASES)
def test_loss_and_gradient(case: Case) -> None:
    data, expected = case.data, case.data["expected"]
    method = build(data)
    stored = Stored(case)
    state = initial_state(method, data)
    step = stored.step(state)
    forget = method.forget_loss(step).mean()
    retain = method.retain_loss(step).mean() if method.retain != "none" else None
    loss = total(method, state, forget, retain)
    close(loss, expected["loss"], "loss")
    if "forget_loss" in expected:
        close(forget, expected["forget_loss"], "forget loss")
    if "retain_loss" in expected:
        assert retain is not None
        close(retain + getattr(method, "epsilon", 0.0), expected["retain_loss"], "retain loss")
    gradients(stored, data, loss)
    if "loss_at_steps" in expected:
        in_a_row(method, stored, expected)
    if "not_from_reference" in data:
        right_form(method, step, data["not_from_reference"])


def gradients(stored: Stored, data: dict[str, Any], loss: Tensor) -> None:
    """The gradient of the total loss with respect to the stored policy logits and activations."""
    wanted = {(part, "logits"): g for part, g in data.get("expected_grad_wrt_policy_logits", {}).items()}
    wanted |= {(part, "hidden"): g for part, g in data.get("expected_grad_wrt_policy_activations", {}).items()}
    if not wanted:
        return
    loss.backward()  # type: ignore[no-untyped-call]
    for (part, kind), gradient in wanted.items():
        leaf = stored.leaves["policy", part, kind]
        assert leaf.grad is not None, f"no gradient reaches the {kind} of {part}"
        close(leaf.grad, gradient, f"gradient of {part}")


def in_a_row(method: Method, stored: Stored, expected: dict[str, Any]) -> None:
    """Several optimiser steps on the same inputs: the dual variable moves."""
    state = initial_state(method, {})
    for loss, preference in zip(expected["loss_at_steps"], expected["retain_preference_after_steps"], strict=True):
        step = stored.step(state)
        forget, retain = method.forget_loss(step).mean(), method.retain_loss(step).mean()
        close(total(method, state, forget, retain), loss, "loss in a row")
        method.after_step(state, forget.item(), retain.item())
        close(method.weights(state)[1], preference, "dual variable")


def right_form(method: Method, step: Step, values: dict[str, float]) -> None:
    """The value of the right formula, where the reference computes another: protocol `ours`."""
    ours = method.model_copy(update={"protocol": "ours"})
    for name, value in values.items():
        if name in ("forget_loss_labelled_positions_only", "forget_loss_mean_of_per_sample_means"):
            close(ours.forget_loss(step).mean(), value, name)
        elif name == "retain_loss_mean_of_per_sample_means":
            close(ours.retain_loss(step).mean(), value, name)
        else:
            raise AssertionError(f"unknown value '{name}'")
