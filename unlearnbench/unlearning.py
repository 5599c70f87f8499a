"""Unlearning: all that goes before the training loop (requirements, adapter, reference, `prepare`), and the loop."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from accelerate import Accelerator

from unlearnbench.benchmarks.base import Row
from unlearnbench.clock import Clock, Meter, peak_memory_bytes
from unlearnbench.errors import UserError
from unlearnbench.finetuning import finetune, make_meter
from unlearnbench.language_model import LanguageModel
from unlearnbench.method import Method, PrepareContext, State
from unlearnbench.models import add_lora, frozen_copy, has_adapter
from unlearnbench.objective import Unlearning
from unlearnbench.order import generator
from unlearnbench.reference import Reference, token_nll
from unlearnbench.settings import TrainSettings
from unlearnbench.text import Encoded, Encoder
from unlearnbench.training import CellFailed, Hooks, Outcome, digest, run

#: Rows looked at, probability per token, and distance to rows never seen, from which a target is taken to know its rows
ROWS, KNOWN, MARGIN = 32, 0.5, 0.1


@dataclass
class Supply:
    """What a cell may draw on, beyond the target and its rows. An absent part leaves methods that need it skipped."""

    holdout: Sequence[Row] = ()
    generate: Callable[..., list[list[str]]] | None = None
    load_base: Callable[[], LanguageModel] | None = None
    stop_numbers: Mapping[str, Callable[[Any, Sequence[str]], float]] = field(default_factory=dict)


def missing(method: Method, retain: Sequence[Row], supply: Supply) -> str | None:
    """Why the method cannot be run with what there is, or None."""
    needs = method.requirements
    if "retain" in needs and not retain:
        return f"'{method.registered_name}' needs retain rows and there are none"
    if "holdout" in needs and not supply.holdout:
        return f"'{method.registered_name}' needs holdout rows and there are none"
    if "retrained" in needs and "retrained_prob" not in supply.stop_numbers:
        return f"the stop rule of '{method.registered_name}' needs the retrained model and there is none"
    if "base" in needs and supply.load_base is None:
        return f"'{method.registered_name}' needs the base model and there is none"
    return None


def unlearn(
    method: Method,
    lm: LanguageModel,
    encoder: Encoder,
    forget: Sequence[Row],
    retain: Sequence[Row],
    settings: TrainSettings,
    seed: int,
    accelerator: Accelerator,
    clock: Clock | None = None,
    hooks: Hooks | None = None,
    supply: Supply | None = None,
) -> tuple[LanguageModel, Outcome]:
    """Run a method on a target. Returns the unlearned model (`lm`, changed in place, or wrapped with its adapter).

    Raises `UserError` for requirements that are not met and settings the method refuses, `CellFailed` for a run gone
    wrong.
    """
    clock, hooks, supply = clock or Clock(), hooks or Hooks(), supply or Supply()
    reason = missing(method, retain, supply)
    if reason is not None:
        raise UserError(reason)
    if "accumulation" in method.broken_invariants and (settings.accumulation > 1 or accelerator.num_processes > 1):
        raise UserError(
            f"'{method.registered_name}' with protocol '{method.protocol}' is no mean over rows or tokens: it runs "
            "with accumulation 1 in one process only."
        )
    with clock.phase("encode"):
        coded, retain_coded = encoder.rows(forget), encoder.rows(retain)
        forget_rows, retain_rows = coded.rows, retain_coded.rows
    if not forget_rows:
        raise UserError(f"None of the {len(forget)} forget rows has an answer token.")
    if "retain" in method.requirements and not retain_rows:
        raise UserError(f"None of the {len(retain)} retain rows has an answer token.")
    if settings.lora is not None:
        lm = add_lora(lm, settings.lora, seed)
    lm.to(accelerator.device)
    with clock.phase("evaluate"):
        doubts = _doubts(lm, encoder, forget_rows, encoder.rows(supply.holdout).rows)
    spent = make_meter(lm)  # what is computed before the loop
    if not method.is_loop:
        context = _context(method, lm, encoder, forget, retain, settings, seed, supply, spent)
        outcome = _direct(method, lm, context, clock, spent)
        outcome.warnings += doubts
        return lm, outcome
    _choose_parameters(method, lm, settings)
    with clock.phase("prepare"):
        needs = method.requirements
        reference = Reference(lm) if "reference" in needs else None
        hooks.prober = hooks.prober or _prober(method, encoder, forget, retain, supply, seed, reference)
        held_out = getattr(hooks.prober, "held_out", frozenset[str]())
        forget = [row for row in forget if row.id not in held_out]  # what is probed is not prepared with either
        forget_rows = [row for row in forget_rows if row.source not in held_out]
        state = method.prepare(_context(method, lm, encoder, forget, retain, settings, seed, supply, spent))
        cached = None
        if "reference_nll" in needs:
            cached = token_nll(lm, forget_rows, encoder.pad_id)
            _count(spent, forget_rows)
        alternates = _alternates(state, encoder, forget) if "alternate" in needs else None
    prepared = accelerator.prepare(lm)
    objective = Unlearning(
        method,
        prepared,
        encoder,
        forget_rows,
        retain_rows,
        settings,
        seed,
        accelerator,
        state,
        reference,
        cached,
        alternates,
    )
    objective.meter.flops += spent.flops / accelerator.num_processes
    outcome = run(prepared, objective, settings, seed, accelerator, clock, hooks)
    outcome.warnings += doubts + coded.notes("forget rows") + retain_coded.notes("retain rows")
    return lm, outcome


def _doubts(lm: LanguageModel, encoder: Encoder, forget: Sequence[Encoded], holdout: Sequence[Encoded]) -> list[str]:
    """A warning when the target seems not to know the forget rows: a base, a retrained model, a wrong folder.

    It knows them when it gives their answers a probability (per token, geometric mean, mean over rows) of `KNOWN`, or
    clearly more than those of rows it was never trained on.
    """
    known = _mean_probability(lm, encoder, forget[:ROWS])
    if known >= KNOWN:
        return []
    line = f"the target may not know the forget rows: it gives their answers probability {known:.2f} per token"
    if not holdout:
        return [line]
    other = _mean_probability(lm, encoder, holdout[:ROWS])
    return [] if known > other + MARGIN else [f"{line}, and those of holdout rows {other:.2f}"]


def _mean_probability(lm: LanguageModel, encoder: Encoder, rows: Sequence[Encoded]) -> float:
    nll = token_nll(lm, rows, encoder.pad_id).values()
    return sum(math.exp(-float(each.mean())) for each in nll) / len(rows)


def _context(
    method: Method,
    lm: LanguageModel,
    encoder: Encoder,
    forget: Sequence[Row],
    retain: Sequence[Row],
    settings: TrainSettings,
    seed: int,
    supply: Supply,
    spent: Meter,
) -> PrepareContext:
    def finetuned(
        rows: Sequence[Row], finetune_settings: TrainSettings, start: LanguageModel | None = None
    ) -> LanguageModel:
        twin = frozen_copy(start or lm)
        for name, parameter in twin.named_parameters():  # LoRA: of a copy with the adapter, the adapter only
            parameter.requires_grad_(not has_adapter(twin) or "lora_" in name)
        spent.flops += finetune(twin, encoder, rows, finetune_settings, seed, Accelerator()).flops
        return twin

    def generate(prompts: Sequence[str], **options: Any) -> list[list[str]]:
        if supply.generate is None:
            raise UserError(f"'{method.registered_name}' samples answers, and this runner has no generator.")
        texts = supply.generate(lm, encoder, prompts, **options)
        for prompt, samples in zip(prompts, texts, strict=True):
            _count(spent, [encoder.encode(prompt, text) for text in samples])
        return texts

    random = torch.Generator().manual_seed(int(generator("prepare", seed).integers(2**62)))
    return PrepareContext(
        lm, encoder, forget, retain, random, generate, finetuned, settings=settings, load_base=supply.load_base
    )


def _count(spent: Meter, rows: Sequence[Encoded]) -> None:
    """Count one forward pass over rows."""
    spent.forward(sum(len(row.ids) for row in rows), sum(row.answer_length for row in rows), backward=False)


def _choose_parameters(method: Method, lm: LanguageModel, settings: TrainSettings) -> None:
    """Let only the named parameters move. Names that are not in the model are an error."""
    names = method.trained_parameters(lm)
    if names is None:
        if settings.lora is None:
            lm.requires_grad_(True)
        return
    known = dict(lm.named_parameters())
    absent = [name for name in names if name not in known]
    if absent or not names:
        raise UserError(
            f"'{method.registered_name}' names parameters that are not in the model: {', '.join(absent) or 'none'}."
        )
    for name, parameter in known.items():
        parameter.requires_grad_(name in set(names))


def _alternates(state: State, encoder: Encoder, forget: Sequence[Row]) -> dict[str, list[Encoded]]:
    texts: Mapping[str, Sequence[str]] = state["alternates"]
    encoded = {row.id: [encoder.encode(row.prompt, text, row.id) for text in texts.get(row.id, ())] for row in forget}
    found = {row_id: [e for e in rows if e.answer_length > 0] for row_id, rows in encoded.items()}
    without = [row_id for row_id, rows in found.items() if not rows]
    if without:
        raise UserError(f"{len(without)} forget rows have no alternate answer with a token, '{without[0]}' for one.")
    return found


def _prober(
    method: Method,
    encoder: Encoder,
    forget: Sequence[Row],
    retain: Sequence[Row],
    supply: Supply,
    seed: int,
    reference: Reference | None,
) -> Any:
    if method.stop is None:
        return None
    from unlearnbench.probing import make_prober

    random = torch.Generator().manual_seed(int(generator("probe", seed).integers(2**62)))
    return make_prober(method, encoder, forget, retain, supply.holdout, random, reference, supply.stop_numbers)


def _direct(method: Method, lm: LanguageModel, context: PrepareContext, clock: Clock, spent: Meter) -> Outcome:
    """A method that is no gradient loop."""
    parameters = dict(lm.named_parameters())
    before = digest(parameters)
    with clock.phase("optimise"):
        method.unlearn(context)
    after = digest(parameters)
    if not all(map(math.isfinite, itertools.chain.from_iterable(after))):
        raise CellFailed("the method left weights that are not finite")
    if after == before:
        raise CellFailed("the method changed no weight")
    trained = sorted(name for name, p in parameters.items() if p.requires_grad)
    count = sum(parameters[name].numel() for name in trained)
    return Outcome(0, 0, 0, 0, 0, 1, 0, 0, spent.flops, count, trained, peak_memory_bytes())
