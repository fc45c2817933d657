"""Consumer groups: tokens, commits, resets, and the master's clock over them."""

from __future__ import annotations

from typing import Any

import pytest

from semel.broker.state import (
    CommitOutcome,
    GroupDeleted,
    LockAge,
    LockClock,
    LockGranted,
    LockRefused,
    OffsetReset,
    Released,
    State,
    StateDiverged,
)
from semel.protos import errors
from semel.protos.ids import QueueId, QueueKey, TopicId
from semel.protos.levels import GROUP_QUEUES_LEVEL
from semel.protos.v1 import control_pb2
from tests.kit.state_log import KEY, Group, control, header, ref

UNKNOWN = QueueKey(TopicId(9), QueueId(9))


@pytest.fixture
def group() -> Group:
    made = Group()
    made.fence()
    made.produce(header(-1, last=99))
    return made


def acquire(
    group: Group, member: str = "a", *, name: str = "g", generation: int = 0, key: QueueKey = KEY
) -> Any:
    record = control_pb2.AcquireLock(
        group=name,
        queue=ref(key),
        member_id=member,
        generation=generation,
        lock_ms=500,
        session_ms=100,
    )
    return group.apply(control(acquire_lock=record))[0]


def token_of(result: object) -> int:
    assert isinstance(result, LockGranted), result
    return result.token


def refusal(result: object, kind: type[errors.SemelError]) -> Any:
    error = result if isinstance(result, errors.SemelError) else getattr(result, "error", None)
    assert isinstance(error, kind), result
    return error


def commit(group: Group, token: int, offset: int, *, key: QueueKey = KEY) -> CommitOutcome:
    record = control_pb2.CommitOffsets(
        group="g", commits=[control_pb2.QueueCommit(queue=ref(key), token=token, offset=offset)]
    )
    result: Any = group.apply(control(commit_offsets=record))[0]
    outcome = result.outcomes[0]
    assert isinstance(outcome, CommitOutcome)
    return outcome


def release(group: Group, token: int) -> bool:
    record = control_pb2.ReleaseLock(group="g", queue=ref(), token=token)
    result = group.apply(control(release_lock=record))[0]
    assert isinstance(result, Released)
    return result.released


def reset(group: Group, offset: int, *, key: QueueKey = KEY) -> OffsetReset:
    record = control_pb2.ResetOffset(group="g", queue=ref(key), offset=offset)
    result = group.apply(control(reset_offset=record))[0]
    assert isinstance(result, OffsetReset)
    return result


def leave(
    group: Group, token: int, metadata: bytes | None, *, version: int = 1, offset: int = -1
) -> CommitOutcome:
    """A commit with metadata, and by default with nothing else."""
    one = control_pb2.QueueCommit(
        queue=ref(), token=token, offset=offset, metadata=metadata, metadata_version=version
    )
    record = control_pb2.CommitOffsets(group="g", commits=[one])
    result: Any = group.apply(control(commit_offsets=record))[0]
    outcome = result.outcomes[0]
    assert isinstance(outcome, CommitOutcome)
    return outcome


def test_the_next_owner_is_told_what_was_left(group: Group) -> None:
    group.raise_level(6)
    acquire(group)
    assert leave(group, 1, b"copies").error is None
    assert commit(group, 1, 10).error is None  # a commit without metadata leaves it alone
    release(group, 1)
    granted = acquire(group, "b")
    assert (granted.committed_offset, granted.metadata) == (10, b"copies")
    assert leave(group, 2, b"", offset=20).error is None
    release(group, 2)
    granted = acquire(group, "c")
    assert (granted.committed_offset, granted.metadata) == (20, b"")


def test_metadata_alone_moves_no_progress(group: Group) -> None:
    group.raise_level(6)
    acquire(group)
    assert leave(group, 1, b"x").error is None
    release(group, 1)
    assert acquire(group).committed_offset == -1
    assert commit(group, 2, 7).error is None
    assert leave(group, 2, b"y").error is None
    assert group.state.groups.lookup("g", KEY).committed_offset == 7  # type: ignore[union-attr]


def test_metadata_that_comes_late_takes_nothing_back(group: Group) -> None:
    group.raise_level(6)
    acquire(group)
    leave(group, 1, b"newer", version=3)
    assert leave(group, 1, b"older", version=2, offset=5).error is None  # its offset counts
    held = group.state.groups.lookup("g", KEY)
    assert held is not None
    assert (held.metadata, held.committed_offset) == (b"newer", 5)
    refusal(leave(group, 0, b"stale", version=9), errors.LockLost)
    assert held.metadata == b"newer"
    release(group, 1)
    acquire(group, "b")
    leave(group, 2, b"mine", version=1)  # each owner counts anew
    assert held.metadata == b"mine"


def test_metadata_outlives_a_reset(group: Group) -> None:
    """Copies that are under way do not end with it, and somebody has to look for them."""
    group.raise_level(6)
    acquire(group)
    leave(group, 1, b"copies")
    reset(group, 3)
    assert acquire(group, "b").metadata == b"copies"


def test_before_its_level_metadata_is_not_kept(group: Group) -> None:
    """Nodes that do not know it must come to the same state."""
    group.raise_level(5)
    acquire(group)
    refusal(leave(group, 1, b"copies"), errors.OffsetOutOfRange)
    assert leave(group, 1, b"copies", offset=4).error is None
    held = group.state.groups.lookup("g", KEY)
    assert held is not None
    assert (held.metadata, held.committed_offset) == (b"", 4)


@pytest.mark.parametrize("level", [5, 6])
def test_metadata_is_in_the_states_bytes(group: Group, level: int) -> None:
    group.raise_level(level)
    acquire(group)
    leave(group, 1, b"copies", version=4)
    read = State.from_bytes(b"".join(group.state.to_parts()))
    assert read.digest() == group.state.digest()
    assert read.groups.lookup("g", KEY) == group.state.groups.lookup("g", KEY)
    assert read.digest() == group.replayed().digest()


def test_the_lock_clock_takes_metadata_for_no_progress(group: Group) -> None:
    group.raise_level(6)
    clock = LockClock()
    clock.on_applied([acquire(group)], 0)
    clock.on_delivered("g", KEY, 1, 10, 0)
    record = control_pb2.CommitOffsets(
        group="g",
        commits=[
            control_pb2.QueueCommit(
                queue=ref(), token=1, offset=-1, metadata=b"x", metadata_version=1
            )
        ],
    )
    clock.on_applied(group.apply(control(commit_offsets=record)), 450)
    clock.on_renewed("g", KEY, 1, 450)
    assert clock.expired(500) == [("g", KEY, 1)]


def test_one_owner_at_a_time(group: Group) -> None:
    granted = acquire(group)
    assert (granted.token, granted.committed_offset, granted.lock_ms) == (1, -1, 500)
    assert refusal(acquire(group, "b"), errors.QueueLocked).owner == "a"
    assert token_of(acquire(group, "b", name="other")) == 1
    assert release(group, 1)
    assert not release(group, 1)
    assert token_of(acquire(group, "b")) == 2


def test_the_same_member_again_fences_its_older_self(group: Group) -> None:
    acquire(group)
    assert token_of(acquire(group)) == 2
    assert refusal(commit(group, 1, 5), errors.LockLost).current_token == 2
    assert commit(group, 2, 5).error is None


def test_a_release_that_comes_late_leaves_the_next_lock_alone(group: Group) -> None:
    """The old owner's, or that of a session which was over: a third member would get the queue."""
    acquire(group)
    assert release(group, 1)
    assert token_of(acquire(group, "b")) == 2
    assert not release(group, 1)
    refusal(acquire(group, "c"), errors.QueueLocked)
    assert commit(group, 2, 10).error is None


def test_commit_needs_the_current_and_held_token(group: Group) -> None:
    refusal(commit(group, 0, 5), errors.LockLost)
    acquire(group)
    assert commit(group, 1, 10).error is None
    release(group, 1)
    assert refusal(commit(group, 1, 20), errors.LockLost).current_token == 0
    assert acquire(group, "b").committed_offset == 10


def test_commit_bounds(group: Group) -> None:
    acquire(group)
    assert commit(group, 1, 100).error is None
    error = refusal(commit(group, 1, 101), errors.OffsetOutOfRange)
    assert error.log_end_offset == 100
    refusal(commit(group, 1, -1), errors.OffsetOutOfRange)
    refusal(commit(group, 1, 99), errors.InvalidRequest)
    assert commit(group, 1, 100).error is None
    refusal(commit(group, 1, 0, key=UNKNOWN), errors.UnknownQueue)


def test_only_a_commit_that_says_so_goes_back_and_only_under_the_current_token(
    group: Group,
) -> None:
    def go_back(token: int, offset: int) -> CommitOutcome:
        one = control_pb2.QueueCommit(queue=ref(), token=token, offset=offset, may_lower=True)
        record = control_pb2.CommitOffsets(group="g", commits=[one])
        result: Any = group.apply(control(commit_offsets=record))[0]
        return result.outcomes[0]  # type: ignore[no-any-return]

    acquire(group)
    assert commit(group, 1, 100).error is None
    assert go_back(1, 40).error is None
    acquire(group, "a")
    refusal(go_back(1, 20), errors.LockLost)
    refusal(go_back(2, -1), errors.OffsetOutOfRange)
    assert acquire(group, "a").committed_offset == 40


def test_each_queue_of_a_commit_is_decided_alone(group: Group) -> None:
    acquire(group)
    record = control_pb2.CommitOffsets(
        group="g",
        commits=[
            control_pb2.QueueCommit(queue=ref(UNKNOWN), token=1, offset=5),
            control_pb2.QueueCommit(queue=ref(), token=1, offset=5),
        ],
    )
    result: Any = group.apply(control(commit_offsets=record))[0]
    assert [outcome.error is None for outcome in result.outcomes] == [False, True]


def test_generations_never_go_back(group: Group) -> None:
    acquire(group, generation=5)
    release(group, 1)
    refusal(acquire(group, "b", generation=4), errors.StaleGeneration)
    assert token_of(acquire(group, "b", generation=0)) == 2
    release(group, 2)
    refusal(acquire(group, "c", generation=4), errors.StaleGeneration)
    assert token_of(acquire(group, "c", generation=5)) == 3


def test_malformed_and_unknown(group: Group) -> None:
    refusal(acquire(group, key=UNKNOWN), errors.UnknownQueue)
    refusal(acquire(group, ""), errors.InvalidRequest)
    assert isinstance(acquire(group, key=UNKNOWN), LockRefused)
    refusal(reset(group, 5, key=UNKNOWN), errors.UnknownQueue)
    refusal(reset(group, 101), errors.OffsetOutOfRange)
    assert list(group.state.groups.states()) == []


def test_reset_fences_the_owner_and_may_go_back(group: Group) -> None:
    acquire(group)
    commit(group, 1, 50)
    assert reset(group, 7).token == 2
    refusal(commit(group, 1, 60), errors.LockLost)
    refusal(commit(group, 2, 60), errors.LockLost)
    granted = acquire(group, "b")
    assert (granted.token, granted.committed_offset) == (3, 7)


def test_a_re_created_group_does_not_take_old_tokens(group: Group) -> None:
    for _ in range(3):
        acquire(group)
    commit(group, 3, 50)
    group.apply(control(delete_group=control_pb2.DeleteGroup(group="g")))
    assert list(group.state.groups.states()) == []
    granted = acquire(group, "b")
    assert (granted.token, granted.committed_offset) == (4, -1)
    refusal(commit(group, 3, 60), errors.LockLost)


def test_a_group_is_forgotten_on_some_queues_alone() -> None:
    second = QueueKey(TopicId(7), QueueId(1))
    group = Group(queues=(KEY, second))
    group.raise_level(GROUP_QUEUES_LEVEL)
    for key in (KEY, second):
        acquire(group, key=key)
        commit(group, 1, 0, key=key)
    some = control_pb2.DeleteGroup(group="g", queues=[ref(second), ref(UNKNOWN)])
    (deleted,) = group.apply(control(delete_group=some))
    assert isinstance(deleted, GroupDeleted)
    assert deleted.queues == 1
    assert [key for _, key, _ in group.state.groups.held()] == [KEY]
    refusal(commit(group, 1, 0, key=second), errors.LockLost)
    granted = acquire(group, "b", key=second)
    assert (granted.token, granted.committed_offset) == (2, -1)
    every = control_pb2.DeleteGroup(group="g", queues=[ref(), ref(second)])
    group.apply(control(delete_group=every))
    assert list(group.state.groups.names()) == []


def test_below_its_level_a_group_is_forgotten_as_a_whole(group: Group) -> None:
    group.raise_level(GROUP_QUEUES_LEVEL - 1)
    acquire(group)
    with pytest.raises(StateDiverged, match="level"):
        group.apply(control(delete_group=control_pb2.DeleteGroup(group="g", queues=[ref()])))


def test_a_deleted_queue_leaves_no_lock(group: Group) -> None:
    acquire(group)
    group.apply(control(delete_queue=control_pb2.DeleteQueue(queue=ref())))
    assert list(group.state.groups.states()) == []
    refusal(commit(group, 1, 5), errors.UnknownQueue)


def test_groups_survive_a_snapshot(group: Group) -> None:
    acquire(group, generation=3)
    commit(group, 1, 50)
    acquire(group, "b", name="other")
    restored = State.from_bytes(b"".join(group.state.to_parts()))
    assert list(restored.groups.states()) == list(group.state.groups.states())
    assert len(list(restored.groups.held())) == 2
    assert next(restored.groups.states("other"))[0] == "other"


# --- the master's clock ---------------------------------------------------------------------


def clock() -> LockClock:
    made = LockClock()
    made.on_granted("g", KEY, 1, lock_ms=500, session_ms=100, now_ms=0)
    return made


def test_session_ends_without_a_sign_of_life() -> None:
    made = clock()
    assert made.expired(99) == []
    assert made.on_renewed("g", KEY, 1, 90)
    assert made.expired(189) == []
    assert made.expired(190) == [("g", KEY, 1)]
    assert made.expired(191) == []
    assert made.expired(1_190) == [("g", KEY, 1)]
    made.on_released("g", KEY, 1)
    assert made.expired(9_999) == []
    assert not made.on_renewed("g", KEY, 1, 9_999)


def renew(made: LockClock, until: int) -> None:
    for now in range(0, until, 50):
        made.on_renewed("g", KEY, 1, now)


def test_lock_ends_when_what_was_delivered_is_never_committed() -> None:
    made = clock()
    made.on_delivered("g", KEY, 1, 10, 20)
    made.on_delivered("g", KEY, 1, 20, 400)  # more deliveries give no more time
    renew(made, 550)
    assert made.expired(519) == []
    assert made.expired(520) == [("g", KEY, 1)]


def test_commits_give_new_time_and_nothing_delivered_needs_none() -> None:
    made = clock()
    renew(made, 2_000)
    assert made.expired(1_999) == []
    made.on_delivered("g", KEY, 1, 10, 1_990)
    made.on_committed("g", KEY, 1, 5, 2_000)
    renew(made, 2_550)
    assert made.expired(2_499) == []
    made.on_committed("g", KEY, 1, 10, 2_499)
    made.on_renewed("g", KEY, 1, 9_000)
    assert made.expired(9_050) == []


def test_a_commit_that_leaves_something_uncommitted_gives_new_time_once() -> None:
    made = clock()
    made.on_delivered("g", KEY, 1, 10, 0)
    made.on_committed("g", KEY, 1, 5, 10)
    renew(made, 560)
    assert made.expired(509) == []
    assert made.expired(510) == [("g", KEY, 1)]


def test_a_lock_whose_release_is_decided_is_not_renewed() -> None:
    made = clock()
    assert made.expired(100) == [("g", KEY, 1)]
    assert not made.on_renewed("g", KEY, 1, 101)
    assert made.expired(1_100) == [("g", KEY, 1)]


def test_a_gap_of_the_loop_does_not_revive_a_lock_whose_release_is_decided() -> None:
    made = clock()
    assert made.expired(100) == [("g", KEY, 1)]
    made.refresh_all(500)
    assert not made.on_renewed("g", KEY, 1, 501)
    assert made.expired(1_100) == [("g", KEY, 1)]


def test_a_gap_of_the_loop_gives_everybody_fresh_time() -> None:
    made = clock()
    made.on_delivered("g", KEY, 1, 10, 0)
    made.refresh_all(60_000)
    assert made.expired(60_099) == []
    assert made.expired(60_100) == [("g", KEY, 1)]


def test_stale_tokens_change_nothing() -> None:
    made = clock()
    made.on_granted("g", KEY, 2, lock_ms=500, session_ms=100, now_ms=50)
    assert not made.on_renewed("g", KEY, 1, 140)
    made.on_delivered("g", KEY, 1, 10, 140)
    made.on_committed("g", KEY, 1, 10, 140)
    made.on_released("g", KEY, 1)
    assert made.expired(150) == [("g", KEY, 2)]
    made.on_reset("g", KEY)
    assert made.expired(9_999) == []


def test_new_master_starts_with_full_time_for_all(group: Group) -> None:
    acquire(group)
    commit(group, 1, 99)
    made = LockClock()
    made.restore(group.state.groups.held(), group.state.queues, 1_000)
    assert made.expired(1_099) == []
    renew(made, 1_500)
    assert made.expired(1_499) == []
    assert made.expired(1_500) == [("g", KEY, 1)]
    commit(group, 1, 100)
    made.restore(group.state.groups.held(), group.state.queues, 1_000)
    made.on_renewed("g", KEY, 1, 9_000)
    assert made.expired(9_099) == []


def test_a_lock_tells_its_age_and_for_how_long_nothing_was_committed() -> None:
    made = clock()
    assert made.age("g", KEY, 1, 70) == LockAge(70, False, 0, 500)
    made.on_delivered("g", KEY, 1, 10, 100)
    made.on_delivered("g", KEY, 1, 20, 200)
    assert made.age("g", KEY, 1, 300) == LockAge(300, False, 200, 500)
    made.on_committed("g", KEY, 1, 15, 310)
    assert made.age("g", KEY, 1, 330) == LockAge(330, False, 20, 500)
    made.on_committed("g", KEY, 1, 20, 340)
    assert made.age("g", KEY, 1, 350) == LockAge(350, False, 0, 500)
    made.on_granted("g", KEY, 2, lock_ms=500, session_ms=100, now_ms=360)
    assert made.age("g", KEY, 2, 370) == LockAge(10, False, 0, 500)
    assert made.age("g", KEY, 1, 370) is None
    made.on_released("g", KEY, 2)
    assert made.age("g", KEY, 2, 380) is None


def test_a_new_master_says_that_a_lock_is_older_than_it_knows(group: Group) -> None:
    acquire(group)
    made = LockClock()
    made.restore(group.state.groups.held(), group.state.queues, 1_000)
    age = made.age("g", KEY, 1, 1_250)
    assert age is not None
    assert (age.held_ms, age.older, age.uncommitted_ms) == (250, True, 250)
    made.refresh_all(1_300)
    assert made.age("g", KEY, 1, 1_300) == age._replace(held_ms=300, uncommitted_ms=0)
