"""A member of a consumer group: locks that are lost at any moment, commits, hand-overs.

Everything is driven step by step on a simulated group. What the two threads of the synchronous
client do to each other is played by what happens between two lines of the caller's.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from semel.client.consumer import consumer as consumer_module
from semel.client.message import Message, Rows
from semel.protos.errors import (
    CorruptSegment,
    InternalError,
    InvalidRequest,
    LockLost,
    OffsetOutOfRange,
    SemelError,
    Unavailable,
)
from tests.kit.simulated_group import Lock, Program, SimulatedGroup, key_of


def offsets(messages: list[Message]) -> list[int]:
    return [message.offset for message in messages]


@pytest.fixture
def group() -> SimulatedGroup:
    return SimulatedGroup()


async def joined(group: SimulatedGroup, *numbers: int, **options: Any) -> Program:
    program = Program(group, **options)
    await program.join(*(numbers or (0,)))
    return program


# --- locks that are lost


async def test_a_lock_that_somebody_else_found_lost_is_told_by_the_next_commit(
    group: SimulatedGroup,
) -> None:
    """A renewal, a fetch or a commit of something else hears of it first."""
    program = await joined(group)
    program.put(0, 10)
    assert len(await program.poll()) == 10
    group.take_away()
    program.core.locks.on_lost(key_of(0), program.queue().token)
    with pytest.raises(LockLost, match="offsets 0 to 10 uncommitted"):
        await program.commit()
    await program.commit()  # it was told
    await program.acquire()
    program.put(0, 4)
    assert offsets(await program.poll()) == [0, 1, 2, 3]
    await program.commit()
    assert group.locks[key_of(0)].committed == 4


async def test_messages_of_an_old_lock_are_not_committed_under_a_new_one(
    group: SimulatedGroup,
) -> None:
    program = await joined(group)
    program.put(0, 10)
    old = await program.poll()
    group.take_away()
    program.core.locks.on_lost(key_of(0), program.queue().token)
    await program.acquire()
    program.put(0, 3)
    new = await program.poll()
    with pytest.raises(LockLost):
        await program.commit(old[5])
    assert group.locks[key_of(0)].committed == -1
    await program.commit(new[1])
    assert group.locks[key_of(0)].committed == 2
    await program.commit()
    assert group.locks[key_of(0)].committed == 3


async def test_one_lost_queue_keeps_no_other_from_being_committed(group: SimulatedGroup) -> None:
    group.locks[key_of(1)] = Lock()
    program = await joined(group, 0, 1)
    program.put(0, 10, 0)
    program.put(0, 10, 1)
    assert len(await program.poll()) == 20
    group.take_away(0)  # the broker says so, and nobody has heard of it before
    with pytest.raises(LockLost):
        await program.commit()
    assert group.locks[key_of(1)].committed == 10
    assert group.locks[key_of(0)].committed == -1
    assert list(program.core.locks.held) == [key_of(1)]
    assert program.outstanding.spans() == []


@pytest.mark.parametrize("way", ["messages", "arrow", "drain"])
async def test_a_lock_that_is_lost_while_rows_are_given_out_is_not_overlooked(
    group: SimulatedGroup, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """The caller's thread has taken rows and not noted them; the I/O thread loses the lock."""
    program = await joined(group)
    program.put(0, 10)
    lock = program.queue()

    def preempted(method: Any) -> Any:
        def decode(rows: Rows, *given: Any) -> Any:
            found = method(rows, *given)
            program.core.locks.on_lost(lock.key, lock.token)
            return found

        return decode

    for name in ("messages", "arrow"):
        monkeypatch.setattr(Rows, name, preempted(getattr(Rows, name)))
    puller = program.core.puller
    if way == "messages":
        assert len(puller.messages(100)) == 10
    elif way == "arrow":
        assert puller.arrow() is not None
    else:
        assert list(puller.drain()) == [], "nothing was given out yet"
        assert program.outstanding.spans() == []
        return
    monkeypatch.undo()
    with pytest.raises(LockLost, match="0 to 10"):
        await program.commit()


@pytest.mark.parametrize("way", ["messages", "arrow"])
async def test_a_queue_that_comes_back_while_rows_are_given_out_gives_nothing_twice(
    group: SimulatedGroup, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """It is fetched again from where the caller was a moment ago."""
    program = await joined(group)
    program.put(0, 10)
    queue = program.queue()
    decode = getattr(Rows, way)

    def preempted(rows: Rows, *given: Any) -> Any:
        found = decode(rows, *given)
        monkeypatch.undo()
        queue.fetch_again()
        assert queue.offset == 0
        return found

    monkeypatch.setattr(Rows, way, preempted)
    puller = program.core.puller
    first = offsets(puller.messages(100)) if way == "messages" else offsets_of(puller.arrow())
    assert first == list(range(10))
    program.put(0, 15)
    again = offsets(puller.messages(100)) if way == "messages" else offsets_of(puller.arrow())
    assert again == list(range(10, 15))
    await program.commit()
    assert group.locks[key_of(0)].committed == 15


def offsets_of(batch: Any) -> list[int]:
    return [] if batch is None else batch.column("offset").to_pylist()


async def test_a_lock_that_is_acquired_again_while_a_commit_waits_is_another_lock(
    group: SimulatedGroup,
) -> None:
    """The answer to a commit of the old one says nothing about the new one."""
    program = await joined(group)
    program.put(0, 10)
    assert await program.poll()
    old = program.queue()
    group.held_back["Commit"] = asyncio.Event()
    commit = asyncio.create_task(program.commit())
    await asyncio.sleep(0)
    program.core.locks.on_lost(old.key, old.token)
    await program.acquire()
    new = program.queue()
    assert new is not old
    group.held_back["Commit"].set()
    await commit
    assert (old.done, new.done) == (10, 10), "it was granted with what the commit had stored"
    assert program.core.locks.holds(new)


async def test_a_queue_that_was_lost_while_it_was_prepared_is_not_read(
    group: SimulatedGroup,
) -> None:
    """Its beginning is found out late; by then there is another lock."""
    program = Program(group, auto_offset_reset="latest")
    group.held_back["Commit"] = asyncio.Event()
    await program.join(0)
    old = program.queue()
    program.core.locks.on_lost(old.key, old.token)
    group.held_back.pop("Commit").set()
    await program.rest()
    assert key_of(0) not in program.core.feed.queues
    await program.acquire()
    assert program.core.feed.queues[key_of(0)] is program.queue()


# --- commits


async def test_what_a_commit_left_open_is_committed_by_the_next_one(group: SimulatedGroup) -> None:
    program = await joined(group)
    program.put(0, 10)
    assert await program.poll()
    group.unavailable.add("Commit")
    with pytest.raises(Unavailable):
        await program.commit()
    group.unavailable.clear()
    group.locks[key_of(0)].committed = -1
    await program.commit()
    assert group.locks[key_of(0)].committed == 10


async def test_a_queue_whose_commit_was_refused_is_committed_by_the_next_one(
    group: SimulatedGroup,
) -> None:
    program = await joined(group)
    program.put(0, 10)
    assert await program.poll()
    group.refused = InvalidRequest("the offset does not exist")
    with pytest.raises(InvalidRequest):
        await program.commit()
    group.refused = None
    await program.commit()
    assert group.locks[key_of(0)].committed == 10


async def test_an_old_lock_that_is_forgotten_late_leaves_the_new_one(
    group: SimulatedGroup,
) -> None:
    program = await joined(group)
    old = program.queue()
    program.core.locks.on_lost(old.key, old.token)
    await program.acquire()
    program.core.locks.forget(old)
    program.core.locks.on_lost(old.key, old.token)
    assert program.core.feed.queues[key_of(0)] is program.queue()


async def test_a_cancelled_commit_is_made_up_for_by_the_next_one(group: SimulatedGroup) -> None:
    program = await joined(group)
    program.put(0, 10)
    assert await program.poll()
    group.held_back["Commit"] = asyncio.Event()
    commit = asyncio.create_task(program.commit())
    await asyncio.sleep(0)
    commit.cancel()
    with pytest.raises(asyncio.CancelledError):
        await commit
    group.held_back.clear()
    group.locks[key_of(0)].committed = -1  # it was never carried out
    await program.commit()
    assert group.locks[key_of(0)].committed == 10


async def test_a_commit_below_a_cancelled_one_that_was_carried_out_is_no_error(
    group: SimulatedGroup,
) -> None:
    """A program that gives a commit up does not know whether it was carried out."""
    program = await joined(group)
    program.put(0, 10)
    assert await program.poll()
    group.held_back["Commit"] = asyncio.Event()
    commit = asyncio.create_task(program.commit())
    for _ in range(5):
        await asyncio.sleep(0)
    commit.cancel()
    with pytest.raises(asyncio.CancelledError):
        await commit
    group.held_back.clear()
    assert group.locks[key_of(0)].committed == 10
    await program.core.seek("orders", 0, 0)
    program.put(0, 10)
    assert len(await program.poll(4)) == 4
    await program.commit()
    assert group.locks[key_of(0)].committed == 10
    assert program.outstanding.spans() == []


async def test_progress_that_nobody_asked_for_here_is_an_error(group: SimulatedGroup) -> None:
    program = await joined(group)
    program.put(0, 10)
    assert await program.poll(4)
    group.locks[key_of(0)].committed = 8
    with pytest.raises(InvalidRequest, match="needs a reset"):
        await program.commit()


async def test_only_what_was_given_out_is_committed(group: SimulatedGroup) -> None:
    program = await joined(group)
    program.put(0, 10)
    assert offsets(await program.poll(3)) == [0, 1, 2]
    await program.core.seek("orders", 0, 50)
    await program.commit()
    assert group.locks[key_of(0)].committed == 3, "nobody has seen what was sought over"
    program.put(50, 60)
    assert offsets(await program.poll(2)) == [50, 51]
    await program.commit()
    assert group.locks[key_of(0)].committed == 52


async def test_in_an_iteration_each_message_counts_when_it_is_taken(group: SimulatedGroup) -> None:
    program = await joined(group)
    program.put(0, 10)
    for message in program.core.puller.drain():
        if message.offset == 4:
            await program.commit()
            assert group.locks[key_of(0)].committed == 5
        if message.offset == 6:
            break
    await program.commit()
    assert group.locks[key_of(0)].committed == 7


# --- where a group begins, and what the controllers say


async def test_latest_is_committed_before_the_first_message_comes(group: SimulatedGroup) -> None:
    """A consumer that takes the queue over before the first commit would find a later end."""
    group.locks[key_of(0)].end = 42
    await joined(group, auto_offset_reset="latest")
    lock = group.locks[key_of(0)]
    assert (lock.committed, group.calls) == (42, ["AcquireLocks", "Commit"])
    lock.end = 50
    other = await joined(group, auto_offset_reset="latest")
    assert other.queue().offset == 42
    assert group.calls.count("Commit") == 1, "once"


@pytest.mark.parametrize("broken", ["unavailable", "lost"])
async def test_a_beginning_that_is_not_committed_is_no_beginning(
    group: SimulatedGroup, broken: str
) -> None:
    group.locks[key_of(0)].end = 42
    program = Program(group, auto_offset_reset="latest")
    if broken == "unavailable":
        group.unavailable.add("Commit")
    else:
        group.before_commit = group.take_away
    await program.join(0)
    assert program.core.feed.queues == {}
    assert program.core.locks.held == {}


async def test_an_older_assignment_is_not_believed(group: SimulatedGroup) -> None:
    """An answer of a controller that was replaced, or one that was long on its way."""
    group.locks[key_of(1)] = Lock()
    program = await joined(group, 0)
    membership = program.core._membership
    for generation, numbers, assigned in (
        (5, (0, 1), {0, 1}),
        (4, (0,), {0, 1}),
        (1, (), {0, 1}),
        (5, (1,), {1}),
        (6, (0,), {0}),
    ):
        group.assign(*numbers, generation=generation)
        program.core.locks.changed.clear()
        await membership.join()
        assert {key.queue_id for key in membership.assigned} == assigned
        assert membership.generation == max(generation, membership.generation)
        assert program.core.locks.changed.is_set() == (assigned == set(numbers))


# --- hand-overs


async def test_a_queue_that_goes_to_another_member_waits_for_what_is_out(
    group: SimulatedGroup,
) -> None:
    program = await joined(group)
    program.put(0, 10)
    assert len(await program.poll(4)) == 4
    locks = program.core.locks
    locks.membership.assigned = {}
    locks.changed.clear()
    locks.turn(100.0)
    await program.rest()
    assert await program.poll() == [], "what was fetched is not given out any more"
    assert "ReleaseLocks" not in group.calls
    await program.commit()
    assert locks.changed.is_set(), "it may go at once"
    locks.turn(100.1)
    await program.rest()
    assert group.calls[-2:] == ["Commit", "ReleaseLocks"]
    assert group.locks[key_of(0)].committed == 4
    assert locks.held == {}


@pytest.mark.parametrize("hand_over_ms", [5_000, 60_000])
async def test_a_queue_is_not_kept_from_another_member_for_ever(
    group: SimulatedGroup, hand_over_ms: int
) -> None:
    program = await joined(group, hand_over_ms=hand_over_ms)
    program.put(0, 10)
    old = await program.poll(4)
    locks = program.core.locks
    locks.membership.assigned = {}
    locks.turn(100.0)
    await program.rest()
    locks.turn(99.9 + hand_over_ms / 1000)
    await program.rest()
    assert "ReleaseLocks" not in group.calls
    locks.turn(100.0 + hand_over_ms / 1000)
    await program.rest()
    assert group.calls[-1] == "ReleaseLocks"
    with pytest.raises(LockLost):
        await program.commit(old[-1])
    assert group.locks[key_of(0)].committed == -1


async def test_a_queue_that_comes_back_goes_on_where_it_was(group: SimulatedGroup) -> None:
    """A rebalance in the middle of a poll, taken back by the next one."""
    program = await joined(group)
    program.put(0, 10)
    assert offsets(await program.poll(4)) == [0, 1, 2, 3]
    locks = program.core.locks
    assigned, locks.membership.assigned = locks.membership.assigned, {}
    locks.turn(100.0)
    await program.rest()
    queue = program.queue()
    assert (queue.paused, await program.poll()) == (True, [])
    locks.membership.assigned = assigned
    locks.turn(100.1)
    await program.rest()
    assert program.queue() is queue
    assert (queue.paused, queue.offset, queue.asked) == (False, 4, False)
    program.put(4, 12)
    assert offsets(await program.poll()) == list(range(4, 12))
    await program.commit()
    assert group.locks[key_of(0)].committed == 12


async def test_a_consumer_that_closes_releases_after_its_last_commit(
    group: SimulatedGroup,
) -> None:
    """Else the next owner would see less progress at the brokers than there is."""
    program = await joined(group)
    program.put(0, 10)
    assert await program.poll()
    core = program.core
    group.held_back["Commit"] = asyncio.Event()
    core.commits._behind[program.queue()] = 10
    core.commits.on_stored([])
    closing = asyncio.create_task(core.close())
    for _ in range(5):
        await asyncio.sleep(0)
    assert "ReleaseLocks" not in group.calls
    group.held_back["Commit"].set()
    await closing
    assert group.calls[-2:] == ["Commit", "ReleaseLocks"]
    assert group.locks[key_of(0)].owner == ""


async def test_a_background_task_that_dies_is_told(group: SimulatedGroup) -> None:
    """A consumer that stands still for ever says so."""
    program = await joined(group)

    async def broken() -> None:
        raise KeyError("a bug")

    program.core._spawn(broken(), "semel-consumer-locks")
    await program.rest()
    for _ in range(2):
        with pytest.raises(InternalError, match=r"semel-consumer-locks.*a bug"):
            await program.poll()


@pytest.mark.parametrize(
    ("error", "reset"),
    [
        (CorruptSegment("all copies are damaged"), "earliest"),
        (OffsetOutOfRange("trimmed", log_start_offset=9, log_end_offset=9), "error"),
    ],
)
async def test_a_queue_that_is_refused_is_asked_for_again_and_keeps_its_lock(
    group: SimulatedGroup, monkeypatch: pytest.MonkeyPatch, error: SemelError, reset: str
) -> None:
    """It would otherwise give nothing for ever, after one error that a caller may have logged."""
    monkeypatch.setattr(consumer_module, "REFUSED_PAUSE_S", 0.0)
    group.locks[key_of(0)].committed = 0
    program = await joined(group, auto_offset_reset=reset)
    program.put(0, 5)
    assert len(await program.poll()) == 5
    queue, feed = program.queue(), program.core.feed
    for _ in range(2):
        queue.asked = True  # as `_on_reply` leaves it
        program.core.on_queue_error(queue, error)
        with pytest.raises(type(error)):
            await program.poll()
        await asyncio.sleep(0.01)
        assert feed.wanted(queue.group_id) == [queue]
        assert queue.offset == 5
    await program.commit()
    assert group.locks[key_of(0)].committed == 5


async def test_a_queue_that_was_refused_is_asked_for_at_most_once(
    group: SimulatedGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller has sought elsewhere meanwhile, and that is asked for already."""
    monkeypatch.setattr(consumer_module, "REFUSED_PAUSE_S", 0.0)
    program = await joined(group)
    queue = program.queue()
    queue.asked = True
    program.core.on_queue_error(queue, CorruptSegment("all copies are damaged"))
    await program.core.seek("orders", 0, 50)
    assert program.core.feed.wanted(queue.group_id) == [queue]
    queue.asked = True
    await asyncio.sleep(0.01)
    assert queue.asked


async def test_a_commit_needs_no_database_and_a_transaction_needs_one(
    group: SimulatedGroup,
) -> None:
    program = await joined(group)
    with pytest.raises(InvalidRequest, match="offset_store"):
        _ = program.core.store
