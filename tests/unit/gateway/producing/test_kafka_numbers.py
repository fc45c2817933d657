"""Kafka's 31 bits in the sequence table's 64: equal records equal numbers, later ones higher."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.gateway.producing.kafka_numbers import (
    EPOCH_BITS,
    EPOCHS,
    GENERATIONS,
    first_sequence,
    kafka_epoch,
    number,
    table_epoch,
)
from semel.protos.errors import InvalidRequest

SPAN = 1 << 31


def test_the_first_epoch_has_the_client_s_own_numbers() -> None:
    assert number(0, 0, 10, -1) == (-1, 0, 9)
    assert number(0, 10, 5, 9) == (9, 10, 14)


def test_a_sequence_that_wraps_goes_on() -> None:
    last = SPAN - 3
    assert number(0, SPAN - 2, 2, last) == (SPAN - 3, SPAN - 2, SPAN - 1)
    assert number(0, 0, 7, SPAN - 1) == (SPAN - 1, SPAN, SPAN + 6)
    # A batch that contains the wrap begins before it.
    assert number(0, SPAN - 2, 4, last) == (SPAN - 3, SPAN - 2, SPAN + 1)
    assert number(0, 2, 3, SPAN + 1) == (SPAN + 1, SPAN + 2, SPAN + 4)


def test_a_retry_has_the_number_that_it_had_also_across_a_wrap() -> None:
    assert number(0, SPAN - 2, 2, SPAN + 50).base == SPAN - 2
    assert number(0, 5, 2, 5 * SPAN + 100).base == 5 * SPAN + 5


def test_the_first_batch_of_an_epoch_follows_the_last_one_of_the_epoch_before() -> None:
    first = 3 << EPOCH_BITS
    assert number(3, 0, 2, 77) == (77, first, first + 1)
    assert number(3, 0, 2, -1) == (-1, first, first + 1)
    # Once it is stored, a retry of it has the same number; what it names before it is its own.
    assert number(3, 0, 2, first + 1) == (first - 1, first, first + 1)


def test_epochs_have_ranges_of_their_own() -> None:
    assert number(EPOCHS - 1, 5, 10, -1).last < 1 << 63
    assert number(1, 0, 1, -1).base > number(0, SPAN - 1, 1, SPAN - 2).last
    assert kafka_epoch(table_epoch(7)) == 7
    assert table_epoch(0) == 1


@given(
    epoch=st.integers(0, EPOCHS - 1),
    generation=st.integers(0, GENERATIONS - 1),
    begin=st.integers(0, 3 * SPAN),
    counts=st.lists(st.integers(1, 1 << 22), min_size=1, max_size=40),
    seed=st.integers(0, 1000),
)
def test_numbers_are_those_of_the_records_whoever_counts(
    epoch: int, generation: int, begin: int, counts: list[int], seed: int
) -> None:
    """A model: records are counted without end. The gateway is told the count's lowest 31 bits, and
    knows the table as of any of the last 64 batches."""
    rng = random.Random(seed)
    first = first_sequence(epoch, generation)
    starts = [begin]
    for count in counts:
        starts.append(starts[-1] + count)
    for place, count in enumerate(counts):
        known = rng.randrange(max(0, place - 64), len(counts) + 1)
        last = first + starts[known] - 1 if starts[known] else -1
        found = number(epoch, starts[place] % SPAN, count, last, generation)
        assert found.base == first + starts[place]
        assert found.last == found.base + count - 1


def test_numbers_from_an_old_view_are_too_low_and_never_the_next_ones() -> None:
    """What makes it safe to answer only after a fence: such a batch is never taken for new."""
    last = 3 * SPAN + 17
    for old in (-1, 0, SPAN // 4, SPAN, 2 * SPAN + 5):
        found = number(0, (last + 1) % SPAN, 4, old)
        assert found.base <= last - SPAN // 2, "not among the batches that the table remembers"
        assert (found.base - (last + 1)) % SPAN == 0


def test_a_partition_that_a_split_has_made_begins_above_what_its_parent_has() -> None:
    """Its rows are the parent's, and its producers begin with 0."""
    parent_last = 5 * SPAN + 3
    found = number(0, 0, 2, parent_last, 1)
    first = first_sequence(0, 1)
    assert found == (parent_last, first, first + 1)
    assert first > parent_last
    assert number(0, 2, 4, found.last, 1) == (first + 1, first + 2, first + 5)
    assert number(0, 0, 2, found.last, 1).base == first, "a retry"
    assert number(0, 0, 2, parent_last, 0).base <= parent_last, "planted: without generations"


def test_generations_stay_inside_their_epoch() -> None:
    for epoch in (0, 1, EPOCHS - 1):
        starts = [first_sequence(epoch, generation) for generation in range(GENERATIONS)]
        assert starts == sorted(starts)
        assert starts[-1] < (epoch + 1) << EPOCH_BITS
        assert first_sequence(epoch, 0) == epoch << EPOCH_BITS
    assert number(EPOCHS - 1, 5, 10, -1, GENERATIONS - 1).last < 1 << 63
    with pytest.raises(InvalidRequest):
        number(0, 0, 1, -1, GENERATIONS)


@pytest.mark.parametrize("planted", ["nearest ignores the wrap", "epochs share a range"])
def test_the_model_catches_a_wrong_rule(planted: str) -> None:
    def wrong(epoch: int, base_sequence: int, count: int, last: int) -> tuple[int, int]:
        if planted == "epochs share a range":
            epoch = 0
        return (epoch << EPOCH_BITS) + base_sequence, count

    right = number(2, 0, 5, (2 << EPOCH_BITS) + SPAN - 1)
    assert wrong(2, 0, 5, (2 << EPOCH_BITS) + SPAN - 1)[0] != right.base
