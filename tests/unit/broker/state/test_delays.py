"""Delayed batches: stored once, released once, never early, on every node alike."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from semel.broker.state import (
    Accepted,
    Admission,
    DelayedReleased,
    Delays,
    Duplicate,
    DuplicateInFlight,
    OutcomeKind,
    Parked,
    Refused,
    StateDiverged,
    WindowEntry,
)
from semel.broker.state.apply.codec import Reader, joined
from semel.protos.batch import BROKER_HEADER_BYTES, HEADER_BYTES, BatchFlags
from semel.protos.errors import (
    InvalidRequest,
    SequenceConflict,
    Throttled,
    UnsupportedVersion,
)
from semel.protos.ids import ProducerId, QueueId, QueueKey, Sequence, Term, TopicId
from semel.protos.levels import DELAY_LEVEL
from semel.protos.v1 import control_pb2
from tests.kit.state_log import KEY, START_US, Group, batch_record, control, header, ref
from tests.unit.broker.state.delaying import (
    OTHER,
    SECOND_US,
    crcs,
    delaying_group,
    late,
    restarted,
    split_record,
    verify,
)


@pytest.fixture
def group() -> Group:
    return delaying_group()


# --- stored, due, released ----------------------------------------------------------------------


def test_a_delayed_batch_is_stored_without_offsets_until_it_is_due(group: Group) -> None:
    assert group.produce(late(-1, 5, last=2, crc=7)) == Accepted(-1)  # type: ignore[arg-type]
    queue = group.state.queues[KEY]
    assert (queue.log_end_offset, len(queue.extents), group.state.delays.messages) == (0, 0, 3)
    group.now_us += 5 * SECOND_US - 1
    assert group.release() is None, "not a microsecond early"
    group.now_us += 1
    record = group.release()
    assert record is not None
    assert (record.base_offset, record.batches, record.messages) == (0, 1, 3)
    assert crcs(group) == [7]
    assert not group.state.delays.queues
    assert (group.state.delays.bytes, group.state.delays.messages) == (0, 0)
    (extent,) = queue.extents_from(0, 1)
    assert extent.append_time_us == group.now_us, "retention counts from the release"
    assert group.release() is None


def test_a_time_in_the_past_is_due_at_once(group: Group) -> None:
    group.produce(header(-1, due_us=1))
    assert group.release() is not None
    assert group.state.queues[KEY].log_end_offset == 1


def test_messages_come_by_time_then_in_the_order_in_which_they_were_stored(group: Group) -> None:
    for at, seconds in enumerate([9, 3, 9, 1, 3]):
        group.produce(late(at - 1, seconds, crc=at))
    group.produce(header(4, crc=99))
    group.now_us += 10 * SECOND_US
    group.release()
    assert crcs(group) == [99, 3, 1, 4, 0, 2]
    assert verify(group).ok


def test_a_release_is_bounded_and_the_rest_comes_next(group: Group) -> None:
    for at in range(7):
        group.produce(late(at - 1, 1, crc=at))
    group.now_us += SECOND_US
    for expected in (3, 3, 1):
        record = group.release(batches_max=3)
        assert record is not None
        assert record.batches == expected
    assert crcs(group) == list(range(7))


def test_nothing_is_released_twice_while_an_entry_is_on_its_way(group: Group) -> None:
    group.produce(late(-1, 1, crc=1))
    group.produce(late(0, 1, crc=2))
    group.now_us += SECOND_US
    assert group.release(batches_max=1, commit=False) is not None
    assert group.release(commit=False) is None
    assert group.produce(header(1, crc=3), commit=False) == Accepted(1)  # type: ignore[arg-type]
    group.commit()
    assert crcs(group) == [1, 3]
    assert group.release() is not None
    assert crcs(group) == [1, 3, 2]


def test_what_is_stored_between_admission_and_apply_waits_for_the_next_release(
    group: Group,
) -> None:
    group.produce(late(-1, 2, crc=1))
    group.now_us += 3 * SECOND_US
    # Accepted, not applied, and due before what the release was admitted for.
    group.produce(late(0, 1, last=4, crc=2), commit=False)
    record = group.release(commit=False)
    assert record is not None
    assert (record.batches, record.messages) == (1, 1)
    group.commit()
    assert crcs(group) == [1]
    group.release()
    assert crcs(group) == [1, 2]
    assert verify(group).ok


def test_a_release_that_is_lost_with_its_master_is_made_by_the_next_one(group: Group) -> None:
    group.produce(late(-1, 1, crc=1))
    group.now_us += SECOND_US
    assert group.release(commit=False) is not None
    group.new_master()
    assert group.state.delays.messages == 1
    group.release()
    assert crcs(group) == [1]


def test_a_release_that_outlived_its_master_is_not_made_again(group: Group) -> None:
    group.produce(late(-1, 1, crc=1))
    group.now_us += SECOND_US
    assert group.release(commit=False) is not None
    group.apply(*group.entry)  # committed, and its master did not live to see it
    group.new_master()
    assert group.release() is None
    assert crcs(group) == [1]


def test_several_queues_in_one_entry(group: Group) -> None:
    group.produce(late(-1, 1, crc=1))
    group.produce(late(-1, 1, crc=2, key=OTHER))
    group.now_us += SECOND_US
    assert group.state.delays.due(group.now_us, 10) == [KEY, OTHER]
    assert group.state.delays.due(group.now_us, 1) == [KEY]
    group.release(KEY, commit=False)
    group.release(OTHER, commit=False)
    group.commit()
    assert (crcs(group, KEY), crcs(group, OTHER)) == ([1], [2])
    assert group.state.delays.due(group.now_us, 10) == []


# --- the sequence table -------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("from_bytes", [False, True])
def test_a_retry_is_a_duplicate_before_and_after_the_release(
    group: Group, when: str, from_bytes: bool
) -> None:
    batch = late(-1, 1, last=2, crc=5)
    group.produce(batch)
    group.now_us += SECOND_US
    if when == "after":
        group.release()
    if from_bytes:
        group.state = restarted(group.state)
    group.new_master()
    assert group.produce(batch) == Duplicate(-1)  # type: ignore[arg-type]
    other = group.produce(replace(batch, content_crc=6))
    assert isinstance(other, Refused)
    assert isinstance(other.error, SequenceConflict)
    ahead = group.produce(late(5, 1))
    assert isinstance(ahead, Parked)
    assert group.produce(header(2, crc=9)) == Accepted(3 if when == "after" else 0)  # type: ignore[arg-type]
    assert verify(group).ok


def test_a_retry_of_one_that_is_on_its_way_waits_for_it(group: Group) -> None:
    batch = late(-1, 1)
    group.produce(batch, commit=False)
    again = group.produce(batch)
    assert isinstance(again, DuplicateInFlight)
    assert again.base_offset == -1


def test_the_outcome_of_a_delayed_sequence_is_committed_without_an_offset(group: Group) -> None:
    group.produce(late(-1, 1, last=2))
    group.produce(late(2, 1, base=5, last=50, count=3))
    for _ in range(2):
        for sequence in (0, 1, 2, 5, 20, 50):
            outcome = group.state.outcome(KEY, ProducerId(1), sequence)
            assert (outcome.kind, outcome.offset) == (OutcomeKind.COMMITTED, -1)
        for sequence in (3, 4, 51):
            assert (
                group.state.outcome(KEY, ProducerId(1), sequence).kind is OutcomeKind.NOT_COMMITTED
            )
        group.now_us += SECOND_US
        group.release()


def test_what_a_delayed_batch_leaves_in_the_window_is_not_inherited() -> None:
    entry = WindowEntry(Sequence(0), Sequence(4), -1, 5, 1)  # type: ignore[arg-type]
    assert not entry.inherited
    assert replace(entry, count=0).inherited


def test_source_positions_and_marks_go_on_around_delayed_batches(group: Group) -> None:
    group.produce(late(-1, 1, base=4, last=9, count=2, crc=1))
    group.produce(header(9, base=10, last=20, count=0))
    group.produce(header(20, base=21, last=30, count=2, crc=2))
    group.now_us += SECOND_US
    group.release()
    assert crcs(group) == [2, 1]
    row = group.state.producers.lookup(KEY, ProducerId(1))
    assert row is not None
    assert row.last_sequence == 30
    assert verify(group).ok


def test_the_rest_of_a_delayed_batch_that_is_stored_in_part_is_delayed(group: Group) -> None:
    group.produce(late(-1, 1, last=3))
    decision = group.produce(late(-1, 1, last=6))
    assert isinstance(decision, Refused)
    assert getattr(decision.error, "last_sequence", None) == 3
    group.produce(late(3, 1, last=6))
    assert group.state.delays.messages == 7


# --- what this group cannot do (yet) ------------------------------------------------------------


def test_below_the_level_delayed_batches_are_refused_and_bytes_are_as_before() -> None:
    group = Group()
    group.raise_level(DELAY_LEVEL - 1)
    group.fence()
    before = group.state.digest()
    decision = group.produce(late(-1, 1))
    assert isinstance(decision, Refused)
    assert isinstance(decision.error, UnsupportedVersion)
    assert decision.error.level == DELAY_LEVEL
    assert group.state.digest() == before
    group.raise_level(DELAY_LEVEL)
    assert isinstance(group.produce(late(-1, 1)), Accepted)


def test_below_the_level_the_fold_takes_a_delivery_time_for_nothing() -> None:
    group = Group()
    group.fence()
    admission = Admission(group.state, term=Term(1))
    head = header(-1, crc=3)
    assert isinstance(admission.admit_batch(head, 0, time_us=START_US), Accepted)
    group.apply(batch_record(replace(head, deliver_at_us=START_US * 2), 0, group.now_us, 1))
    assert group.state.queues[KEY].log_end_offset == 1
    assert not group.state.delays.queues


def test_times_of_their_own_are_refused(group: Group) -> None:
    mixed = late(-1, 1)
    mixed = replace(mixed, flags=mixed.flags | BatchFlags.DELIVER_AT)
    decision = group.produce(mixed)
    assert isinstance(decision, Refused)
    assert isinstance(decision.error, InvalidRequest)
    assert "group messages by time" in str(decision.error)


@pytest.mark.parametrize("applied", [False, True])
def test_a_queue_with_delayed_messages_is_not_split(group: Group, applied: bool) -> None:
    group.produce(late(-1, 30, last=4), commit=applied)
    decision = group.admission.queues.admit_split(split_record())
    assert isinstance(decision, Refused)
    assert isinstance(decision.error, Throttled)
    if applied:
        assert "5 messages of queue 0 are delayed" in str(decision.error)
        with pytest.raises(StateDiverged):
            group.apply(control(split_queue=split_record()))
        return
    group.commit()
    group.now_us += 30 * SECOND_US
    group.release()
    assert isinstance(group.admission.queues.admit_split(split_record()), Accepted)


@pytest.mark.parametrize("applied", [False, True])
def test_a_queue_with_delayed_messages_is_not_sealed_for_a_move(
    group: Group, applied: bool
) -> None:
    group.produce(late(-1, 30), commit=applied)
    record = control_pb2.MoveQueue(queue=ref(), job=1, group_id=2, step=control_pb2.MOVE_STEP_SEAL)
    decision = group.admission.queues.admit_move(record)
    assert isinstance(decision, Refused)
    assert isinstance(decision.error, Throttled)
    if applied:
        assert isinstance(group.apply(control(move_queue=record))[0].error, Throttled)  # type: ignore[union-attr]


# --- deletion, retention, cleaning, snapshots ---------------------------------------------------


def test_a_deleted_queue_takes_its_delayed_messages_along(group: Group) -> None:
    group.produce(late(-1, 1))
    group.produce(late(-1, 1, key=OTHER))
    delete = control_pb2.DeleteQueue(queue=ref())
    group.now_us += SECOND_US
    assert isinstance(group.admission.queues.admit_delete_queue(delete), Accepted)
    group.entry.append(control(delete_queue=delete))
    assert group.release(commit=False) is None, "its end is accepted"
    group.commit()
    assert list(group.state.delays.queues) == [OTHER]
    assert group.state.delays.due(group.now_us, 9) == [OTHER]
    assert group.state.delays.bytes == HEADER_BYTES + BROKER_HEADER_BYTES + 16


def test_a_release_before_the_deletion_in_the_log_is_harmless(group: Group) -> None:
    group.produce(late(-1, 1))
    group.now_us += SECOND_US
    assert group.release(commit=False) is not None
    delete = control_pb2.DeleteQueue(queue=ref())
    assert isinstance(group.admission.queues.admit_delete_queue(delete), Accepted)
    group.entry.append(control(delete_queue=delete))
    group.commit()
    assert KEY not in group.state.queues
    group.create(KEY)
    assert group.state.queues[KEY].log_end_offset == 0


def test_retention_leaves_delayed_messages_alone(group: Group) -> None:
    group.create(QueueKey(TopicId(8), QueueId(0)), retention_ms=1_000)
    key = QueueKey(TopicId(8), QueueId(0))
    group.fence(keys=(key,))
    group.produce(header(-1, key=key, crc=1))
    group.produce(late(0, 60, key=key, crc=2))
    group.now_us += 60 * SECOND_US
    queue = group.state.queues[key]
    assert queue.retention_target(group.now_us) == 1
    group.apply(control(trim=control_pb2.Trim(queue=ref(key), log_start_offset=1)))
    group.release(key)
    assert queue.retention_target(group.now_us) is None, "its time begins with the release"
    assert crcs(group, key) == [2]


def test_delayed_records_are_live_until_they_are_trimmed(group: Group) -> None:
    group.produce(late(-1, 1))
    index = group.state.applied_index
    (live,) = group.state.live_records(0, index + 1)
    assert live[0] == index
    assert group.state.live_bytes == live[2] == len(group.payload(live[0], live[1]))
    assert list(group.state.live_records(0, index)) == []
    assert group.state.live_bytes_between([0, index, index + 1]) == [0, live[2]]
    group.now_us += SECOND_US
    group.release()
    assert list(group.state.live_records(0, group.state.applied_index + 1)) == [live]
    group.apply(control(trim=control_pb2.Trim(queue=ref(), log_start_offset=1)))
    assert list(group.state.live_records(0, group.state.applied_index + 1)) == []
    assert group.state.live_bytes == 0


def test_a_snapshot_between_storing_and_release_forgets_nothing(group: Group) -> None:
    chance = random.Random(5)
    for at in range(1_500):  # several blocks
        group.produce(late(at - 1, chance.randrange(50), crc=at), commit=at % 50 == 49)
    group.commit()
    for _ in range(6):
        other = restarted(group.state)
        assert other.delays.messages == group.state.delays.messages
        assert other.delays.bytes == group.state.delays.bytes
        assert other.delays.due(group.now_us, 9) == group.state.delays.due(group.now_us, 9)
        group.now_us += 10 * SECOND_US
        while group.release(batches_max=70):
            pass
        for frame in group.frames[other.applied_index :]:
            other.apply_frame(frame)
        assert other.digest() == group.state.digest() == group.replayed().digest()
    assert sorted(crcs(group)) == list(range(1_500))
    dues = [batch.deliver_at_us for _, batch in group.stored_batches()]
    assert dues == sorted(dues)
    assert verify(group).ok


def test_however_they_come_extents_stand_in_the_order_of_their_time() -> None:
    chance = random.Random(3)
    delays, model = Delays(), []
    for ordinal in range(3_000):
        due_us = chance.choice([chance.randrange(1_000), 500])
        delays.add(KEY, due_us, ordinal + 1, 0, 10, 2)
        model.append((due_us, ordinal))
        if chance.random() < 0.02:
            below = chance.randrange(ordinal + 1)
            until_us, most = chance.randrange(1_000), chance.randrange(1, 300)
            found = delays.first(KEY, until_us, below, most)
            expected = sorted(each for each in model if each[0] <= until_us and each[1] < below)
            assert [each[:2] for each in found] == expected[:most]
            if found:
                delays.remove(KEY, found)
                model = [each for each in model if each not in set(expected[:most])]
        if model:
            assert delays.due(1 << 60, 1) == [KEY]
            assert delays.queues[KEY].first_due_us == min(model)[0]
            assert delays.queues[KEY].last_due_us == max(model)[0]
    assert [each[:2] for each in delays.queues[KEY]] == sorted(model)
    assert (delays.batches, delays.messages, delays.bytes) == (
        len(model),
        2 * len(model),
        10 * len(model),
    )
    assert len(delays._heap) <= 2 + 1_024
    data = joined(delays.parts(cancelled=True, origins=True))
    again = Delays.read_parts(Reader(data), cancelled=True, origins=True)
    assert joined(again.parts(cancelled=True, origins=True)) == data


# --- apply checks again -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        {"batches": 2, "messages": 2},
        {"batches": 0, "messages": 0},
        {"messages": 2},
        {"base_offset": 1},
        {"until_us": START_US + 2 * SECOND_US},
        {"until_us": START_US},
        {"below_ordinal": 0},
        {"queue": ref(OTHER)},
        {"queue": ref(QueueKey(TopicId(9), QueueId(9)))},
    ],
)
def test_a_release_that_does_not_fit_halts_the_node(group: Group, change: dict[str, Any]) -> None:
    group.produce(late(-1, 1))
    group.now_us += SECOND_US
    record = group.admission.propose_release(KEY, now_us=group.now_us)
    assert record is not None
    record.MergeFrom(control_pb2.ReleaseDelayed(**change))
    for name, value in change.items():
        if not isinstance(value, int) or value:
            continue
        setattr(record, name, value)
    with pytest.raises(StateDiverged):
        group.apply(control(release_delayed=record))


def test_a_release_below_the_level_halts_the_node() -> None:
    group = Group()
    with pytest.raises(StateDiverged):
        group.apply(control(release_delayed=control_pb2.ReleaseDelayed(queue=ref(), batches=1)))


def test_a_delayed_batch_with_an_offset_halts_the_node(group: Group) -> None:
    with pytest.raises(StateDiverged):
        group.apply(batch_record(late(-1, 1), 0, group.now_us, 1))


def test_a_batch_without_offset_that_is_not_delayed_halts_the_node(group: Group) -> None:
    with pytest.raises(StateDiverged):
        group.apply(batch_record(header(-1), -1, group.now_us, 1))


def test_lateness_is_told(group: Group) -> None:
    group.produce(late(-1, 1))
    group.produce(late(0, 3, last=1))
    group.produce(late(1, 3, last=2))
    group.now_us += 4 * SECOND_US
    record = group.admission.propose_release(KEY, now_us=group.now_us)
    (result,) = group.apply(control(release_delayed=record))
    assert isinstance(result, DelayedReleased)
    assert (result.batches, result.messages, result.released_us) == (3, 3, group.now_us)
    assert result.dues == ((START_US + SECOND_US, 1), (START_US + 3 * SECOND_US, 2))
