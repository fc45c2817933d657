"""Delayed messages before they are due: which there are, and how much is due when.

How it works. The masters give stored batches of one queue in pages, by due time; here they are
taken apart, and the queues of a topic are merged. Masters count what is due when, each from its own
log time on, and the counts are added up. What is shown was there when its queue was asked: a
message may have been released since.

Not here: what was released (`admin/delay_history.py`), the order of several queues
(`core/due_merge.py`), which times a sender may choose (`core/dues.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Final, TypeVar

from semel.client.admin.descriptions import Described
from semel.client.core.due_merge import DueMerge
from semel.client.core.routing import QueueRoute
from semel.client.message import Message, Rows
from semel.client.reading.offsets import MOVES_MAX, list_offsets
from semel.client.transport.cluster import Cluster
from semel.protos.batch import BROKER_HEADER_BYTES, decode_header
from semel.protos.errors import InvalidRequest, QueueMoved, from_detail
from semel.protos.queue_refs import queue_ref
from semel.protos.v1 import broker_pb2

LIMIT_DEFAULT: Final = 100
LIMIT_MAX: Final = 10_000
BUCKETS: Final = (
    ("overdue", 0),
    ("1 s", 1),
    ("1 min", 60),
    ("1 h", 3_600),
    ("1 d", 86_400),
    ("7 d", 7 * 86_400),
    ("30 d", 30 * 86_400),
)
"""Name and bound of each bucket, in seconds from now; what is due later is in one more."""
LATER: Final = "later"
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayedMessage(Described):
    """One message that is stored and not delivered yet."""

    topic: str
    queue: int
    due_us: int
    """When it is due, microseconds since the epoch."""
    message_id: bytes | None
    """The message id that the sender chose, or None."""
    key: bytes | None
    size: int
    """Bytes of its key, value and headers."""
    producer_id: int
    sequence: int
    """The number that the producer gave it in this queue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayBucket(Described):
    """The delayed messages that are due within a time, and not within that of the bucket before."""

    due: str
    """overdue, 1 s, 1 min, 1 h, 1 d, 7 d, 30 d or later."""
    within_us: int | None
    """Its bound, microseconds from now: 0 for overdue, None for later."""
    batches: int
    messages: int
    bytes: int
    """Bytes of the stored batches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayStats(Described):
    """How much of a topic is delayed."""

    topic: str
    batches: int
    messages: int
    bytes: int
    """Bytes of the stored batches."""
    first_due_us: int
    """When the first message is due, microseconds since the epoch; 0 when none is delayed."""
    last_due_us: int
    """When the last one is."""
    buckets: list[DelayBucket]


async def list_delayed(
    cluster: Cluster, topic: str, before: datetime | int | None, limit: int
) -> list[DelayedMessage]:
    """Returns the first `limit` delayed messages by due time, then queue, then the order in which
    they will get their offsets. Raises UnknownTopic, InvalidRequest, and UnsupportedVersion for a
    broker that is too old to tell."""
    before_us = time_us("before", before)
    check_limit(limit)
    route = await cluster.topic(topic, refresh=True)
    queues: dict[int, _DelayedQueue] = {
        queue.key.queue_id: _DelayedQueue(cluster, topic, queue) for queue in route.every
    }
    known = await list_offsets(cluster, list(route.every))
    merge: DueMerge[DelayedMessage] = DueMerge(
        {
            number: offsets.next_due_us
            for number, offsets in known.items()
            if offsets.delayed_messages and (not before_us or offsets.next_due_us < before_us)
        }
    )
    found: list[DelayedMessage] = []
    while len(found) < limit:
        if (wanted := merge.wanted) is not None:
            rows, more = await queues[wanted].next_page(before_us, limit - len(found))
            merge.on_page(rows, more=more)
        elif (message := merge.take()) is not None:
            found.append(message)
        else:
            break
    return found


class _DelayedQueue:
    """The delayed messages of one queue, a page at a time."""

    def __init__(self, cluster: Cluster, topic: str, queue: QueueRoute) -> None:
        self._cluster = cluster
        self._topic = topic
        self._queue = queue
        self._after: broker_pb2.DelayedPlace | None = None

    async def next_page(
        self, before_us: int, messages_max: int
    ) -> tuple[list[DelayedMessage], bool]:
        """Returns at most `messages_max` messages, and whether more come behind them."""
        request = broker_pb2.ListDelayedRequest(
            queue=queue_ref(self._queue.key),
            before_us=before_us,
            after=self._after,
            messages_max=messages_max,
        )

        async def ask() -> broker_pb2.ListDelayedReply:
            home = self._cluster.routes.home(self._queue)
            reply = await self._cluster.call_master(home, "ListDelayed", request)
            assert isinstance(reply, broker_pb2.ListDelayedReply)
            return reply

        reply = await _following(self._cluster, ask)
        if reply.batches:
            self._after = reply.batches[-1].place
        # The I/O thread has more urgent things to do than to take batches apart.
        found = await asyncio.to_thread(self._messages, reply.batches, messages_max)
        return found, reply.more

    def _messages(
        self, batches: Iterable[broker_pb2.DelayedBatch], count_max: int
    ) -> list[DelayedMessage]:
        """Returns the first messages of stored batches. Raises CorruptBatch."""
        found: list[DelayedMessage] = []
        for batch in batches:
            count = decode_header(batch.stored, BROKER_HEADER_BYTES).count
            rows = Rows(self._topic, self._queue.key, memoryview(batch.stored), 0, 0, count)
            gone, wanted = set(batch.cancelled), count_max - len(found)
            messages = [
                each
                for row, each in enumerate(rows.messages(0, min(count, wanted + len(gone))))
                if row not in gone
            ]
            found += [self._described(each, batch.place.due_us) for each in messages[:wanted]]
        return found

    def _described(self, message: Message, due_us: int) -> DelayedMessage:
        headers = sum(len(name.encode()) + len(data) for name, data in message.headers)
        return DelayedMessage(
            topic=self._topic,
            queue=message.queue,
            due_us=due_us,
            message_id=message.message_id,
            key=message.key,
            size=len(message.key or b"") + len(message.value or b"") + headers,
            producer_id=message.producer_id,
            sequence=message.sequence,
        )


async def delay_stats(cluster: Cluster, topic: str) -> DelayStats:
    """Counts what is delayed of a topic. Raises UnknownTopic, and UnsupportedVersion for a broker
    that is too old to tell."""
    route = await cluster.topic(topic, refresh=True)
    bounds_us = [seconds * 1_000_000 for _, seconds in BUCKETS]

    async def ask() -> list[broker_pb2.QueueDelays]:
        replies = await asyncio.gather(
            *(
                cluster.call_master(
                    home,
                    "CountDelayed",
                    broker_pb2.CountDelayedRequest(
                        queues=[queue_ref(key) for key in keys], within_us=bounds_us
                    ),
                )
                for home, keys in cluster.routes.by_home(route.every).items()
            )
        )
        found = [queue for reply in replies for queue in reply.queues]
        for queue in found:
            if queue.HasField("error"):
                raise from_detail(queue.error)
        return found

    queues = await _following(cluster, ask)
    names = [*BUCKETS, (LATER, None)]
    buckets = [
        DelayBucket(
            due=name,
            within_us=None if seconds is None else seconds * 1_000_000,
            batches=sum(queue.counts[at].batches for queue in queues),
            messages=sum(queue.counts[at].messages for queue in queues),
            bytes=sum(queue.counts[at].bytes for queue in queues),
        )
        for at, (name, seconds) in enumerate(names)
    ]
    return DelayStats(
        topic=topic,
        batches=sum(bucket.batches for bucket in buckets),
        messages=sum(bucket.messages for bucket in buckets),
        bytes=sum(bucket.bytes for bucket in buckets),
        first_due_us=min((each.first_due_us for each in queues if each.first_due_us), default=0),
        last_due_us=max((each.last_due_us for each in queues), default=0),
        buckets=buckets,
    )


async def _following(cluster: Cluster, ask: Callable[[], Awaitable[_T]]) -> _T:
    """Asks; again when the queue has moved to another broker group. Raises SemelError."""
    for _ in range(MOVES_MAX):
        try:
            return await ask()
        except QueueMoved as error:
            cluster.routes.on_moved(error)
    return await ask()


def check_limit(limit: object) -> None:
    """Raises InvalidRequest unless `limit` is a possible number of rows."""
    if not isinstance(limit, int) or isinstance(limit, bool) or not 0 < limit <= LIMIT_MAX:
        raise InvalidRequest(f"limit must be a whole number from 1 to {LIMIT_MAX}, not {limit!r}")


def time_us(name: str, given: object) -> int:
    """Returns a time in microseconds since 1970; 0 for none. Raises InvalidRequest."""
    if given is None:
        return 0
    if isinstance(given, datetime):
        if given.utcoffset() is None:
            raise InvalidRequest(f"{name}: give the datetime a time zone, e.g. datetime.UTC")
        given = round(given.timestamp() * 1_000_000)
    if not isinstance(given, int) or isinstance(given, bool) or not 0 < given < 1 << 63:
        raise InvalidRequest(
            f"{name} must be a datetime with a time zone or whole microseconds since 1970, not"
            f" {given!r}"
        )
    return given
