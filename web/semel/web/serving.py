"""The console as a server: uvicorn on one socket, ended by a signal.

How it works. The socket is bound here, so that port 0 is known before the first request.

Not here: the application (`app.py`).
"""

from __future__ import annotations

import contextlib
import signal
import socket
from collections.abc import Callable, Iterator, Mapping
from typing import Final

import uvicorn

from semel.protos.addresses import Address
from semel.protos.errors import Unavailable
from semel.protos.security.port_files import port_context
from semel.web.access import Access
from semel.web.app import make_app
from semel.web.config import WebConfig

CONNECTIONS_MAX: Final = 1_000
"""More are refused with status 503."""
END_S: Final = 2
"""Seconds that pages which are fed live get at the end."""


def serve(
    config: WebConfig, environment: Mapping[str, str], on_ready: Callable[[str], None]
) -> None:
    """BLOCKING. Serves until SIGINT or SIGTERM; `on_ready` gets the URL. Raises InvalidRequest, and
    Unavailable if the port is taken."""
    access = Access(config, environment)
    with _listening(Address.parse(config.listen)) as listener:
        host, port = listener.getsockname()[:2]
        url = f"{'https' if config.https else 'http'}://{Address(host, port)}/"
        if access.key:
            url += f"login?key={access.key}"
        tls = None
        if config.certificate is not None and config.key is not None:
            tls = port_context(config.certificate, config.key)
        settings = uvicorn.Config(
            make_app(config, access),
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=False,
            proxy_headers=False,
            limit_concurrency=CONNECTIONS_MAX,
            ws="none",
            timeout_graceful_shutdown=END_S,
        )
        settings.load()
        settings.ssl = tls
        server = _Server(settings)
        server.on_ready = lambda: on_ready(url)
        server.run(sockets=[listener])


class _Server(uvicorn.Server):
    """Tells when it takes requests."""

    on_ready: Callable[[], None]

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Ends orderly at a signal, at once at a second one. A signal that was obeyed is over:
        uvicorn's own would be raised again at the end."""
        numbers = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.signal(number, self.handle_exit) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        if self.started:
            self.on_ready()


def _listening(address: Address) -> socket.socket:
    try:
        family = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((address.host, address.port))
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise Unavailable(f"{address} cannot be listened on: {error.strerror}") from None
    return listener
