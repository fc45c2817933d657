"""Delayed messages of a topic as a client lists them, out of pages of stored batches."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import grpc.aio
import pytest

from semel.client.admin.delays import DelayedMessage, list_delayed
from semel.client.core.routing import QueueRoute
from semel.client.transport.connection import BROKER, Connections
from semel.protos.batch import BrokerHeader
from semel.protos.columns import Columns, encode_batch
from semel.protos.errors import InvalidRequest, QueueMoved, SemelError, UnsupportedVersion
from semel.protos.ids import GroupId, Offset, QueueId, QueueKey, Term, TopicId
from semel.protos.rpc import ServerInterceptor
from semel.protos.v1 import broker_pb2

TOPIC = TopicId(7)
SECOND_US = 1_000_000


def delayed_batch(
    queue: int, due_us: int, ordinal: int, values: list[bytes], **columns: Any
) -> Any:
    batch = encode_batch(
        Columns.from_arrow(values, **columns),
        topic_id=TOPIC,
        queue_id=queue,
        producer_id=100 + queue,
        epoch=1,
        session=1,
        previous_sequence=10 * ordinal - 1,
        base_sequence=10 * ordinal,
        last_sequence=10 * ordinal + len(values) - 1,
        timestamp_us=777,
        deliver_at_us=due_us,
    )
    head = BrokerHeader(base_offset=Offset(-1), append_time_us=1, term=Term(1))
    return broker_pb2.DelayedBatch(
        place=broker_pb2.DelayedPlace(due_us=due_us, ordinal=ordinal),
        stored=head.encode() + batch,
    )


class Topic:
    """A cluster with one topic; its masters keep delayed batches, and note what they are asked."""

    def __init__(self, batches: dict[int, list[Any]], page_batches: int = 1) -> None:
        self.batches = batches
        self.page_batches = page_batches
        self.asked: list[tuple[int, int]] = []
        """Queue and number of messages of each page."""
        self.failures: list[SemelError] = []
        self.routes = self

    async def topic(self, name: str, *, refresh: bool = False) -> Any:
        every = tuple(
            QueueRoute(
                key=QueueKey(TOPIC, QueueId(queue)),
                group_id=GroupId(1),
                slot_start=0,
                slot_end=65_536,
            )
            for queue in self.batches
        )
        return SimpleNamespace(name=name, topic_id=TOPIC, every=every)

    def by_home(self, queues: Any) -> Any:
        return {GroupId(1): [queue.key for queue in queues]}

    def home(self, queue: QueueRoute) -> GroupId:
        return GroupId(1)

    def on_moved(self, error: QueueMoved) -> None:
        pass

    async def call_master(self, group_id: GroupId, method: str, request: Any) -> Any:
        if method == "ListOffsets":
            reply = broker_pb2.ListOffsetsReply()
            for ref in request.queues:
                batches = self.batches[ref.queue_id]
                reply.queues.add(
                    queue=ref,
                    delayed_messages=len(batches),
                    next_due_us=batches[0].place.due_us if batches else 0,
                )
            return reply
        assert method == "ListDelayed"
        if self.failures:
            raise self.failures.pop()
        self.asked.append((request.queue.queue_id, request.messages_max))
        after = (request.after.due_us, request.after.ordinal) if request.HasField("after") else None
        fitting = [
            each
            for each in self.batches[request.queue.queue_id]
            if (after is None or (each.place.due_us, each.place.ordinal) > after)
            and (not request.before_us or each.place.due_us < request.before_us)
        ]
        return broker_pb2.ListDelayedReply(
            batches=fitting[: self.page_batches], more=len(fitting) > self.page_batches
        )


@pytest.fixture
def topic() -> Topic:
    """Queue 0 has messages that are due at 5 s, 5 s and 9 s; queue 1 at 3 s and 5 s; 2 has none."""
    s = SECOND_US
    return Topic(
        {
            0: [
                delayed_batch(0, 5 * s, 1, [b"a", b"bb"]),
                delayed_batch(0, 9 * s, 0, [b"ccc"], keys=[b"key"]),
            ],
            1: [
                delayed_batch(1, 3 * s, 7, [b""]),
                delayed_batch(1, 5 * s, 8, [b"d"], message_ids=[b"id-d"]),
            ],
            2: [],
        }
    )


async def listed(topic: Topic, before: Any = None, limit: Any = 100) -> list[DelayedMessage]:
    cluster: Any = topic
    return await list_delayed(cluster, "reminders", before, limit)


def places(found: list[DelayedMessage]) -> list[tuple[int, int, int]]:
    return [(each.due_us // SECOND_US, each.queue, each.sequence) for each in found]


@pytest.mark.parametrize("page_batches", [1, 2, 10])
async def test_queues_are_merged_by_due_time(topic: Topic, page_batches: int) -> None:
    topic.page_batches = page_batches
    found = await listed(topic)
    assert places(found) == [(3, 1, 70), (5, 0, 10), (5, 0, 11), (5, 1, 80), (9, 0, 0)]


async def test_a_message_is_described(topic: Topic) -> None:
    found = await listed(topic)
    assert found[4] == DelayedMessage(
        topic="reminders",
        queue=0,
        due_us=9 * SECOND_US,
        message_id=None,
        key=b"key",
        size=6,
        producer_id=100,
        sequence=0,
    )
    assert (found[3].message_id, found[3].key, found[3].size) == (b"id-d", None, 1)


async def test_no_more_is_asked_for_than_the_limit_needs(topic: Topic) -> None:
    topic.page_batches = 2
    assert places(await listed(topic, limit=2)) == [(3, 1, 70), (5, 0, 10)]
    assert topic.asked == [(1, 2), (0, 1)]


async def test_headers_count_for_the_size() -> None:
    headers = [[("waiter", b"Ann")]]
    topic = Topic({0: [delayed_batch(0, 1, 0, [b"tea"], headers=headers, keys=[b"k"])]})
    assert [each.size for each in await listed(topic)] == [3 + 1 + 9]


@pytest.mark.parametrize(
    "before",
    [5 * SECOND_US, datetime.fromtimestamp(5, UTC), datetime.fromtimestamp(5).astimezone()],
)
async def test_what_is_due_later_is_left_out(topic: Topic, before: Any) -> None:
    assert places(await listed(topic, before)) == [(3, 1, 70)]
    assert {queue for queue, _ in topic.asked} == {1}, "queue 0 has nothing so early"


async def test_what_was_released_meanwhile_is_not_listed(topic: Topic) -> None:
    class Releasing(dict[int, list[Any]]):
        """Queue 1 releases all that it has as soon as its first page was given."""

        def __getitem__(self, queue: int) -> list[Any]:
            found = super().__getitem__(queue)
            if queue == 1 and topic.asked and topic.asked[-1][0] == 1:
                self[1] = []
            return found

    topic.batches = Releasing(topic.batches)
    assert places(await listed(topic)) == [(3, 1, 70), (5, 0, 10), (5, 0, 11), (9, 0, 0)]


async def test_a_queue_that_has_moved_is_asked_again(topic: Topic) -> None:
    topic.failures = [QueueMoved("to group 2", topic_id=TOPIC, queue_id=1, group_id=2)]
    assert len(await listed(topic)) == 5


@pytest.mark.parametrize("limit", [0, -1, 10_001, True, 1.0, None, "5"])
async def test_a_limit_that_makes_no_sense_is_refused(topic: Topic, limit: Any) -> None:
    with pytest.raises(InvalidRequest, match="limit must be a whole number from 1 to 10000"):
        await listed(topic, limit=limit)
    assert topic.asked == []


@pytest.mark.parametrize("before", [0, -5, 1 << 63, 1.5, "tomorrow", True, datetime(2030, 1, 1)])
async def test_a_time_that_makes_no_sense_is_refused(topic: Topic, before: Any) -> None:
    with pytest.raises(InvalidRequest, match="before"):
        await listed(topic, before)
    assert topic.asked == []


# --- older brokers


@asynccontextmanager
async def older_broker() -> AsyncIterator[str]:
    """A server of semel.protos.v1.Broker that knows no call at all; its address."""
    server = grpc.aio.server(interceptors=[ServerInterceptor()])
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("semel.protos.v1.Broker", {}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


async def test_a_broker_that_is_too_old_is_named(topic: Topic) -> None:
    connections = Connections()
    async with older_broker() as address:

        async def call(group_id: GroupId, method: str, request: Any) -> Any:
            if method == "ListOffsets":
                return await Topic.call_master(topic, group_id, method, request)
            return await connections.call(address, BROKER, method, request, 10)

        topic.call_master = call  # type: ignore[method-assign]
        try:
            with pytest.raises(UnsupportedVersion, match="does not know this call") as caught:
                await listed(topic)
        finally:
            await connections.close()
    assert address in caught.value.message
