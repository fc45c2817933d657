"""Guesses of secrets: how long each wrong one makes whoever guesses wait, and who counts as one.

Pure.

Not here: the counts themselves (the controllers' `login/slowdown.py`, the Kafka gateway's
`principals/attempts.py`).
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Final

_DOUBLINGS_MAX: Final = 30
_IPV6_BITS: Final = 64
"""One subscriber has so many addresses of IPv6 that they are counted as one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How one count turns into a wait."""

    free: int
    """Wrong attempts before there is any wait."""
    first_ms: int
    """The first wait; it doubles with each attempt."""
    most_ms: int

    def wait_ms(self, count: int) -> int:
        """Returns the wait after `count` attempts."""
        if count < self.free:
            return 0
        return min(self.first_ms << min(count - self.free, _DOUBLINGS_MAX), self.most_ms)


def origin_of(address: str) -> str:
    """Returns what counts as one origin: an address of IPv4, a subscriber's network of IPv6, or
    the text itself if it is no address."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped is not None:
            return str(found.ipv4_mapped)
        return str(ipaddress.ip_network((found, _IPV6_BITS), strict=False))
    return str(found)
