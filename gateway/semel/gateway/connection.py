"""One connection of a Kafka client: frames in, responses out, in the order of the requests.

How it works. Bytes are gathered until a frame is whole, then it waits for its turn. A request
begins when those before it are answered; requests in `OVERLAPPING` also begin while earlier ones of
theirs are under way. Each runs in a task of its own; responses leave in the order of requests. A
client that takes no responses off, or has many requests waiting, is not read.

How it ends. Bytes that are no request, an API or a version that is not served, and a mistake of
ours each close the connection, as Kafka's brokers do, with one line in the log. The one exception
is ApiVersions of an unknown version: it is answered in the layout of version 0, with which the
client begins anew.

Invariants
1. Responses leave in the order of their requests, at most one for each.
2. At most `frame_bytes_max` bytes are held for a frame, and no more than twice what has come of it.
3. Nothing is begun after the connection has ended; what is under way then is cancelled. Batches on
   their way to a broker may still be stored.

Where clients log in, a gate stands before all this: it says what may be served, and takes the
messages of SASL that have no head of Kafka's.

Not here: what requests do (the handlers), how many connections there may be (`server.py`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, NamedTuple, Protocol, cast

from kio.schema.errors import ErrorCode

from semel.gateway.api_versions import unsupported_version
from semel.gateway.dispatch import OVERLAPPING, Handler, RequestContext, Software
from semel.gateway.principals.sasl_gate import SaslGate
from semel.gateway.versions import TABLE, ApiKey, is_served
from semel.gateway.wire import (
    HEAD_BYTES_MIN,
    LENGTH,
    Raw,
    RequestHead,
    encode_response,
    read_head,
    read_request,
)
from semel.protos import compat
from semel.protos.errors import InvalidRequest, SemelError

logger = logging.getLogger(__name__)

OVERLAP_MAX: Final = 16
"""Requests of one connection that are under way together."""
WAITING_MAX: Final = 16
"""Requests of one connection that wait for their turn, before no more are read."""
LINGER_S: Final = 1.0
"""Seconds between the last response to a client that is refused and the end of its connection.
kafka-python throws a response away that it reads together with the end, so it would try again
instead of telling that the password is wrong."""
CHUNK_BYTES: Final = 256 << 10
"""Memory for the first bytes of a frame; it doubles as they come."""


BARE: Final = RequestHead(ApiKey.SASL_AUTHENTICATE, -1, 0)
"""Stands for the head of a frame that has none: a message of SASL."""


class ConnectionOwner(Protocol):
    """The part of a server that its connections use."""

    frame_bytes_max: int

    def handler(self, key: ApiKey, connection: KafkaConnection) -> Handler:
        """Returns what serves an API to the connection."""

    @property
    def is_full(self) -> bool:
        """Requests take all the memory that they may have together."""

    def context(
        self, head: RequestHead, client_id: str, connection: KafkaConnection
    ) -> RequestContext:
        """Returns what a handler gets beside the request."""

    def on_made(self, connection: KafkaConnection) -> bool:
        """A client has connected; False if it may not stay."""

    def on_lost(self, connection: KafkaConnection) -> None:
        """It is gone."""

    def on_bytes(self, held: int) -> None:
        """Requests take so many bytes more, or with a negative number less."""

    def on_answered(self, key: ApiKey, seconds: float) -> None:
        """A request was answered, so long after it was read."""

    def on_refused(self, reason: str) -> None:
        """A connection is closed because of what the client sent."""


class _Waiting(NamedTuple):
    """A request that is read and not begun."""

    head: RequestHead
    frame: memoryview
    came: float


class _Running:
    """A request that is under way."""

    __slots__ = ("came", "frame_bytes", "head", "parts", "task")

    def __init__(self, waiting: _Waiting) -> None:
        self.head = waiting.head
        self.came = waiting.came
        self.frame_bytes = len(waiting.frame)
        self.parts: list[bytes | memoryview] | None = None
        """The response, once it is there; empty for none."""
        self.task: asyncio.Task[None] | None = None


class KafkaConnection(asyncio.BufferedProtocol):
    """See the module's text. Lives on one event loop."""

    def __init__(self, owner: ConnectionOwner) -> None:
        self.host = ""
        self.gate: SaslGate | None = None
        """SASL, if clients log in; set by the owner."""
        self.software = Software()
        """What the client runs; told by itself."""
        self.active_at = time.monotonic()
        """When bytes came or a response left, last."""
        self._owner = owner
        self._transport: asyncio.Transport | None = None
        self._memory = bytearray(LENGTH.size)
        self._filled = 0
        self._frame_bytes = 0
        """The length of the frame that comes; 0 while it is awaited."""
        self._waiting: deque[_Waiting] = deque()
        self._running: deque[_Running] = deque()
        self._room = True
        """The socket takes responses."""
        self._reading = True
        self._draining = False
        self._closing: asyncio.TimerHandle | None = None
        """Set once a draining connection has sent its last response."""

    # ------------------------------------------------------------------ asyncio.BufferedProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._write_parts = compat.parts_writer(self._transport)
        name = transport.get_extra_info("peername")
        self.host = str(name[0]) if isinstance(name, tuple) else ""
        if not self._owner.on_made(self):
            self._transport.abort()

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self._memory)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self.active_at = time.monotonic()
        self._filled += nbytes
        if not self._frame_bytes:
            if self._filled == LENGTH.size:
                self._on_length(int(LENGTH.unpack(self._memory)[0]))
            return
        if self._filled == self._frame_bytes:
            frame = memoryview(self._memory)[: self._frame_bytes]
            self._memory, self._filled, self._frame_bytes = bytearray(LENGTH.size), 0, 0
            self._on_frame(frame)
        elif self._filled == len(self._memory):
            size = min(self._frame_bytes, 2 * len(self._memory))
            self._memory = self._memory + bytes(size - len(self._memory))

    def pause_writing(self) -> None:
        self._room = False
        self._mind_reading()

    def resume_writing(self) -> None:
        self._room = True
        self._flush()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        transport, self._transport = self._transport, None
        if transport is None:
            return
        for waiting in self._waiting:
            self._owner.on_bytes(-len(waiting.frame))
        self._waiting.clear()
        for running in self._running:
            self._owner.on_bytes(-running.frame_bytes)
            if running.task is not None:
                running.task.cancel()
        self._running.clear()
        if self._closing is not None:
            self._closing.cancel()
        if self.gate is not None:
            self.gate.on_lost()
        self._owner.on_lost(self)

    # ------------------------------------------------------------------------------------ ending

    @property
    def is_idle(self) -> bool:
        """No request is under way or on its way."""
        return not self._running and not self._waiting

    @property
    def is_cut(self) -> bool:
        """Part of a request has come."""
        return self._filled > 0 or self._frame_bytes > 0

    def close(self, reason: str = "") -> None:
        """Closes it at once, with `reason` in the log."""
        if self._transport is None:
            return
        if reason:
            logger.warning("connection closed peer=%s reason=%s", self.host, reason)
            self._owner.on_refused(reason)
        self._transport.abort()

    def drain(self) -> None:
        """Reads no more, and closes a little after everything that was begun is answered."""
        self._draining = True
        self._mind_reading()
        self._flush()

    def mind_reading(self) -> None:
        """There may be room for requests again."""
        self._mind_reading()

    # ---------------------------------------------------------------------------------- requests

    def _on_length(self, length: int) -> None:
        least, most = HEAD_BYTES_MIN, self._owner.frame_bytes_max
        if self.gate is not None:
            least = 1 if self.gate.wants_bare else least
            most = min(most, self.gate.frame_bytes_max or most)
        if not least <= length <= most:
            self.close(f"a request of {length} bytes, {most} are the most")
            return
        self._frame_bytes, self._filled = length, 0
        self._memory = bytearray(min(length, CHUNK_BYTES))

    def _on_frame(self, frame: memoryview) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        head = BARE if self.gate is not None and self.gate.wants_bare else read_head(frame)
        self._owner.on_bytes(len(frame))
        self._waiting.append(_Waiting(head, frame, time.monotonic()))
        self._begin()
        self._mind_reading()

    def _begin(self) -> None:
        """Begins the requests whose turn it is."""
        while self._waiting and self._room and self._transport is not None:
            if self._running and not self._may_overlap(self._waiting[0].head):
                return
            waiting = self._waiting.popleft()
            running = _Running(waiting)
            self._running.append(running)
            try:
                work = self._work(waiting)
            except InvalidRequest as error:
                self.close(error.message)
                return
            running.task = asyncio.get_running_loop().create_task(self._run(running, work))

    def _may_overlap(self, head: RequestHead) -> bool:
        if head.api_key not in OVERLAPPING or len(self._running) >= OVERLAP_MAX:
            return False
        return all(each.head.api_key in OVERLAPPING for each in self._running)

    def _work(self, waiting: _Waiting) -> Callable[[], Awaitable[Any]]:
        """Decodes a request and returns its handler, ready to be called. Raises InvalidRequest for
        what closes the connection."""
        head = waiting.head
        if self.gate is not None and head.api_key in TABLE:
            self.gate.check(ApiKey(head.api_key))
        if head is BARE:
            return partial(self._prove, waiting.frame)
        if not is_served(head.api_key, head.version):
            if head.api_key == ApiKey.API_VERSIONS:
                return unsupported_version
            raise InvalidRequest(
                f"version {head.version} of the API with key {head.api_key} is not served"
            )
        client_id, request = read_request(waiting.frame, head)
        context = self._owner.context(head, client_id, self)
        return partial(self._owner.handler(context.api_key, self), request, context)

    async def _prove(self, frame: memoryview) -> Raw | None:
        """A message of SASL without a head; what is wrong ends the connection without an answer."""
        assert self.gate is not None
        verdict = await self.gate.authenticate(frame, bare=True)
        return None if verdict.refusal else Raw((verdict.answer,))

    async def _run(self, running: _Running, work: Callable[[], Awaitable[Any]]) -> None:
        try:
            response = await work()
            if response is None:
                running.parts = []
            elif running.head is BARE:
                running.parts = [LENGTH.pack(sum(map(len, response.parts))), *response.parts]
            else:
                running.parts = encode_response(running.head, response)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            if isinstance(error, SemelError):
                logger.error("request failed key=%s error=%s", running.head.api_key, error.message)
            else:
                logger.exception("request failed key=%s", running.head.api_key)
            self.close(f"{ErrorCode.unknown_server_error.name} in API {running.head.api_key}")
            return
        self._flush()

    def _flush(self) -> None:
        """Sends the responses whose turn it is, and goes on with what waits."""
        while self._running and self._room and self._transport is not None:
            first = self._running[0]
            if first.parts is None:
                break
            self._running.popleft()
            now = self.active_at = time.monotonic()
            if first.parts:
                self._write_parts(tuple(first.parts))
            self._owner.on_bytes(-first.frame_bytes)
            self._owner.on_answered(ApiKey(first.head.api_key), now - first.came)
        if self._draining and not self._running:
            if self._transport is not None and self._closing is None:
                loop = asyncio.get_running_loop()
                self._closing = loop.call_later(LINGER_S, self._transport.close)
            return
        self._begin()
        self._mind_reading()

    def _mind_reading(self) -> None:
        """Reads from the client, or lets it wait."""
        if self._transport is None or self._transport.is_closing():
            return
        wanted = (
            self._room
            and not self._draining
            and len(self._waiting) < WAITING_MAX
            and (not self._owner.is_full or not self._running)
        )
        if wanted and not self._reading:
            self._transport.resume_reading()
        elif self._reading and not wanted:
            self._transport.pause_reading()
        self._reading = wanted
