"""Requests of gRPC as bytes of HTTP/2, for connections on which gRPC's own client would not send.

How it works. Every request is a stream of its own: one frame of headers without any compression,
and one of data that ends it.

Not here: who sends them (`strangers.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _SETTINGS = 0, 1, 4
_END_STREAM, _END_HEADERS = 1, 4
_FRAME_BYTES: Final = 16_384


def requests(calls: Iterable[tuple[str, bytes]]) -> bytes:
    """A connection's first bytes, and a request of each `/SERVICE/METHOD` with its message."""
    parts = [PREFACE, _frame(_SETTINGS, 0, 0, b"")]
    for number, (path, message) in enumerate(calls):
        stream = 2 * number + 1
        head = {
            ":method": "POST",
            ":scheme": "https",
            ":path": path,
            ":authority": "semel",
            "content-type": "application/grpc",
            "te": "trailers",
        }
        fields = b"".join(_field(name, value) for name, value in head.items())
        parts.append(_frame(_HEADERS, _END_HEADERS, stream, fields))
        body = b"\0" + len(message).to_bytes(4, "big") + message
        pieces = [body[at : at + _FRAME_BYTES] for at in range(0, len(body), _FRAME_BYTES)]
        for piece in pieces[:-1]:
            parts.append(_frame(_DATA, 0, stream, piece))
        parts.append(_frame(_DATA, _END_STREAM, stream, pieces[-1]))
    return b"".join(parts)


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return (
        len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload
    )


def _field(name: str, value: str) -> bytes:
    """A header that is not to be remembered (RFC 7541, 6.2.2)."""
    return b"\0" + _text(name.encode()) + _text(value.encode())


def _text(data: bytes) -> bytes:
    length, most = len(data), 127
    if length < most:
        return bytes((length,)) + data
    rest, more = length - most, bytearray((most,))
    while rest >= 128:
        more.append(rest % 128 + 128)
        rest //= 128
    more.append(rest)
    return bytes(more) + data
