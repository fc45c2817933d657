"""TLS to ZooKeeper: the files, and kazoo's connections with them.

How it works. The files are read for each connection, so that replaced ones count from the next one
on. A server's certificate must be of the operator's CA and name the host that the address names.

Not here: TLS between Semel's own programs (`semel.protos.security`), which has another CA, or the
same one with other certificates.
"""

from __future__ import annotations

import socket
import ssl
from pathlib import Path

from kazoo.handlers.threading import SequentialThreadingHandler

from semel.protos.errors import InvalidRequest


class ZooKeeperTls:
    """TLS to ZooKeeper: its CA, and this controller's certificate and key, as they are on disk."""

    def __init__(self, directory: Path) -> None:
        """BLOCKING. `directory` has ca.pem, and cert.pem with key.pem where the servers want a
        certificate of their clients. Raises InvalidRequest."""
        self._directory = directory
        try:
            self.context()
        except (OSError, ValueError) as error:
            raise InvalidRequest(
                f"the TLS files for ZooKeeper in {directory} cannot be used: {error}. There must "
                "be ca.pem, and cert.pem with key.pem if the servers want a certificate"
            ) from None

    def context(self) -> ssl.SSLContext:
        """BLOCKING. The context of one connection. Raises OSError."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_verify_locations(self._directory / "ca.pem")
        certificate, key = self._directory / "cert.pem", self._directory / "key.pem"
        if certificate.exists() or key.exists():
            context.load_cert_chain(certificate, key)
        return context


class TlsHandler(SequentialThreadingHandler):  # type: ignore[misc]
    """kazoo's handler, whose connections trust the CA of the operator and no other. kazoo's own TLS
    trusts those of the system besides."""

    def __init__(self, tls: ZooKeeperTls) -> None:
        super().__init__()
        self._tls = tls

    def create_connection(
        self, address: tuple[str, int], *, hostname: str, timeout: float, **_: object
    ) -> ssl.SSLSocket:
        """BLOCKING. A connection to a server whose certificate names `hostname`."""
        plain = socket.create_connection(address, timeout)
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return self._tls.context().wrap_socket(plain, server_hostname=hostname.strip("[]"))
        except BaseException:
            plain.close()
            raise
