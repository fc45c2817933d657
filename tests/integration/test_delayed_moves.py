"""A queue moves to another broker group with what is delayed in it, and back. Real nodes."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from semel.broker.background import queue_copy
from semel.broker.server import moves_service
from semel.protos.errors import InvalidRequest, QueueMoved
from semel.protos.ids import QueueId, QueueKey
from semel.protos.queue_refs import queue_ref
from semel.protos.slots import slot_of_key
from semel.protos.v1 import broker_pb2, control_pb2
from tests.kit.brokers import QUEUE, TOPIC, BrokerGroup, RawClient
from tests.kit.found_messages import Sender, cancel, fate
from tests.kit.moving_groups import SLOTS, apply, groups, move, step, verify
from tests.kit.waiting import until_async

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


async def test_a_child_moves_with_what_its_parent_has_handed_over(
    tmp_path: Path, monkeypatch: Any
) -> None:
    child, sibling = QueueKey(TOPIC, QueueId(8)), QueueKey(TOPIC, QueueId(9))
    now_us = time.time_ns() // 1_000
    later_us, soon_us = now_us + HOUR_US, now_us + 2 * SOON_US
    every = [b"id %d" % number for number in range(200)]
    low = [each for each in every if slot_of_key(each) < 8_192][:8]
    high = [each for each in every if slot_of_key(each) >= 8_192][:8]
    ids = [each for pair in zip(low, high, strict=True) for each in pair]
    async with groups(tmp_path) as (source, target):
        monkeypatch.setitem(SLOTS, child, (0, 8_192))
        async with RawClient((await source.master()).address) as client:
            await client.fence(1, producer=5)
        sender = Sender(source, 5)
        await sender.send(ids[:8], due_us=later_us)
        await sender.send(ids[8:], due_us=soon_us)
        assert await cancel(source, ids[0]) == ("cancelled", -1)
        record = control_pb2.SplitQueue(queue=queue_ref(QUEUE))
        record.children.add(queue_id=8, slot_start=0, slot_end=8_192)
        record.children.add(queue_id=9, slot_start=8_192, slot_end=32_768)
        await apply(source, split_queue=record)
        state = (await source.master()).replica.state
        await until_async(lambda: not state.delays.sealed)
        assert set(state.delays.queues) == {child, sibling}
        with pytest.raises(InvalidRequest, match="whose ids lead there"):
            await move(source, target, child, 1)
        await step(target, "ABORT", child, 1)
        assert {each: await fate(source, each) for each in ids[1:]} == dict.fromkeys(
            ids[1:], ("delayed", -1)
        )
        last = next(each for each in low[1:] if each in ids[:8])
        assert await cancel(source, last) == ("cancelled", -1)
        for each in set(low[1:]) & set(ids[:8]) - {last}:
            assert await cancel(source, each) == ("cancelled", -1)
        due, others = set(low) & set(ids[8:]), set(high) & set(ids[8:])
        await until_async(lambda: state.queues[child].log_end_offset == len(due))
        await until_async(lambda: state.queues[sibling].log_end_offset == len(others))
        assert time.time_ns() // 1_000 >= soon_us
        await move(source, target, child, 2)
        target_state = (await target.master()).replica.state
        assert target_state.queues[child].log_end_offset == len(due)
        for group in (source, target):
            for report in await verify(group):
                assert list(report.problems) == []
                assert not report.duplicates
