"""A clients' CA in a test, which also forges what the product's never issues."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from semel.protos.security import certificates
from semel.protos.security.identity import Identity
from semel.protos.security.login_facts import OID, LoginFacts
from semel.protos.security.tls_files import Loaded
from tests.kit.certificates import CLUSTER


@dataclass(frozen=True)
class Held:
    """A certificate in memory (`credentials.Source`)."""

    loaded: Loaded

    @property
    def identity(self) -> Identity:
        return self.loaded.identity

    @property
    def cluster(self) -> str:
        return self.loaded.identity.cluster

    def current(self) -> Loaded:
        return self.loaded


class ClientsCa:
    """A clients' CA, of the test or with the key of a cluster that runs."""

    def __init__(self, directory: Path | None = None, *, days: int = 10) -> None:
        """`directory` has `clients-ca.pem` and its key."""
        if directory is None:
            self.certificate, self.key = certificates.new_clients_authority(CLUSTER, _now(), days)
            return
        from cryptography.hazmat.primitives import serialization

        pem = (directory / "clients-ca.pem").read_bytes()
        self.certificate = x509.load_pem_x509_certificate(pem)
        key = serialization.load_pem_private_key(
            (directory / "clients-ca-key.pem").read_bytes(), None
        )
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        self.key = key

    @property
    def pem(self) -> bytes:
        """The CA's certificate."""
        return certificates.certificate_pem(self.certificate)

    def forge(self, identity: Identity, *, seconds: float = 3_600) -> tuple[bytes, bytes]:
        """A certificate for any identity, and its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        until = _now() + datetime.timedelta(seconds=seconds)
        made = certificates._leaf(identity, key.public_key(), self.certificate, _now(), until)
        signed = made.sign(self.key, hashes.SHA256())
        return certificates.certificate_pem(signed), certificates.key_pem(key)

    def log_in(
        self,
        name: str,
        facts: LoginFacts | bytes,
        *,
        key: ec.EllipticCurvePublicKey | None = None,
        seconds: float = 3_600,
    ) -> bytes:
        """A client's certificate with what a login says, or with bytes that say nothing; for `key`,
        or one that nobody has."""
        public = key or ec.generate_private_key(ec.SECP256R1()).public_key()
        until = _now() + datetime.timedelta(seconds=seconds)
        identity = Identity("client", name, CLUSTER)
        made = certificates._leaf(identity, public, self.certificate, _now(), until)
        extension = (
            x509.UnrecognizedExtension(OID, facts)
            if isinstance(facts, bytes)
            else facts.extension()
        )
        signed = made.add_extension(extension, critical=False).sign(self.key, hashes.SHA256())
        return certificates.certificate_pem(signed)

    def source(self, ca: bytes, certificate: bytes, key: bytes, identity: Identity) -> Held:
        """The certificate as a program has it."""
        ends = x509.load_pem_x509_certificate(certificate).not_valid_after_utc.timestamp()
        return Held(
            Loaded(
                ca=ca,
                certificate=certificate,
                key=key,
                identity=identity,
                expires_at=ends,
                ca_expires_at=ends,
                version=1,
            )
        )


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)
