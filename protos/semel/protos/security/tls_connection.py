"""TLS on a connection of asyncio or uvloop, below a protocol that notices no difference.

How it works. A `TlsConnection` is the protocol of the plain transport and the transport of the
protocol above it, which may be a `Protocol` or a `BufferedProtocol`. That one is told of the
connection before the handshake, so that it counts and limits it; what it writes then leaves after
the handshake, and it reads nothing before. What it writes later is encrypted in the same call, and
stands in the plain transport's buffer, which is the only one: that pauses the protocol as it would
without TLS. Bytes are decrypted into the protocol's own memory.

This is done here, and not by the event loops' own TLS, because those tell a protocol of a
connection only after the handshake, cut what is sent into small records, copy it several times, and
end a failed handshake without a word (docs/decisions/security.md has the figures).

Invariants
1. The protocol sees no byte before the handshake is complete and `check` has accepted the other
   end.
2. A handshake takes `HANDSHAKE_S` at most and `HANDSHAKE_BYTES_MAX` bytes.
3. A protocol that reads nothing holds up the other end: what was received and not decrypted is at
   most what one read took off the socket.
4. `connection_lost` gets the TlsFailed that ended the connection.
5. With `turns`, the handshakes of very many connections do not keep the loop from all else.

Not here: the cryptography (`tls_session.py`), contexts (`credentials.py`).
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final, cast

from semel.protos import compat
from semel.protos.errors import SemelError
from semel.protos.loop_turns import LoopTurns
from semel.protos.security.tls_session import (
    HANDSHAKE_BYTES_MAX,
    RECORD_BYTES,
    TLS_REFUSAL,
    Bytes,
    TlsFailed,
    TlsSession,
    begins_tls,
)

HANDSHAKE_S: Final = 5.0
AREA_BYTES: Final = 128 << 10
_LAST_WORDS_S: Final = 1.0
"""Seconds for which a refused connection stays open, so that the refusal arrives: a socket that is
closed with unread bytes in it takes back what it sent."""


class TlsConnection(asyncio.BufferedProtocol, asyncio.Transport):
    """One connection, for `create_connection` or `create_server`. Belongs to one event loop."""

    def __init__(
        self,
        protocol: asyncio.Protocol | asyncio.BufferedProtocol,
        context: ssl.SSLContext,
        *,
        server_side: bool = False,
        server_hostname: str | None = None,
        check: Callable[[ssl.SSLObject], object] | None = None,
        plaintext: Callable[[asyncio.BaseTransport], bool] | None = None,
        area: memoryview | None = None,
        turns: LoopTurns | None = None,
        handshake_s: float = HANDSHAKE_S,
    ) -> None:
        """`server_hostname` is the name that the called end must have; `check` sees the complete
        handshake and raises SemelError for an other end that is not wanted. `plaintext` says
        whether a caller may do without TLS; any other that does gets `TLS_REFUSAL`. `area` is
        memory for received bytes, which the connections of one thread may share, and so are the
        `turns` of their handshakes. The called end may take `handshake_s`.
        """
        super().__init__()
        self._protocol = protocol
        self._context = context
        self._server_side = server_side
        self._session = TlsSession(
            context, server_side=server_side, server_hostname=server_hostname
        )
        self._check = check
        self._turns = turns
        self._handshake_s = handshake_s
        self._may_be_plain = plaintext
        self._area = memoryview(bytearray(AREA_BYTES)) if area is None else area
        self._buffered = isinstance(protocol, asyncio.BufferedProtocol)
        self._raw: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._early: list[Bytes] | None = []
        """What was written before the handshake was complete; None after that."""
        self._plain = False
        """The caller does without TLS, and may."""
        self._write_parts: Callable[[Sequence[bytes | memoryview]], None] | None = None
        """Sends in plaintext."""
        self._unread = False
        """The protocol has paused reading."""
        self._full = False
        """The plain transport has paused writing."""
        self._heard = False
        """Bytes have come."""
        self._discarded = 0
        self._failure: TlsFailed | None = None

    @property
    def encrypted(self) -> bool:
        """Whether there is a complete handshake."""
        return self._session.established

    @property
    def ssl_object(self) -> ssl.SSLObject | None:
        """The other end's certificate and more; None without TLS."""
        return self._session.ssl if self._session.established else None

    # ------------------------------------------------------------------ protocol of the socket

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._raw = cast("asyncio.Transport", transport)
        self._timer = asyncio.get_running_loop().call_later(self._handshake_s, self._on_late)
        self._protocol.connection_made(self)
        if not self._server_side and not self.is_closing():
            self._advance(b"")

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._area

    def buffer_updated(self, nbytes: int) -> None:
        if self._failure is not None:
            self._discarded += nbytes
            if self._discarded > HANDSHAKE_BYTES_MAX:
                self.abort()
            return
        data = self._area[:nbytes]
        if self._session.established:
            self._session.feed(data)
        elif not self._heard and self._is_plain(data):
            self._heard = True
            self._go_plain(data)
            return
        else:
            self._heard = True
            if self._turns is not None and not self._turns.begin():
                assert self._raw is not None
                self._raw.pause_reading()
                self._turns.enlist(partial(self._go_on, bytes(data)))
                return
            self._advance(data)
        if self._session.established and self._failure is None:
            self._decrypt()

    def _go_on(self, data: bytes) -> None:
        """It is the turn of a handshake to which `data` has come."""
        if self.is_closing():
            return
        self._advance(data)
        if self._failure is not None:
            return
        if self._session.established:
            self._decrypt()
        if not self._unread and not self.is_closing():
            assert self._raw is not None
            self._raw.resume_reading()

    def eof_received(self) -> bool:
        if self._session.established and self._failure is None:
            self._protocol.eof_received()
        return False

    def pause_writing(self) -> None:
        self._full = True
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        self._full = False
        self._flush()
        self._protocol.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        self._settle()
        if self._failure is None and not self._session.established and not self._plain:
            if self._server_side:
                if self._heard:
                    self._failure = TlsFailed("it ended the connection during the TLS handshake")
            else:
                self._failure = TlsFailed(
                    "it ended the connection during the TLS handshake: it refuses this end, or "
                    "does not speak TLS"
                )
        self._protocol.connection_lost(self._failure or error)

    # ------------------------------------------------------------------ transport of the protocol

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "ssl_object":
            return self.ssl_object or default
        if name == "sslcontext":
            return self._context
        return default if self._raw is None else self._raw.get_extra_info(name, default)

    def is_closing(self) -> bool:
        return self._raw is None or self._failure is not None or self._raw.is_closing()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert self._raw is not None
        self._raw.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        assert self._raw is not None
        return self._raw.get_write_buffer_size()

    def can_write_eof(self) -> bool:
        return False

    def write(self, data: Bytes) -> None:
        self._send((data,))

    def writelines(self, parts: Iterable[Bytes]) -> None:
        """Sends parts in a row; nothing, on a connection that is closing."""
        self._send(tuple(parts))

    def _send(self, parts: tuple[Bytes, ...]) -> None:
        if self.is_closing():
            return
        raw = cast("asyncio.Transport", self._raw)
        if self._early is not None:
            self._early += map(bytes, parts)
            assert sum(map(len, self._early)) <= HANDSHAKE_BYTES_MAX, "so much before the handshake"
        elif self._write_parts is not None:
            self._write_parts(cast("tuple[bytes, ...]", parts))
        else:
            for piece in self._session.encrypt(parts):
                raw.write(piece)

    def pause_reading(self) -> None:
        if self.is_closing():
            return
        self._unread = True
        assert self._raw is not None
        self._raw.pause_reading()

    def resume_reading(self) -> None:
        if not self._unread or self.is_closing():
            return
        self._unread = False
        assert self._raw is not None
        if self._session.established and self._session.readable:
            # Not now: the protocol may be in the middle of something.
            asyncio.get_running_loop().call_soon(self._read_on)
        else:
            self._raw.resume_reading()

    def close(self) -> None:
        """Closes the connection once what was written has left."""
        if self.is_closing():
            return
        assert self._raw is not None
        if self._session.established:
            self._session.end()
            self._flush()
        self._raw.close()

    def abort(self) -> None:
        if self._raw is not None:
            self._raw.abort()

    # ------------------------------------------------------------------ inside

    def _advance(self, data: Bytes) -> None:
        session, raw = self._session, self._raw
        assert raw is not None
        try:
            session.advance(data)
            if session.established and self._check is not None:
                self._check(session.ssl)
        except TlsFailed as error:
            self._fail(error)
            return
        except SemelError as error:
            self._fail(TlsFailed(error.message))
            return
        self._flush()
        if session.established:
            self._settle()
            early, self._early = self._early or [], None
            if early:
                self._send(tuple(early))

    def _decrypt(self) -> None:
        session, protocol = self._session, self._protocol
        try:
            while session.readable and not self._unread and not self.is_closing():
                if self._buffered:
                    assert isinstance(protocol, asyncio.BufferedProtocol)
                    count = session.decrypt(memoryview(protocol.get_buffer(-1)))
                    if count:
                        protocol.buffer_updated(count)
                else:
                    assert isinstance(protocol, asyncio.Protocol)
                    target = memoryview(bytearray(RECORD_BYTES))
                    count = session.decrypt(target)
                    if count:
                        protocol.data_received(bytes(target[:count]))
        except TlsFailed as error:
            self._fail(error)
            return
        if self._full:
            # What TLS itself has to say (new keys) waits, and is little.
            if session.pending > HANDSHAKE_BYTES_MAX:
                self._fail(TlsFailed("it asks for new keys and takes nothing off"))
        else:
            self._flush()
        if session.ended and not self.is_closing():
            protocol.eof_received()
            self.close()

    def _read_on(self) -> None:
        if self.is_closing() or self._unread:
            return
        assert self._raw is not None
        try:
            self._decrypt()
        except BaseException:
            self.abort()  # as a transport does whose protocol fails
            raise
        if not self._unread and not self.is_closing():
            self._raw.resume_reading()

    def _flush(self) -> None:
        if self._session.pending and self._raw is not None and not self._raw.is_closing():
            self._raw.write(self._session.take())

    def _is_plain(self, data: memoryview) -> bool:
        return (
            self._may_be_plain is not None
            and not begins_tls(data)
            and self._may_be_plain(cast("asyncio.Transport", self._raw))
        )

    def _go_plain(self, data: memoryview) -> None:
        """Takes itself out of the way of what comes from now on."""
        protocol, raw = self._protocol, self._raw
        assert raw is not None
        self._plain = True
        self._write_parts = compat.parts_writer(raw)
        self._settle()
        early, self._early = self._early or [], None
        self._send(tuple(early))
        raw.set_protocol(protocol)
        if not isinstance(protocol, asyncio.BufferedProtocol):
            if not self.is_closing():
                protocol.data_received(bytes(data))
            return
        at = 0
        while at < len(data) and not self.is_closing():
            target = memoryview(protocol.get_buffer(-1))
            count = min(len(target), len(data) - at)
            target[:count] = data[at : at + count]
            at += count
            protocol.buffer_updated(count)

    def _fail(self, failure: TlsFailed) -> None:
        if self.is_closing():
            return
        raw = self._raw
        assert raw is not None
        self._settle()
        answer = TLS_REFUSAL if failure.plaintext and self._server_side else self._session.take()
        self._failure = failure
        if answer:
            raw.write(answer)
        if not self._server_side:
            raw.close()
            return
        raw.resume_reading()
        self._timer = asyncio.get_running_loop().call_later(_LAST_WORDS_S, self.abort)
        if raw.can_write_eof():
            raw.write_eof()

    def _on_late(self) -> None:
        self._failure = TlsFailed(f"its TLS handshake takes longer than {self._handshake_s:.0f} s")
        self.abort()

    def _settle(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
