"""Any causal model: found, judged by its files, loaded whole or not at all, saved so that it comes back the same."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import AddedToken
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.support.tokenizers import KINDS, model_for
from unlearnbench import hub, models
from unlearnbench.errors import UserError
from unlearnbench.language_model import LanguageModel
from unlearnbench.model_files import files_hash, identity, resolve
from unlearnbench.published import PUBLISHED
from unlearnbench.settings import LoraSettings, ModelSettings
from unlearnbench.testing.tiny import ARCHITECTURES, tiny_encoder, tiny_lm, tiny_tokenizer
from unlearnbench.text import Encoder

IDS = torch.tensor([[0, 40, 41, 42, 43]])


def logits(lm: LanguageModel) -> torch.Tensor:
    with torch.no_grad():
        return lm(IDS, torch.ones_like(IDS))


def settings(folder: Path | str, **values: Any) -> ModelSettings:
    return ModelSettings(name=str(folder), **{"template": "plain", **values})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    models.save(tiny_lm(), tiny_encoder(), tmp_path / "model")
    return tmp_path / "model"


# -- loading ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("architecture", [name for name in ARCHITECTURES if name != "qwen2"])
@pytest.mark.parametrize("head", ["as it was", "changed alone"])
def test_what_is_saved_comes_back_the_same(tmp_path: Path, architecture: str, head: str) -> None:
    """B57: the head of a tied model that was changed alone is not lost."""
    lm = tiny_lm(architecture)
    if head == "changed alone":
        weight = lm.model.get_output_embeddings().weight
        lm.model.get_output_embeddings().weight = torch.nn.Parameter(weight.detach() * 1.5)
    before = logits(lm)
    models.save(lm, tiny_encoder(), tmp_path)
    loaded = models.load(settings(tmp_path, attention="eager" if architecture == "gemma2" else "sdpa"))
    torch.testing.assert_close(logits(loaded.lm), before, rtol=0, atol=1e-6)
    assert models.weights_hash(loaded.lm) == models.weights_hash(lm)
    plain = AutoModelForCausalLM.from_pretrained(tmp_path)
    torch.testing.assert_close(plain(IDS).logits, before, rtol=0, atol=1e-6)


def test_tied_weights_stay_tied(tmp_path: Path) -> None:
    models.save(tiny_lm("smollm2"), tiny_encoder(), tmp_path)
    lm = models.load(settings(tmp_path)).lm
    assert lm.model.get_output_embeddings().weight is lm.model.get_input_embeddings().weight
    assert not any("lm_head" in name for name, _ in lm.named_parameters())
    twin = models.frozen_copy(lm)
    assert twin.model.get_output_embeddings().weight is twin.model.get_input_embeddings().weight


def test_equal_weights_that_are_not_shared_are_tied_again(tmp_path: Path) -> None:
    lm = tiny_lm("smollm2")
    lm.model.get_output_embeddings().weight = torch.nn.Parameter(
        lm.model.get_input_embeddings().weight.detach().clone()
    )
    models.save(lm, tiny_encoder(), tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["tie_word_embeddings"]


def test_dtype_and_attention_by_name(folder: Path) -> None:
    lm = models.load(settings(folder, dtype="bfloat16", attention="eager")).lm
    assert {p.dtype for p in lm.parameters()} == {torch.bfloat16}
    assert lm.config._attn_implementation == "eager"


def test_an_attention_that_an_architecture_lacks_names_the_one_it_has(tmp_path: Path) -> None:
    models.save(tiny_lm("gemma2"), tiny_encoder(), tmp_path)
    with pytest.raises(UserError, match="its architecture has no sdpa attention: take `attention: eager`"):
        models.load(settings(tmp_path))


def test_an_attention_that_is_not_installed_is_one_line(folder: Path) -> None:
    with pytest.raises(UserError) as caught:
        models.load(settings(folder, attention="flash_attention_2"))
    assert str(caught.value).startswith(f"The model '{folder}' cannot be loaded: ") and "\n" not in str(caught.value)


def test_the_positions_of_the_model_bound_the_length(folder: Path) -> None:
    assert models.load(settings(folder, max_length=9999)).encoder.max_length == 256
    assert (
        models.encoder_for(settings(folder, max_length=9999)).fingerprint
        == models.load(settings(folder, max_length=9999)).encoder.fingerprint
    )


def test_a_sampling_value_does_not_stop_the_saving(tmp_path: Path) -> None:
    lm = tiny_lm()
    lm.hf.save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    config = json.loads((tmp_path / "generation_config.json").read_text())
    (tmp_path / "generation_config.json").write_text(json.dumps({**config, "do_sample": False, "temperature": 0.6}))
    loaded = models.load(settings(tmp_path))
    models.save(loaded.lm, loaded.encoder, tmp_path / "again")
    assert models.load(settings(tmp_path / "again")).lm.hf.generation_config.eos_token_id == 1


# -- adapters --------------------------------------------------------------------------------------------------


def test_an_adapter_is_merged_into_its_base(folder: Path, tmp_path: Path) -> None:
    lora = models.add_lora(models.load(settings(folder)).lm, LoraSettings(r=2, dropout=0.0), 0)
    for name, parameter in lora.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, generator=torch.Generator().manual_seed(0))
    lora.eval()
    before = logits(lora)
    lora.hf.save_pretrained(tmp_path / "adapter")
    assert not (tmp_path / "adapter" / "config.json").exists()
    loaded = models.load(settings(tmp_path / "adapter"))
    torch.testing.assert_close(logits(loaded.lm), before, rtol=0, atol=1e-4)
    assert not torch.allclose(before, logits(models.load(settings(folder)).lm), atol=1e-3)
    assert not models.has_adapter(loaded.lm)
    assert models.encoder_for(settings(tmp_path / "adapter")).fingerprint == loaded.encoder.fingerprint
    known = identity(settings(tmp_path / "adapter"))
    assert known["base"] == identity(settings(folder))["files"] != known["files"]


def test_an_adapter_without_its_base_says_so(folder: Path, tmp_path: Path) -> None:
    models.add_lora(models.load(settings(folder)).lm, LoraSettings(r=2), 0).hf.save_pretrained(tmp_path / "adapter")
    folder.rename(tmp_path / "gone")
    with pytest.raises(UserError, match=f"no model folder '{folder}'"):
        models.load(settings(tmp_path / "adapter"))


# -- what cannot be used ---------------------------------------------------------------------------------------


def test_gguf_is_refused_with_the_way_out(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    only = tmp_path / "only"
    only.mkdir()
    (only / "model.Q4.gguf").write_bytes(b"GGUF")
    for name in (tmp_path / "model.gguf", only, "someone/Some-Model-GGUF", "missing.gguf"):
        with pytest.raises(UserError, match=r"is a GGUF file, .* give the original safetensors model"):
            resolve(settings(name))


def test_pickles_are_refused_unless_allowed(folder: Path) -> None:
    state = models.load(settings(folder)).lm.hf.state_dict()
    (folder / "model.safetensors").unlink()
    torch.save(state, folder / "pytorch_model.bin")
    with pytest.raises(UserError, match="pickled weights only, which can run code"):
        models.load(settings(folder))
    assert models.load(settings(folder, allow_pickle=True)).lm.config.model_type == "llama"


def change(folder: Path, **values: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **values}))


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (lambda f: (f / "config.json").unlink(), "holds no model: it has no config.json"),
        (lambda f: (f / "config.json").write_text("{"), "config.json is not JSON"),
        (lambda f: (f / "model.safetensors").unlink(), "has a config.json and no weights, or not all of them"),
        (lambda f: (f / "tokenizer.json").unlink() or (f / "tokenizer_config.json").unlink(), "has no tokenizer"),
        (
            lambda f: change(f, quantization_config={"quant_method": "gptq"}),
            r"is quantised \(gptq\) and cannot be trained",
        ),
        (lambda f: change(f, is_encoder_decoder=True, model_type="t5"), "is a t5: no causal language model"),
        (lambda f: change(f, model_type="nonsense"), "cannot be loaded: "),
        (lambda f: change(f, num_hidden_layers=3), "is not whole: the weights model.layers.2.* and 6 more are missing"),
        (lambda f: change(f, intermediate_size=48), "is not whole: the weights model.layers.0.* have another shape"),
        (lambda f: change(f, vocab_size=200), "is not whole|do not belong together"),
        (lambda f: (f / "model.safetensors").write_bytes(b"cut off"), "cannot be loaded: "),
    ],
)
def test_a_folder_that_cannot_be_used_is_one_line(folder: Path, harm: Any, said: str) -> None:
    harm(folder)
    with pytest.raises(UserError, match=said) as caught:
        models.load(settings(folder))
    assert "\n" not in str(caught.value)


def test_a_missing_shard_is_noticed_before_loading(folder: Path) -> None:
    models.load(settings(folder)).lm.hf.save_pretrained(folder, max_shard_size="4KB")
    (folder / "model.safetensors").unlink(missing_ok=True)
    shards = sorted(folder.glob("model-*.safetensors"))
    assert len(shards) > 1 and models.load(settings(folder))
    shards[0].unlink()
    with pytest.raises(UserError, match="no weights, or not all of them"):
        resolve(settings(folder))


def test_an_id_without_an_embedding_row_is_refused(folder: Path) -> None:
    """B50: a pad token that was added and never got a row."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_special_tokens({"pad_token": "<new pad>"})
    tokenizer.save_pretrained(folder)
    with pytest.raises(UserError, match=r"ids up to 259, the embedding 259 rows.*Resize the embedding"):
        models.load(settings(folder))


def test_unknown_names_are_answered_with_the_nearest() -> None:
    with pytest.raises(UserError, match=r"no model 'tofu-llama-2-7b-targt': .*did you mean 'tofu-llama-2-7b-target'"):
        resolve(settings("tofu-llama-2-7b-targt"))
    with pytest.raises(UserError, match="Models on the Hub are called owner/name"):
        resolve(settings("qqqqq"))


def test_a_name_without_network_is_one_line_within_five_seconds(tmp_path: Path) -> None:
    """Also in a fresh process, where the server never answers; what Python takes to start is not the Hub's time."""
    code = (
        "import socket, sys, time\n"
        "from unlearnbench.errors import UserError\n"
        "from unlearnbench.model_files import resolve\n"
        "from unlearnbench.settings import ModelSettings\n"
        "import huggingface_hub\n"
        "socket.create_connection = lambda *a, **k: time.sleep(60)\n"
        "start = time.monotonic()\n"
        "try:\n"
        "    resolve(ModelSettings(name='someone/some-model'))\n"
        "except UserError as error:\n"
        "    print(round(time.monotonic() - start, 1), 'torch' in sys.modules, error)\n"
    )
    environment = {"HF_HOME": str(tmp_path), "PATH": "", "PYTHONPATH": ":".join(sys.path)}
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=120)
    seconds, torch_loaded, line = found.stdout.strip().split(" ", 2)
    assert float(seconds) < 5 and torch_loaded == "False"
    assert "hf download someone/some-model" in line and "\n" not in line


# -- the Hub, short names and identities -----------------------------------------------------------------------


def test_short_names_stand_for_pinned_models(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def fetch(name: str, revision: str | None, patterns: Any, complete: Any) -> Path:
        asked.append((name, revision))
        assert complete(folder) and "*.bin" not in patterns and "*.py" not in patterns
        return folder

    monkeypatch.setattr(hub, "model_folder", fetch)
    assert resolve(settings("muse-news-target")) == folder
    resolve(settings("tofu-llama-3.2-1b-retrained90", revision="abc"))
    news = PUBLISHED["muse-news-target"]
    assert asked == [
        ("muse-bench/MUSE-News_target", news.revision),
        ("open-unlearning/tofu_Llama-3.2-1B-Instruct_retain90", "abc"),
    ]
    assert all(len(entry.revision) == 40 for entry in PUBLISHED.values() if entry.revision)


def test_a_published_model_takes_the_tokenizer_it_lacks(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "tokenizer"
    elsewhere.mkdir()
    for file in [*folder.glob("tokenizer*"), *folder.glob("special*"), *folder.glob("chat*")]:
        shutil.move(str(file), elsewhere)
    places = {PUBLISHED["muse-news-target"].repository: folder, PUBLISHED["muse-news-target"].tokenizer: elsewhere}
    monkeypatch.setattr(hub, "model_folder", lambda name, *_: places[name])
    assert models.load(settings("muse-news-target")).encoder.tokenizer.get_vocab() == tiny_tokenizer().get_vocab()
    assert models.load(settings(folder, tokenizer=str(elsewhere))).encoder.pad_id == 2


def test_the_identity_follows_the_bytes_of_the_files(folder: Path, tmp_path: Path) -> None:
    known = identity(settings(folder))
    shutil.copytree(folder, tmp_path / "copy")
    assert identity(settings(tmp_path / "copy")) == known
    (tmp_path / "copy" / "README.md").write_text("words")
    assert identity(settings(tmp_path / "copy")) == known
    raw = bytearray((tmp_path / "copy" / "model.safetensors").read_bytes())
    raw[-1] ^= 1
    (tmp_path / "copy" / "model.safetensors").write_bytes(raw)
    assert identity(settings(tmp_path / "copy")) != known
    assert identity(settings("llama-mini")) == {"embedded": "llama-mini", "version": 1}


def test_blobs_of_the_cache_are_known_by_their_names(folder: Path, tmp_path: Path) -> None:
    cached = tmp_path / "snapshot"
    shutil.copytree(folder, cached)
    (cached / "model.safetensors").unlink()
    blob = tmp_path / ("a" * 64)
    shutil.copy(folder / "model.safetensors", blob)
    (cached / "model.safetensors").symlink_to(blob)
    assert files_hash(cached) != files_hash(folder)
    before = files_hash(cached)
    blob.write_bytes(b"other")
    assert files_hash(cached) == before  # the Hub's library vouches for the name


# -- tokenizers ------------------------------------------------------------------------------------------------


def test_the_same_tokenizer_has_no_differences(tmp_path: Path) -> None:
    for name, make in KINDS.items():
        make().save_pretrained(tmp_path / name)
        assert models.differences(make(), AutoTokenizer.from_pretrained(tmp_path / name)) == [], name


def test_another_tokenizer_is_told_by_ten_strings() -> None:
    """B56"""
    assert len(models.PROBES) == 10
    made = {name: make() for name, make in KINDS.items()}
    for name, one in made.items():
        for other_name, other in made.items():
            assert bool(models.differences(one, other)) == (name != other_name), (name, other_name)
    parsed = KINDS["byte-level"]()
    parsed.add_special_tokens({"additional_special_tokens": [AddedToken("[INST]", special=True)]})
    assert models.differences(KINDS["byte-level"](), parsed) == [models.PROBES[-1], "[INST]."]


def test_a_tokenizer_that_does_not_come_back_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lm, encoder = model_for(KINDS["no-pad"]()), Encoder(KINDS["no-pad"]())
    models.save(lm, encoder, tmp_path / "fine")
    with pytest.raises(UserError, match=r"encodes .* in another way than before"):
        models.save(tiny_lm("qwen2"), tiny_encoder(), tmp_path / "qwen2")  # transformers would load Qwen's own class
    monkeypatch.setattr(encoder.tokenizer, "save_pretrained", lambda folder: KINDS["gpt-2"]().save_pretrained(folder))
    with pytest.raises(UserError, match=r"encodes .* in another way than before"):
        models.save(lm, encoder, tmp_path / "broken")


def test_half_precision_models_are_trained_in_full_precision_and_saved_as_they_are_loaded(tmp_path: Path) -> None:
    from unlearnbench import stages

    lm = tiny_lm(dtype=torch.bfloat16)
    models.master_weights(lm)
    assert {p.dtype for p in lm.parameters()} == {torch.float32}
    with torch.no_grad():
        next(iter(lm.parameters())).add_(1e-4)
    recorded = stages._save(models.Loaded(lm, tiny_encoder()), tmp_path, "bfloat16")["weights"]
    again = models.load(ModelSettings(name="tiny", dtype="bfloat16", template="plain"), tmp_path / "model")
    assert {p.dtype for p in again.lm.parameters()} == {torch.bfloat16}
    assert models.weights_hash(again.lm) == recorded
