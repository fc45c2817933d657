"""The rate of a pull: how long to wait before more is asked for.

Not here: pulls (`snapshots/pull.py`, `snapshots/id_pull.py`).
"""

from __future__ import annotations

from typing import Final

_BURST_S: Final = 0.1
"""Time that was not used counts for this long."""


class Pace:
    """Keeps a stream of bytes at or below its rate."""

    def __init__(self, bytes_per_second: int) -> None:
        self._rate = bytes_per_second
        self._due_s = 0.0

    def wait_s(self, received: int, now_s: float) -> float:
        """Seconds to wait after so many bytes more; not above 0 if none."""
        self._due_s = max(self._due_s, now_s - _BURST_S) + received / self._rate
        return self._due_s - now_s
