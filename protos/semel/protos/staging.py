"""The contract of clients and brokers about staged batches: stager ids, and sums over batches.

How it works. A program that stages has an identity of its own, a *stager*: a random number above
every number that controllers give to producers. Its batches carry that number as their producer id,
and their sequences count from 0 in each queue. Both sides sum up a digest of each batch, and a
commit names the sums. So a commit is refused if a batch is missing, or if one is there that the
commit does not mean.

Not here: transactions themselves (the broker's state, the client).
"""

from __future__ import annotations

import struct
from typing import Final

import google_crc32c

from semel.protos.batch import BatchHeader
from semel.protos.ids import GroupId

STAGER_ID_MIN: Final = 1 << 62
"""The lowest id of a stager; controllers give producers ids from 1 upwards."""
STAGER_ID_END: Final = 1 << 63
STAGER_EPOCH: Final = 1
"""Producer epoch of every staged batch."""
DIGEST_MASK: Final = (1 << 64) - 1
TRANSACTION_ID_CHARACTERS_MAX: Final = 249
EPOCH_END: Final = 1 << 62
"""All epochs of transactions are below it."""
TIMED_EPOCH_MIN: Final = 1 << 60
"""Epochs from here on begin with the time (the Kafka gateway's), so those of an id that was
forgotten never come again. Numbers of programs are below."""
TTL_MS_MIN: Final = 1_000
TTL_MS_MAX: Final = 7 * 24 * 3_600_000
"""The longest time for which staged batches may wait for their commit."""

_BATCH: Final = struct.Struct("<QIqqIII")


def batch_digest(header: BatchHeader) -> int:
    """Returns the number that a staged batch adds to its queue's sum: a CRC of its place, messages,
    content and stored bytes."""
    return int(
        google_crc32c.value(
            _BATCH.pack(
                header.topic_id,
                header.queue_id,
                header.base_sequence,
                header.last_sequence,
                header.count,
                header.content_crc,
                header.body_crc,
            )
        )
    )


def coordinator_of(groups: list[GroupId]) -> GroupId:
    """Returns the broker group that decides transactions, out of all groups of the cluster.

    It is the one with the lowest number. Groups are only ever added, with rising numbers, so a
    client with old routes and one with the newest routes choose the same group.
    """
    return min(groups)
