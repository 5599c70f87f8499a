"""The work of a stage: how many passes over how many tokens, counted on the rows that it will see."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from unlearnbench.benchmarks.base import Benchmark, Row
from unlearnbench.costs.shapes import Shape
from unlearnbench.method import RETAIN, Method, methods
from unlearnbench.metric import Generate, GradNorm, Sample, Score, expand, resolve
from unlearnbench.order import EpochOrder, StreamOrder, split
from unlearnbench.scoring import ACCELERATOR, TOKEN_BUDGET
from unlearnbench.settings import TrainSettings
from unlearnbench.stopping import make_rule
from unlearnbench.text import Encoder
from unlearnbench.training import total_steps

CHARACTERS = 4.0  #: per token of English text, where there is no tokenizer to count with
FRAME = 12  #: tokens of a chat template
CACHE = 256 * 2**20  #: bytes of keys and values of one batch of generation, on a CPU
LATE = 1.3  #: the longest text of a batch against the mean
LOOKED = 512  #: steps of a training whose batches are looked at
REFERENCE_ROWS = 32  #: of a forward pass over the frozen reference
Length = tuple[int, int]  #: tokens of a row, and how many of them are answer


@dataclass(frozen=True)
class Work:
    """What a stage does. `passes` are passes over all layers; a backward pass is two."""

    flops: float = 0.0
    passes: float = 0.0
    steps: int = 0  #: optimiser steps
    trained: int = 0  #: parameters that an optimiser step moves
    tokens: int = 0  #: of the largest batch that is trained on, for memory
    answers: int = 0  #: positions of that batch that the head runs on
    copies: float = 0.0  #: further copies of the weights
    at_most: bool = False  #: an online stop may end it earlier

    def plus(self, other: Work) -> Work:
        """Both, one after the other."""
        return replace(self, flops=self.flops + other.flops, passes=self.passes + other.passes)


class Rows:
    """Lengths of rows in tokens: exact with an encoder, else from their characters."""

    def __init__(self, encoder: Encoder | None, max_length: int):
        self.encoder, self.max_length = encoder, max_length

    def of(self, rows: Iterable[Row]) -> list[Length]:
        """(tokens, answer tokens) of every row, long texts cut into windows."""
        if self.encoder is not None:
            return [(len(row.ids), row.answer_length) for row in self.encoder.rows(rows).rows]
        return [length for row in rows for length in self._guessed(row.prompt, row.answer)]

    def pair(self, prompt: str, answer: str, raw: bool) -> Length:
        """(tokens of the prompt, tokens of the answer)."""
        if self.encoder is None:
            frame = 0 if raw or not prompt else FRAME
            return round(len(prompt) / CHARACTERS) + frame, round(len(answer) / CHARACTERS) + 1
        prompted = len(self.encoder.prompt_ids(prompt, raw)) if prompt else 0
        return prompted, len(self.encoder.answer_ids(answer)) if answer else 0

    def _guessed(self, prompt: str, answer: str) -> list[Length]:
        if prompt:
            asked, said = self.pair(prompt, answer, False)
            return [(min(asked + said, self.max_length), said)]
        tokens = max(2, round(len(answer) / CHARACTERS))
        whole, rest = divmod(tokens, self.max_length)
        return [(self.max_length, self.max_length - 1)] * whole + ([(rest, rest - 1)] if rest > 1 else [])


# -- training --------------------------------------------------------------------------------------------------


def fine_tuning(shape: Shape, rows: Rows, data: Benchmark, spec: Mapping[str, Any]) -> Work:
    """Stages base, target, retrained."""
    settings = TrainSettings(**spec["settings"])
    trained_on = [row for split in spec["splits"] for row in data.rows(split)]
    lengths = rows.of(trained_on)
    worded = [row for row in trained_on if row.paraphrases and row.prompt]
    lengths = lengths + rows.of(worded) * settings.paraphrases
    return _trained(shape, lengths, settings, shape.total, int(spec["seed"]), "finetune")


def _trained(
    shape: Shape, lengths: Sequence[Length], settings: TrainSettings, trained: int, seed: int, name: str
) -> Work:
    """A training on rows: forward and backward passes over all steps. `name` is that of the order of the rows."""
    order = _order(lengths, settings, seed, name)
    steps = total_steps(settings, order.steps_per_epoch)
    seen = _seen(order, lengths, settings.batch_size, steps)
    work = _pass(shape, seen, backward=True, share=trained / shape.total)
    tokens, answers = _largest(lengths, settings.batch_size)
    return replace(work, steps=steps, trained=trained, tokens=tokens, answers=answers)


def unlearning(shape: Shape, rows: Rows, data: Benchmark, spec: Mapping[str, Any]) -> Work:
    """A method's training, with its reference, its probes and what it prepares of the reference."""
    settings, seed = TrainSettings(**spec["settings"]), int(spec["seed"])
    method: Method = methods.get(spec["cell"]["method"]).cls(**spec["cell"]["params"])
    forget = rows.of(data.rows(spec["forget"]))
    retain = rows.of(data.rows(spec["retain"])) if spec["retain"] in data.splits else []
    rule = make_rule(method.stop) if method.stop is not None else None
    if rule is not None and rule.reads and rule.source == "held-out":
        forget = forget[: max(1, len(forget) - rule.confirm_rows(len(forget)))]
    trained = _moved(shape, method, settings)
    base = _trained(shape, forget, settings, trained, seed, "forget")
    if not method.is_loop:
        return base
    whole = _forget_work(shape, method, forget, settings, base, seed)
    if method.uses_retain and retain:
        whole = whole.plus(_retain_work(shape, method, retain, settings, base, seed))
    if rule is not None and rule.reads:
        looks = base.steps // rule.every + 1
        probed = rule.probe + (2 * rule.retain_probe if rule.retain_kl_below is not None else 0)
        mean = [sum(part) / len(forget) * probed * looks for part in zip(*forget, strict=True)]
        whole = whole.plus(_pass(shape, Seen(mean[0], mean[1], 2 * looks)))
    second = settings.lora is None and "reference" in method.requirements
    return replace(whole, copies=float(second), at_most=rule is not None and bool(rule.reads))


def _forget_work(
    shape: Shape, method: Method, forget: Sequence[Length], settings: TrainSettings, base: Work, seed: int
) -> Work:
    order = _order(forget, settings, seed, "forget")
    seen = _seen(order, forget, settings.batch_size, base.steps)
    steered = type(method)._looks_at_layer is not Method._looks_at_layer
    depth = _depth(shape, method) if steered else None
    own = method.model_copy(update={"retain": "none", "stop": None}).requirements
    work = replace(base, flops=0.0, passes=0.0)
    for _ in range(2 if "alternate" in own else 1):
        work = work.plus(_pass(shape, seen, True, base.trained / shape.total, depth))
    if "reference" in own:
        work = work.plus(_pass(shape, seen, depth=depth))
    if "reference_nll" in own:
        once = [float(sum(part)) for part in zip(*forget, strict=True)]
        work = work.plus(_pass(shape, Seen(once[0], once[1], math.ceil(len(forget) / REFERENCE_ROWS))))
    return work


def _retain_work(
    shape: Shape, method: Method, retain: Sequence[Length], settings: TrainSettings, base: Work, seed: int
) -> Work:
    size = settings.retain_batch_size or settings.batch_size
    lengths = [length for length, _ in retain] if settings.bucket else None
    order = StreamOrder(len(retain), size * settings.accumulation, seed, lengths, "retain")
    seen = _seen(order, retain, size, base.steps)
    depth = _depth(shape, method) if method.retain == "hidden" else None
    work = _pass(shape, seen, True, base.trained / shape.total, depth)
    return work.plus(_pass(shape, seen, depth=depth)) if "reference" in RETAIN[method.retain] else work


def _moved(shape: Shape, method: Method, settings: TrainSettings) -> int:
    if settings.lora is not None and method.is_loop:
        return shape.lora(settings.lora)
    names = method.trained_parameters(shape.lm)
    return shape.total if names is None else shape.named(names)


def _depth(shape: Shape, method: Method) -> float:
    return (shape.lm.layer_index(method.layer) + 1) / shape.layers


class Seen(NamedTuple):
    """Token slots, answer slots and batches, padding included."""

    tokens: float
    answers: float
    batches: float


def _pass(shape: Shape, seen: Seen, backward: bool = False, share: float = 1.0, depth: float | None = None) -> Work:
    """Passes over what is seen, as `clock.Meter` counts them; with `depth` up to a hidden layer, without the head."""
    head = shape.head * seen.answers if depth is None else 0.0
    reached = 1.0 if depth is None else depth
    once = 2.0 * (shape.body * reached * seen.tokens + head)
    return Work(flops=once * (2 + share if backward else 1), passes=(3 if backward else 1) * seen.batches * reached)


def _order(lengths: Sequence[Length], settings: TrainSettings, seed: int, name: str) -> EpochOrder:
    """The order that the training loop will take the rows in."""
    plain = [length for length, _ in lengths]
    per_step = settings.batch_size * settings.accumulation
    return EpochOrder(len(lengths), per_step, seed, (lambda epoch: plain) if settings.bucket else None, name)


def _seen(order: EpochOrder | StreamOrder, lengths: Sequence[Length], size: int, steps: int) -> Seen:
    """What a training sees in its steps, from the order it will take; long trainings by their first steps."""
    looked = min(steps, LOOKED)
    tokens = answers = batches = 0
    for step in range(looked):
        for batch in split(order.rows(step), size, 0, 1):
            tokens += len(batch) * max(lengths[i][0] for i in batch)
            answers += len(batch) * max(lengths[i][1] for i in batch)
            batches += 1
    return Seen(*(count * steps / looked for count in (tokens, answers, batches)))


def _largest(lengths: Sequence[Length], size: int) -> tuple[int, int]:
    """Token and answer slots of the batch that takes the most memory: the longest rows together."""
    longest = sorted(lengths)[-size:]
    return len(longest) * max(length for length, _ in longest), len(longest) * max(said for _, said in longest)


# -- evaluation ------------------------------------------------------------------------------------------------


def scoring_work(shape: Shape, rows: Rows, data: Benchmark, names: Sequence[str], cut: int | None, large: bool) -> Work:
    """One evaluation: what all metrics ask for, each thing once. `large`: on an accelerator, with larger batches."""
    room = ACCELERATOR if large else 1
    asked = [request for name in expand(names) for request in resolve(name)[1].requests(data)]
    trees: dict[tuple[str, bool], list[int]] = defaultdict(list)
    prompts: dict[tuple[str, bool], int] = {}
    answers: dict[str, int] = {}
    for request in dict.fromkeys(r.bare for r in asked if isinstance(r, Score)):
        before, said = rows.pair(request.prompt, request.answer, request.raw)
        place = (request.prompt, request.raw) if request.prompt else (request.answer, True)
        prompts[place] = before
        trees[place].append(said)
        answers.setdefault(request.prompt, said)
    forwarded = sum(prompts[place] + sum(said) for place, said in trees.items())
    said = sum(sum(parts) for parts in trees.values())
    work = _pass(shape, Seen(forwarded, said, max(1.0, forwarded / (TOKEN_BUDGET * room))))
    texts = {
        (r.prompt, r.raw): (r.max_new_tokens if cut is None else min(cut, r.max_new_tokens), getattr(r, "n", 1))
        for r in asked
        if isinstance(r, Generate | Sample)
    }
    if texts:
        work = work.plus(_generated(shape, rows, texts, answers, CACHE * room))
    for graded in dict.fromkeys(r for r in asked if isinstance(r, GradNorm)):
        before, length = rows.pair(graded.prompt, graded.answer, False)
        work = work.plus(_pass(shape, Seen(before + length, length, 1), True))
    return work


def _generated(
    shape: Shape,
    rows: Rows,
    texts: Mapping[tuple[str, bool], tuple[int, int]],
    answers: Mapping[str, int],
    cache: float,
) -> Work:
    """Greedy or sampled texts, as long as the true answers where these are known."""
    before = [rows.pair(prompt, "", raw)[0] for prompt, raw in texts]
    new = [min(longest, answers.get(prompt, longest)) for (prompt, _), (longest, _) in texts.items()]
    count = sum(n for _, n in texts.values())
    longest = max(a + most for a, (most, _) in zip(before, texts.values(), strict=True))
    size = max(1, min(count, int(cache / max(1, 4 * shape.cache * longest))))
    batches = math.ceil(count / size)
    mean = sum(new) / len(new)
    return _pass(shape, Seen(sum(before) + sum(new), len(before) + sum(new), batches * (1 + LATE * mean)))
