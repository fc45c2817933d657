"""The load of this node: rates per second, computed from counters.

How it works. Each report calls `sample`; a rate is the difference to a sample that is at least
`WINDOW_S` old, so that it is a mean over seconds and not the noise of one report's interval.

Not here: the counters (`server/produce.py`, `server/fetch.py`), decisions by load (the controller).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, fields
from typing import Final

WINDOW_S: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """Totals since the node's start, which never fall, or their rates per second."""

    produced_messages: int = 0
    produced_bytes: int = 0
    fetched_messages: int = 0
    fetched_bytes: int = 0


_NAMES: Final = tuple(field.name for field in fields(Counters))


class LoadMeter:
    """Computes rates per second from the totals."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, Counters]] = deque()

    def sample(self, now_s: float, counters: Counters) -> Counters:
        """Takes the totals at the monotonic time `now_s`; returns the growth of each per second."""
        samples = self._samples
        samples.append((now_s, counters))
        while len(samples) > 2 and now_s - samples[1][0] >= WINDOW_S:
            samples.popleft()
        since_s, before = samples[0]
        seconds = now_s - since_s
        if seconds <= 0:
            return Counters()
        return Counters(
            **{
                name: round((getattr(counters, name) - getattr(before, name)) / seconds)
                for name in _NAMES
            }
        )
