"""A port for framed streams, which lets in every connection that shows a ticket.

How it works. A caller that may have a stream gets a ticket over gRPC, made for one purpose. Its
connection shows the ticket in the first message; from then on its messages go to the *taker* that
the ticket was made for, in the same loop turn in which their last byte arrived. At a port with a
`Granter` a connection may ask for a stream instead, and is let in by `grant`.

A port with TLS lets in a connection whose certificate names the caller that got the ticket; a
caller without a certificate got it for a connection without one. A ticket may be made for plaintext
instead, where an operator has declared a network private.

Invariants
1. No message is taken from a connection before it has shown a ticket or what it asked for was
   granted, and a ticket serves once.
2. A stream whose bytes are malformed ends; the node goes on.
3. Connections without a ticket are few and short-lived, however many arrive. Before it has shown
   one, a connection costs no more memory than a hello and a TLS handshake. From one address, and in
   all, there are as many connections as `connections` admits.
4. On a port with TLS, a ticket that was not made for plaintext serves on no connection in
   plaintext, and nothing is asked for on one.

Not here: the bytes (`protos/framed.py`), giving tickets (`replication/receiver.py`,
`server/direct.py`), whom a stream is granted (`server/direct.py`).
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol, cast
from urllib.parse import quote

from semel.protos import compat
from semel.protos.connection_limits import ConnectionLimits, Connections
from semel.protos.errors import InvalidRequest, SemelError
from semel.protos.framed import (
    ACCEPTED,
    HELLO_BYTES_MAX,
    MESSAGE_BYTES_MAX,
    TICKET_BYTES,
    MessageBuffer,
    decode_asking,
    decode_hello,
    encode_head,
    new_area,
    tune,
)
from semel.protos.loop_turns import LoopTurns
from semel.protos.security.credentials import Contexts
from semel.protos.security.identity import Identity, identity_of_ssl
from semel.protos.security.tls_connection import AREA_BYTES, TlsConnection
from semel.protos.security.tls_session import PLAINTEXT_REFUSAL, TlsFailed, begins_tls
from semel.protos.seldom import Seldom

logger = logging.getLogger(__name__)

_TICKET_S = 5.0
_TICKETS_MAX = 4096
_HANDSHAKES: Final = 2
"""Steps of TLS handshakes in one turn of the loop; each takes some 0.3 ms of CPU."""
_BACKLOG: Final = 2_048
"""Connections that the kernel keeps until they are accepted. All clients of a master that is gone
come at once, and whoever finds no place there tries again a second later, or three."""


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


Granter = Callable[["FramedStream", bytes], asyncio.Task[None]]
"""Begins to answer what a connection asks for: the task calls `grant` or `refuse` of the stream,
and is cancelled with it. Raises InvalidRequest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ticket:
    """What a ticket is good for."""

    taker: Callable[[FramedStream], Taker]
    ends_at: float
    """Loop time, s."""
    identity: Identity | None
    """The identity of whoever got it; None for a caller that showed no certificate."""
    plaintext: bool


class TicketPort:
    """Lets connections in; `serve` and `close` open and shut the port."""

    def __init__(
        self,
        *,
        silence_max_s: int,
        strangers_max: int = 64,
        length_max: int = MESSAGE_BYTES_MAX,
        tls: Contexts | None = None,
        logins: bool = False,
        plaintext: Callable[[str], bool] = lambda _: False,
        connections: Connections | None = None,
        granter: Granter | None = None,
    ) -> None:
        """`tls` is None for a port in plaintext; with `logins` certificates of the clients' CA will
        do. `plaintext` says of a host (its IP address) if it may do without TLS, with a ticket for
        that. `connections` admits new ones; None for no limit. `granter` is None for a port of
        tickets alone."""
        if connections is None:
            connections = Connections(ConnectionLimits(), "")
        self._connections = connections
        self.silence_max_s = silence_max_s
        self._strangers_max = strangers_max
        self.length_max = length_max
        """Bytes of the longest message."""
        self.area = new_area()
        self.tls = None if tls is None else tls.server(logins=logins)
        """The context of each connection; None for plaintext."""
        self._plaintext = plaintext
        self._granter = granter
        self._tls_area = memoryview(bytearray(AREA_BYTES if tls is not None else 0))
        self._turns = LoopTurns(_HANDSHAKES)
        self.port = 0
        self._server: asyncio.Server | None = None
        self._closed = False
        self._tickets: dict[bytes, _Ticket] = {}
        """Oldest first."""
        self._strangers: dict[FramedStream, None] = {}
        """Connections that have shown no ticket yet, oldest first."""
        self._streams: dict[FramedStream, None] = {}
        self._log = Seldom(logger)

    async def serve(self, host: str, port: int) -> None:
        """Listens; port 0 takes a free one. Raises OSError."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._new_stream, host, port, backlog=_BACKLOG)
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

    def give_ticket(
        self,
        taker: Callable[[FramedStream], Taker],
        identity: Identity | None = None,
        *,
        plaintext: bool = False,
    ) -> bytes:
        """A ticket for one stream; `taker` is called with the stream once it is open.

        `identity` is that of the caller, who alone can use it on a port with TLS. With `plaintext`
        it serves without TLS.
        """
        now = asyncio.get_running_loop().time()
        if len(self._tickets) >= _TICKETS_MAX:
            self._tickets = {
                number: ticket for number, ticket in self._tickets.items() if ticket.ends_at > now
            }
            if len(self._tickets) >= _TICKETS_MAX:
                del self._tickets[next(iter(self._tickets))]
        number = secrets.token_bytes(TICKET_BYTES)
        self._tickets[number] = _Ticket(
            taker=taker, ends_at=now + _TICKET_S, identity=identity, plaintext=plaintext
        )
        return number

    def _new_stream(self) -> asyncio.BufferedProtocol:
        stream = FramedStream(self)
        if self.tls is None:
            return stream
        return TlsConnection(
            stream,
            self.tls,
            server_side=True,
            plaintext=lambda transport: self._plaintext(host_of(transport)),
            area=self._tls_area,
            turns=self._turns,
        )

    # ------------------------------------------------------------------ called by streams

    def on_connected(self, stream: FramedStream) -> None:
        if self._closed or not self._connections.admit(stream, stream.host):
            stream.abort()
            return
        if len(self._strangers) >= self._strangers_max:
            # The newest one stays: it may show a ticket at once, and a flood would keep it out.
            oldest = next(iter(self._strangers))
            del self._strangers[oldest]
            oldest.abort()
        self._strangers[stream] = None

    def on_hello(self, stream: FramedStream, number: bytes) -> Taker:
        """The taker of the stream's messages. Raises InvalidRequest."""
        ticket = self._tickets.pop(number, None)
        if ticket is None or ticket.ends_at <= asyncio.get_running_loop().time():
            raise InvalidRequest("a stream was opened with a ticket that was not given out")
        if self.tls is not None:
            shown = stream.ssl_object
            if shown is None and not ticket.plaintext:
                raise InvalidRequest("a stream in plaintext was opened with a ticket for TLS")
            if shown is not None and identity_of_ssl(shown) != ticket.identity:
                raise InvalidRequest(
                    f"a stream of {identity_of_ssl(shown) or 'nobody'} was opened with the ticket "
                    f"of {ticket.identity or 'somebody without a certificate'}"
                )
        self.on_granted(stream)
        return ticket.taker(stream)

    def on_asking(self, stream: FramedStream, request: bytes) -> asyncio.Task[None]:
        """Begins to answer a stream that asks. Raises InvalidRequest."""
        if self._granter is None:
            raise InvalidRequest("a stream was asked for at a port that wants tickets")
        if self.tls is not None and stream.ssl_object is None:
            raise InvalidRequest("a stream was asked for in plaintext at a port with TLS")
        return self._granter(stream, request)

    def on_granted(self, stream: FramedStream) -> None:
        """A stream is no stranger's any more."""
        self._strangers.pop(stream, None)
        self._streams[stream] = None

    def on_refused(self, whose: str, error: Exception) -> None:
        """A stream ended by what it sent. Anybody can bring that about, as often as they like, so
        few are logged."""
        self._log.warning(
            "streams ended by what they sent last_from=%s last_error=%s", whose, error
        )

    def on_lost(self, stream: FramedStream) -> None:
        self._connections.release(stream)
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
        self.host = ""
        """The IP address of the other end."""
        self._buffer = MessageBuffer(self._on_hello, area=port.area, length_max=HELLO_BYTES_MAX)
        self._from = ""
        """HOST:PORT of the other end, for the log."""
        self._heard = False
        """Bytes have come."""
        self._patience: asyncio.TimerHandle | None = None
        self._asking: asyncio.Task[None] | None = None
        """Decides whether the stream is granted that it asks for."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        tune(transport, silence_max_s=self._port.silence_max_s)
        self._transport = cast("asyncio.Transport", transport)
        self.host = host_of(transport)
        self._from = ":".join(map(str, transport.get_extra_info("peername", ("?",))[:2]))
        self._write_parts = compat.parts_writer(self._transport)
        self._patience = asyncio.get_running_loop().call_later(_TICKET_S, self.abort)
        self._port.on_connected(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer.target()

    @property
    def ssl_object(self) -> Any:
        """The other end's certificate and more; None for a stream in plaintext."""
        return None if self._transport is None else self._transport.get_extra_info("ssl_object")

    def buffer_updated(self, nbytes: int) -> None:
        if not self._heard:
            self._heard = True
            if self._refuse_tls(nbytes):
                return
        try:
            self._buffer.received(nbytes)
        except SemelError as error:
            whose = f"a stranger at {self._from}" if self._taker is None else self._taker.whose
            self._port.on_refused(whose, error)
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
        if self._asking is not None:
            self._asking.cancel()
        self._port.on_lost(self)
        if isinstance(error, TlsFailed):
            whose = f"a stranger at {self._from}" if self._taker is None else self._taker.whose
            self._port.on_refused(whose, error)
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

    @property
    def peer(self) -> str:
        """The other end as gRPC would write it."""
        if ":" in self.host:
            return f"ipv6:{quote(f'[{self.host}]')}:{self._from.rpartition(':')[2]}"
        return f"ipv4:{self._from}"

    def grant(self, taker: Callable[[FramedStream], Taker], answer: bytes) -> None:
        """Gives it the stream that it asks for; `answer` is the first message."""
        self._asking = None
        self._port.on_granted(self)
        self._let_in(taker(self))
        self.write(answer)

    def refuse(self, answer: bytes, last_words_s: float) -> None:
        """Answers that it gets no stream, and closes once there was time for it to arrive."""
        assert self._transport is not None
        self._asking = None
        if self._transport.is_closing():
            return
        self._transport.write(ACCEPTED)
        self.write(answer)
        asyncio.get_running_loop().call_later(last_words_s, self.abort)

    def _on_hello(self, data: memoryview) -> None:
        request = decode_asking(data)
        if request is None:
            self._let_in(self._port.on_hello(self, decode_hello(data)))
            return
        self._buffer.on_message = self._on_early
        self._asking = self._port.on_asking(self, request)

    def _on_early(self, data: memoryview) -> None:
        raise InvalidRequest("a message came before the stream that was asked for was granted")

    def _let_in(self, taker: Taker) -> None:
        assert self._patience is not None
        assert self._transport is not None
        self._taker = taker
        self._patience.cancel()
        self._buffer.on_message = self._on_message
        self._buffer.length_max = self._port.length_max
        self._transport.write(ACCEPTED)

    def _refuse_tls(self, nbytes: int) -> bool:
        """Whether a stranger wants TLS on a port in plaintext, and is told."""
        if self._port.tls is not None or not begins_tls(self._buffer.target()[:nbytes]):
            return False
        assert self._transport is not None
        refused = TlsFailed("it wants TLS, and this port speaks plaintext")
        self._port.on_refused(f"a stranger at {self._from}", refused)
        self._transport.write(PLAINTEXT_REFUSAL)
        self._transport.close()
        return True

    def _on_message(self, data: memoryview) -> None:
        assert self._taker is not None
        self._taker.on_message(data, owned=self._buffer.owned)


def host_of(transport: asyncio.BaseTransport) -> str:
    """The IP address of the other end; empty for a connection that is gone."""
    return str((transport.get_extra_info("peername") or ("",))[0])
