"""SASL on one connection: what is served when, and what each message leads to. Pure.

| state | ApiVersions | SaslHandshake | SaslAuthenticate, or a bare message | everything else |
|---|---|---|---|---|
| BEGUN | served | a known mechanism: CHOSEN, an unknown one: FAILED | FAILED | FAILED |
| CHOSEN | served | FAILED | CHECKING | FAILED |
| HALFWAY | served | FAILED | CHECKING | FAILED |
| CHECKING | FAILED | FAILED | FAILED | FAILED |
| KNOWN | served | its mechanism again: CHOSEN, another one: FAILED | FAILED | served |
| FAILED | FAILED | FAILED | FAILED | FAILED |

A connection that is KNOWN goes back to CHOSEN when the client authenticates again (KIP-368); it has
to be the same client then. Nothing but the authentication is served until that is done. A session
that has ended leaves only the authentication and ApiVersions.

A mechanism with two messages of the client (SCRAM) goes from CHECKING to HALFWAY once the first
message is answered.

*Bare messages.* After a SaslHandshake of version 0 the client's messages are frames without a head
of Kafka, and so are the answers; there is no error code, and a wrong one ends the connection.

Invariants
1. `may_serve` is true for ApiVersions and SASL's own requests alone, unless somebody has proved who
   they are and the session has not ended.
2. FAILED is the end: the connection is closed once the answer is sent.
3. The client that is known is the same from the first authentication on.

Not here: the messages (`proofs.py`), whether they are right (`principal_pool.py`).
"""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum
from typing import Final

from semel.gateway.principals.proofs import Mechanism
from semel.gateway.versions import ApiKey

OPEN_KEYS: Final = frozenset({ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE})
"""All that is served before somebody has proved who they are."""


class State(Enum):
    """See the module's text."""

    BEGUN = "begun"
    CHOSEN = "chosen"
    HALFWAY = "halfway"
    CHECKING = "checking"
    KNOWN = "known"
    FAILED = "failed"


class OutOfOrder(Exception):
    """A message came when it may not."""


class SaslState:
    """See the module's text. Times are seconds on any clock that rises."""

    def __init__(self, mechanisms: Collection[Mechanism]) -> None:
        self.state = State.BEGUN
        self.bare = False
        """The next frame is a bare message."""
        self.name = ""
        """The user that has logged in; it stays the same when it logs in again."""
        self.ends_s: float | None = None
        """When the session ends; None for never."""
        self.mechanism: Mechanism | None = None
        self._mechanisms = mechanisms
        self._was_bare = False
        """The message that is being checked was."""

    @property
    def wants_bare(self) -> bool:
        """Whether the next frame is a message without a header of Kafka."""
        return self.bare and self.state in (State.CHOSEN, State.HALFWAY)

    def may_serve(self, key: ApiKey, now_s: float) -> bool:
        """Whether a request of this API is served now."""
        if self.state in (State.FAILED, State.CHECKING):
            return False
        if key in OPEN_KEYS:
            return True
        return self.state is State.KNOWN and (self.ends_s is None or now_s < self.ends_s)

    def on_handshake(self, mechanism: str, version: int) -> bool:
        """The client chooses a mechanism; returns whether there is such a one. Raises OutOfOrder,
        also for another mechanism than before."""
        if self.state not in (State.BEGUN, State.KNOWN):
            self._fail("a SaslHandshake may not follow the one before")
        found = next((each for each in self._mechanisms if each.value == mechanism), None)
        if found is None:
            self.state = State.FAILED
            return False
        if self.mechanism not in (None, found):
            self._fail("a client authenticates again by the same mechanism")
        self.mechanism = found
        self.state = State.CHOSEN
        self.bare = version == 0
        return True

    def on_message(self, *, bare: bool) -> Mechanism:
        """A message of the mechanism has come, which has to be checked. Raises OutOfOrder."""
        if self.state not in (State.CHOSEN, State.HALFWAY) or bare is not self.bare:
            self._fail("SaslAuthenticate follows a SaslHandshake of version 1")
        assert self.mechanism is not None
        self.state = State.CHECKING
        self._was_bare, self.bare = self.bare, False
        return self.mechanism

    def on_more(self) -> None:
        """The first of two messages is answered."""
        assert self.state is State.CHECKING
        self.state, self.bare = State.HALFWAY, self._was_bare

    def on_right(self, name: str, ends_s: float | None) -> bool:
        """The message was right; returns False if it is another client's than before."""
        assert self.state is State.CHECKING
        if self.name not in ("", name):
            self.state = State.FAILED
            return False
        self.state, self.name, self.ends_s = State.KNOWN, name, ends_s
        return True

    def on_wrong(self) -> None:
        """The message was wrong."""
        self.state = State.FAILED

    def _fail(self, why: str) -> None:
        self.state = State.FAILED
        raise OutOfOrder(why)
