"""A delayed batch is given up only if no member of the group can read it, and all have answered."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from semel.broker.server import parting_calls
from semel.broker.server.parting_calls import PartingCalls
from semel.broker.state import Accepted
from semel.protos.errors import CorruptSegment, InvalidRequest, Throttled, Unavailable, UnknownQueue
from semel.protos.ids import NodeId
from semel.protos.queue_refs import queue_ref
from semel.protos.v1 import broker_pb2, common_pb2
from tests.kit.parting import PartingGroup
from tests.kit.state_log import KEY, ref

SECOND_US = 1_000_000


class FakeReplica:
    """Node 1, the master of three, with the log and the state of a PartingGroup."""

    def __init__(self, group: PartingGroup) -> None:
        self.group, self.state, self.log = group, group.state, self
        self.readable = False
        self.config = SimpleNamespace(node_id=1, group_id=1)
        addresses = {NodeId(node): f"h{node}:1" for node in (1, 2, 3)}
        self.peers = SimpleNamespace(addresses=addresses, address_of=addresses.get)
        self.core = SimpleNamespace(membership=SimpleNamespace(nodes=frozenset(addresses)))
        self.records: list[Any] = []

    async def confirm_read(self) -> None:
        pass

    async def in_reader(self, work: Callable[[], Any]) -> Any:
        return work()

    def read_record(self, index: int, position: int, length: int) -> bytes:
        if not self.readable:
            raise CorruptSegment(f"entry {index} is damaged")
        return self.group.read_record(index, position, length)

    async def submit_control(self, record: Any) -> None:
        self.records.append(record.give_up_delayed)
        verdict = self.group.admission.queues.admit_give_up(record.give_up_delayed)
        assert verdict == Accepted()
        self.group.apply_control(give_up_delayed=record.give_up_delayed)


@pytest.fixture
def group() -> PartingGroup:
    made = PartingGroup()
    for first, seconds in ((0, 60), (8, 3)):
        found = [b"m%d" % number for number in range(first, first + 8)]
        made.delay(*found, due_us=made.now_us + seconds * SECOND_US)
    made.split()
    return made


@pytest.fixture
def replica(group: PartingGroup) -> FakeReplica:
    return FakeReplica(group)


@pytest.fixture
def copies(replica: FakeReplica, monkeypatch: pytest.MonkeyPatch) -> dict[int, Any]:
    """What each other member gives of a record, or the error of asking it."""
    found: dict[int, Any] = {2: None, 3: None}

    async def copy_of(calls: Any, node: NodeId, where: tuple[int, int, int]) -> bytes | None:
        given = found[node]
        if isinstance(given, Exception):
            raise given
        return replica.group.read_record(*where) if given == "whole" else given

    monkeypatch.setattr(parting_calls.PartingCalls, "_copy_of", copy_of)
    return found


def calls(replica: Any) -> PartingCalls:
    return PartingCalls(replica, lambda node: None)  # type: ignore[arg-type, return-value]


async def look(replica: FakeReplica) -> broker_pb2.GiveUpDelayedReply:
    request = broker_pb2.GiveUpDelayedRequest(queue=ref())
    return await calls(replica).GiveUpDelayed(request, None)


async def give_up(replica: FakeReplica, batch: Any) -> broker_pb2.GiveUpDelayedReply:
    request = broker_pb2.GiveUpDelayedRequest(queue=ref(), batch=batch)
    return await calls(replica).GiveUpDelayed(request, None)


async def test_what_would_be_lost_is_told_and_then_given_up_by_its_name(
    replica: FakeReplica, copies: dict[int, Any]
) -> None:
    found = await look(replica)
    assert (found.messages, found.batch.ordinal) == (8, 1)
    assert "is damaged" in found.reason
    assert replica.records == [], "nothing is given up by asking"
    assert (await give_up(replica, found.batch)).messages == 8
    assert [each.ordinal for each in replica.records] == [1]
    with pytest.raises(InvalidRequest, match="another one than the one that was named"):
        await give_up(replica, found.batch)  # the answer was lost, say: the next one stays
    assert replica.state.delays.queues[KEY].batches == 1


async def test_nothing_is_given_up_that_a_node_can_read(
    replica: FakeReplica, copies: dict[int, Any]
) -> None:
    batch = (await look(replica)).batch
    copies[3] = "whole"
    with pytest.raises(Throttled, match="node 3 has the next delayed batch"):
        await give_up(replica, batch)
    copies[3] = b"x" * 300  # a copy that proves nothing
    await look(replica)
    replica.readable = True
    with pytest.raises(InvalidRequest, match="can be read"):
        await give_up(replica, batch)
    assert replica.records == []


async def test_nothing_is_given_up_while_a_member_is_silent(
    replica: FakeReplica, copies: dict[int, Any]
) -> None:
    copies[2] = Unavailable("node 2 does not answer")
    with pytest.raises(Unavailable, match="node 2"):
        await look(replica)


async def test_only_a_queue_that_was_split_has_something_to_give_up(
    replica: FakeReplica, copies: dict[int, Any]
) -> None:
    replica.group.part_all()
    with pytest.raises(InvalidRequest, match="no delayed messages that its children wait for"):
        await look(replica)
    unknown = broker_pb2.GiveUpDelayedRequest(queue=common_pb2.QueueRef(topic_id=9, queue_id=9))
    with pytest.raises(UnknownQueue):
        await calls(replica).GiveUpDelayed(unknown, None)
    assert queue_ref(KEY) == ref()
