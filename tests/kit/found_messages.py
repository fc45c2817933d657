"""Messages that are sent with ids, found by them, and cancelled."""

from __future__ import annotations

from typing import Any

from semel.protos.batch import BROKER_HEADER_BYTES, check_batch
from semel.protos.columns import decode_columns
from semel.protos.v1 import broker_pb2
from tests.kit.brokers import QUEUE, BrokerGroup, RawClient, make_batch

FATES = {
    broker_pb2.MESSAGE_FATE_UNKNOWN: "unknown",
    broker_pb2.MESSAGE_FATE_STORED: "stored",
    broker_pb2.MESSAGE_FATE_DELAYED: "delayed",
    broker_pb2.MESSAGE_FATE_CANCELLED: "cancelled",
    broker_pb2.MESSAGE_FATE_REMOVED: "removed",
}


async def call(group: BrokerGroup, method: str, request: Any) -> Any:
    async with RawClient((await group.master()).address) as client:
        return await client.call(method, request)


async def find(group: BrokerGroup, message_id: bytes) -> Any:
    request = broker_pb2.FindMessageRequest(topic_id=QUEUE.topic_id, message_id=message_id)
    return await call(group, "FindMessage", request)


async def fate(group: BrokerGroup, message_id: bytes) -> tuple[str, int]:
    """What became of a message, and its offset. What is told is there, byte for byte."""
    found = await find(group, message_id)
    if found.stored:
        data = found.stored[BROKER_HEADER_BYTES:]
        ids = decode_columns(data, check_batch(data)).message_ids
        assert ids is not None
        assert ids[found.row].as_py() == message_id
    return FATES[found.fate], found.offset


async def cancel(group: BrokerGroup, message_id: bytes) -> tuple[str, int]:
    request = broker_pb2.CancelMessageRequest(topic_id=QUEUE.topic_id, message_id=message_id)
    found = await call(group, "CancelMessage", request)
    return FATES[found.fate], found.offset


class Sender:
    """One producer."""

    def __init__(self, group: BrokerGroup, producer: int) -> None:
        self.group = group
        self.producer = producer
        self.last = -1

    async def send(self, ids: list[bytes], value: bytes = b"", due_us: int = 0) -> Any:
        """Returns the acknowledgement of a batch."""
        batch = make_batch(
            self.last,
            [value or each for each in ids],
            producer=self.producer,
            ids=ids,
            deliver_at_us=due_us,
        )
        async with RawClient((await self.group.master()).address) as client:
            (ack,) = await client.produce(batch)
        assert not ack.HasField("error"), ack.error
        self.last += len(ids)
        return ack
