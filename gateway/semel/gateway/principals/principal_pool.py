"""Everybody who is logged in at this gateway: proofs in, principals out.

How it works. The gateway has no right to act for anybody. It shows the proof that a client has
shown at the controllers' port for logins, as the SDK does, and gets a certificate for a short time,
or a refusal. What the certificate says decides which principal the connection acts as. A client
opens several connections; a proof that was right is taken again without asking, until the
certificate that it brought has ended, and only while its principal is here. Proofs are remembered
by a digest under a key of this process.

With SCRAM the gateway has no proof to show again: it passes the client's two messages on, and gets
the certificate at the end of the exchange. So every connection asks the controllers, and its
session ends with the certificate, as with a token.

A principal ends when nobody has been connected for a while, when the controllers refuse to renew
its login, or when its certificate has ended; then its connections are closed.

Who shows something wrong waits for the answer, and who does so often is not listened to for a
while (`attempts.py`).

Invariants
1. No log, error or repr has a proof.
2. A proof is taken only if the controllers have said so within the life of a certificate.
3. At most `PRINCIPALS_MAX` principals are here, and `LOGINS_MAX` logins are under way.

Not here: what a proof looks like (`proofs.py`), one principal (`principal.py`).
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import os
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from semel.client.certified import Certified
from semel.client.client_file import LoginPlace
from semel.client.login import LoggedIn, Login
from semel.client.scram import ScramLogin
from semel.client.session import Session
from semel.gateway.coordination.group_service import GroupService
from semel.gateway.coordination.transaction_service import TransactionService
from semel.gateway.fetching.fetch import HELD_BYTES_MAX
from semel.gateway.principals.attempts import ANSWER_S, Attempts
from semel.gateway.principals.principal import Principal, PrincipalKey
from semel.gateway.principals.proofs import Mechanism, Proof
from semel.gateway.records import RecordCodec
from semel.gateway.services import Figures, Services, added, ended
from semel.protos.errors import InvalidRequest, Unauthenticated, Unavailable
from semel.protos.security.credentials import Security
from semel.protos.security.login_facts import login_facts_of
from semel.protos.security.scram import read_final, read_first

logger = logging.getLogger(__name__)

T = TypeVar("T")

PRINCIPALS_MAX: Final = 256
LOGINS_MAX: Final = 16
HOST_LOGINS_MAX: Final = 32
"""Different proofs from one host that are looked at together: more could be wrong before any is
counted."""
PROOFS_MAX: Final = 10_000
HELD_BYTES_MIN: Final = 2 << 20
"""Bytes that every principal's readers may keep for consumers to come."""
IDLE_S: Final = 60.0
"""Seconds without a connection after which a principal ends."""
LOGIN_S: Final = 10.0
"""Seconds for a login; clients wait for 30 s unless told otherwise."""
SWEEP_S: Final = 0.5
WRONG: Final = "wrong user or password, or a token that is not good here"


class Denied(Exception):
    """A proof is wrong, or not looked at. The message is for the client."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


@dataclass(frozen=True, slots=True)
class Entry:
    """A proof that was right."""

    principal: Principal
    until_s: float
    """Monotonic time until which it is taken without asking."""
    ends_s: float | None
    """When a session by it ends; None while the gateway can renew it."""


class PrincipalPool:
    """See the module's text. Lives on the client's I/O thread: `async with PrincipalPool(…)`."""

    def __init__(
        self,
        place: LoginPlace,
        bootstrap: str,
        codec: RecordCodec,
        groups: GroupService,
        transactions: TransactionService,
    ) -> None:
        """`place` says where the controllers log clients in."""
        self.logins = 0
        """Proofs that the controllers took."""
        self.denied = 0
        """Proofs that were wrong, or not looked at."""
        self._place = place
        self._bootstrap = bootstrap
        self._codec = codec
        self._groups = groups
        self._transactions = transactions
        self._secret = os.urandom(32)
        self._attempts = Attempts()
        self._room = asyncio.Semaphore(LOGINS_MAX)
        self._principals: dict[PrincipalKey, Principal] = {}
        self._entries: OrderedDict[bytes, Entry] = OrderedDict()
        """By the digest of the proof; added last at the end."""
        self._under_way: dict[bytes, asyncio.Task[Any]] = {}
        self._asking: Counter[str] = Counter()
        """Logins under way, by the host that they are for."""
        self._opening: dict[PrincipalKey, asyncio.Lock] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._ended = Figures()

    async def __aenter__(self) -> PrincipalPool:
        self._spawn(self._sweep())
        return self

    async def __aexit__(self, *exception: object) -> None:
        for task in [*self._tasks, *self._under_way.values()]:
            task.cancel()
        await asyncio.gather(*self._tasks, *self._under_way.values(), return_exceptions=True)
        principals = list(self._principals.values())
        self._principals.clear()
        await asyncio.gather(*(each.end("the gateway ends") for each in principals))

    @property
    def principals(self) -> int:
        return len(self._principals)

    @property
    def figures(self) -> Figures:
        """What the services of all principals have counted, also of those that have ended."""
        return added([self._ended, *(each.services.figures for each in self._principals.values())])

    async def log_in(self, proof: Proof, host: str) -> Entry:
        """Returns whom a proof is of. Raises Denied, and SemelError if nobody can tell."""
        digest = self._digest(proof)
        entry = self._entries.get(digest)
        if entry is not None and self._is_good(entry):
            return entry
        await self._check_patience(host)
        return await self._shown(digest, host, lambda: self._ask(proof, digest))

    async def begin_scram(
        self, mechanism: Mechanism, message: bytes, host: str
    ) -> tuple[ScramLogin, bytes]:
        """Returns an exchange that the client has begun, and the answer to its first message.
        Raises as `log_in`."""
        await self._check_patience(host)
        try:
            read_first(message)
        except InvalidRequest as error:
            raise await self.wrong(host, error.message) from None
        return await self._shown(os.urandom(16), host, lambda: self._begin(mechanism, message))

    async def finish_scram(
        self, mechanism: Mechanism, exchange: ScramLogin, message: bytes, host: str
    ) -> tuple[Entry, bytes]:
        """Returns whose proof the client's final message is, and the answer to it. Raises as
        `log_in`."""
        await self._check_patience(host)
        try:
            read_final(message)
        except InvalidRequest as error:
            raise await self.wrong(host, error.message) from None
        return await self._shown(
            os.urandom(16), host, lambda: self._finish(mechanism, exchange, message)
        )

    async def wrong(self, host: str, message: str) -> Denied:
        """Counts a wrong proof, and returns the refusal when it is time for it."""
        self.denied += 1
        self._attempts.on_wrong(host, time.monotonic())
        await asyncio.sleep(ANSWER_S)
        return Denied(message)

    # ------------------------------------------------------------------------------------- logins

    async def _check_patience(self, host: str) -> None:
        """Raises Denied for a host from where too many proofs were wrong."""
        if self._attempts.wait_s(host, time.monotonic()) > 0:
            self.denied += 1
            await asyncio.sleep(ANSWER_S)
            raise Denied("too many wrong logins: come back later")

    async def _shown(self, key: bytes, host: str, ask: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Shows something to the controllers; all that show the same at one time share a call.
        Raises Denied, and SemelError if nobody can tell."""
        task: asyncio.Task[T] | None = self._under_way.get(key)
        if task is None:
            if self._asking[host] >= HOST_LOGINS_MAX:
                raise Unavailable(f"{HOST_LOGINS_MAX} logins from {host} are under way")
            self._asking[host] += 1
            name = "semel-kafka-login"
            task = asyncio.get_running_loop().create_task(ask(), name=name)
            self._under_way[key] = task
            task.add_done_callback(lambda done: self._on_asked(key, host, done))
        try:
            return await asyncio.shield(task)
        except Unauthenticated as error:
            logger.info("login refused peer=%s error=%s", host, error.message)
            raise await self.wrong(host, WRONG) from None
        except InvalidRequest as error:  # a name that is none, and the like
            logger.info("login refused peer=%s error=%s", host, error.message)
            raise await self.wrong(host, WRONG) from None

    def _digest(self, proof: Proof) -> bytes:
        parts = (proof.mechanism.value, proof.user, proof.password, proof.token)
        text = "\0".join(f"{len(part)}:{part}" for part in parts)
        return hmac.digest(self._secret, text.encode(), hashlib.sha256)

    @staticmethod
    def _is_good(entry: Entry) -> bool:
        principal = entry.principal
        return not principal.ended and not principal.why_not and time.monotonic() < entry.until_s

    def _on_asked(self, key: bytes, host: str, done: asyncio.Task[Any]) -> None:
        del self._under_way[key]
        self._asking[host] -= 1
        if not self._asking[host]:
            del self._asking[host]
        if not done.cancelled():
            done.exception()  # whoever asked may be gone

    async def _ask(self, proof: Proof, digest: bytes) -> Entry:
        """Shows a proof at the controllers. Raises SemelError."""
        async with self._room:
            logged_in = await asyncio.to_thread(LoggedIn, self._login_of(proof))
            await logged_in.start(LOGIN_S)
        key = _key_of(logged_in, proof.mechanism)
        if proof.user not in ("", key.user):
            raise Unauthenticated("the token is another user's than the one that was named")
        principal, until_s = await self._taken(key, logged_in)
        renewed = proof.mechanism is Mechanism.PLAIN
        entry = Entry(principal, until_s, None if renewed else until_s)
        if renewed:  # an earlier password is good for nobody any more
            for other in [key for key, one in self._entries.items() if one.principal is principal]:
                del self._entries[other]
        self._entries[digest] = entry
        while len(self._entries) > PROOFS_MAX:
            self._entries.popitem(last=False)
        return entry

    async def _begin(self, mechanism: Mechanism, message: bytes) -> tuple[ScramLogin, bytes]:
        """Raises SemelError."""
        async with self._room:
            exchange = await asyncio.to_thread(ScramLogin, self._place, mechanism.value)
            return exchange, await exchange.begin(message, LOGIN_S)

    async def _finish(
        self, mechanism: Mechanism, exchange: ScramLogin, message: bytes
    ) -> tuple[Entry, bytes]:
        """Raises SemelError."""
        async with self._room:
            answer = await exchange.finish(message, LOGIN_S)
        principal, until_s = await self._taken(_key_of(exchange, mechanism), exchange)
        return Entry(principal, until_s, until_s), answer

    async def _taken(self, key: PrincipalKey, logged_in: Certified) -> tuple[Principal, float]:
        """Returns the principal of a login that the controllers took, and the monotonic time at
        which its certificate ends. Raises SemelError."""
        self.logins += 1
        lasts_s = logged_in.current().expires_at - time.time()
        principal = await self._principal(key, logged_in)
        return principal, time.monotonic() + lasts_s

    def _login_of(self, proof: Proof) -> Login:
        if proof.mechanism is Mechanism.PLAIN:
            return self._place.login(user=proof.user, password=proof.password)
        return self._place.login(token=proof.token)

    async def _principal(self, key: PrincipalKey, logged_in: Certified) -> Principal:
        """Returns the principal that somebody has logged in as. Raises SemelError."""
        lock = self._opening.setdefault(key, asyncio.Lock())
        async with lock:
            known = self._principals.get(key)
            if known is not None and not known.ended:
                known.logged_in.take_over(logged_in)
                return known
            self._make_room()
            session = Session(
                self._bootstrap, {"security": Security(logged_in), "keep_routes": False}
            )
            await session.open()
            session.cluster.spawn(logged_in.run(), "semel-login")
            services = Services(
                session, self._codec, self._groups, self._transactions, self._held_bytes_max
            )
            services.start()
            principal = self._principals[key] = Principal(key, logged_in, session, services)
            return principal

    def _held_bytes_max(self) -> int:
        """The bytes that one principal's readers may keep: its share of what all may."""
        return max(HELD_BYTES_MIN, HELD_BYTES_MAX // max(1, len(self._principals)))

    def _make_room(self) -> None:
        """Raises Unavailable if there are too many principals, and all are connected."""
        if len(self._principals) < PRINCIPALS_MAX:
            return
        idle = [each for each in self._principals.values() if not each.connections]
        if not idle:
            raise Unavailable(f"{PRINCIPALS_MAX} users are connected, and no more can be")
        self._end(min(idle, key=lambda each: each.left_s), "another one needs its place")

    # --------------------------------------------------------------------------------------- ends

    def _end(self, principal: Principal, reason: str) -> None:
        del self._principals[principal.key]
        for digest in [key for key, one in self._entries.items() if one.principal is principal]:
            del self._entries[digest]
        self._spawn(self._close(principal, reason))

    async def _close(self, principal: Principal, reason: str) -> None:
        await principal.end(reason)
        self._ended = added([self._ended, ended(principal.services.figures)])

    async def _sweep(self) -> None:
        """Ends principals whose time has come."""
        while True:
            await asyncio.sleep(SWEEP_S)
            now_s = time.monotonic()
            for principal in list(self._principals.values()):
                if reason := principal.why_not:
                    logger.warning("login ended user=%s reason=%s", principal.key.user, reason)
                    self._end(principal, reason)
                elif not principal.connections and now_s - principal.left_s > IDLE_S:
                    self._end(principal, "nobody is connected")

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine, name="semel-kafka-principals")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _key_of(logged_in: Certified, mechanism: Mechanism) -> PrincipalKey:
    from cryptography import x509

    loaded = logged_in.current()
    certificate = x509.load_pem_x509_certificate(loaded.certificate)
    return PrincipalKey(loaded.identity.name, mechanism, login_facts_of(certificate))
