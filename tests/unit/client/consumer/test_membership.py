"""What a member of a group tells the brokers and the controllers, and what it believes of them."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from semel.protos.errors import (
    LockLost,
    MemberFenced,
    QueueLocked,
    QueueMoved,
    SemelError,
    StaleGeneration,
    UnknownMember,
    UnknownQueue,
    to_detail,
)
from semel.protos.v1 import broker_pb2
from tests.kit.simulated_group import Lock, Program, SimulatedGroup, key_of


@pytest.fixture
def group() -> SimulatedGroup:
    return SimulatedGroup()


@pytest.fixture
async def program(group: SimulatedGroup) -> Program:
    program = Program(group)
    await program.join(0)
    return program


def watched(group: SimulatedGroup, name: str) -> list[Any]:
    """Requests of a method of the broker, from now on."""
    requests: list[Any] = []
    real = getattr(group, name)

    def watching(request: Any) -> Any:
        copy = type(request)()
        copy.CopyFrom(request)
        requests.append(copy)
        return real(request)

    setattr(group, name, watching)
    return requests


async def test_locks_are_asked_for_under_the_newest_generation(group: SimulatedGroup) -> None:
    asked = watched(group, "_acquire_locks")
    group.locks[key_of(1)] = Lock()
    program = Program(group, lock_ms=700, session_ms=900)
    await program.join(0)
    group.assign(0, 1, generation=8)
    await program.core._membership.join()
    await program.acquire()
    assert [(one.generation, one.member_id, len(one.queues)) for one in asked] == [
        (1, "m", 1),
        (8, "m", 1),
    ]
    assert (asked[0].lock_ms, asked[0].session_ms) == (700, 900)


async def test_each_call_is_about_the_lock_that_it_was_made_for(
    group: SimulatedGroup, program: Program
) -> None:
    """A release, a renewal and what a fetch says of an old lock leave the new one alone."""
    released = watched(group, "_release_locks")
    renewed = watched(group, "_renew_locks")
    locks, old = program.core.locks, program.queue()
    group.held_back["RenewLocks"] = asyncio.Event()
    group.locks[key_of(0)].token += 1  # so that the renewal is told: lost
    renewing = asyncio.create_task(locks._renewals.renew_at(old.group_id, [old]))
    await asyncio.sleep(0)
    locks.on_lost(old.key, old.token)
    await program.acquire()
    new = program.queue()
    assert new.token > old.token
    group.held_back.pop("RenewLocks").set()
    await renewing
    for error in (LockLost("late"), QueueMoved("late", group_id=1), UnknownQueue("late")):
        program.core.on_queue_error(old, error)
    await locks._release_at(old.group_id, [old])
    assert program.queue() is new
    assert program.core.feed.queues[new.key] is new
    assert [one.token for request in renewed for one in request.locks] == [old.token]
    assert [one.token for request in released for one in request.locks] == [old.token]
    assert group.locks[key_of(0)].owner == "m", "the broker has heard nothing of the new one"


async def test_a_commit_carries_the_token_of_the_lock_that_it_was_made_for(
    group: SimulatedGroup, program: Program
) -> None:
    """What the brokers are told in the background may be about a lock that is another one by then:
    under the new token the broker would believe it."""
    committed = watched(group, "_commit")
    locks, old = program.core.locks, program.queue()
    locks.on_lost(old.key, old.token)
    await program.acquire()
    refused = await program.core.commits.store({old: 5})
    assert [one.token for request in committed for one in request.commits] == [old.token]
    assert isinstance(refused[old], LockLost)
    assert locks.holds(program.queue()), "the new lock is not lost"
    assert (group.locks[key_of(0)].committed, old.done, program.queue().done) == (-1, 0, 0)


@pytest.mark.parametrize(
    "error", [LockLost("gone"), QueueMoved("gone", group_id=2), UnknownQueue("gone")]
)
async def test_what_a_fetch_says_of_the_lock_is_believed(
    program: Program, error: SemelError
) -> None:
    program.put(0, 5)
    assert await program.poll()
    program.core.on_queue_error(program.queue(), error)
    assert program.core.locks.held == {}
    assert program.core.feed.queues == {}
    with pytest.raises(LockLost):
        await program.commit()


@pytest.mark.parametrize(
    ("error", "times", "beats"),
    [
        (QueueLocked("another's"), [0.05, 0.1, 0.2, 0.4, 0.4], False),
        (StaleGeneration("newer"), [0.2, 0.2], True),
        (UnknownQueue("not here"), [1.0, 1.0], False),
    ],
)
async def test_a_lock_that_is_refused_is_asked_for_again_after_a_while(
    group: SimulatedGroup,
    monkeypatch: pytest.MonkeyPatch,
    error: SemelError,
    times: list[float],
    beats: bool,
) -> None:
    def refused(request: Any) -> Any:
        reply = broker_pb2.AcquireLocksReply()
        for ref in request.queues:
            reply.grants.add(queue=ref).error.CopyFrom(to_detail(error))
        return reply

    monkeypatch.setattr(group, "_acquire_locks", refused)
    monkeypatch.setattr(time, "monotonic", lambda: 50.0)
    program = Program(group)
    group.assign(0)
    await program.core._membership.join()
    for wait in times:
        await program.acquire()
        assert program.core.locks._retries.at(key_of(0)) == pytest.approx(50.0 + wait)
    assert program.core._membership._beat_now.is_set() == beats


async def test_who_is_fenced_commits_nothing_more(group: SimulatedGroup, program: Program) -> None:
    """Another process has joined under the same id: its locks are newer."""
    program.put(0, 5)
    messages = await program.poll()
    calls = list(group.calls)
    program.core._on_fenced(MemberFenced("another process"))
    assert program.core.locks.held == {}
    for _ in range(2):
        with pytest.raises(MemberFenced):
            await program.commit(messages[0])
        with pytest.raises(MemberFenced):
            await program.poll()
    asked: list[str] = []

    async def controller(method: str, request: Any, timeout_s: float | None = None) -> Any:
        asked.append(method)

    group.controller = controller  # type: ignore[method-assign]
    await program.core.close()
    assert group.calls == calls, "it gives nothing back that is another's"
    assert asked == [], "nor does it end the membership of another"


async def test_after_it_was_closed_nothing_is_committed(
    group: SimulatedGroup, program: Program
) -> None:
    program.put(0, 5)
    messages = await program.poll()
    await program.core.close()
    assert group.calls[-1] == "ReleaseLocks"
    with pytest.raises(LockLost):
        await program.commit(messages[0])
    assert group.locks[key_of(0)].committed == -1


async def test_a_paused_queue_stays_paused_in_the_next_lock(
    group: SimulatedGroup, program: Program
) -> None:
    program.put(0, 5)
    assert [one.offset for one in await program.poll(2)] == [0, 1]
    await program.core.pause("orders", 0, True)
    assert await program.poll() == []
    assert program.queue().offset == 2, "what was buffered is given back"
    program.core.locks.on_lost(key_of(0), program.queue().token)
    await program.acquire()
    assert program.queue().paused
    await program.core.pause("orders", 0, False)
    assert not program.queue().paused


async def test_a_member_that_was_forgotten_joins_again_as_itself(
    group: SimulatedGroup, program: Program
) -> None:
    asked: list[Any] = []
    answers: list[Any] = [UnknownMember("who?"), None, MemberFenced("another")]

    async def controller(method: str, request: Any, timeout_s: float | None = None) -> Any:
        asked.append((method, request.member_id, bytes(request.incarnation)))
        answer = answers.pop(0)
        if answer is not None:
            raise answer
        return group.membership

    group.controller = controller  # type: ignore[method-assign]
    membership = program.core._membership
    running = asyncio.create_task(membership.run())
    membership.beat_now()
    for _ in range(5):
        await asyncio.sleep(0)
    membership.beat_now()
    await asyncio.wait([running])
    assert [method for method, *_ in asked] == ["HeartbeatGroup", "JoinGroup", "HeartbeatGroup"]
    assert len({tuple(who) for _, *who in asked}) == 1
    assert program.core._fenced is not None
