"""The port of Kafka's clients: its connections, their limits, and its end.

Invariants
1. Requests of all connections take at most `requests_bytes_max` bytes, and one frame each beyond
   that: while they are that many, only connections without a request under way are read.
2. After `stop` no connection is left.

Not here: one connection (`connection.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
import time
from collections import Counter
from collections.abc import Callable
from typing import Final

from semel.client import AsyncClient
from semel.gateway.config import GatewayConfig
from semel.gateway.connection import KafkaConnection
from semel.gateway.dispatch import Dispatcher, Gateways, Handler, RequestContext
from semel.gateway.principals.sasl_gate import SaslGate
from semel.gateway.principals.sasl_state import OPEN_KEYS
from semel.gateway.versions import ApiKey
from semel.gateway.wire import RequestHead
from semel.protos import compat
from semel.protos.connection_limits import Connections
from semel.protos.metrics import Histogram

logger = logging.getLogger(__name__)

SWEEP_S: Final = 1.0
TLS_HANDSHAKE_S: Final = 10.0
TLS_GOODBYE_S: Final = 1.0
"""Seconds that a client gets to say that it ends, too; many never do."""


class KafkaServer:
    """See the module's text. Lives on one event loop."""

    def __init__(
        self,
        config: GatewayConfig,
        client: AsyncClient,
        gateways: Gateways,
        dispatcher: Dispatcher,
        tls: ssl.SSLContext | None = None,
        new_gate: Callable[[KafkaConnection], SaslGate] | None = None,
    ) -> None:
        """`dispatcher` serves with the gateway's own rights. With `new_gate` clients log in, and
        are served with theirs."""
        self.dispatcher = dispatcher
        self.frame_bytes_max = config.frame_bytes_max
        self.connections = Connections(config.connections, "kafka")
        self.answered: Counter[ApiKey] = Counter()
        """Requests answered so far."""
        self.times: dict[ApiKey, Histogram] = {key: Histogram() for key in ApiKey}
        """From a request that is read to its answer."""
        self.refused = 0
        """Connections that were closed because of what the client sent."""
        self.held_bytes = 0
        """Bytes of requests under way."""
        self._config = config
        self._client = client
        self._gateways = gateways
        self._tls = tls
        self._new_gate = new_gate
        self._here: set[KafkaConnection] = set()
        self._server: asyncio.Server | None = None
        self._sweeper: asyncio.Task[None] | None = None
        self._was_full = False
        self._all_gone: asyncio.Event | None = None
        """While the server stops."""

    async def start(self, listener: socket.socket) -> None:
        """Serves a socket that is bound."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: KafkaConnection(self),
            sock=listener,
            ssl=self._tls,
            ssl_handshake_timeout=None if self._tls is None else TLS_HANDSHAKE_S,
            ssl_shutdown_timeout=None if self._tls is None else TLS_GOODBYE_S,
            backlog=1_024,
        )
        self._sweeper = loop.create_task(self._sweep(), name="semel-kafka-sweep")

    @property
    def why_not_ready(self) -> str:
        """Why it serves nobody; empty if it does."""
        if self._server is None or not self._server.is_serving():
            return "the gateway does not serve yet, or no longer"
        return ""

    async def stop(self) -> None:
        """Takes no more requests, answers those that are under way for `stop_s`, then closes all
        connections."""
        if self._server is not None:
            self._server.close()
        if self._sweeper is not None:
            self._sweeper.cancel()
        for connection in list(self._here):
            connection.drain()
        if self._here:
            self._all_gone = asyncio.Event()
            with contextlib.suppress(TimeoutError):
                async with compat.timeout(self._config.stop_s):
                    await self._all_gone.wait()
        for connection in list(self._here):
            connection.close()

    # ------------------------------------------------------------------------------- connections

    @property
    def is_full(self) -> bool:
        return self.held_bytes >= self._config.requests_bytes_max

    def handler(self, key: ApiKey, connection: KafkaConnection) -> Handler:
        gate = connection.gate
        if gate is None:
            return self.dispatcher.handler(key)
        if gate.principal is not None:
            return gate.principal.services.dispatcher.handler(key)
        assert key in OPEN_KEYS, "a gate has let something through"
        return self.dispatcher.handler(key)

    def context(
        self, head: RequestHead, client_id: str, connection: KafkaConnection
    ) -> RequestContext:
        gate = connection.gate
        principal = None if gate is None else gate.principal
        return RequestContext(
            api_key=ApiKey(head.api_key),
            version=head.version,
            client_id=client_id,
            host=connection.host,
            client=self._client if principal is None else principal.client,
            gateways=self._gateways,
            caller=None if principal is None else principal.caller,
            gate=gate,
            software=connection.software,
        )

    def on_made(self, connection: KafkaConnection) -> bool:
        if not self.connections.admit(connection, connection.host):
            return False
        self._here.add(connection)
        if self._new_gate is not None:
            connection.gate = self._new_gate(connection)
        return True

    def on_lost(self, connection: KafkaConnection) -> None:
        self._here.discard(connection)
        self.connections.release(connection)
        if not self._here and self._all_gone is not None:
            self._all_gone.set()

    def on_bytes(self, held: int) -> None:
        self.held_bytes += held
        if self.is_full:
            self._was_full = True
        elif self._was_full:
            self._was_full = False
            for connection in list(self._here):
                connection.mind_reading()

    def on_answered(self, key: ApiKey, seconds: float) -> None:
        self.answered[key] += 1
        self.times[key].observe(seconds)

    def on_refused(self, reason: str) -> None:
        self.refused += 1

    async def _sweep(self) -> None:
        """Closes connections that say nothing any more."""
        while True:
            await asyncio.sleep(SWEEP_S)
            now = time.monotonic()
            for connection in list(self._here):
                if connection.gate is not None:
                    connection.gate.sweep(now)
                silent = now - connection.active_at
                if connection.is_cut and silent > self._config.cut_s:
                    connection.close(f"a request was not finished for {silent:.0f} s")
                elif connection.is_idle and silent > self._config.idle_s:
                    connection.close()
