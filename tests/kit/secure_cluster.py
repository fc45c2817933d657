"""A real cluster of processes with TLS on every wire."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc

from semel.protos.security.credentials import Security, channel_credentials
from semel.protos.security.identity import Identity
from tests.kit.authority import Authority
from tests.kit.cluster import CLUSTER_ID, Cluster, Node


class SecureCluster(Cluster):
    """Every node has a certificate of one CA; `security` is that of a client."""

    def __init__(self, data: Path, *, broker_flags: tuple[str, ...] = (), **options: Any) -> None:
        self.authority = Authority(data / "certificates", CLUSTER_ID)
        self.security = self.security_of(self.authority.client("tester"))
        super().__init__(data, broker_flags=broker_flags, **options)

    def security_of(self, identity: Identity) -> Security:
        """The certificate of a program, issued anew."""
        return Security.read(self.authority.write(identity))

    def _node(self, kind: str, number: int, group: int, address: str, flags: list[str]) -> Node:
        directory = self.authority.write(Identity(kind, str(number), CLUSTER_ID))
        return super()._node(kind, number, group, address, [*flags, "--tls-dir", str(directory)])

    def _channel(self, address: str) -> grpc.Channel:
        name = ("grpc.ssl_target_name_override", self.security.tls_name())
        credentials = channel_credentials(self.security.files)
        return grpc.secure_channel(address, credentials, options=(name,))
