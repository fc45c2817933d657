"""What all producers of a client together may hold that is not acknowledged.

How it works. Every producer says how its own buffer has grown or shrunk, once a chunk, never once a
message. Each may hold as much as is still free: a producer alone takes half of the limit, beside
one that does not get rid of its messages a second one half of the rest, and so on, so that whoever
comes later finds something free (dynamic thresholds, A. Choudhury and E. Hahne, IEEE/ACM
Transactions on Networking 6(2), 1998, with a factor of 1).

Invariants
1. `held` is the sum of what was told; it exceeds `limit` by at most one chunk or bulk piece a
   producer.
2. Whoever waits is woken when something becomes free.
3. A condition's lock may be held while this one's is taken, never the other way round.

Not here: one producer's own limit and what waiting means (`intake.py`).
"""

from __future__ import annotations

import threading
from typing import Final

UNLIMITED: Final = 1 << 62


class ProducerMemory:
    """Shared by the producers of one client; any thread."""

    def __init__(self, limit: int = UNLIMITED) -> None:
        self.limit = limit
        """In bytes."""
        self.held = 0
        self._lock = threading.Lock()
        self._waiting: dict[threading.Condition, None] = {}

    def admit(self, buffer_bytes: int) -> None:
        """A producer comes that may hold so much: whoever asks for more than usual gets it."""
        with self._lock:
            self.limit = max(self.limit, 2 * buffer_bytes)

    def has_room(self, own: int) -> bool:
        """Whether a producer that holds `own` bytes may take in more."""
        return own < self.limit - self.held

    def add(self, size: int) -> list[threading.Condition]:
        """A producer holds `size` bytes more, or less. Whom to notify, with no lock held."""
        with self._lock:
            self.held += size
            return list(self._waiting) if size < 0 and self.held < self.limit else []

    def begin_wait(self, condition: threading.Condition) -> None:
        """It will be named by `add`; call this before looking whether there is room."""
        with self._lock:
            self._waiting[condition] = None

    def end_wait(self, condition: threading.Condition) -> None:
        with self._lock:
            self._waiting.pop(condition, None)
