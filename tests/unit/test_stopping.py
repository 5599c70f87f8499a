"""Stop rules and the probe: when a rule holds, what it looks at, on which rows, and what a resume restores."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from unlearnbench.errors import UserError
from unlearnbench.language_model import LanguageModel
from unlearnbench.margins import (
    continuation,
    drawn_unit,
    log_reproduction_bound,
    margin,
    rho_of,
    rivals,
    spread,
    tau_of,
    violation_rate,
)
from unlearnbench.method import Method, methods
from unlearnbench.probing import Prober, ViolationSettings, make_prober, oracle_numbers
from unlearnbench.reference import Reference
from unlearnbench.stopping import StopRule, Violation, hoeffding_ucb, make_rule, stop_rules
from unlearnbench.testing.tiny import tiny_encoder, tiny_lm, tiny_rows
from unlearnbench.text import collate

FORGET, RETAIN, HOLDOUT = tiny_rows(12), tiny_rows(8, "retain", 40), tiny_rows(6, "holdout", 80)


def prober(stop: dict[str, Any], method: str = "npo", **options: Any) -> Prober:
    built = make_prober(
        methods.get(method).build(stop=stop),
        tiny_encoder(),
        FORGET,
        RETAIN,
        options.pop("holdout", HOLDOUT),
        torch.Generator().manual_seed(options.pop("seed", 0)),
        options.pop("reference", None),
        options.pop("numbers", None),
    )
    assert built is not None and not options
    return built


class Confident(torch.nn.Module):
    """A model that gives every token it is asked about the same logit advantage, whatever the text."""

    def __init__(self, advantage: float):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.advantage = advantage
        self.looks = 0
        self.training_seen: list[bool] = []

    def forward(self, input_ids: torch.Tensor, *_: Any, positions: torch.Tensor, **__: Any) -> torch.Tensor:
        assert not torch.is_grad_enabled()
        self.looks += 1
        self.training_seen.append(self.training)
        targets = input_ids.gather(1, (positions + 1).clamp(max=input_ids.shape[1] - 1))
        logits = torch.zeros(*positions.shape, 259)
        return logits.scatter(-1, targets.unsqueeze(-1), self.advantage)


# -- margins by hand -------------------------------------------------------------------------------------------


def test_the_margin_by_hand() -> None:
    logits = torch.tensor([[1.0, 3.0, 2.0, 0.5]], dtype=torch.float64)
    target = torch.tensor([2])
    best = rivals(logits, target, 2)
    assert sorted(best.tokens[best.kept].tolist()) == [0, 1]
    kept = logits.gather(-1, best.tokens).masked_fill(~best.kept, -math.inf)
    by_hand = 2.0 - math.log(math.exp(1) + math.exp(3))
    assert margin(logits[:, 2], kept).item() == pytest.approx(by_hand)
    assert margin(logits[:, 2], kept, 2.0).item() == pytest.approx(4.0 - math.log(math.exp(2) + math.exp(6)))
    assert margin(logits[:, 2], kept, 2.0, "smoothmax").item() == pytest.approx(
        2.0 - math.log(math.exp(2) + math.exp(6)) / 2
    )


def test_alternatives_never_hold_the_target_and_end_with_the_vocabulary() -> None:
    torch.manual_seed(0)
    logits, targets = torch.randn(5, 7, 9), torch.randint(9, (5, 7))
    for k in (1, 3, 8, 50):
        found = rivals(logits, targets, k)
        assert not ((found.tokens == targets.unsqueeze(-1)) & found.kept).any()
        assert (found.kept.sum(-1) == min(k, 8)).all()
    near = rivals(logits, targets, 8, within=0.5)
    values = logits.gather(-1, near.tokens).masked_fill(~near.kept, -math.inf)
    best = logits.scatter(-1, targets.unsqueeze(-1), -math.inf).amax(-1)
    assert torch.equal(values.amax(-1), best)
    assert (values[near.kept] >= (best.unsqueeze(-1).expand_as(values)[near.kept] - 0.5)).all()
    assert (near.kept.sum(-1) < 8).any()


def test_the_share_and_the_bound_by_hand() -> None:
    assert rho_of(tau_of(0.7)) == pytest.approx(0.7)
    assert log_reproduction_bound(0.25, 8, 0.5) == pytest.approx(6 * math.log(0.5))


def test_continuation_keeps_short_answers_whole_and_the_limits() -> None:
    mask = torch.zeros(3, 20, dtype=torch.bool)
    for row, length in enumerate((20, 9, 6)):
        mask[row, :length] = True
    active = continuation(mask, spread([0.5, 0.0, 1.0], (0.2, 0.6)), min_prefix=4, min_suffix=3)
    assert active[0].nonzero().flatten().tolist() == list(range(8, 20))  # floor(0.4 * 20)
    assert active[1].nonzero().flatten().tolist() == list(range(4, 9))  # at least 4 before the cut
    assert torch.equal(active[2], mask[2])  # shorter than 4 + 3


def test_drawn_cuts_depend_on_seed_row_and_step_only() -> None:
    draws = [drawn_unit(seed, row, step) for seed in (0, 1) for row in ("a", "b") for step in (0, 1)]
    assert len(set(draws)) == 8 and drawn_unit(0, "a", 0) == draws[0]
    many = [drawn_unit(3, str(i), 5) for i in range(4000)]
    assert 0 <= min(many) < 0.01 and 0.99 < max(many) < 1 and abs(sum(many) / 4000 - 0.5) < 0.02


# -- rules -----------------------------------------------------------------------------------------------------


def test_the_confidence_bound_by_hand() -> None:
    bound, share = hoeffding_ucb(0.3, 32, 0.1, 1)
    assert share == pytest.approx(6 * 0.1 / (math.pi**2 * 4))
    assert bound == pytest.approx(0.3 + math.sqrt(math.log(1 / share) / 64))


@pytest.mark.parametrize("entry", list(stop_rules), ids=lambda entry: entry.name)
def test_every_rule_is_frozen_round_trips_and_is_described(entry: Any) -> None:
    rule: StopRule = entry.build()
    assert type(rule).model_validate_json(rule.model_dump_json(), strict=True) == rule
    assert entry.title != entry.name and type(rule).__doc__
    with pytest.raises(ValueError):
        rule.every = 5  # type: ignore[misc]
    assert make_rule({"rule": entry.name}) == rule


def test_only_the_rule_that_looks_at_the_retrained_model_is_an_oracle() -> None:
    assert {entry.name for entry in stop_rules if entry.cls.oracle} == {"retrained-gap"}


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"rule": "violatoin"}, "did you mean 'violation'"),
        ({}, "needs a name"),
        ({"rule": "violation", "alpha": 1.5}, r"must be in \[0, 1\]"),
        ({"rule": "violation", "rho": 0.5, "tau": 0.1}, "either rho or tau"),
    ],
)
def test_a_wrong_spec_is_one_line(spec: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as error:
        make_rule(spec)
    assert "\n" not in str(error.value)


def test_a_rule_brings_its_needs_into_the_method() -> None:
    def needs(**stop: Any) -> frozenset[str]:
        return methods.get("simnpo").build(stop=stop).requirements - {"retain"}

    assert needs(rule="violation") == set()
    assert needs(rule="violation", alpha="holdout") == {"holdout"}
    assert needs(rule="violation", alternatives="reference") == {"reference"}
    assert needs(rule="forget-prob", retain_kl_below=0.1) == {"reference"}
    assert needs(rule="retrained-gap") == {"retrained"}


# -- the probe -------------------------------------------------------------------------------------------------


def test_held_out_rows_are_drawn_once_and_kept_out() -> None:
    spec = {"rule": "violation", "probe": 2, "confirm": 5}
    first, again, other = prober(spec), prober(spec), prober(spec, seed=1)
    assert len(first.held_out) == 5 and first.held_out <= {row.id for row in FORGET}
    assert first.rows == again.rows != other.rows
    plain = prober({**spec, "source": "first"})
    assert plain.held_out == frozenset() and plain.rows == tuple(row.id for row in FORGET[:5])


def test_the_default_second_stage_leaves_two_thirds_to_train_on() -> None:
    assert len(prober({"rule": "violation"}).rows) == 4
    assert Violation().confirm_rows(400) == 32 and Violation(source="first").confirm_rows(12) == 12
    with pytest.raises(UserError, match="nothing is left to train on"):
        prober({"rule": "violation", "confirm": 12})


def test_two_stages() -> None:
    """Only a first stage that says stop makes the second stage look; the second one decides."""
    lm = Confident(-5.0)
    reading = prober({"rule": "violation", "alpha": 0.5, "probe": 2, "confirm": 6}).check(lm, 2)
    assert reading.stop and "violation rate 0.000 <= 0.500" in reading.reason
    assert len(reading.rows) == 6 and reading.values["confirm_rows"] == 6 and lm.looks == 2
    sure = Confident(50.0)
    reading = prober({"rule": "violation", "alpha": 0.5, "probe": 2, "confirm": 6}).check(sure, 2)
    assert not reading.stop and reading.reason == "" and sure.looks == 1
    assert reading.values["violation_rate"] == 1.0 and len(reading.rows) == 2 and "confirm_rate" not in reading.values


def test_a_second_stage_that_disagrees_does_not_stop() -> None:
    """A model that violates on one row only: the first row of the probe passes, the whole does not."""
    found = prober({"rule": "violation", "alpha": 0.0, "probe": 1, "confirm": 3, "source": "first"})

    class Second(Confident):
        def forward(self, input_ids: torch.Tensor, *_: Any, positions: torch.Tensor, **__: Any) -> torch.Tensor:
            logits = super().forward(input_ids, positions=positions)
            logits[0] = -logits[0]
            return logits

    reading = found.check(Second(50.0), 2)
    assert reading.values["violation_rate"] == 0.0 and reading.values["confirm_rate"] == pytest.approx(2 / 3)
    assert not reading.stop


def test_the_reading_is_the_margin_of_the_model_itself() -> None:
    """The rate of a real model against a plain loop over rows and tokens; a row's cut depends on its place."""
    lm, encoder, many = tiny_lm(dtype=torch.float64), tiny_encoder(), tiny_rows(1500)
    rule = make_rule({"rule": "violation", "tau": -3.0, "k": 3, "cut": [0.0, 1.0], "min_prefix": 1, "min_suffix": 2})
    rule = rule.model_copy(update={"probe": 6, "confirm": 6})
    random = torch.Generator().manual_seed(3)
    found = Prober(rule, methods.get("npo").build(), encoder, many, RETAIN, HOLDOUT, random)
    rates, cuts = [], []
    for row_index in (int(row_id.removeprefix("row")) for row_id in found.rows):
        row = many[row_index]
        encoded = encoder.encode(row.prompt, row.answer, row.id)
        with torch.no_grad():
            logits = lm.hf(input_ids=torch.tensor([encoded.ids])).logits[0]
        tokens = list(range(encoded.prompt_length, len(encoded.ids)))
        ratio = (((row_index + 1) * 1000003) ^ 9176 ^ 2654435761) % 2**32 / (2**32 - 1)
        cuts.append(min(max(math.floor(ratio * len(tokens)), 1), len(tokens) - 2))
        hits = []
        for place in tokens[cuts[-1] :]:
            scores = logits[place - 1].clone()
            target = scores[encoded.ids[place]].item()
            scores[encoded.ids[place]] = -math.inf
            hits.append(target - scores.topk(3).values.logsumexp(0).item() > -3.0)
        rates.append(sum(hits) / len(hits))
    assert len(set(cuts)) > 2 and 0 < sum(rates) < 6
    assert found.check(lm, 2).values["violation_rate"] == pytest.approx(sum(rates) / 6)


def test_a_margin_at_the_threshold_does_not_violate() -> None:
    margins = torch.tensor([[0.5, 0.5001, 0.4999, 9.0]])
    active = torch.tensor([[True, True, True, False]])
    assert violation_rate(margins, 0.5, active).item() == pytest.approx(1 / 3)


def test_settings_come_from_the_rule_then_the_method_then_the_paper() -> None:
    masc: Method = methods.get("masc@muse-news").build()
    of_masc = ViolationSettings.of(Violation(), masc)
    assert (of_masc.margin.k, of_masc.margin.beta, of_masc.margin.within) == (2, 5.0, 0.5)
    assert of_masc.cut == (0.6, 0.6) and of_masc.eta == 0.5 and of_masc.tau == tau_of(0.7)
    of_rule = ViolationSettings.of(Violation(k=7, rho=0.5, cut="none", min_prefix=1), masc)
    assert (of_rule.margin.k, of_rule.margin.beta, of_rule.tau, of_rule.cut) == (7, 5.0, 0.0, None)
    of_other = ViolationSettings.of(Violation(), methods.get("npo").build())
    assert of_other == ViolationSettings() and of_other.margin.k == 10


def test_the_probe_keeps_modes_and_the_global_random_state() -> None:
    lm = Confident(1.0)
    lm.train()
    before = torch.get_rng_state()
    prober({"rule": "violation"}).check(lm, 2)
    assert lm.training and lm.training_seen == [False] * lm.looks
    assert torch.equal(before, torch.get_rng_state())


def test_due() -> None:
    found = prober({"rule": "violation", "every": 3})
    assert [step for step in range(10) if found.due(step)] == [0, 3, 6, 9]


def test_step_zero_never_stops() -> None:
    assert not prober({"rule": "violation"}).check(Confident(-5.0), 0).stop


def test_patience_counts_looks_in_a_row() -> None:
    found = prober({"rule": "violation", "patience": 2})
    calm, sure = Confident(-5.0), Confident(50.0)
    stops = [found.check(lm, 2 * i).stop for i, lm in enumerate([calm, calm, sure, calm, calm, calm])]
    assert stops == [False] * 5 + [True]  # the look at step 0 does not count, the third one breaks the row


def test_alpha_from_the_holdout_rows() -> None:
    """The target's own rate on rows it never saw, measured at step 0, and nothing later."""
    found = prober({"rule": "violation", "alpha": "holdout", "tau": -3.0})
    lm = tiny_lm()
    target = found.check(lm, 0)
    assert 0 < target.values["alpha"] < 1
    assert found.check(Confident(-50.0), 2).values["alpha"] == target.values["alpha"]
    with pytest.raises(RuntimeError, match="step 0"):
        prober({"rule": "violation", "alpha": "holdout"}).check(lm, 2)
    with pytest.raises(UserError, match="needs holdout"):
        prober({"rule": "violation", "alpha": "holdout"}, holdout=[])


def test_hoeffding_counts_its_looks() -> None:
    found = prober({"rule": "violation", "alpha": 1.0, "hoeffding_delta": 0.1, "confirm": 2})
    bounds = [found.check(Confident(-5.0), step) for step in (2, 4)]
    assert [r.values["ucb"] for r in bounds] == [hoeffding_ucb(0.0, 2, 0.1, look)[0] for look in (0, 1)]
    assert [r.stop for r in bounds] == [bounds[0].values["ucb"] <= 1.0, bounds[1].values["ucb"] <= 1.0] == [True, False]


def test_a_condition_on_retain() -> None:
    target, moved = tiny_lm(), tiny_lm(seed=5)
    spec = {"rule": "violation", "alpha": 1.0, "retain_kl_below": 0.01}
    found = prober(spec, reference=Reference(target))
    assert found.check(target, 2).stop
    reading = prober(spec, reference=Reference(target)).check(moved, 2)
    assert not reading.stop
    encoder = tiny_encoder()
    batch = collate([encoder.encode(r.prompt, r.answer, r.id) for r in RETAIN], encoder.pad_id)
    with torch.no_grad():
        p, q = (
            torch.log_softmax(lm(batch.input_ids, batch.attention_mask, positions=batch.positions), -1)
            for lm in (target, moved)
        )
    by_hand = (p.exp() * (p - q)).sum(-1)[batch.mask].mean().item()
    assert reading.values["retain_kl"] == pytest.approx(by_hand, rel=1e-4)
    with pytest.raises(UserError, match="needs reference"):
        prober(spec)


def test_the_reference_alternatives_need_a_reference() -> None:
    with pytest.raises(UserError, match="needs reference"):
        prober({"rule": "violation"}, method="masc@muse-news")
    found = prober({"rule": "violation"}, method="masc@muse-news", reference=Reference(tiny_lm()))
    assert math.isfinite(found.check(tiny_lm(seed=3), 2).values["mean_margin"])


def test_forget_probability() -> None:
    lm: LanguageModel = tiny_lm(dtype=torch.float64)
    found = prober({"rule": "forget-prob", "below": 0.5, "probe": 3, "confirm": 3, "source": "first"})
    reading = found.check(lm, 2)
    encoder, probabilities = tiny_encoder(), []
    for row in FORGET[:3]:
        encoded = encoder.encode(row.prompt, row.answer)
        with torch.no_grad():
            logp = torch.log_softmax(lm.hf(input_ids=torch.tensor([encoded.ids])).logits[0], -1)
        places = range(encoded.prompt_length, len(encoded.ids))
        probabilities.append(math.exp(sum(logp[t - 1, encoded.ids[t]].item() for t in places) / len(places)))
    assert reading.values["forget_prob"] == pytest.approx(sum(probabilities) / 3)
    assert reading.stop and not prober({"rule": "forget-prob", "below": 1e-9}).check(lm, 2).stop


def test_the_gap_to_the_retrained_model() -> None:
    retrained, encoder = tiny_lm(seed=4), tiny_encoder()
    numbers = oracle_numbers(retrained, encoder, FORGET)
    spec = {"rule": "retrained-gap", "gap": 0.0, "probe": 2, "confirm": 4}
    reading = prober(spec, numbers=numbers).check(retrained, 2)
    assert reading.values["forget_prob"] == pytest.approx(reading.values["retrained_prob"], rel=1e-5)
    assert not prober(spec, numbers=numbers).check(Confident(50.0), 2).stop
    with pytest.raises(UserError, match="reads 'retrained_prob'"):
        prober(spec)


def test_a_budget() -> None:
    found = prober({"rule": "budget", "steps": 3})
    assert [found.check(Confident(0.0), step).stop for step in (1, 2, 3)] == [False, False, True]
    assert found.held_out == frozenset() and found.rows == ()
    method = methods.get("npo").build(stop={"rule": "budget"})
    assert make_prober(method, tiny_encoder(), FORGET, RETAIN, HOLDOUT, torch.Generator()) is None


def test_a_resume_restores_the_probe() -> None:
    spec = {"rule": "violation", "alpha": "holdout", "tau": -3.0, "patience": 1, "hoeffding_delta": 0.5}
    first = prober(spec)
    first.check(tiny_lm(), 0)
    first.check(Confident(-50.0), 2)
    second = prober(spec)
    second.load_state_dict(first.state_dict())
    assert second.state_dict() == first.state_dict() and second.state_dict()["looks"] == 1
    assert second.check(Confident(-50.0), 4) == first.check(Confident(-50.0), 4)
    with pytest.raises(UserError, match="probed other rows"):
        prober(spec, seed=9).load_state_dict(first.state_dict())


def test_a_rule_from_outside() -> None:
    """A rule of a few lines, with a number of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stop_rules, "_entries", dict(stop_rules._entries))

        @stop_rules.register("mine", title="Mine")
        class Mine(StopRule):
            reads = frozenset({"luck"})

            def holds(self, values: Any) -> bool:
                return bool(values["luck"] > 0.5)

        seen: list[tuple[str, ...]] = []
        numbers = {"luck": lambda lm, ids: (seen.append(tuple(ids)), 0.9)[1]}
        found = prober({"rule": "mine", "probe": 1, "confirm": 2}, numbers=numbers)
        reading = found.check(Confident(0.0), 2)
        assert reading.stop and reading.reason == "mine" and seen == [found.rows[:1], found.rows]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"rule": "violation", "cut": [0.9, 0.1]}, "two rising shares"),
        ({"rule": "violation", "cut": [-3, 7]}, "two rising shares"),
        ({"rule": "violation", "probe": 5, "confirm": 2}, "confirm 2 and probe 5"),
        ({"rule": "budget", "patience": 3, "retain_kl_below": 0.1}, "`patience`, `retain_kl_below` would do nothing"),
    ],
)
def test_settings_that_cannot_be_or_would_do_nothing_are_refused(spec, message):
    with pytest.raises(UserError, match=message):
        make_rule(spec)


def test_a_truth_value_is_no_tolerance():
    with pytest.raises(ValidationError):
        make_rule({"rule": "violation", "alpha": True})


def test_fields_of_a_method_that_mean_something_else_are_left_alone():
    """A plug-in's `threshold`, `margin` or `cut` is no part of the violation rule."""

    class Other(Method):
        threshold: float = 50.0
        margin: float = 0.1
        cut: float = 0.3

        def forget_loss(self, step):
            raise NotImplementedError

    assert ViolationSettings.of(make_rule({"rule": "violation"}), Other()) == ViolationSettings()
    masc = methods.get("masc").build(rho=0.6, k=3)
    found = ViolationSettings.of(make_rule({"rule": "violation"}), masc)
    assert (found.tau, found.margin.k) == (pytest.approx(tau_of(0.6)), 3)
