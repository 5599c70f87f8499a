"""The retain regularisers: which of them are divergences, and what they are averaged over."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from unlearnbench.method import RETAIN, Step, View, Views, methods
from unlearnbench.retain import REGULARISERS
from unlearnbench.text import Batch

B, T, V = 3, 7, 11
LABELS = torch.tensor([[-100, -100, 3, 4, 5, 6, 7], [-100, 1, 2, 3, -100, -100, -100], [-100] * 5 + [8, 9]])
MASK = torch.tensor([[1] * 7, [1] * 4 + [0] * 3, [1] * 7])


def draw(seed: int) -> Tensor:
    return 3 * torch.randn(B, T, V, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def view(full: Tensor, labels: Tensor = LABELS, mask: Tensor = MASK) -> View:
    batch = Batch.from_labels(labels.clamp(min=0), labels, mask, [f"row{i}" for i in range(len(labels))])

    def forward(batch: Batch, kind: str, layer: int | float | None) -> Tensor:
        return full if kind != "answers" else full.gather(1, batch.positions.unsqueeze(-1).expand(-1, -1, V))

    return View(batch, forward)


def loss(name: str, policy: View, frozen: View) -> float:
    method = methods.get("npo").build(retain=name)
    step = Step(Views(retain=policy), Views(retain=frozen))
    return REGULARISERS[name](step, method).mean().item()


def test_every_regulariser_is_tested_here() -> None:
    assert set(REGULARISERS) == set(RETAIN) - {"none"} == {"nll", "hidden", *DIVERGENCES, "kl-muse"}


DIVERGENCES = ("kl", "kl-all")


@pytest.mark.parametrize("name", DIVERGENCES)
@pytest.mark.parametrize("seed", range(5))
def test_a_divergence_is_zero_for_equal_models_and_else_positive(name: str, seed: int) -> None:
    """B27: both sides are normalised, so that a constant on either side changes nothing."""
    policy, frozen = draw(seed), draw(seed + 100)
    assert loss(name, view(frozen), view(frozen)) == 0
    assert loss(name, view(frozen), view(frozen + 1)) == pytest.approx(0, abs=1e-12)
    assert loss(name, view(frozen - 7), view(frozen)) == pytest.approx(0, abs=1e-12)
    assert loss(name, view(policy), view(frozen)) > 0.1
    assert loss(name, view(policy), view(frozen + 1)) == pytest.approx(loss(name, view(policy), view(frozen)))


@pytest.mark.parametrize("name", [*DIVERGENCES, "nll"])
def test_twice_the_tokens_is_the_same_mean(name: str) -> None:
    """B27: repeated along the time axis (each row's answer stands twice), the loss is the same."""
    policy, frozen = draw(1), draw(2)

    def twice(full: Tensor) -> View:
        # the label of a position is predicted one place before it, so the second copy starts with a prompt token
        return view(torch.cat([full, full], 1), torch.cat([LABELS, LABELS], 1), torch.cat([MASK, MASK], 1))

    assert loss(name, twice(policy), twice(frozen)) == pytest.approx(loss(name, view(policy), view(frozen)))


@pytest.mark.parametrize("name", ["kl", "nll", "hidden"])
def test_only_answer_tokens_count(name: str) -> None:
    """What the models say where no answer token is predicted (or stands, of hidden states) changes nothing."""
    policy, frozen = draw(1), draw(2)
    counted = torch.zeros(B, T, dtype=torch.bool)
    if name == "hidden":
        counted = LABELS != -100
    else:
        counted[:, :-1] = LABELS[:, 1:] != -100
    noise = draw(3).masked_fill(counted.unsqueeze(-1), 0.0)
    assert loss(name, view(policy + noise), view(frozen)) == pytest.approx(loss(name, view(policy), view(frozen)))
    assert loss(name, view(policy + draw(3)), view(frozen)) != pytest.approx(loss(name, view(policy), view(frozen)))


def test_the_direction_is_reference_against_policy() -> None:
    """B27: sum over the vocabulary of p_ref (log p_ref - log p), by hand."""
    policy, frozen = draw(1), draw(2)
    p, q = frozen.softmax(-1), policy.softmax(-1)
    by_hand = (p * (p.log() - q.log())).sum(-1)
    counted = LABELS[:, 1:] != -100
    assert loss("kl", view(policy), view(frozen)) == pytest.approx(by_hand[:, :-1][counted].mean().item())
    assert loss("kl-all", view(policy), view(frozen)) == pytest.approx(by_hand.mean().item())


def test_the_published_form_of_muse_is_no_divergence() -> None:
    """B27: raw logits on both sides: a constant changes it, and it can be negative. So it declares its breaks."""
    frozen = draw(2)
    assert loss("kl-muse", view(frozen + 1), view(frozen)) < 0
    assert methods.get("npo").build(retain="kl-muse").broken_invariants == {"shift", "padding"}


def test_hidden_states_are_averaged_over_coordinates_tokens_and_rows() -> None:
    policy, frozen = draw(1), draw(2)
    distance = (policy - frozen).square().mean(-1)
    rows = [distance[i][LABELS[i] != -100].mean().item() for i in range(B)]
    assert loss("hidden", view(policy), view(frozen)) == pytest.approx(sum(rows) / B)
