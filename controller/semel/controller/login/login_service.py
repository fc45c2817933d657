"""The gRPC service `Login`: a proof and a key come in, a certificate goes out.

How it works. A token is verified by its key set, at every controller; a user and a password are
checked by the active one, which has the users. Whoever is right gets a certificate of the clients'
CA, which ends with the token, and after `login_ms_max` at the latest. So a node needs to know of
tokens and passwords nothing, and what is taken away from somebody is gone after that time.

No more logins a second are looked at than the controller can afford (`attempt_rates.py`).
Passwords are checked in threads of their own, `CHECKS_AT_ONCE` at a time since each takes tens of
megabytes; `CHECKS_WAITING_MAX` wait, and beyond that a caller is told to come back. Who guesses has
to wait (`slowdown.py`), and is told so before the password is looked at.

Programs that lead the exchange of a client which keeps its password to itself do the same in two
calls (`scram_logins.py`).

Invariants
1. Nothing that a caller showed stands in an error, a log or the audit log, but the name of a user.
2. Who proves nothing gets one and the same error, whether the user exists or not.

Not here: the port (`login_port.py`), the certificate (`clients_ca.py`).
"""

# ruff: noqa: N802  (gRPC names the methods)

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Executor
from typing import Any, Final

from semel.controller.login.attempt_rates import AttemptRates
from semel.controller.login.clients_ca import ClientsCa, requested_key
from semel.controller.login.key_sets import KeySets
from semel.controller.login.names import can_log_in, known_name
from semel.controller.login.scram_logins import ScramFacts, ScramLogins
from semel.controller.login.slowdown import Slowdown
from semel.protos.errors import InvalidRequest, SemelError, Throttled, Unauthenticated
from semel.protos.security.login_facts import PASSWORD, LoginFacts
from semel.protos.security.networks import host_of_peer
from semel.protos.security.passwords import PasswordChecks
from semel.protos.security.rules import Scope
from semel.protos.security.scram import read_first
from semel.protos.v1.login_pb2 import (
    BeginScramReply,
    BeginScramRequest,
    FinishScramReply,
    FinishScramRequest,
    LogInReply,
    LogInRequest,
)
from semel.protos.v1.login_pb2_grpc import LoginServicer

CHECKS_AT_ONCE: Final = 2
CHECKS_WAITING_MAX: Final = 64
RETRY_AFTER_MS: Final = 500
METHOD: Final = "/semel.protos.v1.Login/LogIn"
SCRAM: Final = "scram"
"""How the audit log calls a login by SCRAM."""
SCRAM_METHOD: Final = "/semel.protos.v1.Login/FinishScram"

Audit = Callable[[Mapping[str, str | int | bool]], None]


class LoginService(LoginServicer):
    """The methods of login.proto. Lives on the event loop."""

    def __init__(
        self,
        *,
        ca: ClientsCa,
        key_sets: KeySets,
        hash_of: Callable[[str], Awaitable[str | None]],
        scram_of: Callable[[str, str], Awaitable[ScramFacts]],
        checks: PasswordChecks,
        threads: Executor,
        audit: Audit,
        wall_s: Callable[[], float],
        login_ms_max: int,
        narrows: bool,
    ) -> None:
        """`hash_of` returns the hash of a user's password, None for none; `scram_of` is as for
        `ScramLogins`. Both raise NotMaster at a standby. `threads` are `CHECKS_AT_ONCE` threads for
        passwords. `narrows` says whether the cluster checks rights, so that a login can be
        narrowed."""
        self.logins = 0
        """Certificates that were issued."""
        self.refused = 0
        """Logins that were refused."""
        self._ca = ca
        self._key_sets = key_sets
        self._hash_of = hash_of
        self._checks = checks
        self._threads = threads
        self._audit = audit
        self._wall_s = wall_s
        self._login_ms_max = login_ms_max
        self._narrows = narrows
        self._slowdown = Slowdown()
        self._scram = ScramLogins(scram_of, self._slowdown, wall_s)
        self._rates = AttemptRates()
        self._waiting = 0

    async def LogIn(self, request: LogInRequest, context: Any) -> LogInReply:
        address = str(context.peer())
        way = PASSWORD if request.user or not request.token else "token"
        try:
            self._check_rate(host_of_peer(address))
            key = requested_key(request.signing_request)
            now_s = self._wall_s()
            limit_s = now_s + self._login_ms_max / 1000
            if way == PASSWORD:
                await self._check_password(request.user, request.password, host_of_peer(address))
                user, facts, until_s = request.user, LoginFacts(PASSWORD), limit_s
            elif request.password:
                raise InvalidRequest("a login has a token, or a user and a password, not both")
            else:
                token, way = await self._key_sets.verify(request.token, now_s)
                self._check_scopes(token.scopes)
                user, facts, until_s = token.user, LoginFacts(way, token.scopes), token.expires_s
            certificate = self._ca.issue(user, facts, key, now_s, min(until_s, limit_s))
        except SemelError as error:
            self.refused += 1
            self._note(address, METHOD, way, known_name(request.user), error.message)
            raise
        self.logins += 1
        self._note(address, METHOD, way, user, "")
        return LogInReply(certificate=certificate, ends_with_token=until_s < limit_s)

    async def BeginScram(self, request: BeginScramRequest, context: Any) -> BeginScramReply:
        try:
            self._check_rate(host_of_peer(str(context.peer())))
            key = requested_key(request.signing_request)
            answer = await self._scram.begin(request.mechanism, request.client_first, key)
        except SemelError:
            self.refused += 1
            raise
        return BeginScramReply(server_first=answer.encode())

    async def FinishScram(self, request: FinishScramRequest, context: Any) -> FinishScramReply:
        address = str(context.peer())
        host = host_of_peer(address)
        try:
            self._check_rate(host)
            key = requested_key(request.signing_request)
            user, answer = await self._scram.finish(
                request.mechanism, request.client_first, request.client_final, key, host
            )
            now_s = self._wall_s()
            until_s = now_s + self._login_ms_max / 1000
            certificate = self._ca.issue(user, LoginFacts(PASSWORD), key, now_s, until_s)
        except SemelError as error:
            self.refused += 1
            named = _named(request.client_first)
            self._note(address, SCRAM_METHOD, SCRAM, named, error.message)
            raise
        self.logins += 1
        self._note(address, SCRAM_METHOD, SCRAM, user, "")
        return FinishScramReply(server_final=answer.encode(), certificate=certificate)

    def _check_rate(self, address: str) -> None:
        """Raises Throttled."""
        if wait_ms := self._rates.attempt(address, asyncio.get_running_loop().time()):
            raise Throttled(
                "too many logins at once: come back", retry_after_ms=max(wait_ms, RETRY_AFTER_MS)
            )

    def _check_scopes(self, scopes: tuple[Scope, ...] | None) -> None:
        if scopes is not None and not self._narrows:
            raise Unauthenticated(
                "the token is narrowed to some rights, and this cluster checks none: start its"
                " nodes with --authorization"
            )

    async def _check_password(self, user: str, password: str, address: str) -> None:
        """Raises Unauthenticated for a wrong one, Throttled, and NotMaster at a standby."""
        if not can_log_in(user):
            raise _refusal()
        stored = await self._hash_of(user)
        if self._waiting >= CHECKS_WAITING_MAX:
            raise Throttled(
                "too many passwords are being checked: come back", retry_after_ms=RETRY_AFTER_MS
            )
        loop = asyncio.get_running_loop()
        if wait_ms := self._slowdown.attempt(user, address, int(loop.time() * 1000)):
            raise Throttled(
                f"too many wrong passwords: come back in {wait_ms} ms", retry_after_ms=wait_ms
            )
        self._waiting += 1
        try:
            right = await loop.run_in_executor(self._threads, self._checks.right, password, stored)
        finally:
            self._waiting -= 1
        if not right:
            raise _refusal()
        self._slowdown.on_right(user, address)

    def _note(self, address: str, method: str, way: str, user: str, reason: str) -> None:
        self._audit(
            {
                "who": f"user:{user}" if user else "",
                "from": address,
                "method": method,
                "login": way,
                "result": "refused" if reason else "logged in",
                **({"reason": reason} if reason else {}),
            }
        )


def _refusal() -> Unauthenticated:
    return Unauthenticated("no user has this name and this password")


def _named(client_first: bytes) -> str:
    """The user that a first message names, if that can be one."""
    try:
        return known_name(read_first(client_first).user)
    except InvalidRequest:
        return ""
