"""A node that is new and empty, or was away for too long, catches up by snapshot."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from semel.broker.log import Log, RecordRef
from semel.broker.node import BrokerNode
from semel.broker.snapshots import records, snapshot_service
from semel.broker.snapshots.pull import SnapshotPull
from semel.protos import compat
from semel.protos.v1 import broker_pb2, common_pb2
from tests.kit.brokers import QUEUE, QUICK_CLEANING, BrokerGroup, RawClient, make_batch

SIZE = 8_000
MESSAGES = 150
RATE = 400_000
"""Bytes a second; the live records take two seconds."""


@pytest.fixture
async def group(tmp_path: Path) -> AsyncIterator[BrokerGroup]:
    """Three nodes whose logs begin far behind the first entry, with live records in front of it."""
    built = BrokerGroup(tmp_path, **QUICK_CLEANING, catch_up_bytes_per_second=RATE)
    async with built:
        master = await built.master()
        async with RawClient(master.address) as client:
            settings = common_pb2.TopicSettings(retention_bytes=800_000)
            await client.create_queue(settings=settings)
            await client.fence(1)
            for number in range(MESSAGES):
                value = str(number).encode().rjust(SIZE, b".")
                await client.produce(make_batch(number - 1, [value]))
            # More, for as long as a log holds everything: it is cleaned up to the older one of two
            # checkpoints, and of what is applied already there is but one.
            async with compat.timeout(20):
                number = MESSAGES
                while any(node.replica.log.first_index == 1 for node in built.running.values()):
                    value = str(number).encode().rjust(SIZE, b".")
                    await client.produce(make_batch(number - 1, [value]))
                    await asyncio.sleep(0.05)
                    number += 1
        await built.settled()
        yield built


def live_bytes(node: BrokerNode) -> int:
    return node.replica.state.queues[QUEUE].bytes


def bytes_pulled(node: BrokerNode) -> int:
    """Bytes that the pull under way has received; 0 when there is none."""
    pull = node.catch_up._pulling
    return 0 if pull is None else pull.bytes_received


async def check(group: BrokerGroup) -> None:
    queue = await group.recomputed()
    assert not queue.problems
    assert queue.missing == queue.duplicates == 0


async def join(group: BrokerGroup) -> BrokerNode:
    node = await group.join(4)
    await group.change(4, broker_pb2.MEMBERSHIP_STATUS_LEARNER)
    async with compat.timeout(20):
        while not bytes_pulled(node):
            await asyncio.sleep(0.01)
    return node


async def test_a_pull_that_is_cut_off_goes_on_at_another_member(
    group: BrokerGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The giver, who is master, goes away in the middle; nothing is pulled twice."""
    givers: list[Log] = []
    given: set[RecordRef] = set()
    read = records.read_or_none

    def note(log: Log, ref: RecordRef) -> bytes | None:
        if log not in givers:
            givers.append(log)
        data = read(log, ref)
        if data is not None:  # else it was trimmed since the checkpoint, and is gone
            given.add(ref)
        return data

    checkpoints: list[int] = []
    pull = SnapshotPull.checkpoint

    async def measured(self: SnapshotPull, index: int) -> tuple[int, int, bytes]:
        # The group cleans its log all the time, so it may offer a second snapshot after the first.
        found = await pull(self, index)
        checkpoints.append(len(found[2]))
        return found

    monkeypatch.setattr(SnapshotPull, "checkpoint", measured)
    monkeypatch.setattr(snapshot_service, "read_or_none", note)
    began = time.monotonic()
    node = await join(group)
    first = await group.master()
    whole = live_bytes(first)
    async with compat.timeout(20):
        while not 0.1 * whole < bytes_pulled(node):
            await asyncio.sleep(0.01)
    assert bytes_pulled(node) < 0.9 * whole, "it was done before it could be cut off"
    await group.stop(first.config.node_id)
    async with compat.timeout(30):
        while node.replica.non_counting:
            await asyncio.sleep(0.02)
    assert len([log for log in givers if log is not node.replica.log]) == 2
    assert givers[0] is first.replica.log
    pulled = node.catch_up.bytes_pulled
    # What the first giver read last may not have arrived.
    once = sum(ref.length for ref in given)
    assert checkpoints
    assert once - RATE / 4 <= pulled <= once + sum(checkpoints), "something was pulled twice"
    assert time.monotonic() - began > pulled / RATE * 0.8, "the rate was not kept"
    await check(group)


async def test_a_node_that_is_stopped_while_it_pulls_ends_and_begins_again(
    group: BrokerGroup,
) -> None:
    node = await join(group)
    async with compat.timeout(8):
        await group.stop(4)
    assert node.replica.non_counting
    assert node.replica.log.last_index == 0, "half a snapshot was taken for a whole one"
    node = await group.start(4)
    async with compat.timeout(30):
        while node.replica.non_counting:
            await asyncio.sleep(0.02)
    assert node.replica.log.first_index > 1
    await check(group)
