"""An address on which a program cannot listen: one error for every port.

How it works. asyncio's servers raise the system's error. gRPC tells only that it failed, and writes
the reason to stderr, so `check_free` binds a socket of its own to learn it.

Not here: the ports (`grpc_port.py`, `metrics.py`, the broker's framed streams).
"""

from __future__ import annotations

import os
import socket

from semel.protos.addresses import Address
from semel.protos.errors import Unavailable


def cannot_listen(address: object, error: OSError | str, flag: str) -> Unavailable:
    """The error that ends a program which cannot listen on HOST:PORT; `flag` sets the address."""
    reason = error
    if isinstance(error, OSError):
        # asyncio puts a sentence of its own into `strerror`; getaddrinfo's numbers are below 0.
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
    return Unavailable(f"cannot listen on {address}: {reason}; choose another one with {flag}")


def check_free(listen: str, flag: str) -> None:
    """BLOCKING. Raises Unavailable with the system's reason when HOST:PORT cannot be bound."""
    wanted = Address.parse(listen)
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            wanted.host, wanted.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        raise cannot_listen(listen, error, flag) from error
