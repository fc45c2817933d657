"""Commits that copy messages first: what is to be retried or rejected.

The relay that makes the copies is played by hand; everything else is the consumer's.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Generator, Iterable, Sequence
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from semel.client import Origin, RetryPolicy, SqlOffsets
from semel.client.core import letters
from semel.client.core.copies import read_record, record_bytes
from semel.client.dead_letters import relay, retrying
from semel.protos.errors import Closed, LockLost, ProducerFenced, TimedOut, Unavailable
from semel.protos.v1.copies_pb2 import CopyAttempt
from tests.kit.simulated_group import Program, SimulatedGroup, key_of


class Chunks(list[Any]):
    """What was sent, whether that is awaited or not."""

    def __await__(self) -> Generator[None, None, Chunks]:
        yield
        return self


class SentChunk:
    def __init__(self, topic: str) -> None:
        self.topic = topic


class HandRelay:
    """Copies are durable when the test says so."""

    made: HandRelay

    def __init__(self, *_: object, **__: object) -> None:
        self.sent: list[bytes] = []
        self.durable = asyncio.Event()
        self.waiting = 0
        self.failure: Exception | None = None
        HandRelay.made = self

    async def take_over(self, *_: object, **__: object) -> list[Any]:
        return []

    async def prepare(self, *_: object, **__: object) -> None:
        pass

    def send(self, copies: Sequence[Any], *_: object, **__: object) -> Chunks:
        self.sent += [copy.value for copy in copies]
        topics = dict.fromkeys(copy.topic for copy in copies)
        return Chunks(SentChunk(topic) for topic in topics)

    async def wait(self, chunks: Sequence[Any]) -> None:
        if chunks:
            self.waiting += 1
            await self.durable.wait()
            if self.failure is not None:
                raise self.failure

    def attempt(self, *_: object, **__: object) -> None:
        pass

    async def resolve(self, *_: object, **__: object) -> None:
        pass

    def close(self) -> None:
        """Fails what is under way, as a producer does."""
        self.failure = self.failure or Closed("the producer is closed")
        self.durable.set()


@pytest.fixture
def group() -> SimulatedGroup:
    return SimulatedGroup()


@pytest.fixture
async def program(group: SimulatedGroup, monkeypatch: pytest.MonkeyPatch) -> Program:
    async def relay_id(*_: object) -> int:
        return 9

    monkeypatch.setattr(retrying, "Relay", HandRelay)
    monkeypatch.setattr(retrying, "relay_id", relay_id, raising=False)
    program = Program(group, retry=RetryPolicy(steps_ms=()))
    await program.join(0)
    program.put(0, 10)
    return program


async def begun(program: Program) -> asyncio.Task[None]:
    """A commit that waits for its copies."""
    before = HandRelay.made.waiting
    task = asyncio.create_task(program.commit())
    for _ in range(10):
        await asyncio.sleep(0)
    assert HandRelay.made.waiting == before + 1, "it waits for the copies"
    assert not task.done()
    return task


async def test_progress_is_stored_once_its_copies_are_durable(
    group: SimulatedGroup, program: Program
) -> None:
    messages = await program.poll(4)
    program.core.note(messages[1], "no", rejected=True)
    commit = await begun(program)
    assert group.locks[key_of(0)].committed == -1
    HandRelay.made.durable.set()
    await commit
    assert HandRelay.made.sent == [b"1"]
    assert group.locks[key_of(0)].committed == 4


async def test_a_commit_waits_for_the_copies_of_one_that_was_cancelled(
    group: SimulatedGroup, program: Program
) -> None:
    """Else progress would be durable, and the copies might never be."""
    messages = await program.poll(4)
    program.core.note(messages[1], "no", rejected=True)
    cancelled = await begun(program)
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    again = await begun(program)
    assert group.locks[key_of(0)].committed == -1
    HandRelay.made.durable.set()
    await again
    assert HandRelay.made.sent == [b"1"], "and makes no others"
    assert group.locks[key_of(0)].committed == 4


@pytest.mark.parametrize("answer", ["refused", "lost"])
async def test_copies_of_a_commit_that_may_not_be_stored_are_made_once(
    group: SimulatedGroup, program: Program, answer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit is made again, and the copies are there already; also when the caller gives the
    message the same end again."""
    messages = await program.poll(4)
    program.core.note(messages[1], "no", rejected=True)
    HandRelay.made.durable.set()
    commit = group._commit

    def broken(request: Any) -> Any:
        if request.commits[0].offset < 0:  # the record of the copies
            return commit(request)
        if answer == "lost":
            commit(request)
        raise Unavailable("not now")

    monkeypatch.setattr(group, "_commit", broken)
    with pytest.raises(Unavailable):
        await program.commit()
    monkeypatch.setattr(group, "_commit", commit)
    program.core.note(messages[1], "no", rejected=True)
    await program.commit()
    assert HandRelay.made.sent == [b"1"]
    assert group.locks[key_of(0)].committed == 4


async def test_the_note_of_the_next_message_outlives_a_commit(
    group: SimulatedGroup, program: Program
) -> None:
    messages = await program.poll(4)
    for message in messages[1:3]:
        program.core.note(message, "no", rejected=True)
    HandRelay.made.durable.set()
    await program.commit(messages[1])
    assert HandRelay.made.sent == [b"1"]
    await program.commit()
    assert HandRelay.made.sent == [b"1", b"2"]
    assert group.locks[key_of(0)].committed == 4


async def test_what_is_copied_is_not_given_out_again_after_a_seek(
    group: SimulatedGroup, program: Program
) -> None:
    """Its copy will come to an end of its own; what is only noted is given out again."""
    messages = await program.poll(4)
    program.core.note(messages[1], "no", rejected=True)
    cancelled = await begun(program)
    cancelled.cancel()
    await asyncio.gather(cancelled, return_exceptions=True)
    program.core.note(messages[2], "no", rejected=True)
    await program.core.seek("orders", 0, 0)
    queue = program.queue()
    assert queue.skip == {1}
    HandRelay.made.durable.set()
    program.put(0, 1)
    program.put(2, 4)
    assert [message.offset for message in await program.poll()] == [0, 2, 3]
    await program.commit()
    assert HandRelay.made.sent == [b"1"]
    assert group.locks[key_of(0)].committed == 4


async def test_what_is_noted_after_a_cancelled_commit_is_copied_besides(
    group: SimulatedGroup, program: Program
) -> None:
    messages = await program.poll(4)
    program.core.note(messages[1], "no", rejected=True)
    cancelled = await begun(program)
    cancelled.cancel()
    await asyncio.gather(cancelled, return_exceptions=True)
    program.core.note(messages[1], "once more", rejected=True)
    program.core.note(messages[3], "no", rejected=True)
    HandRelay.made.durable.set()
    await program.commit()
    assert HandRelay.made.sent == [b"1", b"3"]
    assert group.locks[key_of(0)].committed == 4


@pytest.mark.parametrize("copied", [True, False])
async def test_nothing_is_committed_under_a_lock_that_was_lost_while_copies_were_made(
    group: SimulatedGroup, program: Program, copied: bool
) -> None:
    """The next owner skips the originals of copies that are there, and they are committed then."""
    messages = await program.poll(4)
    program.core.note(messages[1], "no", rejected=True)
    commit = await begun(program)
    program.core.locks.on_lost(key_of(0), program.queue().token)
    if copied:  # just before the relay was closed
        HandRelay.made.failure = None
    calls = group.calls.count("Commit")
    with pytest.raises(LockLost, match="offsets 0 to 4 uncommitted"):
        await commit
    assert group.calls.count("Commit") == calls
    assert group.locks[key_of(0)].committed == -1


@pytest.mark.parametrize("failure", [TimedOut("nobody knows"), ProducerFenced("a newer owner")])
async def test_a_queue_whose_copies_failed_is_given_up(
    group: SimulatedGroup, program: Program, failure: Exception
) -> None:
    """Nobody knows which of them are stored: under a new token that is found out."""
    messages = await program.poll(4)
    program.core.note(messages[1], "no", rejected=True)
    commit = await begun(program)
    HandRelay.made.failure = failure
    HandRelay.made.durable.set()
    with pytest.raises(TimedOut if isinstance(failure, TimedOut) else LockLost):
        await commit
    assert group.locks[key_of(0)].committed == -1
    assert program.core.locks.held == {}
    await program.commit()  # it was told
    with pytest.raises(LockLost):
        program.core.note(messages[2], "no", rejected=True)


# --- what an earlier owner has left


def left_behind(
    group: SimulatedGroup,
    monkeypatch: pytest.MonkeyPatch,
    *,
    copied: Iterable[int],
    attempt: CopyAttempt | None = None,
    stored: Iterable[int] = (),
) -> list[CopyAttempt]:
    """The group is at offset 4, and its record names `copied` and an attempt which has `stored`
    copies of these; the attempts that are ended from now on."""
    ended: list[CopyAttempt] = []

    async def settle(_cluster: object, _runtime: object, found: CopyAttempt) -> list[Any]:
        ended.append(found)
        origin = Origin("orders", 0, 0)
        return [
            SimpleNamespace(
                headers=letters.failed(
                    [],
                    origin=origin,
                    source_offset=offset,
                    group="g",
                    attempts=1,
                    reason="",
                    failed_us=1,
                )
            )
            for offset in stored
        ]

    acquire = group._acquire_locks

    def acquired(request: Any) -> Any:
        reply = acquire(request)
        for grant in reply.grants:
            grant.metadata = record_bytes(copied, attempt, 4)
        return reply

    monkeypatch.setattr(retrying, "settle", settle)
    monkeypatch.setattr(retrying, "Relay", HandRelay)
    monkeypatch.setattr(group, "_acquire_locks", acquired)
    group.locks[key_of(0)].committed = 4
    return ended


def committed_records(group: SimulatedGroup, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Offset and record of each commit, from now on."""
    found: list[Any] = []
    commit = group._commit

    def committing(request: Any) -> Any:
        for one in request.commits:
            found.append((one.offset, read_record(one.metadata)))
        return commit(request)

    monkeypatch.setattr(group, "_commit", committing)
    return found


@pytest.mark.parametrize("policy", [RetryPolicy(steps_ms=()), None])
async def test_copies_that_an_earlier_owner_has_made_are_skipped_and_committed_over(
    group: SimulatedGroup, monkeypatch: pytest.MonkeyPatch, policy: RetryPolicy | None
) -> None:
    """Those at the group's place at once: nothing else might ever be committed in the queue. What
    lies further on stays in the record. That is so without a policy: the group had one before."""
    attempt = CopyAttempt(producer_id=9, epoch=1, end=9)
    ended = left_behind(group, monkeypatch, copied={4, 7}, attempt=attempt, stored={5})
    commits = committed_records(group, monkeypatch)
    program = Program(group, retry=policy)
    await program.join(0)
    assert ended == [attempt], "nothing of it can land any more"
    ((offset, record),) = commits
    assert (offset, record.copied, record.attempt) == (6, {7}, None)
    assert group.locks[key_of(0)].committed == 6
    queue = program.queue()
    assert (queue.offset, queue.delivered, queue.done) == (6, 6, 6)
    assert {offset for offset in queue.skip if offset >= 6} == {7}


async def test_an_attempt_that_is_over_is_not_ended_again(
    group: SimulatedGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its end is where the group is: all that it copied is committed over."""
    ended = left_behind(
        group, monkeypatch, copied=(), attempt=CopyAttempt(producer_id=9, epoch=1, end=4)
    )
    program = Program(group, retry=RetryPolicy(steps_ms=()))
    await program.join(0)
    assert ended == []
    assert (program.queue().offset, group.locks[key_of(0)].committed) == (4, 4)
    assert "Commit" not in group.calls


@pytest.mark.parametrize("policy", [RetryPolicy(steps_ms=()), None])
async def test_a_commit_takes_back_a_record_that_an_earlier_owner_has_left(
    group: SimulatedGroup, monkeypatch: pytest.MonkeyPatch, policy: RetryPolicy | None
) -> None:
    left_behind(group, monkeypatch, copied={5})
    program = Program(group, retry=policy)
    await program.join(0)
    assert program.queue().skip == {5}
    commits = committed_records(group, monkeypatch)
    program.put(4, 5)
    assert len(await program.poll()) == 1
    await program.commit()
    assert [(offset, record.copied) for offset, record in commits] == [(6, set())]


async def test_a_row_in_the_users_database_goes_over_what_an_earlier_owner_has_copied(
    group: SimulatedGroup, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Else the next transaction would not find the row where it expects it."""
    path = tmp_path / "results.db"
    left_behind(group, monkeypatch, copied={4, 5})
    store = SqlOffsets(lambda: sqlite3.connect(path))
    program = Program(group, retry=RetryPolicy(steps_ms=()), offset_store=store)
    await program.join(0)
    assert program.queue().offset == 6
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("SELECT next_offset FROM semel_offsets").fetchall() == [(6,)]


async def test_a_take_over_that_ends_late_leaves_the_newer_one_alone(
    group: SimulatedGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock was lost, and acquired again, while the copies of an earlier owner were sought."""
    attempt = CopyAttempt(producer_id=9, epoch=1, end=9)
    left_behind(group, monkeypatch, copied=(), attempt=attempt, stored={7})
    settle = relay.settle
    first = asyncio.Event()
    waiting = [first]

    async def slow(*given: Any) -> list[Any]:
        if waiting:
            await waiting.pop().wait()
        return await settle(*given)

    monkeypatch.setattr(retrying, "settle", slow)
    program = Program(group, retry=RetryPolicy(steps_ms=()))
    group.held_back["nothing"] = first  # so that joining does not wait for the first one
    await program.join(0)
    old = program.queue()
    program.core.locks.on_lost(old.key, old.token)
    await program.acquire()
    group.held_back.clear()
    first.set()
    await program.rest()
    assert program.core.feed.queues[key_of(0)] is program.queue()
    program.put(4, 6)
    (message, _) = await program.poll()
    program.core.note(message, "no", rejected=True)
    HandRelay.made.durable.set()
    await program.commit()
    assert group.locks[key_of(0)].committed == 6
