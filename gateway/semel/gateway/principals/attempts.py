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

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from semel.protos.security.guesses import Patience, origin_of

FREE: Final = 5
FIRST_S: Final = 1.0
MOST_S: Final = 60.0
QUIET_S: Final = 900.0
HOSTS_MAX: Final = 100_000
ANSWER_S: Final = 0.5
"""Seconds before a wrong proof is answered."""
_PATIENCE: Final = Patience(free=FREE, first_ms=round(FIRST_S * 1000), most_ms=round(MOST_S * 1000))


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
        key = origin_of(host)
        count = self._counts.get(key)
        if count is None:
            return 0.0
        if now_s - count.at_s >= QUIET_S:
            del self._counts[key]
            return 0.0
        return max(0.0, count.at_s + _PATIENCE.wait_ms(count.wrong) / 1000 - now_s)

    def on_wrong(self, host: str, now_s: float) -> None:
        """A proof from there was wrong."""
        key = origin_of(host)
        count = self._counts.setdefault(key, _Count(0, now_s))
        count.wrong += 1
        count.at_s = now_s
        self._counts.move_to_end(key)
        while len(self._counts) > HOSTS_MAX:
            self._counts.popitem(last=False)
