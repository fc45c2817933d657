"""SASL at one connection: requests in, the state machine and the pool asked, the connection closed
after a refusal.

Invariants
1. The connection acts as a principal only while it is among the principal's connections.
2. A little after a refusal is answered, the connection closes; nothing is read from it any more.

Not here: the order of messages (`sasl_state.py`), who is right (`principal_pool.py`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Final, Protocol

from semel.client.scram import ScramLogin
from semel.gateway.principals.principal import Principal
from semel.gateway.principals.principal_pool import Denied, Entry, PrincipalPool
from semel.gateway.principals.proofs import PROOF_BYTES_MAX, BadProof, Mechanism, read_proof
from semel.gateway.principals.sasl_state import OutOfOrder, SaslState
from semel.gateway.principals.sasl_verdict import Verdict
from semel.gateway.versions import ApiKey
from semel.protos.errors import InvalidRequest, SemelError

FRAME_BYTES_MAX: Final = PROOF_BYTES_MAX + 4_096
"""Bytes of a request before somebody has proved who they are."""
PATIENCE_S: Final = 30.0
"""Seconds for that."""


class GatedConnection(Protocol):
    """What the gate does with its connection."""

    host: str

    def close(self, reason: str = "") -> None:
        """Closes it at once."""

    def drain(self) -> None:
        """Closes it once everything that was begun is answered."""


class SaslGate:
    """See the module's text. Lives on the event loop of its connection."""

    def __init__(
        self,
        connection: GatedConnection,
        pool: PrincipalPool,
        mechanisms: Sequence[Mechanism],
    ) -> None:
        self.principal: Principal | None = None
        self.mechanisms = tuple(each.value for each in mechanisms)
        self._connection = connection
        self._pool = pool
        self._state = SaslState(mechanisms)
        self._exchange: ScramLogin | None = None
        """SCRAM, between the client's two messages."""
        self._made_s = time.monotonic()

    @property
    def frame_bytes_max(self) -> int | None:
        """The most bytes of a request; None for the usual limit."""
        return FRAME_BYTES_MAX if self.principal is None else None

    @property
    def wants_bare(self) -> bool:
        """Whether the next frame is a message without a header of Kafka."""
        return self._state.wants_bare

    def sweep(self, now_s: float) -> None:
        """Closes the connection if nobody logs in, or if the session has ended."""
        ends_s = self._state.ends_s
        if self.principal is None:
            if now_s - self._made_s > PATIENCE_S:
                self._connection.close(f"nobody has logged in for {PATIENCE_S:.0f} s")
        elif ends_s is not None and now_s >= ends_s:
            self._connection.close()

    def check(self, key: ApiKey) -> None:
        """Raises InvalidRequest for a request that may not be served now."""
        if not self._state.may_serve(key, time.monotonic()):
            if self.principal is not None:
                raise InvalidRequest("the session has ended, or is being renewed")
            raise InvalidRequest(f"{key.name} before a login: clients of this gateway use SASL")

    def handshake(self, mechanism: str, version: int) -> bool:
        """The client chooses a mechanism; returns whether there is such a one."""
        try:
            known = self._state.on_handshake(mechanism, version)
        except OutOfOrder:
            known = False
        if not known:
            self._connection.drain()
        return known

    async def authenticate(self, message: bytes | memoryview, *, bare: bool = False) -> Verdict:
        """The client proves who it is."""
        verdict = await self._judge(message, bare=bare)
        if verdict.refusal:
            self._connection.drain()
        return verdict

    async def _judge(self, message: bytes | memoryview, *, bare: bool) -> Verdict:
        try:
            mechanism = self._state.on_message(bare=bare)
        except OutOfOrder as error:
            return Verdict(str(error), out_of_order=True)
        try:
            entry, answer = await self._ask(mechanism, message)
        except Denied as denied:
            self._state.on_wrong()
            return Verdict(denied.message)
        except SemelError as error:  # the client has done nothing wrong, and comes again
            self._state.on_wrong()
            self._connection.close(f"nobody can be logged in: {error.message}")
            return Verdict(error.message)
        except asyncio.CancelledError:
            self._state.on_wrong()
            raise
        if entry is None:
            self._state.on_more()
            return Verdict(answer=answer)
        return self._on_proved(entry, answer)

    async def _ask(
        self, mechanism: Mechanism, message: bytes | memoryview
    ) -> tuple[Entry | None, bytes]:
        """Returns who it is and the mechanism's answer; None for the first message of two. Raises
        Denied, and SemelError if nobody can tell."""
        host = self._connection.host
        if not mechanism.is_scram:
            try:
                proof = read_proof(mechanism, message)
            except BadProof as error:
                raise await self._pool.wrong(host, str(error)) from None
            return await self._pool.log_in(proof, host), b""
        exchange, self._exchange = self._exchange, None
        if exchange is None:
            self._exchange, answer = await self._pool.begin_scram(mechanism, bytes(message), host)
            return None, answer
        return await self._pool.finish_scram(mechanism, exchange, bytes(message), host)

    def _on_proved(self, entry: Entry, answer: bytes) -> Verdict:
        principal = entry.principal
        if principal.ended:
            self._state.on_wrong()
            self._connection.close("the login has ended at once")
            return Verdict("the login has ended")
        if not self._state.on_right(principal.key.user, entry.ends_s):
            return Verdict("a client stays who it is: this proof is another one's")
        if self.principal is not principal:
            if self.principal is not None:
                self.principal.leave(self)
            self.principal = principal
            principal.join(self, self._connection.close)
        if entry.ends_s is None:
            return Verdict(answer=answer)
        lifetime_ms = max(1, int((entry.ends_s - time.monotonic()) * 1000))
        return Verdict(lifetime_ms=lifetime_ms, answer=answer)

    def on_lost(self) -> None:
        """The connection is gone."""
        self._state.on_wrong()
        if self.principal is not None:
            self.principal.leave(self)
