"""How many logins a second are looked at: from one address, and in all.

How it works. Every login costs a signature or two on the controller's event loop, whoever makes it
and whatever it proves. So each takes one out of its address's bucket and one out of that of all;
while one of these is empty, it is refused before anything of it is looked at.

Invariants
1. `attempt` either counts or returns how long to wait, never both.
2. At most `addresses_max` buckets are kept; the one that was used least recently goes first.

Not here: wrong passwords, which are slowed down much more (`slowdown.py`).
"""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import Final

from semel.protos.security.buckets import Bucket

PER_ADDRESS: Final = 100.0
"""Logins a second from one address, behind which many programs may stand."""
IN_ALL: Final = 200.0
"""Logins a second in all: about a fifth of what a controller can compute."""
ADDRESSES_MAX: Final = 10_000


class AttemptRates:
    """Counts logins; times are seconds of one monotonic clock."""

    def __init__(self, addresses_max: int = ADDRESSES_MAX) -> None:
        self._addresses_max = addresses_max
        self._in_all = Bucket(IN_ALL, 0.0)
        self._of: OrderedDict[str, Bucket] = OrderedDict()
        """By address; used least recently first."""

    def attempt(self, address: str, now_s: float) -> int:
        """Counts a login and returns 0; or returns the milliseconds to wait before it may be
        made."""
        bucket = self._of.get(address)
        if bucket is None:
            bucket = self._of[address] = Bucket(PER_ADDRESS, now_s)
            if len(self._of) > self._addresses_max:
                self._of.popitem(last=False)
        self._of.move_to_end(address)
        wait_s = max(bucket.wait_s(now_s), self._in_all.wait_s(now_s))
        if wait_s > 0:
            return math.ceil(wait_s * 1000)
        for each in (bucket, self._in_all):
            each.reserve(1, now_s)
        return 0
