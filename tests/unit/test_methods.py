"""The losses by hand, and what methods do beside them: prepare, dual variables, parameters, arithmetic on weights."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from unlearnbench.benchmarks.mini.refusals import REFUSALS
from unlearnbench.errors import UserError
from unlearnbench.method import PrepareContext, State, Step, View, Views, methods
from unlearnbench.methods.ceu import ceu
from unlearnbench.methods.dpo import dpo
from unlearnbench.methods.ga import ga
from unlearnbench.methods.masc import masc
from unlearnbench.methods.me import entropy_gap, uniform_gap
from unlearnbench.methods.npo import npo
from unlearnbench.methods.pdu import flatness
from unlearnbench.methods.rmu import steering
from unlearnbench.methods.satimp import satimp
from unlearnbench.methods.simnpo import simnpo
from unlearnbench.methods.undial import undial
from unlearnbench.methods.wga import wga
from unlearnbench.methods.whp import generic_logits, soft_cross_entropy
from unlearnbench.models import add_lora, merge_lora
from unlearnbench.reference import run
from unlearnbench.retain import kl
from unlearnbench.settings import LoraSettings, TrainSettings
from unlearnbench.testing.tiny import ARCHITECTURES, tiny_encoder, tiny_lm, tiny_rows
from unlearnbench.text import Batch, collate


def t(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


# -- losses by hand --------------------------------------------------------------------------------------------


def test_losses_by_hand() -> None:
    ln2 = math.log(2)
    assert ga(t(2.0)).item() == -2.0
    # the answer is e^2 times less likely than under the reference: sigmoid(0.5 * 2)
    assert npo(t(5.0), t(3.0), 0.5).item() == pytest.approx(-2 / 0.5 * math.log(sigmoid(0.5 * 2)))
    assert npo(t(3.0), t(3.0), 0.5).item() == pytest.approx(2 / 0.5 * ln2)
    assert simnpo(t(1.5), 2.0, 0.5).item() == pytest.approx(-math.log(sigmoid(2.0)))
    assert dpo(t(1.0), t(-1.0), 0.5).item() == pytest.approx(-2 / 0.5 * math.log(sigmoid(0.5 * 2)))
    p = 0.25
    assert wga(t(-math.log(p)), 2.0).item() == pytest.approx(p**2 * math.log(p))
    assert satimp(t(-math.log(p)), 2.0, 0.5).item() == pytest.approx(p**2 * 0.75**0.5 * math.log(p))
    assert masc(t(1.0, 0.4, 0.0), tau=0.5, eta=0.25).tolist() == pytest.approx([3.0, 0.6, 0.0])
    assert masc(t(1.0, 0.4), 0.5, 0.25, "hinge").tolist() == pytest.approx([0.5, 0.0])
    assert masc(t(1.0), 0.5, 0.25, "sigmoid", 0.5).item() == pytest.approx(0.5 * sigmoid(1.0))


def test_losses_on_distributions_by_hand() -> None:
    logits = t(math.log(0.5), math.log(0.3), math.log(0.2))
    token = torch.tensor(0)
    # without token 0 the model's own distribution is (0, 0.6, 0.4)
    assert ceu(logits, token).item() == pytest.approx(-(0.6 * math.log(0.3) + 0.4 * math.log(0.2)))
    entropy = -sum(q * math.log(q) for q in (0.5, 0.3, 0.2))
    assert entropy_gap(logits).item() == pytest.approx(math.log(3) - entropy)
    assert uniform_gap(logits).item() == pytest.approx(
        -math.log(3) - (math.log(0.5) + math.log(0.3) + math.log(0.2)) / 3
    )
    assert flatness(t(3.0, 0.0, 0.0)).item() == pytest.approx(4.0)
    # beta = ln 2 halves the weight of token 0 in the reference (0.5, 0.25, 0.25): (1, 1, 1) / 3
    reference = t(math.log(0.5), math.log(0.25), math.log(0.25))
    assert undial(logits, reference, token, math.log(2)).item() == pytest.approx(
        -(math.log(0.5) + math.log(0.3) + math.log(0.2)) / 3
    )
    assert kl(reference, logits).item() == pytest.approx(0.25 * math.log(0.25 / 0.3) + 0.25 * math.log(0.25 / 0.2))
    assert generic_logits(t(1.0, 2.0), t(3.0, 1.0), 0.5).tolist() == [0.0, 2.0]
    q = t(0.75, 0.25)
    assert soft_cross_entropy(logits, torch.tensor([1, 0]), q).item() == pytest.approx(
        -(0.75 * math.log(0.3) + 0.25 * math.log(0.5))
    )


def test_rmu_by_hand() -> None:
    hidden = torch.tensor([[[1.0, 3.0], [0.0, 0.0]], [[2.0, 2.0], [5.0, 1.0]]], dtype=torch.float64)
    labels = torch.tensor([[7, -100], [7, 8]])
    goal = t(1.0, 1.0)
    # row 0: (0 + 4) / 2 = 2 over one token; row 1: 1 and (16 + 0) / 2 = 8 over two
    assert steering(hidden, goal, labels, "ours").mean().item() == pytest.approx((2 + 4.5) / 2)
    assert steering(hidden, goal, labels, "open-unlearning").mean().item() == pytest.approx((2 + 9) / 2 * (1 + 0.5) / 2)


def test_npo_is_about_probabilities_and_simnpo_about_their_mean() -> None:
    """NPO falls as the answer gets less likely; twice the length at one -log p per token changes NPO, not SimNPO."""

    def loss(name: str, **values: Any) -> float:
        logits = torch.zeros(1, values["length"] + 1, 5, dtype=torch.float64)
        logits[..., 3] = values["advantage"]
        ids = torch.full((1, values["length"] + 1), 3)
        labels = ids.clone()
        labels[:, 0] = -100
        batch = Batch.from_labels(ids, labels, torch.ones_like(ids), ["a"])
        view = View(batch, lambda b, kind, layer: logits if kind == "full" else logits[:, :-1])
        frozen = View(batch, lambda b, kind, layer: torch.zeros_like(logits if kind == "full" else logits[:, :-1]))
        method = methods.get(name).build()
        return method.forget_loss(Step(Views(view), Views(frozen))).mean().item()

    assert (
        loss("npo", length=4, advantage=1.0)
        > loss("npo", length=4, advantage=0.0)
        > loss("npo", length=4, advantage=-1)
    )
    assert loss("npo", length=8, advantage=1.0) != pytest.approx(loss("npo", length=4, advantage=1.0))
    assert loss("simnpo", length=8, advantage=1.0) == pytest.approx(loss("simnpo", length=4, advantage=1.0))


# -- prepare ---------------------------------------------------------------------------------------------------


def context(**values: Any) -> PrepareContext:
    defaults: dict[str, Any] = {
        "lm": tiny_lm(),
        "encoder": tiny_encoder(),
        "forget": tiny_rows(6),
        "retain": tiny_rows(9, "retain", 40),
        "generator": torch.Generator().manual_seed(0),
        "generate": lambda prompts, **options: [["Nothing."] for _ in prompts],
        "finetune": lambda rows, settings: tiny_lm(seed=9),
        "settings": TrainSettings(epochs=3, learning_rate=1e-3, max_steps=2),
    }
    return PrepareContext(**{**defaults, **values})


def test_refusals_are_drawn_per_row() -> None:
    state = methods.get("idk-dpo").build(per_row=4).prepare(context())
    again = methods.get("idk-dpo").build(per_row=4).prepare(context())
    assert state == again and set(state["alternates"]) == {row.id for row in tiny_rows(6)}
    drawn = [tuple(chosen) for chosen in state["alternates"].values()]
    assert all(len(set(chosen)) == 4 and set(chosen) <= set(REFUSALS) for chosen in drawn) and len(set(drawn)) == 6


def test_sampled_alternates_never_repeat_the_forget_answer() -> None:
    """Rows that only repeat themselves are sampled again, warmer; those that always do are an error."""
    rows, asked = tiny_rows(3), []

    def generate(prompts: list[str], n: int, max_new_tokens: int, temperature: float, seed: int) -> list[list[str]]:
        asked.append((tuple(prompts), n, max_new_tokens, temperature, seed))
        answers = {row.prompt: row.answer.upper() + " " for row in rows}
        warm = temperature > 1.2
        return [
            [answers[p]] * (n - 1) + ["Another.", " "][:1] if warm or p == rows[0].prompt else [answers[p]] * n
            for p in prompts
        ]

    method = methods.get("altpo").build(temperature=1.0, per_row=3, max_new_tokens=20)
    state = method.prepare(context(forget=rows, generate=generate))
    assert state["alternates"] == {row.id: ["Another."] for row in rows}
    assert asked[0][:4] == (tuple(row.prompt for row in rows), 3, 20, 1.0)
    assert asked[1][:4] == (tuple(row.prompt for row in rows[1:]), 3, 20, 1.5) and asked[0][4] != asked[1][4]

    def stubborn(prompts: list[str], **_: Any) -> list[list[str]]:
        return [[next(row.answer for row in rows if row.prompt == p)] for p in prompts]

    with pytest.raises(UserError, match="3 of 3 forget rows"):
        method.prepare(context(forget=rows, generate=stubborn))


def test_rmu_draws_its_direction_from_its_own_generator() -> None:
    def control(seed: int, **values: Any) -> torch.Tensor:
        generator = torch.Generator().manual_seed(seed)
        vector: torch.Tensor = methods.get("rmu").build(**values).prepare(context(generator=generator))["control"]
        return vector

    assert torch.equal(control(1), control(1)) and not torch.equal(control(1), control(2))
    assert control(1).norm().item() == pytest.approx(2.0) and control(1).min() >= 0
    assert torch.allclose(control(1, steering_coefficient=100.0), 50 * control(1))


def test_pdu_takes_its_bound_from_the_target() -> None:
    lm, encoder, rows = tiny_lm(dtype=torch.float64), tiny_encoder(), tiny_rows(9, "retain", 40)
    state = methods.get("pdu").build(tolerance=0.5).prepare(context(lm=lm, retain=rows))
    batch = collate([encoder.encode(r.prompt, r.answer, r.id) for r in rows], encoder.pad_id)
    with torch.no_grad():
        view = View(batch, lambda b, kind, layer: run(lm, b, kind, layer))
        mean = (view.token_nll.sum() / view.mask.sum()).item()
    assert state["epsilon"] == pytest.approx(1.5 * mean) and state["dual"] == 1.0


def test_pdu_moves_its_dual_variable() -> None:
    method = methods.get("pdu").build(epsilon=0.5, dual_step=2.0, retain_weight=0.5, dual_warmup=1)
    state = method.prepare(context())
    for excess, dual in [(0.3, 0.5), (0.3, 1.1), (-2.0, 0.0), (0.25, 0.5)]:  # the first step is warm-up
        method.after_step(state, 1.0, excess)
        assert method.weights(state) == pytest.approx((1.0, dual))
    assert method.uses_retain
    fixed = methods.get("pdu").build(epsilon=0.5, primal_dual=False)
    state = fixed.prepare(context())
    fixed.after_step(state, 1.0, 9.0)
    assert fixed.weights(state) == (1.0, 1.0)


def test_whp_labels_are_the_generic_distribution() -> None:
    """The labels of one row against plain arithmetic; they are cut to the most likely tokens and sum to 1."""
    target, reinforced = tiny_lm(dtype=torch.float64), tiny_lm(seed=9, dtype=torch.float64)
    seen: list[Any] = []

    def finetune(rows: Any, settings: TrainSettings) -> Any:
        seen.append((len(rows), settings.epochs, settings.max_steps, settings.learning_rate))
        return reinforced

    method = methods.get("whp").build(alpha=2.0, keep=5, epochs=4)
    rows = tiny_rows(6)
    state = method.prepare(context(lm=target, finetune=finetune, forget=rows))
    assert seen == [(6, 4, None, 1e-3)]
    encoded = tiny_encoder().encode(rows[2].prompt, rows[2].answer)
    with torch.no_grad():
        z, r = (lm.hf(input_ids=torch.tensor([encoded.ids])).logits[0] for lm in (target, reinforced))
    generic = (z - 2.0 * (r - z).clamp(min=0))[encoded.prompt_length - 1 : -1]
    best = generic.topk(5)
    label = state["labels"][rows[2].id]
    assert torch.equal(label["tokens"], best.indices)
    assert torch.allclose(label["q"], best.values.softmax(-1)) and label["q"].shape == (encoded.answer_length, 5)


def test_a_task_vector_walks_the_other_way() -> None:
    lm, learned = tiny_lm(), tiny_lm(seed=9)
    before = {name: p.detach().clone() for name, p in lm.named_parameters()}
    method = methods.get("task-vector").build(strength=0.5, learning_rate=2e-3)
    assert not method.is_loop
    seen: list[TrainSettings] = []
    method.unlearn(context(lm=lm, finetune=lambda rows, settings: (seen.append(settings), learned)[1]))
    assert (seen[0].epochs, seen[0].max_steps, seen[0].learning_rate) == (10, None, 2e-3)
    other = dict(learned.named_parameters())
    for name, parameter in lm.named_parameters():
        torch.testing.assert_close(parameter, before[name] - 0.5 * (other[name] - before[name]))


def test_with_lora_a_task_vector_walks_along_the_adapter() -> None:
    """The merged weights are those of the walk: target - strength (reinforced - target)."""
    target = tiny_lm()
    lm, learned = (add_lora(tiny_lm(), LoraSettings(r=2), seed=0) for _ in range(2))
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in learned.named_parameters():
            if "lora_" in name:
                parameter.add_(torch.randn(parameter.shape, generator=generator))
    methods.get("task-vector").build(strength=0.5).unlearn(context(lm=lm, finetune=lambda rows, settings: learned))
    walked, reinforced = merge_lora(lm), dict(merge_lora(learned).named_parameters())
    before = dict(target.named_parameters())
    assert any(not torch.equal(reinforced[name], before[name]) for name in before)
    for name, parameter in walked.named_parameters():
        torch.testing.assert_close(parameter, before[name] - 0.5 * (reinforced[name] - before[name]))


# -- MASC: which tokens are active -----------------------------------------------------------------------------


def masc_step(rows: slice, number: int = 0, seed: int = 0, **values: Any) -> tuple[Any, Step]:
    method = methods.get("masc").build(**{"min_prefix": 1, "min_suffix": 1, "cut": (0.1, 0.9), **values})
    forget = tiny_rows(6)
    state = method.prepare(context(forget=forget, generator=torch.Generator().manual_seed(seed)))
    encoder = tiny_encoder()
    batch = collate([encoder.encode(r.prompt, r.answer, r.id) for r in forget[rows]], encoder.pad_id)
    view = View(batch, lambda b, kind, layer: torch.zeros(*b.positions.shape, 259))
    return method, Step(Views(view), None, state, number)


def counts(rows: slice, **values: Any) -> list[int]:
    method, step = masc_step(rows, **values)
    found: list[int] = method.active(step).sum(1).tolist()
    return found


def test_random_cuts_are_the_same_in_any_batch_and_new_at_every_step() -> None:
    whole = counts(slice(0, 6))
    assert whole == counts(slice(0, 2)) + counts(slice(2, 6))
    assert whole != counts(slice(0, 6), number=1) and whole != counts(slice(0, 6), seed=1)
    before = torch.get_rng_state()
    counts(slice(0, 6))
    assert torch.equal(before, torch.get_rng_state())


def test_fixed_cuts_never_change() -> None:
    assert counts(slice(0, 6), cuts="fixed") == counts(slice(0, 6), cuts="fixed", number=5, seed=3)


def test_no_cut_is_the_whole_answer() -> None:
    method, step = masc_step(slice(0, 6), cut=None, min_prefix=32, min_suffix=32)
    assert torch.equal(method.active(step), step.forget.mask)


def test_published_settings() -> None:
    """The presets say what `masc_settings.md` says."""
    names = (
        "forget_weight",
        "retain",
        "rho",
        "eta",
        "alternatives",
        "k",
        "within",
        "beta",
        "cut",
        "min_prefix",
        "min_suffix",
    )
    wanted = {
        "masc@tofu": (0.05, "none", 0.7, 0.25, "own", 10, None, 1.0, (0.2, 0.6), 32, 32),
        "masc@muse-news": (0.5, "kl", 0.7, 0.5, "reference", 2, 0.5, 5.0, (0.6, 0.6), 32, 128),
        "masc@qwen-scaling": (0.1, "kl", 0.5, 0.5, "own", 10, None, 1.0, (0.2, 0.6), 32, 32),
    }
    stops = {"masc@tofu": (0.475, 32), "masc@muse-news": (0.55, 64), "masc@qwen-scaling": (0.2, 64)}
    for name, values in wanted.items():
        method = methods.get(name).build()
        assert tuple(getattr(method, field) for field in names) == values
        alpha, confirm = stops[name]
        assert method.stop == {"rule": "violation", "alpha": alpha, "every": 2, "probe": 4, "confirm": confirm}


# -- which parameters move -------------------------------------------------------------------------------------


@pytest.mark.parametrize("architecture", list(ARCHITECTURES))
@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
def test_rmu_finds_the_down_projections(architecture: str, lora: bool) -> None:
    """One matrix for each of the blocks layer-2 … layer; with LoRA its two factors."""
    lm = tiny_lm(architecture, num_hidden_layers=4) if architecture != "gpt2" else tiny_lm("gpt2", n_layer=4)
    if lora:
        lm = add_lora(lm, LoraSettings(r=2), seed=0)
    parameters = dict(lm.named_parameters())
    for layer, blocks in [(3, (1, 2, 3)), (1, (0, 1)), (0.25, (0,)), (1.0, (1, 2, 3))]:
        names = methods.get("rmu").build(layer=layer).trained_parameters(lm)
        assert len(names) == len(blocks) * (2 if lora else 1)
        assert {int(next(part for part in name.split(".") if part.isdigit())) for name in names} == set(blocks)
        hidden, inner = lm.config.hidden_size, 64 if architecture == "smollm2" else 24
        shapes = [set(parameters[name].shape) for name in names]
        assert all(shape in ({hidden, inner}, {2, inner}, {2, hidden}) for shape in shapes)
        assert all(parameters[name].requires_grad for name in names)


def test_a_pattern_or_layer_that_matches_nothing_is_an_error() -> None:
    pattern = r"model\.layers\.(5|6|7)\.mlp\.down_proj\.weight"
    with pytest.raises(UserError, match=r"model\\.layers.*transformer\.h\.0\.") as error:
        methods.get("rmu").build(parameters=pattern).trained_parameters(tiny_lm("gpt2"))
    assert "\n" not in str(error.value)
    with pytest.raises(UserError, match="no decoder layer 99: the model has 2"):
        methods.get("rmu").build(layer=99).trained_parameters(tiny_lm())
    with pytest.raises(UserError, match="no decoder layer 99"):
        view = View(
            collate([tiny_encoder().encode("a", "b")], 2), lambda b, kind, layer: run(tiny_lm(), b, kind, layer)
        )
        methods.get("rmu").build(layer=99).forget_loss(Step(Views(view), None, State(control=torch.zeros(16))))
    with pytest.raises(UserError, match="not a pattern"):
        methods.get("rmu").build(parameters="(").trained_parameters(tiny_lm())
    chosen = methods.get("rmu").build(parameters=r".*\.q_proj\.weight").trained_parameters(tiny_lm())
    assert chosen == [f"hf.model.layers.{i}.self_attn.q_proj.weight" for i in (0, 1)]


def test_only_undial_as_open_unlearning_has_it_asks_for_a_large_vocabulary() -> None:
    ids = torch.tensor([[1, 2, 3]])
    labels = torch.tensor([[-100, -100, 3]])
    batch = Batch.from_labels(ids, labels, torch.ones_like(ids), ["a"])
    view = View(batch, lambda b, kind, layer: torch.zeros(1, 3, 50))
    method = methods.get("undial").build(protocol="open-unlearning")
    with pytest.raises(UserError, match="vocabulary of 100 or more, not 50"):
        method.forget_loss(Step(Views(view), Views(view)))
