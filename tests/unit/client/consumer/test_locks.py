"""Locks at several broker groups: one that does not answer keeps nothing from the others."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest

from semel.client.consumer import consumer as consumer_module
from semel.client.consumer import lock_retries
from semel.protos import compat
from semel.protos.errors import InternalError, MemberFenced, QueueLocked, to_detail
from semel.protos.ids import GroupId
from semel.protos.v1 import broker_pb2
from tests.kit.simulated_group import HOME, Lock, Program, SimulatedGroup, key_of
from tests.kit.waiting import until_async

OTHER = GroupId(2)


@pytest.fixture
def group() -> SimulatedGroup:
    """Queue 0 at one broker group, queue 1 at another one."""
    group = SimulatedGroup()
    group.locks[key_of(1)] = Lock()
    group.homes[key_of(1)] = OTHER
    group.assign(0, 1)
    return group


class Calls:
    """Calls to broker groups: how many were made, and how many at a time."""

    def __init__(self, group: SimulatedGroup, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: Counter[tuple[GroupId, str]] = Counter()
        self.under_way: Counter[tuple[GroupId, str]] = Counter()
        self.most: Counter[tuple[GroupId, str]] = Counter()
        self._call = group.call_master
        monkeypatch.setattr(group, "call_master", self)

    async def __call__(self, group_id: GroupId, method: str, *given: Any) -> Any:
        call = group_id, method
        self.made[call] += 1
        self.under_way[call] += 1
        self.most[call] = max(self.most[call], self.under_way[call])
        try:
            return await self._call(group_id, method, *given)
        finally:
            self.under_way[call] -= 1


@pytest.fixture
def calls(group: SimulatedGroup, monkeypatch: pytest.MonkeyPatch) -> Calls:
    return Calls(group, monkeypatch)


@asynccontextmanager
async def running(group: SimulatedGroup, **options: Any) -> AsyncIterator[Program]:
    """A consumer with its background tasks."""
    program = Program(group, **options)
    await program.core.open()
    try:
        yield program
    finally:
        await program.core.close()


async def assigned(group: SimulatedGroup, program: Program, *numbers: int) -> None:
    group.assign(*numbers, generation=program.core._membership.generation + 1)
    await program.core._membership.join()


def held(program: Program) -> set[int]:
    return {key.queue_id for key in program.core.locks.held}


async def test_a_group_without_a_master_keeps_no_lock_of_another_from_being_renewed(
    group: SimulatedGroup, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer_module, "RELEASE_TIMEOUT_S", 0.1)
    async with running(group, session_ms=500) as program:
        await until_async(lambda: held(program) == {0, 1})
        group.masterless[OTHER] = asyncio.Event()
        await until_async(lambda: calls.under_way[OTHER, "RenewLocks"])
        before = calls.made[HOME, "RenewLocks"]
        await until_async(lambda: calls.made[HOME, "RenewLocks"] >= before + 4)
        assert calls.made[OTHER, "RenewLocks"] == calls.most[OTHER, "RenewLocks"] == 1
        group.masterless.pop(OTHER).set()
        await until_async(lambda: calls.made[OTHER, "RenewLocks"] > 3)
        assert calls.most[OTHER, "RenewLocks"] == 1
        assert held(program) == {0, 1}


async def test_routes_that_are_not_answered_keep_no_lock_from_being_renewed(
    group: SimulatedGroup, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A renewal has failed, and the controllers do not say where the queue is."""
    async with running(group, session_ms=500) as program:
        await until_async(lambda: held(program) == {0, 1})
        asked = 0

        async def topic(name: str, *, refresh: bool = False) -> Any:
            nonlocal asked
            asked += 1
            await asyncio.Event().wait()

        monkeypatch.setattr(group, "topic", topic)
        group.unavailable.add("RenewLocks")
        await until_async(lambda: asked)
        group.unavailable.clear()
        before = Counter(calls.made)
        await until_async(
            lambda: all(
                calls.made[at, "RenewLocks"] >= before[at, "RenewLocks"] + 3 for at in (HOME, OTHER)
            )
        )
        assert asked <= 2, "one search a broker group at a time"


@pytest.mark.parametrize("held_before", [True, False])
async def test_a_queue_that_has_moved_is_acquired_at_its_new_group(
    group: SimulatedGroup, monkeypatch: pytest.MonkeyPatch, held_before: bool
) -> None:
    """Its old group answers nobody, so no broker says where it is: the controllers do."""

    async def topic(name: str, *, refresh: bool = False) -> Any:
        if refresh:
            group.homes[key_of(1)] = GroupId(3)

    monkeypatch.setattr(group, "topic", topic)
    gone = asyncio.Event()
    gone.set()
    if not held_before:
        group.masterless[OTHER] = gone
    async with running(group, session_ms=500) as program:
        if held_before:
            await until_async(lambda: held(program) == {0, 1})
            assert program.queue(1).group_id == OTHER
            group.masterless[OTHER] = gone
        await until_async(
            lambda: held(program) == {0, 1} and program.queue(1).group_id == GroupId(3)
        )


async def test_a_group_without_a_master_keeps_no_queue_of_another_from_being_acquired(
    group: SimulatedGroup, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer_module, "RELEASE_TIMEOUT_S", 0.1)
    group.masterless[OTHER] = asyncio.Event()
    grant, refused = group._acquire_locks, 0

    def acquire(request: Any) -> Any:
        nonlocal refused
        if refused == 3:
            return grant(request)
        refused += 1
        error = to_detail(QueueLocked("another member's"))
        grants = [broker_pb2.LockGrant(queue=ref, error=error) for ref in request.queues]
        return broker_pb2.AcquireLocksReply(grants=grants)

    monkeypatch.setattr(group, "_acquire_locks", acquire)
    async with running(group) as program:
        await until_async(lambda: held(program) == {0})
        assert calls.made[OTHER, "AcquireLocks"] == 1
        assert calls.under_way[OTHER, "AcquireLocks"] == 1
        group.masterless.pop(OTHER).set()
        await until_async(lambda: held(program) == {0, 1})
        assert max(calls.most.values()) == 1


async def test_a_group_without_a_master_keeps_no_queue_of_another_from_being_handed_over(
    group: SimulatedGroup, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    def owned_by(owner: str) -> bool:
        return group.locks[key_of(0)].owner == owner

    monkeypatch.setattr(consumer_module, "RELEASE_TIMEOUT_S", 0.1)
    async with running(group) as program:
        await until_async(lambda: held(program) == {0, 1})
        group.masterless[OTHER] = asyncio.Event()
        await assigned(group, program, 0)
        await until_async(lambda: calls.under_way[OTHER, "ReleaseLocks"])
        for numbers, owner in (((), ""), ((0, 1), "m"), ((1,), "")):
            await assigned(group, program, *numbers)
            await until_async(partial(owned_by, owner))
        assert calls.made[OTHER, "ReleaseLocks"] == calls.under_way[OTHER, "ReleaseLocks"] == 1
        assert calls.made[OTHER, "AcquireLocks"] == 1, "it is released before it is acquired again"
        group.masterless.pop(OTHER).set()
        await until_async(lambda: held(program) == {1})


async def test_nothing_is_due_once_every_queue_is_held(
    group: SimulatedGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One broker group had failed in the round in which the other one granted its lock."""
    monkeypatch.setattr(lock_retries, "LOCK_RETRY_MAX_S", 0.01)
    waits: list[float | None] = []
    timeout = compat.timeout

    def noted(delay: float | None) -> Any:
        task = asyncio.current_task()
        if task is not None and task.get_name() == "semel-consumer-locks":
            waits.append(delay)
        return timeout(delay)

    monkeypatch.setattr(compat, "timeout", noted)
    group.masterless[OTHER] = asyncio.Event()
    async with running(group) as program:
        await until_async(lambda: held(program) == {0})
        group.masterless.pop(OTHER).set()
        await until_async(lambda: held(program) == {0, 1})
        await program.rest()
        assert waits[-1] is None
        turns = len(waits)
        await program.rest()
        assert len(waits) == turns


# --- the end


async def test_a_lock_that_is_granted_while_the_consumer_closes_is_released(
    group: SimulatedGroup,
) -> None:
    """Else the next owner would wait until its session is over."""
    group.assign(0)
    group.held_back["AcquireLocks"] = asyncio.Event()
    program = Program(group, auto_offset_reset="latest")
    await program.core.open()
    await until_async(lambda: group.locks[key_of(0)].owner)
    closing = asyncio.create_task(program.core.close())
    await program.rest()
    assert not closing.done()
    group.held_back["AcquireLocks"].set()
    await closing
    assert group.locks[key_of(0)].owner == ""
    assert group.calls == ["AcquireLocks", "ReleaseLocks"], "and nothing of it was begun"
    assert program.core.feed.queues == {}
    assert held(program) == set()


async def test_a_group_without_a_master_keeps_no_lock_of_another_from_being_released_at_the_end(
    group: SimulatedGroup, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer_module, "RELEASE_TIMEOUT_S", 0.1)
    group.masterless[OTHER] = asyncio.Event()
    async with running(group) as program:
        await until_async(lambda: held(program) == {0})
    assert group.locks[key_of(0)].owner == ""
    await program.rest()
    assert calls.under_way.total() == 0, "no call goes on"


async def test_who_is_fenced_is_granted_nothing_more(group: SimulatedGroup, calls: Calls) -> None:
    group.masterless[OTHER] = asyncio.Event()
    async with running(group) as program:
        await until_async(lambda: held(program) == {0})
        program.core._on_fenced(MemberFenced("another process"))
        await program.rest()
        assert calls.under_way.total() == 0
        group.masterless.pop(OTHER).set()
        await program.rest()
        assert held(program) == set()
    assert calls.made[HOME, "ReleaseLocks"] == 0


async def test_a_bug_in_a_call_to_a_broker_group_is_told(
    group: SimulatedGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: Any) -> Any:
        raise KeyError("a bug")

    monkeypatch.setattr(group, "_acquire_locks", broken)
    async with running(group) as program:
        await program.rest()
        with pytest.raises(InternalError, match=r"semel-consumer-hand-over-1.*a bug"):
            await program.poll()
