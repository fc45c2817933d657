"""Token buckets: how long something has to wait so that no more than a rate passes.

How it works. A bucket fills at its rate up to what comes in `BURST_S` seconds. Whoever may pass at
once takes its cost out, even below zero: a batch is not divided. Whoever comes while it is below
zero waits until it is filled up to zero again. `reserve` takes the cost out before the wait, and
returns how much must have been filled by then: a *mark*. So those who wait pass in the order in
which they came, each after all costs before it. Whoever gives up puts its cost back, which leaves a
*gap* behind its mark: filling jumps over gaps, so that those behind it pass the sooner, and those
in front do not.

Invariants
1. Within a time T after the bucket was made, no more than (BURST_S + T) × rate, and one cost, has
   passed.
2. Those that reserve pass in the order in which they did.
3. Gaps are in order, and there is a cost that waits between any two of them and behind the last:
   they are no more than what waits.

Not here: whose bucket it is, and what costs what (`meters.py`). The clock is the caller's.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

BURST_S: Final = 1.0
"""A bucket that nobody used holds what comes in this time."""
ROUNDED_S: Final = 1e-9
"""Shorter waits come of rounding, and are none: no clock would get past them."""


class Bucket:
    """One bucket. Times are seconds of one monotonic clock."""

    __slots__ = ("_at_s", "_filled", "_gaps", "_rate", "_reserved")

    def __init__(self, rate: float, now_s: float) -> None:
        """`rate` is so much a second, above 0. It begins full."""
        self._rate = rate
        self._filled = rate * BURST_S
        """All that was filled in up to `_at_s`, and the gaps up to there."""
        self._reserved = 0.0
        """All that was taken out, and the gaps."""
        self._gaps: list[tuple[float, float]] = []
        """Begin and end of each gap that is not filled up to."""
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
        missing = mark - self._filled
        if missing > 0 and self._gaps:
            # What costs nothing may have its mark within a gap: it is behind a part of it alone.
            missing -= sum(min(end, mark) - begin for begin, end in self._gaps if begin < mark)
        left_s = missing / self._rate
        return left_s if left_s > ROUNDED_S else 0.0

    def put_back(self, mark: float, cost: float) -> None:
        """What got `mark` for `cost` does not pass."""
        begin, end, gaps = mark, mark + cost, self._gaps
        if begin == end:
            return
        at = bisect_left(gaps, (begin, end))
        if at < len(gaps) and gaps[at][0] == end:
            end = gaps.pop(at)[1]
        if at > 0 and gaps[at - 1][1] == begin:
            at -= 1
            begin = gaps.pop(at)[0]
        gaps.insert(at, (begin, end))
        self._jump()
        self._cut()

    def is_full(self, now_s: float) -> bool:
        """Nothing of it is in use: a new bucket would be the same."""
        self._fill(now_s)
        return self._filled - self._reserved >= self._rate * BURST_S

    def _fill(self, now_s: float) -> None:
        if now_s > self._at_s:
            self._filled += (now_s - self._at_s) * self._rate
            self._at_s = now_s
            if self._gaps:
                self._jump()
            self._cut()

    def _jump(self) -> None:
        """Over the gaps that are filled up to."""
        gaps = self._gaps
        while gaps and gaps[0][0] <= self._filled:
            begin, end = gaps.pop(0)
            self._filled += end - begin

    def _cut(self) -> None:
        self._filled = min(self._filled, self._reserved + self._rate * BURST_S)
