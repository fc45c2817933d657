"""Callers of a gRPC port with TLS: who they are, how they have logged in, until when.

How it works. TLS lets in whoever has a certificate of the CA, or of the clients' CA if the node has
one. This reads the certificate and decides what it proves. One of the clients' CA proves to be a
client and nothing else. gRPC does not say which CA a certificate was found to be of. So for every
other identity the way to the CA is walked here as well, by the signatures of the certificates that
the caller has shown. What was read is remembered by its bytes, since every call asks.

Invariants
1. No certificate makes a node or an administrator unless the CA, or a CA below it, has signed it:
   whoever has the key of the clients' CA can be any client, and nobody else.

Not here: whom a port serves (`guard.py`), what callers may do (`access.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from cryptography import x509

from semel.protos.errors import InvalidRequest
from semel.protos.security.identity import ADMIN, CLIENT, Identity
from semel.protos.security.login_facts import login_facts_of
from semel.protos.security.rules import Scope
from semel.protos.security.tls_files import Loaded, TlsFiles, identity_of_certificate, is_issued

logger = logging.getLogger(__name__)

REMEMBERED_MAX: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """One caller, as its certificate proves it."""

    identity: Identity
    login: str
    """`certificate`, or one of `login_facts.WAYS`."""
    scopes: tuple[Scope, ...] | None
    """What it is narrowed to; None for no limit."""
    expires_s: float
    """Seconds since the epoch at which its certificate expires."""

    @property
    def ends(self) -> bool:
        """Whether its calls and streams end with its certificate. Those of nodes do not: a cluster
        whose certificates are renewed late goes on as long as its connections last."""
        return self.identity.kind in (CLIENT, ADMIN)


class Peers:
    """Reads the certificates of callers. Lives on one thread."""

    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        self._known: dict[tuple[int, bytes], Peer | None] = {}

    def of(self, auth_context: Mapping[str, Sequence[bytes]]) -> Peer | None:
        """The caller of a call, from gRPC's `context.auth_context()`; None if its certificate names
        nobody."""
        shown = auth_context.get("x509_pem_cert")
        if not shown:
            return None
        loaded = self._files.current()
        key = (loaded.version, shown[0])
        if key not in self._known:
            if len(self._known) >= REMEMBERED_MAX:
                self._known.clear()
            self._known[key] = _read(
                shown[0], b"".join(auth_context.get("x509_pem_cert_chain", ())), loaded
            )
        return self._known[key]


def _read(pem: bytes, chain: bytes, loaded: Loaded) -> Peer | None:
    try:
        certificate = x509.load_pem_x509_certificate(pem)
        facts = login_facts_of(certificate)
        identity = identity_of_certificate(certificate)
    except (ValueError, InvalidRequest) as error:
        logger.warning("a caller's certificate cannot be read: %s", error)
        return None
    if identity is None:
        return None
    if identity.kind != CLIENT and loaded.clients_ca:
        between = x509.load_pem_x509_certificates(chain) if chain else []
        if not _descends(certificate, between, x509.load_pem_x509_certificates(loaded.ca)):
            logger.warning("a certificate of the clients' CA claims to be %s", identity)
            return None
    return Peer(
        identity=identity,
        login=facts.by,
        scopes=facts.scopes,
        expires_s=certificate.not_valid_after_utc.timestamp(),
    )


def _descends(
    certificate: x509.Certificate,
    between: Sequence[x509.Certificate],
    authorities: Sequence[x509.Certificate],
) -> bool:
    """Whether signatures lead from a certificate to one of the authorities."""
    current = certificate
    for _ in range(len(between) + 1):
        if any(current == one or is_issued(current, one) for one in authorities):
            return True
        above = [one for one in between if _is_authority(one) and is_issued(current, one)]
        if not above:
            return False
        current = above[0]
    return False


def _is_authority(certificate: x509.Certificate) -> bool:
    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        return False
