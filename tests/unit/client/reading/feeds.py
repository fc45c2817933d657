"""A feed without a cluster: deliveries are put in by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from semel.client.config import ClientConfig
from semel.client.core.routing import Master
from semel.client.reading.feed_queue import Delivery, FeedQueue
from semel.client.reading.fetch import Feed
from semel.client.reading.pulling import Puller
from semel.protos.batch import BrokerHeader, Codec
from semel.protos.columns import Columns, encode_batch
from semel.protos.errors import SemelError
from semel.protos.ids import GroupId, Offset, QueueId, QueueKey, Term, TopicId

KEY = QueueKey(TopicId(1), QueueId(2))


def stored(
    values: list[bytes], base_offset: int, context: bytes | None = None, **columns: Any
) -> memoryview:
    batch = encode_batch(
        replace(Columns.from_arrow(values, **columns), context=context),
        topic_id=KEY.topic_id,
        queue_id=KEY.queue_id,
        producer_id=5,
        epoch=1,
        session=1,
        previous_sequence=base_offset + 99,
        base_sequence=base_offset + 100,
        last_sequence=base_offset + 99 + len(values),
        timestamp_us=777,
        codec=Codec.NONE,
    )
    header = BrokerHeader(base_offset=Offset(base_offset), append_time_us=1, term=Term(1))
    return memoryview(header.encode() + batch)


class Box:
    """A feed without a cluster: deliveries are put in by hand."""

    group = ""

    def __init__(self, prefetch_bytes: int = 1 << 20) -> None:
        self.woken = 0
        self.soon: list[Callable[[], None]] = []
        """What the I/O thread was asked to call; it calls nothing by itself."""
        self.ended: list[QueueKey] = []
        self.feed = Feed(
            self,
            None,  # type: ignore[arg-type]
            fetch_bytes=1 << 20,
            prefetch_bytes=prefetch_bytes,
            call_soon=self._call_soon,
        )
        self.queue = FeedQueue("t", KEY, GroupId(1), 0)
        self.feed.queues[KEY] = self.queue
        self.puller = Puller(self.feed)

    def _call_soon(self, function: Callable[[], None]) -> None:
        self.woken += 1
        self.soon.append(function)

    def on_queue_end(self, queue: FeedQueue) -> None:
        self.ended.append(queue.key)

    def on_queue_error(self, queue: FeedQueue, error: Exception) -> None:
        raise AssertionError("not asked for")

    def put(self, values: list[bytes], base_offset: int, **columns: Any) -> None:
        count = len(values)
        delivery = Delivery(
            self.queue,
            self.queue.turn,
            9,
            stored(values, base_offset, **columns),
            base_offset,
            0,
            count,
        )
        self.queue.offset = base_offset + count
        self.feed.deliver([delivery])


class Nowhere:
    """A cluster that starts nothing and notes which masters failed."""

    def __init__(self) -> None:
        self.routes = self
        self.config = ClientConfig()
        self.failed: list[Master] = []

    def spawn(self, coroutine: Any, name: str) -> None:
        coroutine.close()

    def replicas(self, group_id: GroupId) -> list[str]:
        return ["slave:1"]

    def on_master_error(self, group_id: GroupId, master: Master, error: SemelError) -> None:
        self.failed.append(master)
