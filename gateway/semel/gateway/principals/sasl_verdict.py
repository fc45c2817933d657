"""What handlers see of SASL at one connection. Pure."""

from __future__ import annotations

from typing import NamedTuple, Protocol


class Verdict(NamedTuple):
    """The answer to a message of a client that logs in."""

    refusal: str = ""
    """Why it is refused, for the client; empty if it is right."""
    out_of_order: bool = False
    """It is refused because it may not come now."""
    lifetime_ms: int = 0
    """Milliseconds until it has to be proved again; 0 for never, and while it is not proved."""
    answer: bytes = b""
    """The mechanism's own answer."""


class Gate(Protocol):
    """SASL at one connection."""

    mechanisms: tuple[str, ...]
    """The names of those that are offered."""

    def handshake(self, mechanism: str, version: int) -> bool:
        """The client chooses a mechanism; returns whether there is such a one."""

    async def authenticate(self, message: bytes | memoryview) -> Verdict:
        """The client proves who it is."""
