"""Wall clocks that jump an hour: log time goes on evenly, and no lock ends early."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from semel.broker.node import BrokerNode
from semel.broker.replica.clock import wall_us
from semel.protos.frames import decode_frame_header
from semel.protos.queue_refs import queue_ref
from semel.protos.v1 import broker_pb2
from tests.kit.brokers import QUEUE, BrokerGroup, RawClient, make_batch

HOUR_US = 3_600_000_000
MINUTE_US = 60_000_000


def jump(node: BrokerNode, by_us: int) -> None:
    """Sets the node's wall clock that far forth or back."""
    node.replica.log_time.wall_us = lambda: wall_us() + by_us


async def acquire(node: BrokerNode, member: str) -> broker_pb2.LockGrant:
    request = broker_pb2.AcquireLocksRequest(
        group="g", queues=[queue_ref(QUEUE)], member_id=member, lock_ms=60_000, session_ms=60_000
    )
    async with RawClient(node.address) as client:
        grant: broker_pb2.LockGrant = (await client.call("AcquireLocks", request)).grants[0]
    return grant


async def commit(node: BrokerNode, token: int, offset: int) -> bool:
    request = broker_pb2.CommitRequest(group="g")
    request.commits.add(queue=queue_ref(QUEUE), token=token, offset=offset)
    async with RawClient(node.address) as client:
        (outcome,) = (await client.call("Commit", request)).outcomes
    return not outcome.HasField("error")


def times(node: BrokerNode) -> list[int]:
    """Log time of every entry."""
    log = node.replica.log
    return [
        decode_frame_header(one).time_us
        for one in log.read_frames(log.first_index, log.last_index + 1)
    ]


@pytest.mark.parametrize("by_us", [HOUR_US, -HOUR_US])
async def test_a_clock_that_jumps_moves_neither_log_time_nor_locks(
    tmp_path: Path, by_us: int
) -> None:
    async with BrokerGroup(tmp_path) as group:
        first = await group.master()
        async with RawClient(first.address) as client:
            await client.create_queue()
            await client.fence(1)
            await client.produce(make_batch(-1, [b"0"]))
        token = (await acquire(first, "owner")).token
        assert token
        # On the master itself: log time bends by one percent and the lock stays.
        jump(first, by_us)
        async with RawClient(first.address) as client:
            await client.produce(make_batch(0, [b"1"]))
        await asyncio.sleep(0.3)  # three looks at the locks
        assert (await acquire(first, "thief")).HasField("error")
        assert await commit(first, token, 1)
        # On a node that becomes master: the clocks of those who elected it count.
        await group.settled()
        second = next(node for node in group.running.values() if node is not first)
        jump(first, 0)
        jump(second, by_us)
        await first.changes.transfer(second.config.node_id)
        assert await group.master() is second
        assert (await acquire(second, "thief")).HasField("error")
        assert await commit(second, token, 2)
        async with RawClient(second.address) as client:
            await client.produce(make_batch(1, [b"2"]))
        found = times(second)
        assert found == sorted(found)
        assert abs(found[-1] - wall_us()) < MINUTE_US, "log time jumped with a clock"
