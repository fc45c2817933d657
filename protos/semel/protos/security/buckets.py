"""Token buckets: how long something has to wait so that no more than a rate passes.

How it works. A bucket fills at its rate up to what comes in `BURST_S` seconds. Whoever may pass at
once takes its cost out, even below zero: a batch is not divided. Whoever comes while it is below
zero waits until it is filled up to zero again. `reserve` takes the cost out before the wait, and
returns how much must have been filled by then. So those who wait pass in the order in which they
came, each after all costs before it; whoever gives up puts it back.

Invariants
1. Within a time T after the bucket was made, no more than (BURST_S + T) × rate, and one cost, has
   passed.
2. Those that reserve pass in the order in which they did.

Not here: whose bucket it is, and what costs what (`meters.py`). The clock is the caller's.
"""

from __future__ import annotations

from typing import Final

BURST_S: Final = 1.0
"""A bucket that nobody used holds what comes in this time."""


class Bucket:
    """One bucket. Times are seconds of one monotonic clock."""

    __slots__ = ("_at_s", "_filled", "_rate", "_reserved")

    def __init__(self, rate: float, now_s: float) -> None:
        """`rate` is so much a second, above 0. It begins full."""
        self._rate = rate
        self._filled = rate * BURST_S
        """All that was filled in up to `_at_s`."""
        self._reserved = 0.0
        """All that was taken out."""
        self._at_s = now_s

    @property
    def rate(self) -> float:
        """How much a second it gives."""
        return self._rate

    def set_rate(self, rate: float, now_s: float) -> None:
        """Fills at another rate from now on; what is owed stays owed."""
        self._fill(now_s)
        self._rate = rate
        self._cut()

    def wait_s(self, now_s: float) -> float:
        """Seconds after which something may pass; 0 for at once."""
        return self.left_s(self._reserved, now_s)

    def reserve(self, cost: float, now_s: float) -> float:
        """Takes `cost` out, and returns the mark from which on it may pass (`left_s`)."""
        self._fill(now_s)
        mark = self._reserved
        self._reserved += cost
        return mark

    def left_s(self, mark: float, now_s: float) -> float:
        """Seconds until what got `mark` may pass; 0 for at once."""
        self._fill(now_s)
        return max(0.0, (mark - self._filled) / self._rate)

    def put_back(self, cost: float) -> None:
        """What was reserved does not pass, or was less than reserved."""
        self._reserved -= cost
        self._cut()

    def is_full(self, now_s: float) -> bool:
        """Nothing of it is in use: a new bucket would be the same."""
        self._fill(now_s)
        return self._filled - self._reserved >= self._rate * BURST_S

    def _fill(self, now_s: float) -> None:
        if now_s > self._at_s:
            self._filled += (now_s - self._at_s) * self._rate
            self._at_s = now_s
            self._cut()

    def _cut(self) -> None:
        self._filled = min(self._filled, self._reserved + self._rate * BURST_S)
