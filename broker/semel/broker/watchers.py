"""Long polls that wait for queues to grow."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from semel.broker.state import ApplyResult, BatchApplied, Done, MoveApplied, Published, Released
from semel.protos.ids import QueueKey


class QueueWatchers:
    """Events by queue; each is set when one of its queues grows, changes hands, or ends."""

    def __init__(self) -> None:
        self._events: dict[QueueKey, dict[asyncio.Event, None]] = {}
        """In the order in which they came: a set's would change from run to run."""

    def watch(self, keys: Sequence[QueueKey]) -> asyncio.Event:
        """An event for these queues; give it back to `unwatch`."""
        event = asyncio.Event()
        for key in keys:
            self._events.setdefault(key, {})[event] = None
        return event

    def unwatch(self, keys: Sequence[QueueKey], event: asyncio.Event) -> None:
        for key in keys:
            watching = self._events.get(key)
            if watching is not None:
                watching.pop(event, None)
                if not watching:
                    del self._events[key]

    def wake(self, results: Sequence[ApplyResult]) -> None:
        """Something was applied."""
        if not self._events:
            return
        for result in results:
            if isinstance(result, Published):
                for part in result.parts:
                    for event in self._events.get(part.queue_key, ()):
                        event.set()
            elif (
                isinstance(result, BatchApplied | Released | Done | MoveApplied)
                and result.queue_key is not None
            ):
                for event in self._events.get(result.queue_key, ()):
                    event.set()

    def wake_all(self) -> None:
        """Mastership is lost: whoever waits must look again."""
        for events in self._events.values():
            for event in events:
                event.set()
