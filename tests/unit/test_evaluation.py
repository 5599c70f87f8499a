"""Evaluation: every request once, the same values whatever stands beside, and nulls with reasons."""

from __future__ import annotations

import copy
import json
import socket
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
import torch

from unlearnbench import generation
from unlearnbench.attacks.base import attacks
from unlearnbench.benchmarks.base import Benchmark, Row
from unlearnbench.errors import UserError
from unlearnbench.evaluation import Evaluation, evaluate, rescore
from unlearnbench.language_model import LanguageModel
from unlearnbench.metric import Generate, GradNorm, Sample, Score, TokenScores, Value, expand, metrics, resolve
from unlearnbench.testing.tiny import tiny_encoder, tiny_lm, tiny_rows
from unlearnbench.text import Encoder, collate


class Tiny(Benchmark):
    name = "tiny"


def benchmark() -> Tiny:
    rows = tiny_rows(8, "f")
    return Tiny(
        {
            "forget": rows,
            "retain": tiny_rows(9, "r", 20),
            "retain_eval": tiny_rows(6, "r", 20),
            "holdout": tiny_rows(8, "h", 40),
            "real_authors": tiny_rows(5, "a", 60),
            "world_facts": tiny_rows(5, "w", 70),
            "knowmem_forget": tiny_rows(3, "k", 80),
            "knowmem_forget_icl": tiny_rows(2, "i", 90),
            "knowmem_retain": tiny_rows(3, "l", 100),
            "verbmem_forget": tiny_rows(3, "v", 110),
        }
    )


#: all built-in metrics but the adapters, which need a name
EVERYTHING = [entry.name for entry in metrics if not entry.meta.get("adapter")]
#: the same under every protocol they have
ALL = EVERYTHING + [f"{name}@{p}" for name in EVERYTHING for p in type(resolve(name)[1]).protocols if p != "ours"]


def taught(seed: int, dtype: torch.dtype = torch.float32) -> LanguageModel:
    """A tiny model that has begun to learn the rows: it writes words and ends them, some of them right."""
    return LanguageModel(copy.deepcopy(_taught(seed)).to(dtype))


@lru_cache
def _taught(seed: int) -> torch.nn.Module:
    lm, encoder, data = tiny_lm(seed=seed), tiny_encoder(), benchmark()
    rows = [row for split in ("forget", "retain_eval", "real_authors", "world_facts") for row in data.rows(split)]
    pairs = [(row.prompt, row.answer) for row in rows] + [(row.prompt, row.paraphrased_answer) for row in rows[14:]]
    batch = collate([encoder.encode(*pair) for pair in pairs], encoder.pad_id)
    optimiser = torch.optim.Adam(lm.parameters(), lr=2e-2)
    for _ in range(40):
        loss = lm.hf(input_ids=batch.input_ids, attention_mask=batch.attention_mask, labels=batch.labels).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    lm.zero_grad()
    return lm.hf.eval()


@pytest.fixture(scope="module")
def models() -> dict[str, LanguageModel]:
    return {role: taught(seed) for seed, role in enumerate(("model", "target", "base"))}


@pytest.fixture(scope="module")
def retrained() -> Evaluation:
    return evaluate(
        {role: taught(seed=7 + i) for i, role in enumerate(("model", "target", "base"))},
        tiny_encoder(),
        benchmark(),
        ALL,
    )


@pytest.fixture(scope="module")
def whole(models: dict[str, LanguageModel], retrained: Evaluation) -> Evaluation:
    return evaluate(models, tiny_encoder(), benchmark(), ALL, retrained)


def same(a: Evaluation, b: Evaluation, names: list[str]) -> None:
    for name in names:
        x, y = a.values[name], b.values[name]
        assert x.per_sample.keys() == y.per_sample.keys(), name
        for row_id, number in x.per_sample.items():
            assert close(number, y.per_sample[row_id], 1e-5), (name, row_id)
        assert close(x.score, y.score, 1e-4), (name, x.reason, y.reason)


def close(a: float | None, b: float | None, rel: float) -> bool:
    return a is b or (a is not None and b is not None and a == pytest.approx(b, rel=rel, abs=1e-5))


def test_everything_is_computed(whole: Evaluation) -> None:
    null = {name: whole.values[name].reason for name in EVERYTHING if whole.values[name].score is None}
    assert null == {}
    assert len(EVERYTHING) >= 60 and len(ALL) >= 100
    assert [name for name, value in whole.values.items() if value.score is None and not value.reason] == []


@pytest.mark.parametrize("budget", [1, 100, 10_000])
def test_batch_size_changes_nothing(
    models: dict[str, LanguageModel], retrained: Evaluation, whole: Evaluation, budget: int
) -> None:
    """Batches of one row, of about three, of all: every metric under every protocol."""
    other = evaluate(models, tiny_encoder(), benchmark(), ALL, retrained, token_budget=budget)
    same(other, whole, ALL)


def test_row_order_changes_nothing(models: dict[str, LanguageModel], retrained: Evaluation, whole: Evaluation) -> None:
    data = benchmark()
    turned = Tiny({s: rows if s.endswith("icl") else rows[::-1] for s, rows in data.splits.items()})
    other = evaluate(models, tiny_encoder(), turned, ALL[::-1], retrained)
    same(other, whole, ALL)


def test_other_metrics_change_nothing(
    models: dict[str, LanguageModel], retrained: Evaluation, whole: Evaluation
) -> None:
    for name in ALL:
        alone = evaluate(models, tiny_encoder(), benchmark(), [name], retrained)
        same(alone, whole, list(alone.values))


def plain_answers(models: dict[str, LanguageModel], encoder: Encoder, whole: Evaluation) -> dict[Any, Any]:
    """Every answer by the textbook: one sequence at a time, no tree, no cache, no draft."""
    answers: dict[Any, Any] = {}
    for request, engine in whole.answers.items():
        lm = models[request.role]
        if isinstance(request, Score):
            answers[request] = plain_score(lm, encoder, request, engine)
        elif isinstance(request, Generate):
            answers[request] = generation._text(
                encoder, plain_greedy(lm, encoder, request), generation.stop_ids(lm, encoder)
            )
        elif isinstance(request, GradNorm):
            answers[request] = plain_gradient(lm, encoder, request)
        else:
            assert isinstance(request, Sample)  # drawn one request at a time
            answers |= generation.sample(lm, encoder, [request], cache_bytes=1)
    return answers


def plain_score(lm: LanguageModel, encoder: Encoder, request: Score, engine: TokenScores) -> TokenScores:
    row = encoder.encode(request.prompt, request.answer, raw=request.raw)
    with torch.no_grad():
        logits = lm.hf(input_ids=torch.tensor([row.ids])).logits[0].float()
    logp, targets = logits.log_softmax(-1)[row.prompt_length - 1 : -1], torch.tensor(row.ids[row.prompt_length :])
    p = logp.exp()
    mean = (p * logp).sum(-1)
    own = torch.nn.functional.one_hot(targets, logp.shape[-1]).bool()
    return TokenScores(
        logp[torch.arange(len(targets)), targets].numpy(),
        (logp.argmax(-1) == targets).numpy(),
        mean.numpy(),
        ((logp - mean[:, None]) ** 2 * p).sum(-1).numpy(),
        logp.masked_fill(own, -torch.inf).topk(16).values.numpy(),
        engine.spans,
    )


def plain_greedy(lm: LanguageModel, encoder: Encoder, request: Generate) -> list[int]:
    ids, new = encoder.prompt_ids(request.prompt, request.raw), []
    room = 256 - request.max_new_tokens
    ids = ids if len(ids) <= room else [ids[0], *ids[len(ids) - room + 1 :]]
    while len(new) < request.max_new_tokens:
        with torch.no_grad():
            new.append(int(lm.hf(input_ids=torch.tensor([[*ids, *new]])).logits[0, -1].argmax()))
        if new[-1] == 1:
            break
    return new


def plain_gradient(lm: LanguageModel, encoder: Encoder, request: GradNorm) -> float:
    batch = collate([encoder.encode(request.prompt, request.answer)], encoder.pad_id)
    labels = batch.labels.clone()
    if request.drop_last:
        labels[0, -1] = -100
    lm.zero_grad()
    lm.hf(input_ids=batch.input_ids, labels=labels).loss.backward()
    norms = [float(p.grad.norm(request.p)) for p in lm.parameters() if p.grad is not None]
    lm.zero_grad()
    return sum(norms) / len(norms)


def test_equals_a_plain_loop(models: dict[str, LanguageModel], retrained: Evaluation, whole: Evaluation) -> None:
    answers = plain_answers(models, tiny_encoder(), whole)
    same(rescore(answers, benchmark(), ALL, retrained), whole, ALL)


def test_each_request_runs_once(whole: Evaluation) -> None:
    """All metrics together: each distinct (prompt, answer) of a role is forwarded once, each prompt generated once."""
    roles = {request.role for request in whole.answers}
    assert roles == {"model", "base", "target"}
    for role in roles:
        cost = whole.counts.get(f"score.{role}", {"sequences": 0, "asked": 0})
        pairs = {(r.prompt, r.answer, r.raw) for r in whole.answers if isinstance(r, Score) and r.role == role}
        later = whole.counts.get(f"follow_up.score.{role}", {"sequences": 0, "asked": 0})
        assert cost["sequences"] + later["sequences"] == len(pairs)
    cost = whole.counts["score.model"]
    assert cost["asked"] > 3 * cost["distinct"]
    generated = whole.counts["generate.model"]
    assert generated["distinct"] == len({r for r in whole.answers if isinstance(r, Generate)}) < generated["asked"]
    asked = [r for name in expand(ALL) for r in resolve(name)[1].requests(whole.data)]
    assert cost["asked"] == sum(isinstance(r, Score) and r.role == "model" for r in asked)


def test_drafts_save_work(models: dict[str, LanguageModel], whole: Evaluation) -> None:
    """A model that answers word for word needs no generation beyond scoring."""
    lm, encoder = models["model"], tiny_encoder()
    text = generation.generate(lm, encoder, [Generate("who", 128)])[Generate("who", 128)]
    if not text.ended or encoder._ids(text.text)[-1:] == []:
        pytest.skip("this tiny model says nothing that can be encoded again")
    data = Tiny({"forget": [Row("0", "who", text.text)]})
    found = evaluate({"model": lm}, encoder, data, ["forget_exact", "forget_rouge_l"])
    assert found.counts["generate.model"]["known_from_scoring"] in (0, text.tokens + 1)


def test_strict_json_and_samples(whole: Evaluation) -> None:
    lines = json.loads(json.dumps(whole.metrics_json(), allow_nan=False))
    assert {line["name"] for line in lines} == set(whole.values)
    for line in lines:
        assert line["direction"] in ("higher", "lower", "retrained")
        assert line["interval"] is None or line["interval"][0] <= line["value"] <= line["interval"][1] or line["n"] < 20
    frame = whole.samples()
    assert list(frame.columns) == ["metric", "split", "row_id", "group", "value"]
    mine = frame[frame.metric == "mink_auc"]
    assert set(mine.split) == {"forget", "holdout"} and (mine.group != "").all()
    prob = frame[frame.metric == "forget_prob"]
    assert prob.value.mean() == pytest.approx(whole.values["forget_prob"].score)


def test_intervals_contain_more_than_means(whole: Evaluation) -> None:
    lines = {line["name"]: line for line in whole.metrics_json()}
    for name in ("forget_prob", "model_utility", "mink_auc"):
        low, high = lines[name]["interval"]
        assert low < high
    assert lines["forget_quality"]["interval"] is None


def test_what_is_missing_is_null_with_its_reason(models: dict[str, LanguageModel]) -> None:
    """No reference, no number; no holdout, no AUC; no split, no score. Never a default."""
    data = benchmark()
    del data.splits["holdout"], data.splits["real_authors"]
    names = ["forget_quality", "mink_auc", "mink_auc_gap", "model_utility", "reference_auc", "privleak", "aggregate"]
    values = evaluate({"model": models["model"]}, tiny_encoder(), data, names).values
    for name in names:
        assert values[name].score is None and values[name].reason, name
    assert "holdout" in values["mink_auc"].reason
    assert "real_authors" in values["model_utility"].reason
    assert "no retrained model" in values["forget_quality"].reason
    held = evaluate({"model": models["model"]}, tiny_encoder(), benchmark(), ["reference_auc"]).values
    assert "'base'" in held["reference_auc"].reason


def test_rows_without_tokens_leave_the_others_alone(models: dict[str, LanguageModel]) -> None:
    """B04: an answer that does not fit is null in every metric, with its id; the others are unaffected."""
    rows = tiny_rows(3, "f")
    long = Row("long", "What?", "a" * 300, perturbed=("b",), fact="a", group="g")
    names = ["forget_prob", "forget_truth_ratio", "forget_exact", "forget_extraction_strength", "forget_fact_prob"]
    found = evaluate({"model": models["model"]}, tiny_encoder(), Tiny({"forget": [*rows, long]}), names)
    alone = evaluate({"model": models["model"]}, tiny_encoder(), Tiny({"forget": rows}), names)
    for name in names:
        assert found.values[name].per_sample["long"] is None
        assert found.values[name].score == pytest.approx(alone.values[name].score, rel=1e-5)
        assert found.values[name].n == 3
        assert found.counts["undefined_rows"][name] == ["long"]
    assert ["What?", "a" * 300] in found.counts["score.model"]["dropped"]


def test_nothing_is_remembered_between_models(whole: Evaluation) -> None:
    """B07: the same call on changed weights, or with another budget, computes anew."""
    lm, encoder, data = tiny_lm(seed=3), tiny_encoder(), benchmark()
    first = evaluate({"model": lm}, encoder, data, ["forget_prob"]).values["forget_prob"]
    with torch.no_grad():
        for parameter in lm.parameters():
            parameter.mul_(0.9)
    assert evaluate({"model": lm}, encoder, data, ["forget_prob"]).values["forget_prob"].score != first.score
    short, long = (metrics.get("forget_rouge_l").build(max_new_tokens=n) for n in (1, 20))
    assert set(short.requests(data)).isdisjoint(long.requests(data))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_every_metric_in_other_precisions(dtype: torch.dtype) -> None:
    """B47, B53: no metric or attack raises on a bfloat16 model, nor do exponentials overflow in half precision."""
    roles = {role: taught(i, dtype) for i, role in enumerate(("model", "target", "base"))}
    found = evaluate(roles, tiny_encoder(), benchmark(), EVERYTHING)
    json.dumps(found.metrics_json(), allow_nan=False)
    assert found.values["forget_prob"].score is not None
    nll = found.values["forget_answer_nll_by_target"]
    assert nll.score is not None and nll.details["perplexity"] == pytest.approx(np.exp(nll.score))


def test_a_ruined_model_gives_nulls_and_no_crash(retrained: Evaluation) -> None:
    """B24, B53: weights full of NaN, and logits so large that losses reach thousands."""
    ruined, extreme = tiny_lm(seed=5), tiny_lm(seed=6)
    with torch.no_grad():
        next(ruined.parameters()).fill_(float("nan"))
        extreme.model.get_output_embeddings().weight.mul_(3000)
    for lm in (ruined, extreme):
        roles = {"model": lm, "target": lm, "base": lm}
        found = evaluate(roles, tiny_encoder(), benchmark(), EVERYTHING, retrained)
        json.dumps(found.metrics_json(), allow_nan=False)
        assert all(value.score is not None or value.reason for value in found.values.values())
        if lm is ruined:  # what it says is a text like any other; its probabilities are no numbers
            asked = {name: [*resolve(name)[1].requests(found.data)] for name in EVERYTHING}
            scored = [name for name, r in asked.items() if r and not any(isinstance(x, Generate | Sample) for x in r)]
            assert len(scored) > 30
            assert {name: found.values[name].score for name in scored if found.values[name].score is not None} == {}
    values = found.values
    assert values["forget_logp"].score is not None and values["forget_logp"].score < -1000
    assert values["forget_prob"].score == pytest.approx(0, abs=1e-6)
    assert values["forget_log_truth_ratio"].score is not None


def test_an_answer_too_long_is_left_out_by_every_attack() -> None:
    """Gradient norms drop the row that scoring drops, and the evaluation goes on."""
    encoder, data = tiny_encoder(max_length=32), Tiny({"forget": tiny_rows(3, "f"), "holdout": tiny_rows(3, "h", 40)})
    long = Row("f-long", "who", " ".join(["word"] * 60))
    longer = Tiny({**data.splits, "forget": [*data.rows("forget"), long]})
    names = ["gradnorm_auc", "loss_auc"]
    short, found = (evaluate({"model": tiny_lm()}, encoder, d, names).values for d in (data, longer))
    for name in names:
        assert found[name].score == short[name].score is not None
        assert found[name].per_sample["f-long"] is None and found[name].details["undefined_rows"] == 1


def test_a_value_outside_its_range_is_null(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plug-in that gives 7 where it declares 0 to 1, in its score or in one sample of a mean that is inside."""
    data = Tiny({"forget": [Row("a", "a", "x"), Row("b", "b", "x")]})
    answers = {Score(p, "x"): TokenScores(np.array([-1.0]), np.array([False])) for p in "ab"}
    cls = metrics.get("forget_exact").cls
    for found, says in (
        (Value(7.0, details={"n": 2}), "its value is 7, outside the range of forget_exact: 0 to 1"),
        (Value.mean_of({"a": -1.0, "b": 2.0}), "row 'a' is -1, outside the range of forget_exact: 0 to 1"),
    ):
        monkeypatch.setattr(cls, "compute", lambda self, context, found=found: found)
        value = rescore(answers, data, ["forget_exact"]).values["forget_exact"]
        assert (value.score, value.reason) == (None, says)
    monkeypatch.setattr(cls, "compute", lambda self, context: Value(1 + 1e-8))
    assert rescore(answers, data, ["forget_exact"]).values["forget_exact"].score == 1 + 1e-8


def test_no_network(models: dict[str, LanguageModel], monkeypatch: pytest.MonkeyPatch) -> None:
    """B62: the whole suite runs with the network away."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise OSError("no network in this test")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    found = evaluate(models, tiny_encoder(), benchmark(), ["tofu", "mia", "muse", "memorization"])
    assert found.values["model_utility"].score is not None


def test_modes_come_back(models: dict[str, LanguageModel]) -> None:
    lm = tiny_lm("gpt2", resid_pdrop=0.3)
    lm.train()
    frozen = next(lm.parameters())
    frozen.requires_grad_(False)
    before = [(p.requires_grad, p.grad) for p in lm.parameters()]
    evaluate({"model": lm}, tiny_encoder(), benchmark(), ["forget_prob", "gradnorm_auc", "forget_rouge_l"])
    assert all(module.training for module in lm.modules())
    assert [(p.requires_grad, p.grad) for p in lm.parameters()] == before


def test_names_are_checked() -> None:
    lm, encoder, data = tiny_lm(), tiny_encoder(), benchmark()
    for name, hint in (("forget_rogue_l", "forget_rouge_l"), ("forget_prob@open_unlearning", "open-unlearning")):
        with pytest.raises(UserError, match=hint) as error:
            evaluate({"model": lm}, encoder, data, [name])
        assert "\n" not in str(error.value)
    with pytest.raises(UserError, match="no model to score"):
        evaluate({"target": lm}, encoder, data, ["forget_prob"])
    assert expand(["forget_prob@ours", "forget_prob"]) == ["forget_prob"]


def test_the_same_question_twice_scores_the_same(models: dict[str, LanguageModel]) -> None:
    """B61"""
    rows = [Row(str(i), "same?", "yes it is") for i in range(3)]
    value = evaluate({"model": models["model"]}, tiny_encoder(), Tiny({"forget": rows}), ["forget_prob"]).values
    assert len(set(value["forget_prob"].per_sample.values())) == 1


def test_rows_of_any_length_in_one_batch(models: dict[str, LanguageModel]) -> None:
    """B61: lengths 2 and 60 at batch 1, 3 and all."""
    rows = [Row(str(i), "q", "ab" * n) for i, n in enumerate((1, 30, 2, 17, 1, 29))]
    rows = [Row(r.id, r.prompt + r.id, r.answer) for r in rows]
    found = [
        evaluate({"model": models["model"]}, tiny_encoder(), Tiny({"forget": rows}), ["forget_logp"], token_budget=n)
        for n in (1, 190, 10_000)
    ]
    for other in found[1:]:
        np.testing.assert_allclose(
            list(other.values["forget_logp"].per_sample.values()),
            list(found[0].values["forget_logp"].per_sample.values()),
            rtol=1e-5,
        )


def test_max_new_tokens_cuts_every_text_and_counts_the_cut_ones(models: dict[str, LanguageModel]) -> None:
    names = ["forget_rouge_l", "forget_fact"]
    whole = evaluate(models, tiny_encoder(), benchmark(), names)
    cut = evaluate(models, tiny_encoder(), benchmark(), names, max_new_tokens=3)
    texts = {request: text for request, text in whole.answers.items() if isinstance(request, Generate)}
    longer = [request for request, text in texts.items() if text.tokens > 3]
    assert longer and texts.keys() <= cut.answers.keys()
    assert all(cut.answers[request].tokens == min(3, text.tokens) for request, text in texts.items())
    assert all(text.text.startswith(cut.answers[request].text.rstrip("\ufffd")) for request, text in texts.items())
    assert cut.counts["generate.model"]["cut"] == len(longer)
    assert evaluate(models, tiny_encoder(), benchmark(), names, max_new_tokens=500).values == whole.values


def test_low_precision_keeps_within_a_tolerance() -> None:
    """B61: in bfloat16 kernels depend on the shape of the batch; a row moves by less than 0.05 nats a token."""
    rows = [Row(str(i), f"q{i}", "ab" * n) for i, n in enumerate((1, 30, 2, 17, 1, 29))]
    lm = taught(0, torch.bfloat16)
    found = [
        evaluate({"model": lm}, tiny_encoder(), Tiny({"forget": rows}), ["loss_auc", "forget_logp"], token_budget=n)
        for n in (1, 190, 10_000)
    ]
    tokens = np.array([len(scores) for scores in found[0].answers.values()])
    for other in found[1:]:
        a, b = (np.array(list(each.values["forget_logp"].per_sample.values())) for each in (other, found[0]))
        assert (np.abs(a - b) / tokens).max() < 0.05


@pytest.mark.parametrize("name", [entry.name for entry in attacks])
def test_every_attack_takes_a_low_precision_model(name: str) -> None:
    """B47: attacks change the weights of a bfloat16 model, and every number can be computed of what comes out."""
    if name == "4bit":
        pytest.importorskip("bitsandbytes")
    attacked, record = attacks.get(name).build().apply(taught(0, torch.bfloat16))
    found = evaluate({"model": attacked}, tiny_encoder(), benchmark(), ["forget_prob", "mink_auc", "forget_rouge_l"])
    assert all(value.score is not None for value in found.values.values())
    json.dumps([record, found.metrics_json()], allow_nan=False)
