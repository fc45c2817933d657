"""A queue moves to another broker group with what is delayed in it, and back. Real nodes."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from semel.broker.background import queue_copy
from semel.broker.server import moves_service
from semel.protos.errors import QueueMoved
from semel.protos.queue_refs import queue_ref
from semel.protos.v1 import broker_pb2
from tests.kit.brokers import QUEUE, BrokerGroup, RawClient
from tests.kit.found_messages import Sender, cancel, fate
from tests.kit.moving_groups import groups, move, verify

HOUR_US = 3_600_000_000
SOON_US = 2_500_000


async def listed(group: BrokerGroup) -> list[tuple[int, int]]:
    """Due time and ordinal of each delayed batch."""
    request = broker_pb2.ListDelayedRequest(queue=queue_ref(QUEUE), messages_max=100)
    async with RawClient((await group.master()).address) as client:
        reply = await client.call("ListDelayed", request)
    return [(batch.place.due_us, batch.place.ordinal) for batch in reply.batches]


async def waits_for(group: BrokerGroup, end: int) -> None:
    """Waits until the queue has so many messages with offsets."""
    deadline = time.monotonic() + 30
    while (await group.master()).replica.state.queues[QUEUE].log_end_offset < end:
        assert time.monotonic() < deadline, "nothing is delivered"
        await asyncio.sleep(0.05)


async def test_what_is_delayed_moves_there_and_back(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(queue_copy, "COPY_BYTES", 500)
    monkeypatch.setattr(moves_service, "COPY_BYTES", 500)
    now_us = time.time_ns() // 1_000
    later_us, soon_us = now_us + HOUR_US, now_us + SOON_US
    async with groups(tmp_path) as (source, target):
        async with RawClient((await source.master()).address) as client:
            await client.fence(1, producer=5)
        sender = Sender(source, 5)
        await sender.send([b"at once"])
        await sender.send([b"a", b"b", b"c"], due_us=later_us)
        await sender.send([b"soon"], due_us=soon_us)
        await sender.send([b"d"], due_us=later_us)
        assert await cancel(source, b"b") == ("cancelled", -1)
        before = await listed(source)
        await move(source, target, QUEUE, 1)
        assert await listed(target) == before
        assert [await fate(target, each) for each in (b"a", b"b", b"d")] == [
            ("delayed", -1),
            ("unknown", -1),
            ("delayed", -1),
        ]
        assert await fate(source, b"a") == ("unknown", -1), "the other group knows"
        assert await cancel(target, b"c") == ("cancelled", -1)
        assert await cancel(target, b"c") == ("cancelled", -1)
        await waits_for(target, 2)
        assert time.time_ns() // 1_000 >= soon_us
        assert await fate(target, b"soon") == ("stored", 1)
        (report,) = await verify(target)
        assert (list(report.problems), report.delayed, report.messages) == ([], 2, 2)
        await move(target, source, QUEUE, 2)
        assert await listed(source) == [before[1], before[2]]
        sender = Sender(source, 5)
        sender.last = 5
        again = await sender.send([b"a", b"c"])
        assert len(again.dropped) > 0
        assert await fate(source, b"c") == ("stored", 2), "it was cancelled at the other group"
        assert await fate(source, b"a") == ("delayed", -1)
        assert await cancel(source, b"a") == ("cancelled", -1)
        reports = {each.queue.queue_id: each for each in await verify(source)}
        assert list(reports[0].problems) == []
        assert reports[0].delayed == 1
        with pytest.raises(QueueMoved):
            await listed(target)
