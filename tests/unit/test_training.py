"""The training loop: what an optimiser step is, and when a run must fail."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from accelerate import Accelerator

from unlearnbench.benchmarks.base import Benchmark
from unlearnbench.clock import Clock
from unlearnbench.errors import UserError
from unlearnbench.finetuning import finetune
from unlearnbench.method import Method, State, Terms, methods
from unlearnbench.models import frozen_copy, weights_hash
from unlearnbench.reference import Reference, token_nll
from unlearnbench.selection import Selector
from unlearnbench.settings import LoraSettings, TrainSettings
from unlearnbench.testing.tiny import FORGET_ROWS, RETAIN_ROWS, tiny_encoder, tiny_lm, tiny_rows, tiny_target
from unlearnbench.training import CellFailed, Hooks
from unlearnbench.unlearning import Supply, unlearn

ENCODER = tiny_encoder()
ROWS = tiny_rows(22)
FORGET, RETAIN = ROWS[:8], ROWS[8:]
SGD = TrainSettings(epochs=1, batch_size=8, optimizer="sgd", learning_rate=0.1, clip=None)


def run(method="npo+klr", settings=SGD, forget=FORGET, retain=RETAIN, lm=None, hooks=None, seed=0, **values):
    lines: list[dict] = []
    hooks = hooks or Hooks()
    hooks.log = lines.append
    built = method if isinstance(method, Method) else methods.get(method).build(**values)
    lm, outcome = unlearn(built, lm or tiny_lm(), ENCODER, forget, retain, settings, seed, Accelerator(), hooks=hooks)
    return lm, outcome, lines


def difference(a, b):
    return max((x - y).abs().max().item() for x, y in zip(a.parameters(), b.parameters(), strict=True))


def losses(lines, name):
    return [line[f"{name}_loss"] for line in lines if f"{name}_loss" in line]


# -- B01, B58: one update, however it is cut up -----------------------------------------------------------------


@pytest.mark.parametrize("method", ["npo", "npo+gdr", "npo+klr"])
@pytest.mark.parametrize("batch, accumulation", [(4, 2), (2, 4), (1, 8), (3, 3)])
def test_accumulation_does_not_change_the_update(method, batch, accumulation):
    """B01, in float32; `tests/conformance/test_updates.py` has every method, and two processes."""
    whole = SGD.model_copy(update={"max_steps": 2, "epochs": 2, "retain_batch_size": 12})
    parts = whole.model_copy(
        update={"batch_size": batch, "accumulation": accumulation, "retain_batch_size": math.ceil(12 / accumulation)}
    )
    if batch * accumulation != 8:  # 9 rows a step: compare with one batch of 9
        whole = whole.model_copy(update={"batch_size": 9})
    if parts.retain_batch_size * accumulation != 12:
        whole = whole.model_copy(update={"retain_batch_size": parts.retain_batch_size * accumulation})
    a, _, whole_lines = run(method, whole)
    b, _, part_lines = run(method, parts)
    assert difference(a, b) < 2e-6
    assert difference(a, tiny_lm()) > 1e-3
    assert losses(whole_lines, "forget") == pytest.approx(losses(part_lines, "forget"), rel=1e-5)


def test_the_last_incomplete_window_is_a_step_of_its_own():
    """B58"""
    one = SGD.model_copy(update={"batch_size": 6})
    cut = SGD.model_copy(update={"batch_size": 2, "accumulation": 4, "retain_batch_size": 2})
    a, _, _ = run("npo", one, forget=FORGET[:6])
    b, outcome, _ = run("npo", cut, forget=FORGET[:6])
    assert outcome.steps == 1 and difference(a, b) < 1e-6


def test_a_row_left_over_is_seen_once():
    """B58: 7 rows, 2 a batch."""
    _, outcome, _ = run("npo", SGD.model_copy(update={"batch_size": 2}), forget=ROWS[:7])
    assert (outcome.steps, outcome.rows_seen) == (4, 7)


def test_token_means_count_tokens_over_the_whole_step_not_per_micro_batch():
    """NLL on rows of unequal length: the mean over all tokens, not the mean of the micro-batches' means."""
    rows = sorted(ROWS[:8], key=lambda row: len(row.answer))
    lm = tiny_lm()
    nll = token_nll(lm, [ENCODER.encode(r.prompt, r.answer, r.id) for r in rows], ENCODER.pad_id)
    lines: list[dict] = []
    settings = TrainSettings(batch_size=2, accumulation=4, learning_rate=1e-3, bucket=True)
    finetune(lm, ENCODER, rows, settings, 0, Accelerator(), hooks=Hooks(log=lines.append))
    assert losses(lines, "train")[0] == pytest.approx(torch.cat(list(nll.values())).mean().item(), rel=1e-5)


# -- B16: what the record says ----------------------------------------------------------------------------------


def test_the_record_counts_steps_batches_tokens_and_warm_up():
    """B16: 40 rows in batches of 8 x 4 are 2 steps; with two processes see `tests/conformance/test_updates.py`."""
    rows = tiny_rows(40)
    settings = TrainSettings(batch_size=8, accumulation=4, warmup_epochs=0.5, learning_rate=1e-3)
    lm, outcome, lines = run("npo", settings, forget=rows)
    encoded = [ENCODER.encode(r.prompt, r.answer, r.id) for r in rows]
    assert (outcome.steps, outcome.effective_batch, outcome.warmup_steps, outcome.steps_per_epoch) == (2, 32, 1, 2)
    assert outcome.rows_seen == 40 and outcome.tokens == sum(len(e.ids) for e in encoded)
    assert outcome.trained_parameters == sum(p.numel() for p in lm.parameters())
    assert outcome.warnings[0] == "only 2 optimiser steps"
    assert [line["epoch"] for line in lines] == [0.5, 1.0]


def test_one_forget_row_and_a_large_batch_are_one_step_an_epoch():
    """B16"""
    _, outcome, _ = run("npo", TrainSettings(batch_size=32, epochs=3, learning_rate=1e-3), forget=ROWS[:1])
    assert (outcome.steps, outcome.rows_seen) == (3, 3)


def test_flops_follow_the_formula():
    rows = [row for row in tiny_rows(40) if (len(row.answer), len(row.id)) == (len("The lamp 7."), len("row10"))][:4]
    encoded = [ENCODER.encode(r.prompt, r.answer, r.id) for r in rows]
    assert len({len(e.ids) for e in encoded}) == 1
    lm = tiny_lm()
    head = lm.model.get_output_embeddings().weight.numel()
    body = sum(p.numel() for p in lm.parameters()) - 2 * head
    outcome = finetune(lm, ENCODER, rows, TrainSettings(batch_size=4, learning_rate=1e-3), 0, Accelerator())
    slots, answers = 4 * len(encoded[0].ids), 4 * encoded[0].answer_length
    assert outcome.flops == pytest.approx(3 * 2 * (body * slots + head * answers))


# -- B13, B04: runs that must not look like successes -----------------------------------------------------------


class Poisoned(Method):
    """A loss that turns to NaN at its third step."""

    def forget_loss(self, step):
        nll = step.forget.sequence_nll()
        return Terms(nll * (float("nan") if step.number == 2 else -1.0))


def test_a_loss_that_is_not_finite_stops_the_cell_at_its_step():
    """B13"""
    with pytest.raises(CellFailed, match=r"forget loss is nan at step 3"):
        run(Poisoned(), SGD.model_copy(update={"epochs": 5}))


def test_divergence_is_caught_when_it_happens():
    class Ascent(Method):
        def forget_loss(self, step):
            return Terms(-step.forget.sequence_nll().exp())

    with pytest.raises(CellFailed, match=r"(loss|norm) is -?(inf|nan) at step \d+"):
        run(Ascent(), SGD.model_copy(update={"epochs": 20, "learning_rate": 10.0}), forget=ROWS[:2])


class Weighted(Method):
    """Plain losses times what is not finite: in the retain loss, or in the gradient alone."""

    retain: str = "nll"
    spoil: str

    def forget_loss(self, step):
        nll = step.forget.sequence_nll()
        # sqrt has an infinite slope at 0, and 0 is the value of all these losses
        return Terms(((nll - nll.detach()).abs()).sqrt() if self.spoil == "gradient" else -nll)

    def retain_loss(self, step):
        return Terms(step.retain.sequence_nll() * (float("inf") if self.spoil == "retain" else 1.0))


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [("retain", r"the retain loss is inf at step 1"), ("gradient", r"gradient norm is nan at step 1")],
)
def test_retain_losses_and_gradients_are_looked_at_too(spoil, reason):
    """B13: each loss by itself, and the gradient, whose loss may be finite."""
    with pytest.raises(CellFailed, match=reason):
        run(Weighted(spoil=spoil))


def test_weights_that_the_last_step_made_infinite_fail_the_cell():
    """B13: no loss comes after the last step to show it."""
    settings = SGD.model_copy(update={"max_steps": 1, "learning_rate": 1e30, "weight_decay": 1e30})
    with pytest.raises(CellFailed, match=r"weights are not finite after step 1"):
        run(settings=settings)
    with pytest.raises(CellFailed, match=r"weights are not finite after step 1"):
        finetune(tiny_lm(), ENCODER, ROWS, settings, 0, Accelerator())


class Idle(Method):
    """A loss without influence on any weight."""

    def forget_loss(self, step):
        return Terms(step.forget.sequence_nll() * 0.0)


def test_weights_that_do_not_move_fail_the_cell():
    with pytest.raises(CellFailed, match=r"no trained weight moved in 1 steps"):
        run(Idle())


def test_rows_without_an_answer_are_left_out_and_named():
    """B04: forget rows, retain rows, and rows of fine-tuning."""
    empty = [*FORGET, tiny_rows(1, "empty")[0].__class__(id="hollow", prompt="Who?", answer="")]
    _, outcome, _ = run("npo", forget=empty)
    assert outcome.rows_seen == 8 and any("hollow" in warning for warning in outcome.warnings)
    with pytest.raises(UserError, match=r"None of the 1 forget rows has an answer token"):
        run("npo", forget=empty[-1:])
    with pytest.raises(UserError, match=r"None of the 1 retain rows has an answer token"):
        run("npo+gdr", retain=empty[-1:])
    with pytest.raises(UserError, match=r"None of the 1 rows has an answer token"):
        finetune(tiny_lm(), ENCODER, empty[-1:], SGD, 0, Accelerator())


def test_a_long_question_leaves_the_answer_whole():
    """B04: the question is cut and not the answer, so that no row is trained on nothing."""
    encoder, row = tiny_encoder(32), tiny_rows(1)[0]
    long = row.__class__(id="long", prompt=row.prompt * 10, answer=row.answer)
    _, outcome = unlearn(methods.get("npo").build(), tiny_lm(), encoder, [long], [], SGD, 0, Accelerator())
    assert outcome.rows_seen == 1 and encoder.encode(long.prompt, long.answer).answer_length > len(row.answer) - 1
    verbose = row.__class__(id="verbose", prompt="Who?", answer=row.answer * 10)
    with pytest.raises(UserError, match="verbose"):
        unlearn(methods.get("npo").build(), tiny_lm(), encoder, [verbose], [], SGD, 0, Accelerator())


# -- B45: retain rows -------------------------------------------------------------------------------------------


class Recorder(Method):
    """Remembers the row ids it was shown."""

    retain: str = "nll"
    seen: list = []

    def forget_loss(self, step):
        self.seen.append(("forget", *step.forget.batch.row_ids))
        return Terms(-step.forget.sequence_nll())

    def retain_loss(self, step):
        self.seen.append(("retain", *step.retain.batch.row_ids))
        return Terms(step.retain.sequence_nll())


@pytest.mark.parametrize("forget, retain, epochs, steps", [(10, 3, 1, 4), (3, 10, 4, 4), (1, 1, 2, 2)])
def test_steps_follow_the_forget_rows_and_every_retain_row_is_seen(forget, retain, epochs, steps):
    """B45"""
    method = Recorder(seen=[])
    settings = TrainSettings(batch_size=3, epochs=epochs, learning_rate=1e-3)
    _, outcome, _ = run(method, settings, forget=ROWS[:forget], retain=ROWS[10 : 10 + retain])
    shown = method.seen[2:]  # the first two calls are the warm-up's
    assert outcome.steps == steps
    assert {i for kind, *ids in shown if kind == "retain" for i in ids} == {r.id for r in ROWS[10 : 10 + retain]}
    assert {i for kind, *ids in shown if kind == "forget" for i in ids} == {r.id for r in ROWS[:forget]}


@pytest.mark.parametrize("name", methods.names())
def test_no_retain_rows_is_an_error_for_each_method_that_needs_them(name):
    """B45: an empty retain set is never taken for no retain term."""
    if "retain" in methods.get(name).build().requirements:
        with pytest.raises(UserError, match=r"needs retain rows"):
            run(name, retain=[])


def test_no_retain_rows_is_no_error_for_others():
    run("npo", retain=[])


def test_retain_weight_zero_runs_no_retain_forward():
    method = Recorder(seen=[], retain_weight=0.0)
    run(method)
    assert {kind for kind, *_ in method.seen} == {"forget"}


# -- B35, B59, B27: the reference -------------------------------------------------------------------------------


def test_the_reference_shares_no_memory_and_never_moves():
    """B59; every architecture in `tests/unit/test_reference.py`."""
    lm = tiny_lm("smollm2")
    reference = Reference(lm)
    before = weights_hash(reference._lm)
    ours = {p.data_ptr() for p in lm.parameters()}
    assert not ours & {p.data_ptr() for p in reference._lm.parameters()}
    finetune(lm, ENCODER, ROWS, TrainSettings(learning_rate=1e-2), 0, Accelerator())
    assert weights_hash(reference._lm) == before != weights_hash(lm)


@pytest.mark.parametrize("lora", [None, LoraSettings(r=2, dropout=0.5)])
def test_at_step_zero_policy_and_reference_agree_and_then_part(lora):
    lora = lora and lora.model_copy(update={"dropout": 0.0})
    settings = TrainSettings(batch_size=8, epochs=3, learning_rate=1e-2, lora=lora)
    _, _, lines = run("npo+klr", settings)
    assert losses(lines, "forget")[0] == pytest.approx(2 / 0.1 * math.log(2), abs=1e-5)
    assert losses(lines, "retain")[0] == pytest.approx(0, abs=1e-6)
    assert losses(lines, "retain")[2] > 1e-6


def test_dropout_is_seeded_by_step_and_leaves_the_global_state_alone():
    settings = TrainSettings(batch_size=4, epochs=2, learning_rate=1e-2, lora=LoraSettings(r=2, dropout=0.5))
    torch.manual_seed(123)
    expected = torch.rand(1)
    torch.manual_seed(123)
    a, _, _ = run("npo+gdr", settings)
    assert torch.equal(torch.rand(1), expected)
    b, _, _ = run("npo+gdr", settings)
    c, _, _ = run("npo+gdr", settings, seed=1)
    assert weights_hash(a) == weights_hash(b) != weights_hash(c)
    assert not a.training


# -- B49: resume ------------------------------------------------------------------------------------------------


class Killed(BaseException):
    pass


def interrupted(folder, settings, after):
    def die(step, total):
        if step == after:
            raise Killed

    with pytest.raises(Killed):
        run("npo+klr", settings, hooks=Hooks(checkpoint=folder, progress=die))


@pytest.mark.parametrize("lora", [None, LoraSettings(r=2, dropout=0.2)])
def test_a_killed_run_resumes_to_the_same_weights(tmp_path, lora):
    settings = TrainSettings(
        batch_size=4, epochs=3, learning_rate=1e-2, schedule="cosine", warmup_steps=2, checkpoint_every=1, lora=lora
    )
    whole, outcome, lines = run("npo+klr", settings)
    interrupted(tmp_path, settings, after=4)
    told: list[int] = []
    again, resumed, rest = run("npo+klr", settings, hooks=Hooks(checkpoint=tmp_path, resumed=told.append))
    assert told == [3]
    assert weights_hash(again) == weights_hash(whole)
    assert (resumed.steps, resumed.tokens, resumed.flops) == (outcome.steps, outcome.tokens, outcome.flops)
    assert [line["forget_loss"] for line in rest] == [line["forget_loss"] for line in lines[3:]]


def test_a_checkpoint_of_other_settings_is_refused(tmp_path):
    """B49"""
    settings = TrainSettings(batch_size=1, accumulation=4, epochs=2, learning_rate=1e-2, checkpoint_every=1)
    interrupted(tmp_path, settings, after=3)
    other = settings.model_copy(update={"batch_size": 4, "accumulation": 1})
    with pytest.raises(UserError, match=r"made with other settings"):
        run("npo+klr", other, hooks=Hooks(checkpoint=tmp_path))


@pytest.mark.parametrize(
    "other",
    [
        {"method": "npo+klr", "beta": 0.5},
        {"method": "npo+gdr"},
        {"forget": ROWS[1:9]},
        {"retain": RETAIN[1:]},
        {"seed": 1},
    ],
)
def test_a_checkpoint_of_another_request_is_refused(tmp_path, other):
    """B49: another method, another hyper-parameter, other rows, another seed."""
    settings = TrainSettings(batch_size=4, epochs=2, learning_rate=1e-2, checkpoint_every=1)
    interrupted(tmp_path, settings, after=3)
    with pytest.raises(UserError, match=r"made with other (method|rows|seed)"):
        run(**{"method": "npo+klr", "settings": settings, "hooks": Hooks(checkpoint=tmp_path), **other})


def test_a_finished_run_takes_no_step_again(tmp_path):
    """B49: its last checkpoint is its end."""
    settings = TrainSettings(batch_size=4, epochs=2, learning_rate=1e-2, checkpoint_every=1)
    whole, outcome, _ = run("npo+klr", settings, hooks=Hooks(checkpoint=tmp_path))
    again, second, lines = run("npo+klr", settings, hooks=Hooks(checkpoint=tmp_path))
    assert weights_hash(again) == weights_hash(whole)
    assert (second.steps, second.tokens, losses(lines, "forget")) == (outcome.steps, outcome.tokens, [])


@pytest.mark.parametrize("content", [b"", b"half", None])
def test_a_damaged_checkpoint_is_one_line(tmp_path, content):
    """B49: nothing, no checkpoint at all, and the first half of one."""
    settings = TrainSettings(batch_size=4, epochs=2, learning_rate=1e-2, checkpoint_every=1)
    interrupted(tmp_path, settings, after=3)
    file = tmp_path / "checkpoint.pt"
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2] if content is None else content)
    with pytest.raises(UserError, match=r"cannot be read; remove it") as error:
        run("npo+klr", settings, hooks=Hooks(checkpoint=tmp_path))
    assert "\n" not in str(error.value)


def test_half_a_checkpoint_is_never_left(tmp_path, monkeypatch):
    settings = TrainSettings(batch_size=4, epochs=3, learning_rate=1e-2, checkpoint_every=1)
    interrupted(tmp_path, settings, after=3)
    saved = (tmp_path / "checkpoint.pt").read_bytes()

    def broken(obj, path):
        path.write_bytes(b"half")
        raise Killed

    monkeypatch.setattr(torch, "save", broken)
    with pytest.raises(Killed):
        run("npo+klr", settings, hooks=Hooks(checkpoint=tmp_path))
    assert (tmp_path / "checkpoint.pt").read_bytes() == saved


# -- schedule, clipping, precision, clock -----------------------------------------------------------------------


def test_warm_up_then_cosine():
    settings = TrainSettings(
        batch_size=8, epochs=8, learning_rate=1.0, schedule="cosine", warmup_steps=2, optimizer="sgd"
    )
    _, _, lines = run("npo", settings.model_copy(update={"learning_rate": 1e-3}))
    rates = [line["learning_rate"] / 1e-3 for line in lines]  # as set for the step after
    expected = [2 / 3] + [0.5 * (1 + math.cos(math.pi * (k - 2) / 6)) for k in range(2, 9)]
    assert rates == pytest.approx(expected)


def test_clipping_looks_at_the_trained_parameters_only():
    class HeadOnly(Method):
        def forget_loss(self, step):
            return Terms(-step.forget.sequence_nll())

        def trained_parameters(self, lm):
            return ["hf.lm_head.weight"]

    start = tiny_lm()
    lm, outcome, lines = run(HeadOnly(), SGD.model_copy(update={"clip": 0.5, "learning_rate": 1.0}))
    moved = {n for n, p in lm.named_parameters() if not torch.equal(p, dict(start.named_parameters())[n])}
    assert moved == {"hf.lm_head.weight"} == set(outcome.trained_names)
    step = lm.hf.lm_head.weight - start.hf.lm_head.weight
    assert lines[0]["grad_norm"] > 0.5 and step.norm().item() == pytest.approx(0.5, rel=1e-3)


def test_a_name_that_is_not_in_the_model_is_an_error():
    class Misnamed(Method):
        def forget_loss(self, step):
            return Terms(-step.forget.sequence_nll())

        def trained_parameters(self, lm):
            return ["hf.model.layers.0.mlp.w2.weight"]

    with pytest.raises(UserError, match=r"not in the model: hf.model.layers.0.mlp.w2.weight"):
        run(Misnamed())


def test_bf16_autocast_keeps_fp32_weights_and_nearly_the_same_update():
    a, _, exact = run("npo", SGD)
    b, _, rounded = run("npo", SGD.model_copy(update={"precision": "bf16"}))
    assert {p.dtype for p in b.parameters()} == {torch.float32}
    assert 0 < difference(a, b) < 0.05
    assert losses(rounded, "forget")[0] == pytest.approx(losses(exact, "forget")[0], rel=0.05)


def test_evaluation_and_warm_up_are_off_the_clock():
    import time

    clock = Clock()
    hooks = Hooks(evaluate=lambda lm, step, steps, last: time.sleep(0.05) or {"x": 1.0})
    lines: list[dict] = []
    hooks.log = lines.append
    unlearn(methods.get("npo").build(), tiny_lm(), ENCODER, FORGET, RETAIN, SGD, 0, Accelerator(), clock, hooks)
    assert clock.seconds["evaluate"] >= 0.1 and clock.seconds["warmup"] > 0 and clock.seconds["optimise"] > 0
    assert clock.cost == pytest.approx(sum(clock.seconds[p] for p in ("prepare", "optimise", "probe", "select")))
    assert [line["trajectory"] for line in lines if "trajectory" in line] == [{"x": 1.0}, {"x": 1.0}]


# -- B36: roles --------------------------------------------------------------------------------------------------


def test_a_target_that_does_not_know_the_forget_rows_is_named():
    """B36: a random model, a model trained on other rows (as the retrained one is), and the right one."""

    def doubts(lm, holdout=()):
        lm = frozen_copy(lm).requires_grad_(True)
        supply = Supply(holdout=holdout)
        method = methods.get("npo").build()
        _, outcome = unlearn(method, lm, ENCODER, FORGET_ROWS, [], SGD, 0, Accelerator(), supply=supply)
        return [warning for warning in outcome.warnings if "may not know" in warning]

    retrained = tiny_lm()
    finetune(retrained, ENCODER, RETAIN_ROWS, TrainSettings(epochs=30, learning_rate=2e-2), 0, Accelerator())
    (line,) = doubts(tiny_lm())
    assert "\n" not in line and "probability 0.0" in line
    assert len(doubts(retrained)) == 1
    (line,) = doubts(retrained, holdout=tiny_rows(4, "holdout", 90))
    assert "those of holdout rows 0." in line
    assert doubts(tiny_target()) == [] == doubts(tiny_target(), holdout=tiny_rows(4, "holdout", 90))


# -- B60: what rows carry ----------------------------------------------------------------------------------------


def test_what_a_benchmark_attaches_to_a_row_reaches_the_loss():
    """B60: nothing about a row is dropped on its way: ids reach the batch, and `prepare` sees the rows themselves."""

    class Indexed(Method):
        retain: str = "nll"
        seen: set = set()

        def prepare(self, context):
            rows = [*context.forget, *context.retain]
            return State(index={row.id: row.extra["index"] for row in rows})

        def forget_loss(self, step):
            self.seen.update(step.state["index"][row_id] for row_id in step.forget.batch.row_ids)
            return Terms(-step.forget.sequence_nll())

        def retain_loss(self, step):
            self.seen.update(step.state["index"][row_id] for row_id in step.retain.batch.row_ids)
            return Terms(step.retain.sequence_nll())

    def rows(prefix, start):
        return [replace(row, extra={"index": f"{prefix}{row.id}"}) for row in tiny_rows(4, prefix, start)]

    data = Benchmark({"forget": rows("f", 0), "retain": rows("r", 20)})
    method = Indexed(seen=set())
    run(method, TrainSettings(learning_rate=1e-3), forget=data.rows("forget"), retain=data.rows("retain"))
    assert method.seen == {row.extra["index"] for split in data.splits.values() for row in split}
    assert len(method.seen) == 8


# -- alternates, randomness, compute -----------------------------------------------------------------------------


def test_what_is_drawn_for_a_row_does_not_depend_on_its_batch():
    """Alternates, and a method's own randomness, are functions of seed, step and row."""

    class Drawn(Method):
        needs = frozenset({"alternate"})
        seen: dict = {}

        def prepare(self, context):
            return State(alternates={row.id: [f"Answer {i}." for i in range(50)] for row in context.forget})

        def forget_loss(self, step):
            for row_id, ids in zip(step.forget.batch.row_ids, step.alternate.batch.input_ids, strict=True):
                number = float(torch.rand((), generator=step.generator(row_id)))
                self.seen.setdefault((step.number, row_id), (ids[ids != ENCODER.pad_id].tolist(), number))
            return Terms(-step.forget.sequence_nll())

    whole, pieces = Drawn(seen={}), Drawn(seen={})
    run(whole, SGD.model_copy(update={"epochs": 2}))
    run(pieces, SGD.model_copy(update={"epochs": 2, "batch_size": 2, "accumulation": 4}))
    assert whole.seen == pieces.seen and len({tuple(ids) for ids, _ in whole.seen.values()}) > 5
    assert len({number for _, number in whole.seen.values()}) == len(whole.seen) == 16


def test_a_row_without_an_alternate_is_an_error():
    class Silent(Method):
        needs = frozenset({"alternate"})

        def prepare(self, context):
            return State(alternates={row.id: [""] for row in context.forget[1:]})

    with pytest.raises(UserError, match=r"8 forget rows have no alternate answer with a token"):
        run(Silent())


def test_what_is_computed_before_the_loop_counts_as_compute():
    """The reinforced model of WHP, sampled alternates, the reference's cached log-probabilities."""
    settings = SGD.model_copy(update={"max_steps": 1})
    plain = run("ga", settings)[1].flops
    cached = run("npo", settings)[1].flops
    assert cached == pytest.approx(plain * (1 + 1 / 3), rel=0.15)  # one forward pass more, without padding
    once, twice = (run("whp", settings, epochs=n, keep=8)[1].flops for n in (1, 2))
    assert once == pytest.approx(2 * plain, rel=0.1) and twice == pytest.approx(3 * plain, rel=0.1)


# -- selection --------------------------------------------------------------------------------------------------


def selector(values, lower=True, every=1):
    scores = iter(values)
    return Selector("x", every, lambda lm: next(scores), lower)


def test_the_best_checkpoint_is_put_back_and_its_time_is_charged():
    settings = TrainSettings(batch_size=4, epochs=2, learning_rate=1e-2)
    short, _, _ = run("npo", settings.model_copy(update={"max_steps": 2}))
    clock, hooks = Clock(), Hooks(selector=selector([0.5, 0.2, None, 0.2]))
    lm, _ = unlearn(
        methods.get("npo").build(), tiny_lm(), ENCODER, FORGET, RETAIN, settings, 0, Accelerator(), clock, hooks
    )
    assert hooks.selector.best == 2 and clock.seconds["select"] > 0
    assert weights_hash(lm) == weights_hash(short)
    higher = Hooks(selector=selector([0.5, 0.2, None, 0.2], lower=False))
    run("npo", settings, hooks=higher)
    assert higher.selector.best == 1


def test_a_killed_run_still_knows_its_best_checkpoint(tmp_path):
    settings = TrainSettings(batch_size=4, epochs=2, learning_rate=1e-2, checkpoint_every=1)
    whole, _, _ = run("npo", settings, hooks=Hooks(selector=selector([0.1, 0.4, 0.3, 0.2])))

    def die(step, total):
        if step == 4:
            raise Killed

    with pytest.raises(Killed):
        run("npo", settings, hooks=Hooks(checkpoint=tmp_path, progress=die, selector=selector([0.1, 0.4, 0.3, 0.2])))
    again, _, _ = run("npo", settings, hooks=Hooks(checkpoint=tmp_path, selector=selector([0.2])))
    assert weights_hash(again) == weights_hash(whole)


# -- what a method of one's own may get wrong, and rows that must stay out --------------------------------------


def returning(what):
    """A method whose forget loss is `what(nll)`."""

    class Returning(Method):
        retain: str = "nll"

        def forget_loss(self, step):
            return what(step.forget.sequence_nll())

    return Returning()


@pytest.mark.parametrize(
    ("what", "message"),
    [
        (lambda nll: Terms(nll, torch.ones(len(nll), 1)), r"weights of shape \[\d+, 1\]"),
        (lambda nll: -nll.mean(), "The forget loss is a Tensor; a loss returns Terms"),
    ],
)
def test_a_loss_of_the_wrong_kind_is_one_line(what, message):
    with pytest.raises(UserError, match=message):
        run(returning(what))


def test_a_loss_over_nothing_fails_the_cell_and_over_nothing_now_and_then_is_said():
    """B04: a mean over no token is no success."""
    with pytest.raises(CellFailed, match="forget loss was a mean over nothing in every step"):
        run(methods.get("ceu").build(skip=500, retain="nll"))
    seen = []

    def every_other(nll):
        if nll.requires_grad:
            seen.append(1)
        return Terms(-nll, torch.full_like(nll, float(len(seen) % 2)))

    _, outcome, _ = run(returning(every_other), SGD.model_copy(update={"epochs": 4, "learning_rate": 1e-3}))
    assert any("forget loss was a mean over nothing in 2 of 4 steps" in line for line in outcome.warnings)


def test_a_dual_variable_may_start_at_zero():
    _, _, lines = run("pdu", SGD.model_copy(update={"epochs": 2, "learning_rate": 1e-3}), retain_weight=0)
    assert len(losses(lines, "retain")) == 2
    with pytest.raises(UserError, match="retain"):
        run("pdu", retain=[], retain_weight=0)


def test_held_out_rows_are_never_trained_on():
    """The probe of a stop rule (the paper's D_val) is kept out of every step."""
    seen = set()

    class Recording(Method):
        retain: str = "none"
        stop: dict = {"rule": "forget-prob", "below": 1e-9, "every": 1, "probe": 2, "confirm": 3}

        def forget_loss(self, step):
            seen.update(step.forget.batch.row_ids)
            return Terms(-step.forget.sequence_nll())

    probers = []
    hooks = Hooks(progress=lambda *_: None)
    run(Recording(), SGD.model_copy(update={"epochs": 3, "learning_rate": 1e-4}), hooks=hooks)
    probers.append(hooks.prober)
    held_out = set(hooks.prober.held_out)
    assert len(held_out) == 3 and seen == {row.id for row in FORGET} - held_out


def test_dropout_is_on_while_training():
    settings = TrainSettings(max_steps=2, epochs=2, learning_rate=1e-2)
    without, with_half = (
        run("ga", settings.model_copy(update={"lora": LoraSettings(r=4, dropout=rate)}))[0] for rate in (0.0, 0.5)
    )
    assert difference(without, with_half) > 1e-4
