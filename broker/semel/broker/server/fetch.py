"""Fetch streams: long polls in, stored batches out.

How it works. A request names queues and offsets; its answer carries stored batches with row
ranges, byte for byte as they are in the log, and the client slices. Batches in the tail cache are
answered in the loop turn in which the request arrived; the others are read in the reader pool. A
request that finds nothing waits until one of its queues grows, or until its time is over. A client
on the same machine gets the batches through memory that it has offered, and only the header is
sent.

With a *standing* request, a reader that keeps up need not send a request for each small answer. It
is answered again whenever its queues grow, each time from where the answer before it ended, until
its bytes or its time are used up, or a queue gives an error or ends. Many that wait for one queue
get the same bytes, and no task wakes for them (`server/fan_out.py`).

What only the object store has may take long to come. It is waited for before anything is read, and
only while no queue of the request has anything else: so newer messages never wait for older ones.
An answer without it leaves in time, the read goes on, and the client asks again.

A client has one stream for all of its readers. Those that are behind take turns on it, with large
replies; those that wait for something new have turns of their own, so that it does not come after
what the others have to catch up with.

Only applied entries are seen, so nothing that is returned can be lost. A slave answers only if the
request allows it (`any_replica`).

Invariants
1. A reply holds at most the bytes asked for, but at least one batch if a queue has data.
2. Answers leave a stream one after the other. Each request is answered once, and a standing one
   until an answer does not say `more`.
3. Before each answer this node checks that it is the master, unless the request allows any
   replica.
4. Replies that wait for their clients are bounded: there are at most two for each stream to polls
   that are behind, and two to those that have waited, and they are the smaller, the more bytes
   wait.

Not here: one queue's part of an answer (`server/queue_reader.py`), memory of clients
(`server/shared_memory.py`), many readers of one queue (`server/fan_out.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, Protocol

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from semel.broker.config import BrokerConfig
from semel.broker.quotas.broker_quotas import BrokerQuotas, calling_principal
from semel.broker.quotas.read_pace import LOOK_S, ReadPace, Wait
from semel.broker.replica.fetch_waiters import Growth, QueueWatchers, finish
from semel.broker.server.fan_out import FanOut
from semel.broker.server.queue_reader import Part, QueueReader, ReadNode
from semel.broker.server.shared_memory import ClientMemory, MemoryPool, Place
from semel.broker.server.stream import PromptContext, StreamContext
from semel.broker.tiers.cold_reads import ColdReads
from semel.protos import compat
from semel.protos.errors import InvalidRequest, SemelError, to_detail
from semel.protos.ids import QueueKey
from semel.protos.levels import READERS_LEVEL, levels_metadata, told_levels, untold_levels
from semel.protos.metrics import Histogram
from semel.protos.queue_refs import queue_key_of
from semel.protos.security.declared import declared
from semel.protos.security.enforcement import Enforcer, Gate
from semel.protos.streams import encode_fetch_reply
from semel.protos.v1 import broker_pb2
from semel.protos.v1.common_pb2 import Levels

_QUEUES_MAX = 65_536
_METHOD: Final = "/semel.protos.v1.BrokerStream/Fetch"
_READ_AHEAD = 2
"""Replies of one stream that are read from the log before the first of them has left: so many to
polls that are behind, and as many to those that have waited."""
_BUFFER_SHARE = 8
"""Divisor: a reply takes at most this part of what is left of `fetch_buffer_bytes_max`."""
_COLD_WAIT_S = 0.5
"""For so long after the end of a poll's wait an answer may wait for the object store; clients take
a broker for hung after three times that."""
_LEAST_BYTES = 64 << 10
"""A reply may always take this much."""


class FetchNode(ReadNode, Protocol):
    """The node, as this module needs it."""

    @property
    def config(self) -> BrokerConfig: ...

    def check_master(self) -> None: ...

    def levels(self) -> Levels: ...

    @property
    def watchers(self) -> QueueWatchers: ...


@dataclass(slots=True, kw_only=True)
class FetchCounters:
    """Totals of all streams since the start, as plain numbers for `probe.py`."""

    streams: int = 0
    """Streams that are open now."""
    messages: int = 0
    bytes: int = 0
    """Bytes of whole batches as they are stored, even if only some rows of one are wanted."""
    shared_bytes: int = 0
    """The part of `bytes` that was written to memory of clients."""
    seconds: Histogram = field(default_factory=Histogram)
    """Time to read the stored bytes of a reply that has any, without the wait for new ones and
    without sending. A reply that many readers get is read once."""


@dataclass(slots=True, kw_only=True)
class _Poll:
    """A request, and how far it is answered: each answer moves its offsets on."""

    request: broker_pb2.FetchRequest
    keys: list[QueueKey]
    """The queues of `request.queues`, in that order."""
    place: Place | None
    deadline: float
    """Loop time at which the wait for new batches ends."""
    standing: int
    """Bytes that may still be sent; the request is answered again until they are used up."""
    level_max: int
    """The highest feature level that the client knows."""
    waited: bool = False
    """It has waited for what the next answer tells."""
    ended: bool = False
    """The last answer was written while its task waited."""
    pace: ReadPace | None
    """What answers wait for beside new batches; None for nothing."""
    throttled_s: float = 0.0
    """For how long it has waited for quotas since the last answer."""

    @property
    def limited(self) -> bool:
        """A quota may limit what is read."""
        return self.pace is not None and self.pace.limits


class _Outlet:
    """Sends the replies of one stream."""

    def __init__(self, context: StreamContext) -> None:
        self._context = context
        self.prompt = context if isinstance(context, PromptContext) else None
        self._writing = asyncio.Lock()
        self._behind = asyncio.Semaphore(_READ_AHEAD)
        self._waited = asyncio.Semaphore(_READ_AHEAD)

    def turn(self, poll: _Poll) -> asyncio.Semaphore:
        """The turns in which the poll is read and answered."""
        return self._waited if poll.waited else self._behind

    async def write(self, reply: bytes) -> None:
        """Returns once the client's window has taken it."""
        async with self._writing:
            await self._context.write(reply)

    def write_now(self, reply: bytes) -> bool:
        """False, and nothing is written, if the client has yet to take other replies."""
        return (
            self.prompt is not None and not self._writing.locked() and self.prompt.write_now(reply)
        )


class FetchHandler:
    """Handles BrokerStream.Fetch."""

    def __init__(
        self,
        node: FetchNode,
        cold: ColdReads | None = None,
        enforcer: Enforcer | None = None,
        quotas: BrokerQuotas | None = None,
    ) -> None:
        """`cold` reads what only the object store has; None if the node was given none. Without an
        `enforcer` everybody may read everything, without `quotas` as fast as the node can."""
        self._node = node
        self._quotas = quotas
        self._enforcer = enforcer
        self.counters = FetchCounters()
        self._reader = QueueReader(node, cold)
        self._reads_cold = cold is not None
        self._fan_out = FanOut(node, self._reader, self.counters, node.config.fetch_bytes_max)
        self._memories = MemoryPool(node.config.fetch_shared_bytes_max)
        self.unsent_bytes = 0
        """Bytes of all replies that were read from the log and not yet taken by their clients."""

    async def fetch(self, _: object, context: StreamContext) -> None:
        """One client's stream. Requests are served concurrently, replies leave in turn."""
        if self._enforcer is None:
            await self._fetch(context, None)
            return
        task, ended = asyncio.current_task(), list[SemelError]()
        assert task is not None

        def end(error: SemelError) -> None:
            if not ended:
                ended.append(error)
                task.cancel()

        with self._enforcer.gate(_METHOD, end) as gate:
            try:
                await self._fetch(context, gate)
            except asyncio.CancelledError:
                if not ended or task.uncancel() > 0:  # the client hung up
                    raise
                raise ended[0] from None

    async def _fetch(self, context: StreamContext, gate: Gate | None) -> None:
        limit = asyncio.Semaphore(self._node.config.fetches_per_stream_max)
        out = _Outlet(context)
        await context.send_initial_metadata(levels_metadata(self._node.levels()))

        told = told_levels(context.invocation_metadata()) or untold_levels()

        pace = None if self._quotas is None else ReadPace(self._quotas, calling_principal())

        async def answer(request: broker_pb2.FetchRequest, memory: ClientMemory | None) -> None:
            try:
                await self._serve(request, out, memory, told.max, gate, pace)
            finally:
                limit.release()

        memory: ClientMemory | None = None
        self.counters.streams += 1
        try:
            async with compat.TaskGroup() as tasks:
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
            if pace is not None:
                pace.close()
            self.counters.streams -= 1

    async def _serve(
        self,
        request: broker_pb2.FetchRequest,
        out: _Outlet,
        memory: ClientMemory | None,
        level_max: int,
        gate: Gate | None = None,
        pace: ReadPace | None = None,
    ) -> None:
        try:
            if gate is not None:
                gate.admit(declared(_METHOD).needs(request))
            poll = self._poll(request, memory, level_max, pace)
            if pace is not None:
                pace.on_request()
            while True:
                if not request.any_replica:
                    self._node.check_master()
                if self._nothing_for(poll):
                    await self._growth(poll, out)
                    poll.waited = True
                    if poll.ended:
                        return
                elif poll.limited and (wait := self._quota_wait(poll)) is not None:
                    await self._throttle(poll, wait)
                elif self._reads_cold and (absent := self._absent(poll)):
                    await self._arrival(poll, absent)
                elif not await self._answer(poll, out):
                    return
        except SemelError as error:
            header = broker_pb2.FetchReplyHeader(correlation_id=request.correlation_id)
            header.error.CopyFrom(to_detail(error))
            await out.write(encode_fetch_reply(header, []))

    def _poll(
        self,
        request: broker_pb2.FetchRequest,
        memory: ClientMemory | None,
        level_max: int,
        pace: ReadPace | None = None,
    ) -> _Poll:
        """Raises InvalidRequest."""
        config = self._node.config
        if len(request.queues) > _QUEUES_MAX:
            raise InvalidRequest(f"a fetch names at most {_QUEUES_MAX} queues")
        if request.standing_bytes and request.memory_bytes:
            raise InvalidRequest(
                "a standing fetch names no memory: there is a place for one answer"
            )
        wait_ms = min(request.max_wait_ms, config.fetch_wait_max_ms)
        return _Poll(
            request=request,
            keys=[queue_key_of(wanted.queue) for wanted in request.queues],
            place=memory.place(request) if memory is not None else None,
            deadline=asyncio.get_running_loop().time() + wait_ms / 1000,
            standing=request.standing_bytes,
            level_max=level_max,
            pace=pace,
        )

    def _quota_wait(self, poll: _Poll) -> Wait | None:
        """What an answer has to wait for; None if it may leave, or the time of the poll is over."""
        assert poll.pace is not None
        if asyncio.get_running_loop().time() >= poll.deadline:
            return None
        return poll.pace.wait(self._with_news(poll))

    async def _throttle(self, poll: _Poll, wait: Wait) -> None:
        """Waits for a quota, no longer than the poll may."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        await asyncio.sleep(max(0.0, min(wait.seconds, LOOK_S, poll.deadline - began_s)))
        passed_s = loop.time() - began_s
        wait.meter.on_wait(passed_s)
        poll.throttled_s += passed_s

    def _with_news(self, poll: _Poll) -> list[QueueKey]:
        """The queues of which there is something to answer."""
        wanted = zip(poll.request.queues, poll.keys, strict=True)
        return [key for queue, key in wanted if not self._reader.nothing_for(queue, key)]

    def _nothing_for(self, poll: _Poll) -> bool:
        """There is nothing to answer yet, and time left to wait."""
        nothing_for = self._reader.nothing_for
        return (
            all(map(nothing_for, poll.request.queues, poll.keys))
            and asyncio.get_running_loop().time() < poll.deadline
        )

    def _absent(self, poll: _Poll) -> list[asyncio.Future[None]]:
        """What the poll has to wait for, if nothing but the object store has anything for it."""
        if asyncio.get_running_loop().time() >= poll.deadline + _COLD_WAIT_S:
            return []
        absent: list[asyncio.Future[None]] = []
        for wanted, key in zip(poll.request.queues, poll.keys, strict=True):
            if (arrival := self._reader.absent(wanted, key)) is not None:
                absent.append(arrival)
            elif not self._reader.nothing_for(wanted, key):
                return []
        return absent

    async def _arrival(self, poll: _Poll, absent: list[asyncio.Future[None]]) -> None:
        """Returns when something came from the object store, or a queue of the poll grew, moved or
        ended, or the time is over."""
        grown = self._node.watchers.watch(poll.keys)
        left_s = poll.deadline + _COLD_WAIT_S - asyncio.get_running_loop().time()
        try:
            await asyncio.wait(
                (grown, *absent), timeout=left_s, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            self._node.watchers.unwatch(poll.keys, grown)

    async def _growth(self, poll: _Poll, out: _Outlet) -> None:
        """Returns when one of the queues grows, moves or ends, or the time is over. A standing poll
        may have been answered by then, and may have ended."""
        with self._watching(poll, out) as grown:
            timer = asyncio.get_running_loop().call_at(poll.deadline, finish, grown)
            try:
                await grown
            finally:
                timer.cancel()

    @contextmanager
    def _watching(self, poll: _Poll, out: _Outlet) -> Iterator[Growth]:
        """What a poll waits for; a reader in no group may be answered without its task."""
        if (
            poll.standing > 0
            and out.prompt is not None
            and not poll.limited
            and poll.level_max >= READERS_LEVEL  # all of a crowd can read the same bytes
            and len(poll.keys) == len(set(poll.keys))
            and not any(wanted.group for wanted in poll.request.queues)
        ):
            grown: Growth = asyncio.get_running_loop().create_future()
            with self._fan_out.joined(poll, poll.keys, out, grown):
                yield grown
            return
        grown = self._node.watchers.watch(poll.keys)
        try:
            yield grown
        finally:
            self._node.watchers.unwatch(poll.keys, grown)

    async def _answer(self, poll: _Poll, out: _Outlet) -> bool:
        """Reads and writes one reply; True when another one follows.

        A client that reads nothing holds a few replies at most, and the more bytes all clients
        hold together, the smaller is the next reply. So thousands of them cannot fill the
        memory, and the clients that read are served.
        """
        config, request = self._node.config, poll.request
        header = broker_pb2.FetchReplyHeader(correlation_id=request.correlation_id)
        pace = poll.pace
        limited = poll.limited
        async with out.turn(poll):
            poll.waited = False
            left = max(0, config.fetch_buffer_bytes_max - self.unsent_bytes)
            room = min(
                request.max_bytes or config.fetch_bytes_max,
                config.fetch_bytes_max,
                max(left // _BUFFER_SHARE, _LEAST_BYTES),
            )
            if pace is not None and limited:
                news = self._with_news(poll)
                if pace.wait(news) is None:
                    room = min(room, pace.room(news))
                elif asyncio.get_running_loop().time() < poll.deadline:
                    return True  # another answer took what there was: it waits again
                else:
                    room = 0
            header.throttled_ms, poll.throttled_s = round(poll.throttled_s * 1000), 0.0
            self.unsent_bytes += room
            held = room
            try:
                if pace is not None and pace.turns.contended:
                    parts = await self._in_turn(poll, header, room, pace, limited=limited)
                else:
                    parts = await self._once(poll, header, room, pace if limited else None)
                header.more = self._stands(poll, header)
                if poll.place is not None and parts and poll.place.put(parts):
                    header.in_memory = True
                    self.counters.shared_bytes += sum(map(len, parts))
                reply = encode_fetch_reply(header, parts)
                self.unsent_bytes += len(reply) - held
                held = len(reply)
                await out.write(reply)
            finally:
                self.unsent_bytes -= held
        return header.more

    async def _in_turn(
        self,
        poll: _Poll,
        header: broker_pb2.FetchReplyHeader,
        room: int,
        pace: ReadPace,
        *,
        limited: bool,
    ) -> list[Part]:
        """The same as `_once` when it is the principal's turn."""
        turn = pace.turns.ask(pace.principal, room)
        if turn is not None:
            await turn
        parts: list[Part] = []
        try:
            parts = await self._once(poll, header, room, pace if limited else None)
        finally:
            pace.turns.give_back(pace.principal, room - sum(map(len, parts)))
        return parts

    @staticmethod
    def _stands(poll: _Poll, header: broker_pb2.FetchReplyHeader) -> bool:
        """Another answer follows this one: no queue gave an error or ended for good."""
        return (
            poll.standing > 0
            and asyncio.get_running_loop().time() < poll.deadline
            and all(result.batches and not result.sealed for result in header.results)
        )

    async def _once(
        self, poll: _Poll, header: broker_pb2.FetchReplyHeader, room: int, pace: ReadPace | None
    ) -> list[Part]:
        """Fills `header.results` with at most `room` bytes, but at least one batch, and moves the
        poll on behind them. `pace` is None where no quota limits it."""
        parts: list[Part] = []
        counters = self.counters
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        for wanted, key in zip(poll.request.queues, poll.keys, strict=True):
            if room <= 0:
                break
            if pace is not None and pace.holds(key):
                continue  # its topic's quota is used up
            if self._reads_cold and self._reader.absent(wanted, key) is not None:
                continue  # it comes with a later answer
            found = await self._reader.read(
                wanted, key, room, alone=not parts, level_max=poll.level_max
            )
            if found is None:
                continue
            header.results.append(found.result)
            counters.messages += found.next_offset - wanted.offset
            wanted.offset = found.next_offset
            parts += found.batches
            size = sum(map(len, found.batches))
            counters.bytes += size
            room -= size
            poll.standing -= size
            if pace is not None:
                pace.on_read(key, size)
        if parts:
            counters.seconds.observe(loop.time() - began_s)
        return parts
