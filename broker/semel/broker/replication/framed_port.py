"""A port for framed streams, which lets in every connection that shows a ticket.

How it works. A caller that may have a stream gets a ticket over gRPC, made for one purpose. Its
connection shows the ticket in the first message; from then on its messages go to the *taker* that
the ticket was made for, in the same loop turn in which their last byte arrived.

Invariants
1. No message is taken from a connection before it has shown a ticket, and a ticket serves once.
2. A stream whose bytes are malformed ends; the node goes on.
3. Connections without a ticket are few and short-lived, however many arrive, and none makes this
   node hold more than a hello.

Not here: the bytes (`protos/framed.py`), giving tickets (`replication/receiver.py`,
`server/direct.py`).
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable
from typing import Protocol, cast

from semel.protos import compat
from semel.protos.errors import InvalidRequest, SemelError
from semel.protos.framed import (
    ACCEPTED,
    HELLO_BYTES_MAX,
    MESSAGE_BYTES_MAX,
    TICKET_BYTES,
    MessageBuffer,
    decode_hello,
    encode_head,
    new_area,
    tune,
)

logger = logging.getLogger(__name__)

_TICKET_S = 5.0
_TICKETS_MAX = 4096
_TELL_S = 1.0
"""Pause between two lines of the log about those."""


class Taker(Protocol):
    """Takes the messages of a stream."""

    @property
    def whose(self) -> str:
        """The other end, as the log names it."""
        ...

    def on_message(self, data: memoryview, *, owned: bool) -> None:
        """`data` is valid only during the call, unless `owned`. A SemelError ends the stream."""

    def on_writable(self) -> None:
        """There is room again, after `FramedStream.full` was true."""

    def on_lost(self) -> None:
        """The connection is gone."""


class TicketPort:
    """Lets connections in; `serve` and `close` open and shut the port."""

    def __init__(
        self,
        *,
        silence_max_s: int,
        strangers_max: int = 64,
        length_max: int = MESSAGE_BYTES_MAX,
    ) -> None:
        self.silence_max_s = silence_max_s
        self._strangers_max = strangers_max
        self.length_max = length_max
        """Bytes of the longest message."""
        self.area = new_area()
        self.port = 0
        self._server: asyncio.Server | None = None
        self._closed = False
        self._tickets: dict[bytes, tuple[Callable[[FramedStream], Taker], float]] = {}
        """The taker to make, and the end of life (loop time, s), by ticket; oldest first."""
        self._strangers: dict[FramedStream, None] = {}
        """Connections that have shown no ticket yet, oldest first."""
        self._streams: dict[FramedStream, None] = {}
        self._refused = 0
        """Streams that ended by what they sent, and are not logged yet."""
        self._tell_s = 0.0
        """Loop time from which the next one is logged."""

    async def serve(self, host: str, port: int) -> None:
        """Listens; port 0 takes a free one. Raises OSError."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: FramedStream(self), host, port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Ends every stream."""
        self._closed = True
        if self._server is not None:
            loop = asyncio.get_running_loop()
            if isinstance(loop, asyncio.SelectorEventLoop):
                # asyncio forgets a connection, open, that it accepted one turn before its server
                # closes: so nothing more is accepted, and that one is finished first.
                for listening in self._server.sockets:
                    loop.remove_reader(listening.fileno())
                await asyncio.sleep(0)
            self._server.close()
        for stream in (*self._strangers, *self._streams):
            stream.abort()

    def give_ticket(self, taker: Callable[[FramedStream], Taker]) -> bytes:
        """A ticket for one stream; `taker` is called with the stream once it is open."""
        now = asyncio.get_running_loop().time()
        if len(self._tickets) >= _TICKETS_MAX:
            self._tickets = {
                ticket: holder for ticket, holder in self._tickets.items() if holder[1] > now
            }
            if len(self._tickets) >= _TICKETS_MAX:
                del self._tickets[next(iter(self._tickets))]
        ticket = secrets.token_bytes(TICKET_BYTES)
        self._tickets[ticket] = (taker, now + _TICKET_S)
        return ticket

    # ------------------------------------------------------------------ called by streams

    def on_connected(self, stream: FramedStream) -> None:
        if self._closed:
            stream.abort()
            return
        if len(self._strangers) >= self._strangers_max:
            # The newest one stays: it may show a ticket at once, and a flood would keep it out.
            oldest = next(iter(self._strangers))
            del self._strangers[oldest]
            oldest.abort()
        self._strangers[stream] = None

    def on_hello(self, stream: FramedStream, ticket: bytes) -> Taker:
        """The taker of the stream's messages. Raises InvalidRequest."""
        taker, end = self._tickets.pop(ticket, (None, 0.0))
        if taker is None or end <= asyncio.get_running_loop().time():
            raise InvalidRequest("a stream was opened with a ticket that was not given out")
        self._strangers.pop(stream, None)
        self._streams[stream] = None
        return taker(stream)

    def on_refused(self, whose: str, error: SemelError) -> None:
        """A stream ended by what it sent. Anybody can bring that about, as often as they like, so
        few are logged."""
        self._refused += 1
        now = asyncio.get_running_loop().time()
        if now >= self._tell_s:
            logger.warning(
                "streams ended by what they sent count=%d last_from=%s last_error=%s",
                self._refused,
                whose,
                error,
            )
            self._refused, self._tell_s = 0, now + _TELL_S

    def on_lost(self, stream: FramedStream) -> None:
        self._strangers.pop(stream, None)
        self._streams.pop(stream, None)


class FramedStream(asyncio.BufferedProtocol):
    """One connection at the port."""

    def __init__(self, port: TicketPort) -> None:
        self.full = False
        """Whether more was written than the other end has read."""
        self._port = port
        self._transport: asyncio.Transport | None = None
        self._taker: Taker | None = None
        self._buffer = MessageBuffer(self._on_hello, area=port.area, length_max=HELLO_BYTES_MAX)
        self._patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        tune(transport, silence_max_s=self._port.silence_max_s)
        self._transport = cast("asyncio.Transport", transport)
        self._write_parts = compat.parts_writer(self._transport)
        self._patience = asyncio.get_running_loop().call_later(_TICKET_S, self.abort)
        self._port.on_connected(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer.target()

    def buffer_updated(self, nbytes: int) -> None:
        try:
            self._buffer.received(nbytes)
        except SemelError as error:
            self._port.on_refused("a stranger" if self._taker is None else self._taker.whose, error)
            self.abort()

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self.full = True

    def resume_writing(self) -> None:
        self.full = False
        if self._taker is not None:
            self._taker.on_writable()

    def connection_lost(self, error: Exception | None) -> None:
        if self._patience is not None:
            self._patience.cancel()
        self._port.on_lost(self)
        if self._taker is not None:
            self._taker.on_lost()

    def abort(self) -> None:
        """Ends the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    def write(self, message: bytes) -> None:
        """Sends one message; what does not leave at once waits in memory, and makes it `full`. Of a
        connection that is gone, which the taker hears soon, nothing is sent."""
        assert self._transport is not None
        if self._transport.is_closing():
            return
        self._write_parts((encode_head(len(message)), message))

    def pause_reading(self) -> None:
        """Takes nothing more off the connection until `resume_reading`."""
        assert self._transport is not None
        if not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        assert self._transport is not None
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def _on_hello(self, data: memoryview) -> None:
        assert self._patience is not None
        assert self._transport is not None
        self._taker = self._port.on_hello(self, decode_hello(data))
        self._patience.cancel()
        self._buffer.on_message = self._on_message
        self._buffer.length_max = self._port.length_max
        self._transport.write(ACCEPTED)

    def _on_message(self, data: memoryview) -> None:
        assert self._taker is not None
        self._taker.on_message(data, owned=self._buffer.owned)
