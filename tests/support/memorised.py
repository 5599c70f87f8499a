"""A small model that has learned invented records by heart, and those records as JSON lines: a user's own case."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from accelerate import Accelerator

from unlearnbench import models
from unlearnbench.benchmarks.base import Row
from unlearnbench.benchmarks.mini import model as embedded
from unlearnbench.benchmarks.tofu_mini import TofuMini
from unlearnbench.finetuning import finetune
from unlearnbench.language_model import LanguageModel
from unlearnbench.settings import ModelSettings, TrainSettings

TRAINING = TrainSettings(epochs=30, learning_rate=4e-3, batch_size=8, betas=(0.9, 0.98), schedule="linear", clip=0.3)
FORGET, RETAIN, HOLDOUT = 8, 16, 8


@dataclass(frozen=True)
class Memorised:
    """A model folder, and files with what it knows and with what it was never trained on."""

    model: Path
    forget: Path
    retain: Path
    holdout: Path


def write_rows(file: Path, rows: tuple[Row, ...]) -> Path:
    """`rows` as questions and answers, one JSON object a line."""
    lines = [
        json.dumps({"question": row.prompt, "answer": row.answer, "group": row.group}, ensure_ascii=False)
        for row in rows
    ]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return file


def memorise(folder: Path, dtype: str | None = None) -> Memorised:
    """Train the model on one author to forget and two to keep (seconds), and write everything into `folder`."""
    torch.set_num_threads(1)
    data = TofuMini()
    forget, retain, holdout = data.rows("forget")[:FORGET], data.rows("retain")[:RETAIN], data.rows("holdout")[:HOLDOUT]
    hf, tokenizer = embedded.build("llama-mini", 0)
    encoder = models.make_encoder(hf, tokenizer, ModelSettings(name="llama-mini", max_length=128))
    lm = LanguageModel(hf)
    finetune(lm, encoder, [*forget, *retain], TRAINING, 0, Accelerator(cpu=True))
    if dtype is not None:
        lm.hf.to(getattr(torch, dtype))
    models.save(lm, encoder, folder / "model")
    return Memorised(
        folder / "model",
        write_rows(folder / "forget.jsonl", forget),
        write_rows(folder / "retain.jsonl", retain),
        write_rows(folder / "holdout.jsonl", holdout),
    )
