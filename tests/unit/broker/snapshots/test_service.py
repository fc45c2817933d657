"""What a node says of records that it cannot give."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

from semel.broker.log import DamagedEntry, IndexUnavailable, RecordRef
from semel.broker.snapshots.service import SnapshotService
from semel.protos.v1 import raft_pb2

LIVE, HERE, TRIMMED, DAMAGED, LOST = (RecordRef(index, 48, 4) for index in range(1, 6))


class Node:
    """One that has applied all of them, and can read one only."""

    def __init__(self) -> None:
        self.log = self.state = self
        self.config = SimpleNamespace(node_id=1)
        self.applied_index = 9
        self.readers = ThreadPoolExecutor(1)
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


async def test_no_more_records_are_answered_than_the_protocol_says() -> None:
    assert len(await _pulled(Node(), [HERE] * 5_000)) == 4_096
