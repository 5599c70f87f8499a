"""The embedded model and its tokenizer: made the same in every process, and fit for the rows of tofu-mini."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from statistics import mean

import pytest
import torch

from unlearnbench.benchmarks.base import Row
from unlearnbench.benchmarks.mini.model import MODELS, build, make_tokenizer
from unlearnbench.benchmarks.tofu_mini import TofuMini
from unlearnbench.errors import UserError
from unlearnbench.language_model import LanguageModel
from unlearnbench.models import load, make_encoder, save, weights_hash
from unlearnbench.settings import ModelSettings
from unlearnbench.text import Encoder

ROOT = Path(__file__).resolve().parents[2]
SPLITS = ("forget", "retain", "holdout", "tune_forget", "tune_retain")
#: A change of the tokenizer changes every number of the embedded model.
FINGERPRINT = "0e544edd092c0175"


@pytest.fixture(scope="module")
def bench() -> TofuMini:
    return TofuMini()


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return Encoder(make_tokenizer())


def answers(row: Row) -> tuple[str, ...]:
    return (row.answer, row.paraphrased_answer, *row.perturbed)


def test_one_kind_has_answers_of_60_to_100_tokens_and_the_others_are_short(bench: TofuMini, encoder: Encoder):
    for row in (row for split in SPLITS for row in bench.rows(split)):
        for answer in answers(row):
            tokens = len(encoder.answer_ids(answer)) - 1
            if row.extra["kind"] == "story":
                assert 60 <= tokens <= 100, (tokens, answer)
            else:
                assert 3 <= tokens <= 25, (tokens, answer)


def test_the_fact_of_a_long_answer_lies_in_its_second_half(bench: TofuMini, encoder: Encoder):
    """A cut of the answer in the middle leaves the fact in the continuation."""
    for row in (row for split in SPLITS for row in bench.rows(split) if row.extra["kind"] == "story"):
        before = row.answer[: row.answer.index(row.fact)]
        assert len(encoder.answer_ids(before)) - 1 > (len(encoder.answer_ids(row.answer)) - 1) / 2


def test_forget_and_holdout_names_are_cut_alike(bench: TofuMini, encoder: Encoder):
    def pieces(split: str) -> float:
        return mean(len(encoder.answer_ids(f" {name}")) - 1 for name in sorted({r.group for r in bench.rows(split)}))

    assert 2 < pieces("forget") < 6
    assert abs(pieces("forget") - pieces("holdout")) < 1
    assert abs(pieces("retain") - pieces("holdout")) < 1


def test_every_row_decodes_to_itself_and_fits(bench: TofuMini, encoder: Encoder):
    for split in bench.splits:
        for row in bench.rows(split):
            encoded = encoder.encode(row.prompt, row.answer)
            assert encoder.decode(encoded.ids[encoded.prompt_length :]) == row.answer
            assert len(encoded.ids) <= 128 and encoded.cut == 0


def test_chat_template_frames_a_question_once_and_closes_an_answer(encoder: Encoder):
    tokenizer = encoder.tokenizer
    messages = [{"role": "user", "content": "Who wrote Hamlet?"}, {"role": "assistant", "content": "It was written."}]
    text = tokenizer.apply_chat_template(messages, tokenize=False)
    assert text == "<bos><user>Who wrote Hamlet?<assistant>It was written.<eos>"
    assert encoder.template == "chat"
    encoded = encoder.encode("Who wrote Hamlet?", "It was written.")
    assert list(encoded.ids) == tokenizer(text, add_special_tokens=False)["input_ids"]
    begin, end, user, assistant = tokenizer.convert_tokens_to_ids(["<bos>", "<eos>", "<user>", "<assistant>"])
    assert [encoded.ids.count(i) for i in (begin, end, user, assistant)] == [1, 1, 1, 1]
    assert encoded.ids[-1] == end and encoded.ids[encoded.prompt_length - 1] == assistant


def test_markers_in_the_data_stay_text_and_any_text_can_be_written(encoder: Encoder):
    assert encoder.decode(encoder.answer_ids("a <eos> b")[:-1]) == "a <eos> b"
    assert encoder.eos_id not in encoder.answer_ids("a <eos> b")[:-1]
    assert encoder.decode(encoder.answer_ids("naïve 日本\t\n")) == "naïve 日本\t\n"


@pytest.mark.parametrize("name", MODELS)
def test_weights_follow_the_seed_and_leave_the_global_random_state_alone(name: str):
    torch.manual_seed(7)
    before = torch.random.get_rng_state()
    first, again, other = (LanguageModel(build(name, seed)[0]) for seed in (0, 0, 1))
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(8)
    elsewhere = LanguageModel(build(name, 0)[0])
    assert weights_hash(first) == weights_hash(again) == weights_hash(elsewhere) != weights_hash(other)


def test_tied_and_untied_heads():
    tied, untied = (build(name, 0)[0] for name in ("llama-mini", "llama-mini-untied"))
    assert tied.get_output_embeddings().weight is tied.get_input_embeddings().weight
    assert untied.get_output_embeddings().weight is not untied.get_input_embeddings().weight
    assert untied.num_parameters() - tied.num_parameters() == 1536 * 96


def test_width_and_name_are_checked():
    assert build("llama-mini", 0, width=32)[0].config.hidden_size == 32
    with pytest.raises(UserError, match=r"multiple of 8, got 100; the nearest is 96"):
        build("llama-mini", 0, width=100)
    with pytest.raises(UserError, match="did you mean 'llama-mini'"):
        build("lama-mini", 0)


def test_saved_and_loaded_it_is_the_same(tmp_path: Path, bench: TofuMini):
    settings = ModelSettings(name="llama-mini")
    hf, tokenizer = build("llama-mini", 3)
    lm, encoder = LanguageModel(hf), make_encoder(hf, tokenizer, settings)
    save(lm, encoder, tmp_path)
    loaded = load(settings, tmp_path)
    assert weights_hash(loaded.lm) == weights_hash(lm)
    assert loaded.encoder.fingerprint == encoder.fingerprint
    for row in bench.rows("forget"):
        assert loaded.encoder.encode(row.prompt, row.answer) == encoder.encode(row.prompt, row.answer)


@pytest.mark.parametrize("seed", ["0", "99"])
def test_every_process_makes_the_same_tokenizer(seed: str):
    code = (
        "from unlearnbench.benchmarks.mini.model import make_tokenizer; from unlearnbench.text import Encoder;"
        "print(Encoder(make_tokenizer()).fingerprint)"
    )
    env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}
    out = subprocess.run([sys.executable, "-c", code], env=env, cwd=ROOT, capture_output=True, text=True, check=True)
    assert out.stdout.strip() == FINGERPRINT
