"""Framed messages on TCP, for streams between replicas and for hot streams of clients to brokers.

How it works. A program that wants such a stream asks for it over gRPC, which checks identity and
rights. It gets a port and a ticket, connects, shows the ticket in a *hello*, and receives one byte
if it is accepted. A client that knows the port already connects at once and asks in the hello
itself; it is checked in the same way, and saves a connection of gRPC. From then on each side sends
its messages, each behind its length. The streams use plain sockets because a round trip of one
kilobyte costs a tenth of one on gRPC (docs/decisions/replication-stream.md,
docs/decisions/direct-streams.md).

Format (little-endian; docs/formats/framed-streams.md has the tables, and a test compares them)

    head      u32 length | u32 the same, all bits inverted | `length` bytes of message
    hello     u32 magic "SMPS" | u8 version = 1 | 3 bytes zero | 16 bytes ticket
    asking    u32 magic "SMPS" | u8 version = 2 | 3 bytes zero | an AskStream message

Invariants
1. A receiver passes on whole messages in the order of sending, each at most as long as it allows.
2. A head whose halves do not match ends the stream: the next message cannot be found.
3. A large message is received in place: the kernel copies its bytes to where they are decoded.

Not here: the contents of messages (the broker's `raft/wire.py`, `streams.py`), and the conditions
for opening a stream.
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
ASKING: Final = Struct("<IB3s")
ASKING_VERSION: Final = 2
TICKET_BYTES: Final = 16
ACCEPTED: Final = b"\x01"
MESSAGE_BYTES_MAX: Final = 32 << 20
"""Far above the largest size of an entry (one batch of 8 MiB)."""
HELLO_BYTES_MAX: Final = 1024
"""A first message may be so long, before it is known who sends it; later versions may say more."""
DIRECT_SILENCE_MAX_S: Final = 15
"""Seconds of silence after which client and broker give each other up, as gRPC's keepalive does."""

_AREA_BYTES: Final = 64 << 10
_INVERTED: Final = 0xFFFF_FFFF
_PROBES: Final = 3


def encode_head(length: int) -> bytes:
    """Returns the head of a message of `length` bytes."""
    assert 0 < length <= MESSAGE_BYTES_MAX, f"a framed message of {length} bytes"
    return HEAD.pack(length, length ^ _INVERTED)


def encode_hello(ticket: bytes) -> bytes:
    """Returns the first message of a stream, with its head."""
    assert len(ticket) == TICKET_BYTES
    return encode_head(HELLO.size) + HELLO.pack(HELLO_MAGIC, HELLO_VERSION, bytes(3), ticket)


def encode_asking(request: bytes) -> bytes:
    """Returns the first message of a stream that has no ticket, with its head."""
    head = encode_head(ASKING.size + len(request))
    return head + ASKING.pack(HELLO_MAGIC, ASKING_VERSION, bytes(3)) + request


def decode_asking(message: bytes | memoryview) -> bytes | None:
    """Returns the request of a hello that asks for a stream; None for any other hello. Raises
    InvalidRequest."""
    if len(message) < ASKING.size:
        return None
    magic, version, zero = ASKING.unpack_from(message)
    if magic != HELLO_MAGIC or version != ASKING_VERSION:
        return None
    if any(zero):
        raise InvalidRequest("a stream begins with a hello, and this is none")
    return bytes(message[ASKING.size :])


def decode_hello(message: bytes | memoryview) -> bytes:
    """Returns the ticket of a hello. Raises InvalidRequest."""
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
    """Sends small messages without delay, and gives up a peer that is silent for `silence_max_s`.

    Without that limit, a connection whose network was cut would wait for the kernel's next
    retransmission, which may be two minutes away after a long cut.
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
    """Returns memory for received bytes, which all connections of one loop may share."""
    return memoryview(bytearray(_AREA_BYTES))


class MessageBuffer:
    """Finds whole messages in the bytes that a socket delivers; does no I/O.

    `target` returns the memory for the next bytes. `received(n)` takes note that n bytes came, and
    passes on the messages that are complete by then. The view of a message is valid during that
    call only, unless `owned` says that the memory belongs to the message. Between two calls the
    area holds nothing of a connection.
    """

    def __init__(
        self,
        on_message: Callable[[memoryview], None],
        *,
        area: memoryview | None = None,
        length_max: int = MESSAGE_BYTES_MAX,
    ) -> None:
        self.on_message = on_message
        """The taker of messages. It may replace itself, for the messages that follow."""
        self.owned = False
        """While `on_message` runs: the message has memory of its own."""
        self.length_max = length_max
        """Bytes of the longest message that may follow."""
        self._area = new_area() if area is None else area
        self._rest = b""
        """The beginning of a head that has not come whole."""
        self._cut: memoryview | None = None
        """A message that has come in part, in memory of its own."""
        self._filled = 0
        """Number of its bytes that have come."""

    def target(self) -> memoryview:
        """Returns the memory for the next bytes."""
        cut, rest = self._cut, self._rest
        if cut is not None:
            return cut[self._filled :]
        if rest:
            self._area[: len(rest)] = rest
            return self._area[len(rest) :]
        return self._area

    def received(self, count: int) -> None:
        """Passes on what is complete with `count` further bytes. Raises InvalidRequest when the
        stream is damaged, and the errors of `on_message`."""
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
            if length ^ _INVERTED != inverted or not 0 < length <= self.length_max:
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
