"""Logging in: a client without a certificate proves who it is, and gets one for a short time.

How it works. `Login` says where, and what proves it: a token, or a user and a password. `LoggedIn`
makes a key in memory, sends the proof with a request for a certificate to a controller's port for
logins, and gives the certificate to all connections of the client, as if it came from files
(`credentials.Source`). It renews the certificate when half of its time is over, with a new key and
with what the token's file says by then. A certificate that ends with its token cannot be renewed
with the same token, so the file alone is looked at until it says something new. Connections that
are open go on with the certificate that they have; brokers end a stream whose certificate expires,
and the client opens it again with the newer one.

Invariants
1. No error, log or repr has a token, a password or a key, and no key is written to a disk.
2. `current` returns a certificate that is valid, or raises Unauthenticated.

Not here: which proof is good (the controllers' `login/`), the file that says all this
(`client_file.py`).
"""

from __future__ import annotations

import asyncio
import logging
import random
import stat
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import grpc

from semel.protos.addresses import Address
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
from semel.protos.security.secret_files import shown_to_others

if TYPE_CHECKING:  # they bring cryptography, which clients without TLS need not load
    from semel.protos.security.tls_files import Loaded

logger = logging.getLogger(__name__)

RENEW_AT: Final = 0.5
"""The share of a certificate's time after which it is renewed."""
AGAIN_S: Final = 1.0
AGAIN_S_MAX: Final = 30.0
"""After a failure, or with an old token, it is tried again after AGAIN_S to AGAIN_S_MAX."""
ATTEMPT_S: Final = 5.0
ROUND_S: Final = 0.2
"""The wait after all controllers were asked in vain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """How a client logs in: with a token, or as a user with a password."""

    addresses: str
    """HOST:PORT of the controllers' ports for logins, with commas between them."""
    ca: Path | str
    """File of the cluster's CA: nothing is shown to anybody else."""
    token: str = field(default="", repr=False)
    """The token itself; better a file, which may get a newer one."""
    token_file: Path | str = ""
    """File with the token, read again at each login."""
    user: str = ""
    """The user whose password follows."""
    password: str = field(default="", repr=False)
    """The password itself, for a program that is told it; better a file."""
    password_file: Path | str = ""
    """File with the password, for its owner alone (mode 0600), read again at each login."""
    cluster_id: str = ""
    """Id of the cluster. By default the one that the CA names, if `semel security` made it."""

    def __post_init__(self) -> None:
        for address in self.addresses.split(","):
            Address.parse(address.strip(), what="address for logins", port_min=1)
        passwords = bool(self.password) + bool(self.password_file)
        ways = [bool(self.token), bool(self.token_file), bool(self.user or passwords)]
        if sum(ways) != 1:
            raise InvalidRequest(
                "a login has one of token, token_file, and user with password_file"
            )
        if (self.user or passwords) and not (self.user and passwords == 1):
            raise InvalidRequest("user and password_file need each other")


@dataclass(frozen=True, slots=True)
class _Proof:
    """The proof that is shown."""

    token: str = field(default="", repr=False)
    user: str = ""
    password: str = field(default="", repr=False)


class LoggedIn:
    """The login of one client (`credentials.Source`). Call `start` first."""

    def __init__(self, login: Login) -> None:
        """BLOCKING. Reads the CA. Raises InvalidRequest."""
        self._login = login
        self._addresses = [address.strip() for address in login.addresses.split(",")]
        self._ca_path = Path(login.ca)
        self._ca_stamp = stamp_of(self._ca_path)
        ca, _ = _read_ca(self._ca_path)
        self._cluster = login.cluster_id or _cluster_of(ca, self._ca_path)
        self._loaded: Loaded | None = None
        self._proof = _Proof()
        """What the certificate in force was given for."""
        self._with_token = False
        """That certificate ends with the token."""
        self._renew_s = 0.0
        """Wall-clock time at which it is renewed."""
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

    async def start(self, timeout_s: float) -> None:
        """Logs in, unless that was done. Raises SemelError."""
        if self._loaded is None or time.time() >= self._loaded.expires_at:
            await self._log_in(timeout_s)

    async def run(self) -> None:
        """Renews the certificate in time; ends only by cancellation."""
        while True:
            await asyncio.sleep(self._pause_s())
            if not self._is_due():
                continue
            login = self._login
            try:
                await self._log_in(ATTEMPT_S)
            except SemelError as error:
                if error.message != self._reason:
                    logger.warning("login not renewed reason=%s", error.message)
                self._reason = error.message
                if isinstance(error, Unauthenticated) and self._login is login:
                    self.refusal = error

    def take_over(self, newer: LoggedIn) -> None:
        """Goes on with the certificate and the proof of another login of the same client, if that
        lasts longer."""
        before, loaded = self._loaded, newer.current()
        if before is not None and loaded.expires_at <= before.expires_at:
            return
        self._accept(replace(loaded, version=1 if before is None else before.version + 1))
        self._login = newer._login
        self._proof, self._with_token = newer._proof, newer._with_token

    # ------------------------------------------------------------------ inside

    def _pause_s(self) -> float:
        left_s = self._renew_s - time.time()
        if left_s > 0 and not self._with_token:
            return left_s
        loaded = self._loaded
        left_s = 0.0 if loaded is None else loaded.expires_at - time.time()
        return min(max(left_s / 10, AGAIN_S), AGAIN_S_MAX)

    def _is_due(self) -> bool:
        if not self._with_token:
            return time.time() >= self._renew_s
        try:
            return self._read_proof() != self._proof
        except InvalidRequest as error:  # the file is being replaced
            self._reason = error.message
            return False

    async def _log_in(self, timeout_s: float) -> None:
        proof = await asyncio.to_thread(self._read_proof)
        ca, ca_expires_at = await asyncio.to_thread(_read_ca, self._ca_path)
        key_pem, request = _new_key()
        reply = await self._ask(ca, proof, request, timeout_s)
        self._take(ca, ca_expires_at, key_pem, reply.certificate)
        self._proof, self._with_token = proof, reply.ends_with_token

    async def _ask(self, ca: bytes, proof: _Proof, request: bytes, timeout_s: float) -> Any:
        """The reply of the first controller that knows. Raises SemelError."""
        from semel.protos.v1.login_pb2 import LogInRequest

        message = LogInRequest(
            token=proof.token,
            user=proof.user,
            password=proof.password,
            signing_request=request,
        )
        ends_at = time.monotonic() + timeout_s
        while True:
            wait_s, last = ROUND_S, cast("SemelError | None", None)
            for address in self._addresses:
                try:
                    return await self._ask_one(address, ca, message, ends_at - time.monotonic())
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

    async def _ask_one(self, address: str, ca: bytes, message: Any, timeout_s: float) -> Any:
        """Raises SemelError."""
        from semel.protos.v1.login_pb2_grpc import LoginStub

        async with login_channel(address, ca, self._cluster, CHANNEL_OPTIONS) as channel:
            stub = cast("Any", LoginStub)(channel)
            try:
                return await stub.LogIn(
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
        now_s = time.time()
        self._loaded = loaded
        # Not all clients that began together renew together.
        share = RENEW_AT * random.uniform(0.8, 1.0)
        self._renew_s = now_s + (loaded.expires_at - now_s) * share
        self.refusal = None
        self._reason = "its certificate has expired, and no newer one came"

    def _follow_ca(self, loaded: Loaded) -> None:
        try:
            ca, ca_expires_at = _read_ca(self._ca_path)
        except InvalidRequest as error:
            logger.warning("the replaced CA is not used, the one before stays: %s", error)
            return
        self._loaded = replace(
            loaded, ca=ca, ca_expires_at=ca_expires_at, version=loaded.version + 1
        )

    def _read_proof(self) -> _Proof:
        """BLOCKING. Raises InvalidRequest."""
        login = self._login
        if login.token:
            return _Proof(token=login.token)
        if login.token_file:
            return _Proof(token=read_secret(Path(login.token_file), "the token").strip())
        if login.password:
            return _Proof(user=login.user, password=login.password)
        path = Path(login.password_file)
        check_secret_mode(path)
        return _Proof(user=login.user, password=read_secret(path, "the password"))


def check_secret_mode(path: Path) -> None:
    """BLOCKING. Raises InvalidRequest for a file with a secret that others can read."""
    try:
        found = path.stat()
    except OSError as error:
        raise InvalidRequest(f"{path} cannot be read: {error.strerror}") from None
    if shown_to_others(found):
        raise InvalidRequest(
            f"{path} holds a secret and has mode {stat.S_IMODE(found.st_mode):04o}, which others"
            f" can read: chmod 600 {path}"
        )


def read_secret(path: Path, what: str) -> str:
    """BLOCKING. The first line of a file. Raises InvalidRequest."""
    try:
        lines = _read(path, what).decode().splitlines()
    except UnicodeDecodeError:
        raise InvalidRequest(f"{path} is no text, and should hold {what}") from None
    if not lines or not lines[0]:
        raise InvalidRequest(f"{path} is empty, and should hold {what}")
    return lines[0]


def _read(path: Path, what: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidRequest(f"{path}, {what}, cannot be read: {error.strerror}") from None


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


def _read_ca(path: Path) -> tuple[bytes, float]:
    """The CAs, and the seconds since 1970 at which the last of them expires. Raises
    InvalidRequest."""
    from semel.protos.security.tls_files import read_certificates

    ca = _read(path, "the CA")
    found = read_certificates(ca, path)
    return ca, max(one.not_valid_after_utc for one in found).timestamp()


def _new_key() -> tuple[bytes, bytes]:
    """A private key, in PEM, and a request for its certificate."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    from semel.protos.security.certificates import key_pem

    key = ec.generate_private_key(ec.SECP256R1())
    request = x509.CertificateSigningRequestBuilder(x509.Name([])).sign(key, hashes.SHA256())
    return key_pem(key), request.public_bytes(serialization.Encoding.DER)
