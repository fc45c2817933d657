"""Requests and responses as bytes: headers, correlation ids, and which header a version has.

Format. A message is an int32 length and as many bytes. A request begins with int16 API key, int16
version, int32 correlation id and the client's name (nullable string); *flexible* versions have
tagged fields behind it. A response begins with the correlation id, in flexible versions with tagged
fields behind it, except that of ApiVersions: who reads it does not know the version yet. All
numbers are big-endian.

Not here: the fields of requests (`schema_reader.py`), sockets (`connection.py`).
"""

from __future__ import annotations

import io
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, NamedTuple

from kio.index import load_request_schema
from kio.serial import entity_writer

from semel.gateway.schema_reader import read
from semel.gateway.versions import ApiKey
from semel.protos.errors import InvalidRequest

LENGTH: Final = struct.Struct(">i")
_HEAD: Final = struct.Struct(">hhi")
_CORRELATION: Final = struct.Struct(">i")
HEAD_BYTES_MIN: Final = _HEAD.size
"""No request is shorter."""


class RequestHead(NamedTuple):
    """What every version of every request begins with."""

    api_key: int
    version: int
    correlation_id: int


@dataclass(frozen=True, slots=True)
class Raw:
    """A response that is encoded already, as its parts: the body behind the header."""

    parts: Sequence[bytes | memoryview]


def read_head(frame: memoryview) -> RequestHead:
    """Reads the beginning of a request. Raises InvalidRequest."""
    if len(frame) < _HEAD.size:
        raise InvalidRequest(f"{len(frame)} bytes are no request")
    return RequestHead(*_HEAD.unpack_from(frame))


def read_request(frame: memoryview, head: RequestHead) -> tuple[str, Any]:
    """Returns the client's name and the request, an entity of kio's class for its version, which
    must be served. Raises InvalidRequest."""
    kind = _request_type(head.api_key, head.version)
    header, at = read(kind.__header_schema__, frame)
    request, end = read(kind, frame, at)
    if end != len(frame):
        raise InvalidRequest(f"{len(frame) - end} bytes are behind the request")
    return header.client_id or "", request


@cache
def _request_type(key: int, version: int) -> type[Any]:
    return load_request_schema(key, version)


def encode_response(head: RequestHead, response: Any) -> list[bytes | memoryview]:
    """Returns the parts of a message, its length included. `response` is an entity of kio's, or
    `Raw`."""
    if isinstance(response, Raw):
        parts = [_CORRELATION.pack(head.correlation_id), *response.parts]
    else:
        tags = response.__flexible__ and head.api_key != ApiKey.API_VERSIONS
        with io.BytesIO() as buffer:
            buffer.write(_CORRELATION.pack(head.correlation_id) + (b"\0" if tags else b""))
            entity_writer(type(response))(buffer, response)
            parts = [buffer.getvalue()]
    return [LENGTH.pack(sum(map(len, parts))), *parts]
