"""One gateway as a program: what it consists of, and in which order that begins and ends.

How it works. Everything runs on the client's I/O thread, so that a request becomes batches for the
brokers, and batches a response, without changing threads. The port is bound first, since the
address that clients are told follows from it, and it is served last. At the end it is the other way
round: the port closes, requests under way are answered, the gateway leaves the others, and the
client closes.

Not here: settings (`config.py`), the command (`command.py`).
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import FrameType
from typing import Final

from semel.client import AsyncClient
from semel.client.client_file import login_place
from semel.client.session import Session
from semel.gateway.config import GatewayConfig
from semel.gateway.connection import KafkaConnection
from semel.gateway.coordination.callers import Caller
from semel.gateway.coordination.group_service import GroupService
from semel.gateway.coordination.transaction_service import TransactionService
from semel.gateway.principals.principal_pool import PrincipalPool
from semel.gateway.principals.proofs import Mechanism
from semel.gateway.principals.sasl_gate import SaslGate
from semel.gateway.principals.scram_level import ScramLevel
from semel.gateway.probe import GatewayProbe
from semel.gateway.server import KafkaServer
from semel.gateway.services import Services
from semel.protos.addresses import Address
from semel.protos.listening import cannot_listen
from semel.protos.metrics import MetricsServer
from semel.protos.security.port_files import port_context

logger = logging.getLogger(__name__)

STOP_S: Final = 30.0


class KafkaGateway:
    """See the module's text. `start` and `stop` run on the client's I/O thread."""

    def __init__(self, config: GatewayConfig) -> None:
        """BLOCKING. Binds the port and reads certificates. Raises InvalidRequest, Unavailable."""
        self._config = config
        self._tls = _tls_of(config)
        self._logins = None if config.sasl_logins is None else login_place(config.sasl_logins)
        self._listener = _listening(Address.parse(config.listen))
        host, port = self._listener.getsockname()[:2]
        self.address = Address(host, port)
        """Where it listens."""
        self.advertised = Address.parse(config.advertise) if config.advertise else self.address
        """Where clients are told to go."""
        self.metrics = ""
        """HOST:PORT of its metrics, or none."""
        self._stack = contextlib.AsyncExitStack()

    async def start(self, session: Session) -> None:
        """Begins to serve. Raises SemelError."""
        client = AsyncClient(session)
        service = GroupService(client, self.advertised, protocol=self._config.protocol)
        groups = await self._stack.enter_async_context(service)
        codec = self._config.codec
        transactions = TransactionService(Caller(client, checks=False), groups.membership)
        transactions.start()
        self._stack.push_async_callback(transactions.close)
        own = Services(session, codec, groups, transactions)
        self._stack.callback(own.close)
        own.start()
        pool: PrincipalPool | None = None
        new_gate: Callable[[KafkaConnection], SaslGate] | None = None
        if self._logins is not None:
            pool = PrincipalPool(self._logins, session.bootstrap, codec, groups, transactions)
            await self._stack.enter_async_context(pool)
            new_gate = partial(_new_gate, pool, await self._mechanisms(session))
        server = KafkaServer(
            self._config, client, groups.membership, own.dispatcher, self._tls, new_gate
        )
        if self._config.metrics:
            await self._serve_metrics(server, own, pool, groups)
        await server.start(self._listener)
        self._stack.push_async_callback(server.stop)
        # Members that wait would keep the port from closing.
        self._stack.push_async_callback(groups.drain)

    async def _mechanisms(self, session: Session) -> Callable[[], Sequence[Mechanism]]:
        """Returns what tells the mechanisms that are offered now. Raises SemelError."""
        wanted = self._config.mechanisms
        if not any(each.is_scram for each in wanted):
            return lambda: wanted
        level = await self._stack.enter_async_context(ScramLevel(session.cluster))
        others = tuple(each for each in wanted if not each.is_scram)
        return lambda: wanted if level.reached else others

    async def _serve_metrics(
        self, server: KafkaServer, own: Services, pool: PrincipalPool | None, groups: GroupService
    ) -> None:
        probe = GatewayProbe(
            str(self.advertised), server, own, pool, groups.membership, groups.groups
        )
        place = Address.parse(self._config.metrics)
        metrics = MetricsServer(place.host, place.port, probe.page, lambda: server.why_not_ready)
        await metrics.start()
        self._stack.push_async_callback(metrics.close)
        self.metrics = metrics.address

    async def stop(self) -> None:
        """Ends in the opposite order."""
        await self._stack.aclose()
        self._listener.close()


def _new_gate(
    pool: PrincipalPool, mechanisms: Callable[[], Sequence[Mechanism]], connection: KafkaConnection
) -> SaslGate:
    return SaslGate(connection, pool, mechanisms())


def serve(config: GatewayConfig, on_ready: Callable[[KafkaGateway], None]) -> None:
    """BLOCKING. Serves until SIGINT or SIGTERM; `on_ready` is called once it does. Raises
    SemelError."""
    gateway = KafkaGateway(config)
    session = Session(config.bootstrap or None, {"keep_routes": False})
    session.run(session.open())
    try:
        with _signals() as ended:
            try:
                session.run(gateway.start(session))
                on_ready(gateway)
                ended.wait()
            finally:
                session.run(gateway.stop(), STOP_S, "the gateway did not stop")
    finally:
        session.run(session.close(), STOP_S, "the client did not close")


@contextlib.contextmanager
def _signals() -> Iterator[threading.Event]:
    """An event that a first SIGINT or SIGTERM sets; a second one ends the process."""
    ended = threading.Event()

    def on_signal(number: int, frame: FrameType | None) -> None:
        if ended.is_set():
            os._exit(128 + number)
        ended.set()

    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, on_signal) for number in numbers}
    try:
        yield ended
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _tls_of(config: GatewayConfig) -> ssl.SSLContext | None:
    """BLOCKING. Raises InvalidRequest."""
    if config.certificate is None or config.key is None:
        return None
    return port_context(config.certificate, config.key, config.clients_ca)


def _listening(address: Address) -> socket.socket:
    """Raises Unavailable."""
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(place)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise cannot_listen(address, error, "--listen") from None
    return listener
