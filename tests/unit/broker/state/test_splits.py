"""Splits: nothing is stored twice, lost or out of order, whatever of the parent comes again."""

from __future__ import annotations

from typing import Any

import pytest

from semel.broker.state import (
    Accepted,
    BatchVerifier,
    Child,
    Duplicate,
    DuplicateInFlight,
    OutcomeKind,
    Parked,
    Refused,
    State,
    StateDiverged,
    TableVerifier,
)
from semel.broker.state.apply.expired import Expired
from semel.broker.state.verify.chains import Chains
from semel.protos import errors
from semel.protos.frames import iter_records
from semel.protos.ids import ProducerId, QueueId, QueueKey, TopicId
from semel.protos.levels import KAFKA_LEVEL
from semel.protos.v1 import control_pb2
from tests.kit.state_log import KEY, Group, batch_record, control, header, ref, unapplied_count
from tests.unit.broker.state.splitting import (
    acquire,
    commit_offset,
    error_of,
    raise_level,
    split,
    split_of,
)

LEFT, RIGHT = QueueKey(KEY.topic_id, QueueId(1)), QueueKey(KEY.topic_id, QueueId(2))
ONE = ProducerId(1)


@pytest.fixture
def group() -> Group:
    """Producer 1 has stored 0 to 19 in two batches."""
    made = Group()
    raise_level(made)
    made.fence(name="loader")
    made.produce(header(-1, last=9, crc=1))
    made.produce(header(9, last=19, crc=2))
    return made


# --- hole 11: a retry meets the parent's table or the child's, never an empty one -----------------


def test_hole_11_a_retry_that_names_the_parent_finds_its_original(group: Group) -> None:
    split(group)
    assert group.produce(header(-1, last=9, crc=1)) == Duplicate(0)  # type: ignore[arg-type]
    assert group.produce(header(9, last=19, crc=2)) == Duplicate(10)  # type: ignore[arg-type]
    assert isinstance(error_of(group.produce(header(9, last=19, crc=3))), errors.SequenceConflict)


def test_hole_11_what_the_parent_does_not_hold_is_refused_for_good(group: Group) -> None:
    split(group)
    for late in (header(19, last=29), header(29, last=39)):
        error = error_of(group.produce(late))
        assert isinstance(error, errors.QueueSealed)
        record = control_pb2.SplitQueue.FromString(error.split_record)
        assert record == split_of()
    assert group.state.queues[KEY].log_end_offset == 20


def test_hole_11_a_child_begins_behind_what_its_parent_stored(group: Group) -> None:
    split(group)
    for child in (LEFT, RIGHT):
        row = group.state.producers.lookup(child, ONE)
        assert row is not None
        assert (row.last_sequence, row.epoch, row.name) == (19, 1, "loader")
        again = group.produce(header(-1, last=9, crc=1, key=child))
        assert again == Duplicate(-1), "an old batch under the child's name is not stored again"  # type: ignore[arg-type]
        assert isinstance(group.produce(header(19, last=24, crc=7, key=child)), Accepted)
    assert group.state.queues[LEFT].log_end_offset == 5


def test_hole_11_planted_an_empty_child_stores_a_retry_twice(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What inherits nothing takes a whole topic again from a loader that starts again."""
    monkeypatch.setattr("semel.broker.state.apply.producers.SequenceTable.inherit", lambda *_: None)
    split(group)
    group.fence(epoch=2, keys=[LEFT], name="loader")
    assert isinstance(group.produce(header(-1, last=9, crc=1, epoch=2, key=LEFT)), Accepted)


def test_a_split_that_may_still_be_lost_refuses_nothing_for_good(group: Group) -> None:
    assert isinstance(group.produce(header(19, last=29, crc=3), commit=False), Accepted)
    split(group, commit=False)
    assert isinstance(group.produce(header(19, last=29, crc=3), commit=False), DuplicateInFlight)
    for batch in (header(29, last=39, crc=4), header(39, last=49, crc=5)):
        assert isinstance(error_of(group.produce(batch)), errors.Throttled)
    assert isinstance(error_of(group.fence(session=1)), errors.Throttled)
    assert isinstance(error_of(group.admission.queues.admit_split(split_of())), errors.Throttled)
    group.new_master()  # the split and the batch before it are lost
    assert isinstance(group.produce(header(19, last=39, crc=6)), Accepted)
    assert not group.state.queues[KEY].sealed


def test_a_batch_that_waits_for_its_predecessor_hears_of_the_split(group: Group) -> None:
    waiting = header(29, last=39, crc=5)
    assert isinstance(group.produce(waiting), Parked)
    split(group)
    assert isinstance(error_of(group.produce(waiting)), errors.QueueSealed)


def test_a_lowered_limit_does_not_hide_that_a_batch_is_stored(group: Group) -> None:
    group.apply(
        control(
            alter_topic=control_pb2.AlterTopic(
                topic_id=KEY.topic_id, settings={"batch_bytes_max": 8, "message_bytes_max": 4}
            )
        )
    )
    assert isinstance(group.produce(header(9, last=19, crc=2)), Duplicate)
    for new in (header(19, last=29), header(29, last=39)):
        assert isinstance(error_of(group.produce(new)), errors.MessageTooLarge)
    split(group)
    assert isinstance(group.produce(header(9, last=19, crc=2)), Duplicate)
    assert isinstance(error_of(group.produce(header(19, last=29))), errors.QueueSealed)


# --- fences ---------------------------------------------------------------------------------------


def test_the_incarnation_of_the_row_may_still_ask_the_parent(group: Group) -> None:
    split(group)
    (row,) = group.fence(session=1).rows
    assert (row.last_sequence, row.session) == (19, 1)
    assert isinstance(error_of(group.produce(header(19, session=1))), errors.QueueSealed)
    assert isinstance(error_of(group.fence(session=0)), errors.ProducerFenced)


@pytest.mark.parametrize("fence", [{"epoch": 2}, {"producer": 5}, {"epoch": 9, "after_expiry": 1}])
def test_a_new_incarnation_is_sent_to_the_children(group: Group, fence: dict[str, int]) -> None:
    split(group)
    assert isinstance(error_of(group.fence(**fence)), errors.QueueSealed)  # type: ignore[arg-type]
    assert isinstance(error_of(group.fence(keys=[LEFT, KEY], epoch=2)), errors.QueueSealed)
    left, right = group.fence(epoch=2, keys=[LEFT, RIGHT]).rows
    assert (left.last_sequence, right.last_sequence) == (19, 19)


def test_children_know_whom_the_parent_has_forgotten(group: Group) -> None:
    group.now_us += 3_600_000_000
    record = group.admission.propose_expiry(KEY, now_us=group.now_us, idle_ms=1, rows_max=10)
    assert record is not None
    group.entry.append(control(expire_producers=record))
    group.commit()
    split(group)
    assert isinstance(error_of(group.fence(epoch=2, keys=[LEFT])), errors.DedupStateExpired)
    assert not isinstance(group.fence(epoch=2, keys=[LEFT], after_expiry=True), Refused)


def test_rows_of_parent_and_child_expire_by_themselves(group: Group) -> None:
    split(group)
    group.produce(header(19, crc=7, key=LEFT))
    group.now_us += 3_600_000_000
    record = group.admission.propose_expiry(KEY, now_us=group.now_us, idle_ms=1, rows_max=10)
    group.entry.append(control(expire_producers=record))
    group.commit()
    assert group.state.outcome(KEY, ONE, 5).kind is OutcomeKind.TOO_OLD
    assert group.state.outcome(LEFT, ONE, 20).kind is OutcomeKind.COMMITTED
    assert isinstance(error_of(group.produce(header(9, last=19))), errors.DedupStateExpired)


def test_outcomes_of_a_child(group: Group) -> None:
    split(group)
    group.produce(header(19, crc=7, key=LEFT))
    kinds = [group.state.outcome(LEFT, ONE, sequence) for sequence in (0, 19, 20, 21)]
    assert [kind.kind.value for kind in kinds] == [
        "too_old",
        "too_old",
        "committed",
        "not_committed",
    ]
    assert kinds[2].offset == 0
    mark = header(-1, base=0, last=0, count=0, crc=0, key=LEFT)
    assert isinstance(group.produce(mark), Duplicate)


def test_a_producer_that_stored_nothing_begins_anew_at_the_child() -> None:
    group = Group()
    raise_level(group)
    group.fence()
    split(group)
    row = group.state.producers.lookup(LEFT, ONE)
    assert row is not None
    assert (row.last_sequence, row.window) == (-1, ())
    assert isinstance(group.produce(header(-1, key=LEFT)), Accepted)


# --- the record -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "children",
    [
        ((1, 0, 65_536),),
        ((1, 0, 10), (2, 11, 65_536)),
        ((1, 0, 10), (2, 9, 65_536)),
        ((1, 0, 10), (2, 10, 65_535)),
        ((1, 0, 65_536), (2, 65_536, 65_536)),
        ((1, 1, 10), (2, 10, 65_536)),
        ((1, 0, 10), (1, 10, 65_536)),
        ((0, 0, 10), (1, 10, 65_536)),
        ((2, 10, 65_536), (1, 0, 10)),
        (),
    ],
)
def test_malformed_splits(group: Group, children: tuple[tuple[int, int, int], ...]) -> None:
    wrong = split_of(children=children)
    assert isinstance(error_of(split(group, wrong)), errors.InvalidRequest)
    with pytest.raises(StateDiverged):
        group.apply(control(split_queue=wrong))


def test_a_split_is_done_once(group: Group) -> None:
    split(group)
    before = group.state.queues[LEFT]
    group.produce(header(19, crc=7, key=LEFT))
    assert isinstance(split(group), Accepted)
    assert group.state.queues[LEFT] is before
    assert before.log_end_offset == 1
    other = split_of(children=((3, 0, 5), (4, 5, 65_536)))
    assert isinstance(error_of(split(group, other)), errors.QueueSealed)
    taken = split_of(LEFT, ((2, 0, 5), (4, 5, 30_000)))
    assert isinstance(error_of(split(group, taken)), errors.InvalidRequest)
    assert isinstance(split(group, split_of(LEFT, ((3, 0, 5), (4, 5, 30_000)))), Accepted)


def test_no_split_of_what_is_not_there_or_going(group: Group) -> None:
    nowhere = QueueKey(TopicId(8), QueueId(0))
    assert isinstance(error_of(split(group, split_of(nowhere))), errors.UnknownQueue)
    delete = control_pb2.DeleteQueue(queue=ref())
    group.admission.queues.admit_delete_queue(delete)
    assert isinstance(error_of(split(group)), errors.UnknownQueue)
    group.entry.append(control(delete_queue=delete))
    group.commit()
    with pytest.raises(StateDiverged):
        group.apply(control(split_queue=split_of()))


def test_a_split_and_a_delete_in_one_entry(group: Group) -> None:
    split(group, commit=False)
    delete = control_pb2.DeleteQueue(queue=ref())
    assert isinstance(group.admission.queues.admit_delete_queue(delete), Accepted)
    group.entry.append(control(delete_queue=delete))
    group.commit()
    assert sorted(group.state.queues) == [LEFT, RIGHT]
    assert unapplied_count(group.admission) == 0


def test_no_split_before_its_feature_level() -> None:
    group = Group()
    assert isinstance(error_of(split(group)), errors.UnsupportedVersion)
    too_new = control_pb2.FeatureLevel(level=99)
    assert isinstance(error_of(group.admission.admit_feature_level(too_new)), errors.InvalidRequest)
    with pytest.raises(StateDiverged):
        group.apply(control(split_queue=split_of()))


def test_a_sealed_queue_folds_no_batch(group: Group) -> None:
    split(group)
    with pytest.raises(StateDiverged):
        group.apply(batch_record(header(19), 20, group.now_us, group.term))


@pytest.mark.parametrize("fence", [{"epoch": 2}, {"producer_id": 5}])
def test_a_sealed_queue_folds_no_new_incarnation(group: Group, fence: dict[str, int]) -> None:
    split(group)
    fields: dict[str, Any] = {"producer_id": 1, "epoch": 1, **fence}
    record = control_pb2.Fence(**fields, queues=[ref()])
    with pytest.raises(StateDiverged):
        group.apply(control(fence=record))


def test_canonical_bytes_are_the_old_ones_until_the_level_rises() -> None:
    group = Group()
    group.fence()
    old = b"".join(group.state.to_parts())
    assert old[4] == 1
    raise_level(group)
    split(group)
    new = b"".join(group.state.to_parts())
    assert new[4] == 2
    back = State.from_bytes(new)
    assert b"".join(back.to_parts()) == new
    assert back.queues[LEFT].parent == 0
    assert back.queues[KEY].children == (Child(1, 0, 30_000), Child(2, 30_000, 65_536))
    assert State.from_bytes(old).digest() == State.from_bytes(old).digest()


def test_settings_and_retention_reach_parent_and_children(group: Group) -> None:
    split(group)
    group.apply(
        control(
            alter_topic=control_pb2.AlterTopic(
                topic_id=KEY.topic_id, settings={"retention_ms": 5, "retention_bytes": -1}
            )
        )
    )
    assert {queue.settings.retention_ms for queue in group.state.queues.values()} == {5}
    group.apply(control(trim=control_pb2.Trim(queue=ref(), log_start_offset=20)))
    assert group.state.queues[KEY].log_start_offset == 20
    assert group.produce(header(9, last=19, crc=2)) == Duplicate(10)  # type: ignore[arg-type]


# --- consumer groups ------------------------------------------------------------------------------


def test_a_child_is_not_given_before_its_parent_was_read(group: Group) -> None:
    token = acquire(group, KEY).token
    split(group)
    refused = acquire(group, LEFT)
    assert isinstance(refused.error, errors.ParentUnread)
    assert refused.error.retry_after_ms > 0
    commit_offset(group, token, 19)
    assert isinstance(acquire(group, LEFT).error, errors.ParentUnread)
    commit_offset(group, token, 20)
    granted = acquire(group, LEFT)
    assert granted.committed_offset == 0, "also for a group that reads new queues from their end"
    assert isinstance(acquire(group, LEFT, "other").error, errors.ParentUnread)


def test_a_group_that_keeps_no_order_of_keys_gets_a_child_beside_its_parent(group: Group) -> None:
    acquire(group, KEY)
    split(group)
    with pytest.raises(StateDiverged, match="feature level 9"):
        acquire(group, LEFT, beside_parents=True)


def test_it_does_from_its_feature_level_on(group: Group) -> None:
    acquire(group, KEY)
    group.raise_level(KAFKA_LEVEL)
    split(group)
    granted = acquire(group, LEFT, beside_parents=True)
    assert (granted.token > 0, granted.committed_offset) == (True, 0)
    assert isinstance(acquire(group, RIGHT).error, errors.ParentUnread), "another one still waits"


def test_one_unread_message_of_the_parent_is_enough() -> None:
    group = Group()
    raise_level(group)
    group.fence()
    group.produce(header(-1, last=0, crc=1))
    split(group)
    error = acquire(group, LEFT).error
    assert isinstance(error, errors.ParentUnread)
    assert "has committed -1 of queue 0, which ends at 1;" in error.message


def test_a_group_that_came_later_chooses_where_it_begins(group: Group) -> None:
    split(group)
    commit_offset(group, acquire(group, KEY).token, 20)
    assert acquire(group, LEFT).committed_offset == -1


def test_an_empty_or_trimmed_parent_holds_nobody_up(group: Group) -> None:
    split(group)
    split(group, split_of(LEFT, ((3, 0, 5), (4, 5, 30_000))))
    grandchild = QueueKey(KEY.topic_id, QueueId(3))
    assert group.state.queues[LEFT].log_end_offset == 0
    assert isinstance(acquire(group, grandchild).error, errors.ParentUnread), "of queue 0"
    group.apply(control(trim=control_pb2.Trim(queue=ref(), log_start_offset=20)))
    assert acquire(group, grandchild).token


def test_a_deleted_parent_holds_nobody_up(group: Group) -> None:
    split(group)
    group.apply(control(delete_queue=control_pb2.DeleteQueue(queue=ref())))
    assert acquire(group, LEFT).token


def test_a_reset_to_the_start_puts_the_children_behind_the_parent_again(group: Group) -> None:
    split(group)
    commit_offset(group, acquire(group, KEY).token, 20)
    assert acquire(group, LEFT).token
    for key in (KEY, LEFT):
        reset = control_pb2.ResetOffset(group="g", queue=ref(key), offset=0)
        group.apply(control(reset_offset=reset))
    assert isinstance(acquire(group, LEFT).error, errors.ParentUnread)


# --- verification ---------------------------------------------------------------------------------


def verify_child(
    group: Group,
    key: QueueKey,
    inherited: dict[int, tuple[int, int]],
    parent_expired: Expired | None = None,
) -> Any:
    queue = group.state.queues[key]
    verifier = BatchVerifier(
        key,
        queue.log_start_offset,
        queue.log_end_offset,
        inherited=inherited,
        parent_expired=parent_expired,
    )
    for extent in queue.extents_from(queue.log_start_offset, 1 << 40):
        records = {at: bytes(data) for at, _, data in iter_records(group.frames[extent.index - 1])}
        verifier.feed(extent.base_offset, extent.count, records[extent.position])
    return verifier.finish()


def test_verification_follows_a_split(group: Group) -> None:
    split(group)
    group.produce(header(19, last=24, crc=7, key=LEFT))
    table = TableVerifier()
    for frame in group.frames:
        table.feed(frame)
    assert not table.problems
    for key in (KEY, LEFT, RIGHT):
        assert table.queue_digest(key) == group.state.producers.queue_digest(key)
    assert verify_child(group, LEFT, {1: (1, 19)}).ok
    assert verify_child(group, LEFT, {1: (1, 22)}).duplicates == 3, "stored in both"
    assert verify_child(group, LEFT, {1: (1, 15)}).missing == 4, "stored in neither"
    middle = TableVerifier(group.state)
    group.produce(header(24, last=29, crc=8, key=LEFT))
    middle.feed(group.frames[-1])
    assert not middle.problems
    assert middle.queue_digest(LEFT) == group.state.producers.queue_digest(LEFT)


def test_verification_sees_a_batch_behind_a_split(group: Group) -> None:
    table = TableVerifier()
    for frame in group.frames:
        table.feed(frame)
    split(group)
    table.feed(group.frames[-1])
    spoiled = Group()
    raise_level(spoiled)
    spoiled.frames = group.frames.copy()
    spoiled.state = State()
    for frame in group.frames:
        spoiled.state.apply_frame(frame)
    with pytest.raises(StateDiverged):
        spoiled.apply(batch_record(header(19), 20, group.now_us, group.term))
    table.feed(spoiled.frames[-1])
    assert "after the queue was split" in table.problems[0]


def test_verification_of_a_child_does_not_miss_what_an_expired_row_of_the_parent_knew(
    group: Group,
) -> None:
    split(group)
    group.produce(header(19, last=24, crc=7, key=LEFT))
    assert verify_child(group, LEFT, {}).missing == 20
    expired = Expired()
    expired.add(1, 1, stored=True)
    assert verify_child(group, LEFT, {}, expired).ok
    newer = Expired()
    newer.add(2, 1, stored=True)
    assert verify_child(group, LEFT, {}, newer).missing == 20, "another producer's"


def test_delayed_batches_that_may_be_a_parents_fill_gaps_of_a_child() -> None:
    """A child that has moved tells its own delayed batches from its parent's by their rows, and
    those may have expired."""
    cases: list[tuple[tuple[Any, ...], int]] = [
        ((), 3),
        ((header(-1, last=1),), 1),
        ((header(-1, last=2),), 0),
    ]
    for parts, missing in cases:
        chains = Chains(0, 1, {}, Expired(), gaps=False)
        assert not list(chains.follow("offset 0", header(2, last=3), delayed=False))
        for part in parts:
            assert chains.may_be_part(part, 1)
            assert not list(chains.follow_part("delayed", part))
        assert len(list(chains.finish())) == bool(missing)
        assert chains.missing == missing
        assert chains.knows(header(2).producer_id, 0, 2) is not bool(missing)
