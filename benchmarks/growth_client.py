"""Clients of `growth` that speak the raw protocol: a process of its own that prints JSON.

How it works. As in `side_by_side_client.py`: the first argument is the role, the second its
settings as JSON; a role that must wait prints `{"ready": true}` and reads a line.

Producers. Fences make the rows of the sequence table, one call per producer that names all of its
queues, and batches of one message on one stream fill them; so this is what as many clients would
send, without their connections. The ids are above all that a controller has given out: asking the
controller for each would only measure the controller. Row r belongs to producer r // `rows_each`
and queue r mod `queues`.

Readers. Each has a fetch stream, and `READERS_EACH` of them share a connection. They read the whole
queue again and again, and then wait at its end for new messages.

Not here: the process that starts it (`growth_points.py`).
"""

from __future__ import annotations

import asyncio
import dataclasses
import sys
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AsyncExitStack
from typing import Any, Final

import grpc
import grpc.aio
import pyarrow as pa

from benchmarks.side_by_side_client import play, ready
from semel.protos import compat
from semel.protos.batch import HEADER_BYTES, BatchHeader, decode_header
from semel.protos.columns import Columns, encode_batch
from semel.protos.errors import Unavailable, from_detail
from semel.protos.ids import ProducerId, QueueId, QueueKey, TopicId
from semel.protos.queue_refs import queue_ref
from semel.protos.rpc import CHANNEL_OPTIONS, error_from_rpc
from semel.protos.streams import (
    FETCH_METHOD,
    PRODUCE_METHOD,
    encode_produce,
)
from semel.protos.v1 import broker_pb2, broker_pb2_grpc, controller_pb2, controller_pb2_grpc
from tests.kit.fetch_replies import decode_fetch_reply

FIRST_ID: Final = 1 << 40
CALLS: Final = 128
"""Number of fences under way."""
CHUNK: Final = 1_000
"""Number of batches in one request."""
REQUESTS_MAX: Final = 4
"""Number of unacknowledged requests."""
READERS_EACH: Final = 10
FETCH_BYTES: Final = 2 << 20
WAIT_MS: Final = 30_000
CALL_S: Final = 120.0


def connected(exits: AsyncExitStack, address: str) -> grpc.aio.Channel:
    """Opens a connection of its own."""
    channel = grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
    exits.push_async_callback(channel.close)
    return channel


async def topic_id(exits: AsyncExitStack, controller: str, topic: str) -> TopicId:
    """The topic's id from the controller's routes."""
    stub: Any = controller_pb2_grpc.ControllerStub(connected(exits, controller))
    watch = stub.WatchRoutes(controller_pb2.GetRoutesRequest(topics=[topic]))
    routes = await watch.read()
    watch.cancel()
    return TopicId(next(each.topic_id for each in routes.topics if each.name == topic))


def finished(work: Coroutine[Any, Any, Mapping[str, Any]]) -> Mapping[str, Any]:
    """Returns the result of `work`. Raises the first error of its tasks, as a one-line error."""
    try:
        return asyncio.run(work)
    except BaseException as error:
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        raise (error_from_rpc(error) if isinstance(error, grpc.RpcError) else error) from None


class Producers:
    """Makes rows of the sequence table with one stored message each."""

    def __init__(
        self, broker: grpc.aio.Channel, topic: TopicId, queues: int, rows_each: int
    ) -> None:
        self._stub: Any = broker_pb2_grpc.BrokerStub(broker)
        self._stream: Any = broker.stream_stream(
            PRODUCE_METHOD, response_deserializer=broker_pb2.ProduceReply.FromString
        )()
        self._topic = topic
        self._queues = queues
        self._rows_each = rows_each
        batch = encode_batch(
            Columns(values=pa.array([b"idle"], pa.binary())),
            topic_id=topic,
            queue_id=0,
            producer_id=FIRST_ID,
            epoch=1,
            session=1,
            previous_sequence=-1,
            base_sequence=0,
            last_sequence=0,
            timestamp_us=1,
        )
        self._head: BatchHeader = decode_header(batch)
        self._body = batch[HEADER_BYTES:]
        self._room = asyncio.Semaphore(REQUESTS_MAX * CHUNK)

    async def make(self, first: int, count: int) -> None:
        """Rows [first, first + count), counted from the first one ever. Raises SemelError."""
        end = first + count
        producers = iter(range(first // self._rows_each, -(-end // self._rows_each)))
        fenced: asyncio.Queue[int] = asyncio.Queue()

        async def fence() -> None:
            for producer in producers:
                row = producer * self._rows_each
                rows = range(max(first, row), min(end, row + self._rows_each))
                request = broker_pb2.FenceProducerRequest(
                    queues=[queue_ref(self._key(row)) for row in rows],
                    producer_id=FIRST_ID + producer,
                    epoch=1,
                    session=1,
                )
                await self._stub.FenceProducer(request, timeout=CALL_S)
                for row in rows:
                    fenced.put_nowait(row)

        async with compat.TaskGroup() as tasks:
            tasks.create_task(self._acknowledged(count))
            tasks.create_task(self._store(fenced, count))
            for _ in range(CALLS):
                tasks.create_task(fence())

    def _key(self, row: int) -> QueueKey:
        return QueueKey(self._topic, QueueId(row % self._queues))

    async def _store(self, fenced: asyncio.Queue[int], count: int) -> None:
        """Stores one message for each row, as many in one request as are ready."""
        while count:
            some = [await fenced.get()]
            while len(some) < CHUNK and not fenced.empty():
                some.append(fenced.get_nowait())
            for _ in some:
                await self._room.acquire()
            await self._stream.write(encode_produce([self._batch(row) for row in some]))
            count -= len(some)

    def _batch(self, row: int) -> bytes:
        head = dataclasses.replace(
            self._head,
            queue_id=self._key(row).queue_id,
            producer_id=ProducerId(FIRST_ID + row // self._rows_each),
        )
        return head.encode() + self._body

    async def _acknowledged(self, count: int) -> None:
        while count:
            reply = await self._stream.read()
            if reply is grpc.aio.EOF:
                raise Unavailable("the master has ended a produce stream")
            if reply.HasField("error"):
                raise from_detail(reply.error)
            for ack in reply.acks:
                if ack.status == broker_pb2.PRODUCE_STATUS_FAILED:
                    raise from_detail(ack.error)
                self._room.release()
            count -= len(reply.acks)


def producers(
    controller: str,
    broker: str,
    topic: str,
    queues: int,
    rows_each: int,
    first: int,
    count: int,
) -> Mapping[str, Any]:
    """Makes `count` rows of idle producers, spread over the topic's queues."""

    async def run() -> Mapping[str, Any]:
        async with AsyncExitStack() as exits:
            number = await topic_id(exits, controller, topic)
            start = time.perf_counter()
            made = Producers(connected(exits, broker), number, queues, rows_each)
            await made.make(first, count)
            return {"made": count, "seconds": time.perf_counter() - start}

    return finished(run())


class Reader:
    """One fetch stream."""

    def __init__(self, channel: grpc.aio.Channel, key: QueueKey) -> None:
        self._stream: Any = channel.stream_stream(
            FETCH_METHOD, request_serializer=broker_pb2.FetchRequest.SerializeToString
        )()
        self._wanted = broker_pb2.FetchQueue(queue=queue_ref(key), max_bytes=FETCH_BYTES)
        self._end = 0
        self.read_bytes = 0
        """Bytes of stored batches that were read."""

    async def read(self, until: float) -> None:
        """Reads the whole queue again and again."""
        while time.perf_counter() < until:
            await self._fetch(0)
            if self._wanted.offset >= self._end:
                self._wanted.offset = 0

    async def wait(self, arrived: asyncio.Event) -> None:
        """Reads new messages from the end on; sets `arrived` once it waits there."""
        self._wanted.offset = self._end
        while True:
            arrived.set()
            await self._fetch(WAIT_MS)

    async def _fetch(self, wait_ms: int) -> None:
        request = broker_pb2.FetchRequest(
            queues=[self._wanted], max_bytes=FETCH_BYTES, max_wait_ms=wait_ms
        )
        await self._stream.write(request)
        data = await self._stream.read()
        if data is grpc.aio.EOF:
            raise Unavailable("the master has ended a fetch stream")
        header, parts = decode_fetch_reply(data)
        if header.HasField("error"):
            raise from_detail(header.error)
        self.read_bytes += sum(map(len, parts))
        for result in header.results:
            if result.HasField("error"):
                raise from_detail(result.error)
            self._end = result.high_watermark
            for each in result.batches:
                self._wanted.offset = each.base_offset + each.row_end - each.row_start


def readers(
    controller: str, broker: str, topic: str, count: int, seconds: float
) -> Mapping[str, Any]:
    """Reads queue 0 with `count` readers for `seconds`; then all wait at its end until told."""

    async def run() -> Mapping[str, Any]:
        async with AsyncExitStack() as exits:
            key = QueueKey(await topic_id(exits, controller, topic), QueueId(0))
            channels = [connected(exits, broker) for _ in range(-(-count // READERS_EACH))]
            each = [Reader(channels[number // READERS_EACH], key) for number in range(count)]
            start = time.perf_counter()
            async with compat.TaskGroup() as tasks:
                for reader in each:
                    tasks.create_task(reader.read(start + seconds))
            took = time.perf_counter() - start
            volume = sum(reader.read_bytes for reader in each)
            arrived = [asyncio.Event() for _ in each]
            waiting = [
                asyncio.ensure_future(reader.wait(event))
                for reader, event in zip(each, arrived, strict=True)
            ]
            for event in arrived:
                await event.wait()
            ready()
            told = asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
            await asyncio.wait([told, *waiting], return_when=asyncio.FIRST_COMPLETED)
            for task in waiting:
                if task.done():
                    task.result()
                task.cancel()
            return {"bytes": volume, "seconds": took}

    return finished(run())


ROLES: Mapping[str, Callable[..., Mapping[str, Any]]] = {
    each.__name__: each for each in (producers, readers)
}


if __name__ == "__main__":
    play(ROLES)
