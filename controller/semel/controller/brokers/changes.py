"""Waking those who wait for the next change of the routes."""

from __future__ import annotations

import asyncio

from semel.protos.errors import SemelError


class Changes:
    """Wakes everybody who waits for the next change."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self.closed = False
        self.reason: SemelError | None = None
        """Why there will be no more; None when the controller simply stops."""

    def notify(self) -> None:
        """Wakes all who wait now."""
        self._event.set()
        self._event = asyncio.Event()

    def close(self, reason: SemelError | None = None) -> None:
        """There will be no more changes."""
        if not self.closed:
            self.closed, self.reason = True, reason
            self.notify()

    async def wait(self) -> None:
        """Returns after the next change; without one in between, so check first, then wait."""
        await self._event.wait()
