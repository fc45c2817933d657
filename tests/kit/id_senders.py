"""Producers that send message ids to a broker group in the test's own event loop, by hand.

Not here: the group (`brokers.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from semel.protos.dropped import read_answer
from semel.protos.ids import QueueKey
from semel.protos.v1 import common_pb2
from tests.kit.brokers import QUEUE, BrokerGroup, RawClient, make_batch

SEED = b"0123456789abcdef"


class Sender:
    """One producer."""

    def __init__(self, group: BrokerGroup, producer: int) -> None:
        self.group = group
        self.producer = producer
        self.key = QUEUE
        self.last = -1

    async def open(self, key: QueueKey = QUEUE) -> Sender:
        """Fences the producer in its queue."""
        self.key = key
        async with RawClient((await self.group.master()).address) as client:
            row = await client.fence(1, producer=self.producer, key=key)
        self.last = row.last_sequence
        return self

    async def send(self, ids: Sequence[bytes], value: bytes = b"v") -> tuple[Any, list[Any]]:
        """Returns the acknowledgement, and (sequence, offset, verdict) of dropped messages."""
        values = [value] * len(ids)
        batch = make_batch(self.last, values, producer=self.producer, key=self.key, ids=ids)
        async with RawClient((await self.group.master()).address) as client:
            (ack,) = await client.produce(batch)
        assert not ack.HasField("error"), ack.error
        self.last += len(ids)
        found = read_answer(ack.dropped)
        return ack, [(each.sequence, each.offset, each.verdict) for each in found]


async def begin(
    group: BrokerGroup, *, window_bytes: int = 1 << 20, retention_bytes: int = 0
) -> tuple[Sender, Sender]:
    """Makes the queue, whose topic compares ids, and two producers."""
    settings = common_pb2.TopicSettings(
        dedup=common_pb2.IdDedup(window_bytes=window_bytes, seed=SEED),
        retention_bytes=retention_bytes,
    )
    async with RawClient((await group.master()).address) as client:
        await client.create_queue(settings=settings)
    return await Sender(group, 5).open(), await Sender(group, 6).open()


def ids(start: int, end: int) -> list[bytes]:
    """Ids by numbers."""
    return [b"id %d" % number for number in range(start, end)]
