"""The settings of a training stage and of a model: plain values, checked; no torch."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator


class Settings(BaseModel):
    """Frozen values; an unknown name or a value out of range is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class LoraSettings(Settings):
    """A LoRA adapter (peft). `target_modules` are name endings; `all-linear` means every linear layer but the head."""

    r: int = Field(16, ge=1)
    alpha: float = Field(32, gt=0)
    dropout: float = Field(0.05, ge=0, lt=1)
    target_modules: tuple[str, ...] | Literal["all-linear"] = "all-linear"


class SelectSettings(Settings):
    """Report the best checkpoint by a metric, scored every so many optimiser steps, or once an epoch."""

    metric: str
    every: Literal["epoch"] | int = "epoch"


class TrainSettings(Settings):
    """One run of the training loop, for fine-tuning and for unlearning.

    `batch_size` rows per micro-batch and process; an optimiser step sees `batch_size * accumulation * processes` rows.
    `epochs` counts passes over the rows (over the forget rows in unlearning). `retain_batch_size` is how many retain
    rows go with a forget micro-batch (None: as many as forget rows).
    """

    epochs: float = Field(1.0, gt=0)
    max_steps: int | None = Field(None, ge=1)
    learning_rate: float = Field(1e-5, gt=0)
    batch_size: int = Field(8, ge=1)
    retain_batch_size: int | None = Field(None, ge=1)
    accumulation: int = Field(1, ge=1)
    optimizer: Literal["adamw", "sgd"] = "adamw"
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = Field(0.0, ge=0)
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    warmup_steps: int | None = Field(None, ge=0)
    warmup_epochs: float | None = Field(None, ge=0)
    clip: float | None = Field(1.0, gt=0)
    precision: Literal["fp32", "bf16"] = "fp32"
    lora: LoraSettings | None = None
    bucket: bool = True  #: sort rows of similar length into the same batch (a seeded shuffle all the same)
    paraphrases: int = Field(0, ge=0)  #: fine-tuning only: this many other wordings of the prompt per row and epoch
    threads: int | None = Field(None, ge=1)  #: None: 1 for models under 20M parameters, else all cores
    select: Literal["last"] | SelectSettings = "last"  #: which checkpoint is reported: see `unlearnbench.selection`
    checkpoint_every: int | None = Field(None, ge=1)  #: optimiser steps between checkpoints a killed run resumes from

    @model_validator(mode="after")
    def _one_warmup(self) -> TrainSettings:
        if self.warmup_steps is not None and self.warmup_epochs is not None:
            raise ValueError("give warmup_steps or warmup_epochs, not both")
        return self


class ModelSettings(Settings):
    """Which model, and how to load it. `name` is an embedded model, a folder, or a Hub id."""

    name: str
    revision: str | None = None
    tokenizer: str | None = None  #: a folder or a Hub id, when the model has none of its own
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    attention: Literal["sdpa", "eager", "flash_attention_2"] = "sdpa"
    template: str = "auto"  #: how prompts are framed: see `unlearnbench.text`
    protocol: Literal["ours", "tofu", "open-unlearning", "muse"] = "ours"  #: whose encoding: see `unlearnbench.text`
    max_length: int = Field(512, ge=8)  #: tokens; prompts are cut on the left, answers never
    trust_remote_code: bool = False
    allow_pickle: bool = False
    width: int | None = Field(None, ge=8)  #: embedded models only: hidden size
