"""Fetch streams: long polls in, stored batches out.

How it works. A request names queues and offsets; its answer carries stored batches with row
ranges, byte for byte as they lie in the log, and the client slices. What the tail cache holds is
answered in the loop turn in which the request arrived; the rest is read in the reader pool. A
request that finds nothing waits until one of its queues grows, or for its time. To a client on the
same machine the batches go through memory that it has offered, and the header alone is sent.

Only applied entries are seen, so nothing that is returned can be lost. A slave answers only when
asked to (`any_replica`). A fetch under a lock is checked against its fencing token, and counts as a
delivery for the lock's clock.

Invariants
1. Batches of a result are in offset order without a gap, and the first one contains `offset`.
2. A reply holds at least one batch of a queue that has data, and else at most the bytes asked for.
3. Answers leave a stream one after the other; each request is answered once.
4. What clients do not take off is bounded: two replies a stream, smaller the more there are.

Not here: extents (`state/queues.py`), bytes (`log/`), memory of clients
(`shared_memory.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Protocol

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from semel.broker.config import BrokerConfig
from semel.broker.log import IndexUnavailable, Log
from semel.broker.server.shared_memory import ClientMemory, MemoryPool, Place
from semel.broker.server.stream import StreamContext
from semel.broker.state import Extent, QueueState, State
from semel.broker.watchers import QueueWatchers, finish
from semel.protos.errors import (
    CorruptBatch,
    InvalidRequest,
    LockLost,
    OffsetOutOfRange,
    SemelError,
    StorageError,
    to_detail,
)
from semel.protos.ids import QueueKey
from semel.protos.metrics import Histogram
from semel.protos.queue_refs import queue_key_of
from semel.protos.streams import encode_fetch_reply
from semel.protos.v1 import broker_pb2

logger = logging.getLogger(__name__)

_QUEUES_MAX = 65_536
_READ_AHEAD = 2
"""Replies of one stream that are read before the first of them has left."""
_BUFFER_SHARE = 8
"""A reply takes this part of what is left of `fetch_buffer_bytes_max` at most."""
_LEAST_BYTES = 64 << 10
"""But may always take so much."""
Part = bytes | memoryview


class FetchNode(Protocol):
    """The node, as this module needs it."""

    @property
    def state(self) -> State: ...

    @property
    def log(self) -> Log: ...

    @property
    def readers(self) -> Executor: ...

    @property
    def config(self) -> BrokerConfig: ...

    def check_master(self) -> None: ...

    def on_delivered(
        self, group: str, queue_key: QueueKey, token: int, end_offset: int
    ) -> None: ...

    @property
    def watchers(self) -> QueueWatchers: ...


@dataclass(slots=True, kw_only=True)
class FetchCounters:
    """What all streams together were given since the start; plain numbers, for `probe.py`."""

    streams: int = 0
    """Open now."""
    messages: int = 0
    bytes: int = 0
    """Of batches as they are stored, also where only some of a batch's rows are meant."""
    shared_bytes: int = 0
    """The part of them that was put into memory of clients."""
    seconds: Histogram = field(default_factory=Histogram)
    """For the stored bytes of a reply that has any; waiting for new ones and sending excluded."""


class _Outlet:
    """Where the replies of one stream leave."""

    def __init__(self, context: StreamContext) -> None:
        self._context = context
        self._writing = asyncio.Lock()
        self.reading = asyncio.Semaphore(_READ_AHEAD)

    async def write(self, reply: bytes) -> None:
        """Returns once the client's window has taken it."""
        async with self._writing:
            await self._context.write(reply)


class FetchHandler:
    """Handles BrokerStream.Fetch."""

    def __init__(self, node: FetchNode) -> None:
        self._node = node
        self.counters = FetchCounters()
        self._memories = MemoryPool(node.config.fetch_shared_bytes_max)
        self.unsent_bytes = 0
        """Of replies that were read and are not taken off by their clients yet, all streams."""

    async def fetch(self, _: object, context: StreamContext) -> None:
        """One client's stream. Requests are served concurrently, replies leave in turn."""
        limit = asyncio.Semaphore(self._node.config.fetches_per_stream_max)
        out = _Outlet(context)
        await context.send_initial_metadata(())

        async def answer(request: broker_pb2.FetchRequest, memory: ClientMemory | None) -> None:
            try:
                await self._serve(request, out, memory)
            finally:
                limit.release()

        memory: ClientMemory | None = None
        self.counters.streams += 1
        try:
            async with asyncio.TaskGroup() as tasks:
                while (data := await context.read()) is not grpc.aio.EOF:
                    try:
                        request = broker_pb2.FetchRequest.FromString(bytes(data))
                    except DecodeError:
                        raise InvalidRequest("fetch request is not a FetchRequest") from None
                    if request.HasField("memory"):
                        if memory is not None:
                            memory.close()
                        memory = self._memories.open(request.memory)
                    await limit.acquire()
                    tasks.create_task(answer(request, memory))
        finally:
            if memory is not None:
                memory.close()
            self.counters.streams -= 1

    async def _serve(
        self, request: broker_pb2.FetchRequest, out: _Outlet, memory: ClientMemory | None
    ) -> None:
        try:
            place = memory.place(request) if memory is not None else None
            if len(request.queues) > _QUEUES_MAX:
                raise InvalidRequest(f"a fetch names at most {_QUEUES_MAX} queues")
            if not request.any_replica:
                self._node.check_master()
            await self._collect(request, out, place)
        except SemelError as error:
            header = broker_pb2.FetchReplyHeader(correlation_id=request.correlation_id)
            header.error.CopyFrom(to_detail(error))
            await out.write(encode_fetch_reply(header, []))

    async def _collect(
        self, request: broker_pb2.FetchRequest, out: _Outlet, place: Place | None
    ) -> None:
        """Answers; waits first when there is nothing at all."""
        loop = asyncio.get_running_loop()
        wait_ms = min(request.max_wait_ms, self._node.config.fetch_wait_max_ms)
        deadline = loop.time() + wait_ms / 1000
        keys = [queue_key_of(wanted.queue) for wanted in request.queues]
        while True:
            grown = self._node.watchers.watch(keys)
            timer: asyncio.TimerHandle | None = None
            try:
                if await self._answer(request, out, place, last=loop.time() >= deadline):
                    return
                timer = loop.call_at(deadline, finish, grown)
                await grown
            finally:
                if timer is not None:
                    timer.cancel()
                self._node.watchers.unwatch(keys, grown)
            if not request.any_replica:
                self._node.check_master()

    async def _answer(
        self,
        request: broker_pb2.FetchRequest,
        out: _Outlet,
        place: Place | None,
        *,
        last: bool,
    ) -> bool:
        """Reads and writes one reply; False when there is nothing yet and it is not the `last` try.

        A client that takes nothing off holds `_READ_AHEAD` replies and no more, and the more all
        clients hold together, the smaller the next reply: so thousands of them cannot fill the
        memory, and those who read are served.
        """
        config = self._node.config
        header = broker_pb2.FetchReplyHeader(correlation_id=request.correlation_id)
        async with out.reading:
            left = max(0, config.fetch_buffer_bytes_max - self.unsent_bytes)
            room = min(
                request.max_bytes or config.fetch_bytes_max,
                config.fetch_bytes_max,
                max(left // _BUFFER_SHARE, _LEAST_BYTES),
            )
            self.unsent_bytes += room
            held = room
            try:
                began_s = asyncio.get_running_loop().time()
                parts = await self._once(request, header, room)
                if not header.results and not last:
                    return False
                self._count(header, parts, began_s)
                if place is not None and parts and place.put(parts):
                    header.in_memory = True
                    self.counters.shared_bytes += sum(map(len, parts))
                reply = encode_fetch_reply(header, parts)
                self.unsent_bytes += len(reply) - held
                held = len(reply)
                await out.write(reply)
            finally:
                self.unsent_bytes -= held
        return True

    def _count(
        self, header: broker_pb2.FetchReplyHeader, parts: Sequence[Part], began_s: float
    ) -> None:
        if parts:
            counters = self.counters
            counters.bytes += sum(map(len, parts))
            counters.messages += sum(
                batch.row_end - batch.row_start
                for result in header.results
                for batch in result.batches
            )
            counters.seconds.observe(asyncio.get_running_loop().time() - began_s)

    async def _once(
        self, request: broker_pb2.FetchRequest, header: broker_pb2.FetchReplyHeader, room: int
    ) -> list[Part]:
        """Fills `header.results` with at most `room` bytes, but one batch at least."""
        parts: list[Part] = []
        for wanted in request.queues:
            if room <= 0:
                break
            key = queue_key_of(wanted.queue)
            queue = self._node.state.queues.get(key)
            try:
                found = await self._read_queue(wanted, key, queue, room, alone=not parts)
            except SemelError as error:
                header.results.append(_failed(wanted, queue, error))
                continue
            if found is None:
                continue
            result, batches = found
            header.results.append(result)
            parts += batches
            room -= sum(map(len, batches))
        return parts

    async def _read_queue(
        self,
        wanted: broker_pb2.FetchQueue,
        key: QueueKey,
        queue: QueueState | None,
        room: int,
        *,
        alone: bool,
    ) -> tuple[broker_pb2.FetchResult, list[Part]] | None:
        """None when the queue has nothing new, or nothing that fits behind what others have.

        Raises SemelError."""
        node = self._node
        if queue is None:
            raise node.state.absent(key)
        if wanted.group:
            held = node.state.groups.lookup(wanted.group, key)
            current = held.token if held is not None and held.owner else 0
            if current != wanted.token:
                raise LockLost(
                    f"group {wanted.group} reads queue {key.queue_id} under token {current} now, "
                    f"not {wanted.token}; acquire it again",
                    current_token=current,
                )
        start, end = queue.log_start_offset, queue.log_end_offset
        if not start <= wanted.offset <= end:
            raise OffsetOutOfRange(
                f"offset {wanted.offset} of queue {key.queue_id} is outside [{start}, {end}]",
                log_start_offset=start,
                log_end_offset=end,
            )
        if wanted.offset == end:
            # A sealed queue is at its end for ever: nobody needs to wait to learn it.
            return self._end_of(wanted, queue) if queue.sealed else None
        extents = queue.extents_from(wanted.offset, min(wanted.max_bytes or room, room))
        if not alone and extents[0].length > room:
            return None
        batches = await self._read(extents)
        result = broker_pb2.FetchResult(
            queue=wanted.queue, log_start_offset=start, high_watermark=end, sealed=queue.sealed
        )
        for extent, batch in zip(extents, batches, strict=True):
            skip = max(0, wanted.offset - extent.base_offset)
            result.batches.add(
                length=len(batch),
                base_offset=extent.base_offset + skip,
                row_start=extent.first_row + skip,
                row_end=extent.first_row + extent.count,
            )
        if wanted.group:
            last = extents[-1]
            node.on_delivered(wanted.group, key, wanted.token, last.base_offset + last.count)
        return result, batches

    @staticmethod
    def _end_of(
        wanted: broker_pb2.FetchQueue, queue: QueueState
    ) -> tuple[broker_pb2.FetchResult, list[Part]]:
        result = broker_pb2.FetchResult(
            queue=wanted.queue,
            log_start_offset=queue.log_start_offset,
            high_watermark=queue.log_end_offset,
            sealed=True,
        )
        return result, []

    async def _read(self, extents: Sequence[Extent]) -> list[Part]:
        """Stored batches of the extents, from the cache or else all from disk in one job."""
        log = self._node.log
        cached: list[Part] = []
        for extent in extents:
            view = log.cached_record(extent.index, extent.position, extent.length)
            if view is None:
                break
            cached.append(view)
        else:
            return cached
        loop = asyncio.get_running_loop()
        rest = await loop.run_in_executor(
            self._node.readers, _read_records, log, extents[len(cached) :]
        )
        return cached + rest


def _read_records(log: Log, extents: Sequence[Extent]) -> list[Part]:
    """Runs in the reader pool; the log checks frames. Raises CorruptBatch, CorruptSegment."""
    batches: list[Part] = []
    for extent in extents:
        try:
            batch = log.read_record(extent.index, extent.position, extent.length)
        except IndexUnavailable as error:
            raise CorruptBatch(
                f"offsets from {extent.base_offset} are not readable on this node: {error}; "
                "another replica may have them"
            ) from None
        batches.append(batch)
    return batches


def _failed(
    wanted: broker_pb2.FetchQueue, queue: QueueState | None, error: SemelError
) -> broker_pb2.FetchResult:
    if isinstance(error, StorageError):
        logger.error("stored bytes cannot be read queue=%s error=%s", wanted.queue, error)
    return broker_pb2.FetchResult(
        queue=wanted.queue,
        error=to_detail(error),
        log_start_offset=queue.log_start_offset if queue else 0,
        high_watermark=queue.log_end_offset if queue else 0,
    )
