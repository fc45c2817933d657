"""Consumers that keep results and offsets in one SQL database: each result once, in order.

How it works. *Accountants* consume in a group, with an offset store, and write one row for each
message in the transaction that stores the offsets. They take messages in all the ways that there
are, sleep beyond their locks, freeze with messages in hand, change their minds, die. The database
is a real one (SQLite, in memory), behind a server that forgets the transactions of programs that
die, refuses to wait for another transaction, and at times loses a connection in a commit, before or
after. Claims are
slow at times, so that locks come and go meanwhile. An operator resets the group's offsets at the
brokers, which must have no effect.

What must hold
1. With each transaction: the results of a queue come in the order of its offsets, each once, and
   nothing is left out but what was trimmed.
2. At the end there is a result of each message that is stored, with its content.

Not here: locks and progress at the brokers (`../consumption.py`).
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from itertools import count
from random import Random
from typing import Any
from unittest.mock import patch

from semel.client import SqlOffsets
from semel.client.consumer.commits import Commits
from semel.client.consumer.sql_offsets import SqlOffsets as Store
from semel.client.consumer.start_offsets import StoredOffsets
from semel.client.reading.feed_queue import FeedQueue
from semel.client.reading.outstanding import Outstanding, Span
from semel.protos.compat import timeout
from semel.protos.errors import LockLost, SemelError, Unavailable
from semel.protos.ids import QueueId, QueueKey, TopicId
from tests.checking.history import digest_of
from tests.checking.raw_log import Fold
from tests.world.clients import READS, TOPIC, Member
from tests.world.loop import PROCESS
from tests.world.nemesis import Nemesis
from tests.world.operator import Job
from tests.world.plan import Plan, Step, with_clients, with_steps
from tests.world.registry import Part, add_part, fault, program, random_of
from tests.world.run import Run
from tests.world.world import World

GROUP = "accounting"
_INSERT = "INSERT INTO results VALUES (?, ?, ?, ?)"
PLACES = ("earliest", "latest")
_LOST = 0.02
"""Share of commits whose connection breaks before them, and of those where it breaks after them."""
_NUMBERS = count()

Result = tuple[int, int, str, str]
"""Queue, offset, digest of the message, name of the consumer."""


class ResultsError(AssertionError):
    """Results in the database are not those of the messages."""


class _MindChangedError(Exception):
    """Raised by a program to give its transaction up."""


class Connection(sqlite3.Connection):
    """A connection of a program, or of a claim."""

    books: Books

    def commit(self) -> None:
        chance = self.books.random.random()
        if chance < _LOST:
            self.rollback()
            raise sqlite3.OperationalError("the connection broke before the commit")
        super().commit()
        self.books.look()
        if chance > 1 - _LOST:
            raise sqlite3.OperationalError("the connection broke after the commit")


class Books:
    """The database of a run."""

    def __init__(self) -> None:
        self.random = Random(0)
        """The run replaces it."""
        self.topic_id = TopicId(0)
        self.starts: dict[QueueKey, int] = {}
        """First offset of each queue that is not trimmed."""
        self.digests: dict[tuple[int, int], str] = {}
        """Digests of the results that are stored, by queue and offset."""
        self._uri = f"file:books-{next(_NUMBERS)}?mode=memory&cache=shared"
        self._own = sqlite3.connect(self._uri, uri=True, check_same_thread=False)
        self._own.execute("CREATE TABLE results (queue INT, offset INT, digest TEXT, who TEXT)")
        self._own.commit()
        self._seen = 0
        self._due: dict[int, int] = {}

    def connect(self) -> Connection:
        """A connection of the running process; its transaction ends with the process."""
        made = sqlite3.connect(
            self._uri, uri=True, factory=Connection, timeout=0, check_same_thread=False
        )
        made.books = self
        PROCESS.get().on_death.append(made.close)
        return made

    def close(self) -> None:
        self._own.close()

    def start(self, queue: int) -> int:
        """First offset that is not trimmed."""
        return self.starts.get(QueueKey(self.topic_id, QueueId(queue)), 0)

    def due(self, queue: int) -> int:
        """One past the last result of a queue."""
        return self._due.get(queue, 0)

    def claimed(self) -> list[int]:
        """Queues that have a row in the offsets' table."""
        try:
            rows = self._own.execute("SELECT queue_id FROM semel_offsets").fetchall()
        except sqlite3.OperationalError:  # there is no table yet, or somebody writes
            return []
        return [queue for (queue,) in rows]

    def look(self) -> None:
        """Checks what was committed. Raises ResultsError."""
        rows = self._own.execute(
            "SELECT rowid, * FROM results WHERE rowid > ? ORDER BY rowid", (self._seen,)
        ).fetchall()
        for number, queue, offset, digest, who in rows:
            due = self.due(queue)
            if offset < due:
                raise ResultsError(f"{who} stores the result of {queue}:{offset} once more")
            if offset > max(due, self.start(queue)):
                raise ResultsError(f"{who} leaves out {queue}:{due} to {offset}")
            self._due[queue] = offset + 1
            self._seen = number
            self.digests[queue, offset] = digest


class Accountant(Member):
    """A consumer whose results and offsets are in one database."""

    stage = READS

    def __init__(self, world: World, name: str, lock_ms: int, books: Books) -> None:
        super().__init__(world, name, lock_ms)
        self.books = books
        self.client: Any = None

    async def work(self, client: Any) -> None:
        self.client = client
        self.books.topic_id = (await client._session.cluster.topic(TOPIC)).topic_id
        database = self.books.connect()
        store = SqlOffsets(self.books.connect, paramstyle="qmark")
        try:
            async with client.consumer(
                GROUP, TOPIC, lock_ms=self.lock_ms, session_ms=800, offset_store=store
            ) as consumer:
                while not (self.stopping and self.caught_up()):
                    await self._try(consumer, database)
        finally:
            database.close()
        self.done = True

    async def wind_up(self) -> None:
        """It is done when everything is accounted for, not before."""

    async def _try(self, consumer: Any, database: Connection) -> None:
        world = self.world
        try:
            await self._account(consumer, database)
        except LockLost:
            world.count("transaction refused: lock lost")
        except Unavailable:
            world.count("claim without a database")
        except _MindChangedError:
            world.count("transaction given up")
        except sqlite3.OperationalError as error:
            world.count("transaction broken")
            world.tell(f"{self.name}: {error}")

    async def _account(self, consumer: Any, database: Connection) -> None:
        way = self.random.random()
        if way < 0.15:
            batch = await consumer.poll_arrow(timeout=0.3)
            columns = ("queue", "offset", "value", "key")
            rows = [] if batch is None else batch.select(columns).to_pylist()
            given = [tuple(row[name] for name in columns) for row in rows]
            await self._store(consumer, database, given)
        elif way < 0.3:
            await self._iterate(consumer, database)
        else:
            messages = await consumer.poll(max_messages=self.random.randint(1, 6), timeout=0.3)
            given = [(one.queue, one.offset, one.value, one.key) for one in messages]
            if way < 0.9:
                await self._store(consumer, database, given)
                return
            for message, one in zip(messages, given, strict=True):
                await self._store(consumer, database, [one], message)

    async def _iterate(self, consumer: Any, database: Connection) -> None:
        """A few messages of an iteration, and a transaction over them."""
        given: list[Any] = []
        try:
            async with timeout(0.3):
                async for one in consumer:
                    given.append((one.queue, one.offset, one.value, one.key))
                    if len(given) >= 4:
                        break
        except TimeoutError:
            pass
        except Unavailable:  # of another queue: what was given before is in hand
            self.world.count("claim without a database")
        await self._store(consumer, database, given)

    async def _store(
        self, consumer: Any, database: Connection, given: Sequence[Any], message: Any = None
    ) -> None:
        """Results of messages, and the progress behind them."""
        if not given:
            return
        await self._dawdle()
        async with consumer.transaction(database, message):
            rows: list[Result] = [
                (queue, offset, digest_of(value, key), self.name)
                for queue, offset, value, key in given
            ]
            database.executemany(_INSERT, rows)
            if not self.stopping and self.random.random() < 0.05:
                await asyncio.sleep(self.random.uniform(0, self.lock_ms / 700))
            if not self.stopping and self.random.random() < 0.06:
                # Just now: that it ended a lock is heard in the background, by whatever comes next.
                self.world.count("offsets reset in a transaction")
                with suppress(SemelError):
                    await reset_offsets(self.books, self.random.choice(PLACES))(self.client)
            if not self.stopping and self.random.random() < 0.03:
                raise _MindChangedError
        self.world.count("transaction with results")

    async def _dawdle(self) -> None:
        """Freezes with messages in hand."""
        world = self.world
        chance = self.random.random()
        if self.stopping:
            return
        if chance < 0.08:
            world.count("accountant slept beyond its lock")
            await asyncio.sleep(self.lock_ms / 1000 * 1.5)
        elif chance < 0.16:
            # It wakes up with results in hand, and knows nothing of its lost locks.
            world.count("accountant froze")
            until = world.now + self.random.uniform(0.9, 2.0)
            world.loop.stop_process(PROCESS.get(), until)
        elif chance < 0.7:
            # So that there is always more to take: what comes in the background finds messages out.
            await asyncio.sleep(self.random.uniform(0, 0.06))

    def verdict(self, fold: Fold) -> str:
        return verdict(
            self.books,
            {
                (int(row.queue[1]), row.offset): row.digest
                for row in fold.rows
                if fold.topics[row.queue[0]] == TOPIC
            },
        )


def verdict(books: Books, stored: dict[tuple[int, int], str]) -> str:
    """The first error in the results of stored messages; empty when there is none."""
    for (queue, offset), digest in sorted(stored.items()):
        found = books.digests.get((queue, offset))
        if found is None and offset >= books.start(queue):
            return f"results: there is none of message {offset} of queue {queue}"
        if found not in (None, digest):
            return f"results: that of message {offset} of queue {queue} is of another message"
    for queue, offset in sorted(books.digests):
        if (queue, offset) not in stored:
            return f"results: there is one of message {offset} of queue {queue}, which is not there"
    return ""


@program("accountant", host="k")
def accountant(run: Run, host: str) -> Accountant:
    books = run.shared(Books)
    books.starts = run.groups[0].invariants.folded.consumption.told.starts
    made = Accountant(run.world, host, run.plan.lock_ms, books)
    made.caught_up = lambda: run.is_read(GROUP) and _is_accounted(run, books)
    return made


def _is_accounted(run: Run, books: Books) -> bool:
    """Whether all is accounted for. The brokers' word is not enough: somebody may have reset it."""
    replicas = [group.judge() for group in run.groups]
    return all(
        books.due(key.queue_id) >= queue.log_end_offset
        or queue.log_start_offset == queue.log_end_offset
        for replica in replicas
        if replica is not None
        for key, queue in replica.state.queues.items()
        if queue.topic == TOPIC
    )


def with_results(plan: Plan) -> Plan:
    random = random_of(plan, "results")
    kinds = ("reset offsets",) * 4 + ("member stop",) * 2 + ("member unheard", "client crash")
    steps = [
        Step(round(random.uniform(0, plan.duration_s + 1.0), 6), kind, random.getrandbits(32))
        for kind in (*random.choices(kinds, k=random.choice((3, 6, 12))), "heal")
    ]
    longer = with_clients(plan, ("sender 1", "sender 2", "accountant 1", "accountant 2"))
    return with_steps(longer, steps)


@contextmanager
def slow_claims(run: Run) -> Iterator[None]:
    """Makes some claims slow, before or after the row is theirs."""
    claim = StoredOffsets.claim
    random = run.shared(Books).random = Random(f"{run.plan.seed} books")

    async def slow(stored: StoredOffsets, queue: FeedQueue, start: int, member_id: str) -> int:
        if random.random() < 0.1:
            await asyncio.sleep(random.uniform(0, 1.0))
        offset = await claim(stored, queue, start, member_id)
        if random.random() < 0.1:
            await asyncio.sleep(random.uniform(0, 1.0))
        return offset

    try:
        with patch.object(StoredOffsets, "claim", slow):
            yield
    finally:
        run.shared(Books).close()


@fault("reset offsets")
def reset(nemesis: Nemesis) -> None:
    """Resets offsets at the brokers, which must not concern queues that have rows."""
    to = nemesis.random.choice(PLACES)
    books = nemesis.run.shared(Books)
    nemesis.run.operator.ask("reset offsets of results", reset_offsets(books, to), once=True)


def reset_offsets(books: Books, to: str) -> Job:
    async def job(client: Any) -> None:
        if claimed := books.claimed():
            await client.admin.reset_offsets(GROUP, TOPIC, dict.fromkeys(claimed, to))

    return job


add_part(
    Part(
        name="results",
        help="a group keeps its results and its offsets in one SQL database",
        add=with_results,
        exchange=slow_claims,
    )
)


# --- planted bugs


def overlooks_lost_locks() -> AbstractContextManager[object]:
    """A transaction stores the progress of the queues that are held, whatever else it is about."""
    prepare = Commits._prepare

    async def bad(commits: Commits, spans: Iterable[Span]) -> Any:
        held = [span for span in spans if commits._locks.find(span.key, span.token) is not None]
        return await prepare(commits, held)

    return patch.object(Commits, "_prepare", bad)


def stores_under_any_token() -> AbstractContextManager[object]:
    """A row is changed without a look at its claim."""

    def advance(store: Store, connection: Any, progress: Any) -> None:
        for place, _, _, offset in progress:
            found = store._row(connection, place)
            if found is not None and found[0] <= offset:
                store._execute(
                    connection,
                    f"UPDATE {store._table} SET next_offset = :next_offset WHERE"
                    " consumer_group = :consumer_group AND topic_id = :topic_id"
                    " AND queue_id = :queue_id",
                    place.parameters(next_offset=offset),
                )

    return patch.object(Store, "advance", advance)


def rewinds_in_doubt() -> AbstractContextManager[object]:
    """After a COMMIT that failed everything is given out again, as if it had not been stored."""
    give_back = Outstanding.give_back

    def bad(outstanding: Outstanding, *, in_doubt: bool = False) -> None:
        give_back(outstanding)

    return patch.object(Outstanding, "give_back", bad)


PLANTS: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "overlooks lost locks": overlooks_lost_locks,
    "rewinds in doubt": rewinds_in_doubt,
    "stores under any token": stores_under_any_token,
}
