"""Commits that copy messages first: what is to be retried or rejected.

The relay that makes the copies is played by hand; everything else is the consumer's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Sequence
from typing import Any

import pytest

from semel.client import RetryPolicy
from semel.client.dead_letters import retrying
from semel.protos.errors import LockLost, ProducerFenced, TimedOut
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
        pass


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


async def test_nothing_is_committed_under_a_lock_that_was_lost_while_copies_were_made(
    group: SimulatedGroup, program: Program
) -> None:
    """The next owner skips the originals of copies that are there, and they are committed then."""
    messages = await program.poll(4)
    program.core.note(messages[1], "no", rejected=True)
    commit = await begun(program)
    program.core.locks.on_lost(key_of(0), program.queue().token)
    calls = group.calls.count("Commit")
    HandRelay.made.durable.set()
    with pytest.raises(LockLost):
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
