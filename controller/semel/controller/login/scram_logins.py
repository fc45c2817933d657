"""Exchanges of SCRAM at the port for logins: two calls, and nothing is kept between them.

How it works. The first call names a user. Its answer has the salt and rounds of the user's
verifier, or of one that is made up for a user who has none, so nobody learns who exists. The second
call has the proof. What the answer to the first call has said is made anew from the verifier; if
that was changed meanwhile, the proof is wrong.

An exchange is bound to its mechanism, the first message and the key for which a certificate is
wanted (`scram_nonces.py`). Wrong proofs are slowed down together with wrong passwords.

Invariants
1. A user who does not exist, one who has no verifier, and a wrong proof get one and the same error,
   after the same work.
2. Every proof is counted before it is looked at.

Not here: the service (`login_service.py`), the messages (`scram.py` of the protos).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from semel.controller.login.names import can_log_in
from semel.controller.login.scram_nonces import RANDOM_BYTES, is_good, new_nonce
from semel.controller.login.slowdown import Slowdown
from semel.protos.errors import InvalidRequest, Throttled, Unauthenticated
from semel.protos.security.scram import (
    HASHES,
    ClientFirst,
    Verifier,
    final_answer,
    first_answer,
    nobodys_verifier,
    read_final,
    read_first,
    server_nonce_of,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScramFacts:
    """A user's verifier for one mechanism, and what all exchanges share."""

    secret: bytes = field(repr=False)
    """The same for all users, and at all controllers; empty while no user has a verifier."""
    verifier: Verifier | None = None
    """None for a user who has none, or does not exist."""


class ScramLogins:
    """See the module's text. Lives on the event loop."""

    def __init__(
        self,
        facts_of: Callable[[str, str], Awaitable[ScramFacts]],
        slowdown: Slowdown,
        wall_s: Callable[[], float],
    ) -> None:
        """`facts_of` gets a user and a mechanism, and raises NotMaster at a standby."""
        self._facts_of = facts_of
        self._slowdown = slowdown
        self._wall_s = wall_s

    async def begin(self, mechanism: str, message: bytes, key: ec.EllipticCurvePublicKey) -> str:
        """Answers a first message. Raises InvalidRequest, NotMaster, and Unauthenticated while no
        user can log in by SCRAM."""
        first = _first(mechanism, message)
        facts = await self._facts(mechanism, first)
        nonce = new_nonce(
            facts.secret,
            _bound_to(mechanism, message, key),
            self._wall_s(),
            os.urandom(RANDOM_BYTES),
        )
        nobodys = nobodys_verifier(facts.secret, mechanism, first.user)
        return first_answer(first, nonce, facts.verifier or nobodys)

    async def finish(
        self,
        mechanism: str,
        first_message: bytes,
        final_message: bytes,
        key: ec.EllipticCurvePublicKey,
        address: str,
    ) -> tuple[str, str]:
        """Returns the user that has proved who it is, and the answer to the final message. Raises
        InvalidRequest, Throttled, NotMaster, and Unauthenticated."""
        first, final = _first(mechanism, first_message), read_final(final_message)
        facts = await self._facts(mechanism, first)
        bound_to = _bound_to(mechanism, first_message, key)
        if not is_good(facts.secret, bound_to, self._wall_s(), server_nonce_of(first, final)):
            raise Unauthenticated(
                "this exchange of SCRAM was not begun here, or too long ago: begin again"
            )
        now_ms = int(asyncio.get_running_loop().time() * 1000)
        if wait_ms := self._slowdown.attempt(first.user, address, now_ms):
            raise Throttled(
                f"too many wrong passwords: come back in {wait_ms} ms", retry_after_ms=wait_ms
            )
        nobodys = nobodys_verifier(facts.secret, mechanism, first.user)
        answer = final_answer(mechanism, facts.verifier or nobodys, first, final)
        if facts.verifier is None or answer is None:
            raise _refusal()
        self._slowdown.on_right(first.user, address)
        return first.user, answer

    async def _facts(self, mechanism: str, first: ClientFirst) -> ScramFacts:
        facts = await self._facts_of(first.user, mechanism)
        if not facts.secret:
            raise _refusal()
        return facts


def _first(mechanism: str, message: bytes) -> ClientFirst:
    if mechanism not in HASHES:
        raise InvalidRequest(f"there is no such mechanism; known are {', '.join(HASHES)}")
    first = read_first(message)
    if not can_log_in(first.user):
        raise _refusal()
    return first


def _bound_to(
    mechanism: str, first_message: bytes, key: ec.EllipticCurvePublicKey
) -> tuple[bytes, ...]:
    der = key.public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return mechanism.encode(), first_message, der


def _refusal() -> Unauthenticated:
    return Unauthenticated("no user has this name and this password, or not for SCRAM")
