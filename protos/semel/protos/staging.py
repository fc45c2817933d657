"""What clients and brokers must agree on about staged batches: ids, and how they are counted.

How it works. Who stages has an identity of its own, a *stager*: a random number above every number
that controllers give to producers. Its batches carry it as their producer id and count their
messages from 0 in each queue. Both sides sum up a digest of each batch; a commit names the sums, so
that a batch which got lost, or which nobody meant, cannot be published.

Not here: transactions themselves (the broker's state, the client).
"""

from __future__ import annotations

import struct
from typing import Final

import google_crc32c

from semel.protos.batch import BatchHeader
from semel.protos.ids import GroupId

STAGER_ID_MIN: Final = 1 << 62
"""Producer ids from here on are stagers'; controllers count up from 1."""
STAGER_ID_END: Final = 1 << 63
STAGER_EPOCH: Final = 1
"""Producer epoch of every staged batch."""
DIGEST_MASK: Final = (1 << 64) - 1
TRANSACTION_ID_CHARACTERS_MAX: Final = 249
EPOCH_END: Final = 1 << 62
"""Above every epoch of a transaction."""
TTL_MS_MIN: Final = 1_000
TTL_MS_MAX: Final = 7 * 24 * 3_600_000
"""How long staged batches may wait for their commit."""

_BATCH: Final = struct.Struct("<QIqqIII")


def batch_digest(header: BatchHeader) -> int:
    """What one staged batch adds to its queue's sum: place, messages, content and stored bytes."""
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
    """The broker group that decides transactions, of all groups of the cluster.

    The one with the lowest number: groups are only ever added, with rising numbers, so whoever
    knows some old routes agrees with whoever knows the newest.
    """
    return min(groups)
