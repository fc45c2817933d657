"""Kafka's sequences, which wrap after 2^31 - 1, as sequences of a queue, which never do.

A producer of Kafka numbers its records of a partition 0, 1, …, 2^31 - 1, 0, 1, … So its sequence
is the lowest 31 bits of a number that only rises. Batches are compared with what the queue has, and
no two batches that are compared are near 2^30 records apart: the nearest such number is the one
that the producer means.
"""

from __future__ import annotations

from typing import Final

SEQUENCE_SPAN: Final = 1 << 31
"""How many different sequences Kafka has."""


def widen(sequence: int, last_sequence: int) -> int:
    """Returns the number, 0 or above, with the lowest 31 bits `sequence` that is nearest to the
    one after `last_sequence`, the last sequence that the queue has of the producer (-1 for none).
    """
    expected = last_sequence + 1
    ahead = (sequence - expected) % SEQUENCE_SPAN
    found = expected + ahead
    if ahead > SEQUENCE_SPAN // 2 and found >= SEQUENCE_SPAN:
        found -= SEQUENCE_SPAN
    return found


def narrow(sequence: int) -> int:
    """Returns a sequence of a queue as Kafka's clients count it."""
    return sequence % SEQUENCE_SPAN
