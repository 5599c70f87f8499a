"""Whole evaluations by another library on the model in memory: lm-eval tasks by name or local YAML file.

Our tokenizer, BOS rule and precision are handed over; prompts that had to be shortened are counted; a task whose
options tie in every row (an adapter or a model that says the same for all) is flagged, not scored. The model's modes,
generation config and tokenizer, and the global random state are as before afterwards.
"""

from __future__ import annotations

import copy
import os
import random
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers.processors import TemplateProcessing

from unlearnbench.errors import UserError, did_you_mean
from unlearnbench.language_model import LanguageModel, evaluating
from unlearnbench.models import weights_hash
from unlearnbench.requests import External
from unlearnbench.text import Encoder

CACHE_VARIABLE = "UNLEARNBENCH_LM_EVAL_CACHE"  #: a folder for lm-eval's request cache; unset: none


def run_external(lm: LanguageModel, encoder: Encoder, request: External) -> dict[str, Any]:
    """Numbers as a JSON mapping: `results`, `value`, `metric`, `n`, …; or `error`, one line saying what is missing."""
    if request.library != "lm-eval":
        raise UserError(f"No adapter runs '{request.library}'; {did_you_mean(request.library, ['lm-eval'])}")
    return lm_eval_task(lm, encoder, request.name, **dict(request.options))


def lm_eval_task(
    lm: LanguageModel,
    encoder: Encoder,
    name: str,
    limit: int | None = None,
    num_fewshot: int | None = None,
    batch_size: int = 16,
) -> dict[str, Any]:
    """Run one task or group. `name` is one of lm-eval's, or the path of a task's YAML file."""
    import lm_eval
    from lm_eval.tasks import TaskManager

    task, manager = name, None
    if name.endswith((".yaml", ".yml")):
        task = _task_name(Path(name))
        manager = TaskManager(include_path=str(Path(name).parent), include_defaults=False)
    generation_config = copy.deepcopy(getattr(lm.hf, "generation_config", None))
    try:
        with evaluating(lm), _own_randomness():
            adapter = _adapter(lm, encoder, batch_size)
            found = lm_eval.simple_evaluate(
                model=adapter,
                tasks=[task],
                task_manager=manager,
                num_fewshot=num_fewshot,
                limit=limit,
                apply_chat_template=encoder.template == "chat",
                use_cache=_cache(lm, encoder),
                bootstrap_iters=0,
                random_seed=None,
                numpy_random_seed=None,
                torch_random_seed=None,
            )
    except (OSError, KeyError, ValueError) as error:
        line = str(error).strip().splitlines()[0][:300] if str(error).strip() else type(error).__name__
        return {"error": f"lm-eval task '{name}' did not run: {line} (tasks that are not local need the network)"}
    finally:
        if generation_config is not None:
            lm.hf.generation_config = generation_config
    return _summary(found, task, adapter.shortened, lm_eval.__version__)


@contextmanager
def _own_randomness() -> Iterator[None]:
    """Whatever a library draws or seeds inside, the global generators of Python, NumPy and torch are as before."""
    states = random.getstate(), np.random.get_state(), torch.random.get_rng_state()  # noqa: NPY002
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002
        torch.random.set_rng_state(states[2])


def _task_name(path: Path) -> str:
    if not path.is_file():
        raise UserError(f"There is no lm-eval task file {path}.")
    named = re.search(r"^(?:task|group):\s*['\"]?([\w.:-]+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    if named is None:
        raise UserError(f"{path} names no task: a line `task: NAME` is missing.")
    return named[1]


def _cache(lm: LanguageModel, encoder: Encoder) -> str | None:
    """lm-eval keys its cache by the request alone, so the file is named after the weights and the encoding."""
    folder = os.environ.get(CACHE_VARIABLE)
    if not folder:
        return None
    Path(folder).mkdir(parents=True, exist_ok=True)
    return str(Path(folder) / f"{weights_hash(lm)}-{encoder.fingerprint}")


def _adapter(lm: LanguageModel, encoder: Encoder, batch_size: int) -> Any:
    from lm_eval.models.huggingface import HFLM

    class Adapter(HFLM):  # type: ignore[misc]
        """lm-eval's own model class, which counts the texts it has to shorten."""

        shortened = 0

        def _loglikelihood_tokens(self, requests: Any, *args: Any, **options: Any) -> Any:
            self.shortened += sum(len(before) + len(after) > self.max_length + 1 for _, before, after in requests)
            return super()._loglikelihood_tokens(requests, *args, **options)

    return Adapter(
        pretrained=lm.hf,
        tokenizer=_with_bos(encoder),
        add_bos_token=encoder.tokenizer.bos_token_id is not None,
        batch_size=batch_size,
        softmax_dtype=torch.float32,
        device=str(lm.device),
        max_length=getattr(lm.config, "max_position_embeddings", None),
    )


def _with_bos(encoder: Encoder) -> Any:
    """A copy of the tokenizer that puts BOS in front of a text, as the encoder does."""
    tokenizer = copy.deepcopy(encoder.tokenizer)
    bos = tokenizer.bos_token_id
    if bos is not None and tokenizer.is_fast and tokenizer("a")["input_ids"][:1] != [bos]:
        token = tokenizer.bos_token
        tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
            single=f"{token} $A", special_tokens=[(token, bos)]
        )
    return tokenizer


def _summary(found: Any, task: str, shortened: int, version: str) -> dict[str, Any]:
    lines = found["results"].get(task) or next(iter(found["results"].values()))
    numbers = {k: float(v) for k, v in lines.items() if isinstance(v, (int, float)) and "stderr" not in k}
    numbers = {k: v for k, v in numbers.items() if k not in ("sample_len", "alias")}
    if not numbers:
        return {"error": f"lm-eval task '{task}' reported no number"}
    metric = next((name for name in numbers if name.split(",")[0] == "acc"), next(iter(numbers)))
    samples = [sample for rows in (found.get("samples") or {}).values() for sample in rows]
    return {
        "metric": metric,
        "value": numbers[metric],
        "results": numbers,
        "n": len(samples),
        "shortened": int(shortened),
        "all_options_tie": _all_tie(samples),
        "lm_eval": version,
    }


def _all_tie(samples: list[Any]) -> bool:
    """Whether every row's options have one and the same log-likelihood."""
    choices = []
    for sample in samples:
        options = [r[0] for r in sample["filtered_resps"] if isinstance(r, (tuple, list)) and len(r) == 2]
        if len(options) > 1:
            choices.append(len({float(option) for option in options}) == 1)
    return bool(choices) and all(choices)
