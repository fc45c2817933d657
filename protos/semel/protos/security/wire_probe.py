"""Whether a port speaks TLS, asked of the port itself after a connection that it has closed.

How it works. gRPC's client tells only that the connection was closed. So this opens another one,
begins a TLS handshake that names nobody and carries no secret, and looks at the first byte of the
answer: a port with TLS goes on with the handshake or sends an alert, a plain port of gRPC begins
with its settings.

Not here: what gRPC's own texts mean (`failures.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from enum import Enum
from typing import Final

from semel.protos import compat
from semel.protos.addresses import Address
from semel.protos.security.failures import CLOSED
from semel.protos.security.tls_session import begins_tls, is_tls_alert

PATIENCE_S: Final = 0.5
_SETTINGS_KIND_AT: Final = 3
_SETTINGS_KIND: Final = 4
"""HTTP/2: the length of a frame in three bytes, then its kind."""


class Wire(Enum):
    """What a port speaks."""

    TLS = "TLS"
    PLAIN_GRPC = "gRPC without TLS"
    UNKNOWN = "nothing that is known"


async def wire_of(address: str) -> Wire:
    """Asks the port at HOST:PORT."""
    target = Address.parse(address)
    answer = b""
    with contextlib.suppress(OSError, TimeoutError):
        async with compat.timeout(PATIENCE_S):
            reader, writer = await asyncio.open_connection(target.host, target.port)
            try:
                writer.write(_client_hello())
                while len(answer) <= _SETTINGS_KIND_AT and (more := await reader.read(64)):
                    answer += more
            finally:
                writer.transport.abort()
    if begins_tls(answer) or is_tls_alert(answer):
        return Wire.TLS
    if len(answer) > _SETTINGS_KIND_AT and answer[_SETTINGS_KIND_AT] == _SETTINGS_KIND:
        return Wire.PLAIN_GRPC
    return Wire.UNKNOWN


async def why_closed(message: str, address: str, *, tls: bool) -> str:
    """Returns `message`, and in its place a more exact one if it says no more than that the
    connection to HOST:PORT was closed; `tls` says whether this program speaks TLS."""
    if CLOSED not in message:
        return message
    match await wire_of(address), tls:
        case Wire.TLS, False:
            return (
                f"{address}: the port speaks TLS and this program does not (give it a client's"
                " file with --client-config or SEMEL_CLIENT_CONFIG)"
            )
        case Wire.TLS, True:
            return (
                f"{address}: this program's certificate is refused there, and the node's log says"
                " why"
            )
        case Wire.PLAIN_GRPC, True:
            return (
                f"{address}: this program speaks TLS, and the port does not (give the node"
                " --tls-dir, or connect without TLS)"
            )
    return message


def _client_hello() -> bytes:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # nothing is sent after the first message
    context.set_alpn_protocols(["h2"])
    sent = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), sent).do_handshake()
    return sent.read()
