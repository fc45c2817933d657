"""TLS in force: credentials of gRPC, SSL contexts, and the channels and ports of the product.

How it works. A program has one `Security`, or None for plain connections, and all of its channels
and ports are opened by `channel` and `add_port`. Ports ask every caller for a certificate of the
CA, or of the clients' CA: gRPC's Python can require one or never ask, so there is no port on which
some show one. `add_login_port` and `login_channel` are for the port that never asks.

Replaced files count from the next connection on, without a restart. A port asks `TlsFiles.current`
before each handshake. A channel's credentials are fixed in gRPC, so `channel` returns one that
opens another channel inside for the calls that begin after a change; calls under way end on the
one before.

The far end proves which node it is in the handshake: the caller asks for the DNS name that only
that node's certificate has, or for `node.CLUSTER.semel`, which all nodes of the cluster have and
nobody else (`identity.py`).

Not here: which callers a port serves (`guard.py`), reading the files (`tls_files.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import ssl
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

import grpc
import grpc.aio

from semel.protos.security.identity import Identity, any_node

if TYPE_CHECKING:  # they bring cryptography, which programs without TLS need not load
    from semel.protos.security.tls_files import Loaded

Options = tuple[tuple[str, Any], ...]


class Source(Protocol):
    """Where a program has its CA, certificate and key from: files, or a login."""

    @property
    def identity(self) -> Identity:
        """Whom the certificate in force names."""
        ...

    @property
    def cluster(self) -> str:
        """The id of the cluster."""
        ...

    def current(self) -> Loaded:
        """Returns what is in force now; a new `version` each time it changes."""
        ...


@dataclass(frozen=True, slots=True)
class Security:
    """How one program proves who it is, and to which cluster it connects."""

    files: Source

    @classmethod
    def read(cls, directory: Path | str) -> Security:
        """BLOCKING. Reads ca.pem, cert.pem and key.pem of a directory. Raises TlsFileError."""
        from semel.protos.security.tls_files import TlsFiles

        return cls(TlsFiles.in_directory(Path(directory)))

    @classmethod
    def of_node(cls, directory: Path, kind: str, number: int, cluster: str) -> Security:
        """BLOCKING. Reads the files of a node. Raises TlsFileError, also when they are another's.

        An empty `cluster` takes the one that the certificate names.
        """
        from semel.protos.security.tls_files import TlsFileError, TlsFiles

        files = TlsFiles.in_directory(directory)
        found = files.identity
        wanted = Identity(kind, str(number), cluster or found.cluster)
        if found != wanted:
            raise TlsFileError(f"{files.certificate} is that of {found}, and this is {wanted}")
        return cls(files)

    @property
    def identity(self) -> Identity:
        """The identity of this program."""
        return self.files.identity

    @property
    def cluster(self) -> str:
        """The id of the cluster."""
        return self.files.cluster

    def tls_name(self, to: Identity | None = None) -> str:
        """Returns the name to ask TLS for: that of node `to`, or of any node of the cluster."""
        return any_node(self.cluster) if to is None else to.tls_name


def clients_ca_expires_s(security: Security | None) -> int:
    """When the clients' CA in use expires, as a node has it, seconds since 1970; 0 for none."""
    return 0 if security is None else int(security.files.current().clients_ca_expires_at)


# --- gRPC ---------------------------------------------------------------------------------------


def channel(
    address: str,
    options: Options = (),
    security: Security | None = None,
    to: Identity | None = None,
) -> grpc.aio.Channel:
    """Returns a channel to HOST:PORT: plain without `security`, else one on which only node `to`
    is spoken to (any node of the cluster for None)."""
    if security is None:
        return grpc.aio.insecure_channel(address, options=options)
    named = (*options, ("grpc.ssl_target_name_override", security.tls_name(to)))
    files = security.files
    return _Channel(
        files, lambda loaded: grpc.aio.secure_channel(address, _credentials(loaded), options=named)
    )


def add_port(server: grpc.aio.Server, address: str, security: Security | None = None) -> int:
    """Opens a port of a server and returns its number: plain without `security`."""
    if security is None:
        return server.add_insecure_port(address)
    return server.add_secure_port(address, server_credentials(security.files))


def add_login_port(server: grpc.aio.Server, address: str, security: Security) -> int:
    """Opens a port on which callers prove nothing by TLS, and returns its number."""
    return server.add_secure_port(address, server_credentials(security.files, require_client=False))


def login_channel(address: str, ca: bytes, cluster: str, options: Options = ()) -> grpc.aio.Channel:
    """Returns a channel to HOST:PORT on which any node of the cluster is spoken to, without a
    certificate; `ca` is in PEM."""
    named = (*options, ("grpc.ssl_target_name_override", any_node(cluster)))
    credentials = grpc.ssl_channel_credentials(root_certificates=ca)
    return grpc.aio.secure_channel(address, credentials, options=named)


def channel_credentials(files: Source) -> grpc.ChannelCredentials:
    """Returns credentials of a client for one channel, from the files as they are now."""
    return _credentials(files.current())


def server_credentials(files: Source, require_client: bool = True) -> grpc.ServerCredentials:
    """Returns credentials of a server, which follow the files.

    Without `require_client` callers are not asked who they are.
    """
    begun = files.current()
    served = begun.version

    def newest() -> grpc.ServerCertificateConfiguration | None:
        nonlocal served
        loaded = files.current()
        if loaded.version == served:
            return None
        served = loaded.version
        return _configuration(loaded)

    # None means no change; the stub of grpc does not know that.
    fetch = cast("Callable[[], grpc.ServerCertificateConfiguration]", newest)
    return grpc.dynamic_ssl_server_credentials(_configuration(begun), fetch, require_client)


def _credentials(loaded: Loaded) -> grpc.ChannelCredentials:
    return _credentials_of(loaded.ca, loaded.key, loaded.certificate)


@functools.lru_cache(maxsize=4)
def _credentials_of(ca: bytes, key: bytes, certificate: bytes) -> grpc.ChannelCredentials:
    """Made once for all channels of a program: gRPC reads the files for each of them again."""
    return grpc.ssl_channel_credentials(ca, key, certificate)


def _configuration(loaded: Loaded) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration(
        [(loaded.key, loaded.certificate)], root_certificates=_trusted(loaded)
    )


def _trusted(loaded: Loaded) -> bytes:
    """The CAs of callers."""
    return loaded.ca + b"\n" + loaded.clients_ca if loaded.clients_ca else loaded.ca


class _Channel(grpc.aio.Channel):
    """A channel whose calls begin on a channel with the files of that moment."""

    def __init__(self, files: Source, connect: Callable[[Loaded], grpc.aio.Channel]) -> None:
        self._files = files
        self._connect = connect
        loaded = files.current()
        self._version = loaded.version
        self._inner = connect(loaded)
        self._under_way: dict[grpc.aio.Channel, int] = {self._inner: 0}
        """Calls by channel; the channels before `_inner` are closed after their last one."""
        self._closing: set[asyncio.Task[None]] = set()

    def newest(self) -> grpc.aio.Channel:
        """Returns the channel with the files in force."""
        loaded = self._files.current()
        if loaded.version != self._version:
            before = self._inner
            self._version = loaded.version
            self._inner = self._connect(loaded)
            self._under_way[self._inner] = 0
            self._maybe_close(before)
        return self._inner

    def begin(self, on: grpc.aio.Channel, call: Any) -> Any:
        """Counts a call that has begun on a channel, and returns it."""
        self._under_way[on] += 1
        call.add_done_callback(lambda _: self._on_end(on))
        return call

    def _on_end(self, on: grpc.aio.Channel) -> None:
        if on in self._under_way:
            self._under_way[on] -= 1
            self._maybe_close(on)

    def _maybe_close(self, one: grpc.aio.Channel) -> None:
        if one is not self._inner and not self._under_way[one]:
            del self._under_way[one]
            task = asyncio.ensure_future(one.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    def unary_unary(self, *args: Any, **named: Any) -> Any:
        return _Method(self, "unary_unary", args, named)

    def unary_stream(self, *args: Any, **named: Any) -> Any:
        return _Method(self, "unary_stream", args, named)

    def stream_unary(self, *args: Any, **named: Any) -> Any:
        return _Method(self, "stream_unary", args, named)

    def stream_stream(self, *args: Any, **named: Any) -> Any:
        return _Method(self, "stream_stream", args, named)

    async def __aenter__(self) -> _Channel:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self, grace: float | None = None) -> None:
        channels = list(self._under_way)
        self._under_way.clear()
        closings = [one.close(grace) for one in channels]
        await asyncio.gather(*closings, *self._closing, return_exceptions=True)

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        return self.newest().get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        await self.newest().wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        await self.newest().channel_ready()


class _Method:
    """One method of the service, on whichever channel is the newest when it is called."""

    def __init__(
        self, channel: _Channel, kind: str, args: tuple[Any, ...], named: Mapping[str, Any]
    ) -> None:
        self._channel = channel
        self._kind = kind
        self._args = args
        self._named = named
        self._on: grpc.aio.Channel | None = None
        self._method: Any = None

    def __call__(self, *args: Any, **named: Any) -> Any:
        on = self._channel.newest()
        if on is not self._on:
            self._on = on
            self._method = getattr(on, self._kind)(*self._args, **self._named)
        return self._channel.begin(on, self._method(*args, **named))


# --- ssl ----------------------------------------------------------------------------------------


class _Use(Enum):
    """What a context is for."""

    CONNECT = "connect"
    SERVE = "serve"
    SERVE_LOGINS = "serve logins"


class Contexts:
    """SSL contexts of one program for its framed streams and its HTTP, which follow the files."""

    def __init__(self, files: Source) -> None:
        self._files = files
        self._made: dict[_Use, tuple[int, ssl.SSLContext]] = {}

    def client(self) -> ssl.SSLContext:
        """Returns the context for one connection that this program opens.

        The connection's `server_hostname` is `Security.tls_name`.
        """
        return self._newest(_Use.CONNECT)

    def server(self, *, logins: bool = False) -> ssl.SSLContext:
        """Returns a context for a port: each of its connections uses the files of its moment.

        With `logins` callers may have certificates of the clients' CA.
        """
        use = _Use.SERVE_LOGINS if logins else _Use.SERVE
        context = _context(self._files.current(), use)

        def on_hello(connection: ssl.SSLObject, *_: object) -> None:
            connection.context = self._newest(use)

        context.sni_callback = on_hello
        return context

    def _newest(self, use: _Use) -> ssl.SSLContext:
        loaded = self._files.current()
        made = self._made.get(use)
        if made is None or made[0] != loaded.version:
            made = self._made[use] = (loaded.version, _context(loaded, use))
        return made[1]


def server_context(files: Source) -> ssl.SSLContext:
    """Returns a context for a port, which follows the files and asks callers who they are."""
    return Contexts(files).server()


def client_context(files: Source) -> ssl.SSLContext:
    """Returns a context for one connection to a node, with the files as they are now."""
    return Contexts(files).client()


def _context(loaded: Loaded, use: _Use) -> ssl.SSLContext:
    server = use is not _Use.CONNECT
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_mode = ssl.CERT_REQUIRED
    if server:
        # Nobody resumes sessions here, and a caller that closes with the unread tickets in its
        # socket would take back what it has sent.
        context.num_tickets = 0
    trusted = _trusted(loaded) if use is _Use.SERVE_LOGINS else loaded.ca
    context.load_verify_locations(cadata=trusted.decode("ascii"))
    with _as_file(loaded.key + b"\n" + loaded.certificate) as path:
        context.load_cert_chain(path)
    return context


@contextlib.contextmanager
def _as_file(content: bytes) -> Iterator[str]:
    """The path of a file with `content`, in memory where the system can.

    The ssl module takes certificate and key from a file only, and the files themselves may be under
    replacement: what was checked is what is used.
    """
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("semel-tls")
        path = f"/proc/self/fd/{descriptor}"
    else:
        descriptor, path = tempfile.mkstemp(prefix="semel-tls-")
    try:
        os.write(descriptor, content)
        os.lseek(descriptor, 0, os.SEEK_SET)
        yield path
    finally:
        os.close(descriptor)
        if not hasattr(os, "memfd_create"):
            Path(path).unlink()
