"""What waits for the admission is bounded in bytes: control records and copies count as batches
do."""

from __future__ import annotations

import asyncio

import pytest

from semel.broker.replica.proposer import Proposer
from semel.protos.errors import DiskFull, InvalidRequest, NotMaster, Throttled
from semel.protos.v1.control_pb2 import CommitOffsets, ControlRecord, QueueCommit
from tests.kit.state_log import KEY, Group, header, ref
from tests.unit.broker.replica.one_node import Answers, Node, node

KIB = 1 << 10
MOST = 256 * KIB


def commit(length: int) -> ControlRecord:
    """A commit whose metadata has so many bytes."""
    one = QueueCommit(queue=ref(KEY), token=1, offset=1, metadata=bytes(length))
    return ControlRecord(commit_offsets=CommitOffsets(group="g", commits=[one]))


def proposer_of(one: Node) -> Proposer:
    found = one.replica.mastership.proposer
    assert found is not None
    return found


async def test_a_stream_of_large_control_records_is_bounded() -> None:
    """The group stands still: what is admitted is not applied, and all the rest would wait."""
    async with node(pending_bytes_max=MOST, unapplied_bytes_max=MOST) as one:
        await one.become_master()
        for peer in one.peers.values():
            peer.there = False
        proposer, peak = proposer_of(one), 0
        asked: list[asyncio.Task[object]] = []
        for _ in range(200):
            asked.append(asyncio.create_task(one.replica.submit_control(commit(20 * KIB))))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            peak = max(peak, proposer.pending_bytes)
        assert MOST // 2 < peak <= MOST
        assert proposer.pending_bytes == proposer.pending_control_bytes
        refused = [one.exception() for one in asked if one.done()]
        assert {type(error) for error in refused} == {Throttled}
        assert 100 < len(refused) < 200
        for peer in one.peers.values():
            peer.there = True
        await one.until(lambda: all(one.done() for one in asked))
        assert proposer.pending_bytes == proposer.pending_control_bytes == 0
        assert sum(one.exception() is None for one in asked) == 200 - len(refused)


async def test_a_stream_is_not_read_while_too_many_control_records_wait() -> None:
    async with node(pending_bytes_max=MOST, unapplied_bytes_max=MOST) as one:
        await one.become_master()
        proposer_of(one).submit_control(commit(MOST))
        waiting = asyncio.create_task(one.replica.produce_room())
        await asyncio.sleep(0)
        assert not waiting.done()
        one.replica.driver.schedule_turn()
        await one.until(waiting.done)


async def test_batches_that_wait_keep_no_control_record_away() -> None:
    """Locks and commits go on beside producers that send as fast as they can."""
    async with node(pending_bytes_max=MOST) as one:
        await one.become_master()
        proposer, answers = proposer_of(one), Answers()
        head = header(-1, body=bytes(MOST))
        proposer.submit_batch(head, head.encode() + bytes(head.body_length), answers)
        assert proposer.pending_bytes > MOST
        asked = asyncio.create_task(one.replica.submit_control(commit(10)))
        await one.until(asked.done)
        assert asked.exception() is None


async def test_one_record_may_wait_whatever_the_limit_is() -> None:
    async with node(pending_bytes_max=1) as one:
        await one.become_master()
        asked = asyncio.create_task(one.replica.submit_control(commit(KIB)))
        await one.until(asked.done)
        assert asked.exception() is None


async def test_bytes_that_are_answered_wait_no_more() -> None:
    """Refused, because the disk is full, lost with the mastership, or beyond the limits at once."""
    group = Group()
    proposer = Proposer(group.admission)
    record = commit(KIB)
    proposer.submit_copy(bytes(10))
    assert (proposer.pending_bytes, proposer.pending_control_bytes) == (10, 0)
    full = proposer.submit_control(record)
    assert proposer.pending_control_bytes == record.ByteSize()
    assert proposer.pending_bytes == 10 + record.ByteSize()
    proposer.refuse_pending(DiskFull("no room"))
    assert (proposer.pending_bytes, proposer.pending_control_bytes) == (0, 0)
    lost = proposer.submit_control(record)
    proposer.on_lost(lambda: NotMaster("over"))
    assert (proposer.pending_bytes, proposer.pending_control_bytes) == (0, 0)
    large = proposer.submit_control(commit(16 << 20))
    assert (proposer.pending_bytes, proposer.pending_control_bytes) == (0, 0)
    for future, kind in ((full, DiskFull), (lost, NotMaster), (large, InvalidRequest)):
        with pytest.raises(kind):
            await future
