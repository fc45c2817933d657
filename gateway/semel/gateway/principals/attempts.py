"""Wrong proofs are answered late, and those who show many are not listened to. Pure.

How it works. The controllers slow guesses down by the address that they come from, and all clients
of a gateway come from its address there. So a gateway keeps those who guess from asking: after
`FREE` wrong proofs from one host each further one doubles the time in which nothing more from there
is looked at. The answer to a wrong proof waits as well, so that a program that tries in a loop does
so slowly. After a quiet time all is forgotten. A right proof takes nothing back: who has an account
could guess without limit otherwise.

Invariant: at most `HOSTS_MAX` hosts are kept; the one that failed least recently goes first.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

FREE: Final = 5
FIRST_S: Final = 1.0
MOST_S: Final = 60.0
QUIET_S: Final = 900.0
HOSTS_MAX: Final = 100_000
ANSWER_S: Final = 0.5
"""Seconds before a wrong proof is answered."""
_DOUBLINGS_MAX: Final = 10
_IPV6_BITS: Final = 64
"""One subscriber has so many addresses of IPv6 that they are counted as one."""


@dataclass(slots=True)
class _Count:
    wrong: int
    at_s: float
    """When the last one was."""


class Attempts:
    """Counts wrong proofs. Times are seconds on any clock that rises."""

    def __init__(self) -> None:
        self._counts: OrderedDict[str, _Count] = OrderedDict()

    def wait_s(self, host: str, now_s: float) -> float:
        """The seconds for which nothing from `host` is looked at; 0 if it is listened to."""
        key = _key(host)
        count = self._counts.get(key)
        if count is None:
            return 0.0
        if now_s - count.at_s >= QUIET_S:
            del self._counts[key]
            return 0.0
        if count.wrong < FREE:
            return 0.0
        wait = min(MOST_S, FIRST_S * 2.0 ** min(count.wrong - FREE, _DOUBLINGS_MAX))
        return max(0.0, count.at_s + wait - now_s)

    def on_wrong(self, host: str, now_s: float) -> None:
        """A proof from there was wrong."""
        key = _key(host)
        count = self._counts.setdefault(key, _Count(0, now_s))
        count.wrong += 1
        count.at_s = now_s
        self._counts.move_to_end(key)
        while len(self._counts) > HOSTS_MAX:
            self._counts.popitem(last=False)


def _key(host: str) -> str:
    try:
        found = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped is not None:
            return str(found.ipv4_mapped)
        return str(ipaddress.ip_network((found, _IPV6_BITS), strict=False))
    return str(found)
