"""The gateway's own producer: it stores for clients that do not number their records.

How it works. Such a client can tell a duplicate no better than Kafka's brokers can: what it sends
again is another batch. From the gateway on, the SDK's producer stores each batch once, under an id
of the gateway. Its messages do not pass the SDK's intake, since clients have chosen the queue and
wait for every batch.

A partition whose queue was split goes on in the queue's heir (`partitions.py`), whatever slots its
keys have. So the heir gets what the parent does not hold. The SDK's producer hears of a split when
a batch to the parent is refused. Here a batch may name a child before that: then the parent's lane
is told first.

Not here: fences, retries (`client/producer/`).
"""

from __future__ import annotations

import asyncio
import time
from typing import Final, Literal, NamedTuple

from semel.client.config import ProducerConfig
from semel.client.core.batching import Chunk, row_sizes
from semel.client.core.routing import QueueRoute, TopicRoute
from semel.client.producer.futures import await_settled
from semel.client.producer.intake import Intake
from semel.client.producer.lanes import Lane
from semel.client.producer.producer import ProducerCore
from semel.client.producer.topic import ProducerTopic
from semel.client.transport.cluster import Cluster
from semel.protos.batch import Codec
from semel.protos.columns import Columns
from semel.protos.errors import TimedOut, UnknownTopic
from semel.protos.ids import QueueId, QueueKey
from semel.protos.queue_refs import queue_ref
from semel.protos.v1 import control_pb2

DELIVERY_TIMEOUT_MS: Final = 30_000
LOOK_S: Final = 0.01
"""Seconds between two looks whether a split is known."""


class StoredAt(NamedTuple):
    """Where a batch begins."""

    queue: QueueKey
    offset: int
    """The queue's; -1 for a batch that is delayed."""


class _Turn:
    """Batches of one topic that wait until its splits are known, in the order of their coming."""

    __slots__ = ("lock", "waiters")

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.waiters = 0


class _GatewayProducer(ProducerCore):
    """A producer whose messages do not pass the intake."""

    def __init__(self, cluster: Cluster, config: ProducerConfig, intake: Intake) -> None:
        super().__init__(cluster, "", config, intake)
        self._turns: dict[str, _Turn] = {}

    async def submit(
        self, name: str, queue_id: QueueId, columns: Columns, time_us: int, due_us: int
    ) -> Chunk:
        """Sends messages to one queue of a topic, or to the one in which its partition goes on.
        Raises SemelError."""
        topic = await self.open_topic(name)
        target = None if name in self._turns else _open_heir(topic.route, queue_id)
        if target is None:
            topic, target = await self._after_splits(name, queue_id)
        chunk = Chunk(name, time_us, time.monotonic() + DELIVERY_TIMEOUT_MS / 1000, due_us)
        chunk.values, chunk.keys = columns.values, columns.keys
        chunk.headers, chunk.timestamps = columns.headers, columns.timestamps
        chunk.message_ids = columns.message_ids
        chunk.message_bytes_max = topic.message_bytes_max
        chunk.queues = target
        chunk.count = len(columns)
        chunk.bytes = int(row_sizes(columns).sum())
        self._keep(chunk)
        self._route(topic, chunk, 0)
        return chunk

    def _heirs(self, children: list[Lane]) -> list[Lane]:
        return children[:1]  # they are sorted by slot, and so by number

    async def _after_splits(self, name: str, queue_id: QueueId) -> tuple[ProducerTopic, int]:
        """Returns the topic once it knows the queue, and which queue to send to. Raises
        SemelError."""
        turn = self._turns.setdefault(name, _Turn())
        turn.waiters += 1
        until = time.monotonic() + DELIVERY_TIMEOUT_MS / 1000
        try:
            async with turn.lock:
                while True:
                    topic = await self.open_topic(name)
                    target = _open_heir(topic.route, queue_id)
                    if target is not None:
                        return topic, target
                    self._tell_splits(topic)
                    if time.monotonic() > until:
                        raise TimedOut(f"queue {queue_id} of topic {name!r} was not found in time")
                    await asyncio.sleep(LOOK_S)
        finally:
            turn.waiters -= 1
            if not turn.waiters:
                self._turns.pop(name, None)

    def _tell_splits(self, topic: ProducerTopic) -> None:
        """Lets the lanes of queues that were split go on at the children. One with batches under
        way hears of it by their answers."""
        route = self._cluster.routes.topic(topic.route.name)
        if route is None or route.topic_id != topic.route.topic_id:
            raise UnknownTopic(f"topic {topic.route.name!r} was deleted, or created anew")
        for parent in route.sealed:
            if topic.route.position_of(parent.key.queue_id) is None:
                continue
            lane = topic.lane(parent.key)
            if lane.window is None:
                self._fence_later(lane)
            elif not lane.fencing and not lane.window.in_flight:
                self._leave(lane, _split_of(route, parent), ())


def _open_heir(route: TopicRoute, queue_id: int) -> int | None:
    """Returns the open queue in which the partition of a queue goes on, the queue itself if it is
    open, or None if the route does not know it."""
    while route.position_of(queue_id) is None:
        children = [each.key.queue_id for each in route.every if each.parent == queue_id]
        if not children:
            return None
        queue_id = children[0]
    return queue_id


def _split_of(route: TopicRoute, parent: QueueRoute) -> control_pb2.SplitQueue:
    children = [each for each in route.every if each.parent == parent.key.queue_id]
    return control_pb2.SplitQueue(
        queue=queue_ref(parent.key),
        children=[
            control_pb2.ChildQueue(
                queue_id=each.key.queue_id, slot_start=each.slot_start, slot_end=each.slot_end
            )
            for each in sorted(children, key=lambda each: each.slot_start)
        ],
    )


class PlainProducers:
    """The gateway's producers, one for each codec. Lives on the client's I/O thread."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._cores: dict[Codec, _GatewayProducer] = {}

    async def send(
        self,
        topic: str,
        queue: QueueKey,
        columns: Columns,
        *,
        time_us: int,
        due_us: int,
        codec: Codec,
    ) -> StoredAt:
        """Stores messages. Raises SemelError."""
        chunk = await self._core(codec).submit(topic, queue.queue_id, columns, time_us, due_us)
        await await_settled(chunk, lambda: chunk.settled)
        outcomes = chunk.outcomes(0, chunk.count) or []
        for _, outcome in outcomes:
            if outcome.error is not None:
                raise outcome.error
        stored = chunk.parts[0].queue if chunk.parts else queue
        return StoredAt(stored, outcomes[0][1].base_offset)

    def _core(self, codec: Codec) -> _GatewayProducer:
        core = self._cores.get(codec)
        if core is None or core.intake.failure() is not None:
            config = ProducerConfig(
                compression=_NAMES[codec], delivery_timeout_ms=DELIVERY_TIMEOUT_MS
            )
            intake = Intake(config, wake=lambda: None, open_topic=None)
            core = self._cores[codec] = _GatewayProducer(self._cluster, config, intake)
            core.start()
        return core

    def close(self) -> None:
        """Ends at once; what is on its way may still be stored."""
        for core in self._cores.values():
            core.close()


_NAMES: Final[dict[Codec, Literal["none", "lz4", "zstd"]]] = {
    Codec.NONE: "none",
    Codec.LZ4: "lz4",
    Codec.ZSTD: "zstd",
}
