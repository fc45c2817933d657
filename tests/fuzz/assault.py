"""Sends bad requests to every call of a cluster of real processes, in the name of one caller.

How it works. Workers send, at the same time and on several connections: requests of every method,
made from the descriptors of the `.proto` files; damaged batches and messages on produce and fetch
streams, through gRPC and on direct streams; producers that do everything right except that their
batches lie; plain bytes on any port.

What must hold is checked in `siege.py`.

Not here: who the caller is (`callers.py`), callers without a certificate (`strangers.py`), batches
that lie (`liar.py`), decoders one by one (`engine.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
import uuid
from collections.abc import Callable
from typing import Any, Final

import grpc
import grpc.aio

from semel.protos import compat
from semel.protos.framed import encode_head, encode_hello
from semel.protos.levels import LEVELS_KEY
from semel.protos.rpc import CHANNEL_OPTIONS
from semel.protos.security.credentials import Contexts, channel
from semel.protos.streams import FETCH_METHOD, PRODUCE_METHOD, encode_ping, encode_produce
from semel.protos.v1 import (
    broker_pb2,
    broker_pb2_grpc,
    common_pb2,
    control_pb2,
    controller_pb2,
    controller_pb2_grpc,
)
from tests.fuzz.callers import RAW_TOPIC, Caller
from tests.fuzz.connecting import Ports, say
from tests.fuzz.http2 import requests
from tests.fuzz.liar import Liar, Tally
from tests.fuzz.messages import FILES, Call, Hints, calls_of, random_message, request_bytes
from tests.fuzz.mutation import mutated
from tests.fuzz.sending import Kind, send_kinds
from tests.fuzz.wire_targets import BATCHES, seal_batch
from tests.kit.cluster import CLUSTER_ID, Cluster

CONNECTIONS: Final = 2
"""To each node."""
WORKERS: Final = 48
_CALL_S: Final = 1.0
_REPLIES_MAX: Final = 20
_ANSWER_S: Final = 0.05
_MASTER_S: Final = 1.0
"""For so long a master is taken for the master."""

_Make = Callable[[random.Random, Call, Hints], bytes]


class Assault:
    """Everything that one seed sends to one cluster in the name of one caller."""

    def __init__(
        self, cluster: Cluster, seed: int, caller: Caller, topic_id: int, tally: Tally
    ) -> None:
        """`topic_id` is that of the topic which liars write to."""
        self.tally = tally
        self._cluster = cluster
        self._seed = seed
        self._caller = caller
        self._topic_id = topic_id
        self._channels: dict[str, list[grpc.aio.Channel]] = {}
        self._calls = [
            (node.address, call) for node in cluster.nodes for call in calls_of(FILES[node.kind])
        ]
        self._tls = None if caller.security is None else Contexts(caller.security.files)
        self._ports = Ports(cluster)
        self._ends_s = float("inf")
        self._master_address = cluster.brokers[0].address
        self._master_s = float("-inf")

    async def run(
        self, inputs: int, *, ends_s: float = float("inf"), workers: int = WORKERS
    ) -> None:
        """Sends about so many inputs, until a monotonic time at most."""
        self._ends_s = ends_s
        for node in self._cluster.nodes:
            self._channels[node.address] = [
                channel(node.address, CHANNEL_OPTIONS, self._caller.security)
                for _ in range(CONNECTIONS)
            ]
        try:
            await self._make_raw_queues()
            shares = [inputs // workers + (number < inputs % workers) for number in range(workers)]
            producers = [await self._producer() for _ in range(workers)]
            await asyncio.gather(
                *(
                    self._work(number, share, producer)
                    for number, (share, producer) in enumerate(zip(shares, producers, strict=True))
                )
            )
        finally:
            for channels in self._channels.values():
                for each in channels:
                    await each.close(grace=0)

    async def _make_raw_queues(self) -> None:
        for node in self._cluster.brokers:
            records = [
                control_pb2.ControlRecord(
                    create_queue=control_pb2.CreateQueue(
                        queue=common_pb2.QueueRef(topic_id=RAW_TOPIC, queue_id=queue),
                        topic="raw",
                        slot_start=0,
                        slot_end=65_536,
                    )
                )
                for queue in (0, 1)
            ]
            request = broker_pb2.ApplyQueuesRequest(cluster_id=CLUSTER_ID, records=records)
            stub: Any = broker_pb2_grpc.BrokerStub(self._channels[node.address][0])
            with contextlib.suppress(grpc.aio.AioRpcError):  # a slave, or only controllers may
                await stub.ApplyQueues(request, timeout=5)

    async def _producer(self) -> tuple[int, int]:
        """The id and the epoch of a new producer."""
        for node in self._cluster.controllers:
            stub: Any = controller_pb2_grpc.ControllerStub(self._channels[node.address][0])
            request = controller_pb2.OpenProducerRequest(open_id=uuid.uuid4().bytes)
            with contextlib.suppress(grpc.aio.AioRpcError):  # a standby
                reply = await stub.OpenProducer(request, timeout=5)
                return reply.producer_id, reply.epoch
        raise AssertionError("no controller gives ids of producers")

    async def _work(self, number: int, inputs: int, producer: tuple[int, int]) -> None:
        rng = random.Random(f"{self._seed} {self._caller.name} {number}")
        liar = Liar(self.tally, self._master, self._topic_id, *producer)
        kinds: list[Kind] = [
            (0.70, "call", self._call),
            (0.84, "lie", liar.send),
            (0.90, "produce", self._produce),
            (0.95, "fetch", self._fetch),
            (0.97, "direct", self._direct),
            (1.00, "port", self._port),
        ]
        await send_kinds(
            rng, kinds, inputs, ends_s=self._ends_s, tally=self.tally, name=self._caller.name
        )

    async def _master(self) -> grpc.aio.Channel:
        """A channel to the master; of those whom it would refuse anyway, to any broker."""
        if time.monotonic() - self._master_s > _MASTER_S:
            self._master_s = time.monotonic()
            node = self._cluster.brokers[0]
            if self._caller.mighty:
                node = await asyncio.to_thread(self._cluster.master)
            self._master_address = node.address
        return self._channels[self._master_address][0]

    def _channel(self, rng: random.Random, address: str) -> Any:
        return rng.choice(self._channels[address])

    # ------------------------------------------------------------------ kinds of inputs

    async def _call(self, rng: random.Random) -> int:
        """One request of one call, and a few of the replies."""
        address, call = rng.choice(self._calls)
        if call.streams_in:
            return await self._stream(rng, address, call, request_bytes)
        data = request_bytes(rng, call, self._caller.hints, self._caller.spared.spares)
        opened = self._channel(rng, address)
        metadata = self._metadata(rng)
        try:
            if call.streams_out:
                replies = opened.unary_stream(call.path)(data, timeout=_CALL_S, metadata=metadata)
                for _ in range(_REPLIES_MAX):
                    if await replies.read() is grpc.aio.EOF:
                        break
                else:
                    replies.cancel()
            else:
                await opened.unary_unary(call.path)(data, timeout=_CALL_S, metadata=metadata)
            self.tally.answers["OK"] += 1
        except grpc.aio.AioRpcError as error:
            self.tally.answered(call.path, data, error)
        return 1

    def _metadata(self, rng: random.Random) -> tuple[tuple[str, bytes], ...]:
        if rng.random() < 0.97:
            return ()
        levels = common_pb2.Levels(max=9, min=0).SerializeToString()
        return ((LEVELS_KEY, mutated(rng, levels, [levels])),)

    async def _stream(self, rng: random.Random, address: str, call: Call, make: _Make) -> int:
        """A few messages on one stream."""
        count = rng.randint(1, 4)
        stream = self._channel(rng, address).stream_stream(call.path)(timeout=_CALL_S)
        sent = b""
        try:
            for _ in range(count):
                sent = make(rng, call, self._caller.hints)
                await stream.write(sent)
            if rng.random() < 0.5:
                await stream.done_writing()
            async with compat.timeout(_ANSWER_S):
                while await stream.read() is not grpc.aio.EOF:
                    pass
        except TimeoutError:
            pass
        except grpc.aio.AioRpcError as error:
            self.tally.answered(call.path, sent, error)
        except asyncio.InvalidStateError:
            pass
        finally:
            stream.cancel()
        return count

    def _method(self, path: str) -> Call:
        return next(call for _, call in self._calls if call.path == path)

    async def _produce(self, rng: random.Random) -> int:
        def make(rng: random.Random, _: Call, __: Hints) -> bytes:
            batch = mutated(rng, rng.choice(BATCHES), BATCHES)
            good = encode_produce([seal_batch(batch, rng)]) if batch else encode_ping(1)
            return mutated(rng, good, [good]) if rng.random() < 0.5 else good

        return await self._stream(rng, self._broker(rng), self._method(PRODUCE_METHOD), make)

    async def _fetch(self, rng: random.Random) -> int:
        kind = broker_pb2.FetchRequest.DESCRIPTOR

        def make(rng: random.Random, _: Call, hints: Hints) -> bytes:
            request = random_message(rng, kind, hints)
            request.max_wait_ms = rng.choice((0, 5))
            data: bytes = request.SerializeToString()
            return mutated(rng, data, [data]) if rng.random() < 0.1 else data

        return await self._stream(rng, self._broker(rng), self._method(FETCH_METHOD), make)

    def _broker(self, rng: random.Random) -> str:
        return rng.choice(self._cluster.brokers).address

    async def _direct(self, rng: random.Random) -> int:
        """A direct stream, with a ticket or a wrong one, and damaged messages on it."""
        stub = broker_pb2_grpc.BrokerStreamStub(self._channel(rng, self._broker(rng)))
        opened = await self._opened(stub, rng)
        if opened is None:
            return 1
        ticket = opened.ticket if rng.random() < 0.8 else rng.randbytes(16)
        pieces = [encode_hello(ticket)]
        count = rng.randint(1, 4)
        for _ in range(count):
            batch = mutated(rng, rng.choice(BATCHES), BATCHES)
            message = encode_produce([seal_batch(batch, rng)]) if batch else b"x"
            if rng.random() < 0.3:
                message = mutated(rng, message, [message]) or b"x"
            pieces.append(encode_head(len(message)) + message)
        data = b"".join(pieces)
        if rng.random() < 0.3:
            data = mutated(rng, data, [data])
        await self._say(rng, opened.port, data)
        return count

    async def _opened(self, stub: Any, rng: random.Random) -> Any:
        stream: Any = rng.choice((1, 1, 2, 9))
        request = broker_pb2.OpenDirectRequest(stream=stream)
        try:
            return await stub.OpenDirect(request, timeout=_CALL_S)
        except grpc.aio.AioRpcError as error:
            self.tally.answered("OpenDirect", request.SerializeToString(), error)
            return None

    async def _port(self, rng: random.Random) -> int:
        """Plain bytes on any port of any node."""
        _, call = rng.choice(self._calls)
        request = request_bytes(rng, call, self._caller.hints, self._caller.spared.spares)
        beginnings = (
            requests([(call.path, request)]),
            b"GET /metrics HTTP/1.1\r\n\r\n",
            encode_hello(bytes(16)),
            encode_head(1 << 24) + bytes(70_000),
            b"",
        )
        begun = rng.choice(beginnings)
        data = mutated(rng, begun, beginnings) + rng.randbytes(rng.choice((0, 10, 1_000)))
        await self._say(rng, rng.choice(self._ports.all), data)
        return 1

    async def _say(self, rng: random.Random, port: int, data: bytes) -> None:
        """Speaks as this caller, and now and then without TLS."""
        if self._tls is None or rng.random() < 0.1:
            await say(rng, port, data)
            return
        assert self._caller.security is not None
        tls = self._tls.client()
        await say(rng, port, data, tls=tls, tls_name=self._caller.security.tls_name())
