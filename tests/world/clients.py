"""Clients of a simulated cluster: programs over the SDK's public interface.

How it works. A *loader* sends the messages of a source under a durable name with source positions;
when it dies, the next one begins at the source's start again and relies on the exact resume. A
*sender* is anonymous; every life of it makes new messages. A *hasty* one speaks the protocol
without the SDK's window: batches come before their predecessors, and twice. A *member* consumes in
a group, commits, and sometimes sleeps beyond its lock. A *watcher* asks for the ends of queues. All
of them note what they do in the history; of the SDK nothing is exchanged but its I/O thread.

Not here: when they die (`nemesis.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any

import grpc
import grpc.aio
import pyarrow as pa

from semel.client import connect_async
from semel.client.connection import Purpose
from semel.client.identity import Identity
from semel.protos.columns import Columns, encode_batch
from semel.protos.errors import (
    DedupStateExpired,
    LockLost,
    NotMaster,
    OutOfOrderSequence,
    ProducerFenced,
    SemelError,
    Unavailable,
    from_detail,
)
from semel.protos.ids import QueueKey
from semel.protos.streams import PRODUCE_METHOD, encode_produce
from semel.protos.v1 import broker_pb2, common_pb2
from tests.checking.history import (
    Commit,
    Delivered,
    EndRead,
    Granted,
    Outcome,
    Send,
    digest_of,
)
from tests.world.loop import SimLoop
from tests.world.nodes import CONTROLLER
from tests.world.world import World

TOPIC = "orders"
GROUP = "billing"


class SimRuntime:
    """The SDK's I/O thread: here it is the loop that the caller is on."""

    def __init__(self, loop: SimLoop) -> None:
        self.loop = loop

    async def await_run(self, coroutine: Any) -> Any:
        return await self.loop.create_task(coroutine)

    def call_soon(self, function: Callable[..., object], *arguments: object) -> None:
        self.loop.call_soon(function, *arguments)


class ClientHost:
    """A machine with one program, which is started again when it dies."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.random = Random(world.random.getrandbits(64))
        self.starts = 0
        self.stopping = False
        """The run draws to its end: begin nothing new."""
        self.done = False
        self.restart_s = 0.3
        self.value_bytes = 0
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
                    CONTROLLER, request_timeout_ms=4_000, connect_timeout_ms=3_000
                ) as client:
                    await self.work(client)
            except ProducerFenced:
                self.world.count("producer fenced")
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

    def value(self, number: int) -> bytes:
        return f"{self.name}/{number}/".encode().ljust(self.value_bytes, b".")

    async def pause(self, mean_s: float) -> None:
        await asyncio.sleep(self.random.uniform(0, 2 * mean_s))


class Loader(ClientHost):
    """Loads a source under a durable name; positions are its line numbers."""

    def __init__(self, world: World, name: str, lines: int, mean_s: float) -> None:
        super().__init__(world, name)
        self.lines = lines
        self.mean_s = mean_s
        self.notes: dict[int, Send] = {}

    async def work(self, client: Any) -> None:
        world = self.world
        producer = client.producer(
            self.name, source_positions=True, linger_ms=1, delivery_timeout_ms=20_000
        )
        await producer.open(TOPIC)
        futures: list[asyncio.Future[None]] = []
        resume = await producer.last_sequence(TOPIC)
        if resume >= 0:
            world.count("loader resumed")
        for position in range(self.lines):
            if self.stopping and position not in self.notes:
                break
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


class Sender(ClientHost):
    """An anonymous producer; every message is a new one."""

    def __init__(self, world: World, name: str, mean_s: float, timeout_ms: int) -> None:
        super().__init__(world, name)
        self.mean_s = mean_s
        self.timeout_ms = timeout_ms
        self.number = 0

    async def work(self, client: Any) -> None:
        producer = client.producer(linger_ms=1, delivery_timeout_ms=self.timeout_ms)
        world = self.world
        futures: list[asyncio.Future[None]] = []
        while not self.stopping:
            burst = self.random.choice((1, 1, 2, 4))
            for _ in range(burst):
                self.number += 1
                value = self.value(self.number)
                key = b"k%d" % self.random.randrange(4) if self.random.random() < 0.5 else None
                note = Send(
                    client=f"{self.name}#{self.starts}",
                    number=self.number,
                    digest=digest_of(value, key),
                    began_s=world.now,
                    topic=TOPIC,
                )
                world.history.begin_send(note)
                future = producer.send(TOPIC, value, key=key)
                futures.append(asyncio.ensure_future(self._settle(future, note)))
            await self.pause(self.mean_s)
        await asyncio.gather(*futures, return_exceptions=True)
        self.done = True

    async def _settle(self, future: Any, note: Send) -> None:
        world = self.world
        try:
            found = await future
        except SemelError as error:
            note.error = type(error).__name__
            note.ended_s = world.now
            world.count(f"send: {note.error}")
            return
        note.outcome, note.ended_s = Outcome.OK, world.now
        note.offset, note.sequence = found.offset, found.sequence
        world.tell(f"ok {note.number} at {found.queue}:{found.offset}")


class Hasty(ClientHost):
    """Speaks the produce protocol itself: sends each window in a random order, some of it twice."""

    def __init__(self, world: World, name: str, mean_s: float) -> None:
        super().__init__(world, name)
        self.mean_s = mean_s
        self.number = 0

    async def work(self, client: Any) -> None:
        cluster = client._session.cluster
        identity = Identity(cluster, "")
        await identity.ensure()
        queue = self.random.choice((await cluster.topic(TOPIC)).queues)
        await identity.fence([queue], 1, 3.0, after_expiry=True)
        last = -1
        while not self.stopping:
            batches: dict[int, tuple[bytes, Send]] = {}
            for sequence in range(last + 1, last + 5):
                batches[sequence] = self._batch(identity, queue.key, sequence)
            await self._store(cluster, queue.group_id, batches)
            last += 4
            await self.pause(4 * self.mean_s)
        self.done = True

    def _batch(self, identity: Identity, key: QueueKey, sequence: int) -> tuple[bytes, Send]:
        self.number += 1
        value = self.value(self.number)
        batch = encode_batch(
            Columns(values=pa.array([value], pa.binary())),
            topic_id=key.topic_id,
            queue_id=key.queue_id,
            producer_id=identity.producer_id,
            epoch=identity.epoch,
            session=1,
            previous_sequence=sequence - 1,
            base_sequence=sequence,
            last_sequence=sequence,
            timestamp_us=1_700_000_000_000_000,
        )
        note = Send(
            client=f"{self.name}#{self.starts}",
            number=self.number,
            digest=digest_of(value),
            began_s=self.world.now,
            topic=TOPIC,
        )
        self.world.history.begin_send(note)
        return batch, note

    async def _store(
        self, cluster: Any, group_id: Any, batches: dict[int, tuple[bytes, Send]]
    ) -> None:
        """Sends the window to whoever is master until all of it is answered.

        Raises ProducerFenced, DedupStateExpired: then what is open stays unknown.
        """
        while batches and not self.stopping:
            master = await cluster.master(group_id)
            channel = cluster.connections.channel(master.address, Purpose.PRODUCE)
            call = channel.stream_stream(
                PRODUCE_METHOD, response_deserializer=broker_pb2.ProduceReply.FromString
            )()
            order = [batch for batch, _ in batches.values()]
            order += self.random.sample(order, 1)
            self.random.shuffle(order)
            try:
                async with asyncio.timeout(1.0):
                    for batch in order:
                        await call.write(encode_produce([batch]))
                    while batches and (reply := await call.read()) is not grpc.aio.EOF:
                        self._take(reply, batches)
            except (TimeoutError, grpc.RpcError, asyncio.InvalidStateError, NotMaster) as error:
                cluster.on_master_error(group_id, master, Unavailable(f"try again: {error!r}"))
                await self.pause(0.05)
            finally:
                call.cancel()

    def _take(self, reply: broker_pb2.ProduceReply, batches: dict[int, tuple[bytes, Send]]) -> None:
        world = self.world
        for ack in reply.acks:
            if ack.base_sequence not in batches:
                continue
            if ack.status == broker_pb2.PRODUCE_STATUS_FAILED:
                error = from_detail(ack.error)
                if not error.retriable and not isinstance(error, OutOfOrderSequence):
                    raise error
                continue
            _, note = batches.pop(ack.base_sequence)
            note.outcome, note.ended_s = Outcome.OK, world.now
            note.queue, note.offset = (ack.topic_id, ack.queue_id), ack.base_offset
            note.sequence = ack.base_sequence
            world.tell(f"ok {note.number} at {ack.queue_id}:{ack.base_offset}")
        if reply.HasField("error"):
            raise from_detail(reply.error)


class Member(ClientHost):
    """A consumer of the group; each life is a new member."""

    def __init__(self, world: World, name: str, lock_ms: int) -> None:
        super().__init__(world, name)
        self.lock_ms = lock_ms
        self.caught_up: Callable[[], bool] = lambda: False

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
                    world.history.add(
                        Delivered(
                            client=name,
                            at_s=world.now,
                            queue=(message.topic_id, message.queue),
                            offset=message.offset,
                            digest=digest_of(message.value, message.key),
                            group=GROUP,
                            token=message.rows.token,
                        )
                    )
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
                        world.history.add(
                            Granted(
                                client=name,
                                group=request.group,
                                queue=(grant.queue.topic_id, grant.queue.queue_id),
                                token=grant.token,
                                committed_offset=max(
                                    grant.committed_offset, grant.log_start_offset
                                ),
                                at_s=world.now,
                            )
                        )
                        world.count("lock granted")
            for commit, outcome in zip(commits, getattr(reply, "outcomes", ()), strict=False):
                commit.accepted = not outcome.HasField("error")
                commit.ended_s = world.now
            return reply

        cluster.call_master = observed


class Watcher(ClientHost):
    """Asks for the ends of the queues."""

    def __init__(self, world: World, name: str, mean_s: float) -> None:
        super().__init__(world, name)
        self.mean_s = mean_s

    async def work(self, client: Any) -> None:
        world = self.world
        cluster = client._session.cluster
        route = await cluster.topic(TOPIC)
        while not self.stopping:
            await self.pause(self.mean_s)
            queue = self.random.choice(route.queues)
            note = EndRead(
                client=self.name,
                queue=(queue.key.topic_id, queue.key.queue_id),
                began_s=world.now,
            )
            world.history.add(note)
            request = broker_pb2.ListOffsetsRequest(
                queues=[
                    common_pb2.QueueRef(topic_id=queue.key.topic_id, queue_id=queue.key.queue_id)
                ]
            )
            reply = await cluster.call_master(queue.group_id, "ListOffsets", request)
            if not reply.queues[0].HasField("error"):
                note.end_offset, note.ended_s = reply.queues[0].high_watermark, world.now
                world.count("end read")
        self.done = True
