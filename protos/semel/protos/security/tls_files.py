"""A program's TLS files: its CA, its certificate and its private key, as they are on disk now.

How it works. `TlsFiles` reads and checks the three files at the start. `current` looks whether one
of them was replaced, and reads all of them again then; it is called for each new connection. What
cannot be used (a key without its certificate yet, because the two are replaced one after the other)
is logged once, and the files before stay in force until all three fit together. The file of the CA
may hold several certificates: during a change of the CA, both are trusted. Beside the three, a node
may have the clients' CA, which is trusted for callers alone (`peers.py`).

Invariants
1. What `current` returns was read in one piece and has passed all checks.
2. A private key that others could read is refused (`secret_files.py`).
3. No CA is trusted for nodes and as the clients' CA at once.

Not here: making certificates (`certificates.py`), using them (`credentials.py`).
"""

from __future__ import annotations

import datetime
import itertools
import logging
import os
import stat
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization

from semel.protos.errors import InvalidRequest
from semel.protos.security.followed import Stamp, stamp_in, stamp_of
from semel.protos.security.identity import Identity, identity_of_uris
from semel.protos.security.secret_files import shown_to_others

logger = logging.getLogger(__name__)

CLOCK_SKEW_S: Final = 300
"""A certificate that becomes valid within so many seconds is accepted: clocks differ a little."""

CLIENTS_CA: Final = "clients-ca.pem"
"""The file of the clients' CA in a node's directory."""

_Stamp = tuple[Stamp, ...]


class TlsFileError(InvalidRequest):
    """A file of TLS is missing, unreadable, expired, or does not fit to the others."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """The contents of the files at one moment."""

    ca: bytes
    """PEM of one or more CAs."""
    certificate: bytes
    """PEM of the certificate, and of those between it and the CA."""
    key: bytes = field(repr=False)
    """PEM of the private key."""
    identity: Identity
    """Whom the certificate names."""
    expires_at: float
    """Seconds since 1970 at which the certificate, or one between it and the CA, expires."""
    ca_expires_at: float
    """The time at which the last of the CAs expires."""
    version: int
    """1, and one more after each change of the files."""
    clients_ca: bytes = b""
    """PEM of the CAs that are trusted for clients who have logged in; empty for none."""
    clients_ca_expires_at: float = 0.0
    """The time at which the first of these expires, which is in use; 0 for none."""


class TlsFiles:
    """The files of one program. May be used by any thread."""

    def __init__(
        self, ca: Path, certificate: Path, key: Path, clients_ca: Path | None = None
    ) -> None:
        """BLOCKING. Reads the files; `clients_ca` need not exist. Raises TlsFileError."""
        self.ca = ca
        self.certificate = certificate
        self.key = key
        self._clients_ca = clients_ca
        self._lock = threading.Lock()
        self._stamp = self._stat()
        self._tried = self._stamp
        self._loaded = load(ca, certificate, key, clients_ca)

    @classmethod
    def in_directory(cls, directory: Path) -> TlsFiles:
        """BLOCKING. Reads ca.pem, cert.pem and key.pem of a directory, and clients-ca.pem if it is
        there. Raises TlsFileError."""
        return cls(
            directory / "ca.pem",
            directory / "cert.pem",
            directory / "key.pem",
            directory / CLIENTS_CA,
        )

    @property
    def identity(self) -> Identity:
        """Whom the certificate in force names."""
        return self._loaded.identity

    @property
    def cluster(self) -> str:
        """The id of the cluster."""
        return self._loaded.identity.cluster

    def current(self) -> Loaded:
        """BLOCKING, a few microseconds. Returns the files in force, read again if one changed."""
        with self._lock:
            try:
                stamp = self._stat()
                if stamp in (self._stamp, self._tried):
                    return self._loaded
                self._tried = stamp
                version = self._loaded.version + 1
                new = load(self.ca, self.certificate, self.key, self._clients_ca, version)
                if new.identity != self._loaded.identity:
                    raise TlsFileError(
                        f"{self.certificate} is now that of {new.identity}, and this is "
                        f"{self._loaded.identity}"
                    )
            except TlsFileError as error:
                logger.warning("replaced TLS files are not used, those before stay: %s", error)
                return self._loaded
            self._stamp = stamp
            self._loaded = new
            logger.info(
                "TLS files replaced identity=%s expires=%s",
                new.identity.uri,
                datetime.datetime.fromtimestamp(new.expires_at, datetime.UTC).isoformat(),
            )
            return new

    def _stat(self) -> _Stamp:
        found = [stamp_in(_stat(path)) for path in (self.ca, self.certificate, self.key)]
        if self._clients_ca is not None:
            found.append(stamp_of(self._clients_ca))  # zeros while there is none
        return tuple(found)


def load(
    ca: Path, certificate: Path, key: Path, clients_ca: Path | None = None, version: int = 1
) -> Loaded:
    """BLOCKING. Reads and checks the files. Raises TlsFileError."""
    check_key_mode(key)
    ca_pem, certificate_pem, key_pem = (_read(path) for path in (ca, certificate, key))
    authorities = read_certificates(ca_pem, ca)
    chain = read_certificates(certificate_pem, certificate)
    check_chain(chain, authorities, certificate, ca)
    _check_pair(chain[0], key_pem, certificate, key)
    identity = identity_of_certificate(chain[0])
    if identity is None:
        raise TlsFileError(
            f"{certificate} names no identity semel://CLUSTER/KIND/NAME: issue it with "
            "`semel security issue`"
        )
    clients_pem, clients_until = _read_clients_ca(clients_ca, authorities)
    return Loaded(
        ca=ca_pem,
        certificate=certificate_pem,
        key=key_pem,
        identity=identity,
        expires_at=min(one.not_valid_after_utc for one in chain).timestamp(),
        ca_expires_at=max(one.not_valid_after_utc for one in authorities).timestamp(),
        version=version,
        clients_ca=clients_pem,
        clients_ca_expires_at=clients_until,
    )


def _read_clients_ca(path: Path | None, authorities: list[x509.Certificate]) -> tuple[bytes, float]:
    if path is None or not path.exists():
        return b"", 0.0
    pem = _read(path)
    found = read_certificates(pem, path)
    trusted = [one.public_key() for one in authorities]
    if any(one.public_key() in trusted for one in found):
        raise TlsFileError(
            f"{path} has a CA that is trusted for nodes as well: whoever has its key could be one"
        )
    return pem, found[0].not_valid_after_utc.timestamp()


def identity_of_certificate(certificate: x509.Certificate) -> Identity | None:
    """Returns whom a certificate names; None for nobody."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        return None
    return identity_of_uris(names.get_values_for_type(x509.UniformResourceIdentifier))


def check_key_mode(key: Path) -> None:
    """BLOCKING. Raises TlsFileError for a private key that others can read."""
    found = _stat(key)
    if shown_to_others(found):
        mode = stat.S_IMODE(found.st_mode)
        raise TlsFileError(
            f"{key} is a private key with mode {mode:04o}, which others can read: chmod 600 {key}"
        )


def read_certificates(pem: bytes, path: Path) -> list[x509.Certificate]:
    """Returns the certificates of a PEM file, one at least. Raises TlsFileError."""
    try:
        return x509.load_pem_x509_certificates(pem)
    except ValueError as error:
        raise TlsFileError(f"{path} holds no certificate in PEM: {error}") from None


def check_chain(
    chain: list[x509.Certificate], authorities: list[x509.Certificate], path: Path, ca: Path
) -> None:
    """Checks times and signatures up to one of the authorities. Raises TlsFileError."""
    now = datetime.datetime.fromtimestamp(time.time(), datetime.UTC)
    for one in chain:
        if one.not_valid_after_utc <= now:
            raise TlsFileError(
                f"{path} expired on {one.not_valid_after_utc:%Y-%m-%d %H:%M} UTC: renew it with "
                "`semel security renew`"
            )
        if one.not_valid_before_utc > now + datetime.timedelta(seconds=CLOCK_SKEW_S):
            raise TlsFileError(
                f"{path} is not valid before {one.not_valid_before_utc:%Y-%m-%d %H:%M} UTC, and it "
                f"is {now:%Y-%m-%d %H:%M}: check the clock"
            )
    for below, above in itertools.pairwise(chain):
        if not is_issued(below, above):
            raise TlsFileError(f"{path}: each certificate must be signed by the one after it")
    if not any(is_issued(chain[-1], one) or chain[-1] == one for one in authorities):
        raise TlsFileError(f"{path} is not signed by the CA in {ca}: they do not belong together")


def is_issued(certificate: x509.Certificate, by: x509.Certificate) -> bool:
    """Whether a certificate is signed by the key of another one."""
    try:
        certificate.verify_directly_issued_by(by)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _check_pair(certificate: x509.Certificate, key_pem: bytes, path: Path, key: Path) -> None:
    try:
        private = serialization.load_pem_private_key(key_pem, None)
    except (ValueError, TypeError) as error:
        raise TlsFileError(
            f"{key} holds no private key in PEM without a password: {error}"
        ) from None
    if private.public_key() != certificate.public_key():
        raise TlsFileError(f"{key} is not the private key of {path}: they do not belong together")


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise TlsFileError(f"{path} cannot be read: {error.strerror}") from None


def _stat(path: Path) -> os.stat_result:
    try:
        return path.stat()
    except OSError as error:
        raise TlsFileError(f"{path} cannot be read: {error.strerror}") from None
