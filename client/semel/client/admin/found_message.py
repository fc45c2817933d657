"""Messages that are known by their ids: where one is, and taking a delayed one out.

How it works. Every broker group that has queues of the topic is asked, because each compares the
ids of its own queues. The master answers from its index of ids, and gives the stored batch where it
still has it; here the message is taken out of that. If several groups know the id, the message that
is there counts more than one that is gone.

Not here: a message whose offset is known (`stored_message.py`), what is due next (`delays.py`).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, Final

from semel.client.admin.descriptions import Described
from semel.client.admin.stored_message import name_of_producer
from semel.client.core.fields import as_bytes
from semel.client.message import Rows
from semel.client.reading.offsets import MOVES_MAX
from semel.client.transport.cluster import Cluster
from semel.protos.batch import BROKER_HEADER_BYTES, decode_broker_header, decode_header
from semel.protos.errors import InvalidRequest, QueueMoved, UnknownQueue
from semel.protos.id_dedup import COMPARED_ID_BYTES_MAX
from semel.protos.ids import GroupId
from semel.protos.queue_refs import queue_key_of
from semel.protos.v1 import broker_pb2

STATES: Final = {
    broker_pb2.MESSAGE_FATE_STORED: "stored",
    broker_pb2.MESSAGE_FATE_DELAYED: "delayed",
    broker_pb2.MESSAGE_FATE_REMOVED: "removed",
    broker_pb2.MESSAGE_FATE_CANCELLED: "cancelled",
}
"""By how much they count, if several broker groups know an id."""
CANCELLED: Final = "cancelled"
DELIVERED: Final = "delivered"
UNKNOWN: Final = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundMessage(Described):
    """The newest message with an id, and where it is."""

    topic: str
    message_id: bytes
    state: str
    """stored: at `offset`; delayed: not due yet; removed: it was stored, and is not retained any
    more; cancelled: it was delayed, and taken out."""
    queue: int
    offset: int
    """-1 while it has none, or if it is not known any more."""
    due_us: int
    """When it is, or was, due, microseconds since the epoch; 0 if it was not delayed."""
    append_time_us: int
    """When it got its offset, by the clock of the brokers' log; 0 if it has none, or is removed."""
    arrival_time_us: int | None
    """When the brokers stored it. This and the rest is None if it is removed or cancelled."""
    timestamp_us: int | None
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]
    producer_id: int | None
    producer: str | None
    """The producer's name; None for one without a name, or while no controller answers."""
    epoch: int | None
    session: int | None
    sequence: int | None
    """The number that the producer gave it in this queue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelResult(Described):
    """What became of a message that was to be cancelled."""

    topic: str
    message_id: bytes
    result: str
    """cancelled: it will never be delivered, and its id can be used again; delivered: it was due
    before; unknown: no message with this id is known (any more)."""
    queue: int | None
    """None if it is unknown, as all that follows."""
    offset: int | None
    """The offset of a message that was delivered; None if it was trimmed since."""
    due_us: int | None
    """When it was due, microseconds since the epoch."""
    delivered_us: int | None
    """When it was delivered; None if it was not, or trimmed since."""


async def find_message(
    cluster: Cluster, topic: str, message_id: bytes | str
) -> FoundMessage | None:
    """Returns the newest message with an id; None if the topic knows none (any more).

    Raises UnknownTopic; InvalidRequest for an id of 0 bytes or more than 128, and for a topic that
    compares no ids; UnsupportedVersion for a broker that is too old to tell.
    """
    wanted = _id_of(message_id)
    request = broker_pb2.FindMessageRequest(message_id=wanted)
    replies = await _ask(cluster, topic, "FindMessage", request, wait=True)
    found = _best(replies)
    if found is None:
        return None
    producer = None
    if found.stored:
        header = decode_header(found.stored, BROKER_HEADER_BYTES)
        producer = await name_of_producer(cluster, header.producer_id)
    # The I/O thread has more urgent things to do than to take a batch apart.
    return await asyncio.to_thread(_described, topic, wanted, found, producer)


async def cancel_message(cluster: Cluster, topic: str, message_id: bytes | str) -> CancelResult:
    """Takes a delayed message out before it is due, and says what became of it.

    Raises UnknownTopic; InvalidRequest for an id of 0 bytes or more than 128, for a topic that
    compares no ids, and for a message that was never delayed; UnsupportedVersion for a broker that
    is too old to tell.
    """
    wanted = _id_of(message_id)
    request = broker_pb2.CancelMessageRequest(message_id=wanted)
    replies = await _ask(cluster, topic, "CancelMessage", request, wait=False)
    by_fate = {reply.fate: reply for reply in replies if not isinstance(reply, InvalidRequest)}
    refused = [reply for reply in replies if isinstance(reply, InvalidRequest)]
    found = by_fate.get(broker_pb2.MESSAGE_FATE_CANCELLED)
    if found is None and refused:
        raise refused[0]
    if found is None:
        found = _best(by_fate.values())
    delivered = found is not None and found.fate != broker_pb2.MESSAGE_FATE_CANCELLED
    return CancelResult(
        topic=topic,
        message_id=wanted,
        result=UNKNOWN if found is None else DELIVERED if delivered else CANCELLED,
        queue=None if found is None else found.queue.queue_id,
        offset=found.offset if found is not None and found.offset >= 0 else None,
        due_us=None if found is None else found.due_us,
        delivered_us=(found.append_time_us or None) if found is not None else None,
    )


async def _ask(cluster: Cluster, topic: str, method: str, request: Any, *, wait: bool) -> list[Any]:
    """Asks the masters of all broker groups with queues of the topic; again when they have moved,
    also if that is why none of them knows the message.

    With `wait`, an InvalidRequest is raised, else it is among the answers.
    """
    for left in reversed(range(MOVES_MAX)):
        route = await cluster.topic(topic, refresh=True)
        request.topic_id = route.topic_id

        async def ask(group_id: GroupId) -> Any:
            try:
                return await cluster.call_master(group_id, method, request)
            except InvalidRequest as error:
                if wait:
                    raise
                return error

        try:
            homes = cluster.routes.by_home(route.every)
            replies = await asyncio.gather(*map(ask, homes))
            if not left or any(_says_something(reply) for reply in replies):
                return replies
            # A queue may have moved from a group that was asked later to one that was asked before.
            now = await cluster.topic(topic, refresh=True)
            if cluster.routes.by_home(now.every) == homes:
                return replies
        except (QueueMoved, UnknownQueue):
            if not left:
                raise
    raise AssertionError("the last round returns or raises")


def _says_something(reply: Any) -> bool:
    return isinstance(reply, InvalidRequest) or reply.fate != broker_pb2.MESSAGE_FATE_UNKNOWN


def _best(replies: Any) -> Any | None:
    """The answer that counts most; None if nobody knows the message."""
    for fate in STATES:
        for reply in replies:
            if reply.fate == fate:
                return reply
    return None


def _described(
    topic: str, message_id: bytes, found: broker_pb2.FindMessageReply, producer: str | None
) -> FoundMessage:
    """Takes the message out of its batch. Raises CorruptBatch."""
    message = header = None
    if found.stored:
        stored = memoryview(found.stored)
        header = decode_header(found.stored, BROKER_HEADER_BYTES)
        rows = Rows.whole(topic, queue_key_of(found.queue), stored)
        (message,) = rows.messages(found.row, found.row + 1)
    return FoundMessage(
        topic=topic,
        message_id=message_id,
        state=STATES[found.fate],
        queue=found.queue.queue_id,
        offset=found.offset,
        due_us=found.due_us,
        append_time_us=found.append_time_us,
        arrival_time_us=decode_broker_header(found.stored).append_time_us if message else None,
        timestamp_us=message.timestamp_us if message else None,
        key=message.key if message else None,
        value=message.value if message else None,
        headers=tuple(message.headers) if message else (),
        producer_id=header.producer_id if header else None,
        producer=producer,
        epoch=header.epoch if header else None,
        session=header.session if header else None,
        sequence=message.sequence if message else None,
    )


def _id_of(message_id: object) -> bytes:
    """Returns the id as bytes. Raises InvalidRequest."""
    found = as_bytes("message_id", message_id)
    if not 0 < len(found) <= COMPARED_ID_BYTES_MAX:
        raise InvalidRequest(
            f"message_id has {len(found):,} bytes;"
            f" topics compare ids of 1 to {COMPARED_ID_BYTES_MAX}"
        )
    return found
