"""Transactions in one broker group's state: known holes, each by its name."""

from __future__ import annotations

import pytest

from semel.broker.state import (
    Accepted,
    BatchVerifier,
    Published,
    Refused,
    State,
    StateDiverged,
    TableVerifier,
)
from semel.protos import errors
from semel.protos.ids import QueueId, QueueKey, TopicId
from semel.protos.levels import LEVEL_MAX, STAGED_COMMITS_LEVEL
from semel.protos.staging import TIMED_EPOCH_MIN
from semel.protos.v1 import control_pb2, transaction_records_pb2
from tests.kit.state_log import KEY, Group, control, header, ref
from tests.unit.broker.state.staging import (
    HOUR_MS,
    A,
    B,
    C,
    Stage,
    abort,
    begin,
    decide,
    finish,
    group_with,
    staged,
    winner,
)

OTHER = QueueKey(TopicId(7), QueueId(1))


# --- staging, pinning, publishing ---------------------------------------------------------------


def test_staged_batches_are_invisible_and_hold_up_nobody() -> None:
    group, _ = group_with(2)
    group.fence()
    assert isinstance(group.produce(header(-1, crc=50)), Accepted)
    assert group.contents() == [50]


def test_a_publication_is_dense_in_the_winners_order_between_other_messages() -> None:
    group = Stage()
    group.fence()
    group.produce(header(-1, crc=50))
    for stager in (A, B):
        group.open(stager)
    first, second = staged(A, 0, 2, crc=1), staged(B, 0, 3, crc=2)
    group.stage(first), group.stage(second)
    group.produce(header(0, crc=51))
    assert group.pin(winner(B, {KEY: [second]}), winner(A, {KEY: [first]})) == ()
    group.produce(header(1, crc=52))
    published = group.publish()
    assert isinstance(published, Published)
    assert published.parts == ((KEY, 3, 5),)
    group.produce(header(2, crc=53))
    assert group.contents() == [50, 51, 52, 2, 2, 2, 1, 1, 53]
    assert not group.state.transactions.staging.stagers
    assert not group.state.transactions.staging.bytes


def test_offsets_given_out_while_a_publication_is_in_flight_come_after_it() -> None:
    group, first = group_with(2)
    group.fence()
    group.pin(first)
    record = transaction_records_pb2.TransactionRecord(
        publish=transaction_records_pb2.PublishTransaction(transaction_id="t", attempt=1)
    )
    assert isinstance(group.admission.admit_transaction(record), Accepted)
    group.entry.append(control(transaction=record))
    again = transaction_records_pb2.TransactionRecord()
    again.CopyFrom(record)
    refused = group.admission.admit_transaction(again)
    assert isinstance(refused, Refused)
    assert isinstance(refused.error, errors.Throttled)
    group.produce(header(-1, crc=50))
    assert group.contents() == [1, 1, 50]


def test_staging_the_same_batch_again_changes_nothing() -> None:
    group, first = group_with(1, 1)
    assert group.stage(staged(A, 0, crc=1)) == "duplicate"
    assert group.open() == (1,), "the last sequence of the queue"
    assert group.pin(first) == ()


def test_other_content_under_the_same_place_is_refused() -> None:
    group, _ = group_with(1)
    assert isinstance(group.stage(staged(A, 0, crc=9)), errors.SequenceConflict)


def test_a_batch_before_its_predecessor_is_refused() -> None:
    group, _ = group_with(1)
    assert isinstance(group.stage(staged(A, 2, crc=9)), errors.OutOfOrderSequence)


def test_a_session_that_was_raised_ends_what_is_on_its_way() -> None:
    group, _ = group_with(1)
    assert group.open(session=2) == (0,)
    assert isinstance(group.stage(staged(A, 1, session=1)), errors.ProducerFenced)
    assert isinstance(group.open(session=1), errors.ProducerFenced)
    assert group.stage(staged(A, 1, session=2)) == "staged"


def test_a_zombie_stager_adds_nothing_after_the_pin() -> None:
    group, first = group_with(1)
    group.open(B)
    group.stage(staged(B, 0, crc=8))
    assert group.pin(first) == ()
    assert isinstance(group.stage(staged(A, 1, crc=9)), errors.TransactionAborted), "the winner"
    assert isinstance(group.stage(staged(B, 1, crc=9)), errors.TransactionAborted), "a loser"
    assert group.open(B) == (-1,), "it stages anew, beside what is pinned"
    assert group.stage(staged(B, 0, crc=9)) == "staged"
    group.publish()
    assert isinstance(group.stage(staged(A, 1, crc=9)), errors.TransactionAborted)
    assert group.contents() == [1]
    group.open(C, epoch=1)
    later = staged(C, 0, crc=2)
    group.stage(later)
    group.pin(winner(C, {KEY: [later]}), epoch=1, attempt=2)
    assert list(group.state.transactions.staging.stagers) == [C], "the next pin ends what is left"


@pytest.mark.parametrize("claims", [[1], [1, 2, 3], [1, 9]])
def test_a_lost_or_an_extra_or_another_batch_cannot_be_pinned(claims: list[int]) -> None:
    group, _ = group_with(1, 1)
    claimed = winner(A, {KEY: [staged(A, at, crc=crc) for at, crc in enumerate(claims)]})
    before = group.state.transactions.parts(LEVEL_MAX)
    assert isinstance(group.pin(claimed), errors.TransactionAborted)
    assert group.state.transactions.parts(LEVEL_MAX) == before
    assert isinstance(group.publish(), errors.TransactionAborted), "nothing is pinned"


def test_a_winner_that_hides_a_queue_cannot_be_pinned() -> None:
    group = Stage(queues=(KEY, OTHER))
    group.open(keys=(KEY, OTHER))
    one, two = staged(A, 0, crc=1), staged(A, 0, crc=2, key=OTHER)
    group.stage(one), group.stage(two)
    assert isinstance(group.pin(winner(A, {KEY: [one]})), errors.TransactionAborted)
    assert group.pin(winner(A, {KEY: [one], OTHER: [two]})) == ()


def test_the_same_pin_again_is_no_error_another_one_is() -> None:
    group, first = group_with(1)
    assert group.pin(first) == ()
    assert group.pin(first) == ()
    assert isinstance(group.pin(), errors.TransactionAborted)


def test_a_higher_attempt_takes_the_place_of_a_lower_pin_never_the_reverse() -> None:
    group, first = group_with(1)
    group.open(B)
    group.stage(staged(B, 0, crc=7))
    group.pin(first, attempt=1)  # the driver dies; the next one stages anew, without waiting
    group.open(C)
    head = staged(C, 0, crc=6)
    group.stage(head)
    assert group.pin(winner(C, {KEY: [head]}), attempt=2) == ()
    assert isinstance(group.pin(first, attempt=1), errors.TransactionFenced)
    group.publish(attempt=2)
    assert group.contents() == [6]


def test_a_commit_that_is_repeated_with_the_same_receipts_pins_them_again() -> None:
    """The program, or the coordinator's master, died between PIN and DECIDE."""
    group, first = group_with(2, 1)
    assert begin(group) == (0, 1, -1)
    assert group.pin(first, attempt=1) == ()
    assert begin(group) == (0, 2, -1)
    assert group.pin(first, attempt=2) == ()
    assert group.pin(first, attempt=2) == ()
    assert isinstance(group.pin(first, attempt=1), errors.TransactionFenced)
    assert isinstance(decide(group, 0, 1), errors.TransactionFenced)
    assert decide(group, 0, 2) == ()
    group.publish(attempt=2)
    assert group.contents() == [1, 1, 2]
    staging = group.state.transactions.staging
    assert (staging.stagers, staging.pins, staging.bytes) == ({}, {}, 0)
    assert group.replayed().digest() == group.state.digest()


def test_a_repeated_commit_with_some_of_the_receipts_gives_the_others_up() -> None:
    group, first = group_with(1)
    group.open(B, writer=1)
    head = staged(B, 0, crc=7)
    group.stage(head)
    second = winner(B, {KEY: [head]})
    group.pin(first, second, attempt=1)
    group.open(C, writer=2)
    more = staged(C, 0, crc=8)
    group.stage(more)
    assert group.pin(second, winner(C, {KEY: [more]}), attempt=2) == ()
    assert set(group.state.transactions.staging.stagers) == {B, C}
    group.publish(attempt=2)
    assert group.contents() == [7, 8]


def test_a_repeated_commit_that_is_refused_leaves_the_pin_as_it_was() -> None:
    """Only what comes in its place ends it, or the coordinator's word."""
    group, first = group_with(1)
    group.pin(first, attempt=1)
    wrong = winner(A, {KEY: [staged(A, 0, crc=9)]})
    before = group.state.transactions.parts(LEVEL_MAX)
    assert isinstance(group.pin(wrong, attempt=2), errors.TransactionAborted)
    other = group.pin(first, txn="u", attempt=2)
    assert isinstance(other, errors.TransactionAborted)
    assert group.state.transactions.parts(LEVEL_MAX) == before
    group.publish(attempt=1)
    assert group.contents() == [1]


def test_below_level_6_a_repeated_commit_is_aborted() -> None:
    """As the older program does, whose nodes are in the group still."""
    group, first = group_with(1, level=5)
    group.pin(first, attempt=1)
    assert isinstance(group.pin(first, attempt=2), errors.TransactionAborted)


def test_an_epoch_is_not_finished_before_the_coordinator_itself_has_published() -> None:
    group, first = group_with(1)
    begin(group)
    group.pin(first, attempt=1)
    decide(group, 0, 1)
    assert isinstance(finish(group, 0), errors.Throttled)
    assert isinstance(begin(group), errors.Throttled)
    group.publish()
    assert finish(group, 0) == ()
    assert begin(group) == (1, 2, 0)


def test_another_coordinator_cannot_end_a_pin() -> None:
    group, first = group_with(1)
    group.pin(first)
    group.open(B)
    head = staged(B, 0, crc=7)
    group.stage(head)
    refused = group.pin(winner(B, {KEY: [head]}), attempt=9, coordinator=2)
    assert isinstance(refused, errors.TransactionConflict)
    group.publish()
    assert group.contents() == [1]


def test_a_ttl_ends_what_is_staged_and_not_what_is_pinned() -> None:
    group, first = group_with(1)
    staging = group.state.transactions.staging
    drop = transaction_records_pb2.DropStagers(stager_ids=[A], expired_only=True)
    group.now_us += HOUR_MS * 1000 - 1
    assert group.step(drop_stagers=drop) == (0,)
    assert not staging.expired(group.now_us, 10)
    group.now_us += 1
    assert staging.expired(group.now_us, 10) == [A]
    group.pin(first)
    assert not staging.expired(group.now_us, 10)
    assert group.step(drop_stagers=drop) == (0,)
    group.publish()
    assert group.contents() == [1]


def test_a_ttl_that_ends_before_the_pin_aborts_the_commit() -> None:
    group, first = group_with(1)
    group.now_us += HOUR_MS * 1000
    group.step(drop_stagers=transaction_records_pb2.DropStagers(stager_ids=[A], expired_only=True))
    assert isinstance(group.pin(first), errors.TransactionAborted)
    assert not group.state.transactions.staging.bytes


def test_the_byte_limit_refuses_before_anything_is_stored() -> None:
    group, _ = group_with(1)
    group.admission._staged_bytes_max = group.state.transactions.staging.bytes
    refused = group.stage(staged(A, 1, crc=2))
    assert isinstance(refused, errors.Throttled)
    assert refused.retry_after_ms


# --- splits and deletions -----------------------------------------------------------------------


def split_record() -> control_pb2.SplitQueue:
    children = [
        control_pb2.ChildQueue(queue_id=5, slot_start=0, slot_end=32_768),
        control_pb2.ChildQueue(queue_id=6, slot_start=32_768, slot_end=65_536),
    ]
    return control_pb2.SplitQueue(queue=ref(), children=children)


def test_a_queue_is_not_split_while_something_is_pinned_for_it() -> None:
    group, first = group_with(1)
    record = transaction_records_pb2.TransactionRecord(
        pin=transaction_records_pb2.PinTransaction(
            transaction_id="t", attempt=1, coordinator=1, winners=[first]
        )
    )
    assert isinstance(group.admission.admit_transaction(record), Accepted)
    group.entry.append(control(transaction=record))
    for _ in ("in flight", "applied"):
        refused = group.admission.queues.admit_split(split_record())
        assert isinstance(refused, Refused)
        assert isinstance(refused.error, errors.Throttled)
        group.commit()
    group.publish()
    assert isinstance(group.admission.queues.admit_split(split_record()), Accepted)


def test_a_split_before_the_pin_aborts_the_commit_with_a_reason() -> None:
    group, first = group_with(1)
    assert isinstance(group.admission.queues.admit_split(split_record()), Accepted)
    group.entry.append(control(split_queue=split_record()))
    refused = group.pin(first)
    assert isinstance(refused, errors.TransactionAborted)
    assert "split" in refused.message
    assert isinstance(group.stage(staged(A, 1, crc=2)), errors.QueueSealed)
    assert isinstance(group.open(B), errors.QueueSealed)


def test_a_fold_that_splits_a_pinned_queue_halts() -> None:
    group, first = group_with(1)
    group.pin(first)
    with pytest.raises(StateDiverged):
        group.apply(control(split_queue=split_record()))


def test_a_deleted_queue_takes_what_was_meant_for_it_along() -> None:
    group = Stage(queues=(KEY, OTHER))
    group.open(keys=(KEY, OTHER))
    one, two = staged(A, 0, crc=1), staged(A, 0, crc=2, key=OTHER)
    group.stage(one), group.stage(two)
    group.pin(winner(A, {KEY: [one], OTHER: [two]}))
    delete = control_pb2.DeleteQueue(queue=ref())
    group.admission.queues.admit_delete_queue(delete)
    group.entry.append(control(delete_queue=delete))
    published = group.publish()  # admitted while the deletion is in flight
    assert isinstance(published, Published)
    assert published.parts == ((OTHER, 0, 1),)
    assert group.contents(OTHER) == [2]
    assert not group.state.transactions.staging.bytes


def test_a_queue_that_was_deleted_before_the_pin_aborts_the_commit() -> None:
    group, first = group_with(1)
    delete = control_pb2.DeleteQueue(queue=ref())
    group.admission.queues.admit_delete_queue(delete)
    group.entry.append(control(delete_queue=delete))
    group.commit()
    assert isinstance(group.pin(first), errors.TransactionAborted)
    assert isinstance(group.stage(staged(A, 1)), errors.UnknownQueue)


# --- the coordinator ----------------------------------------------------------------------------


def test_epochs_go_on_by_themselves() -> None:
    group = Stage()
    for epoch in range(3):
        assert begin(group) == (epoch, epoch + 1, epoch - 1)
        assert decide(group, epoch, epoch + 1, ()) == ()


def test_an_epoch_that_is_committed_is_told_so_and_gets_no_attempt() -> None:
    group = Stage()
    begin(group, epoch=4)
    decide(group, 4, 1, ())
    assert begin(group, epoch=4) == (4, 0, 4)
    assert begin(group, epoch=2) == (2, 0, 4)


def test_the_same_decision_again_is_the_same_decision() -> None:
    group = Stage()
    begin(group)
    assert decide(group, 0, 1) == ()
    assert decide(group, 0, 1) == ()
    finish(group, 0)
    assert decide(group, 0, 1) == (), "a reply that was lost, asked for again late"
    assert begin(group) == (1, 2, 0)


def test_the_next_epoch_begins_after_the_last_one_is_published_everywhere() -> None:
    group = Stage()
    begin(group)
    decide(group, 0, 1)
    assert isinstance(begin(group), errors.Throttled)
    finish(group, 0)
    assert begin(group) == (1, 2, 0)


def test_a_newer_attempt_fences_the_older_one() -> None:
    group = Stage()
    begin(group)
    assert begin(group) == (0, 2, -1)
    assert isinstance(decide(group, 0, 1), errors.TransactionFenced)
    assert decide(group, 0, 2, ()) == ()
    assert isinstance(decide(group, 0, 1), errors.TransactionFenced)


def test_an_abort_before_the_decision_wins() -> None:
    group = Stage()
    begin(group)
    assert abort(group, 1) == (0,)
    assert isinstance(decide(group, 0, 1), errors.TransactionAborted)
    assert abort(group, 1) == (0,)
    assert isinstance(decide(group, 5, 9), errors.TransactionAborted), "never begun"


def test_a_decision_before_the_abort_wins() -> None:
    group = Stage()
    begin(group)
    decide(group, 0, 1)
    assert abort(group, 1) == (1,)
    assert abort(group, 0) == (0,), "an operator's abort finds nothing open"
    assert decide(group, 0, 1) == ()


def test_an_abort_of_an_older_attempt_leaves_the_open_one_alone() -> None:
    group = Stage()
    begin(group), begin(group)
    assert abort(group, 1) == (0,)
    assert decide(group, 0, 2) == ()


def test_another_query_under_a_used_id_is_refused_by_name() -> None:
    group = Stage()
    begin(group, "q")
    decide(group, 0, 1, ())
    refused = begin(group, "other")
    assert isinstance(refused, errors.TransactionConflict)
    assert refused.owner == "q"


def test_an_id_under_which_nothing_was_committed_may_change_hands() -> None:
    group = Stage()
    begin(group, "q")
    assert begin(group, "other") == (0, 2, -1)
    assert isinstance(decide(group, 0, 1), errors.TransactionFenced)


def test_idle_rows_are_forgotten_and_what_may_be_a_replay_is_refused() -> None:
    group = Stage()
    coordination = group.state.transactions.coordination
    begin(group, epoch=7)
    decide(group, 7, 1)
    forget = transaction_records_pb2.ForgetTransactions(transaction_ids=["t", "unknown"])
    group.step(forget=forget)
    assert "t" in coordination.rows, "an unpublished one is never forgotten"
    finish(group, 7)
    assert coordination.idle(group.now_us, 1000, 10) == []
    group.now_us += 1000
    assert coordination.idle(group.now_us, 1000, 10) == ["t"]
    group.step(forget=forget)
    assert not coordination.rows
    assert isinstance(begin(group, epoch=7), errors.DedupStateExpired)
    assert begin(group, epoch=8) == (8, 2, -1), "above everything that was forgotten"


@pytest.mark.parametrize("level", [STAGED_COMMITS_LEVEL - 1, STAGED_COMMITS_LEVEL])
def test_a_forgotten_epoch_that_begins_with_the_time_bars_no_number_of_a_program(
    level: int,
) -> None:
    group = Stage(level=level)
    timed = TIMED_EPOCH_MIN + 5
    begin(group, epoch=timed)
    decide(group, timed, 1)
    finish(group, timed)
    group.step(forget=transaction_records_pb2.ForgetTransactions(transaction_ids=["t"]))
    assert State.from_bytes(b"".join(group.state.to_parts())).digest() == group.state.digest()
    assert isinstance(begin(group, epoch=timed), errors.DedupStateExpired)
    small = begin(group, epoch=7)
    if level < STAGED_COMMITS_LEVEL:
        assert isinstance(small, errors.DedupStateExpired), "one number for both"
    else:
        assert small == (7, 2, -1)


# --- at apply -----------------------------------------------------------------------------------


def test_canonical_bytes_hold_everything_at_every_step() -> None:
    group, first = group_with(2, 1)
    group.open(B, txn="u", epoch=3, writer=9)
    begin(group), begin(group, "q", epoch=5)
    group.pin(first, attempt=2)
    assert State.from_bytes(b"".join(group.state.to_parts())).digest() == group.state.digest()
    live = list(group.state.live_records(0, 1 << 40))
    assert len(live) == 2
    assert group.state.live_bytes == sum(length for _, _, length in live)
    assert group.state.live_bytes_between([0, 1 << 40]) == [group.state.live_bytes]
    decide(group, 5, 2)
    assert group.replayed().digest() == group.state.digest()


def test_what_is_published_stays_live_at_its_old_place() -> None:
    group, first = group_with(2)
    before = list(group.state.live_records(0, 1 << 40))
    group.pin(first)
    group.publish()
    assert list(group.state.live_records(0, 1 << 40)) == before
    assert group.state.live_bytes == group.state.queues[KEY].bytes == before[0][2]


def test_times_of_a_queue_that_came_from_a_clock_ahead_do_not_fall_at_a_publication() -> None:
    group, first = group_with(2)
    queue = group.state.queues[KEY]
    queue.last_append_us = ahead_us = group.state.log_time_us + 60_000_000
    group.pin(first)
    assert isinstance(group.publish(), Published)
    assert group.state.log_time_us < ahead_us
    assert queue.last_append_us == ahead_us


def test_a_publication_at_the_wrong_offset_halts() -> None:
    group, first = group_with(2)
    group.pin(first)
    record = transaction_records_pb2.PublishTransaction(transaction_id="t", attempt=1)
    record.parts.add(queue=ref(), base_offset=1, messages=2)
    with pytest.raises(StateDiverged):
        group.apply(control(transaction=transaction_records_pb2.TransactionRecord(publish=record)))


def test_a_log_below_the_level_holds_no_transactions() -> None:
    group = Group()
    step = transaction_records_pb2.TransactionRecord(
        begin=transaction_records_pb2.BeginTransaction(transaction_id="t")
    )
    assert isinstance(group.admission.admit_transaction(step), Refused)
    with pytest.raises(StateDiverged):
        group.apply(control(transaction=step))


# --- semel verify -------------------------------------------------------------------------------


def verified(group: Stage, *, without: int | None = None, twice: int | None = None) -> bool:
    """What the batch verifier says of the queue, read extent by extent."""
    queue = group.state.queues[KEY]
    verifier = BatchVerifier(KEY, queue.log_start_offset, queue.log_end_offset)
    for number, extent in enumerate(queue.extents_from(0, 1 << 40)):
        frame = group.frames[extent.index - 1]
        start = extent.position + 8
        stored = frame[start : start + extent.length]
        if number == without:
            continue
        verifier.feed(extent.base_offset, extent.count, stored, extent.first_row)
        if number == twice:
            verifier.feed(extent.base_offset + extent.count, extent.count, stored, 0)
    return verifier.finish().ok


def test_verify_reads_published_batches_and_notices_lost_and_repeated_ones() -> None:
    group, first = group_with(2, 1, 3)
    group.fence()
    group.produce(header(-1, crc=50))
    group.pin(first)
    group.publish()
    group.produce(header(0, crc=51))
    assert verified(group)
    assert not verified(group, without=2)
    assert not verified(group, twice=2)
    table = TableVerifier()
    for frame in group.frames:
        table.feed(frame)
    assert not table.problems
    assert table.log_end_offset(KEY) == group.state.queues[KEY].log_end_offset == 8
