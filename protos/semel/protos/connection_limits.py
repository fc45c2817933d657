"""How many connections a port has, from each address and in all.

How it works. A port asks for each new connection whether it may stay, and says when one is gone.
The newest one is refused, so that a flood does not end what others have.

Not here: ports of gRPC, which accepts by itself (`grpc_port.py`).
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass

from semel.protos.seldom import Seldom

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """Limits of each port; 0 is no limit."""

    per_address_max: int = 0
    """Connections from one IP address."""
    in_all_max: int = 0
    """Connections from anywhere."""


class Connections:
    """The connections at one port. Lives on one thread."""

    def __init__(self, limits: ConnectionLimits, port: str) -> None:
        """`port` says in the log which one it is."""
        self.limits = limits
        self.refused = 0
        """Connections that were refused so far."""
        self._port = port
        self._hosts: dict[Hashable, str] = {}
        self._counts: Counter[str] = Counter()
        self._log = Seldom(logger)

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._hosts)

    def admit(self, connection: Hashable, host: str) -> bool:
        """Whether a new connection from the IP address `host` may stay. It counts until `release`
        if it may."""
        limits = self.limits
        if limits.in_all_max and len(self._hosts) >= limits.in_all_max:
            return self._refuse(host, f"{len(self._hosts):,} connections are all that may be")
        if limits.per_address_max and self._counts[host] >= limits.per_address_max:
            most = f"{self._counts[host]:,} connections are all that one address may have"
            return self._refuse(host, most)
        self._hosts[connection] = host
        self._counts[host] += 1
        return True

    def release(self, connection: Hashable) -> None:
        """The connection is gone; one that was refused, or is not known, makes no difference."""
        host = self._hosts.pop(connection, None)
        if host is not None:
            self._counts[host] -= 1
            if not self._counts[host]:
                del self._counts[host]

    def _refuse(self, host: str, why: str) -> bool:
        self.refused += 1
        if not self._counts[host]:
            del self._counts[host]
        self._log.warning("connections refused port=%s from=%s reason=%s", self._port, host, why)
        return False
