"""One stored message with all that is known of it.

How it works. The queue's master says what the queue holds, and when the message was appended; a
reader without a group fetches the batch, whose headers say who sent it. The controllers know the
names of producers.

Not here: the broker's part (`ListOffsets`), reading (`reading/reader.py`).
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Final, NoReturn

from semel.client.admin.descriptions import Described
from semel.client.config import ReaderConfig
from semel.client.core.routing import QueueRoute
from semel.client.reading.feed_queue import Delivery
from semel.client.reading.offsets import QueueOffsets, list_offsets
from semel.client.reading.pulling import await_ready
from semel.client.reading.reader import ReaderCore
from semel.client.transport.cluster import Cluster
from semel.client.transport.runtime import Runtime
from semel.protos.batch import BROKER_HEADER_BYTES, decode_broker_header, decode_header
from semel.protos.delays import is_delayed
from semel.protos.errors import (
    InvalidRequest,
    OffsetOutOfRange,
    SemelError,
    TimedOut,
    UnknownQueue,
)
from semel.protos.v1 import controller_pb2

logger = logging.getLogger(__name__)

NAMES_S: Final = 3.0
"""Time limit in seconds for the controllers' answer to the question for a producer's name."""
_INT64_MAX: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMessage(Described):
    """One message of a queue, and how it came there."""

    topic: str
    queue: int
    offset: int
    key: bytes | None
    value: bytes | None
    """None if the key has no value any more."""
    headers: tuple[tuple[str, bytes], ...]
    message_id: bytes | None
    """The message id that the sender chose, or None."""
    timestamp_us: int
    """The timestamp that the producer gave, or the time when its batch was begun; microseconds
    since the epoch."""
    append_time_us: int
    """When it got its offset, by the clock of the brokers' log."""
    deliver_at_us: int
    """The delivery time if it was delayed; 0 if it was not."""
    producer_id: int
    producer: str | None
    """The producer's name; None for one without a name, or while no controller answers."""
    epoch: int
    """The producer's epoch when it sent the message."""
    session: int
    sequence: int
    """The number that the producer gave it in this queue."""


async def show_message(
    cluster: Cluster, runtime: Runtime, topic: str, queue: int, offset: int
) -> StoredMessage:
    """Returns the message at an offset. Raises UnknownTopic, UnknownQueue, OffsetOutOfRange,
    InvalidRequest."""
    for name, number in (("queue", queue), ("offset", offset)):
        if not isinstance(number, int) or isinstance(number, bool) or abs(number) > _INT64_MAX:
            raise InvalidRequest(f"{name} must be a whole number of 64 bits, not {number!r}")
    route = await cluster.topic(topic, refresh=True)
    owner = route.find(queue)
    if owner is None:
        raise UnknownQueue(f"topic {topic!r} has no queue {queue}")
    known = (await list_offsets(cluster, [owner], offset=offset))[queue]
    if not known.log_start_offset <= offset < known.log_end_offset:
        _refuse(topic, known, offset)
    delivery = await _fetch(cluster, runtime, topic, owner, offset)
    producer_id = decode_header(delivery.stored, BROKER_HEADER_BYTES).producer_id
    producer = await name_of_producer(cluster, producer_id)
    # The I/O thread has more urgent things to do than to take a batch apart.
    return await asyncio.to_thread(_described, delivery, known.append_time_us, producer)


def _described(delivery: Delivery, append_time_us: int, producer: str | None) -> StoredMessage:
    """Returns the message at the first offset. Raises CorruptBatch, OffsetOutOfRange."""
    rows, offset = delivery.rows(), delivery.base_offset
    header = rows.header
    if not rows.count or rows.offset_of(0) != offset:
        raise OffsetOutOfRange(
            f"queue {delivery.queue.key.queue_id} of topic {delivery.queue.topic!r} has no message"
            f" at offset {offset}: compaction has removed it, a newer one of its key took its place"
        )
    (message,) = rows.messages(0, 1)
    return StoredMessage(
        topic=message.topic,
        queue=message.queue,
        offset=message.offset,
        key=message.key,
        value=message.value,
        headers=tuple(message.headers),
        message_id=message.message_id,
        timestamp_us=message.timestamp_us,
        append_time_us=append_time_us or decode_broker_header(delivery.stored).append_time_us,
        deliver_at_us=header.deliver_at_us if is_delayed(header) else 0,
        producer_id=header.producer_id,
        producer=producer,
        epoch=header.epoch,
        session=header.session,
        sequence=message.sequence,
    )


def _refuse(topic: str, known: QueueOffsets, offset: int) -> NoReturn:
    start, end = known.log_start_offset, known.log_end_offset
    where = f"queue {known.queue} of topic {topic!r}"
    if start == end:
        holds = f"it is empty, and its next message gets offset {end}"
    else:
        holds = f"it has {start} to {end - 1}"
    if 0 <= offset < start:
        holds += "; what is below was trimmed"
    raise OffsetOutOfRange(
        f"{where} has no message at offset {offset}: {holds}",
        log_start_offset=start,
        log_end_offset=end,
    )


async def _fetch(
    cluster: Cluster, runtime: Runtime, topic: str, queue: QueueRoute, offset: int
) -> Delivery:
    """Fetches the batch that holds the message. The delivery's first row is the message."""
    number = queue.key.queue_id
    config = ReaderConfig(fetch_bytes=1, topic_id=queue.key.topic_id)  # one batch comes whole
    reader = ReaderCore(cluster, runtime, config)
    timeout_s = cluster.config.request_timeout_ms / 1000
    try:
        await reader.open(topic, [number], {number: offset}, {number: offset + 1})
        while await await_ready(reader.feed, timeout_s):
            delivery = reader.feed.take()
            if delivery is not None:
                return delivery
    finally:
        reader.close()
    raise TimedOut(
        f"the message at offset {offset} of queue {number} of topic {topic!r} did not come within"
        f" {timeout_s:g} s"
    )


async def name_of_producer(cluster: Cluster, producer_id: int) -> str | None:
    """Returns a producer's name, if it has one and a controller tells."""
    try:
        reply = await cluster.controller(
            "ListProducers", controller_pb2.ListProducersRequest(), NAMES_S
        )
    except SemelError as error:
        logger.info("producer's name not found id=%s error=%s", producer_id, error.message)
        return None
    names = (info.name for info in reply.producers if info.producer_id == producer_id)
    return next(names, None)
