"""The encoding is part of every key: another template, length or protocol is another stage."""

from __future__ import annotations

from pathlib import Path

import pytest

from unlearnbench import schema
from unlearnbench.benchmarks.mini import model as embedded
from unlearnbench.models import encoder_for, make_encoder
from unlearnbench.plan import plan

BASE = {"max_length": 256}


def keys(**model: object) -> set[str]:
    lines = [f"model.{name}={value}" for name, value in {**BASE, **model}.items()]
    return {planned.stage.key for planned in plan(schema.load("quickstart", lines, methods=["ga"], seeds=[0]))}


def test_template_length_and_protocol_are_part_of_every_key() -> None:
    plain = keys()
    assert plain == keys() and len(plain) >= 6
    for change in ({"template": "plain"}, {"max_length": 128}, {"protocol": "open-unlearning"}):
        assert not plain & keys(**change), change


def test_a_changed_tokenizer_is_another_key(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, make = keys(), embedded.make_tokenizer

    def changed() -> object:
        tokenizer = make()
        tokenizer.chat_template += " "
        return tokenizer

    monkeypatch.setattr(embedded, "make_tokenizer", changed)
    assert not plain & keys()


def test_the_planned_encoder_is_the_one_of_the_loaded_model(tmp_path: Path) -> None:
    settings = schema.load("quickstart").model
    hf, tokenizer = embedded.build(settings.name, 0, 32)
    assert encoder_for(settings).fingerprint == make_encoder(hf, tokenizer, settings).fingerprint
    hf.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    saved = settings.model_copy(update={"name": str(tmp_path), "max_length": 9999})
    assert encoder_for(saved).max_length == embedded.CONTEXT
    assert encoder_for(saved).tokenizer.get_vocab() == tokenizer.get_vocab()
