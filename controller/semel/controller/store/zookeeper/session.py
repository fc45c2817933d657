"""An asyncio interface to kazoo: one session with a ZooKeeper ensemble.

How it works. kazoo connects, pings and calls back on its own threads. Each request here becomes a
future of the event loop that kazoo's callback resolves; kazoo's exceptions are translated into this
module's exceptions in that one place. When the connection breaks, kazoo fails the requests under
way (their outcome is then unknown: ConnectionLost) and keeps reconnecting, with the same session if
that is still alive, or with a new one after it expired; `incarnation` tells them apart.

Invariants
1. After `close` nothing waits any more, and `close` itself takes at most `CLOSE_S`, whatever the
   servers do: kazoo's threads are daemons and end by themselves.
2. The callbacks (`on_change`, `on_state`) run on the event loop. A watch fires once, also when the
   connection breaks: the watcher must look again.

Not here: what is stored (`layout.py`), what a lost session means (`election.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import socket
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal

from kazoo import exceptions
from kazoo.client import KazooClient
from kazoo.protocol.connection import ConnectionHandler
from kazoo.protocol.states import KazooState, KeeperState
from kazoo.retry import KazooRetry
from kazoo.security import OPEN_ACL_UNSAFE, make_digest_acl

from semel.controller.store.zookeeper.zookeeper_tls import TlsHandler, ZooKeeperTls
from semel.protos import compat
from semel.protos.addresses import Address
from semel.protos.errors import Closed, PermissionDenied, Unavailable
from semel.protos.security.tls_session import explain, is_tls_alert

log = logging.getLogger(__name__)

CLOSE_S: Final = 3.0
PROBE_S: Final = 1.0
RECONNECT_DELAY_S: Final = 0.5
"""Longest pause between two rounds of attempts; it must be short compared with a session."""

# At DEBUG kazoo logs the password, and it warns twice a second about a server that is away.
_kazoo_log = logging.getLogger(f"kazoo.{__name__}")
_kazoo_log.setLevel(logging.ERROR)


class ConnectionLost(Unavailable):
    """The connection broke or the session ended while a request was on its way."""


class NodeMissing(Exception):
    """The node, or the parent of a node to be made, does not exist."""


class NodeExists(Exception):
    """The node to be made exists already."""


class Refused(Exception):
    """A transaction changed nothing: operation number `index` could not be done."""

    def __init__(self, index: int, reason: str) -> None:
        super().__init__(f"operation {index}: {reason}")
        self.index = index


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node's data, and how often it was set (ZooKeeper's own count, from 0)."""

    data: bytes
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One step of a transaction."""

    kind: Literal["check", "create", "set", "delete"]
    path: str
    data: bytes = b""
    version: int = -1
    """Required version of the node, for check and set; -1 accepts any."""


class _Connection(ConnectionHandler):  # type: ignore[misc]
    """kazoo's connection, extended to record the session time-out that the server granted."""

    granted_s = 0.0

    def _connect(self, host: str, hostip: str, port: int) -> tuple[float, float]:
        read_ms, connect_ms = super()._connect(host, hostip, port)
        self.granted_s = read_ms * 1.5 / 1000  # kazoo gives a read two thirds of the session
        return read_ms, connect_ms


class Session:
    """A session with the servers `hosts` (HOST:PORT each); `connect` begins it."""

    def __init__(
        self,
        hosts: tuple[str, ...],
        *,
        session_ms: int,
        auth: str,
        on_state: Callable[[], None],
        tls: ZooKeeperTls | None = None,
    ) -> None:
        """`auth` is USER:PASSWORD of ZooKeeper's digest scheme, or empty. `tls` is None for plain
        connections.

        `on_state` is called when the connection comes or goes.
        """
        self.hosts = hosts
        self.incarnation = 0
        """Number of the session; a higher number means that all earlier sessions have ended."""
        self.dead = False
        """kazoo has given up and no longer connects: damaged bytes, or a bug of its own."""
        self._tls = tls
        self._session_s = session_ms / 1000
        self._on_state = on_state
        self._loop = asyncio.get_running_loop()
        self._connected = asyncio.Event()
        self._waiting: set[asyncio.Future[Any]] = set()
        self._closed = False
        user, _, password = auth.partition(":")
        self._acl = [make_digest_acl(user, password, all=True)] if auth else OPEN_ACL_UNSAFE
        self._client = KazooClient(
            hosts=",".join(hosts),
            timeout=self._session_s,
            auth_data={("digest", auth)} if auth else None,
            connection_retry=KazooRetry(
                max_tries=-1, delay=0.05, backoff=2, max_delay=RECONNECT_DELAY_S
            ),
            logger=_kazoo_log,
            handler=None if tls is None else TlsHandler(tls),
            use_ssl=tls is not None,
        )
        self._client._connection = _Connection(
            self._client, self._client._conn_retry.copy(), logger=_kazoo_log
        )
        self._client.add_listener(self._on_kazoo_state)

    @property
    def session_s(self) -> float:
        """Seconds for which the servers keep the session without a sign of life, at least."""
        granted = self._client._connection.granted_s
        return min(self._session_s, granted) if granted else self._session_s

    @property
    def connected(self) -> bool:
        """True while requests can be answered."""
        return self._connected.is_set() and bool(self._client.connected)

    async def connect(self, timeout_s: float) -> None:
        """Begins the session; raises Unavailable, saying what is wrong with each server."""
        self._client.start_async()
        try:
            async with compat.timeout(timeout_s):
                await self.wait_connected()
        except TimeoutError:
            found = await asyncio.gather(*(_probe(host, self._tls) for host in self.hosts))
            raise Unavailable(
                f"cannot use ZooKeeper at {','.join(self.hosts)}: {'; '.join(found)}. Check the "
                "addresses, and that most of its servers run"
            ) from None

    async def wait_connected(self) -> None:
        """Returns when there is a connection. Raises Closed."""
        await self._connected.wait()
        if self._closed:
            raise Closed("the session with ZooKeeper is closed")

    async def sync(self, path: str) -> None:
        """Later reads are at least as new as the leader's state when this request reached it."""
        await self._ask(self._client.sync_async, path)

    async def read(self, path: str) -> Node | None:
        """The node, or None where there is none."""
        try:
            data, stat = await self._ask(self._client.get_async, path)
        except NodeMissing:
            return None
        return Node(data=data, version=stat.version)

    async def children(
        self, path: str, on_change: Callable[[], None] | None = None
    ) -> list[str] | None:
        """Names of the node's children, in no fixed order; None where there is no such node.

        `on_change` is called after the next child comes or goes.
        """
        try:
            found = await self._ask(
                self._client.get_children_async, path, watch=self._watcher(on_change)
            )
        except NodeMissing:
            return None
        return list(found)

    async def create(
        self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequence: bool = False
    ) -> str:
        """Makes a node and returns its path. Raises NodeExists, or NodeMissing for its parent."""
        made = await self._ask(
            self._client.create_async,
            path,
            data,
            acl=self._acl,
            ephemeral=ephemeral,
            sequence=sequence,
        )
        return str(made)

    async def set(self, path: str, data: bytes) -> None:
        """Sets the node's data. Raises NodeMissing."""
        await self._ask(self._client.set_async, path, data)

    async def delete(self, path: str) -> None:
        """Removes the node; it is no error if the node is gone."""
        with contextlib.suppress(NodeMissing):
            await self._ask(self._client.delete_async, path)

    async def commit(self, operations: list[Operation]) -> list[Any]:
        """Performs all of the operations or none; returns kazoo's result of each.

        Raises Refused when one cannot be done, and ConnectionLost when the outcome is unknown.
        """
        transaction = self._client.transaction()
        for operation in operations:
            match operation.kind:
                case "check":
                    transaction.check(operation.path, operation.version)
                case "create":
                    transaction.create(operation.path, operation.data, acl=self._acl)
                case "set":
                    transaction.set_data(operation.path, operation.data, operation.version)
                case "delete":
                    transaction.delete(operation.path)
        results: list[Any] = await self._ask(transaction.commit_async)
        if len(results) != len(operations):
            raise ConnectionLost(
                f"ZooKeeper's answer has {len(results)} of {len(operations)} parts"
            )
        followers = (exceptions.RolledBackError, exceptions.RuntimeInconsistency)
        for index, result in enumerate(results):
            if isinstance(result, exceptions.NoAuthError):
                raise _denied(operations[index].path)
            if isinstance(result, Exception) and not isinstance(result, followers):
                raise Refused(index, type(result).__name__)
        assert not any(isinstance(result, Exception) for result in results)
        return results

    async def close(self) -> None:
        """Ends the session, and every waiting request with Closed; idempotent."""
        if self._closed:
            return
        self._closed = True
        self._connected.set()  # wakes the waiters, which then see that the session is closed
        for future in self._waiting:
            if not future.done():  # one that was answered in this turn of the loop is still here
                future.set_exception(Closed("the session with ZooKeeper is closed"))
        done = asyncio.Event()

        def stop() -> None:
            with contextlib.suppress(Exception):
                self._client.stop()
                self._client.close()
            self._tell(done.set)

        threading.Thread(target=stop, name="zookeeper-close", daemon=True).start()
        with contextlib.suppress(TimeoutError):
            async with compat.timeout(CLOSE_S):
                await done.wait()

    async def _ask(self, send: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self._closed:
            raise Closed("the session with ZooKeeper is closed")
        future: asyncio.Future[Any] = self._loop.create_future()
        self._waiting.add(future)
        future.add_done_callback(self._waiting.discard)
        send(*args, **kwargs).rawlink(
            lambda result: self._tell(functools.partial(_settle, future, result))
        )
        try:
            return await future
        except exceptions.NoNodeError as error:
            raise NodeMissing(args[0]) from error
        except exceptions.NodeExistsError as error:
            raise NodeExists(args[0]) from error
        except (exceptions.NoAuthError, exceptions.AuthFailedError) as error:
            raise _denied(args[0] if args else "the store") from error
        except (
            exceptions.ConnectionLoss,
            exceptions.SessionExpiredError,
            exceptions.SessionMovedError,
            exceptions.ConnectionClosedError,
            exceptions.OperationTimeoutError,
        ) as error:
            raise ConnectionLost(
                f"the connection to ZooKeeper at {','.join(self.hosts)} broke"
            ) from error
        except exceptions.KazooException as error:
            raise Unavailable(f"ZooKeeper refuses: {error!r}") from error
        except Closed:
            raise
        except Exception as error:  # kazoo could not read the answer
            raise ConnectionLost(f"ZooKeeper's answer makes no sense: {error!r}") from error

    def _tell(self, callback: Callable[[], None]) -> None:
        """Runs `callback` on the loop, if that still exists. Callable from any thread."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback)

    def _watcher(self, on_change: Callable[[], None] | None) -> Callable[[object], None] | None:
        return None if on_change is None else lambda _event: self._tell(on_change)

    def _on_kazoo_state(self, state: str) -> None:
        self._tell(functools.partial(self._on_state_change, state))

    def _on_state_change(self, state: str) -> None:
        if self._closed:
            return
        if state == KazooState.CONNECTED:
            if self.incarnation:
                log.info("connected to ZooKeeper again hosts=%s", ",".join(self.hosts))
            self.incarnation += self.incarnation == 0
            self._connected.set()
        else:
            log.warning("connection to ZooKeeper lost state=%s", state)
            self.incarnation += state == KazooState.LOST
            self.dead = self._client.client_state in (KeeperState.CLOSED, KeeperState.AUTH_FAILED)
            self._connected.clear()
        self._on_state()


def _settle(future: asyncio.Future[Any], result: Any) -> None:
    if future.done():
        return
    if result.exception is not None:
        future.set_exception(result.exception)
    else:
        future.set_result(result.value)


def _denied(path: str) -> PermissionDenied:
    return PermissionDenied(
        f"ZooKeeper does not let this user change or read {path}: give the user and password that "
        "made it, or another chroot"
    )


async def _probe(host: str, tls: ZooKeeperTls | None) -> str:
    """Asks a server for its state, and describes it in words for an operator."""

    def ask() -> str:
        server = Address.parse(host)
        try:
            with socket.create_connection((server.host, server.port), timeout=PROBE_S) as plain:
                plain.settimeout(PROBE_S)
                if tls is None:
                    answer = _state(plain)
                else:
                    with tls.context().wrap_socket(
                        plain, server_hostname=server.host
                    ) as connection:
                        answer = _state(connection)
        except TimeoutError:
            return f"{host} does not answer"
        except ssl.SSLError as error:
            return f"{host}: {explain(error)}"
        except OSError as error:
            return f"{host}: {error.strerror or error}"
        if b"Mode: read-only" in answer:
            return f"{host} is read-only, it has lost the majority of its servers"
        if b"not currently serving" in answer:
            return f"{host} serves nobody, it has lost the majority of its servers"
        if b"Mode:" in answer:
            return f"{host} runs and takes no session from here"
        if not answer or is_tls_alert(answer):
            return f"{host} hangs up: it speaks TLS (--metadata-tls), or is no ZooKeeper server"
        return f"{host} is no ZooKeeper server"

    return await asyncio.get_running_loop().run_in_executor(None, ask)


def _state(connection: socket.socket) -> bytes:
    """BLOCKING. A server's answer to the question for its state. Raises OSError."""
    connection.sendall(b"srvr\n")  # a port with TLS wants five bytes before it says anything
    answer = b""
    while part := connection.recv(4096):
        answer += part
    return answer
