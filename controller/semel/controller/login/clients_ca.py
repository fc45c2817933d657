"""The clients' CA at a controller: it signs the certificates of those who have logged in.

How it works. Its certificate and key are files of the controller's TLS directory, read again when
they are replaced. What cannot be used is logged, and the files before stay in use: so the two may
be replaced one after the other. All nodes must trust a new CA before a controller gets its key.

Invariants
1. A certificate is a client's and nothing else, of this cluster, and ends with the proof at the
   latest.

Not here: the proof (`login_service.py`), what a certificate states (`certificates.py` of the
protos).
"""

from __future__ import annotations

import datetime
import logging
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from semel.protos.errors import InvalidRequest, Unavailable
from semel.protos.security.certificates import PrivateKey, certificate_pem, issue_login
from semel.protos.security.followed import Followed
from semel.protos.security.login_facts import LoginFacts
from semel.protos.security.tls_files import (
    CLIENTS_CA,
    TlsFileError,
    check_key_mode,
    read_certificates,
)

logger = logging.getLogger(__name__)

CLIENTS_CA_KEY: Final = "clients-ca-key.pem"
SIGNING_REQUEST_BYTES_MAX: Final = 4_096
_UNREADABLE: Final = (
    ValueError,
    TypeError,
    InvalidSignature,
    UnsupportedAlgorithm,
    x509.InvalidVersion,
)
"""What the library raises for one request or another."""


class ClientsCa:
    """Issues certificates to clients of one cluster."""

    def __init__(self, directory: Path, cluster: str) -> None:
        """BLOCKING. Raises TlsFileError without the files, or for some that do not fit together."""
        self._cluster = cluster
        certificate, key = directory / CLIENTS_CA, directory / CLIENTS_CA_KEY
        self._files = Followed((certificate, key), lambda: _load(certificate, key))

    def issue(
        self,
        name: str,
        facts: LoginFacts,
        public_key: ec.EllipticCurvePublicKey,
        now_s: float,
        until_s: float,
    ) -> bytes:
        """The certificate of client `name`, in PEM. Raises InvalidRequest for a name that no
        certificate can state, Unavailable once the CA has expired."""
        ca, key = self._files.current()
        if now_s >= ca.not_valid_after_utc.timestamp():
            raise Unavailable(
                "the clients' CA has expired: make a new one with `semel security renew --logins`"
            )
        now, until = (datetime.datetime.fromtimestamp(s, datetime.UTC) for s in (now_s, until_s))
        return certificate_pem(
            issue_login(name, self._cluster, facts, public_key, ca, key, now, until)
        )


def requested_key(request: bytes) -> ec.EllipticCurvePublicKey:
    """The key of a PKCS #10 request, whose sender has it. Raises InvalidRequest."""
    try:
        if len(request) > SIGNING_REQUEST_BYTES_MAX:
            raise ValueError("it is too long")
        found = x509.load_der_x509_csr(request)
        valid = found.is_signature_valid
        key = found.public_key()
    except _UNREADABLE as error:
        raise InvalidRequest(
            f"the request for a certificate cannot be read: {type(error).__name__}"
        ) from None
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise InvalidRequest("the request for a certificate has no key of the curve P-256")
    if not valid:
        raise InvalidRequest("the request for a certificate is not signed with its key")
    return key


def _load(path: Path, key_path: Path) -> tuple[x509.Certificate, PrivateKey]:
    check_key_mode(key_path)
    try:
        pem, key_pem = path.read_bytes(), key_path.read_bytes()
        key = serialization.load_pem_private_key(key_pem, None)
    except OSError as error:
        raise TlsFileError(f"{error.filename} cannot be read: {error.strerror}") from None
    except (ValueError, TypeError):
        raise TlsFileError(f"{key_path} holds no private key in PEM") from None
    for certificate in read_certificates(pem, path):
        if isinstance(key, ec.EllipticCurvePrivateKey) and (
            certificate.public_key() == key.public_key()
        ):
            return certificate, key
    raise TlsFileError(f"{key_path} is not the key of a CA in {path}")
