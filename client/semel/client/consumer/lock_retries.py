"""When a member asks again for a lock that it did not get. Pure: times come in as arguments.

Each attempt is an entry in the log of a broker group, so attempts become rarer; and a hand-over
takes no longer than needed, so they do not become too rare.

Not here: asking (`consumer/locks.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from semel.protos.errors import (
    ParentUnread,
    QueueLocked,
    QueueMoved,
    SemelError,
    StaleGeneration,
    Throttled,
)
from semel.protos.ids import QueueKey

LOCK_RETRY_MIN_S: Final = 0.05
LOCK_RETRY_MAX_S: Final = 1.0
LOCKED_RETRY_MAX_S: Final = 0.4
"""Waits while another member has the lock, short so that a hand-over takes no longer than
needed."""


class LockRetries:
    """The next attempts of one member, by queue. Times are of the monotonic clock, in seconds."""

    def __init__(self) -> None:
        self._at: dict[QueueKey, float] = {}
        self._refusals: dict[QueueKey, int] = {}
        """Number of refusals in a row because another member has the lock or an ancestor is
        unread."""

    def at(self, key: QueueKey) -> float:
        """Returns when the lock may be asked for; 0 if it was not refused."""
        return self._at.get(key, 0.0)

    def on_granted(self, key: QueueKey) -> None:
        """The lock was granted: nothing is put off any more."""
        self._at.pop(key, None)
        self._refusals.pop(key, None)

    def put_off(self, keys: Iterable[QueueKey], now: float) -> None:
        """The broker group did not answer, or the member gave the locks back itself."""
        self._at |= dict.fromkeys(keys, now + LOCK_RETRY_MAX_S)

    def on_refused(self, key: QueueKey, error: SemelError, now: float) -> None:
        """The broker refused the lock with this error."""
        self._at[key] = now + self._wait_s(key, error)

    def _wait_s(self, key: QueueKey, error: SemelError) -> float:
        match error:
            case QueueLocked() | ParentUnread():  # the other member may be slow
                refusals = self._refusals[key] = self._refusals.get(key, 0) + 1
                doubled: float = LOCK_RETRY_MIN_S * 2 ** min(refusals - 1, 8)
                wait = min(doubled, LOCKED_RETRY_MAX_S)
                return min(max(error.retry_after_ms / 1000, wait), LOCK_RETRY_MAX_S)
            case QueueMoved():
                return LOCK_RETRY_MIN_S
            case Throttled():  # the queue is moving to another group
                return max(error.retry_after_ms / 1000, LOCK_RETRY_MIN_S)
            case StaleGeneration():
                return LOCK_RETRY_MIN_S * 4
            case _:
                return LOCK_RETRY_MAX_S
