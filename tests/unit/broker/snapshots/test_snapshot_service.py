"""What a node says of records that it cannot give."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from semel.broker.dedup.id_store import CorruptIndex
from semel.broker.dedup.run_copies import Piece
from semel.broker.log import DamagedEntry, IndexUnavailable, RecordRef
from semel.broker.replica.id_indexes import Loan
from semel.broker.replica.pools import Pools
from semel.broker.snapshots import snapshot_service
from semel.broker.snapshots.snapshot_service import SnapshotService
from semel.protos.errors import Unavailable
from semel.protos.v1 import raft_pb2

LIVE, HERE, TRIMMED, DAMAGED, LOST = (RecordRef(index, 48, 4) for index in range(1, 6))


class Node:
    """One that has applied all of them, and can read one only."""

    def __init__(self) -> None:
        self.log = self.state = self
        self.config = SimpleNamespace(node_id=1)
        self.applied_index = 9
        self.pools = Pools.of_one(ThreadPoolExecutor(1))
        self.lost_entries = frozenset({LOST.index})
        self.asked: list[tuple[int, int]] = []

    def read_record(self, index: int, position: int, length: int) -> bytes:
        if index == HERE.index:
            return b"here"
        if index in (DAMAGED.index, LOST.index):
            raise DamagedEntry("damaged", index)
        raise IndexUnavailable(index, 0, 0)

    def live_records(self, lo: int, hi: int) -> list[tuple[int, int, int]]:
        self.asked.append((lo, hi))
        return [(one.index, 48, 4) for one in (LIVE, HERE, DAMAGED, LOST)]


async def _pulled(node: Node, refs: list[RecordRef]) -> list[tuple[int, str]]:
    stand_in: Any = node
    identity: Any = SimpleNamespace(check_message=lambda caller: None)
    nothing: Any = None
    service = SnapshotService(stand_in, nothing, identity)
    wanted = [raft_pb2.RecordRef(index=one.index, position=48, length=4) for one in refs]
    request = raft_pb2.PullRecordsRequest(records=wanted, applied_index=9)
    return [
        (chunk.record.index, "gone" if chunk.gone else "damaged" if chunk.damaged else "given")
        async for chunk in service.PullRecords(request, None)
    ]


async def test_a_record_is_gone_only_if_it_is_not_live_or_lost_everywhere() -> None:
    """One that merely cannot be found, perhaps because its file goes away at this moment, the
    caller asks the next member for: called gone, it would be left out."""
    node = Node()
    told = await _pulled(node, [LIVE, HERE, TRIMMED, DAMAGED, LOST])
    assert told == [(1, "damaged"), (2, "given"), (3, "gone"), (4, "damaged"), (5, "gone")]
    assert node.asked == [(1, 6)], "once a request: it goes through much of the state"


async def test_a_node_that_is_behind_calls_no_record_gone() -> None:
    """It has not got it yet, or has not trimmed it yet: only who has applied as much may say so."""
    node = Node()
    node.applied_index = 8
    with pytest.raises(Unavailable, match="entry 8, not yet 9"):
        await _pulled(node, [TRIMMED])


async def test_no_more_records_are_answered_than_the_protocol_says() -> None:
    assert len(await _pulled(Node(), [HERE] * 5_000)) == 4_096


class WithCheckpoint(Node):
    """One whose newest checkpoint is at entry 5; it can write one at entry 9."""

    def __init__(self) -> None:
        super().__init__()
        self.index = 5
        self.checkpoint: Any = SimpleNamespace(index=5, term=1, payload=b"at five")

    async def write(self) -> None:
        self.index = 9
        self.checkpoint = SimpleNamespace(index=9, term=2, payload=b"at nine")


async def _checkpoint(node: WithCheckpoint, index: int, position: int) -> tuple[int, int, bytes]:
    """Index, position and bytes of what is given."""
    stand_in: Any = node
    identity: Any = SimpleNamespace(check_message=lambda caller: None)
    service = SnapshotService(stand_in, stand_in, identity)
    request = raft_pb2.PullCheckpointRequest(index=index, position=position)
    (chunk,) = [chunk async for chunk in service.PullCheckpoint(request, None)]
    assert chunk.total_bytes == len(node.checkpoint.payload)
    return chunk.index, chunk.position, chunk.data


async def test_a_checkpoint_is_given_from_where_the_caller_has_it() -> None:
    node = WithCheckpoint()
    assert await _checkpoint(node, 3, 0) == (5, 0, b"at five")
    assert await _checkpoint(node, 5, 3) == (5, 3, b"five")
    assert await _checkpoint(node, 3, 3) == (5, 0, b"at five"), "it has a part of an older one"


async def test_a_checkpoint_that_is_not_new_enough_is_written_first() -> None:
    node = WithCheckpoint()
    assert await _checkpoint(node, 7, 0) == (9, 0, b"at nine")
    with pytest.raises(Unavailable, match="no checkpoint at or above index 10 here"):
        await _checkpoint(node, 10, 0)


class WithEntries:
    """One whose log begins with entry 3; it has entries up to 7, all of term 1."""

    def __init__(self) -> None:
        self.log = self
        self.config = SimpleNamespace(node_id=1)
        self.non_counting = False
        self.first_index = 3
        self.damaged = {5: SimpleNamespace(torn=False), 7: SimpleNamespace(torn=True)}

    def term_at(self, index: int) -> int | None:
        return 1 if 3 <= index <= 7 else None


async def _described(node: WithEntries, *entries: tuple[int, int]) -> list[str]:
    stand_in: Any = node
    nothing: Any = None
    identity: Any = SimpleNamespace(check_message=lambda caller: None)
    service = SnapshotService(stand_in, nothing, identity)
    refs = [raft_pb2.EntryRef(index=index, term=term) for index, term in entries]
    reply = await service.DescribeEntries(raft_pb2.DescribeEntriesRequest(entries=refs), None)
    assert reply.node_id == 1
    return [
        raft_pb2.EntryState.Name(state).removeprefix("ENTRY_STATE_").lower()
        for state in reply.states
    ]


async def test_what_a_node_says_of_an_entry_never_lets_others_cut_what_it_had() -> None:
    node = WithEntries()
    entries = [(2, 1), (4, 1), (4, 2), (5, 1), (7, 1), (8, 1)]
    said = ["held", "held", "absent", "damaged", "torn", "absent"]
    assert await _described(node, *entries) == said
    node.non_counting = True
    assert await _described(node, *entries) == ["unknown"] * 6, "it may have lost its disk"


@pytest.mark.parametrize(
    ("abandoned", "merged", "damaged"),
    [(False, False, True), (True, False, False), (False, True, False)],
)
async def test_a_lent_run_that_cannot_be_read_is_damage_unless_it_is_gone(
    abandoned: bool, merged: bool, damaged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The topic's last queue may move away while a peer reads: its index is dropped then, and those
    of other topics must stay."""

    def unreadable(*_: object) -> Iterator[Piece]:
        yield Piece(b"ids", b"")
        raise CorruptIndex("the chunks are not there")

    monkeypatch.setattr(snapshot_service, "pieces", unreadable)
    run = SimpleNamespace(info=SimpleNamespace(ids=4))
    index: Any = SimpleNamespace(
        pinned=nullcontext,
        is_abandoned=abandoned,
        run_with=lambda arrival: None if merged else run,
    )
    noticed: list[CorruptIndex] = []

    async def lend(*_: object, late: bool) -> Loan:
        return Loan(index, run, range(2, 6))  # type: ignore[arg-type]

    async def at_once(work: Callable[[], Any], *_: object) -> Any:
        return work()

    async def applied(*_: object) -> None:
        pass

    node: Any = SimpleNamespace(
        state=SimpleNamespace(applied_index=9),
        ids=SimpleNamespace(lend=lend, on_damage=noticed.append),
        wait_applied=applied,
        in_reader=at_once,
        pools=SimpleNamespace(copies=None),
    )
    nothing: Any = SimpleNamespace(check_message=lambda caller: None)
    service = SnapshotService(node, nothing, nothing)
    pulled = aiter(service.PullIds(raft_pb2.PullIdsRequest(applied_index=9), None))
    told = [await anext(pulled), await anext(pulled)]
    assert [(one.first_arrival, one.end_arrival, one.id_columns) for one in told] == [
        (2, 6, b""),
        (0, 0, b"ids"),
    ]
    with pytest.raises(Unavailable, match="were merged"):
        await anext(pulled)
    assert bool(noticed) is damaged
