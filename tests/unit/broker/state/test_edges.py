"""The edges of the rules: what happens exactly at a limit, and one beside it."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.broker.state import (
    Accepted,
    Child,
    Duplicate,
    OutcomeKind,
    Parked,
    QueueSettings,
    QueueState,
    Refused,
    State,
    StateDiverged,
    row_message,
)
from semel.broker.state.admission.parking import Parking
from semel.broker.state.admission.pending import PendingQueue, PendingRow, PendingState
from semel.broker.state.apply.codec import Reader
from semel.broker.state.apply.expired import EXPIRED, HEAD, REMEMBERED_MAX, Expired
from semel.broker.state.apply.producers import SequenceTable
from semel.broker.state.apply.queues import _FIXED
from semel.broker.state.apply.rows import ENTRY, ROW, WINDOW_BATCHES, Outcome, Row
from semel.protos import errors
from semel.protos.batch import BATCH_BYTES_DEFAULT, MESSAGE_BYTES_MAX
from semel.protos.ids import NO_SEQUENCE, Offset, ProducerId, QueueId, QueueKey
from semel.protos.levels import SPLIT_LEVEL
from semel.protos.v1 import common_pb2, control_pb2
from tests.kit.state_log import KEY, Group, batch_record, control, header, ref

ONE, TWO = ProducerId(1), ProducerId(2)
ABSENT = Outcome(OutcomeKind.NOT_COMMITTED, -1, NO_SEQUENCE)


@pytest.fixture
def group() -> Group:
    made = Group()
    made.fence(name="loader")
    return made


def error_of(decision: object) -> type[Exception] | None:
    return type(decision.error) if isinstance(decision, Refused) else None


# --- the sequence table -------------------------------------------------------------------------


def test_what_is_not_stored_has_no_offset(group: Group) -> None:
    group.produce(header(-1, base=10, last=20, count=3))
    group.produce(header(20, base=30, last=31, count=2))
    row = group.state.producers.find(KEY, ONE)
    assert row is not None
    for sequence in (5, 25, 32):
        assert row.outcome(sequence) == Outcome(OutcomeKind.NOT_COMMITTED, -1, 31)
    group.produce(header(31, base=40, last=50, count=2))
    assert row.outcome(45) == Outcome(OutcomeKind.NOT_COMMITTED, -1, 50)
    assert group.state.producers.outcome(KEY, TWO, 5) == ABSENT
    assert group.state.outcome(KEY, TWO, 5) == ABSENT


def test_rows_go_with_their_queue_and_names_with_their_rows() -> None:
    table = SequenceTable()
    other = QueueKey(KEY.topic_id, QueueId(1))
    table.create(KEY, ONE, Row(1, 0, 0))
    table.create(other, ONE, Row(1, 0, 0))
    table.set_name(ONE, "loader")
    table.remove_queue(KEY)
    assert (table.row_count, table.find(KEY, ONE)) == (1, None)
    kept = table.lookup(other, ONE)
    assert kept is not None
    assert kept.name == "loader"
    table.remove_queue(other)
    table.set_name(ONE, "too late")
    assert table.row_count == 0
    assert b"".join(table.parts()) == b"".join(SequenceTable().parts())


def test_a_row_expires_at_its_microsecond_and_not_before() -> None:
    table = SequenceTable()
    table.create(KEY, ONE, Row(1, 0, 1_000))
    limit_us = 1_000 + 60_000_000
    assert table.expirable(KEY, limit_us - 1, 60_000, 9) == []
    assert table.expirable(KEY, limit_us, 60_000, 9) == [1]


def test_idle_rows_count_before_surplus_ones() -> None:
    table = SequenceTable()
    for number, time_us in ((1, 0), (2, 1), (3, 500), (4, 400)):
        table.create(KEY, ProducerId(number), Row(1, 0, time_us))
    assert table.expirable(KEY, 101, 0, 2) == [1, 2]
    assert table.expirable(KEY, 101, 0, 1) == [1, 2, 4]


NEIGHBOURS = (1, 2, 63, 64, 1 << 40)
"""Producers of three blocks."""


def oracle(rows: dict[int, Row]) -> bytes:
    return b"".join(row.pack(number) for number, row in sorted(rows.items()))


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["append", "fence", "snapshot", "reread", "remove", "expire"]),
            st.sampled_from(NEIGHBOURS),
        )
    )
)
def test_what_blocks_keep_is_what_their_rows_are(steps: list[tuple[str, int]]) -> None:
    table = SequenceTable()
    rows: dict[int, Row] = {}
    for time_us, (step, number) in enumerate([*steps, ("snapshot", 1)], start=1):
        row = table.change(KEY, number)
        assert row is rows.get(number)
        if step == "remove":
            assert table.remove(KEY, number) is rows.pop(number, None)
        elif step == "fence" and row is None:
            rows[number] = Row(1, 0, time_us)
            table.create(KEY, ProducerId(number), rows[number])
        elif step == "fence":
            assert row is not None
            row.fence(row.epoch + 1, time_us, time_us)
        elif step == "append" and row is not None:
            last = row.last_sequence
            row.append(last + 1, last + 2, 7 * time_us, 2, time_us, time_us)
        elif step == "expire":
            for limit_us in range(time_us + 1):
                idle = sorted(n for n, row in rows.items() if row.last_time_us <= limit_us)
                assert table.expirable(KEY, limit_us, 0, 9) == idle
        elif step == "reread":
            table = SequenceTable.read_parts(Reader(b"".join(table.parts())))
            rows = {n: found for n in rows if (found := table.find(KEY, n)) is not None}
        if step in ("snapshot", "reread"):
            assert b"".join(table.parts()).endswith(oracle(rows))
            assert table.row_count == len(rows)


@pytest.mark.parametrize("again", ["parts", "read"])
def test_only_blocks_with_a_change_are_packed_again(
    again: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = SequenceTable()
    for number in range(1_000):
        table.create(KEY, ProducerId(number), Row(1, 0, 0))
    data = b"".join(table.parts())
    if again == "read":
        table = SequenceTable.read_parts(Reader(data))
    packed: list[int] = []
    pack = Row.pack

    def counted(row: Row, producer_id: int) -> bytes:
        packed.append(producer_id)
        return pack(row, producer_id)

    monkeypatch.setattr(Row, "pack", counted)
    assert b"".join(table.parts()) == data
    assert not packed
    row = table.change(KEY, 130)
    assert row is not None
    row.append(0, 0, 0, 1, 1, 1)
    assert b"".join(table.parts()) != data
    assert packed == [*range(128, 192)]


@pytest.mark.parametrize("fault", ["none", "twice", "too long"])
def test_a_malformed_row_is_refused(fault: str) -> None:
    table = SequenceTable()
    table.create(KEY, ONE, Row(1, 0, 0))
    *names, queues, queue, row = table.parts()
    entries = WINDOW_BATCHES + (fault == "too long")
    head = list(ROW.unpack(row))
    head[-1] = entries
    row = ROW.pack(*head) + ENTRY.pack(0, 0, 0, 1, 1) * entries
    rows = 2 if fault == "twice" else 1
    queue = queue[:-4] + rows.to_bytes(4, "little")
    data = b"".join([*names, queues, queue, row * rows])
    if fault == "none":
        assert SequenceTable.read_parts(Reader(data)).row_count == 1
    else:
        with pytest.raises(errors.CorruptSegment, match="malformed row of producer 1"):
            SequenceTable.read_parts(Reader(data))


def test_a_row_travels_with_or_without_its_window(group: Group) -> None:
    group.produce(header(-1, last=9))
    group.produce(header(9, last=11))
    state = group.state.producers.lookup(KEY, ONE)
    assert state is not None
    message = row_message(state)
    assert (message.queue.topic_id, message.queue.queue_id) == KEY
    assert (message.producer_id, message.epoch, message.session) == (1, 1, 0)
    assert (message.last_sequence, message.name) == (11, "loader")
    assert message.last_time_us == group.now_us
    window = [(e.base_sequence, e.last_sequence, e.base_offset, e.count) for e in message.window]
    assert window == [(0, 9, 0, 10), (10, 11, 10, 2)]
    assert not row_message(state, window=False).window


# --- expired rows -------------------------------------------------------------------------------


def test_a_new_queue_remembers_nobody() -> None:
    expired = Expired()
    assert expired.pack() == HEAD.pack(0, 0, 0)
    assert (expired.highest_epoch(), expired.floor_of(ONE)) == (0, 0)
    assert expired.may_open(ONE, 0, after_expiry=False)


def test_the_last_one_that_fell_out_is_not_taken_for_new() -> None:
    expired = Expired()
    for producer in range(1, REMEMBERED_MAX + 2):
        expired.add(producer, 3, stored=False)
    assert (expired.ceiling, expired.floor, 1 in expired.rows) == (1, 3, False)
    assert not expired.may_open(1, 3, after_expiry=True)
    assert expired.may_open(1, 4, after_expiry=True)
    assert not expired.may_open(1, 4, after_expiry=False), "it may have stored something"
    assert expired.may_open(2, 4, after_expiry=False), "it is remembered, and had stored nothing"
    assert expired.may_open(REMEMBERED_MAX + 2, 1, after_expiry=False)


def test_a_producer_that_stored_and_expired_twice_is_still_known_to_have_stored() -> None:
    expired = Expired()
    expired.add(1, 3, stored=True)
    expired.add(1, 4, stored=False)
    expired.add(2, 5, stored=False)
    read = Expired.read(Reader(expired.pack()))
    assert read.pack() == expired.pack()
    for one in (expired, read, expired.copy()):
        assert [one.may_have_stored(number) for number in (1, 2, 3)] == [True, False, False]
        assert [one.floor_of(number) for number in (1, 2, 3)] == [4, 5, 0]
        assert one.highest_epoch() == 5


def test_a_copy_of_expired_rows_is_independent() -> None:
    expired = Expired()
    expired.add(1, 3, stored=True)
    before = expired.pack()
    copy = expired.copy()
    copy.add(1, 9, stored=False)
    copy.add(2, 1, stored=False)
    copy.raise_floor(7, 7)
    assert expired.pack() == before


def test_more_expired_rows_than_a_queue_remembers_are_refused() -> None:
    def read(count: int) -> Expired:
        rows = b"".join(EXPIRED.pack(number, 1, 0) for number in range(count))
        return Expired.read(Reader(HEAD.pack(0, 0, count) + rows))

    assert len(read(REMEMBERED_MAX).rows) == REMEMBERED_MAX
    with pytest.raises(errors.CorruptSegment, match="remembers 257"):
        read(REMEMBERED_MAX + 1)


# --- admission ----------------------------------------------------------------------------------


def test_a_batch_of_exactly_the_limit_is_taken() -> None:
    head = header(-1, last=9)
    group = Group(queues=())
    group.create(KEY, batch_bytes_max=head.batch_length)
    group.fence()
    assert group.produce(head) == Accepted(Offset(0))
    larger = header(9, last=20)
    assert error_of(group.produce(larger)) is errors.MessageTooLarge


def test_a_broken_chain_waits_while_its_row_has_something_in_flight(group: Group) -> None:
    group.produce(header(-1, base=10, last=20, count=3))
    group.produce(header(20, base=30, last=40, count=3), commit=False)
    broken = header(20, base=50, last=60, count=3)
    decision = group.produce(broken)
    assert isinstance(decision, Refused)
    assert isinstance(decision.error, errors.Throttled)
    assert decision.error.retry_after_ms > 0
    group.commit()
    assert error_of(group.produce(broken)) is errors.OutOfOrderSequence


@pytest.mark.parametrize("last", [5, 9])
def test_an_old_mark_with_another_range_is_a_duplicate_without_offset(
    group: Group, last: int
) -> None:
    group.produce(header(-1, last=9))
    mark = header(2, base=3, last=last, count=0)
    assert group.produce(mark) == Duplicate(Offset(-1))


def test_a_mark_that_reaches_beyond_what_is_stored_is_no_duplicate(group: Group) -> None:
    group.produce(header(-1, last=9))
    beyond = group.produce(header(2, base=3, last=10, count=0))
    assert error_of(beyond) is errors.PartialOverlap


@pytest.mark.parametrize("end", ["deleted", "expired"])
def test_parked_batches_come_back_when_their_row_ends(group: Group, end: str) -> None:
    early = header(9, last=19)
    parked = group.produce(early)
    assert isinstance(parked, Parked)
    assert group.admission.unpark(KEY, ONE) is None
    if end == "deleted":
        group.admission.queues.admit_delete_queue(control_pb2.DeleteQueue(queue=ref()))
    else:
        group.admission.propose_expiry(KEY, now_us=group.now_us, idle_ms=0, rows_max=0)
    assert group.admission.unpark(KEY, ONE) == parked.park_key
    wanted = errors.UnknownQueue if end == "deleted" else errors.DedupStateExpired
    assert error_of(group.produce(early, commit=False)) is wanted


def test_the_largest_ids_are_taken() -> None:
    group = Group()
    largest = (1 << 63) - 1
    group.fence(producer=largest)
    assert group.state.producers.find(KEY, ProducerId(largest)) is not None
    for topic, taken in ((largest, True), (1 << 62, True), (1 << 63, False)):
        record = control_pb2.CreateQueue(
            queue=common_pb2.QueueRef(topic_id=topic), topic="t", slot_end=65_536
        )
        decision = group.admission.queues.admit_create_queue(record)
        assert isinstance(decision, Accepted) == taken


def test_a_queue_that_is_just_being_created_begins_at_offset_zero() -> None:
    group = Group(queues=())
    record = control_pb2.CreateQueue(queue=ref(), topic="orders", slot_end=65_536)
    assert isinstance(group.admission.queues.admit_create_queue(record), Accepted)
    group.entry.append(control(create_queue=record))
    group.fence(commit=False)
    assert group.produce(header(-1, last=9)) == Accepted(Offset(0))


@pytest.mark.parametrize("field", ["retention_ms", "retention_bytes"])
def test_retention_has_one_negative_value(group: Group, field: str) -> None:
    for value, taken in ((-2, False), (-1, True), (1, True)):
        settings = common_pb2.TopicSettings()
        setattr(settings, field, value)
        decision = group.admission.queues.admit_alter_topic(
            control_pb2.AlterTopic(settings=settings)
        )
        assert isinstance(decision, Accepted) == taken


def test_a_queue_can_be_trimmed_from_its_start_to_its_end(group: Group) -> None:
    group.produce(header(-1, last=9))
    for offset, taken in ((-1, False), (0, True), (10, True), (11, False)):
        record = control_pb2.Trim(queue=ref(), log_start_offset=offset)
        assert isinstance(group.admission.queues.admit_trim(record), Accepted) == taken
    group.admission.queues.admit_delete_queue(control_pb2.DeleteQueue(queue=ref()))
    deleted = group.admission.queues.admit_trim(control_pb2.Trim(queue=ref(), log_start_offset=0))
    assert error_of(deleted) is errors.UnknownQueue


# --- parked batches -----------------------------------------------------------------------------


def park(parking: Parking, previous: int, *, now_ms: float = 0, session: int = 0) -> object:
    return parking.add(header(previous, session=session), now_ms)


def test_of_the_same_predecessor_the_first_one_comes_first() -> None:
    parking = Parking(park_ms=10, bytes_max=1 << 20)
    first, second = park(parking, 9), park(parking, 9)
    assert parking.take(KEY, ONE, 9, (1, 0)) == first
    assert parking.take(KEY, ONE, 9, (1, 0)) == second


def test_parked_bytes_reach_their_limit_and_go_no_further() -> None:
    length = header(0).batch_length
    parking = Parking(park_ms=10, bytes_max=3 * length)
    keys = [park(parking, previous) for previous in range(3)]
    assert None not in keys
    assert parking.bytes == 3 * length
    assert park(parking, 3) is None
    parking.take(KEY, ONE, None, (0, 0))
    assert parking.bytes == 2 * length
    assert park(parking, 3) is not None


def test_another_incarnation_comes_back_in_the_order_of_its_chain() -> None:
    parking = Parking(park_ms=10, bytes_max=1 << 20)
    own = park(parking, 5, session=1)
    late, early = park(parking, 30), park(parking, 20)
    assert parking.take(KEY, ONE, 4, (1, 1)) == early
    assert parking.take(KEY, ONE, 4, (1, 1)) == late
    assert parking.take(KEY, ONE, 4, (1, 1)) is None
    assert parking.take(KEY, ONE, 5, (1, 1)) == own


@pytest.mark.parametrize("gone", [2, 3, 4, 10, 11, 12])
def test_the_order_survives_a_fence_of_one_in_the_middle(gone: int) -> None:
    parking = Parking(park_ms=10, bytes_max=1 << 20)
    for previous in (1, 2, 10, 3, 4, 11, 12):
        park(parking, previous, session=int(previous == gone))
    key = parking.take(KEY, ONE, 0, (1, 0))
    assert key is not None
    assert key.previous_sequence == gone
    in_order(parking, {1, 2, 10, 3, 4, 11, 12} - {gone})


@pytest.mark.parametrize("gone", range(1, 8))
def test_the_order_survives_the_expiry_of_one_in_the_middle(gone: int) -> None:
    """The first to come is the first to expire, wherever it stands in the chain."""
    for seed in range(20):
        rest = [previous for previous in range(1, 12) if previous != gone]
        Random(seed).shuffle(rest)
        parking = Parking(park_ms=10, bytes_max=1 << 20)
        park(parking, gone, now_ms=0)
        for previous in rest:
            park(parking, previous, now_ms=1)
        assert [key.previous_sequence for key in parking.expire(10)] == [gone]
        in_order(parking, set(rest))


def in_order(parking: Parking, wanted: set[int]) -> None:
    found = []
    while (key := parking.take(KEY, ONE, 99, (1, 0))) is not None:
        found.append(key.previous_sequence)
    assert found == sorted(wanted)
    assert (parking.count, parking.bytes, parking._rows) == (0, 0, {})


# --- the overlay --------------------------------------------------------------------------------


def test_a_row_leaves_the_overlay_while_others_of_its_queue_are_busy(group: Group) -> None:
    """Otherwise it could not expire as long as anybody writes."""
    group.fence(producer=TWO)
    group.produce(header(-1, last=9))
    group.produce(header(-1, producer=TWO), commit=False)
    record = group.admission.propose_expiry(KEY, now_us=group.now_us, idle_ms=0, rows_max=0)
    assert record is not None
    assert list(record.producer_ids) == [1]


@pytest.mark.parametrize("others_busy", [False, True])
def test_a_row_leaves_the_overlay_with_its_last_use(group: Group, others_busy: bool) -> None:
    group.fence(producer=TWO)
    batches = [header(base - 1, last=base + 9) for base in (0, 10, 20)]
    for head in batches:
        group.produce(head, commit=False)
    first, second, third = group.entry
    group.entry = []
    if others_busy:
        assert isinstance(
            group.admission.admit_batch(header(-1, producer=TWO), 0, time_us=0), Accepted
        )
    for record in (first, second, third):
        idle = group.admission._pending.queue(KEY)
        assert idle is not None
        assert ONE in idle.rows, "still in flight"
        group.admission.on_applied(group.apply(record))
    idle = group.admission._pending.queue(KEY)
    assert idle is not None
    assert ONE not in idle.rows
    assert (KEY in group.admission._pending._queues) == others_busy


def test_a_retry_finds_its_batch_while_the_new_row_is_still_busy(group: Group) -> None:
    """The row was made by a fence that was in flight together with what follows."""
    group.fence(producer=TWO, commit=False)
    group.produce(header(-1, last=9, producer=TWO), commit=False)
    group.produce(header(9, last=19, producer=TWO), commit=False)
    fence, first, _ = group.entry
    group.entry = []
    group.admission.on_applied(group.apply(fence))
    group.admission.on_applied(group.apply(first))
    assert group.admission.admit_batch(header(-1, last=9, producer=TWO), 0, time_us=0) == Duplicate(
        Offset(0)
    )


@pytest.mark.parametrize("applied", [False, True])
@pytest.mark.parametrize("expected", [False, True])
def test_overlay_and_state_agree_when_both_or_none_have_the_row(
    applied: bool, expected: bool
) -> None:
    state = State()
    if applied:
        state.producers.create(KEY, ONE, Row(1, 0, 0))
    row = PendingRow(ONE, Row(1, 0, 0) if expected else None)
    queue = PendingQueue(KEY, 0, 1, Expired())
    assert PendingState(state)._agrees(queue, row) == (applied == expected)


# --- queues -------------------------------------------------------------------------------------


def new_queue(**limits: Any) -> QueueState:
    return QueueState(KEY, "orders", 0, 65_536, QueueSettings(**limits))


def test_settings_that_are_absent_have_their_defaults() -> None:
    absent = QueueSettings.from_message(common_pb2.TopicSettings())
    assert absent == QueueSettings(
        retention_ms=-1,
        retention_bytes=-1,
        message_bytes_max=MESSAGE_BYTES_MAX,
        batch_bytes_max=BATCH_BYTES_DEFAULT,
    )
    given: dict[str, Any] = {
        "retention_ms": 5,
        "retention_bytes": 6,
        "message_bytes_max": 7,
        "batch_bytes_max": 8,
    }
    assert QueueSettings.from_message(common_pb2.TopicSettings(**given)) == QueueSettings(**given)


def test_a_new_queue_is_all_zero() -> None:
    fixed = _FIXED.unpack_from(b"".join(new_queue().parts(SPLIT_LEVEL - 1)))
    assert fixed[:4] == (KEY.topic_id, KEY.queue_id, 0, 65_536)
    assert set(fixed[8:]) == {0}
    assert new_queue().expired.highest_epoch() == 0


def test_a_queue_comes_back_with_all_its_numbers() -> None:
    queue = new_queue(retention_ms=5, retention_bytes=6, message_bytes_max=7, batch_bytes_max=8)
    for at in range(4):
        queue.append(10, at + 1, 48, 100, 1_000 + at)
    queue.trim(15)
    queue.token_floor = 3
    queue.expired.add(9, 4, stored=True)
    assert queue.last_append_us == 1_003
    queue.parent = 3
    queue.children = (Child(5, 0, 10), Child(6, 10, 20))
    data = b"".join(queue.parts(SPLIT_LEVEL))
    back = QueueState.read_parts(Reader(data), SPLIT_LEVEL)
    assert b"".join(back.parts(SPLIT_LEVEL)) == data
    for name in QueueState.__slots__:
        if name not in ("expired", "extents"):
            assert getattr(back, name) == getattr(queue, name), name
    assert back.expired.highest_epoch() == 4


def test_append_times_of_a_queue_never_fall(group: Group) -> None:
    group.produce(header(-1, last=9))
    earlier = batch_record(header(9), 10, group.now_us - 1, group.term)
    with pytest.raises(StateDiverged):
        group.apply(earlier)


def test_a_read_is_filled_to_the_byte() -> None:
    queue = new_queue()
    for at in range(10):
        queue.append(10, at + 1, 48, 100, at)
    for max_bytes, count in ((299, 2), (300, 3), (301, 3), (399, 3), (400, 4)):
        assert len(queue.extents_from(0, max_bytes)) == count


def test_retention_by_default_keeps_everything() -> None:
    queue = new_queue()
    for at in range(10):
        queue.append(10, at + 1, 48, 100, at * 1_000)
    assert queue.retention_target(10**15) is None
    assert queue.retention_target(0) is None
    queue.settings = QueueSettings(retention_ms=0)
    assert queue.retention_target(3_000) == 30
    assert queue.retention_target(3_001) == 40
    for limit, target in ((1_000, None), (999, 10), (900, 10), (899, 20)):
        queue.settings = QueueSettings(retention_bytes=limit)
        assert queue.retention_target(0) == target
