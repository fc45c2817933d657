"""Which sequences of a queue's sequence table a batch of an idempotent Kafka producer has. Pure.

How it works. A Kafka producer numbers its records of a partition from 0 in each of its epochs, with
31 bits, after which it begins with 0 again. The sequence table never forgets: sequences of one
(queue, producer) only rise, across epochs. So each epoch has a range of its own, 2^48 wide, and
inside it a record has its number, counted on beyond 31 bits. The first epoch's range begins at 0:
its sequences are what Kafka's tools show.

A partition that a split has made begins with the rows of the queue that was split, and its
producers begin with 0. So the range of an epoch is divided by generations (`partitions.py`), 2^43
for each: what a partition gets is above all that it has from the ones that it descends from, and
below every later epoch.

The lowest 31 bits of a number are what the client says. The others follow from what the table has:
the number meant is the one nearest to the next one, because no batch that is still under way is
2^30 records away. What the gateway knows of the table may be old, if the producer has used another
gateway since. Then a number is too low by multiples of 2^31: it looks like an old duplicate, and
never like the next one. So such an answer counts only if the number was told by a fence that came
after it (`kafka_window.py`).

The chain of the table: every batch names the sequence before it. That is its own first one less 1,
and for the first batch of an epoch the last one that the table has.

Invariants
1. For one producer and queue, equal (epoch, position of the record) have equal sequences through
   whatever gateway, and later ones higher sequences.
2. Of one producer and epoch, no sequence of a partition is one of those that it descends from.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from semel.gateway.records import widen
from semel.protos.errors import InvalidRequest

EPOCH_BITS: Final = 48
GENERATION_BITS: Final = 43
GENERATIONS: Final = 1 << (EPOCH_BITS - GENERATION_BITS)
"""A queue of one slot has at most 16 splits before it."""
EPOCHS: Final = 1 << 15
"""Kafka's epochs are 0 to 2^15 - 1."""
FIRST_EPOCH: Final = 1
"""The table's epochs begin with 1, Kafka's with 0."""


class Numbers(NamedTuple):
    """Sequences of a batch: the one before it, its first, its last."""

    previous: int
    base: int
    last: int


def table_epoch(kafka_epoch: int) -> int:
    """Returns the epoch in the sequence table of one of Kafka's."""
    return kafka_epoch + FIRST_EPOCH


def kafka_epoch(epoch: int) -> int:
    """Returns Kafka's epoch of one in the sequence table."""
    return epoch - FIRST_EPOCH


def first_sequence(kafka_epoch: int, generation: int) -> int:
    """Returns the sequence of a partition's first record in an epoch."""
    assert 0 <= kafka_epoch < EPOCHS
    return (kafka_epoch << EPOCH_BITS) + (generation << GENERATION_BITS)


def number(
    kafka_epoch: int, base_sequence: int, count: int, last_sequence: int, generation: int = 0
) -> Numbers:
    """Returns the sequences of a batch of `count` records.

    `base_sequence` is the client's, `last_sequence` the last one that the table is known to have,
    or will have once what is under way is stored; -1 for none. Raises InvalidRequest.
    """
    if not 0 <= generation < GENERATIONS:
        raise InvalidRequest(f"{generation} splits lie behind the partition: it takes no more")
    first = first_sequence(kafka_epoch, generation)
    wide = widen(base_sequence, max(last_sequence - first, -1))
    if wide + count > 1 << GENERATION_BITS:
        raise InvalidRequest(f"sequence {base_sequence} is of no record that can have been sent")
    base = first + wide
    previous = base - 1
    if not wide and last_sequence < first:
        previous = last_sequence
    return Numbers(previous, base, base + count - 1)
