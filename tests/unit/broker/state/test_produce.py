"""Exactly-once produce: the admission's decisions, and the known holes of other systems."""

from __future__ import annotations

import pytest

from semel.broker.state import (
    Accepted,
    Admission,
    BatchKey,
    Duplicate,
    DuplicateInFlight,
    FenceApplied,
    OutcomeKind,
    Parked,
    Refused,
    State,
    StateDiverged,
)
from semel.broker.state.admission import admission
from semel.protos import errors
from semel.protos.ids import Offset, ProducerId, QueueId, QueueKey, Sequence, Term, TopicId
from semel.protos.v1 import common_pb2, control_pb2
from tests.kit.state_log import KEY, Group, batch_record, control, header, ref, unapplied_count

OTHER = QueueKey(TopicId(7), QueueId(1))


def refusal(decision: object, kind: type[errors.SemelError]) -> errors.SemelError:
    assert isinstance(decision, Refused), decision
    assert isinstance(decision.error, kind), decision.error
    return decision.error


@pytest.fixture
def group() -> Group:
    made = Group(queues=(KEY, OTHER))
    made.fence(keys=(KEY, OTHER), name="loader")
    return made


def test_batches_get_dense_offsets(group: Group) -> None:
    assert group.produce(header(-1, last=9)) == Accepted(Offset(0))
    assert group.produce(header(9, last=19)) == Accepted(Offset(10))
    assert group.produce(header(-1, last=4, key=OTHER)) == Accepted(Offset(0))
    assert group.state.queues[KEY].log_end_offset == 20


def test_retry_gets_the_original_offset(group: Group) -> None:
    group.produce(header(-1, last=9))
    group.produce(header(9, last=19))
    assert group.produce(header(9, last=19)) == Duplicate(Offset(10))
    assert group.produce(header(-1, last=9)) == Duplicate(Offset(0))
    assert group.state.queues[KEY].log_end_offset == 20


def test_hole_1_retry_after_a_lost_append_is_stored(group: Group) -> None:
    batch = header(-1, last=9)
    assert isinstance(group.produce(batch, commit=False), Accepted)
    group.new_master()
    assert group.produce(batch) == Accepted(Offset(0))
    assert group.produce(batch) == Duplicate(Offset(0))


def test_duplicate_of_an_unapplied_batch_waits_for_it(group: Group) -> None:
    batch = header(-1, last=9)
    group.produce(batch, commit=False)
    after = BatchKey(KEY, ProducerId(1), Sequence(0))
    assert group.produce(batch) == DuplicateInFlight(after, Offset(0))
    group.commit()
    assert group.produce(batch) == Duplicate(Offset(0))
    single = header(9)
    group.produce(single, commit=False)
    assert group.produce(single) == DuplicateInFlight(
        after._replace(base_sequence=Sequence(10)), Offset(10)
    )


def test_hole_2_no_admission_before_the_own_no_op_is_applied(group: Group) -> None:
    with pytest.raises(AssertionError, match="term 2 begins"):
        Admission(group.state, term=Term(2))


def test_hole_3_trimmed_messages_are_still_duplicates(group: Group) -> None:
    group.produce(header(-1, last=9))
    group.apply(control(trim=control_pb2.Trim(queue=ref(), log_start_offset=10)))
    assert not group.state.queues[KEY].extents_from(10, 1000)
    assert group.produce(header(-1, last=9)) == Duplicate(Offset(0))


def expire(group: Group, *, idle_ms: int = 0, rows_max: int = 0) -> bool:
    record = group.admission.propose_expiry(
        KEY, now_us=group.now_us, idle_ms=idle_ms, rows_max=rows_max
    )
    if record is not None:
        group.entry.append(control(expire_producers=record))
    return record is not None


def test_hole_3_late_retry_after_expiry_is_refused(group: Group) -> None:
    group.produce(header(-1, last=9))
    assert expire(group)
    refusal(group.produce(header(-1, last=9)), errors.DedupStateExpired)
    refusal(group.fence(), errors.DedupStateExpired)
    group.commit()
    refusal(group.produce(header(-1, last=9)), errors.DedupStateExpired)
    error = refusal(group.fence(), errors.DedupStateExpired)
    assert isinstance(error, errors.DedupStateExpired)
    assert error.epoch_floor == 1
    outcome = group.state.outcome(KEY, ProducerId(1), 5)
    assert outcome.kind is OutcomeKind.TOO_OLD
    refusal(group.fence(epoch=2), errors.DedupStateExpired)
    assert isinstance(group.fence(epoch=2, after_expiry=True), FenceApplied)
    assert group.produce(header(-1, last=3, epoch=2)) == Accepted(Offset(10))


def test_hole_3_a_loader_that_starts_again_is_not_told_that_it_stored_nothing(
    group: Group,
) -> None:
    """Asking once more does not help it: a refused fence leaves no row behind."""
    group.produce(header(-1, last=9))
    assert expire(group)
    group.commit()
    for epoch in (2, 3):
        refusal(group.fence(epoch=epoch), errors.DedupStateExpired)
    assert isinstance(group.fence(epoch=4, after_expiry=True), FenceApplied)
    assert isinstance(group.fence(epoch=4, session=2), FenceApplied), "the same life, which knows"
    refusal(group.fence(epoch=5), errors.DedupStateExpired)
    assert isinstance(group.fence(epoch=6, after_expiry=True), FenceApplied)
    assert group.produce(header(-1, last=3, epoch=6)) == Accepted(Offset(10))
    assert isinstance(group.fence(epoch=7), FenceApplied), "its row knows how far it is again"
    assert group.replayed().digest() == group.state.digest()


def test_who_had_stored_nothing_has_nothing_forgotten(group: Group) -> None:
    group.fence(producer=5, epoch=2)
    assert expire(group)
    group.commit()
    refusal(group.fence(producer=5, epoch=2), errors.DedupStateExpired)
    assert isinstance(group.fence(producer=5, epoch=3), FenceApplied)


def test_the_expiry_of_one_producer_locks_no_other_out(group: Group) -> None:
    group.fence(producer=5, epoch=50)
    expire(group)
    group.commit()
    assert isinstance(group.fence(producer=2, epoch=1), FenceApplied)
    assert isinstance(group.fence(producer=9, epoch=1), FenceApplied)
    refusal(group.fence(producer=1, epoch=1), errors.DedupStateExpired)
    refusal(group.fence(producer=5, epoch=50), errors.DedupStateExpired)
    assert isinstance(group.fence(producer=5, epoch=51), FenceApplied)


def test_one_record_ends_a_bounded_number_of_rows(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "EXPIRED_ROWS_MAX", 2)
    for producer in range(2, 5):
        group.fence(producer=producer)
    assert expire(group)
    assert expire(group)
    assert not expire(group)
    group.commit()
    assert list(group.state.producers.rows(KEY)) == []


def test_many_expired_producers_leave_a_low_floor(group: Group) -> None:
    group.fence(producer=5_000, epoch=50)
    for producer in range(1_000, 1_300):
        group.fence(producer=producer, epoch=1)
    expire(group)
    group.commit()
    expired = group.state.queues[KEY].expired
    assert (len(expired.rows), expired.floor) == (256, 1)
    for producer in (1, 1_000, 1_020, 1_299):
        refusal(group.fence(producer=producer, epoch=1), errors.DedupStateExpired)
        assert isinstance(group.fence(producer=producer, epoch=2, after_expiry=True), FenceApplied)
    refusal(group.fence(producer=5_000, epoch=50), errors.DedupStateExpired)
    assert State.from_bytes(b"".join(group.state.to_parts())).digest() == group.state.digest()
    assert group.replayed().digest() == group.state.digest()


def test_hole_4_expiry_goes_by_log_time_alone(group: Group) -> None:
    group.produce(header(-1, last=9))  # its messages carry timestamps of 1970
    group.now_us += 59_000_000
    assert not expire(group, idle_ms=60_000, rows_max=10)
    group.produce(header(9))
    group.now_us += 59_000_000
    assert not expire(group, idle_ms=60_000, rows_max=10)
    group.now_us += 1_000_000
    assert expire(group, idle_ms=60_000, rows_max=10)
    group.commit()
    assert group.replayed().digest() == group.state.digest()


def test_expiry_leaves_rows_in_flight_alone(group: Group) -> None:
    group.produce(header(-1, last=9), commit=False)
    assert not expire(group)
    group.commit()
    assert group.produce(header(9)) == Accepted(Offset(10))


def test_surplus_rows_end_longest_idle_first(group: Group) -> None:
    for producer in (5, 4, 3):
        group.now_us += 1
        group.fence(producer=producer)
    record = group.admission.propose_expiry(KEY, now_us=group.now_us, idle_ms=1000, rows_max=2)
    assert record is not None
    assert list(record.producer_ids) == [1, 5]


def test_hole_5_fence_reply_tells_what_an_older_session_stored(group: Group) -> None:
    group.produce(header(-1, last=9))
    group.produce(header(9, last=19), commit=False)
    result = group.fence(session=1)
    row = result.rows[0]
    assert (row.last_sequence, row.session, row.name) == (19, 1, "loader")
    assert [entry.base_offset for entry in row.window] == [0, 10]
    refusal(group.produce(header(19)), errors.ProducerFenced)
    assert group.produce(header(9, last=19, session=1)) == Duplicate(Offset(10))
    assert group.produce(header(19, session=1)) == Accepted(Offset(20))


def test_hole_6_lost_first_reply_is_no_gap(group: Group) -> None:
    for base in range(0, 50, 10):
        group.produce(header(base - 1, last=base + 9))
    assert group.produce(header(-1, last=9)) == Duplicate(Offset(0))
    assert group.produce(header(49, last=59)) == Accepted(Offset(50))


def test_hole_7_one_old_message_never_drops_the_new_ones(group: Group) -> None:
    group.produce(header(-1, last=9))
    error = refusal(group.produce(header(4, last=14)), errors.PartialOverlap)
    assert isinstance(error, errors.PartialOverlap)
    assert error.last_sequence == 9
    assert group.produce(header(9, last=14)) == Accepted(Offset(10))


def test_overlap_with_an_unapplied_batch_gets_no_final_answer(group: Group) -> None:
    group.produce(header(-1, last=9), commit=False)
    refusal(group.produce(header(4, last=14)), errors.Throttled)
    refusal(group.produce(header(-1, last=9, crc=2)), errors.Throttled)


def test_hole_8_the_whole_window_survives_a_snapshot(group: Group) -> None:
    for sequence in range(64):
        group.produce(header(sequence - 1))
    group.state = State.from_bytes(b"".join(group.state.to_parts()))
    group.new_master()
    for sequence in range(64):
        assert group.produce(header(sequence - 1)) == Duplicate(Offset(sequence))


def test_older_than_the_window_is_a_duplicate_without_offset(group: Group) -> None:
    for sequence in range(70):
        group.produce(header(sequence - 1))
    assert group.produce(header(4)) == Duplicate(Offset(-1))
    assert group.produce(header(5)) == Duplicate(Offset(6))
    assert group.state.outcome(KEY, ProducerId(1), 5).kind is OutcomeKind.TOO_OLD


def test_hole_9_zombie_with_sequence_zero_is_fenced(group: Group) -> None:
    group.fence(epoch=2)
    error = refusal(group.produce(header(-1)), errors.ProducerFenced)
    assert isinstance(error, errors.ProducerFenced)
    assert (error.current_epoch, error.current_session) == (2, 0)
    refusal(group.fence(epoch=1, session=9), errors.ProducerFenced)
    refusal(group.produce(header(-1, epoch=3)), errors.DedupStateExpired)
    refusal(group.produce(header(-1, epoch=2, session=1)), errors.DedupStateExpired)


def test_hole_9_batch_behind_a_fence_in_the_same_entry_is_decided_by_it(group: Group) -> None:
    group.fence(epoch=2, commit=False)
    refusal(group.produce(header(-1), commit=False), errors.ProducerFenced)
    assert group.produce(header(-1, epoch=2)) == Accepted(Offset(0))


def test_fence_is_idempotent_and_all_or_nothing(group: Group) -> None:
    assert isinstance(group.fence(epoch=2), FenceApplied)
    assert isinstance(group.fence(epoch=2), FenceApplied)
    unknown = QueueKey(TopicId(7), QueueId(9))
    refusal(group.fence(epoch=3, keys=(KEY, unknown)), errors.UnknownQueue)
    row = group.state.producers.lookup(KEY, ProducerId(1))
    assert row is not None
    assert row.epoch == 2


def test_hole_10_same_sequences_with_other_content_conflict(group: Group) -> None:
    group.produce(header(-1, last=9, crc=1))
    refusal(group.produce(header(-1, last=9, crc=2)), errors.SequenceConflict)


def test_hole_11_a_queue_without_a_row_accepts_nothing(group: Group) -> None:
    key = QueueKey(TopicId(7), QueueId(2))
    group.create(key)
    refusal(group.produce(header(-1, key=key)), errors.DedupStateExpired)


def test_hole_12_a_message_in_a_gap_is_refused_not_dropped(group: Group) -> None:
    group.produce(header(-1, base=10, last=20, count=3))
    group.produce(header(20, base=40, last=50, count=3))
    for base, last, count in ((25, 30, 2), (5, 9, 2), (5, 15, 2), (45, 60, 2), (30, 60, 2)):
        decision = group.produce(header(base - 1, base=base, last=last, count=count))
        kind = errors.PartialOverlap if base == 45 else errors.OutOfOrderSequence
        refusal(decision, kind)
    assert group.produce(header(11, base=12, last=13, count=2)) == Duplicate(Offset(-1))


def test_a_broken_chain_is_refused_though_the_sequences_rise(group: Group) -> None:
    group.produce(header(-1, base=10, last=20, count=3))
    group.produce(header(20, base=30, last=40, count=3))
    refusal(group.produce(header(20, base=50, last=60, count=3)), errors.OutOfOrderSequence)


def test_position_marks_move_the_last_sequence_only(group: Group) -> None:
    mark = header(-1, base=0, last=99, count=0)
    assert group.produce(mark) == Accepted(Offset(0))
    assert group.produce(mark) == Duplicate(Offset(0))
    assert group.produce(header(99, base=120, last=130, count=4)) == Accepted(Offset(0))
    assert group.state.outcome(KEY, ProducerId(1), 50).kind is OutcomeKind.NOT_COMMITTED
    refusal(group.produce(header(-1, last=50)), errors.OutOfOrderSequence)


def test_early_batches_wait_for_their_predecessor(group: Group) -> None:
    third, second = header(19, last=29), header(9, last=19)
    parked_third, parked_second = group.produce(third), group.produce(second)
    assert isinstance(parked_third, Parked)
    assert isinstance(parked_second, Parked)
    assert group.admission.unpark(KEY, ProducerId(1)) is None
    group.produce(header(-1, last=9), commit=False)
    assert group.admission.unpark(KEY, ProducerId(1)) == parked_second.park_key
    assert group.admission.unpark(KEY, ProducerId(1)) is None
    assert group.produce(second, commit=False) == Accepted(Offset(10))
    assert group.admission.unpark(KEY, ProducerId(1)) == parked_third.park_key
    assert group.produce(third) == Accepted(Offset(20))
    assert (group.admission.parked_count, group.admission.parked_bytes) == (0, 0)
    assert not group.admission.has_overdue(1_000_000)


def test_parked_batches_expire_and_are_bounded(group: Group) -> None:
    for sequence in range(64):
        assert isinstance(group.produce(header(sequence + 1), now_ms=sequence), Parked)
    refusal(group.produce(header(70)), errors.Throttled)
    assert not group.admission.has_overdue(1_999)
    assert group.admission.has_overdue(2_001)
    assert group.admission.expire_parked(1_999) == []
    expired = group.admission.expire_parked(2_001)
    assert [key.previous_sequence for key, _ in expired] == [1, 2]
    assert all(isinstance(error, errors.OutOfOrderSequence) for _, error in expired)
    assert group.admission.parked_count == 62


def test_a_fence_sends_parked_batches_back_at_once(group: Group) -> None:
    early = header(9)
    assert isinstance(group.produce(early), Parked)
    group.fence(session=1, commit=False)
    assert group.admission.unpark(KEY, ProducerId(1)) is not None
    refusal(group.produce(early), errors.ProducerFenced)


def test_at_most_a_window_of_batches_is_in_flight(group: Group) -> None:
    for sequence in range(64):
        assert isinstance(group.produce(header(sequence - 1), commit=False), Accepted)
    refusal(group.produce(header(63)), errors.Throttled)
    group.commit()
    assert group.produce(header(63)) == Accepted(Offset(64))
    assert unapplied_count(group.admission) == 0


def test_unknown_deleted_and_too_large(group: Group) -> None:
    refusal(group.produce(header(-1, key=QueueKey(TopicId(1), QueueId(1)))), errors.UnknownQueue)
    small = QueueKey(TopicId(8), QueueId(0))
    group.create(small, batch_bytes_max=150)
    group.fence(keys=(small,))
    refusal(group.produce(header(-1, key=small, body=bytes(32))), errors.MessageTooLarge)
    record = control_pb2.DeleteQueue(queue=ref(OTHER))
    assert isinstance(group.admission.queues.admit_delete_queue(record), Accepted)
    group.entry.append(control(delete_queue=record))
    refusal(group.produce(header(-1, key=OTHER), commit=False), errors.UnknownQueue)
    group.commit()
    refusal(group.produce(header(-1, key=OTHER)), errors.UnknownQueue)
    assert unapplied_count(group.admission) == 0


def alter_limit_while_busy(group: Group, limit: int) -> None:
    """The limit changes in one entry while the next one is in flight, with a batch of the queue."""
    applying, group.entry = group.entry, []
    settings = common_pb2.TopicSettings(batch_bytes_max=limit)
    alter = control_pb2.AlterTopic(topic_id=KEY.topic_id, settings=settings)
    assert isinstance(group.admission.queues.admit_alter_topic(alter), Accepted)
    row = group.admission._pending._queues[KEY].rows[1]
    assert isinstance(group.produce(header(row.last), commit=False), Accepted)
    group.admission.on_applied(group.apply(*applying, control(alter_topic=alter)))


def test_an_altered_limit_counts_on_a_queue_that_is_never_idle(group: Group) -> None:
    """With entries one behind the other, a busy queue never leaves the pending state."""
    assert isinstance(group.produce(header(-1), commit=False), Accepted)
    length = header(1, body=bytes(1_000)).batch_length
    alter_limit_while_busy(group, length - 1)
    refusal(group.produce(header(1, body=bytes(1_000)), commit=False), errors.MessageTooLarge)
    alter_limit_while_busy(group, length)
    large = header(2, body=bytes(1_000))
    assert isinstance(group.produce(large, commit=False), Accepted)
    alter_limit_while_busy(group, length - 1)
    assert group.produce(large) == Duplicate(Offset(3)), "it is stored, whatever the limit is now"
    refusal(group.produce(header(4, body=bytes(1_000)), commit=False), errors.MessageTooLarge)
    refusal(group.produce(header(9, body=bytes(1_000)), commit=False), errors.MessageTooLarge)


def test_records_that_need_no_admission_pass_it_by(group: Group) -> None:
    trim = control_pb2.Trim(queue=ref(), log_start_offset=3)
    alter = control_pb2.AlterTopic(topic_id=KEY.topic_id)
    acquire = control_pb2.AcquireLock(group="g", queue=ref(), member_id="m")
    group.produce(header(-1, last=9))
    refusal(
        group.admission.queues.admit_trim(control_pb2.Trim(queue=ref(), log_start_offset=11)),
        errors.OffsetOutOfRange,
    )
    unknown = common_pb2.QueueRef(topic_id=1)
    refusal(group.admission.queues.admit_trim(control_pb2.Trim(queue=unknown)), errors.UnknownQueue)
    negative = common_pb2.TopicSettings(retention_ms=-2)
    refusal(
        group.admission.queues.admit_alter_topic(control_pb2.AlterTopic(settings=negative)),
        errors.InvalidRequest,
    )
    assert isinstance(group.admission.queues.admit_trim(trim), Accepted)
    assert isinstance(group.admission.queues.admit_alter_topic(alter), Accepted)
    group.entry += [control(trim=trim), control(alter_topic=alter), control(acquire_lock=acquire)]
    assert group.produce(header(9)) == Accepted(Offset(10))
    assert group.state.queues[KEY].log_start_offset == 3
    assert unapplied_count(group.admission) == 0


@pytest.mark.parametrize("producer", [0, 1 << 63])
def test_producer_ids_are_checked(group: Group, producer: int) -> None:
    refusal(group.fence(producer=producer), errors.InvalidRequest)


@pytest.mark.parametrize(("start", "end"), [(5, 5), (6, 5), (0, 65_537)])
def test_slots_are_checked(group: Group, start: int, end: int) -> None:
    record = control_pb2.CreateQueue(queue=ref(OTHER), slot_start=start, slot_end=end)
    refusal(group.admission.queues.admit_create_queue(record), errors.InvalidRequest)


def test_creating_is_idempotent_but_waits_for_a_deletion(group: Group) -> None:
    create = control_pb2.CreateQueue(queue=ref(OTHER), topic="orders", slot_end=65_536)
    delete = control_pb2.DeleteQueue(queue=ref(OTHER))
    group.produce(header(-1, last=9, key=OTHER))
    assert isinstance(group.admission.queues.admit_create_queue(create), Accepted)
    group.entry.append(control(create_queue=create))
    assert group.produce(header(9, key=OTHER)) == Accepted(Offset(10))
    for _ in range(2):
        assert isinstance(group.admission.queues.admit_delete_queue(delete), Accepted)
        group.entry.append(control(delete_queue=delete))
    refusal(group.admission.queues.admit_create_queue(create), errors.Throttled)
    group.commit()
    assert isinstance(group.admission.queues.admit_create_queue(create), Accepted)


def test_outcomes_inside_contiguous_batches(group: Group) -> None:
    group.produce(header(-1, last=9))
    group.produce(header(9, last=19))
    outcomes = [group.state.outcome(KEY, ProducerId(1), sequence) for sequence in range(21)]
    assert [outcome.offset for outcome in outcomes] == [*range(20), -1]
    assert outcomes[20].kind is OutcomeKind.NOT_COMMITTED
    assert {outcome.last_sequence for outcome in outcomes} == {19}


def test_outcomes_inside_jumping_batches(group: Group) -> None:
    group.produce(header(-1, base=10, last=20, count=3))
    group.produce(header(20, base=30, last=40, count=2))
    kinds = {s: group.state.outcome(KEY, ProducerId(1), s) for s in (5, 10, 15, 20, 25, 35, 41)}
    committed, absent = OutcomeKind.COMMITTED, OutcomeKind.NOT_COMMITTED
    assert [(kinds[s].kind, kinds[s].offset) for s in (10, 15, 20)] == [
        (committed, 0),
        (committed, -1),
        (committed, 2),
    ]
    assert {kinds[s].kind for s in (5, 25, 35, 41)} == {absent}


@pytest.mark.parametrize(
    ("head", "offset", "time"),
    [
        (header(4), 0, 0),
        (header(-1), 1, 0),
        (header(-1, session=1), 0, 0),
        (header(-1, epoch=2), 0, 0),
        (header(-1, producer=9), 0, 0),
        (header(-1, key=QueueKey(TopicId(9), QueueId(9))), 0, 0),
        (header(-1), 0, 1),
    ],
)
def test_applying_what_no_admission_accepted_halts(
    group: Group, head: object, offset: int, time: int
) -> None:
    assert not isinstance(StateDiverged(), errors.SemelError)
    with pytest.raises(StateDiverged):
        group.apply(batch_record(head, offset, group.now_us + time, group.term))  # type: ignore[arg-type]
