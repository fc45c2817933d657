"""Batches whose predecessor does not come: only a master that a quorum confirms gives them up."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from semel.broker.raft import RaftConfig
from semel.broker.replica import driver
from semel.broker.replica.clock import monotonic_ms
from semel.protos.errors import NotMaster, OutOfOrderSequence
from semel.protos.v1.control_pb2 import ControlRecord, CreateQueue, Fence
from tests.kit.state_log import header, ref
from tests.unit.broker.replica.one_node import Answers, Node, node

RAFT = RaftConfig(
    tick_ms=1, heartbeat_ms=5, election_min_ms=10, election_max_ms=20, loop_gap_ms=300
)


async def submit(one: Node, **record: Any) -> None:
    asked = asyncio.create_task(one.replica.submit_control(ControlRecord(**record)))
    await one.until(asked.done)
    await asked


async def parked(one: Node) -> Answers:
    """The answers to a batch that waits for its predecessor."""
    await one.become_master()
    create = CreateQueue(queue=ref(), topic="orders", slot_end=65_536)
    await submit(one, create_queue=create)
    await submit(one, fence=Fence(queues=[ref()], producer_id=1, epoch=1))
    answers, head = Answers(), header(9)
    one.replica.submit_batch(head, head.encode() + bytes(head.body_length), answers)
    proposer = one.replica.mastership.proposer
    assert proposer is not None
    await one.until(lambda: proposer.parked_count == 1)
    return answers


def stop_loop(patch: pytest.MonkeyPatch, ms: int) -> None:
    """The loop stands still for so long: the next tick sees it."""
    patch.setattr(driver, "monotonic_ms", lambda: monotonic_ms() + ms)


@pytest.mark.parametrize("replaced", [True, False])
async def test_a_batch_is_given_up_when_a_quorum_has_confirmed_the_master(
    monkeypatch: pytest.MonkeyPatch, *, replaced: bool
) -> None:
    """While its loop was stopped another node may have become master, and got the predecessor."""
    async with node(raft=RAFT) as one:
        answers = await parked(one)
        for peer in one.peers.values():
            peer.there = not replaced
        stop_loop(monkeypatch, 3_000)
        one.replica.driver.on_tick()
        assert one.replica.is_master
        assert not answers.refused, "nobody has confirmed it"
        await one.until(lambda: bool(answers.refused))
        expected = NotMaster if replaced else OutOfOrderSequence
        assert [type(error) for error in answers.refused] == [expected]


async def test_what_comes_meanwhile_is_answered_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    async with node(raft=RAFT) as one:
        answers = await parked(one)
        stop_loop(monkeypatch, 3_000)
        one.replica.driver.on_tick()
        head = header(-1, last=9)
        one.replica.submit_batch(head, head.encode() + bytes(head.body_length), Answers())
        proposer = one.replica.mastership.proposer
        assert proposer is not None
        await one.until(lambda: not proposer.parked_count)
        await one.until(lambda: one.replica.state.queues[head.queue_key].log_end_offset == 11)
        assert not answers.refused
