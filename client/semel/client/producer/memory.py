"""The limit on unacknowledged messages that all producers of a client share.

How it works. Every producer reports how its own buffer has grown or shrunk, once per chunk and not
once per message. Each may hold as many bytes as are still free. So a single producer takes half of
the limit; beside one that cannot send its messages, a second one takes half of the rest, and so on.
A later producer always finds something free (dynamic thresholds, A. Choudhury and E. Hahne,
IEEE/ACM Transactions on Networking 6(2), 1998, with a factor of 1).

Invariants
1. `held` is the sum of the reports. It exceeds `limit` by at most one chunk or bulk piece per
   producer.
2. Every waiting producer is woken when bytes become free.
3. A condition's lock may be held while this one's is taken, never the other way round.

Not here: one producer's own limit and what waiting means (`producer/intake.py`).
"""

from __future__ import annotations

import threading
from typing import Final

UNLIMITED: Final = 1 << 62


class ProducerMemory:
    """The bytes held by the producers of one client. Any thread may call it."""

    def __init__(self, limit: int = UNLIMITED) -> None:
        self.limit = limit
        """In bytes."""
        self.held = 0
        self._lock = threading.Lock()
        self._waiting: dict[threading.Condition, None] = {}

    def admit(self, buffer_bytes: int) -> None:
        """Registers a producer with a limit of its own; a large one raises the limit of all."""
        with self._lock:
            self.limit = max(self.limit, 2 * buffer_bytes)

    def has_room(self, own: int) -> bool:
        """Whether a producer that holds `own` bytes may take in more."""
        return own < self.limit - self.held

    def add(self, size: int) -> list[threading.Condition]:
        """Adds `size` bytes, which may be negative. Returns the conditions to notify, with no lock
        held."""
        with self._lock:
            self.held += size
            return list(self._waiting) if size < 0 and self.held < self.limit else []

    def begin_wait(self, condition: threading.Condition) -> None:
        """Has `add` return the condition from now on. Call it before checking for room."""
        with self._lock:
            self._waiting[condition] = None

    def end_wait(self, condition: threading.Condition) -> None:
        with self._lock:
            self._waiting.pop(condition, None)
