"""Producers that send message ids to a broker group in the test's own event loop, by hand.

Not here: the group (`brokers.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from semel.protos.dropped import read_answer
from semel.protos.v1 import common_pb2
from tests.kit.brokers import BrokerGroup, RawClient, make_batch

SETTINGS = common_pb2.TopicSettings(
    dedup=common_pb2.IdDedup(window_bytes=1 << 20, seed=b"0123456789abcdef")
)


class Sender:
    """One producer."""

    def __init__(self, group: BrokerGroup, producer: int) -> None:
        self.group = group
        self.producer = producer
        self.last = -1

    async def open(self) -> Sender:
        """Fences the producer."""
        async with RawClient((await self.group.master()).address) as client:
            await client.fence(1, producer=self.producer)
        return self

    async def send(self, ids: Sequence[bytes], value: bytes = b"v") -> tuple[Any, list[Any]]:
        """Returns the acknowledgement, and (sequence, offset, verdict) of dropped messages."""
        batch = make_batch(self.last, [value] * len(ids), producer=self.producer, ids=ids)
        async with RawClient((await self.group.master()).address) as client:
            (ack,) = await client.produce(batch)
        assert not ack.HasField("error"), ack.error
        self.last += len(ids)
        found = read_answer(ack.dropped)
        return ack, [(each.sequence, each.offset, each.verdict) for each in found]


async def begin(group: BrokerGroup, *, retention_bytes: int = 0) -> tuple[Sender, Sender]:
    """Makes the queue, whose topic compares ids, and two producers."""
    settings = common_pb2.TopicSettings(dedup=SETTINGS.dedup, retention_bytes=retention_bytes)
    async with RawClient((await group.master()).address) as client:
        await client.create_queue(settings=settings)
    return await Sender(group, 5).open(), await Sender(group, 6).open()


def ids(start: int, end: int) -> list[bytes]:
    """Ids by numbers."""
    return [b"id %d" % number for number in range(start, end)]
