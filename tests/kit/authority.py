"""A cluster's CA in a test, and SSL contexts with what it issues."""

from __future__ import annotations

from pathlib import Path

from semel.protos.security.credentials import Contexts
from semel.protos.security.identity import BROKER, CLIENT, CONTROLLER, Identity
from semel.protos.security.tls_files import TlsFiles
from tests.kit.certificates import TestCa


class Authority:
    """A CA with a directory for each identity."""

    def __init__(self, directory: Path, cluster: str = "c") -> None:
        self.ca = TestCa(cluster)
        self._directory = directory

    def write(self, identity: Identity) -> Path:
        """Issues a new certificate into ca.pem, cert.pem and key.pem; returns their directory."""
        directory = self._directory / f"{identity.kind}-{identity.name}"
        return self.ca.files(directory, identity.kind, identity.name)

    def write_machine(self, host: str) -> tuple[Path, Path]:
        """Issues a certificate for another program's server at an IP address, such as ZooKeeper;
        returns the file of the CA, and that of key and certificate together."""
        directory = self._directory / host
        directory.mkdir(parents=True)
        certificate, key = self.ca.issue_machine(host)
        (directory / "ca.pem").write_bytes(self.ca.pem)
        (directory / "server.pem").write_bytes(key + certificate)
        return directory / "ca.pem", directory / "server.pem"

    def contexts(self, identity: Identity) -> Contexts:
        """SSL contexts of a program with a new certificate."""
        return Contexts(TlsFiles.in_directory(self.write(identity)))

    def broker(self, number: int) -> Identity:
        """Broker `number` of the cluster."""
        return Identity(BROKER, str(number), self.ca.cluster)

    def controller(self, number: int) -> Identity:
        """Controller `number` of the cluster."""
        return Identity(CONTROLLER, str(number), self.ca.cluster)

    def client(self, name: str) -> Identity:
        """A client of the cluster."""
        return Identity(CLIENT, name, self.ca.cluster)
