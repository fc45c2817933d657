"""Clients of a simulated cluster: programs over the SDK's public interface.

How it works. A *loader* sends the messages of a source under a durable name with source positions;
when it dies, the next one begins at the source's start again and relies on the exact resume. A
*sender* is anonymous; every life of it makes new messages. A *postponer* is a sender of
delayed messages. A *member* consumes in a group, commits, and sometimes sleeps beyond its lock. A
*follower* reads without a group. A *watcher* asks for the ends of queues. All of them note in the
history what they do. The SDK is the real one; only its I/O thread is replaced.

A loader whose rows have expired gets an error. Then it does what the documentation asks of it: it
fences with `after_expiry`, reads what is stored, and sends the rest.

Not here: clients that speak the protocol themselves (`protocol_clients.py`), when they die
(`nemesis.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any, ClassVar

from semel.broker.replica.clock import wall_us
from semel.client import connect_async
from semel.client.transport.connection import BROKER
from semel.protos import compat
from semel.protos.errors import (
    DedupStateExpired,
    DelayThrottled,
    LockLost,
    ProducerFenced,
    SemelError,
    UnsupportedVersion,
)
from semel.protos.queue_refs import queue_ref
from semel.protos.security.credentials import Security
from semel.protos.v1 import broker_pb2
from tests.checking.history import (
    Commit,
    Delivered,
    EndRead,
    Granted,
    Outcome,
    Send,
    digest_of,
)
from tests.checking.raw_log import Fold
from tests.world.loop import PROCESS, SimLoop
from tests.world.nodes import CONTROLLER
from tests.world.registry import program
from tests.world.world import World

if TYPE_CHECKING:
    from tests.world.run import Run

TOPIC = "orders"
GROUP = "billing"
WRITES, READS, AUDITS = range(3)
"""Stages of a run's end."""


class SimRuntime:
    """Takes the place of the SDK's I/O thread: the loop that the caller is on."""

    def __init__(self, loop: SimLoop) -> None:
        self.loop = loop

    async def await_run(self, coroutine: Any) -> Any:
        return await self.loop.create_task(coroutine)

    def call_soon(self, function: Callable[..., object], *arguments: object) -> None:
        self.loop.call_soon(function, *arguments)


class ClientHost:
    """A machine with one program, which is started again when it dies."""

    stage: ClassVar[int] = WRITES
    """When the run ends, programs of a later stage wait for all programs of earlier stages."""
    topics: ClassVar[tuple[str, ...]] = ()
    """Topics that it makes for itself; it checks their content itself."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.random = Random(world.random.getrandbits(64))
        self.starts = 0
        self.stopping = False
        """True when the run draws to its end: the program begins nothing new."""
        self.done = False
        self.restart_s = 0.3
        self.level_max = world.level_max
        """Highest feature level of the program that its next process runs."""
        self.value_bytes = 0
        self.bootstrap = CONTROLLER
        """The controllers' addresses."""
        self.security: Security | None = None
        """Whom its certificate names; None in a world without TLS."""
        self.log_time_us: Callable[[], int] = lambda: 0
        self.delay_us_max = 2_500_000
        """The longest delay of delayed messages."""
        self.quiet: Callable[[], bool] = lambda: True
        """Whether all programs of earlier stages are done."""
        world.crashes[name] = self._on_crash

    def start(self) -> None:
        if self.name in self.world.hosts or self.done:
            return
        self.starts += 1
        self.world.start(self.name, self.starts, self._main)

    def _on_crash(self, why: str) -> None:
        self.world.later(self.restart_s, self.start)

    async def _main(self) -> None:
        while not self.done:
            try:
                async with connect_async(
                    self.bootstrap,
                    request_timeout_ms=4_000,
                    connect_timeout_ms=3_000,
                    keep_routes=False,
                    level_max=self.level_max,
                    security=self.security,
                ) as client:
                    await self.work(client)
            except ProducerFenced:
                self.world.count("producer fenced")
                if self.world.hosts.get(self.name) is not PROCESS.get():
                    return  # another program has the name now
            except SemelError as error:
                self.world.tell(f"{type(error).__name__}: {error.message}")
            except BaseExceptionGroup as group:
                if group.split(SemelError)[1] is not None:
                    raise
            if self.stopping and not self.done:
                await self.wind_up()
            await asyncio.sleep(0.2)

    async def work(self, client: Any) -> None:
        """The program; called again whenever it fails."""
        raise NotImplementedError

    async def wind_up(self) -> None:
        """Called when the run ends."""
        self.done = True

    def verdict(self, fold: Fold) -> str:
        """The first contradiction between what it has seen and what is stored, once all is at rest;
        empty when there is none."""
        return ""

    def value(self, number: int) -> bytes:
        return f"{self.name}/{number}/".encode().ljust(self.value_bytes, b".")

    def soon_us(self) -> int:
        """A delivery time. The client's clock is set to log time: clocks are far apart here."""
        now_us = self.log_time_us()
        PROCESS.get().wall_offset += (now_us - wall_us()) / 1e6
        self.world.count("message delayed")
        return now_us + int(self.random.uniform(0, self.delay_us_max))

    async def pause(self, mean_s: float) -> None:
        await asyncio.sleep(self.random.uniform(0, 2 * mean_s))


class Loader(ClientHost):
    """Loads a source under a durable name; positions are its line numbers."""

    def __init__(self, world: World, name: str, lines: int, mean_s: float) -> None:
        super().__init__(world, name)
        self.lines = lines
        self.mean_s = mean_s
        self.notes: dict[int, Send] = {}
        self.forgotten = False
        """True once its rows have expired in one of its lives."""

    async def work(self, client: Any) -> None:
        world = self.world
        producer, stored = await self._open(client)
        futures: list[asyncio.Future[None]] = []
        resume = await producer.last_sequence(TOPIC)
        if resume >= 0:
            world.count("loader resumed")
        for position in range(self.lines):
            if self.stopping and position not in self.notes:
                break
            if position in stored:
                continue
            value = self.value(position)
            note = self.notes.get(position)
            if note is None:
                note = self.notes[position] = Send(
                    client=self.name,
                    number=position,
                    digest=digest_of(value),
                    began_s=world.now,
                    topic=TOPIC,
                    producer=self.name,
                )
                world.history.begin_send(note)
            future = producer.send(TOPIC, value, position=position)
            futures.append(asyncio.ensure_future(self._settle(future, note)))
            if position > resume:
                await self.pause(self.mean_s)
        results = await asyncio.gather(*futures, return_exceptions=True)
        await producer.flush()
        for result in results:
            if isinstance(result, BaseException):
                raise result
        self.done = True

    async def _open(self, client: Any) -> tuple[Any, frozenset[int]]:
        """Returns the producer, and the positions that it must leave out."""
        options = {"source_positions": True, "linger_ms": 1, "delivery_timeout_ms": 20_000}
        if not self.forgotten:
            producer = client.producer(self.name, **options)
            try:
                await producer.open(TOPIC)
            except DedupStateExpired:
                self.world.count("loader forgotten")
                self.forgotten = True
            else:
                return producer, frozenset()
        # Until it has finished, every life must read: what the last one stored may expire, too.
        producer = client.producer(self.name, after_expiry="restart", **options)
        await producer.open(TOPIC)  # from here on nothing of an earlier life can be stored
        return producer, await self._stored(client)

    async def _stored(self, client: Any) -> frozenset[int]:
        """The positions of the source that are in the topic."""
        own = f"{self.name}/".encode()
        found: set[int] = set()
        async with client.reader(TOPIC, end="latest") as reader:
            async for message in reader:
                if not message.value.startswith(own):
                    continue
                position = int(message.value.split(b"/")[1])
                found.add(position)
                note = self.notes[position]
                if note.outcome is Outcome.UNKNOWN:
                    note.outcome, note.ended_s = Outcome.OK, self.world.now
                    note.queue = (message.topic_id, message.queue)
                    note.offset = message.offset
        self.world.count("loader read what is stored")
        return frozenset(found)

    async def _settle(self, future: Any, note: Send) -> None:
        try:
            found = await future
        except DedupStateExpired:
            self.world.count("fate unknown: dedup state expired")
            raise
        world = self.world
        if note.outcome is Outcome.UNKNOWN:
            note.outcome, note.ended_s = Outcome.OK, world.now
            note.offset = found.offset
            if found.duplicate:
                world.count("duplicate acknowledged")
        world.tell(f"ok {note.number} at {found.queue}:{found.offset}")

    async def wind_up(self) -> None:
        """Goes on until every message it began with is stored."""


@program("loader", host="l")
def _loader(run: Run, host: str) -> Loader:
    return Loader(run.world, host, run.plan.lines, run.plan.send_mean_s)


class Sender(ClientHost):
    """An anonymous producer; every message is a new one."""

    def __init__(self, world: World, name: str, mean_s: float, timeout_ms: int) -> None:
        super().__init__(world, name)
        self.mean_s = mean_s
        self.timeout_ms = timeout_ms
        self.number = 0
        self.fenced: ProducerFenced | None = None

    async def work(self, client: Any) -> None:
        producer = client.producer(linger_ms=1, delivery_timeout_ms=self.timeout_ms)
        futures: list[asyncio.Future[None]] = []
        self.fenced = None
        while not self.stopping:
            if self.fenced is not None:
                raise self.fenced
            burst = self.random.choice((1, 1, 2, 4))
            futures += [self.send(producer)[1] for _ in range(burst)]
            await self.pause(self.mean_s)
        await asyncio.gather(*futures, return_exceptions=True)
        self.done = True

    def send(self, producer: Any) -> tuple[Send, asyncio.Future[None]]:
        """Sends a message; the future ends when the note says what has become of it."""
        self.number += 1
        value = self.value(self.number)
        key = b"k%d" % self.random.randrange(4) if self.random.random() < 0.5 else None
        due_us = self.due_us()
        note = Send(
            client=f"{self.name}#{self.starts}",
            number=self.number,
            digest=digest_of(value, key),
            began_s=self.world.now,
            topic=TOPIC,
            due_us=due_us,
        )
        self.world.history.begin_send(note)
        future = producer.send(TOPIC, value, key=key, deliver_at=due_us or None)
        return note, asyncio.ensure_future(self._settle(future, note))

    def due_us(self) -> int:
        """When the next message is due; 0: at once."""
        return 0

    async def _settle(self, future: Any, note: Send) -> None:
        world = self.world
        try:
            found = await future
        except SemelError as error:
            note.error = type(error).__name__
            note.ended_s = world.now
            if isinstance(error, UnsupportedVersion | DelayThrottled):
                note.outcome = Outcome.FAIL
            world.count(f"send: {note.error}")
            if isinstance(error, ProducerFenced):
                self.fenced = error
            return
        note.outcome, note.ended_s = Outcome.OK, world.now
        note.offset, note.sequence = found.offset, found.sequence
        world.tell(f"ok {note.number} at {found.queue}:{found.offset}")


@program("sender", host="s")
def _sender(run: Run, host: str) -> Sender:
    return Sender(run.world, host, run.plan.send_mean_s, run.plan.send_timeout_ms)


class Postponer(Sender):
    """A sender most of whose messages are delayed, for seconds at most."""

    share_at_once = 0.3

    def due_us(self) -> int:
        return 0 if self.random.random() < self.share_at_once else self.soon_us()


@program("postponer", host="p")
def _postponer(run: Run, host: str) -> Postponer:
    return Postponer(run.world, host, run.plan.send_mean_s, run.plan.send_timeout_ms)


class Member(ClientHost):
    """A consumer of the group; each life is a new member."""

    stage = READS

    def __init__(self, world: World, name: str, lock_ms: int) -> None:
        super().__init__(world, name)
        self.lock_ms = lock_ms
        self.caught_up: Callable[[], bool] = lambda: False
        self.told: Callable[[Granted | Delivered], None] = lambda _: None
        """A consumer that notes at once what it is granted and given."""

    async def work(self, client: Any) -> None:
        world = self.world
        name = f"{self.name}#{self.starts}.{self.random.randrange(10**9)}"
        self._observe(client, name)
        async with client.consumer(
            GROUP, TOPIC, lock_ms=self.lock_ms, session_ms=800, client_name=name
        ) as consumer:
            while not (self.stopping and self.caught_up()):
                messages = await consumer.poll(max_messages=8, timeout=0.3)
                for message in messages:
                    given = Delivered(
                        client=name,
                        at_s=world.now,
                        queue=(message.topic_id, message.queue),
                        offset=message.offset,
                        digest=digest_of(message.value, message.key),
                        group=GROUP,
                        token=message.rows.token,
                    )
                    world.history.add(given)
                    self.told(given)
                if not messages:
                    continue
                if not self.stopping and self.random.random() < 0.05:
                    world.count("consumer slept beyond its lock")
                    await asyncio.sleep(self.lock_ms / 1000 * 1.5)
                try:
                    await consumer.commit(messages[-1])
                except LockLost:
                    world.count("commit refused: lock lost")
        self.done = True

    def _observe(self, client: Any, name: str) -> None:
        """Notes grants and commits as the brokers answer them."""
        world = self.world
        cluster = client._session.cluster
        call_master = cluster.call_master

        async def observed(
            group_id: Any, method: str, request: Any, timeout_s: float | None = None
        ) -> Any:
            commits: list[Commit] = []
            if method == "Commit":
                commits = [
                    Commit(
                        client=name,
                        group=request.group,
                        queue=(one.queue.topic_id, one.queue.queue_id),
                        token=one.token,
                        offset=one.offset,
                        began_s=world.now,
                    )
                    for one in request.commits
                ]
                for commit in commits:
                    world.history.add(commit)
            reply = await call_master(group_id, method, request, timeout_s)
            if method == "AcquireLocks":
                for grant in reply.grants:
                    if grant.token:
                        granted = Granted(
                            client=name,
                            group=request.group,
                            queue=(grant.queue.topic_id, grant.queue.queue_id),
                            token=grant.token,
                            committed_offset=max(grant.committed_offset, grant.log_start_offset),
                            at_s=world.now,
                        )
                        world.history.add(granted)
                        self.told(granted)
                        world.count("lock granted")
            for commit, outcome in zip(commits, getattr(reply, "outcomes", ()), strict=False):
                commit.accepted = not outcome.HasField("error")
                commit.ended_s = world.now
            return reply

        cluster.call_master = observed


@program("member", host="m")
def _member(run: Run, host: str) -> Member:
    made = Member(run.world, host, run.plan.lock_ms)
    made.caught_up = lambda: run.is_read(GROUP)
    made.told = run.groups[0].invariants.told
    return made


class Follower(ClientHost):
    """A reader without a group: each life reads a topic from its start on, and follows it."""

    stage = READS
    choices: ClassVar[tuple[str, ...]] = (TOPIC,)
    """The topics of which each life reads one."""

    async def work(self, client: Any) -> None:
        world = self.world
        name = f"{self.name}#{self.starts}.{self.random.randrange(10**9)}"
        topic = self.choices[(self.starts - 1) % len(self.choices)]
        async with client.reader(topic) as reader:
            while not self.stopping:
                for message in await reader.poll(max_messages=16, timeout=0.2):
                    world.history.add(
                        Delivered(
                            client=name,
                            at_s=world.now,
                            queue=(message.topic_id, message.queue),
                            offset=message.offset,
                            digest=digest_of(message.value, message.key),
                        )
                    )
                    world.seen["message read"] += 1
        self.done = True


@program("follower", host="f")
def _follower(run: Run, host: str) -> Follower:
    return Follower(run.world, host)


class Watcher(ClientHost):
    """Asks the master, or any node that takes itself for it, for the ends of the queues."""

    stage = READS

    def __init__(self, world: World, name: str, mean_s: float) -> None:
        super().__init__(world, name)
        self.mean_s = mean_s
        self.addresses: Callable[[], list[str]] = list
        """All brokers. A client that follows its routes hardly ever asks a former master."""

    async def work(self, client: Any) -> None:
        cluster = client._session.cluster
        route = await cluster.topic(TOPIC)
        async with compat.TaskGroup() as tasks:
            while not self.stopping:
                await self.pause(self.mean_s)
                queue = self.random.choice(route.queues)
                if self.random.random() < 0.5:
                    await self._ask(queue, cluster.call_master, cluster.routes.home(queue))
                for address in self.random.sample(self.addresses(), 1):
                    call = cluster.connections.call
                    tasks.create_task(self._ask(queue, call, address, BROKER))
        self.done = True

    async def _ask(self, queue: Any, call: Any, *whom: Any) -> None:
        world = self.world
        note = EndRead(
            client=self.name,
            queue=(queue.key.topic_id, queue.key.queue_id),
            began_s=world.now,
        )
        world.history.add(note)
        request = broker_pb2.ListOffsetsRequest(queues=[queue_ref(queue.key)])
        try:
            reply = await call(*whom, "ListOffsets", request, 2.0)
        except SemelError:
            return  # nobody answers, or not the master
        if not reply.queues[0].HasField("error"):
            note.end_offset, note.ended_s = reply.queues[0].high_watermark, world.now
            world.count("end read")


@program("watcher", host="w")
def _watcher(run: Run, host: str) -> Watcher:
    made = Watcher(run.world, host, 0.12)
    made.addresses = lambda: [one.config.listen for one in run.hosts.values()]
    return made
