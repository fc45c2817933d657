"""A real cluster with TLS, rules and logins, as `semel up --secure --authorization` makes it.

Not here: the same without rules (`secure_cluster.py`).
"""

from __future__ import annotations

import json
from pathlib import Path

import grpc

from semel.client import Client, connect
from semel.console.authority import Authority
from semel.protos.security.credentials import Security, channel_credentials
from semel.protos.security.identity import ADMIN, CLIENT, Identity
from tests.kit.cluster import CLUSTER_ID, HOST, Cluster, Node

METRICS: tuple[str, ...] = ("--metrics-port", "0")


class RuledCluster(Cluster):
    """Every node has a certificate of one CA, checks rules and writes an audit log; controllers log
    clients in."""

    def __init__(self, data: Path, *, brokers: int = 3, controllers: int = 1) -> None:
        data.mkdir(parents=True, exist_ok=True)
        self.authority = Authority.create(data / "security", CLUSTER_ID)
        self.authority.renew_logins()
        self.security = self.security_of("admin", ADMIN)
        super().__init__(data, brokers=brokers, controllers=controllers, broker_flags=METRICS)

    def security_of(self, name: str, kind: str = CLIENT) -> Security:
        """The certificate of a client, or of an administrator."""
        issued = self.authority.issue(Identity(kind, name, CLUSTER_ID))
        return Security.read(issued.directory)

    def connect(self) -> Client:
        """An administrator."""
        return connect(self.bootstrap, security=self.security, keep_routes=False)

    def audited(self) -> list[dict[str, str]]:
        """All lines of all audit logs, also of files that were replaced."""
        return [
            json.loads(line)
            for path in sorted(self.data.glob("*.audit.jsonl*"))
            for line in path.read_text().splitlines()
        ]

    def login_address(self, node: Node) -> str:
        """Where a controller logs clients in."""
        ready = json.loads(node.output_file.read_text().splitlines()[0])
        return str(ready["login"])

    def _node(self, kind: str, number: int, group: int, address: str, flags: list[str]) -> Node:
        issued = self.authority.issue(Identity(kind, str(number), CLUSTER_ID))
        audit = self.data / f"{kind}-{number}.audit.jsonl"
        more = ["--tls-dir", str(issued.directory), "--authorization", "--audit-log", str(audit)]
        if kind == "controller":
            more += [*METRICS, "--login-listen", f"{HOST}:0"]
        return super()._node(kind, number, group, address, [*flags, *more])

    def _channel(self, address: str) -> grpc.Channel:
        name = ("grpc.ssl_target_name_override", self.security.tls_name())
        credentials = channel_credentials(self.security.files)
        return grpc.secure_channel(address, credentials, options=(name,))
