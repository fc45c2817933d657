"""Moves between groups: nothing is stored twice, lost or out of order, whatever comes again."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from semel.broker.state import (
    Accepted,
    BatchVerifier,
    Duplicate,
    DuplicateInFlight,
    LockGranted,
    LockRefused,
    MoveApplied,
    Refused,
    State,
    StateDiverged,
    make_slice,
    read_slice,
)
from semel.protos import errors
from semel.protos.frames import RecordKind, build_frame
from semel.protos.ids import ProducerId, QueueId, QueueKey
from semel.protos.levels import MOVE_LEVEL
from semel.protos.v1 import control_pb2
from tests.kit.state_log import KEY, Group, control, header, ref
from tests.unit.broker.state.moving import Home, begin, bring_slice, copy_some, move
from tests.unit.broker.state.staging import A, B, Stage, staged, winner

ONE = ProducerId(1)


def error_of(decision: Any) -> errors.SemelError:
    assert isinstance(decision, Refused), decision
    return decision.error


def acquire(group: Group, name: str = "g") -> Any:
    lock = control_pb2.AcquireLock(
        group=name, queue=ref(), member_id="m", lock_ms=1000, session_ms=1000
    )
    (result,) = group.apply(control(acquire_lock=lock))
    return result


def commit(group: Group, token: int, offset: int) -> errors.SemelError | None:
    done = control_pb2.QueueCommit(queue=ref(), token=token, offset=offset)
    record = control_pb2.CommitOffsets(group="g", commits=[done])
    (result,) = group.apply(control(commit_offsets=record))
    return result.outcomes[0].error  # type: ignore[union-attr]


@pytest.fixture
def source() -> Home:
    """Producer 1 has stored 0 to 19 in two batches."""
    made = Home(1, queues=(KEY,))
    made.fence(name="loader")
    made.produce(header(-1, last=9, crc=1))
    made.produce(header(9, last=19, crc=2))
    return made


@pytest.fixture
def target() -> Home:
    return Home(2)


# --- what goes over -------------------------------------------------------------------------------


def test_hole_11_a_retry_finds_its_original_at_the_new_group(source: Home, target: Home) -> None:
    move(source, target)
    again = header(-1, last=9, crc=1)
    moved = error_of(source.produce(again))
    assert isinstance(moved, errors.QueueMoved)
    assert (moved.group_id, moved.topic_id, moved.queue_id) == (2, *KEY)
    assert target.produce(again) == Duplicate(0)  # type: ignore[arg-type]
    assert target.produce(header(9, last=19, crc=2)) == Duplicate(10)  # type: ignore[arg-type]
    assert isinstance(error_of(target.produce(header(9, last=19, crc=3))), errors.SequenceConflict)
    assert isinstance(target.produce(header(19, last=29, crc=4)), Accepted)
    assert target.state.queues[KEY].log_end_offset == 30


def test_hole_11_planted_a_slice_without_windows_is_noticed(source: Home, target: Home) -> None:
    begin(source, target, 1)
    source.step("SEAL", 1, 2)
    row = source.state.producers.change(KEY, 1)
    assert row is not None
    row.window = b""  # the bug
    assert bring_slice(source, target, 1) is None
    assert target.step("ACTIVATE", 1, 1) is None
    verifier = BatchVerifier(KEY, 0, 20)
    for extent in target.state.queues[KEY].extents_from(0, 1 << 30):
        verifier.feed(extent.base_offset, extent.count, target.stored(extent.base_offset))
    verifier.hold_against(target.tables.windows(KEY))
    report = verifier.finish()
    assert not report.ok
    assert "does not remember its newest batch" in report.problems[0]


def test_an_honest_copy_is_found_whole(source: Home, target: Home) -> None:
    move(source, target)
    target.fence(epoch=2, name="loader")
    target.produce(header(19, last=24, crc=5, epoch=2))
    verifier = BatchVerifier(KEY, 0, 25)
    for extent in target.state.queues[KEY].extents_from(0, 1 << 30):
        verifier.feed(extent.base_offset, extent.count, target.stored(extent.base_offset))
    verifier.hold_against(target.tables.windows(KEY))
    assert verifier.finish().ok
    assert target.tables.queue_digest(KEY) == target.state.producers.queue_digest(KEY)
    assert source.tables.queue_digest(KEY) == source.state.producers.queue_digest(KEY)
    assert not target.tables.problems
    assert not source.tables.problems


def test_rows_names_offsets_and_tokens_are_as_they_were(source: Home, target: Home) -> None:
    granted = acquire(source)
    assert commit(source, granted.token, 7) is None
    before = source.state.producers.lookup(KEY, ONE)
    move(source, target)
    assert target.state.producers.lookup(KEY, ONE) == before
    assert source.state.producers.lookup(KEY, ONE) is None
    assert list(source.state.groups.states()) == []
    again = acquire(target)
    assert isinstance(again, LockGranted)
    assert (again.token, again.committed_offset) == (granted.token + 1, 7)
    assert isinstance(commit(target, granted.token, 9), errors.LockLost)
    assert commit(target, again.token, 9) is None


def test_the_owner_loses_its_lock_with_the_seal(source: Home, target: Home) -> None:
    granted = acquire(source)
    begin(source, target, 1)
    source.step("SEAL", 1, 2)
    assert isinstance(commit(source, granted.token, 7), errors.LockLost)
    refused = acquire(source)
    assert isinstance(refused, LockRefused)
    assert isinstance(refused.error, errors.Throttled)
    bring_slice(source, target, 1)
    target.step("ACTIVATE", 1, 1)
    source.step("FORWARD", 1, 2)
    assert isinstance(commit(source, granted.token, 7), errors.LockLost)
    refused = acquire(source)
    assert isinstance(refused, LockRefused)
    assert isinstance(refused.error, errors.QueueMoved)


def test_what_the_queue_knows_of_expired_rows_goes_over(source: Home, target: Home) -> None:
    source.now_us += 3_600_000_000
    record = source.admission.propose_expiry(KEY, now_us=source.now_us, idle_ms=1000, rows_max=100)
    source.entry.append(control(expire_producers=record))
    source.commit()
    move(source, target)
    for batch in (header(-1, last=9, crc=1), header(19, last=29, crc=3)):
        assert isinstance(error_of(target.produce(batch)), errors.DedupStateExpired)
    assert isinstance(error_of(target.fence()), errors.DedupStateExpired)


def test_what_was_trimmed_meanwhile_is_left_behind(source: Home, target: Home) -> None:
    begin(source, target, 1)
    copy_some(source, target, 1)
    source.apply(control(trim=control_pb2.Trim(queue=ref(), log_start_offset=20)))
    source.produce(header(19, last=29, crc=3))
    source.apply(control(trim=control_pb2.Trim(queue=ref(), log_start_offset=24)))
    source.step("SEAL", 1, 2)
    assert bring_slice(source, target, 1) is None
    target.step("ACTIVATE", 1, 1)
    queue = target.state.queues[KEY]
    assert (queue.log_start_offset, queue.log_end_offset, len(queue.extents)) == (24, 30, 1)
    assert target.produce(header(-1, last=9, crc=1)) == Duplicate(0)  # type: ignore[arg-type]


def test_an_empty_queue_that_was_trimmed_goes_over(source: Home, target: Home) -> None:
    source.apply(control(trim=control_pb2.Trim(queue=ref(), log_start_offset=20)))
    move(source, target)
    queue = target.state.queues[KEY]
    assert (queue.log_start_offset, queue.log_end_offset, queue.bytes) == (20, 20, 0)


def test_a_clock_that_is_behind_does_not_stop_the_new_group(source: Home, target: Home) -> None:
    source.now_us += 3_600_000_000
    source.produce(header(19, last=29, crc=3))
    move(source, target)
    late = target.admission.append_time_us(KEY, target.now_us)
    assert late == source.now_us
    assert isinstance(target.produce(header(29, last=30, crc=4), commit=False), Accepted)
    target.entry.clear()
    target.new_master()
    target.now_us = late
    assert isinstance(target.produce(header(29, last=30, crc=4)), Accepted)


@pytest.mark.parametrize("metadata", [b"", b"copies"])
def test_metadata_of_consumer_groups_goes_along(
    source: Home, target: Home, metadata: bytes
) -> None:
    for home in (source, target):
        home.raise_level(6)
    acquire = control_pb2.AcquireLock(group="g", queue=ref(), member_id="m", session_ms=100)
    source.apply(control(acquire_lock=acquire))
    one = control_pb2.QueueCommit(
        queue=ref(), token=1, offset=3, metadata=metadata, metadata_version=7
    )
    commits = control_pb2.CommitOffsets(group="g", commits=[one])
    source.apply(control(commit_offsets=commits))
    data = make_slice(
        source.state.queues[KEY], source.state.producers, source.state.groups, source.state.delays
    )
    assert control_pb2.QueueSlice.FromString(data).version == (6 if metadata else 4)
    found = read_slice(data).groups.lookup("g", KEY)
    assert found is not None
    assert (found.metadata, found.committed_offset) == (metadata, 3)
    move(source, target, 1)
    held = target.state.groups.lookup("g", KEY)
    assert held is not None
    assert (held.metadata, held.token) == (metadata, 1)


# --- a seal, and what may still be lost -----------------------------------------------------------


def test_nothing_final_is_said_while_the_seal_may_be_lost(source: Home) -> None:
    assert isinstance(source.produce(header(19, last=29, crc=3), commit=False), Accepted)
    record = control_pb2.MoveQueue(queue=ref(), job=1, group_id=2, step=control_pb2.MOVE_STEP_SEAL)
    assert isinstance(source.admission.queues.admit_move(record), Accepted)
    assert isinstance(source.produce(header(19, last=29, crc=3), commit=False), DuplicateInFlight)
    assert isinstance(error_of(source.produce(header(29, crc=4))), errors.Throttled)
    assert isinstance(error_of(source.fence(session=1)), errors.Throttled)
    assert isinstance(
        error_of(source.admission.admit_delete_group(control_pb2.DeleteGroup(group="g"))),
        errors.Throttled,
    )
    source.new_master()  # batch and seal are lost
    assert isinstance(source.produce(header(19, last=29, crc=5)), Accepted)


def test_a_sealed_queue_answers_retries_and_takes_nothing_new(source: Home, target: Home) -> None:
    begin(source, target, 1)
    assert source.step("SEAL", 1, 2) is None
    before = make_slice(
        source.state.queues[KEY], source.state.producers, source.state.groups, source.state.delays
    )
    assert source.produce(header(-1, last=9, crc=1)) == Duplicate(0)  # type: ignore[arg-type]
    for refused in (
        source.produce(header(19, last=29, crc=3)),
        source.produce(header(29, last=39, crc=4)),
        source.fence(epoch=2),
        source.admission.queues.admit_trim(control_pb2.Trim(queue=ref(), log_start_offset=5)),
        source.admission.queues.admit_split(control_pb2.SplitQueue(queue=ref())),
        source.admission.admit_delete_group(control_pb2.DeleteGroup(group="g")),
    ):
        assert isinstance(error_of(refused), errors.Throttled)
    assert source.admission.propose_expiry(KEY, now_us=1 << 62, idle_ms=0, rows_max=0) is None
    reset = control_pb2.ResetOffset(group="g", queue=ref(), offset=3)
    (result,) = source.apply(control(reset_offset=reset))
    assert isinstance(result.error, errors.Throttled)
    source.restart()
    state = source.state
    assert make_slice(state.queues[KEY], state.producers, state.groups, state.delays) == before
    assert isinstance(error_of(source.produce(header(19, last=29, crc=3))), errors.Throttled)


def test_a_batch_in_the_log_behind_a_seal_halts_the_node() -> None:
    forged = Home(9, queues=(KEY,))
    forged.fence()
    assert isinstance(forged.produce(header(-1, last=9), commit=False), Accepted)
    forged.state.queues[KEY].frozen = True
    with pytest.raises(StateDiverged):
        forged.commit()


def create_of() -> control_pb2.CreateQueue:
    return control_pb2.CreateQueue(queue=ref(), topic="orders", slot_end=65_536)


def in_flight(group: Home, name: str, job: int = 1) -> None:
    """The step is accepted and not applied."""
    record = control_pb2.MoveQueue(
        queue=ref(), job=job, group_id=3 - group.number, step=f"MOVE_STEP_{name}"
    )
    assert isinstance(group.admission.queues.admit_move(record), Accepted)
    group.entry.append(control(move_queue=record))


def test_a_late_create_does_not_make_a_queue_again_that_moves_away(source: Home) -> None:
    """It would live in two groups, and what was sent to the empty one be lost to readers."""
    queues, create = source.admission.queues, create_of()
    assert isinstance(queues.admit_create_queue(create), Accepted)
    source.entry.append(control(create_queue=create))
    for name in ("SEAL", "FORWARD"):
        in_flight(source, name)
        assert isinstance(error_of(queues.admit_create_queue(create)), errors.Throttled)
        source.commit()
    assert isinstance(error_of(queues.admit_create_queue(create)), errors.QueueMoved)
    assert KEY not in source.state.queues
    source.apply(control(create_queue=create))  # in a log of an older version: no node halts
    assert KEY in source.state.queues


def test_no_queue_is_created_where_a_move_of_it_is_being_given_up(target: Home) -> None:
    """The ABORT says that the queue lives elsewhere, though its BEGIN never came."""
    in_flight(target, "ABORT")
    refused = error_of(target.admission.queues.admit_create_queue(create_of()))
    assert isinstance(refused, errors.Throttled)
    target.commit()
    refused = error_of(target.admission.queues.admit_create_queue(create_of()))
    assert isinstance(refused, errors.QueueMoved)


def test_a_sealed_queue_keeps_its_settings(source: Home, target: Home) -> None:
    """They are in the slice, which another master may make again."""
    queues = source.admission.queues
    alter = control_pb2.AlterTopic(topic_id=KEY.topic_id, settings={"retention_ms": 5})
    other = control_pb2.AlterTopic(topic_id=KEY.topic_id + 1, settings={"retention_ms": 5})
    assert isinstance(queues.admit_alter_topic(alter), Accepted)
    source.entry.append(control(alter_topic=alter))
    in_flight(source, "SEAL")
    assert isinstance(error_of(queues.admit_alter_topic(alter)), errors.Throttled)
    source.commit()
    assert isinstance(error_of(queues.admit_alter_topic(alter)), errors.Throttled)
    assert isinstance(queues.admit_alter_topic(other), Accepted)
    source.entry.append(control(alter_topic=other))
    source.commit()
    old = State.from_bytes(b"".join(source.state.to_parts()))
    frame, _ = build_frame(old.applied_index + 1, 1, source.now_us, [control(alter_topic=alter)])
    old.apply_frame(frame)  # in a log of an older version: no node halts
    assert old.queues[KEY].settings.retention_ms == 5
    assert source.step("UNSEAL", 1, target.number) is None
    assert isinstance(queues.admit_alter_topic(alter), Accepted)


def test_an_aborted_move_leaves_the_queue_as_it_was(source: Home, target: Home) -> None:
    begin(source, target, 1)
    source.step("SEAL", 1, 2)
    bring_slice(source, target, 1)
    assert source.step("UNSEAL", 1, 2) is None
    assert target.step("ABORT", 1, 1) is None
    assert isinstance(source.produce(header(19, last=29, crc=3)), Accepted)
    moved = error_of(target.produce(header(29, last=39, crc=4)))
    assert isinstance(moved, errors.QueueMoved)
    assert moved.group_id == 1
    assert not target.state.moves.incoming
    for step, group in (("ACTIVATE", target), ("FORWARD", source)):
        assert isinstance(group.step(step, 1, 3 - group.number), errors.InvalidRequest)
    move(source, target, job=2)
    assert target.produce(header(19, last=29, crc=3)) == Duplicate(20)  # type: ignore[arg-type]


def test_what_has_moved_is_not_given_up_by_the_same_move(source: Home, target: Home) -> None:
    """If it were, whoever believes that would have the target drop the only copy."""
    move(source, target)
    end = target.state.queues[KEY].log_end_offset
    assert isinstance(source.step("UNSEAL", 1, 2), errors.InvalidRequest)
    assert isinstance(target.step("ABORT", 1, 1), errors.InvalidRequest)
    assert KEY not in source.state.queues
    assert target.state.queues[KEY].log_end_offset == end > 0


@pytest.mark.parametrize("late", ["SEAL", "UNSEAL", "FORWARD", "ABORT", "ACTIVATE", "BEGIN"])
def test_a_step_of_a_job_that_is_over_changes_nothing(
    source: Home, target: Home, late: str
) -> None:
    """A controller that was replaced may have sent it long ago."""
    source.step("UNSEAL", 1, 2)  # given up before its SEAL and BEGIN came
    target.step("ABORT", 1, 1)
    move(source, target, job=2)
    for group in (source, target):
        places, queues = dict(group.state.moves.places), sorted(group.state.queues)
        group.step(late, 1, 3 - group.number)
        assert (group.state.moves.places, sorted(group.state.queues)) == (places, queues)
        assert not group.state.moves.incoming


@pytest.mark.parametrize("job", [1, 2])
def test_what_was_given_up_does_not_begin_again(source: Home, target: Home, job: int) -> None:
    """A late BEGIN would hold copies for ever."""
    begin(source, target, 2)
    assert target.step("ABORT", 2, 1) is None
    assert isinstance(begin(source, target, job), errors.InvalidRequest)
    assert not target.state.moves.incoming
    assert begin(source, target, 3) is None


def test_verify_is_not_misled_by_a_late_step(source: Home, target: Home) -> None:
    begin(source, target, 1)
    source.step("SEAL", 1, 2)
    source.step("UNSEAL", 1, 2)
    assert isinstance(source.step("FORWARD", 1, 2), errors.InvalidRequest)
    assert source.tables.queue_digest(KEY) == source.state.producers.queue_digest(KEY)
    assert source.tables.log_end_offset(KEY) == 20


def test_back_again(source: Home, target: Home) -> None:
    move(source, target, job=1)
    target.produce(header(19, last=29, crc=3))
    move(target, source, job=2)
    assert source.produce(header(19, last=29, crc=3)) == Duplicate(20)  # type: ignore[arg-type]
    assert isinstance(source.produce(header(29, last=39, crc=4)), Accepted)
    moved = error_of(target.produce(header(39, last=49, crc=5)))
    assert isinstance(moved, errors.QueueMoved)
    assert moved.group_id == 1


# --- transactions ---------------------------------------------------------------------------------


def seal(group: Stage) -> Any:
    record = control_pb2.MoveQueue(queue=ref(), job=1, group_id=2, step=control_pb2.MOVE_STEP_SEAL)
    decision = group.admission.queues.admit_move(record)
    if isinstance(decision, Accepted):
        group.entry.append(control(move_queue=record))
        (result,) = group.commit()
        assert isinstance(result, MoveApplied)
        return result.error
    return decision.error


def staging_group() -> Stage:
    group = Stage()
    group.apply(control(feature_level=control_pb2.FeatureLevel(level=MOVE_LEVEL)))
    group.open()
    assert group.stage(staged(A, 0, 5)) == "staged"
    return group


def test_what_is_being_committed_delays_the_seal() -> None:
    group = staging_group()
    group.pin(winner(A, {KEY: [staged(A, 0, 5)]}))
    assert isinstance(seal(group), errors.Throttled)
    forced = control_pb2.MoveQueue(queue=ref(), job=1, step=control_pb2.MOVE_STEP_SEAL)
    results: list[Any] = group.apply(control(move_queue=forced))
    (result,) = results
    assert isinstance(result.error, errors.Throttled), "apply checks it, too"
    group.publish()
    assert seal(group) is None
    assert group.contents() == [1] * 5


def test_what_is_only_staged_begins_again() -> None:
    group = staging_group()
    assert seal(group) is None
    assert isinstance(group.stage(staged(A, 5)), errors.Throttled)
    assert isinstance(group.open(B), errors.Throttled)
    pinned = group.pin(winner(A, {KEY: [staged(A, 0, 5)]}))
    assert isinstance(pinned, errors.TransactionAborted)
    assert "was moved" in pinned.message
    forward = control_pb2.MoveQueue(
        queue=ref(), job=1, group_id=2, step=control_pb2.MOVE_STEP_FORWARD
    )
    group.apply(control(move_queue=forward))
    assert group.state.transactions.staging.bytes == 0
    assert list(group.state.live_records(0, 1 << 40)) == []
    assert isinstance(group.stage(staged(A, 5)), errors.QueueMoved)
    assert isinstance(group.open(B), errors.QueueMoved)


# --- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize("harm", ["short", "long", "other", "garbage"])
def test_a_copy_that_is_not_whole_is_never_ingested(source: Home, target: Home, harm: str) -> None:
    begin(source, target, 1)
    if harm == "short":
        copy_some(source, target, 1)
        data = make_slice(
            source.state.queues[KEY],
            source.state.producers,
            source.state.groups,
            source.state.delays,
        )
        hidden = source.state.queues.pop(KEY)  # nothing more can be copied
        error = bring_slice(source, target, 1, data)
        source.state.queues[KEY] = hidden
    else:
        copy_some(source, target, 9)
        other = Home(3, queues=(KEY,))
        queue = (other if harm == "long" else source).state.queues[KEY]
        data = make_slice(queue, source.state.producers, source.state.groups, source.state.delays)
        if harm == "other":
            message = control_pb2.QueueSlice.FromString(data)
            message.extents += 1
            data = message.SerializeToString()
        error = bring_slice(source, target, 1, b"\xff" * 250 if harm == "garbage" else data)
    assert isinstance(error, errors.InvalidRequest)
    assert isinstance(target.step("ACTIVATE", 1, 1), errors.InvalidRequest)
    assert KEY not in target.state.queues


def test_a_copy_that_does_not_follow_is_not_taken(source: Home, target: Home) -> None:
    """A batch that was lost on the way must not be closed over, and none counts twice."""
    begin(source, target, 1)
    first, second = source.stored(0), source.stored(10)

    def copied(stored: bytes) -> Any:
        target.entry.append((RecordKind.COPY, [stored]))
        return target.commit()[-1].error  # type: ignore[union-attr]

    def end() -> int:
        return target.state.moves.incoming[KEY].queue.log_end_offset

    assert isinstance(copied(second), errors.InvalidRequest)
    assert end() == 0
    assert copied(first) is None
    assert isinstance(copied(first), errors.InvalidRequest)
    assert copied(second) is None
    assert end() == 20


@pytest.mark.parametrize("wrong", ["digest", "length"])
def test_a_slice_is_ingested_only_if_it_is_the_one_that_was_sent(
    source: Home, target: Home, wrong: str
) -> None:
    begin(source, target, 1)
    copy_some(source, target, 9)
    source.step("SEAL", 1, 2)
    data = make_slice(
        source.state.queues[KEY], source.state.producers, source.state.groups, source.state.delays
    )
    assert target.step("PART", 1, 1, offset=0, part=data) is None
    digest = hashlib.sha256(data).digest()
    length = len(data)
    bad = (length, bytes(32)) if wrong == "digest" else (length - 1, digest)
    refused = target.step("INGEST", 1, 1, offset=bad[0], digest=bad[1])
    assert isinstance(refused, errors.InvalidRequest)
    assert isinstance(target.step("ACTIVATE", 1, 1), errors.InvalidRequest)
    assert target.step("INGEST", 1, 1, offset=length, digest=digest) is None
    assert target.step("ACTIVATE", 1, 1) is None


def test_a_slice_is_read_as_it_was_written(source: Home) -> None:
    acquire(source)
    source.state.queues[KEY].frozen = True
    data = make_slice(
        source.state.queues[KEY], source.state.producers, source.state.groups, source.state.delays
    )
    found = read_slice(data)
    assert found.extents == 2
    assert found.producers.lookup(KEY, ONE) == source.state.producers.lookup(KEY, ONE)
    for cut in range(0, len(data), 7):
        with pytest.raises(errors.CorruptSegment):
            read_slice(data[:cut])


def test_a_family_stays_together_while_the_parent_holds_messages(
    source: Home, target: Home
) -> None:
    split = control_pb2.SplitQueue(
        queue=ref(),
        children=[
            control_pb2.ChildQueue(queue_id=1, slot_end=100),
            control_pb2.ChildQueue(queue_id=2, slot_start=100, slot_end=65_536),
        ],
    )
    assert isinstance(source.admission.queues.admit_split(split), Accepted)
    source.entry.append(control(split_queue=split))
    source.commit()
    parent = source.step("SEAL", 1, 2)
    assert isinstance(parent, errors.InvalidRequest)
    assert "was split" in parent.message
    child = QueueKey(KEY.topic_id, QueueId(1))
    seal = control_pb2.MoveQueue(
        queue=ref(child), job=1, group_id=2, step=control_pb2.MOVE_STEP_SEAL
    )
    (result,) = source.apply(control(move_queue=seal))
    assert isinstance(result.error, errors.InvalidRequest)
    assert "still holds 20 messages" in result.error.message
    source.apply(control(trim=control_pb2.Trim(queue=ref(), log_start_offset=20)))
    (result,) = source.apply(control(move_queue=seal))
    assert result.error is None


def test_nothing_moves_before_every_member_knows_how() -> None:
    group = Group()
    record = control_pb2.MoveQueue(queue=ref(), job=1, step=control_pb2.MOVE_STEP_SEAL)
    assert isinstance(
        error_of(group.admission.queues.admit_move(record)), errors.UnsupportedVersion
    )
    with pytest.raises(StateDiverged):
        group.apply(control(move_queue=record))


def test_a_queue_that_is_unknown_here_or_here_already(source: Home, target: Home) -> None:
    assert isinstance(target.step("SEAL", 1, 1), errors.UnknownQueue)
    assert isinstance(begin(target, source, 1), errors.InvalidRequest)
    assert isinstance(source.step("UNSPECIFIED", 1, 2), errors.InvalidRequest)


def test_a_deleted_queue_is_forgotten_wherever_it_is(source: Home, target: Home) -> None:
    move(source, target)
    for group in (source, target):
        group.apply(control(delete_queue=control_pb2.DeleteQueue(queue=ref())))
        assert not group.state.moves.places
        assert isinstance(error_of(group.produce(header(-1))), errors.UnknownQueue)
