"""A node brings the bodies that it lacks, and the master gives up only what nobody can have."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from semel.broker.background import memory_bodies
from semel.broker.background.memory_bodies import MemoryBodies
from semel.broker.log import IndexUnavailable
from semel.broker.memory import BodyStore, Lacking
from semel.broker.state import RECORD_BYTES
from semel.protos.ids import NodeId
from semel.protos.v1 import control_pb2
from tests.kit.memory_log import MemoryGroup
from tests.kit.state_log import KEY

OWN, OTHERS = NodeId(1), (NodeId(2), NodeId(3))


class Node:
    """A node without bodies, whose peers have some, and perhaps do not answer."""

    def __init__(self) -> None:
        self.group = MemoryGroup()
        for number in range(6):
            self.group.send(number - 1)
        self.state = self.group.state
        self.bodies = BodyStore(len(self.group.frames))
        self.config = SimpleNamespace(node_id=OWN, memory_wait_ms=10_000)
        membership = SimpleNamespace(nodes=frozenset({OWN, *OTHERS}))
        self.core = SimpleNamespace(membership=membership, master_id=None)
        self.is_master = True
        self.lost_entries: frozenset[int] = frozenset()
        self.log = self
        self.blind = False
        self.silent: set[NodeId] = set()
        self.held: dict[NodeId, set[int]] = {node: set() for node in OTHERS}
        """Base offsets of the batches that a peer has."""

    def read_record(self, index: int, position: int, length: int) -> bytes:
        if self.blind:
            raise IndexUnavailable(index, 1, 9)
        return self.group.bodies[index, position][:length]

    async def in_reader(self, work: Any) -> Any:
        return work()

    async def submit_control(self, record: control_pb2.ControlRecord) -> None:
        lost = record.lose_memory
        results = self.group.lose(lost.from_offset, lost.to_offset)
        self.bodies.on_applied(self.state, results)

    @property
    def lost(self) -> list[tuple[int, int]]:
        return [(start, end) for start, end in self.state.queues[KEY].lost.ranges]

    def here(self) -> list[int]:
        places = enumerate(sorted(self.group.bodies))
        return [offset for offset, place in places if self.bodies.get(*place) is not None]


class Work(MemoryBodies):
    """The work, with peers that are asked without a network."""

    def __init__(self, node: Node) -> None:
        stand_in: Any = node
        super().__init__(stand_in, lambda _: None, bytes_per_second=1 << 30)  # type: ignore[arg-type, return-value]
        self.node = node

    async def _ask(self, node: NodeId, wanted: Any) -> list[Lacking] | None:
        if node in self.node.silent:
            return None
        held = self.node.held[node]
        came = [
            self.node.group.bodies[one.extent.index, one.extent.position]
            if one.extent.base_offset in held
            else b""
            for one in wanted
        ]
        return await self._take(wanted, came)

    async def look(self) -> bool:
        return await self._look()


@pytest.fixture
def node() -> Node:
    return Node()


async def test_bodies_come_from_whoever_has_them(node: Node) -> None:
    node.held = {OTHERS[0]: {0, 1, 2}, OTHERS[1]: {2, 3, 4, 5}}
    work = Work(node)
    assert await work.look()
    assert (node.here(), node.lost) == ([0, 1, 2, 3, 4, 5], [])
    assert (node.bodies.missing_to, work.missing_bytes) == (0, 0)
    assert work.pulled_bytes == node.bodies.bytes


async def test_what_no_member_has_is_lost_once_all_have_answered(node: Node) -> None:
    node.held[OTHERS[0]] = {2, 4, 5}
    work = Work(node)
    assert not await work.look()
    assert node.lost == [(0, 2), (3, 4)]
    assert await work.look()
    assert node.here() == [2, 4, 5]


async def test_a_member_that_does_not_answer_is_waited_for(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    node.silent = {OTHERS[1]}
    work = Work(node)
    for passed in (0.0, 5.0, 9.9):
        now = 100.0 + passed
        assert not await work.look()
        assert node.lost == []
    now = 110.0
    assert not await work.look()
    assert node.lost == [(0, 6)]
    assert await work.look()


async def test_a_slave_gives_up_nothing(node: Node) -> None:
    node.is_master = False
    work = Work(node)
    assert not await work.look()
    assert node.lost == []
    assert work.missing_bytes == sum(map(len, node.group.bodies.values()))


async def test_a_master_that_cannot_read_its_headers_gives_up_nothing(node: Node) -> None:
    node.held[OTHERS[0]] = {0, 1, 2, 3, 4, 5}
    node.blind = True
    work = Work(node)
    assert not await work.look()
    assert (node.here(), node.lost) == ([], [])
    node.blind = False
    assert await work.look()
    assert node.here() == [0, 1, 2, 3, 4, 5]


async def test_what_was_applied_meanwhile_is_looked_at_again(node: Node) -> None:
    node.held[OTHERS[0]] = set(range(7))
    node.bodies.missing_to = len(node.group.frames) + 1  # the next entry is not applied yet
    work = Work(node)
    assert not await work.look()
    node.group.send(5)
    assert await work.look()
    assert node.here() == [0, 1, 2, 3, 4, 5, 6]


async def test_only_the_batch_of_the_record_is_taken(node: Node) -> None:
    (first, stored), (_, other), *_ = sorted(node.group.bodies.items())
    (lacking,) = [
        one
        for one in node.bodies.lacking(node.state)
        if one is not None and (one.extent.index, one.extent.position) == first
    ]
    log: Any = node
    damaged = stored[:-1] + bytes([stored[-1] ^ 1])
    assert memory_bodies._checked(log, [lacking], [stored]) == [True]
    for wrong in (other, damaged, stored[:RECORD_BYTES], b""):
        assert memory_bodies._checked(log, [lacking], [wrong]) == [False]
