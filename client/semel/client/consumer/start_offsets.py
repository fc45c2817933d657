"""The offset at which a consumer begins to read a queue that it has just acquired.

It is the group's committed offset, or the one in the user's database, which then overrules the
brokers'. When that offset does not exist any more, `auto_offset_reset` decides.

Not here: locks (`consumer/locks.py`), SQL (`consumer/sql_offsets.py`).
"""

from __future__ import annotations

import asyncio
import logging
from typing import Literal

from semel.client.consumer.sql_offsets import Place, Progress, SqlOffsets
from semel.client.reading.feed_queue import FeedQueue
from semel.protos.errors import OffsetOutOfRange
from semel.protos.v1 import broker_pb2

logger = logging.getLogger(__name__)

Reset = Literal["earliest", "latest", "error"]


def start_of(
    group: str, queue: FeedQueue, committed: int, grant: broker_pb2.LockGrant, reset: Reset
) -> int:
    """Returns the first offset to read. `committed` is -1 when there is none.

    Raises OffsetOutOfRange when the offset lies beyond the queue's end, or does not exist and the
    caller wants an error then.
    """
    if grant.log_start_offset <= committed <= grant.high_watermark:
        return committed
    where = f"queue {queue.key.queue_id} of topic {queue.topic!r}"
    if committed > grant.high_watermark:
        raise OffsetOutOfRange(
            f"group {group!r} is at offset {committed} of {where}, which ends at"
            f" {grant.high_watermark}: the offsets are not of this queue",
            log_start_offset=grant.log_start_offset,
            log_end_offset=grant.high_watermark,
        )
    never = committed < 0
    if reset == "error":
        what = "never committed" if never else f"committed {committed}, trimmed away,"
        raise OffsetOutOfRange(
            f"group {group!r} {what} on {where}, and auto_offset_reset is 'error'; reset its"
            " offsets or choose where to begin",
            log_start_offset=grant.log_start_offset,
            log_end_offset=grant.high_watermark,
        )
    if not never:
        logger.warning(
            "committed offset was trimmed away group=%s topic=%s queue=%s offset=%s"
            " log_start_offset=%s",
            group,
            queue.topic,
            queue.key.queue_id,
            committed,
            grant.log_start_offset,
        )
    return grant.high_watermark if reset == "latest" and never else grant.log_start_offset


class StoredOffsets:
    """One consumer's rows in the user's database. Blocking calls run in threads."""

    def __init__(self, store: SqlOffsets, group: str) -> None:
        self.store = store
        self.cluster_id = ""
        """Set once the routes are known."""
        self._group = group

    def place(self, queue: FeedQueue) -> Place:
        """Returns the key of the queue's row."""
        return Place(
            self._group, self.cluster_id, queue.topic, queue.key.topic_id, queue.key.queue_id
        )

    async def claim(self, queue: FeedQueue, start: int, member_id: str) -> int:
        """Claims the row under the queue's token; returns its offset, `start` if it is new.

        Raises LockLost, Unavailable.
        """
        return await asyncio.to_thread(
            self.store.claim, self.place(queue), queue.token, start, member_id
        )

    async def move(self, queue: FeedQueue, before: int, offset: int) -> None:
        """Stores progress without results. Raises LockLost, Unavailable."""
        progress = Progress(self.place(queue), queue.token, before, offset)
        await asyncio.to_thread(self.store.move, progress)
