"""Deleted queues of which the object store does not know yet that they were deleted.

How it works. A deleted queue is gone from the state, and its files are not. The deletion of a queue
that may have some is remembered here, until a master has left a note at the store, and says so by
another DELETE_QUEUE record (`noted`). So the files go in the end, whoever ended in between, and
however long the store was away.

Format. docs/formats/state.md, "Deleted tiers".

Not here: the note, and what becomes of the files (`background/tier_garbage.py`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from itertools import pairwise
from typing import Final

from semel.broker.state.apply.codec import Reader
from semel.broker.state.apply.queues import QueueState
from semel.protos.errors import CorruptSegment
from semel.protos.ids import QueueId, QueueKey, TopicId

COUNT: Final = struct.Struct("<I")
QUEUE: Final = struct.Struct("<QI")


def may_have_files(queue: QueueState) -> bool:
    """The queue has a manifest, or its topic is tiered, so an attempt may have left files."""
    return bool(queue.tier.number or queue.settings.tier_after_ms)


def parts_of(keys: Iterable[QueueKey]) -> list[bytes]:
    """Canonical bytes."""
    found = sorted(keys)
    return [COUNT.pack(len(found)), *(QUEUE.pack(*key) for key in found)]


def read_keys(reader: Reader) -> set[QueueKey]:
    """The inverse of `parts_of`. Raises CorruptSegment."""
    (count,) = reader.unpack(COUNT)
    found = []
    for _ in range(count):
        topic_id, queue_id = reader.unpack(QUEUE)
        found.append(QueueKey(TopicId(topic_id), QueueId(queue_id)))
    if any(low >= high for low, high in pairwise(found)):
        raise CorruptSegment("state holds deleted queues in another order")
    return set(found)
