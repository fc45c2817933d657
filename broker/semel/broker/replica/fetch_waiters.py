"""Long polls that wait for queues to grow."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from semel.broker.state import (
    ApplyResult,
    BatchApplied,
    DelayedReleased,
    Done,
    MoveApplied,
    Published,
    Released,
)
from semel.protos.ids import QueueKey

Growth = asyncio.Future[None]
"""Thousands of idle consumers hold one each: an `asyncio.Event` weighs a kilobyte more."""


class QueueWatchers:
    """Futures by queue; each is done when one of its queues grows, changes groups, or ends."""

    def __init__(self) -> None:
        self._waiting: dict[QueueKey, dict[Growth, None]] = {}
        """In order of arrival; the order of a set would change from run to run."""

    def watch(self, keys: Sequence[QueueKey]) -> Growth:
        """A future for these queues; the caller gives it back to `unwatch`."""
        growth: Growth = asyncio.get_running_loop().create_future()
        for key in keys:
            self._waiting.setdefault(key, {})[growth] = None
        return growth

    def unwatch(self, keys: Sequence[QueueKey], growth: Growth) -> None:
        for key in keys:
            watching = self._waiting.get(key)
            if watching is not None:
                watching.pop(growth, None)
                if not watching:
                    del self._waiting[key]

    def wake(self, results: Sequence[ApplyResult]) -> None:
        """An entry was applied: wakes the long polls that wait for its queues."""
        if not self._waiting:
            return
        for result in results:
            if isinstance(result, Published):
                for part in result.parts:
                    for growth in self._waiting.get(part.queue_key, ()):
                        finish(growth)
            elif (
                isinstance(result, BatchApplied | DelayedReleased | Released | Done | MoveApplied)
                and result.queue_key is not None
            ):
                for growth in self._waiting.get(result.queue_key, ()):
                    finish(growth)

    def wake_all(self) -> None:
        """Mastership is lost: every long poll has to look again."""
        for growths in self._waiting.values():
            for growth in growths:
                finish(growth)


def finish(awaited: asyncio.Future[None] | None) -> None:
    """Ends the wait for `awaited`; does nothing if nobody waits, or the wait has ended."""
    if awaited is not None and not awaited.done():
        awaited.set_result(None)
