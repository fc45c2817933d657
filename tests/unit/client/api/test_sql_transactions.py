"""Results and offsets in one SQL transaction: each result once, whatever becomes of the lock.

The database is real (SQLite), the group simulated, and everything is driven step by step.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest

from semel.client import SqlOffsets
from semel.client.api.aio_reading import AsyncTransaction
from semel.client.api.sync_reading import Transaction
from semel.client.consumer import commits
from semel.client.message import Message
from semel.protos.errors import InvalidRequest, LockLost, OffsetOutOfRange
from tests.kit.simulated_group import Lock, Program, SimulatedGroup, key_of


class Worker:
    """A program that stores results."""

    def __init__(self, group: SimulatedGroup, path: Any, **options: Any) -> None:
        self.group = group
        self.database = group.opened.enter_context(closing(sqlite3.connect(path)))
        self.database.execute("CREATE TABLE IF NOT EXISTS results (queue INT, offset INT)")
        self.database.commit()
        store = SqlOffsets(lambda: sqlite3.connect(path))
        self.program = Program(group, offset_store=store, **options)

    def transaction(self, message: Message | None = None, connection: Any = None) -> Any:
        async def await_run(coroutine: Any) -> Any:
            return await coroutine

        session: Any = SimpleNamespace(await_run=await_run, runtime=self.program.runtime)
        connection = self.database if connection is None else connection
        return AsyncTransaction(session, self.program.core, connection, message)

    def add(self, messages: list[Message]) -> None:
        rows = [(message.queue, message.offset) for message in messages]
        self.database.executemany("INSERT INTO results VALUES (?, ?)", rows)

    async def store(self, messages: list[Message], message: Message | None = None) -> None:
        async with self.transaction(message):
            self.add(messages)

    @property
    def results(self) -> list[int]:
        found = self.database.execute("SELECT offset FROM results ORDER BY rowid").fetchall()
        return [offset for (offset,) in found]

    def row(self, number: int = 0) -> tuple[int, int]:
        query = "SELECT next_offset, token FROM semel_offsets WHERE queue_id = ?"
        found = self.database.execute(query, (number,)).fetchone()
        return found[0], found[1]


@pytest.fixture
def group() -> Iterator[SimulatedGroup]:
    simulated = SimulatedGroup()
    with simulated.opened:
        yield simulated


@pytest.fixture
async def worker(group: SimulatedGroup, tmp_path: Any) -> Worker:
    worker = Worker(group, tmp_path / "results.db")
    await worker.program.join(0)
    return worker


async def test_a_lock_that_the_background_commit_finds_lost_is_told_by_the_next_transaction(
    group: SimulatedGroup, worker: Worker
) -> None:
    """A reset, a move, an expired session: the brokers refuse to be told of the progress."""
    program = worker.program
    program.put(0, 30)
    await worker.store(await program.poll(10))
    await program.rest()
    assert group.locks[key_of(0)].committed == 10
    second = await program.poll(10)
    group.take_away()
    await worker.store(second)
    third = await program.poll(10)  # given out before anybody knows
    await program.rest()
    assert program.core.locks.held == {}, "the background commit has heard of it"
    with pytest.raises(LockLost, match="20 to 30"):
        await worker.store(third)
    assert worker.results == list(range(20))
    await program.acquire()
    program.put(20, 30)
    await worker.store(await program.poll())
    assert worker.results == list(range(30))
    assert worker.row() == (30, 3)


async def test_brokers_that_do_not_answer_are_told_of_the_progress_again(
    group: SimulatedGroup, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing else may ever be stored in the queue, and its children wait for its end."""
    program = worker.program
    monkeypatch.setattr(commits, "TELL_AGAIN_S", 0.0)
    group.unavailable.add("Commit")
    program.put(0, 10)
    await worker.store(await program.poll())
    await program.rest()
    group.locks[key_of(0)].committed = -1  # it had not been carried out
    group.unavailable.clear()
    await program.rest()
    assert group.locks[key_of(0)].committed == 10
    assert program.core.commits._telling is not None
    assert program.core.commits._telling.done()


async def test_a_lock_that_is_lost_is_not_told_of_again(
    group: SimulatedGroup, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = worker.program
    monkeypatch.setattr(commits, "TELL_AGAIN_S", 0.0)
    group.unavailable.add("Commit")
    program.put(0, 10)
    await worker.store(await program.poll())
    await program.rest()
    program.core.locks.on_lost(key_of(0), program.queue().token)
    await program.rest()
    assert program.core.commits._telling is not None
    assert program.core.commits._telling.done()
    assert program.core.commits._behind == {}


async def test_a_reset_of_the_groups_offsets_has_no_effect_on_rows_that_are_there(
    group: SimulatedGroup, worker: Worker
) -> None:
    program = worker.program
    program.put(0, 30)
    await worker.store(await program.poll(10))
    await program.rest()
    for committed in (0, 90):
        group.take_away(committed=committed)
        program.core.locks.on_lost(key_of(0), program.queue().token)
        await program.acquire()
        if committed > 10:
            assert program.core.locks.held == {}, "a reset of ours ends the lock, too"
            await program.acquire()
        assert program.queue().offset == 10
        assert group.locks[key_of(0)].committed == 10, "the brokers know what the database knows"


async def test_everything_that_a_transaction_is_about_is_under_its_lock_or_nothing_is_stored(
    group: SimulatedGroup, tmp_path: Any
) -> None:
    group.locks[key_of(1)] = Lock()
    worker = Worker(group, tmp_path / "results.db")
    program = worker.program
    await program.join(0, 1)
    program.put(0, 10, 0)
    program.put(0, 10, 1)
    messages = await program.poll()
    program.core.locks.on_lost(key_of(0), program.queue(0).token)
    with pytest.raises(LockLost):
        await worker.store(messages)
    assert worker.results == []
    assert program.outstanding.must_give_back
    await program.give_back()
    assert program.queue(1).offset == 0, "the other one begins again, too"


async def test_the_database_refuses_what_nobody_here_knows_to_be_lost(
    group: SimulatedGroup, worker: Worker, tmp_path: Any
) -> None:
    """A consumer that was stopped beyond its lock; another one has claimed the row."""
    program = worker.program
    program.put(0, 10)
    messages = await program.poll()
    other = Worker(group, tmp_path / "results.db")
    await other.program.join(0)
    with pytest.raises(LockLost) as caught:
        await worker.store(messages)
    assert caught.value.current_token == 2
    other.program.put(0, 10)
    await other.store(await other.program.poll())
    assert worker.results == list(range(10))


@pytest.mark.parametrize("carried_out", [True, False])
async def test_after_a_commit_that_failed_the_database_is_asked_where_it_stands(
    group: SimulatedGroup, worker: Worker, carried_out: bool
) -> None:
    """Nobody knows what it has done: giving the messages out again would be a guess."""
    program = worker.program
    program.put(0, 10)
    messages = await program.poll()

    def commit() -> None:
        if carried_out:
            worker.database.commit()
        raise sqlite3.OperationalError("the connection broke")

    broken = SimpleNamespace(
        cursor=worker.database.cursor, commit=commit, rollback=worker.database.rollback
    )
    store = program.core.store
    store._style = "qmark"
    with pytest.raises(sqlite3.OperationalError):
        async with worker.transaction(connection=broken):
            worker.add(messages)
    assert await program.poll() == []
    assert program.core.locks.held == {}, "all queues are acquired anew"
    await program.acquire()
    assert program.queue().offset == (10 if carried_out else 0)
    if not carried_out:
        program.put(0, 10)
        await worker.store(await program.poll())
    assert worker.results == list(range(10))


def run_at_once(coroutine: Any) -> Any:
    """The result of a coroutine that waits for nothing."""
    with pytest.raises(StopIteration) as stopped:
        coroutine.send(None)
    return stopped.value.value


@pytest.mark.parametrize("sync", [True, False])
async def test_brokers_are_told_of_progress_only_after_the_database_has_committed_it(
    worker: Worker, sync: bool
) -> None:
    """If they were told before and COMMIT failed, the group would be ahead of the database, and
    queues that a split made would be read too soon."""
    program = worker.program
    happened: list[str] = []
    works = False

    def commit() -> None:
        happened.append("COMMIT")
        if not works:
            raise sqlite3.OperationalError("the connection broke")
        worker.database.commit()

    connection = SimpleNamespace(
        cursor=worker.database.cursor, commit=commit, rollback=worker.database.rollback
    )
    program.runtime.call_soon = lambda function, *_: happened.append(function.__name__)
    program.core.store._style = "qmark"
    session: Any = SimpleNamespace(run=run_at_once, runtime=program.runtime)

    async def store() -> None:
        program.put(0, 10)
        messages = await program.poll()
        if sync:
            with Transaction(session, program.core, connection, None):
                worker.add(messages)
        else:
            async with worker.transaction(connection=connection):
                worker.add(messages)

    with pytest.raises(sqlite3.OperationalError):
        await store()
    assert happened == ["COMMIT"]
    await program.give_back()
    await program.acquire()
    works = True
    await store()
    assert happened == ["COMMIT", "COMMIT", "on_stored"]


def broken_rollback(worker: Worker) -> Any:
    def fail() -> None:
        worker.database.rollback()
        raise sqlite3.OperationalError("the connection broke")

    return SimpleNamespace(cursor=worker.database.cursor, rollback=fail)


def broken_begin(worker: Worker) -> Any:
    return SimpleNamespace(autocommit=True)


@pytest.mark.parametrize("broken", [broken_rollback, broken_begin])
async def test_what_a_failed_transaction_was_about_comes_again_even_if_it_cannot_be_ended(
    worker: Worker, broken: Callable[[Worker], Any]
) -> None:
    """Else the next transaction would store offsets of results that are not there."""
    program = worker.program
    program.put(0, 10)
    assert await program.poll(4)
    with pytest.raises((sqlite3.OperationalError, InvalidRequest)):
        async with worker.transaction(connection=broken(worker)):
            raise ZeroDivisionError
    program.put(0, 10)  # what was in line before is void
    assert await program.poll() == []
    program.put(0, 10)
    await worker.store(await program.poll())
    assert worker.results == list(range(10))


async def test_a_transaction_that_is_cancelled_gives_everything_back(
    group: SimulatedGroup, worker: Worker
) -> None:
    """Cancelled while its copies are made, and once more while it is being ended."""
    program = worker.program
    program.put(0, 10)
    messages = await program.poll()
    waits = asyncio.Event()

    async def never(spans: Any) -> Any:
        await waits.wait()

    core: Any = program.core
    progress, core.progress = core.progress, never
    task = asyncio.create_task(worker.store(messages))
    for _ in range(3):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    core.progress = progress
    assert not worker.database.in_transaction
    assert await program.poll() == []
    program.put(0, 10)
    await worker.store(await program.poll())
    assert worker.results == list(range(10))


async def test_an_iteration_goes_on_where_a_failed_transaction_began(worker: Worker) -> None:
    program = worker.program
    program.put(0, 10)
    taken = []
    for message in program.core.puller.drain():
        taken.append(message.offset)
        if message.offset == 3:
            with pytest.raises(ZeroDivisionError):
                async with worker.transaction():
                    raise ZeroDivisionError
    assert taken == [0, 1, 2, 3], "nothing more before it was given back"
    assert list(program.core.puller.drain()) == []
    await program.give_back()
    program.put(0, 10)
    assert [message.offset for message in program.core.puller.drain()] == list(range(10))


async def test_a_place_that_was_sought_before_a_transaction_failed_is_where_it_goes_on(
    worker: Worker,
) -> None:
    program = worker.program
    program.put(0, 20)
    await worker.store(await program.poll(10))
    await program.poll(10)
    await program.core.seek("orders", 0, 5)
    with pytest.raises(ZeroDivisionError):
        async with worker.transaction():
            raise ZeroDivisionError
    await program.give_back()
    assert await program.core.position("orders", 0) == 5
    await program.core.seek("orders", 0, 12)
    program.put(12, 20)
    await program.poll()
    with pytest.raises(ZeroDivisionError):
        async with worker.transaction():
            raise ZeroDivisionError
    await program.give_back()
    assert await program.core.position("orders", 0) == 12


async def test_one_message_is_stored_once(worker: Worker) -> None:
    program = worker.program
    program.put(0, 10)
    messages = await program.poll()
    await worker.store(messages[:4], messages[3])
    assert worker.row() == (4, 1)
    with pytest.raises(InvalidRequest, match="not outstanding"):
        await worker.store(messages[2:3], messages[2])
    assert worker.results == [0, 1, 2, 3]
    with pytest.raises(InvalidRequest, match="take messages anew"):
        await worker.store(messages[4:], messages[9])  # they were given back by that
    program.put(4, 10)
    assert await program.poll() == []
    program.put(4, 10)
    again = await program.poll()
    await worker.store(again[:1], again[0])
    await worker.store(again[1:])
    assert worker.results == list(range(10))


async def test_a_sought_place_is_stored_and_what_is_read_again_changes_no_row(
    worker: Worker,
) -> None:
    program = worker.program
    program.put(0, 10)
    await worker.store(await program.poll())
    await program.core.seek("orders", 0, 50)
    program.put(50, 52)
    await worker.store(await program.poll())
    assert worker.row() == (52, 1)
    await program.core.seek("orders", 0, 5)
    program.put(5, 7)
    await worker.store(await program.poll())
    assert worker.row() == (52, 1)
    assert worker.results == [*range(10), 50, 51, 5, 6]


async def test_a_row_below_the_beginning_of_its_queue_is_moved_there(
    group: SimulatedGroup, tmp_path: Any
) -> None:
    """Its messages were trimmed away while nobody was there."""
    worker = Worker(group, tmp_path / "results.db")
    await worker.program.join(0)
    worker.program.put(0, 4)
    await worker.store(await worker.program.poll())
    await worker.program.rest()
    group.locks[key_of(0)].start = 20
    other = Worker(group, tmp_path / "results.db")
    await other.program.join(0)
    assert other.row() == (20, 2)
    other.program.put(20, 25)
    await other.store(await other.program.poll())
    assert other.row() == (25, 2)


async def test_what_was_trimmed_while_it_was_read_is_no_gap_in_the_row(worker: Worker) -> None:
    program = worker.program
    program.put(0, 4)
    messages = await program.poll()
    error = OffsetOutOfRange("trimmed", log_start_offset=20, log_end_offset=30)
    program.core.on_queue_error(program.queue(), error)
    program.put(20, 25)
    messages += await program.poll()
    await worker.store(messages)
    assert worker.row() == (25, 1)
    assert worker.results == [*range(4), *range(20, 25)]
