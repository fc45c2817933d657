"""Delayed batches of transactions, and as `semel verify` reads them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from semel.broker.state import BatchVerifier, QueueReport, Refused, TableVerifier
from semel.protos.levels import DELAY_LEVEL
from semel.protos.v1 import transaction_records_pb2
from tests.kit.state_log import KEY, START_US, Group, control, header
from tests.unit.broker.state.delaying import (
    SECOND_US,
    crcs,
    delaying_group,
    late,
    restarted,
    split_record,
    verify,
)
from tests.unit.broker.state.staging import A, B, Stage, staged, winner


@pytest.fixture
def group() -> Group:
    return delaying_group()


# --- transactions -------------------------------------------------------------------------------


def test_what_is_staged_may_be_delayed_beyond_the_commit() -> None:
    group = Stage(queues=(KEY,), level=DELAY_LEVEL)
    due_us = group.now_us + 5 * SECOND_US
    group.open(A)
    group.open(B, writer=1)
    batches = {
        A: [staged(A, 0, 2, crc=1), replace(staged(A, 2, 3, crc=2), deliver_at_us=due_us)],
        B: [replace(staged(B, 0, 1, crc=3), deliver_at_us=due_us), staged(B, 1, 4, crc=4)],
    }
    for heads in batches.values():
        for head in heads:
            assert group.stage(head) == "staged"
            assert group.stage(head) == "duplicate"
    group.state = restarted(group.state)
    group.new_master()
    assert group.pin(*(winner(each, {KEY: heads}) for each, heads in batches.items())) == ()
    published = group.publish()
    assert published.parts[0].messages == 6
    assert crcs(group) == [1, 4]
    assert (group.state.delays.messages, group.state.transactions.staging.bytes) == (4, 0)
    assert isinstance(group.admission.queues.admit_split(split_record()), Refused)
    assert group.release() is None
    group.now_us = due_us
    group.release()
    assert crcs(group) == [1, 4, 2, 3], "in the order of publication"
    assert group.state.digest() == group.replayed().digest()
    report = verify(group)
    assert report.ok, report.problems


def test_a_transaction_that_is_given_up_leaves_nothing_delayed() -> None:
    group = Stage(queues=(KEY,))
    group.raise_level(DELAY_LEVEL)
    group.open(A)
    head = replace(staged(A, 0), deliver_at_us=1)
    group.stage(head)
    group.pin(winner(A, {KEY: [head]}))
    group.step(drop_pin=transaction_records_pb2.DropPin(transaction_id="t", attempt=1))
    assert not group.state.delays.queues
    assert group.state.live_bytes == 0


# --- verify -------------------------------------------------------------------------------------


def some(group: Group) -> None:
    """Late and prompt batches; some are released."""
    for at, seconds in enumerate([0, 5, 0, 1, 9, 0, 9]):
        group.produce(late(at - 1, seconds, crc=at) if seconds else header(at - 1, crc=at))
    group.now_us += 2 * SECOND_US
    group.release()


def test_a_sound_queue_with_delayed_batches(group: Group) -> None:
    some(group)
    report = verify(group)
    assert report.ok, report.problems
    assert (report.messages, report.delayed) == (4, 3)


def read(group: Group, change: Any = lambda extents, delayed: None, *, end: int = 4) -> QueueReport:
    queue = group.state.queues[KEY]
    extents = [
        (e.base_offset, e.count, group.payload(e.index, e.position), 0, e.append_time_us)
        for e in queue.extents_from(0, 1 << 40)
    ]
    delayed = [
        (e.entry, e.messages, group.payload(e.entry, e.position))
        for e in group.state.delays.queues[KEY]
    ]
    change(extents, delayed)
    table = TableVerifier()
    for frame in group.frames:
        table.feed(frame)
    verifier = BatchVerifier(KEY, 0, end)
    for extent in extents:
        verifier.feed(*extent)
    for one in delayed:
        verifier.feed_delayed(*one)
    verifier.hold_against(table.windows(KEY))
    return verifier.finish()


def test_a_lost_delayed_batch_is_missing(group: Group) -> None:
    some(group)
    assert read(group).ok
    for at in range(3):
        report = read(group, lambda _, delayed, at=at: delayed.pop(at))
        assert report.missing, "also the last one, of which no other batch speaks"
        assert not report.duplicates


def test_a_released_batch_that_is_delayed_still_is_there_twice(group: Group) -> None:
    some(group)

    def twice(extents: list[Any], delayed: list[Any]) -> None:
        delayed.append((1, 1, extents[3][2]))

    assert read(group, twice).duplicates == 1

    def released_twice(extents: list[Any], delayed: list[Any]) -> None:
        extents.append((4, 1, *extents[3][2:]))

    assert read(group, released_twice, end=5).duplicates == 1


def test_a_batch_that_was_released_early_is_named(group: Group) -> None:
    some(group)

    def early(extents: list[Any], delayed: list[Any]) -> None:
        extents[3] = (*extents[3][:4], START_US)

    report = read(group, early)
    assert any("before its time" in problem for problem in report.problems)


def test_damage_to_a_delayed_batch_is_missing(group: Group) -> None:
    some(group)

    def damage(extents: list[Any], delayed: list[Any]) -> None:
        index, count, data = delayed[0]
        delayed[0] = index, count, data[:-1] + bytes([data[-1] ^ 1])

    assert read(group, damage).missing >= 1


def test_a_new_life_that_begins_delayed_is_no_duplicate_once_its_row_has_expired(
    group: Group,
) -> None:
    for at in range(4):
        group.produce(header(at - 1, crc=at))
    expire = group.admission.propose_expiry(KEY, now_us=group.now_us, idle_ms=0, rows_max=0)
    assert expire is not None
    group.entry.append(control(expire_producers=expire))
    group.commit()
    group.fence(epoch=2, after_expiry=True)
    group.produce(late(-1, 3, last=1, epoch=2, crc=10))
    group.produce(header(1, last=3, epoch=2, crc=11))
    for end in (6, 8):
        queue = group.state.queues[KEY]
        assert queue.log_end_offset == end
        for expired, wrong in ((queue.expired, False), (None, True)):
            verifier = BatchVerifier(KEY, 0, end, expired=expired)
            for extent in queue.extents_from(0, 1 << 40):
                stored = group.payload(extent.index, extent.position)
                verifier.feed(extent.base_offset, extent.count, stored)
            for one in group.state.delays.queues.get(KEY, ()):
                verifier.feed_delayed(
                    one.entry, one.messages, group.payload(one.entry, one.position)
                )
            report = verifier.finish()
            assert bool(report.duplicates) == wrong, report.problems
            assert report.ok != wrong
        group.now_us += 3 * SECOND_US
        group.release()
