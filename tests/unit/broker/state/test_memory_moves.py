"""A queue in memory moves: bodies go along, and what is lost is lost at its new place, too."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from semel.broker.memory import BodyStore
from semel.broker.state import (
    RECORD_BYTES,
    Duplicate,
    MoveApplied,
    Refused,
    StateDiverged,
    make_slice,
)
from semel.protos.errors import InvalidRequest, SemelError, Throttled
from semel.protos.frames import RecordKind
from semel.protos.ids import Offset
from semel.protos.levels import COMPACTION_LEVEL, MEMORY_LEVEL
from semel.protos.v1 import control_pb2
from tests.kit.memory_log import SETTINGS, MemoryRecords
from tests.kit.state_log import KEY, control, ref
from tests.unit.broker.state.moving import Home


class MemoryHome(MemoryRecords, Home):
    """A broker group with a number, the bodies that a node of it has, and a queue or none."""

    def __init__(self, number: int, *, queue: bool = False) -> None:
        self.bodies = {}
        self.store = BodyStore(0)
        super().__init__(number, at_level=MEMORY_LEVEL)
        if queue:
            self.create_in_memory()

    def apply(self, *records: Any) -> Any:
        results = super().apply(*records)
        self.store.on_applied(self.state, results)
        return results

    def begin(self, job: int = 1) -> SemelError | None:
        create = control_pb2.CreateQueue(queue=ref(), topic="t", slot_end=65_536, settings=SETTINGS)
        return self.step("BEGIN", job, 3 - self.number, create=create)

    def take(self, stored: bytes, *, lost: bool = False) -> MoveApplied:
        """Applies the copy of a stored batch, with its body or as a lost one."""
        kind = RecordKind.COPY if lost else RecordKind.MEMORY_COPY
        place = len(self.frames) + 1, 48
        if not lost:
            self.bodies[place] = stored
            self.store.put(*place, stored)
        (result,) = self.apply((kind, [stored[:RECORD_BYTES]]))
        assert isinstance(result, MoveApplied)
        return result

    @property
    def held(self) -> list[int]:
        """Base offsets of the batches whose bodies are here; a look finds no other ones lacking."""
        queue = self.state.holding(KEY)
        assert not list(self.store.lacking(self.state))
        if queue is None:
            return []
        extents = queue.extents_from(queue.log_start_offset, 1 << 30)
        return [one.base_offset for one in extents if self.store.get(one.index, one.position)]


def pair() -> tuple[MemoryHome, MemoryHome]:
    """A source with three batches of two messages, and a target that has begun to copy."""
    source, target = MemoryHome(1, queue=True), MemoryHome(2)
    for number in range(3):
        source.send(2 * number - 1, 2)
    source.store.missing_to = 0
    for place, stored in source.bodies.items():
        source.store.put(*place, stored)
    assert target.begin() is None
    return source, target


def copy(source: MemoryHome, target: MemoryHome, batches: int = 99) -> None:
    queue = source.state.queues[KEY]
    at = target.state.moves.incoming[KEY].queue.log_end_offset
    for extent in queue.extents_from(max(at, queue.log_start_offset), 1 << 30)[:batches]:
        stored = source.bodies[extent.index, extent.position]
        lost = queue.lost.end_at(extent.base_offset) is not None
        assert target.take(stored, lost=lost).error is None


def ingest(source: MemoryHome, target: MemoryHome, job: int = 1) -> SemelError | None:
    state = source.state
    data = make_slice(
        state.queues[KEY], state.producers, state.groups, state.delays, state.feature_level
    )
    assert target.step("PART", job, 1, part=data) is None
    digest = hashlib.sha256(data).digest()
    return target.step("INGEST", job, 1, offset=len(data), digest=digest, source_time_us=1)


def finish(source: MemoryHome, target: MemoryHome, job: int = 1) -> None:
    assert source.step("SEAL", job, 2) is None
    copy(source, target)
    assert ingest(source, target, job) is None
    assert target.step("ACTIVATE", job, 1) is None
    assert source.step("FORWARD", job, 2) is None


def test_a_queue_moves_with_headers_in_the_log_and_bodies_beside_it() -> None:
    source, target = pair()
    copy(source, target, 1)
    target.restart()  # in the middle of the copy
    before = source.state.queues[KEY]
    head = source.send(5, 2)
    finish(source, target)
    queue = target.state.queues[KEY]
    assert (queue.bytes, queue.log_end_offset, queue.in_memory) == (before.bytes, 8, True)
    assert queue.lost.ranges == []
    assert target.held == [0, 2, 4, 6]
    assert target.store.bytes == queue.bytes
    assert source.held == []
    assert source.store.bytes == 0
    records = list(target.state.live_records(0, 99))
    assert [length for _, _, length in records] == [RECORD_BYTES] * 4
    assert target.state.live_bytes == 4 * RECORD_BYTES
    assert target.admission.admit_batch(head, 0, time_us=target.now_us) == Duplicate(Offset(6))
    assert target.replayed().digest() == target.state.digest()


def test_what_was_lost_before_and_after_it_was_copied_is_lost_at_the_target() -> None:
    source, target = pair()
    source.lose(0, 2)
    copy(source, target, 2)
    source.lose(2, 4)
    finish(source, target)
    lost = target.state.queues[KEY].lost
    assert (lost.ranges, lost.messages) == ([(0, 4)], 4)
    assert target.held == [4]
    assert len(target.state.queues[KEY].extents) == 3


def test_what_is_lost_at_the_target_alone_is_not_given_up_at_the_source() -> None:
    source, target = pair()
    copy(source, target)
    target.lose(2, 4)
    assert target.held == [0, 4]
    assert source.step("SEAL", 1, 2) is None
    refused = ingest(source, target)
    assert isinstance(refused, InvalidRequest)
    assert "offsets 2 to 4 were lost" in refused.message
    assert source.step("UNSEAL", 1, 2) is None
    assert target.step("ABORT", 1, 1) is None
    assert target.store.bytes == 0
    assert source.held == [0, 2, 4]
    assert target.begin(2) is None  # and the next one succeeds
    finish(source, target, 2)
    assert target.held == [0, 2, 4]


def test_what_a_majority_of_the_target_loses_later_is_lost() -> None:
    source, target = pair()
    copy(source, target)
    assert source.step("SEAL", 1, 2) is None
    assert ingest(source, target) is None
    target.lose(4, 6)
    target.restart()
    assert target.step("ACTIVATE", 1, 1) is None
    assert target.state.queues[KEY].lost.ranges == [(4, 6)]
    assert target.held == [0, 2]


def test_a_sealed_queue_loses_nothing_more_until_it_is_unsealed() -> None:
    source, _ = pair()
    record = control_pb2.LoseMemory(queue=ref(), from_offset=0, to_offset=2)
    assert source.step("SEAL", 1, 2) is None
    refused = source.admission.queues.admit_lose_memory(record)
    assert isinstance(refused, Refused)
    assert isinstance(refused.error, Throttled)
    assert source.step("UNSEAL", 1, 2) is None
    source.lose(0, 2)
    assert source.held == [2, 4]


def test_a_loss_of_a_queue_that_has_not_come_so_far_changes_nothing() -> None:
    source, target = pair()
    copy(source, target, 1)
    target.apply(control(lose_memory=control_pb2.LoseMemory(queue=ref(), to_offset=4)))
    assert target.state.moves.incoming[KEY].queue.lost.ranges == []
    record = control_pb2.LoseMemory(queue=ref(), to_offset=4)
    assert isinstance(target.admission.queues.admit_lose_memory(record), Refused)
    assert target.step("ABORT", 1, 1) is None
    target.apply(control(lose_memory=record))
    assert KEY not in target.state.moves.incoming


def test_a_copy_that_is_refused_leaves_no_body() -> None:
    source, target = pair()
    stored = next(iter(source.bodies.values()))
    copy(source, target)
    before = target.store.bytes
    assert target.take(stored).error is not None  # it is here already
    assert target.store.bytes == before
    assert target.held == [0, 2, 4]
    assert target.step("ABORT", 1, 1) is None
    assert target.take(stored).error is not None
    assert target.store.bytes == 0


def test_what_comes_back_is_not_dropped_with_what_has_left() -> None:
    """A node may have an entry of the next move before it has applied the end of the last one."""
    source, target = pair()
    finish(source, target)
    copies = dict(target.bodies)
    back = len(source.frames) + 3, 48
    source.store.put(*back, copies[min(copies)])
    assert source.begin(2) is None
    assert source.store.get(*back) is not None
    assert source.step("ABORT", 2, 2) is None
    assert source.store.get(*back) is not None
    source.apply(control(trim=control_pb2.Trim(queue=ref())))
    assert source.step("ABORT", 2, 2) is None
    assert source.store.bytes == 0


def test_records_of_the_wrong_kind_change_nothing() -> None:
    source, target = pair()
    stored = next(iter(source.bodies.values()))
    (whole,) = target.apply((RecordKind.COPY, [stored]))
    (bare,) = target.apply((RecordKind.MEMORY_COPY, [stored]))
    assert isinstance(whole, MoveApplied)
    assert isinstance(bare, MoveApplied)
    assert (whole.error is None, bare.error is None) == (False, False)
    logged = MemoryHome(2)
    create = control_pb2.CreateQueue(queue=ref(), topic="t", slot_end=65_536)
    assert logged.step("BEGIN", 1, 1, create=create) is None
    for lost in (True, False):
        assert logged.take(stored, lost=lost).error is not None
    assert logged.store.bytes == 0
    older = Home(2, at_level=COMPACTION_LEVEL)
    with pytest.raises(StateDiverged, match="level"):
        older.apply((RecordKind.MEMORY_COPY, [stored[:RECORD_BYTES]]))
