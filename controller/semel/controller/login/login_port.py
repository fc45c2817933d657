"""A controller's port for logging in: TLS that proves the controller, and one service behind it.

How it works. Strangers reach this port, so everything about it is bounded: connections, their
handshakes and their age, calls at once, and the size of a message. Beyond a limit gRPC refuses by
itself; that of one address's connections is kept from outside (`grpc_port.py` of the protos).

Not here: the service (`login_service.py`), which proofs are good (`key_sets.py`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import grpc.aio

from semel.controller.config import ControllerConfig
from semel.controller.login.clients_ca import ClientsCa
from semel.controller.login.key_sets import TOKEN_KEYS, FileSet, KeySet, KeySets, UrlSet
from semel.controller.login.login_service import CHECKS_AT_ONCE, Audit, LoginService
from semel.controller.login.scram_logins import ScramFacts
from semel.protos.connection_limits import ConnectionLimits
from semel.protos.grpc_port import GrpcPortWatch, bind_login
from semel.protos.levels import own_levels
from semel.protos.rpc import ServerInterceptor
from semel.protos.security.passwords import PasswordChecks
from semel.protos.security.tokens import TokenVerifier
from semel.protos.v1.login_pb2_grpc import add_LoginServicer_to_server

CONNECTIONS_MAX: Final = 512
CONNECTIONS_PER_ADDRESS_MAX: Final = 64
"""A login needs one for a moment; one address must not take them all."""
CALLS_AT_ONCE_MAX: Final = 128
MESSAGE_BYTES_MAX: Final = 16 << 10
OPTIONS: Final[tuple[tuple[str, Any], ...]] = (
    ("grpc.so_reuseport", 0),
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_allowed_incoming_connections", CONNECTIONS_MAX),
    ("grpc.max_concurrent_streams", 4),
    ("grpc.server_handshake_timeout_ms", 5_000),
    # What is read ahead of a call, and may be more on a fast network: no more than is needed here.
    ("grpc.http2.lookahead_bytes", MESSAGE_BYTES_MAX),
    ("grpc.http2.bdp_probe", 0),
    ("grpc.max_metadata_size", 4_096),
    ("grpc.absolute_max_metadata_size", 8_192),
    ("grpc.max_connection_idle_ms", 10_000),
    ("grpc.max_connection_age_ms", 60_000),
    ("grpc.max_connection_age_grace_ms", 15_000),
)


class LoginPort:
    """The port; `serve` and `close` open and shut it."""

    def __init__(
        self,
        config: ControllerConfig,
        hash_of: Callable[[str], Awaitable[str | None]],
        scram_of: Callable[[str, str], Awaitable[ScramFacts]],
        audit: Audit,
    ) -> None:
        """BLOCKING. `hash_of` and `scram_of` are as for `LoginService`. Raises InvalidRequest for
        files that are missing, or make no sense."""
        assert config.tls_dir is not None
        self.address = ""
        """HOST:PORT, once it serves."""
        self._config = config
        self._threads = ThreadPoolExecutor(CHECKS_AT_ONCE, thread_name_prefix="passwords")
        self.service = LoginService(
            ca=ClientsCa(config.tls_dir, config.cluster_id),
            key_sets=key_sets_of(config),
            hash_of=hash_of,
            scram_of=scram_of,
            checks=PasswordChecks(),
            threads=self._threads,
            audit=audit,
            wall_s=time.time,
            login_ms_max=config.login_ms_max,
            narrows=config.authorization,
        )
        self._server: grpc.aio.Server | None = None
        self._watch = GrpcPortWatch(
            ConnectionLimits(
                per_address_max=CONNECTIONS_PER_ADDRESS_MAX, in_all_max=CONNECTIONS_MAX
            ),
            name="logins",
        )

    async def serve(self) -> None:
        """Listens. Raises Unavailable for an address that cannot be bound."""
        config = self._config
        assert config.security is not None
        server = self._server = grpc.aio.server(
            interceptors=[ServerInterceptor(own_levels(config.level_max))],
            options=OPTIONS,
            maximum_concurrent_rpcs=CALLS_AT_ONCE_MAX,
        )
        add_LoginServicer_to_server(self.service, server)
        listen = bind_login(server, config.login_listen, config.security)
        await server.start()
        self._watch.start(listen.port)
        self.address = str(listen)

    async def close(self) -> None:
        """Ends the port; calls under way get a moment."""
        if self._server is not None:
            await self._server.stop(self._config.stop_ms / 1000)
        self._watch.close()
        await asyncio.to_thread(self._threads.shutdown)


def key_sets_of(config: ControllerConfig) -> KeySets:
    """BLOCKING. The key sets that the settings name. Raises InvalidRequest."""
    assert config.tls_dir is not None
    path, cluster = config.tls_dir / TOKEN_KEYS, config.cluster_id
    own = FileSet(path, lambda text: TokenVerifier(cluster, text)) if path.exists() else None
    if not config.oidc_issuer:
        return KeySets(own)

    def verifier(text: str) -> TokenVerifier:
        return TokenVerifier(
            config.oidc_audience or cluster,
            text,
            issuer=config.oidc_issuer,
            user_claim=config.oidc_user_claim,
        )

    provider: KeySet
    if "://" in config.oidc_keys:
        provider = UrlSet(config.oidc_keys, verifier, time.monotonic)
    else:
        provider = FileSet(Path(config.oidc_keys), verifier)
    return KeySets(own, config.oidc_issuer, provider)
