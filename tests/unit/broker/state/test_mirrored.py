"""Copies of another cluster's queues: hidden, fenced, promoted as the source was at one entry."""

from __future__ import annotations

import hashlib
import random
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from semel.broker.state import (
    RESTORE_JOB,
    Duplicate,
    NumberedDelays,
    StateDiverged,
    header_of_copy,
    make_slice,
    read_slice,
)
from semel.broker.state.apply import mirrored
from semel.broker.state.apply.cancelled_rows import CancelledRows
from semel.broker.state.apply.delayed_copies import DelayedCopies
from semel.broker.state.apply.delayed_queue import DelayedQueue
from semel.broker.state.apply.restored import TOKEN_STEP
from semel.protos.batch import BROKER_HEADER_BYTES, decode_broker_header
from semel.protos.errors import InvalidRequest, SemelError, StaleGeneration, UnknownQueue
from semel.protos.frames import RecordKind
from semel.protos.levels import MIRROR_LEVEL
from semel.protos.v1 import common_pb2, control_pb2
from tests.kit.state_log import KEY, START_US, control, header, ref
from tests.unit.broker.state.delaying import SECOND_US, crcs, late, verify
from tests.unit.broker.state.moving import Home

SOURCE_ID = "a" * 32


class Mirror:
    """A program that copies the queue, with the state of `target` as its only memory."""

    def __init__(self, source: Home, target: Home, epoch: int = 1) -> None:
        self.source, self.target, self.epoch = source, target, epoch

    def step(self, name: str, **fields: Any) -> SemelError | None:
        return self.target.step(name, RESTORE_JOB, 0, mirror_epoch=self.epoch, **fields)

    def begin(self, source: str = SOURCE_ID, **settings: Any) -> SemelError | None:
        create = control_pb2.CreateQueue(
            queue=ref(), topic="orders", slot_end=65_536, settings=settings
        )
        return self.step("MIRROR", create=create, source=source)

    @property
    def incoming(self) -> Any:
        return self.target.state.moves.incoming[KEY]

    def copy(self, batches: int = 1 << 20) -> None:
        """Copies some batches, and all that is delayed and new."""
        queue = self.source.state.queues[KEY]
        for _ in range(batches):
            at, start = self.incoming.queue.log_end_offset, queue.local_start
            extents = queue.extents_from(max(at, start), 1)
            if start > self.incoming.queue.log_start_offset:
                base = extents[0].base_offset if extents else start
                assert self.step("FLOOR", offset=base if base > at else start) is None
            if not extents:
                break
            self.target.entry.append((RecordKind.COPY, [self.source.stored(max(at, start))]))
            self.target.commit()
        delayed = self.source.state.delays.queues.get(KEY)
        listed = NumberedDelays.of(KEY, None if delayed is None else delayed.table())
        for extent in listed.page(delayed, self.incoming.delayed.below_ordinal, 1 << 30).extents:
            stored = self.source.payload(extent.entry, extent.position)
            head = header_of_copy(decode_broker_header(stored), extent.ordinal)
            self.target.entry.append(
                (RecordKind.COPY, [head.encode(), stored[BROKER_HEADER_BYTES:]])
            )
            self.target.commit()

    def slice(self) -> bytes:
        state = self.source.state
        return make_slice(
            state.queues[KEY], state.producers, state.groups, state.delays, state.feature_level
        )

    def settle(
        self, data: bytes | None = None, part_bytes: int = 100, ordinal_to: int | None = None
    ) -> SemelError | None:
        """Brings a slice; `ordinal_to` is what the source had given out when it was made."""
        data = self.slice() if data is None else data
        if ordinal_to is None:
            ordinal_to = self.source.state.delays.next_ordinal
        for at in range(0, len(data), part_bytes):
            error = self.step("PART", offset=at, part=data[at : at + part_bytes])
            if error is not None:
                return error
        return self.step(
            "SETTLE",
            digest=hashlib.sha256(data).digest(),
            source_time_us=self.source.now_us,
            ordinal_to=ordinal_to,
        )

    def promote(self, digest: bytes | None = None) -> SemelError | None:
        incoming = self.target.state.moves.incoming.get(KEY)
        if digest is None and incoming is not None:
            assert incoming.mirror is not None
            digest = hashlib.sha256(incoming.mirror.settled).digest()
        create = control_pb2.CreateQueue(queue=ref(), settings=common_pb2.TopicSettings())
        return self.step("PROMOTE", digest=digest, create=create)


@pytest.fixture
def source() -> Home:
    made = Home(1, queues=(KEY,), at_level=MIRROR_LEVEL)
    made.fence(name="loader")
    for number in range(3):
        made.produce(header(number - 1, crc=number))
    return made


@pytest.fixture
def target() -> Home:
    return Home(2, at_level=MIRROR_LEVEL)


@pytest.fixture
def mirror(source: Home, target: Home) -> Mirror:
    made = Mirror(source, target)
    assert made.begin() is None
    return made


def commit(group: Home, token: int, offset: int) -> None:
    done = control_pb2.QueueCommit(queue=ref(), token=token, offset=offset)
    record = control_pb2.CommitOffsets(group="g", commits=[done])
    group.apply(control(commit_offsets=record))


def acquire(group: Home) -> Any:
    lock = control_pb2.AcquireLock(
        group="g", queue=ref(), member_id="m", lock_ms=1000, session_ms=1000
    )
    (result,) = group.apply(control(acquire_lock=lock))
    return result


def test_a_promoted_queue_is_the_sources_as_of_one_entry(
    source: Home, target: Home, mirror: Mirror
) -> None:
    commit(source, acquire(source).token, 2)
    mirror.copy()
    assert mirror.settle() is None
    source.produce(header(2, crc=3))
    mirror.copy()  # behind the settled slice
    assert mirror.incoming.queue.log_end_offset == 4
    assert mirror.promote() is None
    assert crcs(target) == [0, 1, 2]
    assert target.state.queues[KEY].log_end_offset == 3
    (row,) = target.state.producers.rows(KEY)
    assert (row.last_sequence, row.name) == (2, "loader")
    assert isinstance(target.produce(header(1, crc=2)), Duplicate)
    assert target.produce(header(2, crc=3)).base_offset == 3  # type: ignore[union-attr]
    ((_, _, group),) = target.state.groups.states()
    assert (group.committed_offset, group.owner) == (2, "")
    assert group.token > TOKEN_STEP
    assert not verify(target).problems
    assert b"".join(target.replayed().to_parts()) == b"".join(target.state.to_parts())


def test_nobody_sees_a_queue_that_is_not_promoted(target: Home, mirror: Mirror) -> None:
    mirror.copy()
    assert mirror.settle() is None
    assert KEY not in target.state.queues
    assert isinstance(target.state.absent(KEY), UnknownQueue)
    assert not target.state.moves.settling
    refused = target.produce(header(-1))
    assert isinstance(refused.error, UnknownQueue)  # type: ignore[union-attr]


def test_it_goes_on_after_a_restart_anywhere(source: Home, target: Home, mirror: Mirror) -> None:
    mirror.copy(1)
    target.restart()
    mirror.copy(2)
    data = mirror.slice()
    assert mirror.step("PART", offset=0, part=data[:50]) is None
    target.restart()
    assert mirror.settle(data) is None  # from its beginning
    target.restart()
    assert mirror.promote() is None
    target.restart()
    assert mirror.promote() is None, "repeated"
    assert crcs(target) == [0, 1, 2]


def test_a_copy_that_comes_twice_changes_nothing(
    source: Home, target: Home, mirror: Mirror
) -> None:
    mirror.copy(2)
    before = target.state.moves.incoming[KEY].queue.parts(MIRROR_LEVEL)
    target.entry.append((RecordKind.COPY, [source.stored(0)]))
    (result,) = target.commit()
    assert isinstance(result.error, InvalidRequest)  # type: ignore[union-attr]
    assert target.state.moves.incoming[KEY].queue.parts(MIRROR_LEVEL) == before


def test_a_later_program_fences_an_earlier_one(source: Home, target: Home, mirror: Mirror) -> None:
    mirror.copy(1)
    later = Mirror(source, target, epoch=2)
    assert later.begin() is None
    assert isinstance(mirror.begin(), StaleGeneration)
    assert isinstance(mirror.step("FLOOR", offset=1), StaleGeneration)
    assert isinstance(mirror.settle(), StaleGeneration)
    later.copy()
    assert later.settle() is None
    assert later.promote() is None
    assert crcs(target) == [0, 1, 2]


def test_another_cluster_is_refused(mirror: Mirror, source: Home, target: Home) -> None:
    other = Mirror(source, target, epoch=9)
    assert isinstance(other.begin("b" * 32), InvalidRequest)
    assert mirror.settle() is not None, "nothing is copied yet"
    mirror.copy()
    assert mirror.settle() is None


def test_a_slice_that_does_not_fit_is_not_settled(
    source: Home, target: Home, mirror: Mirror
) -> None:
    mirror.copy(2)
    error = mirror.settle()
    assert isinstance(error, InvalidRequest)
    assert "it ends at 3, and the copy at 2" in error.message
    mirror.copy()
    data = bytearray(mirror.slice())
    assert mirror.step("PART", offset=0, part=bytes(data)) is None
    assert isinstance(mirror.step("SETTLE", digest=bytes(32)), InvalidRequest)
    source.produce(late(2, 9, crc=9))
    error = mirror.settle()
    assert isinstance(error, InvalidRequest)
    assert "not all of its 1 delayed batches" in error.message
    assert isinstance(mirror.promote(bytes(32)), InvalidRequest)


def test_an_older_slice_is_not_promoted_in_place_of_the_decided_one(
    source: Home, mirror: Mirror
) -> None:
    mirror.copy()
    old = mirror.slice()
    assert mirror.settle(old) is None
    source.produce(header(2, crc=3))
    mirror.copy()
    assert mirror.settle() is None
    assert isinstance(mirror.promote(hashlib.sha256(old).digest()), InvalidRequest)


@pytest.mark.parametrize(
    "settings",
    [
        {"compaction": common_pb2.Compaction()},
        {"dedup": common_pb2.IdDedup()},
        {"tier_after_ms": 5},
        {"storage": common_pb2.STORAGE_MEMORY},
    ],
)
def test_what_cannot_be_copied_exactly_is_refused(
    source: Home, target: Home, settings: dict[str, Any]
) -> None:
    error = Mirror(source, target).begin(**settings)
    assert isinstance(error, InvalidRequest)
    assert "cannot be mirrored" in error.message
    assert KEY not in target.state.moves.places


def test_delayed_messages_come_along_and_are_released_once(
    source: Home, target: Home, mirror: Mirror
) -> None:
    for number, seconds in ((3, 5), (4, 9), (5, 5)):
        source.produce(late(number - 1, seconds, crc=number))
    mirror.copy()
    assert mirror.settle() is None
    source.now_us = START_US + 6 * SECOND_US
    source.release()
    assert crcs(source) == [0, 1, 2, 3, 5]
    target.now_us = source.now_us
    mirror.copy()
    assert mirror.incoming.delayed.queue.batches == 3, "until a slice says that they are gone"
    assert mirror.settle() is None
    assert mirror.incoming.delayed.queue.batches == 1
    assert mirror.promote() is None
    assert crcs(target) == [0, 1, 2, 3, 5]
    assert target.release() is None, "not due"
    target.now_us = START_US + 10 * SECOND_US
    target.release()
    assert crcs(target) == [0, 1, 2, 3, 5, 4]
    assert not verify(target).problems


def test_a_release_behind_the_settled_slice_happens_again_at_the_target(
    source: Home, target: Home, mirror: Mirror
) -> None:
    source.produce(late(2, 5, crc=3))
    mirror.copy()
    assert mirror.settle() is None
    source.now_us = target.now_us = START_US + 6 * SECOND_US
    source.release()
    mirror.copy()
    assert mirror.incoming.queue.log_end_offset == 4
    assert mirror.promote() is None
    assert crcs(target) == [0, 1, 2]
    target.release()
    assert crcs(target) == [0, 1, 2, 3], "once, from the delayed batch"
    assert not verify(target).problems


def test_retention_of_the_source_moves_the_copys_start(
    source: Home, target: Home, mirror: Mirror
) -> None:
    mirror.copy(1)
    source.apply(control(trim=control_pb2.Trim(queue=ref(), log_start_offset=2)))
    mirror.copy()
    assert mirror.settle() is None
    assert mirror.promote() is None
    queue = target.state.queues[KEY]
    assert (queue.log_start_offset, queue.log_end_offset, len(queue.extents)) == (2, 3, 1)


def test_what_the_source_has_dropped_since_its_slice_is_dropped(
    source: Home, target: Home, mirror: Mirror
) -> None:
    mirror.copy()
    assert mirror.settle() is None
    for number in range(3, 6):
        source.produce(header(number - 1, crc=number))
    source.apply(control(trim=control_pb2.Trim(queue=ref(), log_start_offset=5)))
    mirror.copy()
    assert mirror.incoming.queue.log_start_offset == 5
    assert mirror.promote() is None
    queue = target.state.queues[KEY]
    assert (queue.log_start_offset, queue.log_end_offset, len(queue.extents)) == (3, 3, 0)
    assert target.produce(header(2, crc=7)).base_offset == 3  # type: ignore[union-attr]
    assert not verify(target).problems


def test_a_promoted_queue_takes_nothing_from_its_mirror(
    source: Home, target: Home, mirror: Mirror
) -> None:
    mirror.copy()
    assert mirror.settle() is None
    assert mirror.promote() is None
    assert isinstance(mirror.begin(), InvalidRequest)
    assert isinstance(mirror.settle(), InvalidRequest)
    source.produce(header(2, crc=3))
    target.entry.append((RecordKind.COPY, [source.stored(3)]))
    (result,) = target.commit()
    assert isinstance(result.error, InvalidRequest)  # type: ignore[union-attr]


def test_a_dropped_queue_is_gone_and_may_be_mirrored_again(target: Home, mirror: Mirror) -> None:
    mirror.copy()
    assert mirror.step("UNMIRROR") is None
    assert KEY not in target.state.moves.places
    assert mirror.begin() is None
    mirror.copy()
    assert mirror.settle() is None


def test_a_promoted_queue_moves_on(source: Home, target: Home, mirror: Mirror) -> None:
    mirror.copy()
    assert mirror.settle() is None
    assert mirror.promote() is None
    assert target.step("SEAL", 1 << 33, 3) is None
    assert target.step("UNSEAL", 1 << 33, 3) is None
    assert target.produce(header(2, crc=3)).base_offset == 3  # type: ignore[union-attr]


def test_very_many_extents_are_cut(source: Home, target: Home, mirror: Mirror) -> None:
    for number in range(3, 2_000):
        source.produce(header(number - 1, crc=number), commit=number % 50 == 49)
    source.commit()
    mirror.copy()
    assert mirror.settle() is None
    for number in range(2_000, 2_200):
        source.produce(header(number - 1, crc=number))
    mirror.copy()
    assert mirror.promote() is None
    assert crcs(target) == list(range(2_000))
    queue = target.state.queues[KEY]
    assert queue.bytes == source.state.queues[KEY].extents.bytes_before(2_000)


@pytest.mark.parametrize("seed", range(30))
def test_any_order_of_steps_and_crashes_promotes_what_the_source_was(seed: int) -> None:
    run(seed)


@pytest.mark.parametrize(
    ("where", "bug"),
    [
        ("_cut", lambda queue, end: None),
        ("_misfit", lambda found, incoming: None),
        ("DelayedCopies.drop_below", lambda self, ordinal_to, waiting: _forget(self, waiting)),
    ],
)
def test_planted_bugs_are_noticed(where: str, bug: Any) -> None:
    owner: Any = DelayedCopies if "." in where else mirrored
    failures = 0
    with patch.object(owner, where.rpartition(".")[2], bug):
        for seed in range(30):
            try:
                run(seed)
            except (AssertionError, SemelError, StateDiverged, ValueError):
                failures += 1
    assert failures > 0


def _forget(copies: DelayedCopies, waiting: Any) -> None:
    """Drops what the slice does not name, though it may have come after the slice was made."""
    table = copies.queue.table()
    kept = table[np.isin(table["ordinal"], waiting)]
    copies.queue = DelayedQueue.of(kept.tobytes(), CancelledRows())


def run(seed: int) -> None:
    """A source that works, a mirror that ends and begins at any moment, and the promotion."""
    rng = random.Random(seed)
    source = Home(1, queues=(KEY,), at_level=MIRROR_LEVEL)
    target = Home(2, at_level=MIRROR_LEVEL)
    source.fence(name="loader")
    mirror = Mirror(source, target)
    assert mirror.begin() is None
    last, token, known = -1, acquire(source).token, b""
    for _ in range(60):
        match rng.randrange(8):
            case 0 | 1:
                source.produce(header(last, crc=last + 2))
                last += 1
            case 2:
                source.produce(late(last, rng.randrange(1, 40), crc=last + 2))
                last += 1
            case 3:
                source.now_us += rng.randrange(5) * SECOND_US
                target.now_us = source.now_us
                source.release(batches_max=rng.randrange(1, 4))
            case 4:
                end = source.state.queues[KEY].log_end_offset
                commit(source, token, rng.randint(0, end))
                if rng.random() < 0.3:
                    trim = control_pb2.Trim(queue=ref(), log_start_offset=rng.randint(0, end))
                    source.apply(control(trim=trim))
            case 5:
                mirror.copy(rng.randrange(4))
            case 6:
                data, ordinal_to = mirror.slice(), source.state.delays.next_ordinal
                if rng.random() < 0.3:  # something comes after the slice was made
                    source.produce(late(last, rng.randrange(1, 40), crc=last + 2))
                    last += 1
                    mirror.copy()
                if mirror.settle(data, rng.randrange(50, 900), ordinal_to) is None:
                    known = data
            case 7:
                if rng.random() < 0.5:
                    target.restart()
                else:
                    mirror = Mirror(source, target, mirror.epoch + 1)
                    assert mirror.begin() is None
    if seed % 2:
        mirror.copy()
        known = mirror.slice()
        assert mirror.settle() is None, "it catches up"
    if not known:
        assert mirror.promote(bytes(32)) is not None
        return
    assert mirror.promote() is None
    wanted = read_slice(known)
    queue = target.state.queues[KEY]
    assert queue.log_end_offset == wanted.queue.log_end_offset
    assert queue.log_start_offset >= wanted.queue.log_start_offset
    rows = [list(each.rows(KEY)) for each in (target.state.producers, wanted.producers)]
    assert rows[0] == rows[1]
    delayed = target.state.delays.queues.get(KEY)
    assert (0 if delayed is None else delayed.batches) == wanted.delayed.batches
    offsets = [state.committed_offset for _, _, state in target.state.groups.states()]
    assert offsets == [state.committed_offset for _, _, state in wanted.groups.states()]
    for offset in range(queue.log_start_offset, queue.log_end_offset):
        if offset >= source.state.queues[KEY].log_start_offset:
            at, there = target.stored(offset), source.stored(offset)
            assert at[BROKER_HEADER_BYTES:] == there[BROKER_HEADER_BYTES:]
    target.now_us += 100 * SECOND_US
    while target.release() is not None:
        pass
    assert not verify(target).problems
    assert b"".join(target.replayed().to_parts()) == b"".join(target.state.to_parts())
