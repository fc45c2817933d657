"""Queues move with what is delayed in them: released once, by one side, never early, in order."""

from __future__ import annotations

from array import array
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from semel.broker.state import (
    Accepted,
    Duplicate,
    NumberedDelays,
    StateDiverged,
    entries_of,
    header_of_copy,
    make_slice,
    ordinal_of_copy,
    read_slice,
)
from semel.broker.state.apply.cancelled_rows import CancelledRows
from semel.broker.state.apply.codec import Reader, joined
from semel.broker.state.apply.delayed_copies import DelayedCopies
from semel.broker.state.apply.delayed_extent import DelayedExtent, DelayedPlace
from semel.broker.state.apply.delayed_queue import DelayedQueue
from semel.broker.state.apply.moved_origins import no_origins, origins_after, read_origins
from semel.protos.batch import (
    BROKER_HEADER_BYTES,
    HEADER_BYTES,
    BrokerHeader,
    decode_broker_header,
)
from semel.protos.errors import CorruptSegment, InvalidRequest
from semel.protos.ids import Offset, Term
from semel.protos.levels import DELAYED_MOVE_LEVEL
from semel.protos.v1 import control_pb2
from tests.kit.state_log import KEY, START_US, control, header, ref
from tests.unit.broker.state.delaying import SECOND_US, crcs, late, verify
from tests.unit.broker.state.moving import (
    Home,
    begin,
    bring_slice,
    copy_delayed,
    copy_some,
    move,
)


@pytest.fixture
def source() -> Home:
    """One message is stored; 2, 3 and 4 are due after 9 seconds, 1 after 5."""
    made = Home(1, queues=(KEY,), at_level=DELAYED_MOVE_LEVEL)
    made.fence()
    made.produce(header(-1, crc=9))
    for number, seconds in ((1, 9), (2, 9), (3, 5), (4, 9)):
        made.produce(late(number - 1, seconds, crc=number))
    return made


@pytest.fixture
def target() -> Home:
    return Home(2, at_level=DELAYED_MOVE_LEVEL)


def at(group: Home, seconds: float) -> Home:
    group.now_us = START_US + int(seconds * SECOND_US)
    return group


def seal(source: Home, target: Home) -> None:
    assert begin(source, target, 1) is None
    copy_some(source, target, 9)
    copy_delayed(source, target, 100)
    assert source.step("SEAL", 1, 2) is None


def activate(source: Home, target: Home) -> None:
    assert bring_slice(source, target, 1) is None
    assert target.step("ACTIVATE", 1, 1) is None
    assert source.step("FORWARD", 1, 2) is None


def test_delayed_messages_come_at_their_time_and_in_their_order(source: Home, target: Home) -> None:
    move(source, target)
    assert not source.state.delays.queues
    assert source.state.delays.bytes == 0
    delays = target.state.delays
    assert (delays.batches, delays.messages, delays.next_ordinal) == (4, 4, 4)
    assert delays.bytes == 4 * (HEADER_BYTES + BROKER_HEADER_BYTES + 16)
    target.produce(late(4, 9, crc=5))
    assert at(target, 4.9).release() is None
    assert at(target, 5).release() is not None
    assert crcs(target) == [9, 3]
    target.restart()
    assert at(target, 9).release() is not None
    assert crcs(target) == [9, 3, 1, 2, 4, 5]
    report = verify(target)
    assert (report.problems, report.ok) == ((), True)


def test_a_retry_of_a_delayed_batch_is_recognised_before_and_after_the_move(
    source: Home, target: Home
) -> None:
    again = late(3, 9, crc=4)
    assert source.produce(again) == Duplicate(-1)  # type: ignore[arg-type]
    move(source, target)
    assert target.produce(again) == Duplicate(-1)  # type: ignore[arg-type]
    assert isinstance(target.produce(late(4, 9, crc=5)), Accepted)


def test_what_was_released_after_it_was_copied_does_not_wait_again(
    source: Home, target: Home
) -> None:
    begin(source, target, 1)
    copy_delayed(source, target)
    at(source, 6).release()
    assert source.step("SEAL", 1, 2) is None
    activate(source, target)
    assert crcs(target) == [9, 3]
    assert target.state.delays.batches == 3
    at(target, 9).release()
    assert crcs(target) == [9, 3, 1, 2, 4]


def test_nothing_of_a_sealed_queue_is_released(source: Home, target: Home) -> None:
    seal(source, target)
    assert at(source, 9).release() is None
    record = control_pb2.ReleaseDelayed(
        queue=ref(),
        until_us=source.now_us,
        batches=4,
        base_offset=1,
        messages=4,
        below_ordinal=4,
    )
    with pytest.raises(StateDiverged):
        source.apply(control(release_delayed=record))


def test_the_source_goes_on_if_the_move_is_given_up(source: Home, target: Home) -> None:
    seal(source, target)
    at(source, 9)
    target.restart()
    assert target.step("ABORT", 1, 1) is None
    assert source.step("UNSEAL", 1, 2) is None
    assert source.release() is not None
    assert crcs(source) == [9, 3, 1, 2, 4]
    assert list(target.state.live_records(0, 1 << 40)) == []
    assert target.state.live_bytes == 0
    assert not target.state.delays.queues


def test_a_clock_that_is_behind_makes_messages_late_and_never_early(
    source: Home, target: Home
) -> None:
    at(source, 4.9)
    seal(source, target)
    at(source, 60)
    at(target, 1)
    activate(source, target)
    assert target.release() is None
    assert at(target, 5).release() is not None


def test_copies_are_live_until_the_queue_is_activated_and_then_as_well(
    source: Home, target: Home
) -> None:
    seal(source, target)
    assert bring_slice(source, target, 1) is None
    target.restart()
    assert len(list(target.state.live_records(0, 1 << 40))) == 5
    before = target.state.live_bytes
    assert before == source.state.live_bytes
    activate(source, target)
    assert len(list(target.state.live_records(0, 1 << 40))) == 5
    assert target.state.live_bytes == before


def test_a_queue_is_not_ingested_before_all_that_is_delayed_is_here(
    source: Home, target: Home
) -> None:
    begin(source, target, 1)
    copy_some(source, target, 9)
    source.step("SEAL", 1, 2)
    state = source.state
    data = make_slice(state.queues[KEY], state.producers, state.groups, state.delays)
    delays, source.state.delays.queues = source.state.delays.queues, {}  # nothing is copied
    error = bring_slice(source, target, 1, data)
    assert "not all of its 4 delayed batches are here" in str(error)
    source.state.delays.queues = delays
    assert bring_slice(source, target, 1, data) is None


def test_a_copy_that_comes_twice_is_refused(source: Home, target: Home) -> None:
    begin(source, target, 1)
    copy_delayed(source, target)
    incoming = target.state.moves.incoming[KEY]
    assert incoming.delayed.below_ordinal == 4
    incoming.delayed.below_ordinal = 0  # it asks again, from the beginning
    extents = NumberedDelays.of(KEY, source.state.delays.queues[KEY].table()).table
    assert extents["ordinal"].tolist() == [0, 1, 2, 3]
    incoming.delayed.below_ordinal = 4
    extent = DelayedExtent(*extents[2].tolist())
    assert isinstance(incoming.delayed.add(extent), InvalidRequest)
    assert incoming.delayed.queue.batches == 4


def test_a_queue_may_move_on_with_the_same_ordinals(source: Home, target: Home) -> None:
    third = Home(3, at_level=DELAYED_MOVE_LEVEL)
    third.state.delays.next_ordinal = 100
    move(source, target)
    target.produce(late(4, 7, crc=5))
    move(target, third, 2)
    found = [(extent.due_us, extent.ordinal) for extent in third.state.delays.queues[KEY]]
    due = [START_US + seconds * SECOND_US for seconds in (5, 7, 9, 9, 9)]
    assert found == list(zip(due, (2, 4, 0, 1, 3), strict=True))
    third.produce(late(5, 9, crc=6))
    assert third.state.delays.queues[KEY].last.ordinal == 100
    at(third, 9).release()
    assert crcs(third) == [9, 3, 5, 1, 2, 4, 6]


def test_a_slice_without_delayed_batches_is_as_before(source: Home, target: Home) -> None:
    at(source, 9).release()
    begin(source, target, 1)
    source.step("SEAL", 1, 2)
    state = source.state
    data = make_slice(state.queues[KEY], state.producers, state.groups, state.delays)
    message = control_pb2.QueueSlice.FromString(data)
    assert (message.version, message.delayed, message.origins) == (4, b"", b"")
    assert read_slice(data).delayed.batches == 0


# --- pieces -----------------------------------------------------------------------------------


def extent(ordinal: int, due_us: int = 5, **rest: Any) -> DelayedExtent:
    values = {"entry": 10 + ordinal, "position": 0, "length": 100, "messages": 3, **rest}
    return DelayedExtent(due_us, ordinal, **values)


def queue_of(*extents: DelayedExtent) -> DelayedQueue:
    made = DelayedQueue()
    for each in extents:
        made.add(each)
    return made


def test_cancelled_rows_go_along() -> None:
    copies = DelayedCopies()
    for each in (extent(1), extent(4), extent(6, due_us=3)):
        assert copies.add(each._replace(entry=99)) is None
    wanted = queue_of(extent(4), extent(6, due_us=3))
    wanted.cancel(extent(4), 1)
    left = copies.left(wanted)
    assert left is not None
    assert (left.batches, left.messages, left.bytes) == (2, 5, 200)
    assert [(each.ordinal, each.entry) for each in left] == [(6, 99), (4, 99)]
    assert left.cancelled.stretches(4, 3) == [(0, 1), (2, 1)]


@pytest.mark.parametrize("other", [{"due_us": 6}, {"messages": 2}, {"length": 101}])
def test_a_copy_of_another_batch_is_noticed(other: dict[str, int]) -> None:
    copies = DelayedCopies()
    copies.add(extent(1)._replace(**other))
    assert copies.left(queue_of(extent(1))) is None


def test_copies_survive_a_checkpoint() -> None:
    copies = DelayedCopies()
    copies.add(extent(7))
    copies.add(extent(9, due_us=1))
    data = joined(copies.parts())
    reader = Reader(data)
    again = DelayedCopies.read_parts(reader)
    reader.finish()
    assert joined(again.parts()) == data
    assert again.below_ordinal == 10


def test_a_page_skips_what_is_gone_and_says_how_far_it_is() -> None:
    queue = queue_of(*(extent(each, due_us=20 - each) for each in range(6)))
    listed = NumberedDelays.of(KEY, queue.table())
    for each in (2, 3):
        queue.remove(queue.first(20 - each, 1 << 40, 9)[-1:])
    page = listed.page(queue, 1, 250)
    assert [each.ordinal for each in page.extents] == [1, 4]
    assert (page.ordinal_to, page.bytes_left) == (5, 100)
    assert listed.page(queue, 5, 1).extents == [extent(5, due_us=15)]
    assert listed.page(queue, 6, 1) == ([], 6, 0)
    assert listed.page(None, 0, 1) == ([], 6, 0)
    assert (listed.reaches(5), listed.reaches(6)) == (True, False)


@pytest.mark.parametrize("ordinal", [0, 1, 1 << 40])
def test_a_copys_header_names_its_ordinal(ordinal: int) -> None:
    head = BrokerHeader(base_offset=Offset(-1), append_time_us=5, term=Term(3))
    copied = header_of_copy(head, ordinal)
    assert ordinal_of_copy(decode_broker_header(copied.encode())) == ordinal
    assert copied.append_time_us == 5
    assert ordinal_of_copy(replace(head, base_offset=Offset(0))) is None


def test_extents_in_another_order_are_refused() -> None:
    packed = queue_of(extent(1)).table().tobytes() + queue_of(extent(0)).table().tobytes()
    with pytest.raises(CorruptSegment, match="another order"):
        DelayedQueue.of(packed, CancelledRows())


@pytest.mark.parametrize(("ordinal", "rows"), [(1, [3]), (1, [0, 1, 2]), (2, [0])])
def test_rows_that_cannot_be_cancelled_are_refused(ordinal: int, rows: list[int]) -> None:
    cancelled = CancelledRows()
    cancelled.batches[ordinal] = array("I", rows)
    with pytest.raises(CorruptSegment, match="cancelled rows"):
        DelayedQueue.of(queue_of(extent(1)).table().tobytes(), cancelled)


def test_origins_name_entries_over_several_moves() -> None:
    first = origins_after(no_origins(), np.array([7, 7, 8, (1 << 31) + 9]), np.array([3, 4, 4, 5]))
    assert [entries_of(first, each) for each in (7, 8, 9, 10)] == [[3, 4], [4], [5], []]
    again = origins_after(first, np.array([3, 4, 6]), np.array([20, 21, 21]))
    assert [entries_of(again, each) for each in (7, 8, 6, 3)] == [[20, 21], [21], [21], []]
    assert np.array_equal(read_origins(again.tobytes()), again)
    with pytest.raises(CorruptSegment, match="another order"):
        read_origins(again[::-1].tobytes())
    with pytest.raises(CorruptSegment, match="bytes"):
        read_origins(again.tobytes()[1:])


def test_the_place_of_a_delayed_batch_is_found_in_the_new_group(source: Home, target: Home) -> None:
    entry = next(iter(source.state.delays.queues[KEY])).entry
    move(source, target)
    queue = target.state.delays.queues[KEY]
    (here,) = entries_of(target.state.delays.origins.of(KEY), entry)
    found = queue.find(DelayedPlace(START_US + 5 * SECOND_US, 2))
    assert found is not None
    assert found.entry == here
    target.restart()
    assert entries_of(target.state.delays.origins.of(KEY), entry) == [here]
