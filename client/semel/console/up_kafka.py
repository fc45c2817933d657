"""The gateway for Kafka's clients beside `semel up --kafka`.

How it works. It is `semel kafka-gateway` on a port of this machine. In a cluster with TLS it serves
TLS, with a certificate of the cluster's CA for its port, and lets in only clients that show a
certificate of that CA: all of them have the gateway's rights, and nobody is to get these without
one. It is `user:kafka-gateway` in the cluster. With rules in force it is allowed what it needs for
itself; what its clients may do is for the operator to allow.

    DIR/security/client-kafka-gateway/   the gateway's own files
    DIR/security/client-kafka/           those of Kafka's clients, with librdkafka.properties

Not here: the gateway itself (`semel.gateway`), the process (`up_beside.py`).
"""

from __future__ import annotations

import asyncio
import importlib.util
from pathlib import Path
from typing import Final, Self

from semel.console.cluster_file import CLIENT_FILE, SECURITY, ClusterPlan
from semel.console.up_beside import Beside
from semel.protos.errors import InvalidRequest
from semel.protos.logs import TEXT
from semel.protos.security.identity import ADMIN, CLIENT, Identity

GATEWAY: Final = "kafka-gateway"
"""The name of the gateway in a cluster with TLS."""
CLIENTS: Final = "kafka"
"""The name in the certificate of its clients."""
CLIENTS_FILE: Final = "librdkafka.properties"
HOSTS: Final = ("127.0.0.1", "localhost")
OWN_RULES: Final = tuple(
    f"allow user:{GATEWAY} {action} consumer-group:semel.gateways"
    for action in ("describe", "commit")
)
"""What a gateway needs for itself: all gateways are members of this group."""


def check() -> None:
    """Raises InvalidRequest if what the gateway needs is not installed."""
    if importlib.util.find_spec("kio") is None:
        raise InvalidRequest("the Kafka gateway needs kio: pip install 'semel[kafka]'")


def kafka_beside(plan: ClusterPlan, directory: Path, port: int, log_format: str = TEXT) -> Beside:
    """Returns the gateway of a cluster, to be entered; its place is HOST:PORT."""
    log = directory / "logs" / "kafka-gateway.log"
    command = (
        *("kafka-gateway", "--listen", f"127.0.0.1:{port}", "--bootstrap", plan.bootstrap),
        *("--log-format", log_format),
    )
    if plan.secure:
        return _SecureGateway(plan, directory / SECURITY, log, command)
    return Beside("Kafka gateway", log, command, "address")


class _SecureGateway(Beside):
    """The gateway of a cluster with TLS."""

    def __init__(
        self, plan: ClusterPlan, security: Path, log_path: Path, command: tuple[str, ...]
    ) -> None:
        """`security` is the directory of the cluster's CA."""
        self._plan = plan
        self._security = security
        own = security / f"{CLIENT}-{GATEWAY}"
        self._clients = security / f"{CLIENT}-{CLIENTS}"
        options = (
            *("--certificate", str(own / "server.pem"), "--key", str(own / "server-key.pem")),
            *("--clients-ca", str(security / "ca.pem")),
        )
        environment = {"SEMEL_CLIENT_CONFIG": str(own / CLIENT_FILE)}
        super().__init__("Kafka gateway", log_path, command + options, "address", environment)

    async def __aenter__(self) -> Self:
        """Raises SemelError if it does not start."""
        await asyncio.to_thread(self._issue)
        if self._plan.authorization:
            await self._allow()
        await super().__aenter__()
        self.facts["kafka_config"] = str(await asyncio.to_thread(self._write_clients_file))
        return self

    def _issue(self) -> None:
        """BLOCKING. Makes the certificates that are missing; `up` renews them with the others."""
        from semel.console.authority import Authority

        authority = Authority(self._security)
        for name in (GATEWAY, CLIENTS):
            identity = Identity(CLIENT, name, self._plan.cluster_id)
            if not (authority.place(identity) / "cert.pem").exists():
                authority.issue(identity, bootstrap=self._plan.bootstrap)
            if name == GATEWAY and not (authority.place(identity) / "server.pem").exists():
                authority.issue_server(identity, HOSTS)

    async def _allow(self) -> None:
        from semel.client import connect_async
        from semel.protos.security.credentials import Security

        security = Security.read(self._security / ADMIN)
        async with connect_async(
            self._plan.bootstrap, security=security, keep_routes=False
        ) as client:
            await client.admin.change_access_rules(add=OWN_RULES)

    def _write_clients_file(self) -> Path:
        """BLOCKING. Writes the settings of librdkafka; returns their file."""
        from semel.console.authority import write_file

        settings = {
            "bootstrap.servers": self.place,
            "security.protocol": "ssl",
            "ssl.ca.location": self._clients / "ca.pem",
            "ssl.certificate.location": self._clients / "cert.pem",
            "ssl.key.location": self._clients / "key.pem",
        }
        path = self._clients / CLIENTS_FILE
        write_file(path, "".join(f"{name}={text}\n" for name, text in settings.items()).encode())
        return path
