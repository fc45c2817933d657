"""One fetch stream to each broker node, shared by all readers and consumers of a client.

How it works. A reader's link takes a *seat* on the stream to a node, which is opened for the first
seat and closed with the last one. Each seat makes polls of its own, and each answer names its poll.
So the stream has one task that reads answers and one that listens for silence, however many readers
there are.

Whoever reads the stream must never wait for a reader. It need not: a link asks for no more than its
reader has room for, so every answer can be taken at once. A slow reader has no poll under way. Nor
does a link wait for the stream: it has one poll a queue under way at most.

A seat that is left, or whose reader has failed, does not disturb the others. What is still answered
to it is dropped.

Invariants
1. An answer goes to the seat that asked, once for each answer of its poll, or nowhere.
2. The place in memory that a poll names stays taken until its last answer, even if its seat was
   left meanwhile: only then will the broker not write there any more.
3. Polls leave in the order in which they were made.
4. No stream has more seats than its broker serves at a time. A broker below SHARED_FETCH_LEVEL
   serves few, so that a client with many readers has several streams to it.

Not here: what is asked and what becomes of answers (`reading/fetch.py`), how a stream is opened
(`transport/streams.py`).
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Coroutine, Sequence
from typing import Any, Final, Protocol

from semel.client.config import ClientConfig
from semel.client.transport.connection import Purpose, telling
from semel.client.transport.shared_memory import Exchange, Slot, StreamMemory
from semel.client.transport.streams import Stream, Streams
from semel.protos import compat
from semel.protos.errors import SemelError, TimedOut, Unavailable, from_detail
from semel.protos.levels import SHARED_FETCH_LEVEL
from semel.protos.streams import decode_fetch_header
from semel.protos.v1 import broker_pb2

MAX_WAIT_MS: Final = 500
"""Milliseconds for which a broker may hold a poll that finds nothing."""
OVERDUE_S: Final = 1.5
"""Seconds after the end of a poll's wait without an answer: it is overdue. The broker is taken for
hung if it is also silent."""
SILENT_S: Final = MAX_WAIT_MS / 1000 + OVERDUE_S
"""Seconds without any answer after which a broker is silent."""
PATIENCE_S: Final = 10.0
"""Seconds for which a poll may be overdue while others are answered: much may be before it."""
SEATS_MAX: Final = 1_024
"""Seats of one stream; a broker serves 4,096 polls of one at a time."""
OLD_SEATS_MAX: Final = 16
"""The same at a broker below SHARED_FETCH_LEVEL, which serves 64."""


class FetchLink(Protocol):
    """The part of a reader's link that a stream uses."""

    def on_reply(self, header: broker_pb2.FetchReplyHeader, batches: Sequence[memoryview]) -> None:
        """An answer to one of its polls. What it raises ends its seat."""

    def wake(self) -> None:
        """Its seat has failed."""


class FetchClient(Protocol):
    """The part of a client that its fetch streams use."""

    config: ClientConfig
    streams: Streams

    def spawn(self, coroutine: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        """Starts a task that ends at the latest with the client."""


class FetchStreams:
    """The fetch streams of one client. Lives on the I/O thread."""

    def __init__(self, client: FetchClient) -> None:
        self.client = client
        self._open: dict[str, list[_SharedStream]] = {}
        """By address; more than one only to an old broker, or for more than SEATS_MAX readers."""

    async def join(
        self, address: str, link: FetchLink, *, answer_bytes: int, held_bytes: int
    ) -> Seat:
        """Takes a seat for a reader that asks for answers of `answer_bytes` and buffers
        `held_bytes`. Whoever gets it must leave it. Raises SemelError."""
        while True:
            stream = self._with_room(address)
            seat = Seat(stream, link, Exchange(stream.memory, answer_bytes, held_bytes))
            stream.seats[seat] = None
            try:
                # Others wait for it, too: it is not to end with the first who gives up.
                await asyncio.shield(stream.opened)
            except BaseException:
                seat.leave()
                raise
            if stream.confirm(seat):
                return seat
            seat.leave()

    def _with_room(self, address: str) -> _SharedStream:
        streams = self._open.setdefault(address, [])
        for stream in streams:
            if len(stream.seats) < stream.seats_max:
                return stream
        streams.append(_SharedStream(self, address))
        return streams[-1]

    def forget(self, stream: _SharedStream) -> None:
        """Nobody takes a seat on it any more."""
        streams = self._open.get(stream.address, [])
        if stream in streams:
            streams.remove(stream)
            if not streams:
                del self._open[stream.address]


class Seat:
    """A reader's share of a stream."""

    def __init__(self, stream: _SharedStream, link: FetchLink, exchange: Exchange) -> None:
        self.link = link
        self.exchange = exchange
        self.failure: Exception | None = None
        """Set once nothing is answered any more."""
        self.confirmed = False
        self.left = False
        self._stream = stream

    def new_number(self) -> int:
        """Returns the number of the next poll, which no other seat uses."""
        return self._stream.new_number()

    def ask(self, request: broker_pb2.FetchRequest, slot: Slot | None) -> None:
        """Sends a poll. If it names a place, it does so in the same step."""
        self._stream.ask(self, request, slot)

    def fail(self, error: Exception) -> None:
        if self.failure is None:
            self.failure = error
            self.link.wake()

    def leave(self) -> None:
        """Gives the seat up; idempotent."""
        if not self.left:
            self.left = True
            self._stream.on_left(self)


class _Poll:
    """A request whose last answer has not come."""

    __slots__ = ("deadline", "seat", "slot")

    def __init__(self, seat: Seat, slot: Slot | None, deadline: float) -> None:
        self.seat = seat
        self.slot = slot
        self.deadline = deadline
        """When its next answer is overdue."""


class _SharedStream:
    """A fetch stream and its seats."""

    def __init__(self, owner: FetchStreams, address: str) -> None:
        self.address = address
        self.seats: dict[Seat, None] = {}
        self.seats_max = SEATS_MAX
        self.memory = StreamMemory(allowed=owner.client.config.shared_memory)
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._owner = owner
        self._confirmed = 0
        self._stream: Stream | None = None
        self._polls: dict[int, _Poll] = {}
        """Under way."""
        self._unsent: deque[bytes] = deque()
        """Polls for which the socket has no room."""
        self._more = asyncio.Event()
        self._number = 0
        self._heard = 0.0
        self._task = owner.client.spawn(self._run(), f"semel-fetch-stream-{address}")

    def confirm(self, seat: Seat) -> bool:
        """Whether the stream, which is open now, has room for the seat."""
        if self._confirmed >= self.seats_max:
            return False
        self._confirmed += 1
        seat.confirmed = True
        return True

    def on_left(self, seat: Seat) -> None:
        del self.seats[seat]
        self.memory.forget(seat.exchange)
        self._confirmed -= seat.confirmed
        if not self.seats:
            self._owner.forget(self)
            self._task.cancel()

    def new_number(self) -> int:
        self._number += 1
        return self._number

    def ask(self, seat: Seat, request: broker_pb2.FetchRequest, slot: Slot | None) -> None:
        assert self._stream is not None
        self._polls[request.correlation_id] = _Poll(seat, slot, time.monotonic() + SILENT_S)
        message = request.SerializeToString()
        if self._unsent or not self._stream.write_now(message):
            self._unsent.append(message)
            self._more.set()

    async def _run(self) -> None:
        failure: Exception = Unavailable(f"the fetch stream to {self.address} was closed")
        try:
            stream = await self._owner.client.streams.open(self.address, Purpose.FETCH)
            try:
                await self._serve(stream)
            finally:
                stream.close()
        except* SemelError as group:
            failure = telling(group)
        except* Exception as group:  # every link reports it, as it does with bugs of its own
            failure = group.exceptions[0]
        finally:
            self._end(failure)

    async def _serve(self, stream: Stream) -> None:
        self._stream = stream
        self._heard = time.monotonic()
        if stream.levels.max < SHARED_FETCH_LEVEL:
            self.seats_max = OLD_SEATS_MAX
        self.opened.set_result(None)
        async with compat.TaskGroup() as tasks:
            tasks.create_task(self._read(stream))
            tasks.create_task(self._write(stream))
            tasks.create_task(self._watch())

    def _end(self, failure: Exception) -> None:
        self._owner.forget(self)
        self._polls.clear()
        if not self.opened.done():
            self.opened.set_exception(failure)
            self.opened.exception()  # there may be nobody left who waits
        for seat in list(self.seats):
            seat.fail(failure)

    async def _read(self, stream: Stream) -> None:
        while True:
            message = await stream.read()
            self._heard = now = time.monotonic()
            self._on_message(message, now)

    async def _write(self, stream: Stream) -> None:
        """Sends what `ask` could not."""
        while True:
            while self._unsent:
                await stream.write(self._unsent[0])
                self._unsent.popleft()
            self._more.clear()
            await self._more.wait()

    def _on_message(self, message: bytes | memoryview, now: float) -> None:
        header, rest = decode_fetch_header(message)
        poll = self._polls.get(header.correlation_id)
        if poll is None:
            if header.HasField("error"):
                raise from_detail(header.error)
            return
        if header.more:
            poll.deadline = now + SILENT_S
        else:
            del self._polls[header.correlation_id]
        seat = poll.seat
        if seat.left or seat.failure is not None:
            return
        try:
            seat.link.on_reply(header, seat.exchange.on_answer(header, rest, poll.slot, now))
        except Exception as error:
            seat.fail(error)

    async def _watch(self) -> None:
        """Raises TimedOut when the broker hangs."""
        while True:
            before = time.monotonic()
            await asyncio.sleep(0.25)
            now = time.monotonic()
            if now - before > 1.0:
                # This process was suspended: answers may be waiting to be read.
                for poll in self._polls.values():
                    poll.deadline = now + OVERDUE_S
            first = min((poll.deadline for poll in self._polls.values()), default=now)
            silent = now - self._heard > SILENT_S
            if first < now and (silent or first + PATIENCE_S < now):
                raise TimedOut(f"{self.address} does not answer a fetch")
