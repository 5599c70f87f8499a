"""The order of rows: a pure function of seed and step, whatever the micro-batches and processes."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
import torch

from unlearnbench.order import EpochOrder, StreamOrder, generator, split

LENGTHS = [5, 90, 7, 8, 70, 6, 9, 10, 11, 80, 12, 13, 14]


@pytest.mark.parametrize("lengths", [None, lambda epoch: LENGTHS])
def test_every_row_once_per_epoch_and_the_last_step_is_short(lengths):
    order = EpochOrder(13, 4, seed=3, lengths=lengths, name="x")
    assert order.steps_per_epoch == 4
    for epoch in range(3):
        steps = [order.rows(epoch * 4 + i) for i in range(4)]
        assert [len(s) for s in steps] == [4, 4, 4, 1]
        assert sorted(itertools.chain(*steps)) == list(range(13))
    assert order.rows(0) != order.rows(4)


def test_forty_rows_batch_eight_accumulation_four_are_two_steps():
    assert EpochOrder(40, 8 * 4, seed=0).steps_per_epoch == 2


@pytest.mark.parametrize("lengths", [None, LENGTHS])
def test_the_stream_shows_every_row_before_any_twice(lengths):
    order = StreamOrder(13, 3, seed=1, lengths=lengths, name="retain")
    seen = list(itertools.chain(*(order.rows(step) for step in range(8 * 13))))
    counts = np.bincount(seen, minlength=13)
    assert counts.min() == counts.max() == 24
    for passes in range(1, 8):  # after n passes' worth of steps, no row was seen less than n times
        steps = -(-13 * passes // 3)
        assert np.bincount(seen[: steps * 3], minlength=13).min() >= passes


def test_more_retain_rows_than_forget_rows_are_all_seen():
    retain = StreamOrder(10, 3, seed=0)
    assert {row for step in range(4) for row in retain.rows(step)} == set(range(10))


def test_bucketing_puts_similar_lengths_together():
    lengths = [10] * 32 + [100] * 32
    order = EpochOrder(64, 8, seed=1, lengths=lambda epoch: lengths)
    assert all(len({lengths[i] for i in order.rows(step)}) == 1 for step in range(8))
    shorts_first = [lengths[order.rows(step)[0]] for step in range(8)]
    assert shorts_first != sorted(shorts_first), "the steps themselves stay shuffled"


def test_the_rows_of_a_step_do_not_depend_on_where_one_starts_or_on_the_global_state():
    torch.manual_seed(1), np.random.seed(1), random.seed(1)  # noqa: NPY002
    before = (torch.rand(1), np.random.rand(), random.random())  # noqa: NPY002
    torch.manual_seed(1), np.random.seed(1), random.seed(1)  # noqa: NPY002
    stream = StreamOrder(13, 3, seed=5, lengths=LENGTHS)
    late = StreamOrder(13, 3, seed=5, lengths=LENGTHS).rows(77)
    assert [stream.rows(step) for step in range(78)][-1] == late
    assert (torch.rand(1), np.random.rand(), random.random()) == before  # noqa: NPY002
    assert StreamOrder(13, 3, seed=6, lengths=LENGTHS).rows(77) != late


def test_micro_batches_and_processes_share_the_rows_of_a_step():
    rows = list(range(14))
    for batch, world in [(14, 1), (2, 1), (4, 1), (2, 2), (3, 3)]:
        parts = [split(rows, batch, rank, world) for rank in range(world)]
        assert sorted(row for part in parts for micro in part for row in micro) == rows
        assert all(len(micro) <= batch for part in parts for micro in part)


def test_generators_are_stable_numbers():
    assert generator("step", 0, 0).integers(10**9) == 253_186_627  # a change would change every result
    assert generator("a", 1).integers(10**9) == generator("a", 1).integers(10**9)
    assert generator("a", 1).integers(10**9) != generator("a", 2).integers(10**9)
