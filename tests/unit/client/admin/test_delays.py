"""Delayed messages of a topic as a client lists them, out of pages of stored batches."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import grpc.aio
import pytest

from semel.client.admin.delays import DelayedMessage, DelayStats, delay_stats, list_delayed
from semel.client.core.routing import QueueRoute
from semel.client.transport.connection import BROKER, Connections
from semel.protos.batch import BrokerHeader
from semel.protos.columns import Columns, encode_batch
from semel.protos.errors import (
    InvalidRequest,
    QueueMoved,
    SemelError,
    UnknownQueue,
    UnsupportedVersion,
    to_detail,
)
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


@pytest.mark.parametrize("limit", [1, 2, 3, 100])
async def test_cancelled_messages_are_not_listed(limit: int) -> None:
    batch = delayed_batch(0, 1, 0, [b"a", b"b", b"c", b"d", b"e"])
    batch.cancelled.extend([0, 2])
    found = await listed(Topic({0: [batch]}), limit=limit)
    assert [each.sequence for each in found] == [1, 3, 4][:limit]


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


# --- how much is due when


def counted(*messages: int, first: int = 0, last: int = 0, **fields: Any) -> Any:
    """A queue with so many messages by bucket, two in a batch of ten bytes."""
    return broker_pb2.QueueDelays(
        counts=[
            broker_pb2.DelayedCount(batches=each // 2, messages=each, bytes=5 * each)
            for each in messages
        ],
        first_due_us=first,
        last_due_us=last,
        **fields,
    )


class Counting(Topic):
    """A cluster whose queues 0 and 1 are on broker group 1, and queue 2 on group 2."""

    def __init__(self, *counts: Any) -> None:
        super().__init__({0: [], 1: [], 2: []})
        self.counts = dict(enumerate(counts))
        self.requests: list[Any] = []

    def by_home(self, queues: Any) -> Any:
        keys = [queue.key for queue in queues]
        return {GroupId(1): keys[:2], GroupId(2): keys[2:]}

    async def call_master(self, group_id: GroupId, method: str, request: Any) -> Any:
        assert method == "CountDelayed"
        self.requests.append(request)
        if self.failures and group_id == 2:
            error = to_detail(self.failures.pop())
            return broker_pb2.CountDelayedReply(queues=[broker_pb2.QueueDelays(error=error)])
        found = [self.counts[ref.queue_id] for ref in request.queues]
        return broker_pb2.CountDelayedReply(queues=found)


@pytest.fixture
def counting() -> Counting:
    return Counting(
        counted(2, 0, 0, 4, 0, 0, 0, 0, first=50, last=70),
        counted(0, 0, 0, 0, 0, 0, 0, 0),
        counted(0, 0, 0, 6, 0, 0, 0, 8, first=60, last=990),
    )


async def stats(cluster: Any) -> DelayStats:
    return await delay_stats(cluster, "reminders")


async def test_counts_of_queues_are_added_up(counting: Counting) -> None:
    found = await stats(counting)
    assert (found.batches, found.messages, found.bytes) == (10, 20, 100)
    assert (found.first_due_us, found.last_due_us) == (50, 990)
    assert [(each.due, each.messages, each.bytes) for each in found.buckets if each.messages] == [
        ("overdue", 2, 10),
        ("1 h", 10, 50),
        ("later", 8, 40),
    ]
    assert found.as_dict()["buckets"][3] == {
        "due": "1 h",
        "within_us": 3_600_000_000,
        "batches": 5,
        "messages": 10,
        "bytes": 50,
    }
    assert [each.within_us for each in found.buckets[:-1]] == list(counting.requests[0].within_us)
    assert (found.buckets[0].within_us, found.buckets[-1].within_us) == (0, None)


async def test_a_topic_without_delayed_messages_counts_zero() -> None:
    found = await stats(Counting(*[counted(*[0] * 8)] * 3))
    assert (found.messages, found.first_due_us, found.last_due_us) == (0, 0, 0)
    assert len(found.buckets) == 8


async def test_counts_follow_a_queue_that_has_moved(counting: Counting) -> None:
    counting.failures = [QueueMoved("to group 1", topic_id=TOPIC, queue_id=2, group_id=1)]
    assert (await stats(counting)).messages == 20


async def test_a_queue_that_is_gone_is_an_error(counting: Counting) -> None:
    counting.failures = [UnknownQueue("gone")]
    with pytest.raises(UnknownQueue):
        await stats(counting)


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
            for ask in (listed, stats):
                with pytest.raises(UnsupportedVersion, match="does not know this call") as caught:
                    await ask(topic)
                assert address in caught.value.message
        finally:
            await connections.close()
