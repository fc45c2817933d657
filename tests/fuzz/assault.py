"""Throws bad requests at the ports of real nodes while a healthy program uses them.

How it works. Workers send requests of every call, streams of produce and fetch messages, batches
whose checksums are right and whose content lies, compressed bodies that unpack to far more than
they are, direct streams, and plain bytes on every port, each chosen by the seed. Which of them
arrives first is up to the machine, so a run does not repeat exactly; what a node made of an input
stands in its log.

What is checked
- no node ends, none holds more than `GROWTH_BYTES_MAX` more at the end than before, and no log has
  a traceback or an error;
- no call ends with an error that stands for a bug;
- a healthy program gets all of its messages stored and read, exactly once, while it goes on;
- what the assault stored can be read by everybody, and the nodes agree on it (`semel verify`).

Not here: batches that lie (`liar.py`), the healthy program (`witness.py`), the processes
(`tests/kit/cluster.py`), decoders one by one (`engine.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import socket
from collections.abc import Awaitable, Callable
from typing import Any, Final

import grpc
import grpc.aio

from semel.client import connect
from semel.protos import compat
from semel.protos.framed import encode_head, encode_hello
from semel.protos.levels import LEVELS_KEY
from semel.protos.rpc import CHANNEL_OPTIONS
from semel.protos.streams import FETCH_METHOD, PRODUCE_METHOD, encode_ping, encode_produce
from semel.protos.v1 import broker_pb2, broker_pb2_grpc, common_pb2, control_pb2
from tests.fuzz.liar import Liar, Tally
from tests.fuzz.messages import (
    BROKER_FILES,
    CONTROLLER_FILES,
    Call,
    Hints,
    calls_of,
    random_message,
    request_bytes,
)
from tests.fuzz.mutation import mutated
from tests.fuzz.wire_targets import BATCHES, seal_batch
from tests.kit.cluster import CLUSTER_ID, HOST, Cluster, Node

GROWTH_BYTES_MAX: Final = 512 << 20
VICTIM: Final = "victim"
"""The topic that the assault writes to."""
RAW_TOPIC: Final = 4_242
"""Its queues are made by brokers alone, so that requests may move, trim and delete them."""
_CALL_S: Final = 1.0
_REPLIES_MAX: Final = 20
_PRODUCERS: Final = 900_000


class Assault:
    """Everything that one seed sends to one cluster."""

    def __init__(self, cluster: Cluster, seed: int) -> None:
        self.tally = Tally()
        self._cluster = cluster
        self._seed = seed
        self._topic_id = 0
        self._hints = Hints()
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._calls: list[tuple[str, Call]] = []

    async def run(self, inputs: int, workers: int = 8) -> None:
        """Sends about so many inputs."""
        with connect(self._cluster.bootstrap) as client:
            client.admin.create_topic(VICTIM, queues=2, if_not_exists=True)
            self._topic_id = client.admin.describe_topic(VICTIM).topic_id
        self._hints = self._good_values()
        for node in self._cluster.nodes:
            files = BROKER_FILES if node.kind == "broker" else CONTROLLER_FILES
            self._channels[node.address] = grpc.aio.insecure_channel(
                node.address, options=CHANNEL_OPTIONS
            )
            self._calls += [(node.address, call) for call in calls_of(files)]
        try:
            await self._make_raw_queues()
            share = -(-inputs // workers)
            await asyncio.gather(*(self._work(number, share) for number in range(workers)))
        finally:
            for channel in self._channels.values():
                await channel.close(grace=0)

    def _good_values(self) -> Hints:
        """Returns values with which a right request harms nobody but the topics of the assault."""
        return Hints(
            values={
                "cluster_id": (CLUSTER_ID, "another"),
                "topic_id": (RAW_TOPIC, self._topic_id),
                "queue_id": (0, 1, 2),
                "producer_id": (5, _PRODUCERS, _PRODUCERS + 1),
                "epoch": (1, 2),
                "session": (1, 2),
                "group": ("assault", "other"),
                "member_id": ("one", "two"),
                "topic": ("assault-1", "assault-2"),
                "name": ("assault-1", "assault-2"),
                "transaction_id": ("t1", "t2"),
                "offset": (0, 1, 5),
                "address": (f"{HOST}:1", "nowhere"),
                "slot_end": (65_536, 32_768),
                "lock_ms": (100, 1_000),
                "session_ms": (100, 1_000),
                "max_wait_ms": (0, 5, 50),
                "wait_ms": (0, 5, 50),
                "max_bytes": (0, 1, 1 << 20),
                "queues": (1, 3),
                "index": (1, 5, 50),
                "controllers": (f"{HOST}:1",),
                "node_id": (77, 78),
                "group_id": (7, 8),
            }
        )

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
            stub = broker_pb2_grpc.BrokerStub(self._channels[node.address])
            with contextlib.suppress(grpc.aio.AioRpcError):  # a slave
                await stub.ApplyQueues(request, timeout=5)

    async def _work(self, number: int, inputs: int) -> None:
        rng = random.Random(f"{self._seed} {number}")
        liar = Liar(self.tally, self._master, self._topic_id, _PRODUCERS + number)
        kinds: list[tuple[float, str, Callable[[random.Random], Awaitable[int]]]] = [
            (0.70, "call", self._call),
            (0.84, "lie", liar.send),
            (0.90, "produce", self._produce),
            (0.95, "fetch", self._fetch),
            (0.97, "direct", self._direct),
            (1.00, "port", self._port),
        ]
        left = inputs
        while left > 0:
            chance = rng.random()
            name, send = next((name, send) for limit, name, send in kinds if chance < limit)
            try:
                count = await send(rng)
            except (OSError, TimeoutError, grpc.aio.UsageError):
                count = 1
            self.tally.sent[name] += count
            left -= count

    def _master(self) -> grpc.aio.Channel:
        return self._channels[self._cluster.master().address]

    # ------------------------------------------------------------------ kinds of inputs

    async def _call(self, rng: random.Random) -> int:
        """One request of one call, and a few of the replies."""
        address, call = rng.choice(self._calls)
        if call.streams_in:
            return await self._stream(rng, address, call.path, request_bytes)
        data = request_bytes(rng, call, self._hints)
        channel: Any = self._channels[address]
        metadata = self._metadata(rng)
        try:
            if call.streams_out:
                replies = channel.unary_stream(call.path)(data, timeout=_CALL_S, metadata=metadata)
                for _ in range(_REPLIES_MAX):
                    if await replies.read() is grpc.aio.EOF:
                        break
                else:
                    replies.cancel()
            else:
                await channel.unary_unary(call.path)(data, timeout=_CALL_S, metadata=metadata)
            self.tally.answers["OK"] += 1
        except grpc.aio.AioRpcError as error:
            self.tally.answered(call.path, data, error)
        return 1

    def _metadata(self, rng: random.Random) -> tuple[tuple[str, bytes], ...]:
        if rng.random() < 0.97:
            return ()
        levels = common_pb2.Levels(max=9, min=0).SerializeToString()
        return ((LEVELS_KEY, mutated(rng, levels, [levels])),)

    async def _stream(
        self,
        rng: random.Random,
        address: str,
        path: str,
        make: Callable[[random.Random, Call, Hints], bytes],
    ) -> int:
        """A few messages on one stream."""
        call = next(each for _, each in self._calls if each.path == path)
        count = rng.randint(1, 4)
        stream: Any = self._channels[address].stream_stream(path)(timeout=_CALL_S)
        sent = b""
        try:
            for _ in range(count):
                sent = make(rng, call, self._hints)
                await stream.write(sent)
            if rng.random() < 0.5:
                await stream.done_writing()
            async with compat.timeout(0.05):
                while await stream.read() is not grpc.aio.EOF:
                    pass
        except TimeoutError:
            pass
        except grpc.aio.AioRpcError as error:
            self.tally.answered(path, sent, error)
        except asyncio.InvalidStateError:
            pass
        finally:
            stream.cancel()
        return count

    async def _produce(self, rng: random.Random) -> int:
        def make(rng: random.Random, _: Call, __: Hints) -> bytes:
            batch = mutated(rng, rng.choice(BATCHES), BATCHES)
            good = encode_produce([seal_batch(batch, rng)]) if batch else encode_ping(1)
            return mutated(rng, good, [good]) if rng.random() < 0.5 else good

        return await self._stream(rng, self._broker(rng), PRODUCE_METHOD, make)

    async def _fetch(self, rng: random.Random) -> int:
        kind = broker_pb2.FetchRequest.DESCRIPTOR

        def make(rng: random.Random, _: Call, hints: Hints) -> bytes:
            request = random_message(rng, kind, hints)
            request.max_wait_ms = rng.choice((0, 5))
            data: bytes = request.SerializeToString()
            return mutated(rng, data, [data]) if rng.random() < 0.1 else data

        return await self._stream(rng, self._broker(rng), FETCH_METHOD, make)

    def _broker(self, rng: random.Random) -> str:
        return rng.choice(self._cluster.brokers).address

    async def _direct(self, rng: random.Random) -> int:
        """A direct stream, with a ticket or a wrong one, and damaged messages on it."""
        address = self._broker(rng)
        stub = broker_pb2_grpc.BrokerStreamStub(self._channels[address])
        opened = await self._opened(stub, rng)
        if opened is None:
            return 1
        reader, writer = await asyncio.open_connection(HOST, opened.port)
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
        await self._speak(rng, reader, writer, data)
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
        ports = [int(node.address.rpartition(":")[2]) for node in self._cluster.nodes]
        ports += await asyncio.to_thread(self._listening)
        reader, writer = await asyncio.open_connection(HOST, rng.choice(ports))
        beginnings = (
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9),
            b"GET /metrics HTTP/1.1\r\n\r\n",
            encode_hello(bytes(16)),
            encode_head(1 << 24) + bytes(70_000),
            b"",
        )
        begun = rng.choice(beginnings)
        data = mutated(rng, begun, beginnings) + rng.randbytes(rng.choice((0, 10, 1_000)))
        await self._speak(rng, reader, writer, data)
        return 1

    def _listening(self) -> list[int]:
        return [port for node in self._cluster.nodes if node.running for port in ports_of(node)]

    async def _speak(
        self,
        rng: random.Random,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        data: bytes,
    ) -> None:
        try:
            half = rng.randrange(len(data) + 1)
            for piece in (data[:half], data[half:]):
                writer.write(piece)
                await writer.drain()
            async with compat.timeout(0.02):
                await reader.read(1 << 16)
        except (TimeoutError, OSError):
            pass
        finally:
            sock: socket.socket | None = writer.get_extra_info("socket")
            if sock is not None and rng.random() < 0.5:
                writer.transport.abort()
            writer.close()


def ports_of(node: Node) -> list[int]:
    """The TCP ports at which a process listens, from /proc."""
    inodes = set()
    for link in node_descriptors(node):
        if link.startswith("socket:["):
            inodes.add(link[8:-1])
    found = []
    with open(f"/proc/{node.pid}/net/tcp", encoding="ascii") as table:  # noqa: PTH123
        for line in list(table)[1:]:
            words = line.split()
            if words[3] == "0A" and words[9] in inodes:
                found.append(int(words[1].rpartition(":")[2], 16))
    return found


def node_descriptors(node: Node) -> list[str]:
    """What the descriptors of a process lead to."""
    found = []
    for name in os.listdir(f"/proc/{node.pid}/fd"):  # noqa: PTH208
        with contextlib.suppress(OSError):
            found.append(os.readlink(f"/proc/{node.pid}/fd/{name}"))  # noqa: PTH115
    return found
