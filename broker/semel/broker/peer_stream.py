"""The bytes between two replicas: a TCP stream of framed Raft messages, in one direction.

How it works. A node asks its peer over gRPC for a stream (`RaftPeer.OpenStream`), which is where
identity and rights are checked; it gets a port and a ticket, connects, shows the ticket in a hello
and hears one byte when it is let in. From then on it writes framed messages and hears nothing more.
Raw sockets, because a round trip of one kilobyte costs a tenth of what it costs on gRPC
(docs/decisions/replication-stream.md).

Format (little-endian; docs/formats/peer-stream.md has the tables, and a test compares them)

    head      u32 length | u32 the same, all bits inverted | `length` bytes of message
    hello     u32 magic "SMPS" | u8 version = 1 | 3 bytes zero | 16 bytes ticket

Invariants
1. A receiver hands on whole messages in the order of sending, each at most `MESSAGE_BYTES_MAX`.
2. A head whose halves differ ends the stream: what follows cannot be found again.
3. A large message is received in place: the kernel copies its bytes to where they are decoded.

Not here: what a message says (`raft/wire.py`), who may open a stream (`server/replicate.py`), when
one is opened (`peers.py`).
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

_AREA_BYTES: Final = 64 << 10
_INVERTED: Final = 0xFFFF_FFFF
_SILENCE_MAX_MS: Final = 3_000
_KEEPALIVE = (
    ("TCP_KEEPIDLE", 5),
    ("TCP_KEEPINTVL", 2),
    ("TCP_KEEPCNT", 3),
    ("TCP_USER_TIMEOUT", _SILENCE_MAX_MS),
)


def encode_head(length: int) -> bytes:
    """What stands before a message of `length` bytes."""
    assert 0 < length <= MESSAGE_BYTES_MAX, f"a Raft message of {length} bytes"
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
            f"the peer speaks version {version} of the peer stream, this node {HELLO_VERSION}; "
            "update the older one"
        )
    return bytes(ticket)


def tune(transport: asyncio.BaseTransport) -> None:
    """No delay for small messages, and a link that went silent is given up after seconds.

    Without the latter, a link that was cut without a word would wait for the kernel's next
    retransmission, which after a long cut is up to two minutes away.
    """
    sock = cast("socket.socket", transport.get_extra_info("socket"))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE:
        if (option := getattr(socket, name, None)) is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)


class MessageBuffer:
    """Finds whole messages in what a socket delivers; no I/O.

    `target` is where the next bytes belong; `received(n)` says how many came and hands on what is
    complete by then. The views handed on are valid during the call only.
    """

    def __init__(self, on_message: Callable[[memoryview], None]) -> None:
        self._on_message = on_message
        self._area = memoryview(bytearray(_AREA_BYTES))
        self._large: memoryview | None = None
        """A message that does not fit the area, received in place."""
        self._filled = 0

    def target(self) -> memoryview:
        return (self._area if self._large is None else self._large)[self._filled :]

    def received(self, count: int) -> None:
        """Raises InvalidRequest when the stream is damaged, or what the message's taker raises."""
        self._filled += count
        if self._large is not None:
            if self._filled < len(self._large):
                return
            message, self._large, self._filled = self._large, None, 0
            self._on_message(message)
            return
        self._hand_on()

    def _hand_on(self) -> None:
        area, end = self._area, self._filled
        at = 0
        while end - at >= HEAD.size:
            length, inverted = HEAD.unpack_from(area, at)
            if length ^ _INVERTED != inverted or not 0 < length <= MESSAGE_BYTES_MAX:
                raise InvalidRequest("peer stream damaged: the head of a message makes no sense")
            start, stop = at + HEAD.size, at + HEAD.size + length
            if stop <= end:
                self._on_message(area[start:stop])
                at = stop
                continue
            if length > _AREA_BYTES - HEAD.size:
                self._large = memoryview(bytearray(length))
                self._filled = end - start
                self._large[: self._filled] = area[start:end]
                return
            break
        if at:
            self._filled = end - at
            area[: self._filled] = bytes(area[at:end])
