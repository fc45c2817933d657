"""The master hands delayed batches to children piece by piece, what is due first."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from semel.broker.background import delayed_parting
from semel.broker.background.delayed_parting import DelayedParting, next_piece
from semel.broker.state import Accepted, Refused
from semel.protos.errors import CorruptBatch, CorruptSegment, NotMaster, SemelError, Throttled
from semel.protos.ids import QueueId, QueueKey, TopicId
from semel.protos.v1 import control_pb2
from tests.kit.parting import PartingGroup
from tests.kit.state_log import KEY, ref
from tests.kit.waiting import until_async

SECOND_US = 1_000_000
LOW = QueueKey(TopicId(7), QueueId(2))


class FakeReplica:
    """A master whose log and state are those of a PartingGroup."""

    def __init__(self, group: PartingGroup) -> None:
        self.group = group
        self.state, self.log = group.state, group
        self.is_master = True
        self.applier = SimpleNamespace(delaying=asyncio.Event())
        self.applier.delaying.set()
        self.taken: list[list[int]] = []
        """Ordinals of each record that was applied."""
        self.errors: list[SemelError] = []
        """Raised by the next readings."""
        self.released = 0

    def log_time_us(self) -> int:
        return self.group.now_us

    def release_due(self, queues_max: int) -> None:
        self.released += 1

    async def in_reader(self, work: Callable[[], Any]) -> Any:
        if self.errors:
            raise self.errors.pop(0)
        return work()

    async def submit_control(self, record: Any, *, parted: Any) -> None:
        verdict = self.group.put((record.part_delayed, parted))
        if isinstance(verdict, Refused):
            raise verdict.error
        assert verdict == Accepted()
        self.taken.append([each.ordinal for each in record.part_delayed.batches])


@pytest.fixture(autouse=True)
def no_waits() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(delayed_parting, "LOOK_S", 0.001)
        patch.setattr(delayed_parting, "PAUSE_S", 0.001)
        yield


@pytest.fixture
def group() -> PartingGroup:
    """Three batches of a queue that was split."""
    made = PartingGroup()
    for first, seconds in ((0, 60), (8, 3), (16, 60)):
        found = [b"m%d" % number for number in range(first, first + 8)]
        made.delay(*found, due_us=made.now_us + seconds * SECOND_US)
    made.split()
    return made


@asynccontextmanager
async def running(replica: Any, parting: DelayedParting | None = None) -> AsyncIterator[None]:
    task = asyncio.ensure_future((parting or DelayedParting(replica)).run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


@contextmanager
def pieces_of(bytes_max: int) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(delayed_parting, "PIECE_BYTES", bytes_max)
        yield


async def test_everything_is_handed_over_in_its_order(group: PartingGroup) -> None:
    replica = FakeReplica(group)
    with pieces_of(1):
        async with running(replica):
            await until_async(lambda: len(replica.taken) == 3)
    assert replica.taken == [[1], [0], [2]]
    assert replica.released == 0, "nothing is due"
    assert group.problems() == []


async def test_what_is_due_is_released_at_once(group: PartingGroup) -> None:
    replica = FakeReplica(group)
    group.now_us += 4 * SECOND_US
    with pieces_of(1):
        async with running(replica):
            await until_async(lambda: len(replica.taken) == 3)
    assert replica.released == 1


async def test_a_piece_that_was_overtaken_is_read_again(group: PartingGroup) -> None:
    replica = FakeReplica(group)
    replica.errors = [Throttled("a message is being cancelled", retry_after_ms=1)] * 2
    async with running(replica):
        await until_async(lambda: replica.taken)
    assert replica.taken == [[1, 0, 2]]


async def test_a_batch_that_cannot_be_read_does_not_stop_other_queues(
    group: PartingGroup, caplog: pytest.LogCaptureFixture
) -> None:
    group.part_all()
    group.split(LOW)
    other = QueueKey(TopicId(7), QueueId(1))
    group.produce_ids([(b"o", b"other")], key=other, due_us=group.now_us + 90 * SECOND_US)
    record = control_pb2.SplitQueue(queue=ref(other))
    for number, (start, end) in enumerate(((0, 9), (9, 65_536)), 90):
        record.children.add(queue_id=number, slot_start=start, slot_end=end)
    assert group.admission.queues.admit_split(record) == Accepted()
    group.apply_control(split_queue=record)
    assert group.state.delays.sealed == {LOW, other}
    replica = FakeReplica(group)
    replica.errors = [CorruptBatch("a batch is not readable")]
    async with running(replica):
        await until_async(lambda: len(replica.taken) == 2)
    assert replica.taken == [[3], [1, 0, 2]], "the damaged one comes later"
    assert "not handed to the children of a split" in caplog.text


async def test_what_is_before_a_batch_that_cannot_be_read_is_handed_over_and_it_is_named(
    group: PartingGroup, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    whole, entries = group.read_record, [each.entry for each in group.state.delays.queues[KEY]]
    hurt = {entries[1]}

    def read_record(index: int, position: int, length: int) -> bytes:
        if index in hurt:
            raise CorruptSegment(f"entry {index} is damaged")
        return whole(index, position, length)

    monkeypatch.setattr(group, "read_record", read_record)
    replica = FakeReplica(group)
    parting = DelayedParting(replica)  # type: ignore[arg-type]
    assert (parting.stuck, parting.waiting_batches) == ({}, 3)
    async with running(replica, parting):
        await until_async(lambda: parting.stuck)
        assert replica.taken == [[1]], "the first one, and not what comes behind the damaged one"
        assert parting.waiting_batches == 2
        assert parting.stuck[KEY].extent.ordinal == 0
        assert "is damaged" in parting.stuck[KEY].reason
        await asyncio.sleep(0.02)
        assert caplog.text.count("is damaged") == 1, "once, however often it is tried"
        replica.is_master = False
        assert parting.stuck == {}, "a master knows"
        replica.is_master = True
        hurt.clear()  # it was repaired
        await until_async(lambda: len(replica.taken) == 2)
        assert (parting.stuck, parting.waiting_batches) == ({}, 0)


async def test_only_a_master_hands_over(group: PartingGroup) -> None:
    replica = FakeReplica(group)
    replica.is_master = False
    async with running(replica):
        await asyncio.sleep(0.02)
        assert replica.taken == []
        replica.errors = [NotMaster("ask another node", master_address="", master_id=0, term=2)]
        replica.is_master = True
        await until_async(lambda: replica.taken)


def test_a_piece_is_bounded(group: PartingGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    def ordinals() -> list[int]:
        piece = next_piece(group.state)
        assert piece is not None
        return [extent.ordinal for extent in piece.extents]

    sizes = [extent.length for extent in group.state.delays.queues[KEY]]
    assert ordinals() == [1, 0, 2]
    with pieces_of(sum(sizes[:2])):
        assert ordinals() == [1, 0]
    with pieces_of(sum(sizes[:2]) - 1):
        assert ordinals() == [1]
    monkeypatch.setattr(delayed_parting, "PIECE_PARTS", 5)
    assert ordinals() == [1, 0], "two children, so four records"
    monkeypatch.setattr(delayed_parting, "PIECE_PARTS", 1)
    assert ordinals() == [1], "one batch in any case"
    assert next_piece(group.state, {KEY}) is None
