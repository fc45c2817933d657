"""Produce and fetch streams on sockets of their own, without gRPC.

How it works. A client asks for one over gRPC (`OpenDirect`) and gets a port and a ticket. One that
knows the port from the routes connects at once and asks there (`AskStream`): the same checks stand
before it as before the call, with the certificate of the connection itself. After the death of a
master that saves each of its clients a connection of gRPC. Both sides then send the same messages
as on gRPC's stream, framed; the handlers see a context with gRPC's `read` and `write` and notice no
difference. A message costs less than half as much as through gRPC, which wakes threads of its own
on each side (docs/decisions/direct-streams.md).

Backpressure. A stream is not read while `_HELD_BYTES` wait for its handler, and `write` returns
when the socket has taken all but some 64 KiB.

Invariants
1. A handler is cancelled when its connection is lost, and when the certificate of its caller
   expires. It runs in the context of the call that gave its ticket, and so for the caller of that
   call.
2. The connection stays open for a moment after its handler has ended, so that the last messages
   arrive: a socket that is closed with unread bytes in it takes back what it sent.
3. A stream that is asked for at the port passes what stands before `OpenDirect`, its gate and its
   class included.

Not here: who is let in (`replication/framed_port.py`), what the streams do (`server/produce.py`,
`server/fetch.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextvars import copy_context
from typing import Any, Final

from google.protobuf.message import DecodeError

from semel.broker.replica.fetch_waiters import finish
from semel.broker.replication.framed_port import FramedStream, TicketPort
from semel.broker.server.stream import StreamContext
from semel.protos.connection_limits import Connections
from semel.protos.errors import InternalError, InvalidRequest, to_detail
from semel.protos.framed import DIRECT_SILENCE_MAX_S
from semel.protos.levels import levels_metadata
from semel.protos.rpc import semel_error_of, until_expiry
from semel.protos.security.credentials import Contexts
from semel.protos.security.identity import auth_context_of_ssl, identity_of_auth_context
from semel.protos.streams import STREAM_MESSAGE_BYTES_MAX
from semel.protos.v1 import broker_pb2
from semel.protos.v1.common_pb2 import Levels

logger = logging.getLogger(__name__)

_METHOD: Final = "/semel.protos.v1.BrokerStream/OpenDirect"
_HELD_BYTES: Final = 1 << 20
_STRANGERS_MAX: Final = 2_048
"""After a master is gone, all of its clients come at once."""
_LAST_WORDS_S: Final = 1.0

Handler = Callable[[object, StreamContext], Awaitable[None]]
Answering = Callable[[str, Callable[..., Any]], Callable[..., Awaitable[Any]]]
"""Puts what stands before the calls of a method before a behavior (`ServerInterceptor`)."""
Place = tuple[str, int, int]
"""Cluster, broker group and node."""


class DirectStreams:
    """The port for clients; `serve` and `close` open and shut it."""

    def __init__(
        self,
        handlers: Mapping[int, Handler],
        levels: Callable[[], Levels],
        *,
        tls: Contexts | None = None,
        connections: Connections | None = None,
        left_s: Callable[[Any], float | None] = lambda _: None,
        place: Place = ("", 0, 0),
        answering: Answering | None = None,
    ) -> None:
        """`handlers` by `broker_pb2.DirectStream`; `levels` are the node's, as they are now. `tls`
        is None for plaintext, `connections` for no limit of them. `left_s` returns, for the context
        of a call, the seconds after which its caller's stream ends; None for never. `place` is the
        node's own, `answering` stands before what is asked for at the port; None for a port that
        wants tickets."""
        self._handlers = handlers
        self._levels = levels
        self._port = TicketPort(
            silence_max_s=DIRECT_SILENCE_MAX_S,
            strangers_max=_STRANGERS_MAX,
            length_max=STREAM_MESSAGE_BYTES_MAX,
            tls=tls,
            connections=connections,
            logins=True,
            granter=None if answering is None else self._on_asking,
        )
        self._left_s = left_s
        self._place = place
        self._begin = None if answering is None else answering(_METHOD, self._grant)
        self._asking: set[asyncio.Task[None]] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.serve = self._port.serve

    async def open(
        self, request: broker_pb2.OpenDirectRequest, context: Any
    ) -> broker_pb2.OpenDirectReply:
        """BrokerStream.OpenDirect. Raises InvalidRequest."""
        told = self._levels()
        caller = context.auth_context() if self._port.tls is not None else {}
        taker = self._taker(request.stream, told, context, caller)
        return broker_pb2.OpenDirectReply(
            port=self._port.port,
            ticket=self._port.give_ticket(taker, identity_of_auth_context(caller)),
            levels=told,
            streams=len(self._tasks),
        )

    @property
    def port(self) -> int:
        """The port, while it is open."""
        return self._port.port

    def _taker(
        self, kind: int, told: Levels, context: Any, caller: Mapping[str, Any]
    ) -> Callable[[FramedStream], _Context]:
        """What makes a stream of the call under way, whose caller was told of the levels `told`.
        Raises InvalidRequest."""
        handler = self._handlers.get(kind)
        if handler is None:
            raise InvalidRequest(f"stream {kind} is not known here")
        metadata = context.invocation_metadata()
        called = copy_context()
        left_s = self._left_s(context)
        loop = asyncio.get_running_loop()
        ends_at = None if left_s is None else loop.time() + left_s

        def taker(stream: FramedStream) -> _Context:
            if told.active and self._levels().active != told.active:
                raise InvalidRequest("the group's feature level rose since the ticket was given")
            taken = _Context(stream, metadata, caller)
            taken.task = task = loop.create_task(_run(handler, taken, ends_at), context=called)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            return taken

        return taker

    # ------------------------------------------------------------------ asked for at the port

    def _on_asking(self, stream: FramedStream, data: bytes) -> asyncio.Task[None]:
        try:
            asked = broker_pb2.AskStream.FromString(data)
        except DecodeError:
            raise InvalidRequest("a stream was asked for with a request that is none") from None
        task = asyncio.get_running_loop().create_task(self._answer(stream, asked))
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)
        return task

    async def _answer(self, stream: FramedStream, asked: broker_pb2.AskStream) -> None:
        assert self._begin is not None
        request = broker_pb2.OpenDirectRequest(stream=asked.stream)
        try:
            await self._begin(request, _Asking(stream, asked))
        except Exception as error:
            known = semel_error_of(error)
            if known is None:
                logger.exception("a stream that was asked for failed")
                known = InternalError("the stream could not be opened; see the broker's log")
            reply = broker_pb2.AskStreamReply(error=to_detail(known))
            stream.refuse(reply.SerializeToString(), _LAST_WORDS_S)

    async def _grant(self, request: broker_pb2.OpenDirectRequest, context: _Asking) -> None:
        asked = context.asked
        if (asked.cluster_id, asked.group_id, asked.node_id) != self._place:
            raise InvalidRequest("another node has this port now: ask for its own by gRPC")
        told = self._levels()
        taker = self._taker(request.stream, told, context, context.auth_context())
        reply = broker_pb2.AskStreamReply(levels=told, streams=len(self._tasks))
        context.stream.grant(taker, reply.SerializeToString())

    async def close(self) -> None:
        """Ends every stream, and waits for their handlers."""
        await self._port.close()
        tasks = [*self._tasks, *self._asking]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _run(handler: Handler, context: _Context, ends_at: float | None) -> None:
    """Serves a stream until the loop's time `ends_at`; None for as long as it wants."""
    loop, over = asyncio.get_running_loop(), False
    try:
        async with until_expiry(None if ends_at is None else ends_at - loop.time()):
            await handler(None, context)
    except Exception as error:
        over = ends_at is not None and loop.time() >= ends_at
        known = semel_error_of(error)
        if known is None:
            logger.exception("stream failed")
        else:
            logger.log(logging.INFO if over else logging.WARNING, "stream refused error=%s", known)
    finally:
        # Nothing was said to a client whose time is over, and it connects again the sooner.
        context.end(0 if over else _LAST_WORDS_S)


class _Asking:
    """A connection that asks for a stream, as what stands before a call sees its caller."""

    def __init__(self, stream: FramedStream, asked: broker_pb2.AskStream) -> None:
        self.stream = stream
        self.asked = asked
        self._caller = auth_context_of_ssl(stream.ssl_object)

    def peer(self) -> str:
        return self.stream.peer

    def auth_context(self) -> Mapping[str, Any]:
        return self._caller

    def invocation_metadata(self) -> Any:
        """What a call of the same client would carry."""
        return levels_metadata(self.asked.levels) if self.asked.HasField("levels") else ()


class _Context:
    """One client's stream: what its handler reads and writes (`framed_port.Taker`)."""

    def __init__(self, stream: FramedStream, metadata: Any, caller: Mapping[str, Any]) -> None:
        self.whose = str(identity_of_auth_context(caller) or "a client")
        self._metadata = metadata
        self._caller = caller
        self.task: asyncio.Task[None] | None = None
        self._stream = stream
        self._messages: deque[bytes | memoryview] = deque()
        self._held = 0
        """Bytes of them."""
        self._paused = False
        self._ended = False
        self._arrived: asyncio.Future[None] | None = None
        self._writable: asyncio.Future[None] | None = None

    # ------------------------------------------------------------------ for the handler

    async def read(self) -> bytes | memoryview:
        """The next message."""
        while not self._messages:
            self._arrived = asyncio.get_running_loop().create_future()
            await self._arrived
        message = self._messages.popleft()
        self._held -= len(message)
        if self._paused and self._held < _HELD_BYTES:
            self._paused = False
            self._stream.resume_reading()
        return message

    async def write(self, message: bytes) -> None:
        """Sends a message and returns when most of it has left, so that a client that reads nothing
        holds up its handler."""
        self._stream.write(message)
        while self._stream.full:
            if self._writable is None or self._writable.done():
                self._writable = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._writable)

    def write_now(self, message: bytes) -> bool:
        """Sends a message; False, and nothing is sent, while the client has yet to take others."""
        if self._stream.full:
            return False
        self._stream.write(message)
        return True

    async def send_initial_metadata(self, metadata: tuple[tuple[str, bytes], ...]) -> None:
        """A no-op: the client got the levels with its ticket, and knows that it was let in."""

    def invocation_metadata(self) -> Any:
        """The metadata with which the client asked for its ticket."""
        return self._metadata

    def auth_context(self) -> Mapping[str, Any]:
        """What TLS knew of the client when it asked for its ticket; the stream is of the same."""
        return self._caller

    # ------------------------------------------------------------------ for the connection

    def on_message(self, data: memoryview, *, owned: bool) -> None:
        if self._ended:
            return
        self._messages.append(data if owned else bytes(data))
        self._held += len(data)
        if self._held >= _HELD_BYTES and not self._paused:
            self._paused = True
            self._stream.pause_reading()
        finish(self._arrived)

    def on_writable(self) -> None:
        finish(self._writable)

    def on_lost(self) -> None:
        if self.task is not None:
            self.task.cancel()

    def end(self, last_words_s: float) -> None:
        """The handler has ended; what it has sent has so long to arrive."""
        self._ended = True
        self._messages.clear()
        if self._paused:
            self._paused = False
            self._stream.resume_reading()
        asyncio.get_running_loop().call_later(last_words_s, self._stream.abort)
