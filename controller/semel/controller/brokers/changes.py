"""The event that wakes everything that waits for the next change of the routes."""

from __future__ import annotations

import asyncio

from semel.protos.errors import SemelError


class Changes:
    """Wakes all tasks that wait for the next change."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self.closed = False
        self.reason: SemelError | None = None
        """Why there will be no more changes; None when the controller simply stops."""

    def notify(self) -> None:
        """Wakes all tasks that wait now."""
        self._event.set()
        self._event = asyncio.Event()

    def close(self, reason: SemelError | None = None) -> None:
        """Wakes all waiting tasks for the last time: there will be no more changes."""
        if not self.closed:
            self.closed, self.reason = True, reason
            self.notify()

    async def wait(self) -> None:
        """Returns after the next change. Check first, then wait, with no other await in between."""
        await self._event.wait()
