"""The encoding of eight kinds of tokenizer under four protocols: the same ids wherever a text is used."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from transformers import PreTrainedTokenizerFast

from tests.support.tokenizers import KINDS, model_for, phi_3, words
from unlearnbench.benchmarks.base import Benchmark, Row
from unlearnbench.errors import UserError
from unlearnbench.evaluation import evaluate
from unlearnbench.finetuning import finetune
from unlearnbench.generation import generate
from unlearnbench.language_model import LanguageModel
from unlearnbench.method import methods
from unlearnbench.requests import Generate, Score
from unlearnbench.scoring import score
from unlearnbench.settings import TrainSettings
from unlearnbench.text import IGNORE, PROTOCOLS, Encoder, collate
from unlearnbench.unlearning import unlearn

QUESTION, ANSWER = "What did the council postpone?", "The bridge vote."
ROW = Row("row", QUESTION, ANSWER, "group")
CHATS = ("llama-2", "chatml", "llama-3")
HAS_BOS = ("llama-2", "llama-3", "gpt-2", "no-pad", "adds-eos")


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def tokenizer(kind: str) -> PreTrainedTokenizerFast:
    return KINDS[kind]()


class Tiny(Benchmark):
    name = "tiny"


def fed(lm: LanguageModel, run: Callable[[], Any]) -> set[tuple[int, ...]]:
    """The rows of ids that reach the model while `run` runs, padding taken off by the attention mask."""
    seen: set[tuple[int, ...]] = set()

    def look(_module: Any, args: Any, kwargs: dict[str, Any]) -> None:
        ids, mask = kwargs.get("input_ids"), kwargs.get("attention_mask")
        for i, row in enumerate(ids):
            kept = row if mask is None or mask.dim() != 2 else row[mask[i].bool()]
            seen.add(tuple(kept.tolist()))

    handle = lm.model.get_decoder().register_forward_pre_hook(look, with_kwargs=True)
    try:
        run()
    finally:
        handle.remove()
    return seen


# -- one encoding ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_training_scoring_generation_and_membership_see_the_same_ids(
    tokenizer: PreTrainedTokenizerFast, protocol: str
) -> None:
    encoder, lm = Encoder(tokenizer, "auto", 256, protocol), model_for(tokenizer)
    row = encoder.encode(QUESTION, ANSWER, "row")
    prompt, ids = encoder.prompt_ids(QUESTION), row.ids
    assert row.prompt_length == len(prompt)
    settings = TrainSettings(max_steps=1, learning_rate=1e-4)

    trained = fed(lm, lambda: finetune(lm, encoder, [ROW], settings, 0, Accelerator(cpu=True)))
    assert trained == {ids}
    npo = methods.get("npo").build()
    unlearned = fed(lm, lambda: unlearn(npo, lm, encoder, [ROW], [], settings, 0, Accelerator(cpu=True)))
    assert unlearned == {ids}

    scored = fed(lm, lambda: score(lm, encoder, [Score(QUESTION, ANSWER)]))
    assert scored == {ids[:-1]}  # the last token predicts nothing
    data = Tiny({"forget": [ROW], "holdout": [ROW]})
    member = fed(lm, lambda: evaluate({"model": lm}, encoder, data, ["mink_auc"]))
    assert member == scored

    begun = fed(lm, lambda: generate(lm, encoder, [Generate(QUESTION, 1)]))
    assert begun == {tuple(prompt)}
    if protocol == "ours":
        assert ids[: len(prompt)] == tuple(prompt)


def test_ours_puts_one_bos_in_front_and_one_supervised_eos_behind(
    kind: str, tokenizer: PreTrainedTokenizerFast
) -> None:
    encoder = Encoder(tokenizer)
    row = encoder.encode(QUESTION, ANSWER)
    bos = tokenizer.bos_token_id
    assert (bos is not None) == (kind in HAS_BOS)
    if bos is not None:
        assert row.ids[0] == bos
        assert row.ids[: row.prompt_length].count(bos) == 1
        assert encoder.prompt_ids("") == [bos]
    labels = collate([row], encoder.pad_id).labels[0].tolist()
    assert labels[: row.prompt_length] == [IGNORE] * row.prompt_length
    assert labels[row.prompt_length :] == [
        *encoder.tokenizer(ANSWER, add_special_tokens=False)["input_ids"],
        encoder.eos_id,
    ]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_no_protocol_doubles_bos(tokenizer: PreTrainedTokenizerFast, protocol: str) -> None:
    """B17: the template writes BOS and the tokenizer adds another."""
    bos = tokenizer.bos_token_id
    if bos is None:
        pytest.skip("there is no BOS")
    for template in ("auto", "plain", "question-answer", "llama-2"):
        encoder = Encoder(tokenizer, template, 256, protocol)
        for ids in (
            list(encoder.encode(QUESTION, ANSWER).ids),
            list(encoder.encode("", ANSWER).ids),
            encoder.prompt_ids(QUESTION),
            encoder.prompt_ids(f"{tokenizer.bos_token}{QUESTION}", raw=True),
        ):
            assert ids[:2] != [bos, bos], (template, tokenizer.convert_ids_to_tokens(ids))


@pytest.mark.parametrize("make", [*(KINDS[name] for name in CHATS), phi_3])
def test_ours_frames_a_question_as_the_chat_template_does(make: Callable[[], PreTrainedTokenizerFast]) -> None:
    tokenizer = make()
    wanted = tokenizer.apply_chat_template(
        [{"role": "user", "content": QUESTION}],
        tokenize=True,
        add_generation_prompt=True,
        return_dict=False,
        date_string="26 Jul 2024",
    )
    assert Encoder(tokenizer).prompt_ids(QUESTION) == wanted


def test_the_date_of_a_chat_template_is_pinned() -> None:
    tokenizer = KINDS["llama-3"]()
    ours, published = (tokenizer.decode(Encoder(tokenizer, protocol=p).prompt_ids(QUESTION)) for p in PROTOCOLS[::2])
    assert "Today Date: 26 Jul 2024" in ours
    assert "Today Date: 10 Apr 2025\n\nYou are a helpful assistant." in published


def test_a_template_without_a_system_role_is_used_without_one() -> None:
    encoder = Encoder(KINDS["llama-2"](), protocol="open-unlearning")
    assert encoder.tokenizer.decode(encoder.prompt_ids(QUESTION)) == f"<s> [INST] {QUESTION} [/INST]"


def test_prompt_of_7_and_answer_of_3_leave_7_labels_out() -> None:
    """B19: a mapping in place of ids has the length 2."""
    tokenizer = words()
    tokenizer.chat_template = "{{ bos_token }}w1 w2 {% for m in messages %}{{ m['content'] }}{% endfor %} w3"
    row = Encoder(tokenizer).encode("w4 w5 w6", "w7 w8")
    assert len(row.ids) == 10
    assert collate([row], 2).labels[0].tolist().count(IGNORE) == 7


# -- where the protocols differ --------------------------------------------------------------------------------


def pieces(tokenizer: PreTrainedTokenizerFast, ids: Any) -> list[str]:
    return list(tokenizer.convert_ids_to_tokens(list(ids)))


def test_joint_encoding_lets_a_merge_cross_the_boundary_and_ours_does_not() -> None:
    """`Answer: ` ends in a space, which a joint encoding merges into the first word of the answer."""
    tokenizer = KINDS["byte-level"]()
    ours, joint = (Encoder(tokenizer, protocol=p).encode(QUESTION, "The bridge") for p in ("ours", "open-unlearning"))
    assert pieces(tokenizer, ours.ids[ours.prompt_length - 1 :])[:2] == ["Ġ", "T"]
    assert pieces(tokenizer, joint.ids[joint.prompt_length - 1 :]) == ["ĠThe", "Ġbridge", "<|end|>"]
    assert Encoder(tokenizer, protocol="open-unlearning").prompt_ids(QUESTION)[-1] == ours.ids[ours.prompt_length - 1]


def test_llama_2_ids_differ_between_ours_and_joint() -> None:
    tokenizer = KINDS["llama-2"]()
    ours, joint = (Encoder(tokenizer, "llama-2", protocol=p).encode(QUESTION, ANSWER) for p in ("ours", "tofu"))
    assert ours.ids[: ours.prompt_length] == joint.ids[: joint.prompt_length]
    assert tokenizer.decode(ours.ids) == f"<s> [INST] {QUESTION} [/INST] {ANSWER}</s>"  # a word starts with its space
    assert tokenizer.decode(joint.ids) == f"<s> [INST] {QUESTION} [/INST]{ANSWER}</s>"


def test_tofu_learns_and_generates_the_tag_and_muse_closes_nothing() -> None:
    tokenizer = words()
    rows = {p: Encoder(tokenizer, "question-answer", protocol=p).encode("w1", "w2") for p in PROTOCOLS}
    answers = {p: len(row.ids) - row.prompt_length for p, row in rows.items()}
    joined = tokenizer("Question: w1\nAnswer: w2")["input_ids"]
    assert rows["muse"].ids == tuple(joined)
    assert rows["open-unlearning"].ids == rows["tofu"].ids == (*joined, 1)
    assert answers == {"ours": 2, "tofu": 3, "open-unlearning": 2, "muse": 1}
    assert len(Encoder(tokenizer, "question-answer", protocol="tofu").prompt_ids("w1")) == rows["tofu"].prompt_length


@pytest.mark.parametrize(
    ("protocol", "closed", "label_0"),
    [("ours", True, False), ("tofu", True, False), ("open-unlearning", False, False), ("muse", False, True)],
)
def test_texts(protocol: str, closed: bool, label_0: bool) -> None:
    row = Encoder(words(), "question-answer", protocol=protocol).encode("", "w1 w2 w3")
    assert row.ids == (0, 7, 8, 9, *([1] if closed else []))
    assert (collate([row], 2).labels[0, 0] != IGNORE) == label_0
    assert row.answer_length == len(row.ids) - 1


def test_a_tokenizer_that_closes_texts_does_not_close_prompts() -> None:
    tokenizer = KINDS["adds-eos"]()
    for protocol in PROTOCOLS:
        encoder = Encoder(tokenizer, protocol=protocol)
        assert encoder.eos_id not in encoder.prompt_ids(QUESTION)
        row = encoder.encode(QUESTION, ANSWER)
        assert row.ids.count(encoder.eos_id) == (0 if protocol == "muse" else 1)


def test_lm_eval_keeps_its_own_pair_encoding() -> None:
    """It moves trailing spaces of the context into the continuation and encodes the pair at once, without EOS."""
    from lm_eval.api.model import TemplateLM

    tokenizer = KINDS["byte-level"]()

    class Harness(TemplateLM):
        backend, eot_token_id = "causal", tokenizer.eos_token_id

        def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
            return list(tokenizer(string, add_special_tokens=bool(add_special_tokens))["input_ids"])

        def _loglikelihood_tokens(self, requests: Any, **_: Any) -> Any: ...

        def loglikelihood_rolling(self, requests: Any, disable_tqdm: bool = False) -> Any: ...

        def generate_until(self, requests: Any, disable_tqdm: bool = False) -> Any: ...

    context, continuation = Harness()._encode_pair(f"Question: {QUESTION}\nAnswer: ", "The bridge")
    ours = Encoder(tokenizer).encode(QUESTION, "The bridge")
    assert pieces(tokenizer, continuation) == ["ĠThe", "Ġbridge"]
    assert pieces(tokenizer, ours.ids[ours.prompt_length :]) == ["T", "he", "Ġbridge", "<|end|>"]
    assert list(ours.ids[: ours.prompt_length]) == [*context, *tokenizer(" ")["input_ids"]]


# -- data that looks like something else -----------------------------------------------------------------------


@pytest.mark.parametrize("name", CHATS)
def test_markers_inside_the_data_stay_data(name: str) -> None:
    tokenizer = KINDS[name]()
    encoder = Encoder(tokenizer)
    bare, marked = (encoder.prompt_ids(f"a{marker}b") for marker in ("", tokenizer.eos_token))
    specials = set(tokenizer.all_special_ids) | set(tokenizer.added_tokens_decoder)
    assert [i for i in marked if i in specials] == [i for i in bare if i in specials]
    assert [i for i in encoder.answer_ids(f"a{tokenizer.eos_token}b") if i in specials] == [encoder.eos_id]


def test_pad_that_is_eos_or_bos_costs_no_token() -> None:
    """B20: masks come from lengths; an answer that holds the EOS string is all supervised."""
    encoder = Encoder(KINDS["gpt-2"](), "plain")
    rows = [encoder.encode("ab", "cd"), encoder.encode("a", ""), encoder.encode("", "one<|endoftext|>two")]
    batch = collate(rows, encoder.pad_id)
    assert encoder.pad_id == encoder.eos_id == rows[0].ids[0]
    assert batch.attention_mask.sum(1).tolist() == [len(row.ids) for row in rows]
    assert (batch.labels != IGNORE).sum(1).tolist() == [len(row.ids) - row.prompt_length for row in rows]
    assert batch.labels[0, len(rows[0].ids) - 1] == encoder.eos_id


def test_no_pad_token_and_pad_0(tmp_path: Path) -> None:
    """B50: EOS pads where there is no pad token; the id 0 is a pad token like any other."""
    none, zero = Encoder(KINDS["no-pad"]()), Encoder(KINDS["unigram"]())
    assert none.tokenizer.pad_token_id is None and none.pad_id == none.eos_id
    assert zero.pad_id == 0
    lm, requests = model_for(none.tokenizer), [Score("a", "long answer of many tokens"), Score("bcd", "e")]
    together, _ = score(lm, none, requests)
    for request in requests:
        alone, _ = score(lm, none, [request])
        torch.testing.assert_close(torch.tensor(alone[request].logp), torch.tensor(together[request].logp))


# -- too long, and too short -----------------------------------------------------------------------------------


def test_a_long_prompt_is_cut_on_its_left_behind_bos_and_counted() -> None:
    encoder = Encoder(words(), "plain", max_length=10)
    question = " ".join(f"w{i}" for i in range(20))
    row = encoder.encode(question, "w30 w31 w32", "row")
    assert row.ids == (0, *range(6 + 15, 6 + 20), 36, 37, 38, 1)
    assert row.cut == 15
    coded = encoder.rows([replace(ROW, prompt=question, answer="w30 w31 w32"), replace(ROW, id="other", answer="w1")])
    assert coded.cut == {"row": 15}
    assert coded.notes("forget rows") == ["forget rows shortened to fit max_length: 1, by 15 tokens: row"]


def test_an_answer_that_does_not_fit_is_an_error() -> None:
    with pytest.raises(UserError, match="answer of row 'row' has 11 tokens; max_length 10 leaves no room"):
        Encoder(words(), "plain", max_length=10).encode("w1", " ".join(["w2"] * 10), "row")


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_long_text_becomes_windows_of_tokens(protocol: str) -> None:
    encoder = Encoder(words(), "plain", max_length=8, protocol=protocol)
    text = " ".join(f"w{i}" for i in range(17))
    coded = encoder.rows([Row("a", "", text), Row("b", "", "w1 w2")])
    closed = protocol in ("ours", "tofu")
    ids = [*range(6, 23), *([1] if closed else [])]
    assert [row.ids for row in coded.rows[:3]] == [(0, *ids[:7]), (0, *ids[7:14]), (0, *ids[14:])]
    assert [row.row_id for row in coded.rows] == ["a#1", "a#2", "a#3", "b"]
    assert [row.source for row in coded.rows] == ["a", "a", "a", "b"]
    assert coded.windows == {"a": 3} and not coded.cut and not coded.dropped
    first = encoder.encode("", text, "a")
    assert first.ids == (0, *ids[:7]) and first.row_id == "a" and first.cut == len(ids) - 7


def test_windows_are_cut_from_ids_and_not_from_text() -> None:
    """A window that is decoded and encoded again has other ids: its first word gets a space, its last one is cut."""
    encoder = Encoder(KINDS["llama-2"](), max_length=7)
    text = "What did the council postpone? The bridge vote was postponed until Monday."
    windows = encoder.windows(text)
    joined = [i for window in windows for i in window.ids[1:]]
    assert joined == encoder.answer_ids(text)
    again = [encoder.answer_ids(encoder.decode(window.ids))[:-1] for window in windows]
    assert again != [list(window.ids[1:]) for window in windows]


def test_every_window_is_trained_on_and_unlearned() -> None:
    tokenizer = words()
    encoder, lm = Encoder(tokenizer, "plain", 8), model_for(tokenizer)
    rows = [Row("a", "", " ".join(f"w{i}" for i in range(17))), Row("b", "", "w1 w2")]
    wanted = {row.ids for row in encoder.rows(rows).rows}
    settings = TrainSettings(epochs=1, batch_size=2, learning_rate=1e-4)
    assert fed(lm, lambda: finetune(lm, encoder, rows, settings, 0, Accelerator(cpu=True))) == wanted
    masc = methods.get("masc").build(cuts="fixed", min_prefix=1, min_suffix=1)
    for method in (masc, methods.get("whp").build(epochs=1), methods.get("idk-dpo").build(retain="none")):
        seen = fed(lm, lambda m=method: unlearn(m, lm, encoder, rows, rows, settings, 0, Accelerator(cpu=True)))
        assert seen >= wanted, method.registered_name


def test_rows_with_nothing_to_supervise_are_left_out_and_named() -> None:
    tokenizer = words()
    encoder, lm = Encoder(tokenizer, "plain", 64), model_for(tokenizer)
    rows = [Row("full", "w1", "w2"), Row("empty", "w1", ""), Row("space", "w1", " "), Row("nothing", "", "")]
    coded = encoder.rows(rows)
    assert [row.row_id for row in coded.rows] == ["full"]
    assert coded.dropped == ["empty", "space", "nothing"]
    outcome = finetune(lm, encoder, rows, TrainSettings(max_steps=1), 0, Accelerator(cpu=True))
    assert outcome.warnings[-1:] == ["rows without an answer token, left out: empty, space, nothing"]
    answers, counts = score(lm, encoder, [Score(row.prompt, row.answer) for row in rows])
    assert [len(scored) > 0 for scored in answers.values()] == [True, False, False, False]
    assert counts.dropped == [(row.prompt, row.answer) for row in rows[1:]]


# -- spans and keys --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_spans_name_the_characters_behind_each_token(
    kind: str, tokenizer: PreTrainedTokenizerFast, protocol: str
) -> None:
    encoder = Encoder(tokenizer, protocol=protocol)
    for prompt, raw in ((QUESTION, False), (QUESTION + " ", True), ("", False)):
        row = encoder.encode(prompt, ANSWER, raw=raw)
        spans = encoder.spans(prompt, ANSWER, raw)
        assert spans is not None and len(spans) >= row.answer_length
        assert spans[-1][1] == len(ANSWER) and spans == sorted(spans)
        if kind == "byte-level":  # a token for "The" behind a space belongs to a joint prompt
            said = "".join(ANSWER[start:end] for start, end in spans)
            whole = protocol == "ours" or prompt == "" or (protocol == "tofu" and not raw)
            assert said == (ANSWER if whole else ANSWER.removeprefix("The"))


def test_the_fingerprint_tells_every_encoding_from_every_other(kind: str, tokenizer: PreTrainedTokenizerFast) -> None:
    """B30: tokenizer, template, length and protocol; not what a call leaves behind in the tokenizer."""
    plain = Encoder(tokenizer, "plain", 64)
    prints = [
        plain.fingerprint,
        Encoder(tokenizer, "llama-2", 64).fingerprint,
        Encoder(tokenizer, "plain", 65).fingerprint,
        *(Encoder(tokenizer, "plain", 64, protocol).fingerprint for protocol in PROTOCOLS[1:]),
        *(Encoder(make(), "plain", 64).fingerprint for name, make in KINDS.items() if name != kind),
    ]
    assert len(set(prints)) == len(prints)
    tokenizer("a b c", truncation=True, max_length=1)
    assert Encoder(tokenizer, "plain", 64).fingerprint == plain.fingerprint
    if tokenizer.chat_template:
        changed = KINDS[kind]()
        before = Encoder(changed).fingerprint
        changed.chat_template += " "
        assert Encoder(changed).fingerprint != before


def test_a_new_version_of_the_encoding_is_a_new_fingerprint(monkeypatch: pytest.MonkeyPatch) -> None:
    before = Encoder(words()).fingerprint
    monkeypatch.setattr("unlearnbench.text.VERSION", 10**6)
    assert Encoder(words()).fingerprint != before


def test_unknown_names_are_answered_with_the_nearest() -> None:
    with pytest.raises(UserError, match=r"no encoding protocol 'open-unlearn'; did you mean 'open-unlearning'"):
        Encoder(words(), protocol="open-unlearn")
    with pytest.raises(UserError, match=r"no template 'llama2'; did you mean 'llama-2'"):
        Encoder(words(), "llama2")
    with pytest.raises(UserError, match="needs a tokenizer with a chat template"):
        Encoder(words(), "chat")
