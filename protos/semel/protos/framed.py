"""Framed messages on TCP: what replicas speak to each other, and clients to brokers on hot streams.

How it works. Whoever wants such a stream asks for it over gRPC, which is where identity and rights
are checked; it gets a port and a ticket, connects, shows the ticket in a hello and hears one byte
when it is let in. From then on messages go as they are, each behind its length. Raw sockets,
because a round trip of one kilobyte costs a tenth of what it costs on gRPC
(docs/decisions/replication-stream.md, docs/decisions/direct-streams.md).

Format (little-endian; docs/formats/framed-streams.md has the tables, and a test compares them)

    head      u32 length | u32 the same, all bits inverted | `length` bytes of message
    hello     u32 magic "SMPS" | u8 version = 1 | 3 bytes zero | 16 bytes ticket

Invariants
1. A receiver hands on whole messages in the order of sending, each at most as long as it allows.
2. A head whose halves differ ends the stream: what follows cannot be found again.
3. A large message is received in place: the kernel copies its bytes to where they are decoded.

Not here: what a message says (the broker's `raft/wire.py`, `streams.py`), who may open a stream and
when.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from struct import Struct
from typing import Final, cast

from semel.protos.errors import InvalidRequest

HEAD: Final = Struct("<II")
HELLO: Final = Struct("<IB3s16s")
HELLO_MAGIC: Final = int.from_bytes(b"SMPS", "little")
HELLO_VERSION: Final = 1
TICKET_BYTES: Final = 16
ACCEPTED: Final = b"\x01"
MESSAGE_BYTES_MAX: Final = 32 << 20
"""Above an entry's largest size (one batch of 8 MiB) by far."""
DIRECT_SILENCE_MAX_S: Final = 15
"""Between client and broker: who says nothing for so long is gone, as by gRPC's keepalive here."""

_AREA_BYTES: Final = 64 << 10
_INVERTED: Final = 0xFFFF_FFFF
_PROBES: Final = 3


def encode_head(length: int) -> bytes:
    """What stands before a message of `length` bytes."""
    assert 0 < length <= MESSAGE_BYTES_MAX, f"a framed message of {length} bytes"
    return HEAD.pack(length, length ^ _INVERTED)


def encode_hello(ticket: bytes) -> bytes:
    """The first message of a stream, with its head."""
    assert len(ticket) == TICKET_BYTES
    return encode_head(HELLO.size) + HELLO.pack(HELLO_MAGIC, HELLO_VERSION, bytes(3), ticket)


def decode_hello(message: bytes | memoryview) -> bytes:
    """The ticket. Raises InvalidRequest."""
    if len(message) != HELLO.size:
        raise InvalidRequest(f"a stream begins with a hello of {HELLO.size} bytes")
    magic, version, zero, ticket = HELLO.unpack(message)
    if magic != HELLO_MAGIC or any(zero):
        raise InvalidRequest("a stream begins with a hello, and this is none")
    if version != HELLO_VERSION:
        raise InvalidRequest(
            f"the peer speaks version {version} of the framed streams, this node {HELLO_VERSION}; "
            "update the older one"
        )
    return bytes(ticket)


def tune(transport: asyncio.BaseTransport, *, silence_max_s: int) -> None:
    """No delay for small messages, and a link that went silent is given up after `silence_max_s`.

    Without the latter, a link that was cut without a word would wait for the kernel's next
    retransmission, which after a long cut is up to two minutes away.
    """
    sock = cast("socket.socket", transport.get_extra_info("socket"))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", 5),
        ("TCP_KEEPINTVL", 2),
        ("TCP_KEEPCNT", _PROBES),
        ("TCP_USER_TIMEOUT", silence_max_s * 1000),
    ):
        if (option := getattr(socket, name, None)) is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)


def new_area() -> memoryview:
    """Where sockets put what they deliver; all connections of one loop may share it."""
    return memoryview(bytearray(_AREA_BYTES))


class MessageBuffer:
    """Finds whole messages in what a socket delivers; no I/O.

    `target` is where the next bytes belong; `received(n)` says how many came and hands on what is
    complete by then. The view handed on is valid during the call only, unless `owned` says that its
    memory is the message's own. Between the calls nothing of a connection is in the area.
    """

    def __init__(
        self,
        on_message: Callable[[memoryview], None],
        *,
        area: memoryview | None = None,
        length_max: int = MESSAGE_BYTES_MAX,
    ) -> None:
        self.on_message = on_message
        """May be exchanged while it is called, for the messages that follow."""
        self.owned = False
        self._area = new_area() if area is None else area
        self._length_max = length_max
        self._rest = b""
        """Less than a head."""
        self._cut: memoryview | None = None
        """A message that has come in part, in memory of its own."""
        self._filled = 0
        """Bytes of it that are there."""

    def target(self) -> memoryview:
        cut, rest = self._cut, self._rest
        if cut is not None:
            return cut[self._filled :]
        if rest:
            self._area[: len(rest)] = rest
            return self._area[len(rest) :]
        return self._area

    def received(self, count: int) -> None:
        """Raises InvalidRequest when the stream is damaged, or what the message's taker raises."""
        cut = self._cut
        if cut is None:
            self._hand_on(len(self._rest) + count)
            return
        self._filled += count
        if self._filled == len(cut):
            self._cut = None
            self.owned = True
            self.on_message(cut)
            self.owned = False

    def _hand_on(self, end: int) -> None:
        area = self._area
        self._rest = b""
        at = 0
        while end - at >= HEAD.size:
            length, inverted = HEAD.unpack_from(area, at)
            if length ^ _INVERTED != inverted or not 0 < length <= self._length_max:
                raise InvalidRequest("framed stream damaged: the head of a message makes no sense")
            start, stop = at + HEAD.size, at + HEAD.size + length
            if stop > end:
                self._cut = memoryview(bytearray(length))
                self._filled = end - start
                self._cut[: self._filled] = area[start:end]
                return
            self.on_message(area[start:stop])
            at = stop
        if at < end:
            self._rest = bytes(area[at:end])
