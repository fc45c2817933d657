"""What all screens share: the way to the cluster, the sessions, what is fed live, what goes on.

Not here: one request (`visits.py`), HTTP (`app.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Coroutine
from typing import Any

from semel.client import AsyncClient
from semel.protos.errors import SemelError
from semel.web.access import Access, close_quietly
from semel.web.config import WebConfig
from semel.web.rates import Rates
from semel.web.sessions import Sessions, WebSession

logger = logging.getLogger(__name__)


class Site:
    """One web console."""

    def __init__(self, config: WebConfig, access: Access) -> None:
        self.config = config
        self.access = access
        self.sessions = Sessions(
            most=config.sessions_max,
            idle_s=config.session_idle_s,
            clock=time.monotonic,
            on_end=self._on_end,
        )
        self.streams = 0
        """Pages that are fed live now."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._shared_memory: dict[str, Any] = {}

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Ends all work and closes all clients at the end."""
        try:
            yield
        finally:
            tasks = list(self._tasks)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            clients = [each.client for each in self.sessions.end_all() if each.client is not None]
            await asyncio.gather(*map(close_quietly, clients))
            await self.access.close()

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Begins work that goes on behind a page; it ends with the console at the latest."""
        task = asyncio.create_task(_logged(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def client_of(self, session: WebSession) -> AsyncClient:
        """Returns the client of a session. Raises SemelError while the cluster is away."""
        return session.client or await self.access.shared()

    def memory_of(self, session: WebSession) -> dict[str, Any]:
        """Returns what all remember that see the cluster with the same rights."""
        return self._shared_memory if session.client is None else session.memory

    def rates_of(self, session: WebSession) -> Rates:
        """Returns the rates, which all that have the same rights share."""

        async def ask() -> Any:
            return await (await self.client_of(session)).admin.cluster_status()

        memory = self.memory_of(session)
        if "rates" not in memory:
            memory["rates"] = Rates(ask, self.spawn)
        rates = memory["rates"]
        assert isinstance(rates, Rates)
        return rates

    def _on_end(self, session: WebSession) -> None:
        if session.client is not None:
            self.spawn(close_quietly(session.client))


async def _logged(work: Coroutine[Any, Any, None]) -> None:
    try:
        await work
    except SemelError as error:
        logger.warning("work behind a page ended error=%s", error.message)
    except Exception:
        logger.exception("work behind a page failed")
