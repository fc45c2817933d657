"""Callers prove who they are: by a certificate, a token, or a user and a password.

How it works. A caller's certificate was checked in the handshake, and states an identity. A token
or a user with a password comes in the metadata `authorization` of each call, as HTTP has it:
`Bearer TOKEN` or `Basic base64(USER:PASSWORD)`. A client whose certificate is a client's may show
one of them, too, and is then whom that names; nodes and administrators are who their certificate
says. A password is checked in a thread, few at a time, since each check takes tens of megabytes.

Invariants
1. Whoever proves nothing, or shows something that is not good, is not let in as anybody.
2. Nothing that a caller showed stands in an error.

Not here: what the caller may do (`enforcement.py`), tokens (`tokens.py`), hashes (`passwords.py`).
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, Final

from semel.protos.errors import Throttled, Unauthenticated
from semel.protos.security.access import certified
from semel.protos.security.enforcement import Caller
from semel.protos.security.identity import ADMIN, identity_of_auth_context
from semel.protos.security.passwords import PASSWORD_BYTES_MAX, PasswordChecks
from semel.protos.security.tokens import TokenVerifier

AUTHORIZATION: Final = "authorization"
CHECKS_AT_ONCE: Final = 2
CHECKS_WAITING_MAX: Final = 64
RETRY_AFTER_MS: Final = 500


def token_metadata(token: str) -> tuple[str, str]:
    """The metadata of a call under a token."""
    return (AUTHORIZATION, f"Bearer {token}")


def password_metadata(user: str, password: str) -> tuple[str, str]:
    """The metadata of a call under a user's name and password."""
    pair = base64.b64encode(f"{user}:{password}".encode()).decode()
    return (AUTHORIZATION, f"Basic {pair}")


class Authenticator:
    """Finds who makes a call; `enforcement.Authenticate`. Lives on the event loop."""

    def __init__(
        self,
        cluster: str,
        *,
        verifier: Callable[[], TokenVerifier | None],
        hash_of: Callable[[str], str | None],
        threads: Executor,
        wall_s: Callable[[], float],
    ) -> None:
        """`verifier` returns the verifier of tokens as it is now, None if none are taken; `hash_of`
        returns the stored hash of a user's password; `wall_s` is the wall clock."""
        self._cluster = cluster
        self._verifier = verifier
        self._hash_of = hash_of
        self._threads = threads
        self._wall_s = wall_s
        self._passwords = PasswordChecks()
        self._at_once = asyncio.Semaphore(CHECKS_AT_ONCE)
        self._waiting = 0

    async def __call__(self, context: Any) -> Caller:
        """Raises Unauthenticated, and Throttled while too many passwords are being checked."""
        address = str(context.peer())
        identity = identity_of_auth_context(context.auth_context())
        if identity is not None and identity.cluster != self._cluster:
            raise Unauthenticated(
                f"the certificate is for another cluster than {self._cluster}: connect to its own"
            )
        if identity is not None and (identity.is_node or identity.kind == ADMIN):
            return certified(identity, address)
        shown = _shown(context)
        if shown:
            return await self._of_header(shown, address)
        if identity is not None:
            return certified(identity, address)
        raise Unauthenticated(
            "this cluster serves only callers that prove who they are: connect with a certificate,"
            " a token, or a user and a password"
        )

    async def _of_header(self, shown: str, address: str) -> Caller:
        scheme, _, value = shown.partition(" ")
        if scheme.lower() == "bearer":
            verifier = self._verifier()
            if verifier is None:
                raise Unauthenticated("this cluster takes no tokens")
            token = verifier.verify(value.strip(), self._wall_s())
            return Caller(
                principal=token.principal,
                scopes=token.scopes,
                expires_s=token.expires_s,
                address=address,
            )
        if scheme.lower() == "basic":
            user, password = _pair(value.strip())
            if await self._right(user, password):
                return Caller(principal=f"user:{user}", address=address)
            raise Unauthenticated("no user has this name and this password")
        raise Unauthenticated("the metadata `authorization` is neither a token nor a password")

    async def _right(self, user: str, password: str) -> bool:
        stored = self._hash_of(user)
        if self._passwords.known(user, password, stored):
            return True
        if self._waiting >= CHECKS_WAITING_MAX:
            raise Throttled(
                "too many passwords are being checked: come back", retry_after_ms=RETRY_AFTER_MS
            )
        self._waiting += 1
        try:
            async with self._at_once:
                return await asyncio.get_running_loop().run_in_executor(
                    self._threads, self._passwords.right, user, password, stored
                )
        finally:
            self._waiting -= 1


def _shown(context: Any) -> str:
    for key, value in context.invocation_metadata() or ():
        if key == AUTHORIZATION:
            return value if isinstance(value, str) else value.decode("utf-8", "replace")
    return ""


def _pair(value: str) -> tuple[str, str]:
    try:
        decoded = base64.b64decode(value, validate=True).decode()
    except (binascii.Error, ValueError):
        decoded = ""
    user, colon, password = decoded.partition(":")
    if not colon or len(decoded) > PASSWORD_BYTES_MAX:
        raise Unauthenticated("the metadata `authorization` has no user and password")
    return user, password
