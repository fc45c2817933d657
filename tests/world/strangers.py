"""Programs that try what they may not: an intruder, a forger, and a guest who is turned out.

How it works. An *intruder* knows all: ids of topics and queues, the producers' ids, epochs and
sessions, the tokens of locks. It calls every method of every service at every node, and uses the
SDK as other programs do. Each attempt must be refused, or remain without an answer; one that is
served ends the run. What it sends is in nobody's notes, so if it were stored, the checker of
exactly once would find it.

A *forger* may write, but owns no producer's name: it tries to send in the name of named producers,
and to end them, also before the brokers have seen them. Beside it is a *newcomer*, whose producers
are new all the time.

A *guest* writes and reads as long as it may. When all faults are over, its rights are taken away.
From then on, after the time that the rules may take to reach every node, it gets nothing and stores
nothing, neither on the streams that it has nor on new ones.

Not here: the rules of all others (`parts/rights.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, cast

import grpc
import grpc.aio
from google.protobuf.message_factory import GetMessageClass

from semel.client import connect_async
from semel.client.producer.identity import Identity as ProducerIdentity
from semel.protos import compat
from semel.protos.errors import (
    PermissionDenied,
    SemelError,
    Unauthenticated,
    UnknownTopic,
    from_detail,
)
from semel.protos.ids import QueueKey
from semel.protos.levels import levels_metadata, own_levels
from semel.protos.queue_refs import queue_ref
from semel.protos.rpc import error_from_rpc
from semel.protos.security.credentials import channel
from semel.protos.security.declared import declared
from semel.protos.security.identity import ADMIN, Identity
from semel.protos.security.rules import Kind
from semel.protos.streams import FETCH_METHOD, PRODUCE_METHOD, decode_fetch_header, encode_produce
from semel.protos.v1 import broker_pb2, control_pb2
from tests.checking.history import Outcome
from tests.checking.raw_log import Fold
from tests.kit.declared_calls import METHODS, naming, path_of
from tests.world.clients import GROUP, TOPIC, ClientHost, Sender
from tests.world.identities import security
from tests.world.protocol_clients import batch_of
from tests.world.registry import program

if TYPE_CHECKING:
    from tests.world.run import Run

OF_A_GUEST: Final = (f"write topic:{TOPIC}", f"read topic:{TOPIC}")
"""Rights of a guest."""
IN_FORCE_S: Final = 3.0
"""Seconds after which a change is in force everywhere: one, once all nodes have met the active
controller again after the last fault."""
_ANSWER_S: Final = 1.0
_REFUSALS: Final = (PermissionDenied, UnknownTopic, Unauthenticated)
_OPEN: Final = frozenset({"Drop"})
"""Methods that are served if they name nothing that exists, and then do nothing."""


_Attempt = Callable[[Any], Awaitable[None]]


class Served(Exception):
    """A call was served, or a message was taken or given."""


class Intruder(ClientHost):
    """A client with a certificate of the cluster, and without a right."""

    def __init__(self, run: Run, name: str) -> None:
        super().__init__(run.world, name)
        self._run = run
        self._attempts: tuple[_Attempt, ...] = (
            self._call,
            self._call,
            self._call,
            self._write,
            self._read,
            self._fence,
            self._commit,
            self._use_the_sdk,
        )

    async def work(self, client: Any) -> None:
        while not self.stopping:
            attempt = self.random.choice(self._attempts)
            await self._try(attempt, client)
            await self.pause(0.04)
        self.done = True

    async def _try(self, attempt: _Attempt, client: Any) -> None:
        world, name = self.world, attempt.__name__.strip("_")
        try:
            async with compat.timeout(_ANSWER_S):
                await attempt(client)
        except Served as served:
            world.loop.errors.append(f"the intruder was served: {name}: {served}")
        except _REFUSALS as error:
            world.count(f"{type(self).__name__.lower()} refused: {name}")
            world.tell(f"{type(error).__name__}: {error.message}")
        except (SemelError, TimeoutError) as error:
            world.count(f"{type(self).__name__.lower()} unheard")
            world.tell(f"{name}: {error!r}")

    # --- whom and what it knows

    @property
    def _addresses(self) -> list[str]:
        brokers = [host.config.listen for host in self._run.hosts.values()]
        return [*brokers, *self.bootstrap.split(",")]

    def _queues(self) -> list[tuple[str, QueueKey]]:
        """The queues of the topic, each with the address of a node that has it."""
        return [
            (host.config.listen, key)
            for host in self._run.hosts.values()
            if host.replica is not None
            for key, queue in host.replica.state.queues.items()
            if queue.topic == TOPIC
        ]

    def _victim(self) -> tuple[str, QueueKey, Any]:
        """A producer's row, and where it is: mostly at a master, which alone takes batches."""
        rows = [
            (host.config.listen, row.queue_key, row)
            for host in self._run.hosts.values()
            if host.replica is not None and (host.replica.is_master or self.random.random() < 0.1)
            for row in host.replica.state.producers.rows()
        ]
        if rows:
            return self.random.choice(rows)
        row = SimpleNamespace(producer_id=1, epoch=1, session=1, name="l1", last_sequence=-1)
        return (*self._somewhere(), row)

    def _somewhere(self) -> tuple[str, QueueKey]:
        queues = self._queues()
        if not queues:
            raise UnknownTopic("no node is up")
        return self.random.choice(queues)

    # --- its attempts; each raises Served when it was served

    async def _call(self, client: Any) -> None:
        """Any method of any service, at any node."""
        method = self.random.choice(METHODS)
        what = declared(path_of(method))
        names = {
            Kind.TOPIC: TOPIC,
            Kind.CONSUMER_GROUP: GROUP,
            Kind.PRODUCER: "l1",
            Kind.TRANSACTION: "t1",
        }
        _, key = self._somewhere()
        request = naming(method, names, key.topic_id)
        decode = GetMessageClass(method.output_type).FromString
        encode = type(request).SerializeToString
        options: dict[str, Any] = {
            "timeout": _ANSWER_S,
            "metadata": levels_metadata(own_levels()),
        }
        path, address = path_of(method), self.random.choice(self._addresses)
        async with channel(address, (), self.security) as opened:
            try:
                if method.client_streaming:
                    stream = opened.stream_stream(path, encode, decode)(**options)
                    await stream.write(request)
                    if what.each_message:
                        return  # an empty message: others are tried below
                    await stream.read()
                elif method.server_streaming:
                    replies = opened.unary_stream(path, encode, decode)(request, **options)
                    await replies.read()
                else:
                    await opened.unary_unary(path, encode, decode)(request, **options)
            except grpc.aio.AioRpcError as error:
                raise error_from_rpc(error) from None
        if not what.anybody and method.name not in _OPEN:
            raise Served(f"{path} at {address}")

    async def _write(self, client: Any) -> None:
        """A batch, in the name of another producer."""
        await self._write_as(*self._victim())

    async def _write_as(self, address: str, key: QueueKey, row: Any) -> None:
        like = cast("ProducerIdentity", row)
        batch = batch_of(self.value(0), like, key, row.session, row.last_sequence + 1)
        reply = await self._stream(
            address,
            PRODUCE_METHOD,
            encode_produce([batch]),
            broker_pb2.ProduceReply.FromString,
        )
        for ack in reply.acks:
            if ack.status != broker_pb2.PRODUCE_STATUS_FAILED:
                raise Served(f"a batch was taken: {ack}")
            raise from_detail(ack.error)
        if reply.HasField("error"):
            raise from_detail(reply.error)

    async def _read(self, client: Any) -> None:
        """A fetch from the start of a queue, at any replica."""
        address, key = self._somewhere()
        request = broker_pb2.FetchRequest(
            queues=[broker_pb2.FetchQueue(queue=queue_ref(key), max_bytes=1 << 20)],
            max_bytes=1 << 20,
            any_replica=self.random.random() < 0.7,
            standing_bytes=self.random.choice((0, 1 << 20)),
            max_wait_ms=200,
        )
        reply = await self._stream(address, FETCH_METHOD, request.SerializeToString(), None)
        header, _ = decode_fetch_header(reply)
        if header.HasField("error"):
            raise from_detail(header.error)
        for result in header.results:
            if result.HasField("error"):
                raise from_detail(result.error)
        raise Served(f"a fetch was answered: {header}")

    async def _stream(self, address: str, method: str, message: bytes, decode: Any) -> Any:
        """The first answer of a stream to a message."""
        async with channel(address, (), self.security) as opened:
            call: Any = opened.stream_stream(method, response_deserializer=decode)(
                metadata=levels_metadata(own_levels())
            )
            try:
                await call.write(message)
                reply = await call.read()
            except grpc.aio.AioRpcError as error:
                raise error_from_rpc(error) from None
            except asyncio.InvalidStateError:
                raise TimeoutError from None
            finally:
                call.cancel()
        if reply is grpc.aio.EOF:
            raise TimeoutError
        return reply

    async def _fence(self, client: Any) -> None:
        """Ends a producer, under its name or under none."""
        address, key, row = self._victim()
        request = broker_pb2.FenceProducerRequest(
            queues=[queue_ref(key)] if self.random.random() < 0.8 else [],
            producer_id=row.producer_id,
            epoch=row.epoch,
            session=row.session + 1,
            name=self.random.choice((row.name, "", "xa1")),
            after_expiry=self.random.random() < 0.5,
        )
        await client._session.cluster.call_node(address, "FenceProducer", request, _ANSWER_S)
        if request.queues or request.name:
            raise Served(f"a producer was fenced: {request}")

    async def _commit(self, client: Any) -> None:
        """Commits, and moves the group's offsets, under tokens that it has seen."""
        address, key = self._somewhere()
        queue, token = queue_ref(key), self.random.randrange(1, 6)
        call = client._session.cluster.call_node
        request: Any
        if self.random.random() < 0.5:
            request = broker_pb2.CommitRequest(
                group=GROUP, commits=[control_pb2.QueueCommit(queue=queue, token=token, offset=1)]
            )
            await call(address, "Commit", request, _ANSWER_S)
        else:
            request = broker_pb2.ResetOffsetsRequest(
                group=GROUP, offsets=[control_pb2.QueueCommit(queue=queue, offset=0)]
            )
            await call(address, "ResetOffsets", request, _ANSWER_S)
        raise Served(f"offsets were changed: {request}")

    async def _use_the_sdk(self, client: Any) -> None:
        """What programs do."""
        kinds = ("send", "read", "consume", "list", "own", "delete", "give")
        kind = self.random.choice(kinds)
        if kind == "send":
            async with client.producer(delivery_timeout_ms=500) as producer:
                await producer.send(TOPIC, self.value(1))
        elif kind == "read":
            async with client.reader(TOPIC) as reader:
                if not await reader.poll(max_messages=1, timeout=0.3):
                    return
        elif kind == "consume":
            async with client.consumer(GROUP, TOPIC, session_ms=800) as consumer:
                if not await consumer.poll(max_messages=1, timeout=0.3):
                    return
        elif kind == "list":
            if not await client.admin.list_topics():
                return
        elif kind == "own":
            await client.producer("l1", delivery_timeout_ms=500).open(TOPIC)
        elif kind == "delete":
            await client.admin.delete_topic(TOPIC)
        else:
            rule = f"allow user:{self.name} write topic:{TOPIC}"
            await client.admin.change_access_rules(add=[rule])
        raise Served(kind)


@program("intruder", host="xa")
def _intruder(run: Run, host: str) -> Intruder:
    return Intruder(run, host)


class Forger(Intruder):
    """A client that may write to the topic, and tries to do so in the name of producers that it
    does not own, and to end them."""

    def __init__(self, run: Run, name: str) -> None:
        super().__init__(run, name)
        self._attempts = (self._forge, self._end, self._end, self._end)
        self._ended: set[int] = set()
        """Ids that it has fenced."""

    def _named(self) -> tuple[str, QueueKey, Any]:
        """The row of a named producer, at its master."""
        rows = [
            (host.config.listen, row.queue_key, row)
            for host in self._run.hosts.values()
            if host.replica is not None and host.replica.is_master
            for row in host.replica.state.producers.rows()
            if row.name
        ]
        if not rows:
            raise UnknownTopic("there is no named producer")
        return self.random.choice(rows)

    async def _forge(self, client: Any) -> None:
        """A batch in the name of a producer of a name."""
        await self._write_as(*self._named())

    async def _end(self, client: Any) -> None:
        """A fence of a named producer, or of one that the brokers have not seen, under any name.

        While controllers do not answer, brokers cannot know whose an unseen one is.
        """
        if not self._controllers_answer():
            raise TimeoutError
        cluster = client._session.cluster
        queues = (await cluster.topic(TOPIC)).queues
        queue = self.random.choice(queues)
        *_, near = self._victim()  # ids are given one after the other
        number = near.producer_id + self.random.randrange(1, 6)
        names, session = [""], self.random.choice((1, 1 << 20))
        if self.random.random() < 0.3:
            *_, row = self._named()
            number, session = row.producer_id, row.session + 1
            names.append(row.name)
        request = broker_pb2.FenceProducerRequest(
            queues=[queue_ref(queue.key)],
            producer_id=number,
            epoch=self.random.choice((1, 2)),
            session=session,
            name=self.random.choice(names),
            after_expiry=True,
        )
        home = cluster.routes.home(queue)
        reply = await cluster.call_master(home, "FenceProducer", request, _ANSWER_S)
        if self._controllers_answer():
            self._ended.add(number)
            self.world.count("forger ended a producer without a name")
        self.world.tell(f"fenced {number}: {reply}")

    def _controllers_answer(self) -> bool:
        world = self.world
        up = [world.hosts.get(one.name) for one in self._run.controllers]
        return not world.network.cut and all(
            process is not None and process.stopped_until <= world.now for process in up
        )

    def verdict(self, fold: Fold) -> str:
        for host in self._run.hosts.values():
            for row in host.replica.state.producers.rows() if host.replica is not None else ():
                # Who retries or redrives writes without a name of the controllers': what its rows
                # say is for people.
                named = row.name and not row.name.startswith("semel.")
                if named and row.producer_id in self._ended:
                    return f"{self.name} could fence producer {row.producer_id}, {row.name!r}"
        return ""


class Newcomer(Sender):
    """A program that sends each message under another name, which nobody has seen before."""

    async def work(self, client: Any) -> None:
        while not self.stopping:
            name = f"{self.name}-{self.starts}-{self.number}"
            async with client.producer(name, delivery_timeout_ms=self.timeout_ms) as producer:
                _, settled = self.send(producer)
                await settled
            await self.pause(self.mean_s)
        self.done = True


@program("newcomer", host="nc")
def _newcomer(run: Run, host: str) -> Newcomer:
    return Newcomer(run.world, host, run.plan.send_mean_s, run.plan.send_timeout_ms)


@program("forger", host="xb")
def _forger(run: Run, host: str) -> Forger:
    return Forger(run, host)


class Guest(Sender):
    """Writes and reads until its rights are taken away."""

    def __init__(self, run: Run, name: str) -> None:
        super().__init__(run.world, name, 2 * run.plan.send_mean_s, 1_000)
        self._revoked_s: float | None = None
        """When it was answered that its rights are taken away."""

    async def work(self, client: Any) -> None:
        producer = client.producer(linger_ms=1, delivery_timeout_ms=self.timeout_ms)
        async with client.reader(TOPIC) as reader:
            if self._revoked_s is None:
                while not self.stopping:
                    self.send(producer)
                    await reader.poll(max_messages=16, timeout=0.05)
                    await self.pause(self.mean_s)
                    if self.fenced is not None:
                        raise self.fenced
                await self._lose()
            assert self._revoked_s is not None
            while self.world.now < self._revoked_s + IN_FORCE_S:
                await self._use(producer, reader)
            for _ in range(5):
                await self._check(client, producer, reader)
                self.world.count("guest refused")
        self.done = True

    async def wind_up(self) -> None:
        """Goes on until nothing is open to it."""
        if self._revoked_s is not None and self.world.now > self._revoked_s + IN_FORCE_S:
            self.done = True  # not even its reader was opened

    async def _lose(self) -> None:
        """An administrator takes its rights away, or denies them by rules of their own."""
        assert self.security is not None
        admin = security(Identity(ADMIN, "admin", self.security.cluster))
        loses = self.random.random() < 0.5
        effect = "allow" if loses else "deny"
        rules = [f"{effect} user:{self.name} {right}" for right in OF_A_GUEST]
        async with connect_async(
            self.bootstrap,
            request_timeout_ms=4_000,
            connect_timeout_ms=3_000,
            keep_routes=False,
            security=admin,
        ) as other:
            if loses:
                await other.admin.change_access_rules(remove=rules)
            else:
                await other.admin.change_access_rules(add=rules)
        self._revoked_s = self.world.now

    async def _use(self, producer: Any, reader: Any) -> None:
        """Uses its streams; whatever comes of it is right. What the reader has by now is its own,
        so it has to take all of that before it is checked."""
        self.send(producer)
        try:
            await reader.poll(max_messages=10_000, timeout=0.05)
        except SemelError as error:
            self.world.tell(f"guest: {error!r}")
        await asyncio.sleep(0.1)

    async def _check(self, client: Any, producer: Any, reader: Any) -> None:
        """Tries its streams, and new ones: nothing may be given or taken."""
        errors = self.world.loop.errors
        note, settled = self.send(producer)
        try:
            if await reader.poll(max_messages=16, timeout=0.05):
                errors.append("the guest was given messages on a stream of before")
        except SemelError as error:
            self.world.tell(f"guest: {error!r}")
        await settled
        async with client.producer(delivery_timeout_ms=self.timeout_ms) as other:
            newer, ended = self.send(other)
            await ended
        if Outcome.OK in (note.outcome, newer.outcome):
            errors.append("a message of the guest was stored after its rights were taken away")
        try:
            async with client.reader(TOPIC) as new:
                if await new.poll(max_messages=1, timeout=0.3):
                    errors.append("the guest was given messages on a new stream")
        except SemelError as error:
            self.world.tell(f"guest: {error!r}")


@program("guest", host="ga")
def _guest(run: Run, host: str) -> Guest:
    return Guest(run, host)
