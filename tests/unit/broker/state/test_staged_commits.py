"""Progress of consumer groups in transactions: what is staged, and what becomes of it."""

from __future__ import annotations

import pytest

from semel.broker.state import Accepted, LockClock, Published, Refused, State, StateDiverged
from semel.broker.state.admission import transaction_admission
from semel.protos import errors
from semel.protos.ids import QueueId, QueueKey, TopicId
from semel.protos.levels import LEVEL_MAX, STAGED_COMMITS_LEVEL
from semel.protos.v1 import control_pb2, transaction_records_pb2
from tests.kit.state_log import KEY, control, header, ref
from tests.unit.broker.state.moving import Home, begin, bring_slice
from tests.unit.broker.state.staging import (
    HOUR_MS,
    A,
    B,
    Stage,
    acquire,
    commits,
    lock,
    progress,
    stage_commits,
    staged,
    winner,
)

OTHER = QueueKey(TopicId(7), QueueId(1))


def ready(level: int = LEVEL_MAX) -> tuple[Stage, int]:
    """A group with 20 messages, whose first stager is open, and the token of "g"."""
    group = Stage(queues=(KEY, OTHER), level=level)
    group.fence(keys=(KEY, OTHER))
    group.produce(header(-1, last=19))
    group.produce(header(-1, last=19, key=OTHER))
    group.open()
    return group, lock(group)


def commit(group: Stage, token: int, offset: int) -> errors.SemelError | None:
    """An ordinary commit."""
    one = control_pb2.QueueCommit(queue=ref(), token=token, offset=offset)
    record = control_pb2.CommitOffsets(group="g", commits=[one])
    (result,) = group.apply(control(commit_offsets=record))
    return result.outcomes[0].error  # type: ignore[union-attr]


# --- grants and refusals ------------------------------------------------------------------------


def test_staged_progress_is_the_groups_by_the_entry_that_gives_offsets() -> None:
    group, token = ready()
    head = staged(A, 0, 3)
    group.stage(head)
    assert stage_commits(group, token, 10) is None
    assert progress(group) == -1
    assert group.pin(winner(A, {KEY: [head]}, commits=1)) == ()
    assert progress(group) == -1
    frames = len(group.frames)
    published = group.publish()
    assert len(group.frames) == frames + 1
    assert isinstance(published, Published)
    assert published.parts == ((KEY, 20, 3),)
    assert published.progress == (("g", KEY, token, 10),)
    assert progress(group) == 10


def test_a_stager_may_have_commits_only() -> None:
    group, token = ready()
    assert group.open(B, keys=()) == ()
    assert stage_commits(group, token, 7, stager=B) is None
    assert group.pin(winner(B, {}, commits=1)) == ()
    published = group.publish()
    assert isinstance(published, Published)
    assert (published.parts, progress(group)) == ((), 7)
    staging = group.state.transactions.staging
    assert (staging.places.cost, staging.pins) == (0, {})


def test_each_commit_is_refused_for_what_an_ordinary_one_is() -> None:
    group, token = ready()
    assert isinstance(stage_commits(group, token + 1, 5), errors.LockLost)
    assert isinstance(stage_commits(group, token, 21), errors.OffsetOutOfRange)
    assert isinstance(stage_commits(group, token, -1), errors.InvalidRequest)
    assert isinstance(stage_commits(group, token, -1, metadata=b"x"), errors.InvalidRequest)
    unknown = QueueKey(TopicId(9), QueueId(9))
    assert isinstance(stage_commits(group, token, 5, key=unknown), errors.UnknownQueue)
    assert isinstance(stage_commits(group, token, 5, name="other"), errors.LockLost)
    commit(group, token, 10)
    assert isinstance(stage_commits(group, token, 9), errors.InvalidRequest)
    assert stage_commits(group, token, 9, may_lower=True) is None
    assert group.pin(winner(A, {}, commits=1)) == ()
    group.publish()
    assert progress(group) == 9


def test_what_is_granted_is_staged_beside_what_is_refused() -> None:
    group, token = ready()
    result = group.step(stage_commits=commits((token, 4), (token + 1, 5)))
    assert [type(each.error) for each in result.outcomes] == [type(None), errors.LockLost]
    assert group.pin(winner(A, {}, commits=1)) == ()


def test_nothing_is_staged_without_an_open_stager() -> None:
    group, token = ready()
    aborted = errors.TransactionAborted
    assert isinstance(stage_commits(group, token, 5, stager=B), aborted)
    assert isinstance(stage_commits(group, token, 5, epoch=1), aborted)
    assert stage_commits(group, token, 5) is None
    group.pin(winner(A, {}, commits=1))
    assert isinstance(stage_commits(group, token, 6), aborted), "it is pinned"
    group.publish()
    assert isinstance(stage_commits(group, token, 6), aborted)
    assert progress(group) == 5


def test_a_lower_session_stages_nothing_any_more() -> None:
    group, token = ready()
    assert group.open(session=3, keys=()) == ()
    assert isinstance(group.open(session=2, keys=()), errors.ProducerFenced)
    assert isinstance(stage_commits(group, token, 5, session=2), errors.ProducerFenced)
    assert stage_commits(group, token, 5, session=3) is None
    assert stage_commits(group, token, 6) is None, "who names no session is not compared"


# --- which one counts ---------------------------------------------------------------------------


def test_the_last_commit_of_a_group_and_queue_counts() -> None:
    group, token = ready()
    other = lock(group, key=OTHER)
    for offset in (12, 8):
        assert stage_commits(group, token, offset) is None
    assert stage_commits(group, other, 3, key=OTHER) is None
    assert isinstance(group.pin(winner(A, {}, commits=3)), errors.TransactionAborted)
    assert group.pin(winner(A, {}, commits=2)) == ()
    group.publish()
    assert (progress(group), progress(group, key=OTHER)) == (8, 3)


def test_a_copy_that_comes_late_does_not_replace_a_numbered_commit() -> None:
    group, token = ready()
    assert stage_commits(group, token, 12, metadata=b"b", metadata_version=2) is None
    assert stage_commits(group, token, 8, metadata=b"a", metadata_version=1) is None
    group.pin(winner(A, {}, commits=1))
    group.publish()
    found = group.state.groups.lookup("g", KEY)
    assert found is not None
    assert (found.committed_offset, found.metadata, found.metadata_version) == (12, b"b", 2)


def test_the_next_holder_of_the_lock_stages_over_what_the_last_one_has() -> None:
    group, token = ready()
    assert stage_commits(group, token, 12, metadata_version=9) is None
    newer = lock(group)
    assert isinstance(stage_commits(group, token, 13), errors.LockLost)
    assert stage_commits(group, newer, 5, metadata_version=1) is None
    group.pin(winner(A, {}, commits=1))
    group.publish()
    assert progress(group) == 5


def test_progress_is_stored_whoever_holds_the_lock_by_then_and_never_lowered() -> None:
    for meanwhile, end in ((5, 10), (15, 15)):
        group, token = ready()
        assert stage_commits(group, token, 10, metadata=b"mine", metadata_version=1) is None
        newer = lock(group)
        assert commit(group, newer, meanwhile) is None
        group.pin(winner(A, {}, commits=1))
        published = group.publish()
        assert progress(group) == end
        assert bool(published.progress) is (end == 10)
        found = group.state.groups.lookup("g", KEY)
        assert found is not None
        assert found.metadata == (b"mine" if end == 10 else b"")
        assert commit(group, newer, 16) is None, "the lock is left alone"


def test_whoever_relies_on_the_committed_offset_ends_what_is_staged_beside_it() -> None:
    group, token = ready()
    group.open(B)
    assert stage_commits(group, token, 10) is None
    assert stage_commits(group, token, 12, stager=B) is None
    assert stage_commits(group, lock(group, "h"), 7, name="h", stager=B) is None
    newer = lock(group, drop_staged=True)
    assert isinstance(group.pin(winner(A, {}, commits=1)), errors.TransactionAborted)
    assert isinstance(group.pin(winner(B, {}, commits=2)), errors.TransactionAborted)
    assert group.pin(winner(B, {}, commits=1)) == (), "the other group's is left"
    group.publish()
    assert (progress(group), progress(group, "h")) == (-1, 7)
    assert isinstance(stage_commits(group, token, 10, stager=B), errors.SemelError)
    assert newer > token


def test_nobody_relies_on_a_committed_offset_that_is_about_to_change() -> None:
    group, token = ready()
    assert stage_commits(group, token, 10) is None
    group.pin(winner(A, {}, commits=1))
    refused = acquire(group, drop_staged=True)
    assert isinstance(refused.error, errors.Throttled)
    assert acquire(group).token == token + 1, "others may have it"
    group.publish()
    granted = acquire(group, drop_staged=True)
    assert (granted.token, granted.committed_offset) == (token + 2, 10)


def test_below_its_level_nothing_staged_is_dropped() -> None:
    group = Stage(level=STAGED_COMMITS_LEVEL - 1)
    group.fence()
    with pytest.raises(StateDiverged):
        lock(group, drop_staged=True)


def test_metadata_of_a_later_holder_stays() -> None:
    group, token = ready()
    stage_commits(group, token, 10, metadata=b"mine", metadata_version=5)
    newer = lock(group)
    one = control_pb2.QueueCommit(
        queue=ref(), token=newer, offset=1, metadata=b"theirs", metadata_version=1
    )
    group.apply(control(commit_offsets=control_pb2.CommitOffsets(group="g", commits=[one])))
    group.pin(winner(A, {}, commits=1))
    group.publish()
    found = group.state.groups.lookup("g", KEY)
    assert found is not None
    assert (found.committed_offset, found.metadata, found.metadata_version) == (10, b"theirs", 1)


def test_of_two_winners_the_second_is_stored_last() -> None:
    group, token = ready()
    group.open(B)
    stage_commits(group, token, 10)
    stage_commits(group, token, 4, stager=B, may_lower=True)
    assert group.pin(winner(A, {}, commits=1), winner(B, {}, commits=1)) == ()
    group.publish()
    assert progress(group) == 4


# --- ends ---------------------------------------------------------------------------------------


def test_progress_that_is_not_published_ends_with_its_stager() -> None:
    drop = transaction_records_pb2.DropStagers(stager_ids=[A])
    pin = transaction_records_pb2.DropPin(transaction_id="t", attempt=1)
    for ends in ({"drop_stagers": drop}, {"drop_pin": pin}, {}):
        group, token = ready()
        stage_commits(group, token, 10)
        assert group.state.transactions.staging.places.cost
        if "drop_pin" in ends:
            assert group.pin(winner(A, {}, commits=1)) == ()
        elif not ends:  # another one wins
            group.open(B)
            assert group.pin(winner(B, {})) == ()
        if ends:
            group.step(**ends)
        assert group.state.transactions.staging.places.cost == 0
        assert progress(group) == -1


def test_a_commit_that_is_lost_aborts_the_transaction() -> None:
    group, token = ready()
    assert isinstance(group.pin(winner(A, {}, commits=1)), errors.TransactionAborted)
    stage_commits(group, token, 10)
    assert isinstance(group.pin(winner(A, {})), errors.TransactionAborted)
    assert group.pin(winner(A, {}, commits=1)) == ()


def test_staging_a_commit_prolongs_the_stagers_life() -> None:
    group, token = ready()
    group.now_us += HOUR_MS * 900
    stage_commits(group, token, 10)
    group.now_us += HOUR_MS * 900
    group.commit()
    assert group.state.transactions.staging.expired(group.now_us, 10) == []
    group.now_us += HOUR_MS * 200
    assert group.state.transactions.staging.expired(group.now_us, 10) == [A]


def test_a_deleted_consumer_group_does_not_come_back() -> None:
    delete = control(delete_group=control_pb2.DeleteGroup(group="g"))
    group, token = ready()
    stage_commits(group, token, 10)
    group.pin(winner(A, {}, commits=1))
    group.apply(delete)
    lock(group)  # it was made again
    published = group.publish()
    assert (published.progress, progress(group)) == ((), -1)
    assert group.state.transactions.staging.places.cost == 0

    group, token = ready()
    stage_commits(group, token, 10)
    group.apply(delete)
    assert isinstance(group.pin(winner(A, {}, commits=1)), errors.TransactionAborted)


def test_progress_that_is_deleted_in_one_topic_does_not_come_back() -> None:
    group, token = ready()
    stage_commits(group, lock(group, key=OTHER), 3, key=OTHER)
    stage_commits(group, token, 10)
    group.pin(winner(A, {}, commits=2))
    delete = control_pb2.DeleteGroup(group="g", queues=[ref()])
    group.apply(control(delete_group=delete))
    group.publish()
    assert (progress(group), progress(group, key=OTHER)) == (None, 3)


def test_progress_of_a_deleted_queue_goes_with_it() -> None:
    group, token = ready()
    stage_commits(group, lock(group, key=OTHER), 3, key=OTHER)
    stage_commits(group, token, 10)
    group.pin(winner(A, {}, commits=2))
    delete = control_pb2.DeleteQueue(queue=ref())
    group.admission.queues.admit_delete_queue(delete)
    group.entry.append(control(delete_queue=delete))
    group.publish()
    assert (progress(group), progress(group, key=OTHER)) == (None, 3)


def test_a_queue_may_be_split_between_staging_and_the_pin_and_not_after_it() -> None:
    children = [
        control_pb2.ChildQueue(queue_id=5, slot_start=0, slot_end=32_768),
        control_pb2.ChildQueue(queue_id=6, slot_start=32_768, slot_end=65_536),
    ]
    split = control_pb2.SplitQueue(queue=ref(), children=children)
    group, token = ready()
    stage_commits(group, token, 20)
    assert isinstance(group.admission.queues.admit_split(split), Accepted)
    group.entry.append(control(split_queue=split))
    assert group.pin(winner(A, {}, commits=1)) == ()
    group.publish()
    assert progress(group) == 20

    group, token = ready()
    stage_commits(group, token, 20)
    group.pin(winner(A, {}, commits=1))
    refused = group.admission.queues.admit_split(split)
    assert isinstance(refused, Refused)
    assert isinstance(refused.error, errors.Throttled)


class Moving(Stage, Home):
    """A group that takes part in transactions and moves."""

    def __init__(self, number: int, **fields: object) -> None:
        Home.__init__(self, number, at_level=LEVEL_MAX, **fields)  # type: ignore[arg-type]

    step = Stage.step  # type: ignore[assignment]


def moving() -> tuple[Moving, Home, int]:
    """The group that has the queue, another one, and the token of what is staged."""
    source, target = Moving(1, queues=(KEY,)), Home(2, at_level=LEVEL_MAX)
    source.fence()
    source.produce(header(-1, last=19))
    source.open()
    token = lock(source)
    assert stage_commits(source, token, 10) is None
    begin(source, target, 1)
    return source, target, token


def test_a_queue_does_not_move_while_progress_on_it_is_pinned() -> None:
    source, _, _ = moving()
    source.pin(winner(A, {}, commits=1))
    assert isinstance(Home.step(source, "SEAL", 1, 2), errors.Throttled)
    source.publish()
    assert progress(source) == 10
    assert Home.step(source, "SEAL", 1, 2) is None


def test_a_move_before_the_pin_aborts_the_commit() -> None:
    source, target, token = moving()
    assert Home.step(source, "SEAL", 1, 2) is None
    refused = source.pin(winner(A, {}, commits=1))
    assert isinstance(refused, errors.TransactionAborted)
    assert "moved" in refused.message
    assert isinstance(stage_commits(source, token, 11), errors.LockLost)
    bring_slice(source, target, 1)
    target.step("ACTIVATE", 1, 1)
    Home.step(source, "FORWARD", 1, 2)
    assert isinstance(source.pin(winner(A, {}, commits=1)), errors.TransactionAborted)
    assert isinstance(stage_commits(source, token, 11), errors.LockLost)
    assert progress(target) == -1
    assert source.state.transactions.staging.places.cost == 0


# --- limits, levels, bytes, clocks --------------------------------------------------------------


def test_what_is_staged_is_bounded_with_what_is_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction_admission, "COMMITS_BYTES_MAX", 1_000)
    group, token = ready()
    step = transaction_records_pb2.TransactionRecord(
        stage_commits=commits((token, 1), metadata=b"x" * 500)
    )
    assert isinstance(group.admission.admit_transaction(step), Accepted)
    refused = group.admission.admit_transaction(step)
    assert isinstance(refused, Refused)
    assert isinstance(refused.error, errors.Throttled)
    group.entry.append(control(transaction=step))
    group.commit()
    assert isinstance(group.admission.admit_transaction(step), Refused)
    group.step(drop_stagers=transaction_records_pb2.DropStagers(stager_ids=[A]))
    assert isinstance(group.admission.admit_transaction(step), Accepted)


def test_below_its_level_nothing_is_staged() -> None:
    group, token = ready(STAGED_COMMITS_LEVEL - 1)
    for refused in (stage_commits(group, token, 5), group.open(B, keys=())):
        assert isinstance(refused, errors.UnsupportedVersion)
        assert refused.level == STAGED_COMMITS_LEVEL
    step = transaction_records_pb2.TransactionRecord(stage_commits=commits((token, 5)))
    with pytest.raises(StateDiverged, match="level 10"):
        group.apply(control(transaction=step))


def test_a_checkpoint_keeps_what_is_staged_and_pinned() -> None:
    group, token = ready()
    stage_commits(group, token, 10, metadata=b"m", metadata_version=3, may_lower=True)
    group.open(B, keys=(), session=7)
    stage_commits(group, token, 2, name="g", stager=B)
    group.pin(winner(A, {}, commits=1))
    group.open(B, keys=(OTHER,), session=4)
    data = b"".join(group.state.to_parts())
    copy = State.from_bytes(data)
    assert b"".join(copy.to_parts()) == data == b"".join(group.replayed().to_parts())
    staging, copied = group.state.transactions.staging, copy.transactions.staging
    assert copied.stagers == staging.stagers
    assert copied.places.cost == staging.places.cost > 0
    group.state = copy
    group.new_master()
    group.publish()
    assert progress(group) == 10


def test_the_level_of_a_log_determines_the_bytes_of_its_state() -> None:
    """What was opened below the level is the same for who followed and who took a checkpoint."""
    group, _ = ready(STAGED_COMMITS_LEVEL - 1)
    copy = State.from_bytes(b"".join(group.state.to_parts()))
    group.raise_level(STAGED_COMMITS_LEVEL)
    copy.apply_frame(group.frames[-1])
    assert copy.digest() == group.state.digest()


def test_a_staged_commit_shows_the_clock_that_its_holder_goes_on() -> None:
    group, token = ready()
    clock = LockClock()
    clock.on_granted("g", KEY, token, lock_ms=500, session_ms=5_000, now_ms=0)
    clock.on_delivered("g", KEY, token, 10, now_ms=0)
    result = group.step(stage_commits=commits((token, 10)))
    clock.on_applied([result], now_ms=100)
    assert clock.expired(1_000) == []
    clock.on_delivered("g", KEY, token, 20, now_ms=1_000)
    group.pin(winner(A, {}, commits=1))
    clock.on_applied([group.publish()], now_ms=1_100)
    assert clock.expired(1_550) == []
    assert clock.expired(1_650) == [("g", KEY, token)]
