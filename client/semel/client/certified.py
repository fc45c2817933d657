"""The certificate in force of a client that has logged in, and the calls that bring one.

How it works. A key is made in memory, and goes with a proof to a controller's port for logins as a
request for a certificate. The certificate is given to all connections of the client, as if it came
from files (`credentials.Source`). The CA is a file, and followed.

Invariants
1. No error, log or repr has a key, and no key is written to a disk.
2. `current` returns a certificate that is valid, or raises Unauthenticated.

Not here: the proofs (`login.py`, `scram.py`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, Self, cast

import grpc

from semel.protos.errors import (
    InternalError,
    InvalidRequest,
    NotMaster,
    SemelError,
    Throttled,
    TimedOut,
    Unauthenticated,
    Unavailable,
)
from semel.protos.levels import levels_metadata, own_levels
from semel.protos.rpc import CHANNEL_OPTIONS, error_from_rpc
from semel.protos.security.credentials import login_channel
from semel.protos.security.followed import stamp_of
from semel.protos.security.identity import CLIENT, Identity, cluster_of_uri

if TYPE_CHECKING:  # they bring cryptography, which clients without TLS need not load
    from semel.protos.security.tls_files import Loaded

logger = logging.getLogger(__name__)

ROUND_S: Final = 0.2
"""The wait after all controllers were asked in vain."""


class Place(Protocol):
    """Where clients log in."""

    @property
    def addresses(self) -> str:
        """HOST:PORT of the controllers' ports for logins, with commas between them."""

    @property
    def ca(self) -> Path | str:
        """File of the cluster's CA."""

    @property
    def cluster_id(self) -> str:
        """Id of the cluster; empty for the one that the CA names."""


class Certified:
    """See the module's text."""

    def __init__(self, place: Place) -> None:
        """BLOCKING. Reads the CA. Raises InvalidRequest."""
        self._addresses = [address.strip() for address in place.addresses.split(",")]
        self._ca_path = Path(place.ca)
        self._ca_stamp = stamp_of(self._ca_path)
        ca, _ = read_ca(self._ca_path)
        self._cluster = place.cluster_id or _cluster_of(ca, self._ca_path)
        self._loaded: Loaded | None = None
        self._reason = "it has not logged in yet"
        """Why there is no newer certificate."""
        self.refusal: Unauthenticated | None = None
        """Set while the controllers refuse to renew the certificate in force."""

    @property
    def cluster(self) -> str:
        """The id of the cluster."""
        return self._cluster

    @property
    def identity(self) -> Identity:
        """The client. Raises Unauthenticated before it has logged in."""
        return self.current().identity

    def current(self) -> Loaded:
        """BLOCKING, a few microseconds. The certificate in force. Raises Unauthenticated for one
        that has expired."""
        if self._loaded is None or time.time() >= self._loaded.expires_at:
            raise Unauthenticated(f"the client is not logged in: {self._reason}")
        if (stamp := stamp_of(self._ca_path)) != self._ca_stamp:
            self._ca_stamp = stamp
            self._follow_ca(self._loaded)
        return self._loaded

    async def run(self) -> None:
        """Keeps the certificate fresh, if that can be done; ends only by cancellation."""
        raise NotImplementedError

    def take_over(self, newer: Self) -> bool:
        """Goes on with the certificate of another login of the same client, if that lasts longer;
        returns whether it does."""
        before, loaded = self._loaded, newer.current()
        if before is not None and loaded.expires_at <= before.expires_at:
            return False
        self._accept(replace(loaded, version=1 if before is None else before.version + 1))
        return True

    # ------------------------------------------------------------------ inside

    async def _ask(self, method: str, message: Any, ca: bytes, timeout_s: float) -> Any:
        """The reply of the first controller that knows. Raises SemelError."""
        ends_at = time.monotonic() + timeout_s
        while True:
            wait_s, last = ROUND_S, cast("SemelError | None", None)
            for address in self._addresses:
                try:
                    return await self._ask_one(
                        address, method, message, ca, ends_at - time.monotonic()
                    )
                except Throttled as error:
                    wait_s, last = max(wait_s, error.retry_after_ms / 1000), error
                except (NotMaster, Unavailable, TimedOut) as error:
                    last = last if isinstance(last, Throttled) else error
            assert last is not None
            if time.monotonic() + wait_s >= ends_at:
                if isinstance(last, Throttled):
                    raise last
                where = ", ".join(self._addresses)
                raise Unavailable(f"nobody logs clients in at {where}: {last.message}")
            await asyncio.sleep(wait_s)

    async def _ask_one(
        self, address: str, method: str, message: Any, ca: bytes, timeout_s: float
    ) -> Any:
        """Raises SemelError."""
        from semel.protos.v1.login_pb2_grpc import LoginStub

        async with login_channel(address, ca, self._cluster, CHANNEL_OPTIONS) as channel:
            stub = cast("Any", LoginStub)(channel)
            try:
                return await getattr(stub, method)(
                    message, timeout=max(0.1, timeout_s), metadata=levels_metadata(own_levels())
                )
            except grpc.RpcError as error:
                known = error_from_rpc(error)
                if type(known) is Unavailable and address not in known.message:
                    known = Unavailable(f"{address} does not answer: {known.message}")
                raise known from None

    def _take(
        self, ca: bytes, ca_expires_at: float, key_pem: bytes, certificate_pem: bytes
    ) -> None:
        """Raises InternalError for a certificate that is not the one asked for."""
        from cryptography import x509

        from semel.protos.security.tls_files import Loaded, identity_of_certificate

        try:
            certificate = x509.load_pem_x509_certificate(certificate_pem)
        except ValueError:
            raise InternalError("the controllers gave no certificate") from None
        identity = identity_of_certificate(certificate)
        if identity is None or (identity.kind, identity.cluster) != (CLIENT, self._cluster):
            raise InternalError(f"the controllers gave a certificate of {identity or 'nobody'}")
        before = self._loaded
        loaded = Loaded(
            ca=ca,
            certificate=certificate_pem,
            key=key_pem,
            identity=identity,
            expires_at=certificate.not_valid_after_utc.timestamp(),
            ca_expires_at=ca_expires_at,
            version=1 if before is None else before.version + 1,
        )
        self._accept(loaded)

    def _accept(self, loaded: Loaded) -> None:
        self._loaded = loaded
        self.refusal = None
        self._reason = "its certificate has expired, and no newer one came"

    def _follow_ca(self, loaded: Loaded) -> None:
        try:
            ca, ca_expires_at = read_ca(self._ca_path)
        except InvalidRequest as error:
            logger.warning("the replaced CA is not used, the one before stays: %s", error)
            return
        self._loaded = replace(
            loaded, ca=ca, ca_expires_at=ca_expires_at, version=loaded.version + 1
        )


def _cluster_of(ca: bytes, path: Path) -> str:
    from cryptography import x509

    from semel.protos.security.tls_files import read_certificates

    for one in read_certificates(ca, path):
        try:
            names = one.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
            (uri,) = names.get_values_for_type(x509.UniformResourceIdentifier)
            return cluster_of_uri(uri)
        except (x509.ExtensionNotFound, ValueError, InvalidRequest):
            continue
    raise InvalidRequest(f"{path} does not name its cluster: say cluster_id")


def read_ca(path: Path) -> tuple[bytes, float]:
    """BLOCKING. The CAs, and the seconds since 1970 at which the last of them expires. Raises
    InvalidRequest."""
    from semel.protos.security.tls_files import read_certificates

    try:
        ca = path.read_bytes()
    except OSError as error:
        raise InvalidRequest(f"{path}, the CA, cannot be read: {error.strerror}") from None
    found = read_certificates(ca, path)
    return ca, max(one.not_valid_after_utc for one in found).timestamp()


def new_request() -> tuple[bytes, bytes]:
    """A private key, in PEM, and a request for its certificate."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    from semel.protos.security.certificates import key_pem

    key = ec.generate_private_key(ec.SECP256R1())
    request = x509.CertificateSigningRequestBuilder(x509.Name([])).sign(key, hashes.SHA256())
    return key_pem(key), request.public_bytes(serialization.Encoding.DER)
