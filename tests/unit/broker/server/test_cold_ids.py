"""Messages that only the object store has are found by their ids."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from semel.broker.server import id_calls
from semel.broker.server.id_calls import IdCalls
from semel.broker.tiers.cold_reads import ColdReads
from semel.protos.errors import Unavailable
from semel.protos.v1 import broker_pb2
from tests.kit.state_log import KEY
from tests.kit.tiered_node import TieredNode


@pytest.fixture
async def node(tmp_path: Path) -> TieredNode:
    """60 messages in six files, all of which the log has given up but the last ten."""
    node = TieredNode(tmp_path / "tier")
    await node.place.open()
    for _ in range(6):
        node.send(10, ids=True, value_bytes=300)
        node.passes(1.05)
        await node.tier()
        node.forget()
    assert node.queue.local_start == 50
    return node


@pytest.fixture
async def cold(node: TieredNode) -> AsyncIterator[ColdReads]:
    reads = ColdReads(node.place, cache_bytes=1 << 20, timeout_s=10)
    yield reads
    await reads.close()


def calls(node: TieredNode, cold: ColdReads | None) -> IdCalls:
    replica: Any = node
    return IdCalls(replica, cold)


async def test_a_message_is_found_at_its_offset(node: TieredNode, cold: ColdReads) -> None:
    reply = broker_pb2.FindMessageReply(offset=23)
    assert await calls(node, cold)._find_cold(node.queue, b"23", reply)
    assert reply.fate == broker_pb2.MESSAGE_FATE_STORED
    assert reply.offset == 23
    assert reply.append_time_us == node.log_time_us() - 4 * 1_050_000
    assert reply.stored
    other = broker_pb2.FindMessageReply(offset=23)
    assert not await calls(node, cold)._find_cold(node.queue, b"no such id", other)
    assert other == broker_pb2.FindMessageReply(offset=23)
    with pytest.raises(Unavailable, match="started without --tier"):
        await calls(node, None)._find_cold(node.queue, b"23", other)


async def test_a_message_that_was_delayed_is_sought_from_its_due_time_on(
    node: TieredNode, cold: ColdReads, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin_us = node.log_time_us() - 6 * 1_050_000
    sought = calls(node, cold)._seek_cold
    for message_id, due_us, offset in (
        (b"0", 1, 0),
        (b"23", begin_us + 1_500_000, 23),
        (b"49", begin_us + 1, 49),
        (b"3", begin_us + 1_500_000, -1),  # it was appended before
        (b"55", begin_us + 1_500_000, -1),  # the log has it
    ):
        found = await sought(node.queue, message_id, due_us)
        assert (-1 if found is None else found.offset) == offset, message_id
    monkeypatch.setattr(id_calls, "SOUGHT_GROUPS", 2)
    assert await sought(node.queue, b"49", 1) is None, "too far away"


async def test_of_messages_with_one_id_that_were_delayed_the_newest_is_found(
    node: TieredNode, cold: ColdReads
) -> None:
    """One that was due when it came has older ones, of before the window, behind its due time."""
    for first_id in (20, 60):
        node.send(10, ids=True, first_id=first_id, value_bytes=300)
        node.passes(1.05)
        await node.tier()
        node.forget()
    assert node.queue.local_start == 70
    for due_us in (1, node.log_time_us() - 2 * 1_050_000):
        found = await calls(node, cold)._seek_cold(node.queue, b"23", due_us)
        assert found is not None
        assert found.offset == 63
        reply = broker_pb2.FindMessageReply(offset=-1)
        await calls(node, cold)._fill(node.queue, found, reply)
        assert (reply.offset, reply.fate) == (63, broker_pb2.MESSAGE_FATE_STORED)


async def test_where_not_all_is_looked_at_only_a_message_that_waited_then_is_found(
    node: TieredNode, cold: ColdReads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A newer one with its id may be in the log of a queue that moved here, or further on."""
    sought = calls(node, cold)._seek_cold
    found = await sought(node.queue, b"23", 1)
    assert found is not None
    waited_us = found.arrival_us + 1
    monkeypatch.setattr(node.state.moves, "places", {KEY: None})
    assert await sought(node.queue, b"23", 1) is None
    monkeypatch.undo()
    monkeypatch.setattr(id_calls, "SOUGHT_GROUPS", 3)
    assert await sought(node.queue, b"23", 1) is None
    row = found._replace(arrival_us=found.arrival_us - 10)
    monkeypatch.setattr(id_calls, "cold_row", lambda batch, _: row if batch == row.batch else None)
    again = await sought(node.queue, b"23", waited_us - 5)
    assert again == row, "it waited at that time"
