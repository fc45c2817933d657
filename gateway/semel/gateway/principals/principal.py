"""One client of the cluster for everybody who has logged in as the same: its rights, its quotas.

How it works. A principal is a user, and what the login narrows it to: two tokens of one user with
different rights are two principals. It has a client of its own, with the certificate of its login,
and so its own producers, readers and streams. Brokers and controllers judge it as any client that
has logged in, and nothing that another principal has read or asked is shown to it. The gateway
renews the certificate with the proof that it was given, for as long as somebody is connected.

Invariants
1. A principal that has ended has no connections.
2. Its certificate is good, or it ends.

Not here: which principals there are (`principal_pool.py`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import NamedTuple

from semel.client import AsyncClient
from semel.client.certified import Certified
from semel.client.session import Session
from semel.gateway.coordination.callers import Caller
from semel.gateway.principals.proofs import Mechanism
from semel.gateway.services import Services
from semel.protos.errors import SemelError, Unauthenticated
from semel.protos.security.login_facts import LoginFacts

logger = logging.getLogger(__name__)

End = Callable[[str], None]
"""Ends a connection, with a reason."""


class PrincipalKey(NamedTuple):
    """A user, how it logged in, and to what that is narrowed."""

    user: str
    mechanism: Mechanism
    facts: LoginFacts


class Principal:
    """See the module's text. Lives on the client's I/O thread."""

    def __init__(
        self, key: PrincipalKey, logged_in: Certified, session: Session, services: Services
    ) -> None:
        self.key = key
        self.logged_in = logged_in
        self.client = AsyncClient(session)
        self.caller = Caller(self.client, checks=True)
        self.services = services
        self.ended = False
        self.left_s = time.monotonic()
        """When the last connection left."""
        self._session = session
        self._connections: dict[object, End] = {}

    @property
    def connections(self) -> int:
        return len(self._connections)

    def join(self, connection: object, end: End) -> None:
        """A connection acts as this principal from now on."""
        self._connections[connection] = end

    def leave(self, connection: object) -> None:
        """A connection is gone."""
        self._connections.pop(connection, None)
        self.left_s = time.monotonic()

    @property
    def why_not(self) -> str:
        """Why it has to end; empty if it may go on."""
        if self.logged_in.refusal is not None:
            return f"the login is refused from now on: {self.logged_in.refusal.message}"
        try:
            self.logged_in.current()
        except Unauthenticated as error:
            return error.message
        return ""

    async def end(self, reason: str) -> None:
        """Ends its connections, and then its client."""
        self.ended = True
        connections, self._connections = list(self._connections.values()), {}
        for end in connections:
            end(reason)
        self.services.close()
        try:
            await self._session.close()
        except SemelError as error:
            logger.info("a principal's client did not close error=%s", error.message)
