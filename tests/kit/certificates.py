"""Directories with certificates, for tests of TLS."""

from __future__ import annotations

import datetime
import ipaddress
import os
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from semel.protos.security import certificates
from semel.protos.security.identity import Identity

CLUSTER = "0" * 31 + "1"


class TestCa:
    """A CA that issues whatever a test wants, also what the product would not."""

    __test__ = False

    def __init__(self, cluster: str = CLUSTER) -> None:
        self.cluster = cluster
        self.certificate, self._key = certificates.new_authority(cluster, _now(), 10)

    @property
    def pem(self) -> bytes:
        """The CA's certificate."""
        return certificates.certificate_pem(self.certificate)

    def issue(self, kind: str, name: str, *, ended: bool = False) -> tuple[bytes, bytes]:
        """A certificate and its key; one that has `ended` expired an hour ago."""
        moment = _now() - datetime.timedelta(days=1, hours=1) if ended else _now()
        identity = Identity(kind, name, self.cluster)
        certificate, key = certificates.issue(
            identity, self.certificate, self._key, moment, 1 if ended else 5
        )
        return certificates.certificate_pem(certificate), certificates.key_pem(key)

    def sign_authority(self, other: TestCa, *, authority: bool = True) -> bytes:
        """A certificate of this CA for the key of another one, which makes it a CA or does not."""
        made = (
            x509.CertificateBuilder()
            .subject_name(other.certificate.subject)
            .issuer_name(self.certificate.subject)
            .public_key(other.certificate.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(_now() - datetime.timedelta(hours=1))
            .not_valid_after(_now() + datetime.timedelta(days=2))
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        return certificates.certificate_pem(made)

    def issue_machine(self, host: str) -> tuple[bytes, bytes]:
        """A certificate, and its key, for a server of another program at an IP address."""
        key = ec.generate_private_key(ec.SECP256R1())
        uses = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        names = [x509.IPAddress(ipaddress.ip_address(host))]
        certificate = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)]))
            .issuer_name(self.certificate.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(_now() - datetime.timedelta(hours=1))
            .not_valid_after(_now() + datetime.timedelta(days=2))
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        return certificates.certificate_pem(certificate), certificates.key_pem(key)

    def files(
        self,
        directory: Path,
        kind: str,
        name: str,
        *,
        trusted: bytes | None = None,
        ended: bool = False,
    ) -> Path:
        """Writes ca.pem, cert.pem and key.pem; `trusted` is in ca.pem in place of this CA."""
        certificate, key = self.issue(kind, name, ended=ended)
        directory.mkdir(parents=True, exist_ok=True)
        replace(directory / "ca.pem", self.pem if trusted is None else trusted)
        replace(directory / "key.pem", key, mode=0o600)
        replace(directory / "cert.pem", certificate)
        return directory


def replace(path: Path, content: bytes, *, mode: int = 0o644) -> None:
    """Replaces a file in one step, as an administrator does."""
    temporary = path.with_suffix(".new")
    temporary.unlink(missing_ok=True)
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(content)
    temporary.replace(path)


def load(pem: bytes) -> x509.Certificate:
    """The certificate in a PEM."""
    return x509.load_pem_x509_certificate(pem)


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)
