"""The connections at a port of gRPC, held to limits from outside.

How it works. gRPC accepts by itself, and knows a limit of connections in all, but none for one
address and no event that would tell of a connection. Its sockets are open files of this process,
though. A thread looks through those that are new every `PAUSE_S`, less often while nothing is new,
and shuts down connections at the port that are too many; gRPC takes that for a caller who went
away. It looks at a duplicate of each, so whatever happens to the original meanwhile, what it has
checked is what it shuts down.

Callers are known by their calls: `heard` notes from where one came. Of connections that have made
none, which may not have proved who they are, `STRANGERS_MAX` stay, the newest.

Limits
1. A flood is cut back after `IDLE_PAUSE_S` at the latest, not at once. What bounds it until then is
   gRPC's own limit in all (`server_options`), and of a handshake its time.
2. Without /proc (not Linux) nothing is looked at, and only gRPC's own limits hold.

Not here: ports whose connections this program accepts itself (`connection_limits.py`).
"""

from __future__ import annotations

import logging
import os
import socket
import stat
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import grpc.aio

from semel.protos import listening
from semel.protos.addresses import Address
from semel.protos.connection_limits import ConnectionLimits, Connections
from semel.protos.rpc import SERVER_OPTIONS, Options
from semel.protos.security.credentials import Security, add_login_port, add_port
from semel.protos.seldom import Seldom

logger = logging.getLogger(__name__)

PAUSE_S: Final = 0.25
IDLE_PAUSE_S: Final = 1.0
"""Between two looks while no connection is new: of a node that does nothing, looks would be most of
what it computes."""
STRANGERS_MAX: Final = 1_024
HANDSHAKE_MS: Final = 5_000
"""Within this time TLS and HTTP/2 must be agreed on."""
STREAMS_MAX: Final = 1_000
"""Calls of one connection at a time; a client's others wait at the client."""
_REST: Final = 50
"""The thread rests so many times as long as it worked."""
_FILES: Final = Path("/proc/self/fd")


def server_options(limits: ConnectionLimits) -> Options:
    """Options of a gRPC server that bound its connections."""
    bounds: Options = (
        ("grpc.server_handshake_timeout_ms", HANDSHAKE_MS),
        ("grpc.max_concurrent_streams", STREAMS_MAX),
    )
    if limits.in_all_max:
        bounds += (("grpc.max_allowed_incoming_connections", limits.in_all_max),)
    return SERVER_OPTIONS + bounds


def bind(server: grpc.aio.Server, listen: str, security: Security | None) -> Address:
    """Adds the port HOST:PORT to a server, with TLS if there is `security`; returns the address,
    where port 0 has become a free one. Raises Unavailable when it cannot be bound."""
    return _bound(listen, "--listen", lambda address: add_port(server, address, security))


def bind_login(server: grpc.aio.Server, listen: str, security: Security) -> Address:
    """The same for a port on which callers prove nothing by TLS."""
    return _bound(
        listen, "--login-listen", lambda address: add_login_port(server, address, security)
    )


def _bound(listen: str, flag: str, add: Callable[[str], int]) -> Address:
    address = Address.parse(listen)
    try:
        port = add(str(address))
    except RuntimeError:
        port = 0
    if not port:
        listening.check_free(listen, flag)  # which knows the reason
        raise listening.cannot_listen(listen, "gRPC cannot use this address", flag)
    return address.with_port(port)


class GrpcPortWatch:
    """Holds the connections at one port to limits; `start` and `close`."""

    def __init__(
        self, limits: ConnectionLimits, strangers_max: int = STRANGERS_MAX, name: str = "gRPC"
    ) -> None:
        """`name` stands in the log's lines."""
        self.connections = Connections(limits, name)
        self.strangers_refused = 0
        """Connections without a call that were ended, because they were too many."""
        self._strangers_max = strangers_max
        self._heard: set[str] = set()
        """`ipv4:HOST:PORT` of connections that made a call, as gRPC writes it."""
        self._seen: dict[int, str] = {}
        """Peers of the connections by the numbers of their sockets; "" for other sockets. Oldest
        first."""
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._log = Seldom(logger)

    def heard(self, peer: str) -> None:
        """A call came from `peer`, as gRPC's context names it."""
        self._heard.add(peer)

    def noting(
        self, check: Callable[[str, Any], float | None]
    ) -> Callable[[str, Any], float | None]:
        """`check`, which gets the method and the context of each call, and before it `heard`."""

        def noted(method: str, context: Any) -> float | None:
            self.heard(context.peer())
            return check(method, context)

        return noted

    def start(self, port: int) -> None:
        """Begins to look at the connections of a port of this process."""
        if _FILES.is_dir():
            self._thread = threading.Thread(
                target=self._run, args=(port,), name="grpc-port", daemon=True
            )
            self._thread.start()

    def close(self) -> None:
        """Ends the thread."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self, port: int) -> None:
        pause_s = PAUSE_S
        while not self._closing.wait(pause_s):
            began = time.thread_time()
            usual_s = PAUSE_S
            try:
                if not self.look(port):
                    usual_s = min(2 * pause_s, IDLE_PAUSE_S)
            except OSError as error:  # no descriptor is free: the next look may find one
                self._log.warning("connections cannot be looked at reason=%s", error)
            pause_s = max(usual_s, _REST * (time.thread_time() - began))

    def look(self, port: int) -> bool:
        """BLOCKING. Looks through the open files once; whether a socket is new. Raises OSError."""
        before = len(self._seen)
        heard = set(self._heard)
        present: dict[int, int] = {}
        with os.scandir(_FILES) as files:
            descriptors = [int(file.name) for file in files]
        for descriptor in descriptors:
            try:
                found = os.fstat(descriptor)
            except OSError:
                continue  # closed meanwhile
            if stat.S_ISSOCK(found.st_mode):
                present[found.st_ino] = descriptor
                if found.st_ino not in self._seen:
                    self._look_at(descriptor, found.st_ino, port)
        grown = len(self._seen) > before
        for number in self._seen.keys() - present.keys():
            del self._seen[number]
            self.connections.release(number)
        # Who was heard before this look is among the connections, or gone.
        self._heard -= heard - set(self._seen.values())
        self._end_strangers(present)
        return grown

    def _look_at(self, descriptor: int, number: int, port: int) -> None:
        copy = _copy(descriptor, number)
        if copy is None:
            return  # the next look finds it, if it is there
        with copy:
            self._seen[number] = ""
            peer = _peer_at(copy, port)
            if peer is None:
                return
            host, address = peer
            if self.connections.admit(number, host):
                self._seen[number] = address
            else:
                _shut(copy)

    def _end_strangers(self, descriptors: Mapping[int, int]) -> None:
        strangers = [
            number for number, peer in self._seen.items() if peer and peer not in self._heard
        ]
        for number in strangers[: max(0, len(strangers) - self._strangers_max)]:
            copy = _copy(descriptors[number], number)
            if copy is None:
                continue
            with copy:
                _shut(copy)
            self.strangers_refused += 1
            self._log.warning(
                "connections ended that made no call, there are too many from=%s",
                self._seen[number],
            )


def _copy(descriptor: int, number: int) -> socket.socket | None:
    """A duplicate of the socket with an inode; None if that is not what the descriptor is now, or
    no more can be opened."""
    try:
        copy = os.dup(descriptor)
        found = os.fstat(copy)
        if stat.S_ISSOCK(found.st_mode) and found.st_ino == number:
            return socket.socket(fileno=copy)
    except OSError:
        return None
    os.close(copy)
    return None


def _peer_at(connection: socket.socket, port: int) -> tuple[str, str] | None:
    """Host, and the address as gRPC writes it, of the other end of a connection at `port`."""
    if connection.family not in (socket.AF_INET, socket.AF_INET6):
        return None
    try:
        here = connection.getsockname()
        there = connection.getpeername()
    except OSError:
        return None  # it listens, or is gone
    if here[1] != port:
        return None
    host = str(there[0])
    if host.startswith("::ffff:"):  # an IPv4 caller at a port for both
        host = host.removeprefix("::ffff:")
    if ":" in host:
        return host, f"ipv6:{quote(f'[{host}]')}:{there[1]}"
    return host, f"ipv4:{host}:{there[1]}"


def _shut(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # it is gone already
