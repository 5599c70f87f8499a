"""Every registered method on every supported architecture, all weights and LoRA: two steps, and a resume after one.

A new method, and a new architecture of `testing.tiny`, are found here by themselves. The whole matrix runs in `make
test-full`; `make test` has all methods on one architecture and all architectures on `FOUR`.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from unlearnbench.errors import UserError
from unlearnbench.method import methods
from unlearnbench.models import frozen_copy
from unlearnbench.registry import Entry
from unlearnbench.testing import runs
from unlearnbench.testing.tiny import ARCHITECTURES, tiny_encoder, tiny_rows, tiny_target
from unlearnbench.testing.variants import quick
from unlearnbench.text import collate

#: A loss on answers with the reference's cache, hidden states, full logits of the policy, and a model of its own.
FOUR = ("npo+klr", "rmu", "masc", "whp")


def matrix() -> list[Any]:
    cells = []
    for architecture in ARCHITECTURES:
        for entry in methods:
            for lora in (False, True):
                often = architecture == "llama" or entry.name in FOUR
                name = f"{architecture}-{entry.name}-{'lora' if lora else 'full'}"
                marks = [] if often else [pytest.mark.slow]
                cells.append(pytest.param(entry, architecture, lora, id=name, marks=marks))
    return cells


def test_the_matrix_is_whole() -> None:
    """The architectures that are promised, and every registered name."""
    promised = {"llama", "qwen2", "qwen3", "gpt2", "gpt-neox", "phi3", "gemma2", "mistral", "smollm2"}
    assert promised <= set(ARCHITECTURES)
    assert len(matrix()) == 2 * len(ARCHITECTURES) * len(methods.names())
    assert set(FOUR) <= set(methods.names())


@pytest.mark.parametrize(("entry", "architecture", "lora"), matrix())
def test_two_steps_and_a_resume(entry: Entry, architecture: str, lora: bool) -> None:
    method = quick(entry)
    run = runs.start(method, architecture, lora)
    runs.check_steps(run)
    runs.check_resume(run, lambda hooks: runs.start(method, architecture, lora, hooks))


# -- RMU's layer -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("architecture", list(ARCHITECTURES))
def test_a_hidden_layer_is_found_by_index_and_by_share_of_the_depth(architecture: str) -> None:
    """The output of a block, as transformers reports it, whichever way it is named; blocks above it are not run."""
    lm = frozen_copy(tiny_target(architecture))
    batch = collate(tiny_encoder().rows(tiny_rows(3)).rows, tiny_encoder().pad_id)
    inputs = {"attention_mask": batch.attention_mask, "position_ids": batch.position_ids}
    with torch.no_grad():
        states = lm.hf(batch.input_ids, **inputs, output_hidden_states=True).hidden_states
        depth, ran = len(lm.layers), list[int]()
        for i, block in enumerate(lm.layers):
            block.register_forward_hook(lambda *_, i=i: ran.append(i))
        for index in range(depth - 1):  # the last of these is after the final norm in transformers
            hidden = lm(batch.input_ids, batch.attention_mask, batch.position_ids, hidden_layer=index)
            assert ran == list(range(index + 1))
            ran.clear()
            torch.testing.assert_close(hidden, states[index + 1])
            share = lm(batch.input_ids, batch.attention_mask, batch.position_ids, hidden_layer=(index + 1) / depth)
            assert torch.equal(hidden, share)
            ran.clear()


@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
@pytest.mark.parametrize("architecture", list(ARCHITECTURES))
def test_rmu_fails_with_the_pattern_that_matches_nothing(architecture: str, lora: bool) -> None:
    """B14: parameters by a pattern of another architecture, or a layer that is not there: an error, and no run."""
    with pytest.raises(UserError, match=r"no parameter matches the pattern 'model\\.blocks.*'; there are for example "):
        runs.start(methods.get("rmu").build(parameters=r"model\.blocks\..*"), architecture, lora)
    with pytest.raises(UserError, match=r"no decoder layer 99: the model has \d, numbered from 0 to \d"):
        runs.start(methods.get("rmu").build(layer=99), architecture, lora)
