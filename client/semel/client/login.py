"""Logging in: a client without a certificate proves who it is, and gets one for a short time.

How it works. `Login` says where, and what proves it: a token, or a user and a password. `LoggedIn`
sends the proof with a request for a certificate to a controller's port for logins. It renews the
certificate when half of its time is over, with a new key and with what the token's file says by
then. A certificate that ends with its token cannot be renewed with the same token, so the file
alone is looked at until it says something new. Connections that are open go on with the
certificate that they have; brokers end a stream whose certificate expires, and the client opens it
again with the newer one.

Invariant: no error, log or repr has a token or a password.

Not here: the certificate and its key (`certified.py`), which proof is good (the controllers'
`login/`), the file that says all this (`client_file.py`).
"""

from __future__ import annotations

import asyncio
import logging
import random
import stat
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from semel.client.certified import Certified, new_request, read_ca
from semel.protos.addresses import Address
from semel.protos.errors import InvalidRequest, SemelError, Unauthenticated
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


class LoggedIn(Certified):
    """The login of one client (`credentials.Source`). Call `start` first."""

    def __init__(self, login: Login) -> None:
        """BLOCKING. Reads the CA. Raises InvalidRequest."""
        super().__init__(login)
        self._login = login
        self._proof = _Proof()
        """What the certificate in force was given for."""
        self._with_token = False
        """That certificate ends with the token."""
        self._renew_s = 0.0
        """Wall-clock time at which it is renewed."""

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

    def take_over(self, newer: Self) -> bool:
        """Does so with the proof, too."""
        if not super().take_over(newer):
            return False
        self._login = newer._login
        self._proof, self._with_token = newer._proof, newer._with_token
        return True

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
        from semel.protos.v1.login_pb2 import LogInRequest

        proof = await asyncio.to_thread(self._read_proof)
        ca, ca_expires_at = await asyncio.to_thread(read_ca, self._ca_path)
        key_pem, request = new_request()
        message = LogInRequest(
            token=proof.token, user=proof.user, password=proof.password, signing_request=request
        )
        reply = await self._ask("LogIn", message, ca, timeout_s)
        self._take(ca, ca_expires_at, key_pem, reply.certificate)
        self._proof, self._with_token = proof, reply.ends_with_token

    def _accept(self, loaded: Loaded) -> None:
        now_s = time.time()
        super()._accept(loaded)
        # Not all clients that began together renew together.
        share = RENEW_AT * random.uniform(0.8, 1.0)
        self._renew_s = now_s + (loaded.expires_at - now_s) * share

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
