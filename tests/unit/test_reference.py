"""The frozen reference, and modes: nothing that only looks at a model changes it, and looking twice sees the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from unlearnbench.attacks.base import attacks
from unlearnbench.benchmarks.base import Benchmark
from unlearnbench.evaluation import evaluate
from unlearnbench.generation import generate, sample_texts
from unlearnbench.language_model import LanguageModel
from unlearnbench.method import methods
from unlearnbench.models import add_lora, frozen_copy, weights_hash
from unlearnbench.probing import make_prober
from unlearnbench.reference import Reference, run, token_nll
from unlearnbench.requests import Generate, Score
from unlearnbench.scoring import score
from unlearnbench.settings import LoraSettings
from unlearnbench.testing import runs
from unlearnbench.testing.tiny import (
    ARCHITECTURES,
    FORGET_ROWS,
    RETAIN_ROWS,
    tiny_encoder,
    tiny_lm,
    tiny_target,
)
from unlearnbench.text import collate

ENCODER = tiny_encoder()
ENCODED = ENCODER.rows(FORGET_ROWS).rows
BATCH = collate(ENCODED, ENCODER.pad_id)


def restless(architecture: str = "llama") -> LanguageModel:
    """A model in training mode whose adapter does something, half of it dropped at random."""
    lm = add_lora(frozen_copy(tiny_target(architecture)), LoraSettings(r=2, dropout=0.5), seed=0)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in lm.named_parameters():
            if "lora_B" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return lm.train()


def probe(lm: LanguageModel) -> dict[str, float]:
    method = methods.get("masc").build(alternatives="reference", stop={"rule": "violation", "retain_kl_below": 1.0})
    generator = torch.Generator().manual_seed(0)
    prober = make_prober(method, ENCODER, FORGET_ROWS, RETAIN_ROWS, (), generator, Reference(lm))
    assert prober is not None
    return prober.check(lm, 2).values


def score_all(lm: LanguageModel) -> list[Any]:
    answers, _ = score(lm, ENCODER, [Score(row.prompt, row.answer) for row in FORGET_ROWS])
    return [scores.logp for scores in answers.values()]


def evaluated(lm: LanguageModel) -> dict[str, Any]:
    data = Benchmark({"forget": FORGET_ROWS, "retain": RETAIN_ROWS})
    data.name = "tiny"
    found = evaluate({"model": lm}, ENCODER, data, ["forget_exact", "forget_prob"])
    return {name: value.score for name, value in found.values.items()}


LOOKS: dict[str, Callable[[LanguageModel], Any]] = {
    "reference": lambda lm: Reference(lm).forward(BATCH, "answers", None),
    "hidden states of the reference": lambda lm: Reference(lm).forward(BATCH, "hidden", 0.5),
    "cached log-probabilities": lambda lm: list(token_nll(lm, ENCODED, ENCODER.pad_id).values()),
    "stop rule": probe,
    "scores": score_all,
    "metrics": evaluated,
    "greedy answers": lambda lm: [
        text.text for text in generate(lm, ENCODER, [Generate("What is number 1?", 8)]).values()
    ],
    "samples": lambda lm: sample_texts(
        lm, ENCODER, ["What is number 1?"], n=2, max_new_tokens=8, temperature=1, seed=0
    ),
}


@pytest.mark.parametrize("look", LOOKS)
def test_looking_twice_sees_the_same_and_changes_no_mode(look: str) -> None:
    """B35: dropout is off wherever a model is looked at, and every module is in its former mode afterwards."""
    lm = restless()
    next(iter(lm.modules())).eval()
    for module in list(lm.modules())[::2]:
        module.training = True
    modes = [module.training for module in lm.modules()]
    first = LOOKS[look](lm)
    assert [module.training for module in lm.modules()] == modes and True in modes and False in modes
    second = LOOKS[look](lm)
    if isinstance(first, torch.Tensor):
        first, second = [first], [second]
    if isinstance(first, list) and not isinstance(first[0], (str, list)):
        assert all(np.array_equal(np.asarray(a), np.asarray(b)) for a, b in zip(first, second, strict=True))
    else:
        assert first == second
    with torch.no_grad():
        lm.train()
        torch.manual_seed(0)
        draws = [run(lm, BATCH, "answers", None) for _ in range(2)]
    assert not torch.equal(*draws), "this model has no dropout to switch off"


@pytest.mark.parametrize("architecture", list(ARCHITECTURES))
def test_the_adapter_switched_off_is_the_target(architecture: str) -> None:
    """B35, B59: of a LoRA model in training mode, to the last bit."""
    target, lm = tiny_target(architecture), restless(architecture)
    reference = Reference(lm)
    assert reference.kind == "adapter off"
    with torch.no_grad():
        assert torch.equal(reference.forward(BATCH, "answers", None), run(target, BATCH, "answers", None))
        assert not torch.equal(run(lm.eval(), BATCH, "answers", None), run(target, BATCH, "answers", None))


@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
@pytest.mark.parametrize("architecture", list(ARCHITECTURES))
def test_the_reference_stays_what_the_target_was(
    architecture: str, lora: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B59: after two steps it answers as before, bit for bit, and shares no weight with the policy, which moved."""
    made: list[Reference] = []
    init = Reference.__init__

    def remember(self: Reference, lm: LanguageModel) -> None:
        init(self, lm)
        made.append(self)

    monkeypatch.setattr(Reference, "__init__", remember)
    finished = runs.start(methods.get("npo+klr").build(), architecture, lora)
    (reference,) = made
    target = tiny_target(architecture)
    with torch.no_grad():
        assert torch.equal(reference.forward(BATCH, "answers", None), run(target, BATCH, "answers", None))
        assert not torch.equal(run(finished.lm, BATCH, "answers", None), run(target, BATCH, "answers", None))
    pointers = {p.data_ptr() for p in finished.lm.parameters()}
    assert lora == bool(pointers & {p.data_ptr() for p in reference._lm.parameters()})
    policy = [line["forget_loss"] for line in finished.lines if "forget_loss" in line]
    assert policy[0] != policy[1]


def test_quantised_and_adapted_models_are_copied_whole() -> None:
    """B59: a 4-bit model and a model with an adapter: another memory, the same answers, the original untouched."""
    quantised, _ = attacks.get("4bit").build().apply(frozen_copy(tiny_lm(hidden_size=64, intermediate_size=64)))
    for lm in (quantised, restless().eval()):
        before = weights_hash(lm)
        twin = frozen_copy(lm)
        assert not {p.data_ptr() for p in lm.parameters()} & {p.data_ptr() for p in twin.parameters()}
        with torch.no_grad():
            assert torch.equal(run(twin, BATCH, "answers", None), run(lm, BATCH, "answers", None))
            for parameter in twin.parameters():
                parameter.zero_()
        assert weights_hash(lm) == before
