"""Results and offsets in one transaction of the user's database: exactly once, end to end."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from semel.client import Client, Consumer, Message, RetryPolicy, SqlOffsets, connect_async
from semel.protos.errors import InvalidRequest, LockLost, OffsetOutOfRange, Unavailable
from tests.kit.cluster import Cluster
from tests.kit.consuming import fill, take, values_of
from tests.kit.summing_consumer import STEPS, add_up
from tests.kit.waiting import until


@pytest.fixture
def topic(client: Client, request: pytest.FixtureRequest) -> str:
    name = str(request.node.originalname)
    client.admin.create_topic(name, queues=4, if_not_exists=True)
    return name


class Database:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.store = SqlOffsets(self.connect)
        self.connection = self.connect()
        self.connection.execute("CREATE TABLE results (value BLOB)")
        self.connection.commit()

    def connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self.path, timeout=30, check_same_thread=False)

    def add(self, messages: list[Message]) -> None:
        self.connection.executemany(
            "INSERT INTO results VALUES (?)", [(message.value,) for message in messages]
        )

    def results(self) -> list[bytes]:
        return sorted(value for (value,) in self.connection.execute("SELECT value FROM results"))

    def offsets(self) -> dict[int, int]:
        rows = self.connection.execute("SELECT queue_id, next_offset FROM semel_offsets")
        return dict(rows.fetchall())


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    opened = Database(tmp_path / "results.db")
    yield opened
    opened.connection.close()


def fail_after(consumer: Consumer, database: Database, action: Callable[[], None]) -> None:
    """A transaction that does something, then raises."""
    with consumer.transaction(database.connection):
        action()
        raise ZeroDivisionError


@pytest.mark.parametrize("step", STEPS)
def test_a_consumer_killed_at_any_step_counts_every_message_once(
    shared_cluster: Cluster, client: Client, topic: str, tmp_path: Path, step: str
) -> None:
    name = f"{topic}-{step}"
    client.admin.create_topic(name, queues=4)
    fill(client, name, 120)
    path = tmp_path / "results.db"

    command = [sys.executable, "-m", "tests.kit.summing_consumer"]
    command += [shared_cluster.bootstrap, name, f"sum-{step}", str(path), step]
    killed = subprocess.run(command, text=True, capture_output=True, timeout=90, check=False)
    assert killed.returncode == -9, killed.stderr

    def numbers() -> list[int]:
        connection = sqlite3.connect(path)
        found = [number for (number,) in connection.execute("SELECT number FROM results")]
        connection.close()
        return found

    committed = len(numbers())
    assert (committed > 28) == (step in ("committed", "told")), "the fifth has seven at most"
    add_up(shared_cluster.bootstrap, name, f"sum-{step}", str(path), "never")
    assert Counter(numbers()) == Counter(range(120))
    assert sum(numbers()) == sum(range(120))
    until(lambda: client.admin.describe_group(f"sum-{step}").lag == 0)


def test_an_owner_that_lost_its_lock_writes_nothing(
    client: Client, topic: str, database: Database
) -> None:
    """The old owner is inside its transaction when the new one claims the rows."""
    values = fill(client, topic, 40)
    old = client.consumer("moved", topic, offset_store=database.store, lock_ms=700)
    mine = take(old, 40)
    with client.consumer("moved", topic, offset_store=database.store) as new:

        def too_late() -> None:
            with old.transaction(database.connection):
                # SQLite has one writer: let the other one in, then write as if nothing was.
                database.connection.rollback()
                until(new.assignment)
                theirs.extend(take(new, 1))
                database.add(mine)

        theirs: list[Message] = []
        with pytest.raises(LockLost):
            too_late()
        assert database.results() == []
        old.close()
        theirs += take(new, 40 - len(theirs))
        with new.transaction(database.connection):
            database.add(theirs)
    assert database.results() == values_of(theirs) == values
    assert database.offsets() == dict.fromkeys(range(4), 10)


def test_a_token_that_is_not_the_rows_own_is_refused_by_the_database_itself(
    client: Client, topic: str, database: Database
) -> None:
    """The brokers are not asked in a transaction: the row is what fences."""

    def write_under_another_token(consumer: Consumer, messages: list[Message]) -> None:
        with consumer.transaction(database.connection):
            database.add(messages)
            database.connection.execute("UPDATE semel_offsets SET token = token + 1")

    fill(client, topic, 40)
    with client.consumer("row", topic, offset_store=database.store) as consumer:
        messages = take(consumer, 40)
        with pytest.raises(LockLost):
            write_under_another_token(consumer, messages)
        assert database.results() == []
        again = take(consumer, 40)
        with consumer.transaction(database.connection):
            database.add(again)
    assert database.results() == values_of(messages)


def test_an_exception_rolls_back_and_the_messages_come_again(
    client: Client, topic: str, database: Database
) -> None:
    values = fill(client, topic, 40)
    with client.consumer("raise", topic, offset_store=database.store) as consumer:
        messages = take(consumer, 40)
        with pytest.raises(ZeroDivisionError):
            fail_after(consumer, database, lambda: database.add(messages))
        assert database.results() == []
        (first,) = consumer.poll(1, timeout=15)
        with consumer.transaction(database.connection, first):
            database.add([first])
        rest = take(consumer, 39)
        with consumer.transaction(database.connection):
            database.add(rest)
        with pytest.raises(InvalidRequest, match="transaction"):
            consumer.commit()
    assert database.results() == values
    assert client.admin.describe_group("raise").lag == 0


def test_what_is_retried_in_a_transaction_is_copied_once(
    client: Client, topic: str, database: Database
) -> None:
    values = fill(client, topic, 40)
    policy = RetryPolicy(steps_ms=(100,))
    with client.consumer("both", topic, offset_store=database.store, retry=policy) as consumer:
        messages = take(consumer, 40)
        with pytest.raises(ZeroDivisionError):
            fail_after(consumer, database, lambda: consumer.retry(messages[0], "rolled back"))
        messages = take(consumer, 40)
        with consumer.transaction(database.connection):
            for message in messages[:3]:
                consumer.retry(message, "later")
            database.add(messages[3:])
        later = take(consumer, 3)
        assert {message.attempt for message in later} == {2}
        with consumer.transaction(database.connection):
            database.add(later)
        assert consumer.poll(timeout=0.3) == []
    assert database.results() == values


async def test_asyncio_has_the_same(
    shared_cluster: Cluster, client: Client, topic: str, database: Database
) -> None:
    values = fill(client, topic, 40)
    seen: list[Message] = []
    async with (
        connect_async(shared_cluster.bootstrap) as other,
        other.consumer("aio", topic, offset_store=database.store) as consumer,
    ):
        with pytest.raises(ZeroDivisionError):  # noqa: PT012
            async with consumer.transaction(database.connection):
                database.add(await consumer.poll(5, timeout=15))
                raise ZeroDivisionError
        while len(seen) < 40:
            messages = await consumer.poll(15, timeout=15)
            async with consumer.transaction(database.connection):
                database.add(messages)
            seen += messages
    assert database.results() == values_of(seen) == values


def test_a_database_that_cannot_be_had_and_one_of_another_cluster_are_told(
    client: Client, topic: str, database: Database, tmp_path: Path
) -> None:
    fill(client, topic, 4)
    nowhere = SqlOffsets(lambda: sqlite3.connect(tmp_path / "no" / "such.db"))
    with (
        client.consumer("nowhere", topic, offset_store=nowhere) as consumer,
        pytest.raises(Unavailable, match="unable to open database"),
    ):
        take(consumer, 1)
    with client.consumer("ahead", topic, offset_store=database.store) as consumer:
        take(consumer, 4)
    database.connection.execute("UPDATE semel_offsets SET next_offset = 1000")
    database.connection.commit()
    with (
        client.consumer("ahead", topic, offset_store=database.store) as consumer,
        pytest.raises(OffsetOutOfRange, match="not of this queue"),
    ):
        take(consumer, 1)
    with (
        client.consumer("none", topic) as consumer,
        pytest.raises(InvalidRequest, match="offset_store"),
    ):
        consumer.transaction(database.connection)
