"""What the losses without a golden case come to on a batch: sign, positions, and the mean over rows or tokens, worked
out with plain loops."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from unlearnbench.method import State, Step, View, Views, methods
from unlearnbench.text import Batch

LENGTHS = (1, 3)  #: answer tokens of the two rows, behind a prompt of two tokens
VOCABULARY = 4


def two_rows() -> tuple[Batch, torch.Tensor]:
    """Two rows, and logits [2, 5, V] at every position."""
    ids = torch.tensor([[0, 1, 2, 3, 3], [0, 1, 3, 1, 2]])
    labels = torch.full_like(ids, -100)
    for row, length in enumerate(LENGTHS):
        labels[row, 2 : 2 + length] = ids[row, 2 : 2 + length]
    attention = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
    logits = torch.randn(2, 5, VOCABULARY, generator=torch.Generator().manual_seed(3), dtype=torch.float64) * 2
    return Batch.from_labels(ids, labels, attention, ["a", "b"]), logits


def at_answers(batch: Batch, logits: torch.Tensor) -> torch.Tensor:
    """The logits [B, L, V] that predict the answer tokens, as a view asks for them."""
    room = torch.zeros(2, max(LENGTHS), VOCABULARY, dtype=logits.dtype)
    for row, length in enumerate(LENGTHS):
        room[row, :length] = logits[row, 1 : 1 + length]
    return room


def loss(name: str, state: State | None = None, **values: Any) -> float:
    batch, logits = two_rows()
    answers = at_answers(batch, logits)
    view = View(batch, lambda b, kind, layer: logits if kind == "full" else answers)
    return methods.get(name).build(**values).forget_loss(Step(Views(view), state=state or State())).mean().item()


def tokens() -> list[list[tuple[list[float], int]]]:
    """Row -> answer token -> (probabilities of its prediction, the token)."""
    batch, logits = two_rows()
    found = []
    for row, length in enumerate(LENGTHS):
        found.append(
            [
                (logits[row, 1 + i].softmax(-1).tolist(), int(batch.input_ids[row, 2 + i]))
                for i in range(length)
            ]
        )  # fmt: skip
    return found


def mean(values: Any) -> float:
    listed = list(values)
    return sum(listed) / len(listed)


def test_me_is_a_mean_over_rows_and_that_of_its_authors_over_tokens() -> None:
    def gap(p: list[float]) -> float:
        return sum(q * math.log(q * VOCABULARY) for q in p)

    def reverse(p: list[float]) -> float:
        return sum(math.log(1 / VOCABULARY / q) / VOCABULARY for q in p)

    assert loss("me") == pytest.approx(mean(mean(gap(p) for p, _ in row) for row in tokens()))
    assert loss("me", protocol="authors") == pytest.approx(mean(reverse(p) for row in tokens() for p, _ in row))


def test_pdu_flattens_what_predicts_the_answer_tokens_over_all_of_them() -> None:
    _, logits = two_rows()
    flat = [(max(z) - mean(z)) ** 2 for row, n in enumerate(LENGTHS) for z in logits[row, 1 : 1 + n].tolist()]
    assert loss("pdu") == pytest.approx(mean(flat))


@pytest.mark.parametrize("skip", [0, 1, 2])
def test_ceu_leaves_the_first_answer_tokens_alone(skip: int) -> None:
    def cross_entropy(p: list[float], token: int) -> float:
        rest = 1 - p[token]
        return -sum(q / rest * math.log(q) for v, q in enumerate(p) if v != token)

    left = [cross_entropy(p, token) for row in tokens() for p, token in row[skip:]]
    assert loss("ceu", skip=skip) == pytest.approx(mean(left))


def test_whp_is_the_cross_entropy_to_its_labels_over_all_tokens() -> None:
    labels = {
        "a": {"tokens": torch.tensor([[0, 2]]), "q": torch.tensor([[0.9, 0.1]], dtype=torch.float64)},
        "b": {
            "tokens": torch.tensor([[1, 2], [3, 0], [2, 1]]),
            "q": torch.tensor([[0.6, 0.4], [0.5, 0.5], [0.8, 0.2]], dtype=torch.float64),
        },
    }
    expected = [
        -sum(q * math.log(p[k]) for k, q in zip(label["tokens"][i].tolist(), label["q"][i].tolist(), strict=True))
        for row, label in zip(tokens(), labels.values(), strict=True)
        for i, (p, _) in enumerate(row)
    ]
    assert loss("whp", State(labels=labels)) == pytest.approx(mean(expected))
