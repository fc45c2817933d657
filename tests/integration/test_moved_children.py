"""A queue that a split has made, with delayed messages of its parent, moves away and comes back: it
is verified as a queue that never moved. Real nodes."""

from __future__ import annotations

import time
from pathlib import Path

from semel.protos.ids import QueueId, QueueKey
from semel.protos.queue_refs import queue_ref
from semel.protos.v1 import control_pb2
from tests.kit.brokers import QUEUE, TOPIC, BrokerGroup, RawClient
from tests.kit.found_messages import Sender
from tests.kit.moving_groups import apply, groups, move, verify
from tests.kit.waiting import until_async

CHILDREN = {QueueKey(TOPIC, QueueId(2)): (0, 16_384), QueueKey(TOPIC, QueueId(3)): (16_384, 32_768)}
BATCHES, EACH = 4, 8
SOON_US = 5_000_000


async def is_handed_over(group: BrokerGroup) -> bool:
    """Whether all messages are delivered by the children."""
    state = (await group.master()).replica.state
    there = [state.queues[key].log_end_offset for key in CHILDREN if key in state.queues]
    return sum(there) == BATCHES * EACH and not state.delays.queues


async def check(group: BrokerGroup) -> dict[int, int]:
    """How many messages each queue has, by number, after all of them were verified."""
    found = {}
    for report in await verify(group):
        wrong = list(report.problems), report.duplicates, report.missing
        assert wrong == ([], 0, 0), report.queue
        found[report.queue.queue_id] = report.messages
    return found


async def test_what_a_child_got_of_its_parent_is_verified_wherever_it_moves(tmp_path: Path) -> None:
    async with groups(tmp_path) as (source, target):
        async with RawClient((await source.master()).address) as client:
            await client.fence(1, producer=5)
        sender = Sender(source, 5)
        due_us = time.time_ns() // 1_000 + SOON_US
        for number in range(BATCHES):
            ids = [b"%d of %d" % (each, number) for each in range(EACH)]
            await sender.send(ids, due_us=due_us + number)
        split = control_pb2.SplitQueue(queue=queue_ref(QUEUE))
        for key, (start, end) in CHILDREN.items():
            split.children.add(queue_id=key.queue_id, slot_start=start, slot_end=end)
        await apply(source, split_queue=split)
        await until_async(lambda: is_handed_over(source), 30)
        before = await check(source)
        assert before[2]
        assert before[3]
        assert sum(before.values()) == BATCHES * EACH
        for job, key in enumerate(CHILDREN, 1):
            await move(source, target, key, job, CHILDREN[key])
        moved = await check(target)
        assert moved == {2: before[2], 3: before[3]}
        for job, key in enumerate(CHILDREN, 3):
            await move(target, source, key, job, CHILDREN[key])
        assert await check(source) == before
