"""Whether the cluster knows SCRAM: its controllers' metadata may hold verifiers of passwords.

How it works. The controllers tell the feature level of their metadata. It never falls, so once it
is high enough nobody is asked again; until then they are asked every `AGAIN_S`.

Not here: the exchange (`principal_pool.py`).
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from semel.client.transport.cluster import Cluster
from semel.protos.errors import SemelError
from semel.protos.levels import SCRAM_LEVEL
from semel.protos.v1.controller_pb2 import WhoAmIRequest

logger = logging.getLogger(__name__)

AGAIN_S: Final = 5.0
CALL_S: Final = 30.0
"""Seconds for an answer: controllers may be electing."""


class ScramLevel:
    """See the module's text. Lives on the client's I/O thread: `async with ScramLevel(…)`."""

    def __init__(self, cluster: Cluster) -> None:
        self.reached = False
        self._cluster = cluster
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> ScramLevel:
        """Raises SemelError."""
        await self._look()
        if not self.reached:
            logger.warning(
                "SCRAM is not offered before the feature level rises needed=%d", SCRAM_LEVEL
            )
            self._task = asyncio.get_running_loop().create_task(self._run(), name="semel-scram")
        return self

    async def __aexit__(self, *exception: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while not self.reached:
            await asyncio.sleep(AGAIN_S)
            try:
                await self._look()
            except SemelError as error:
                logger.info("the feature level was not heard error=%s", error.message)

    async def _look(self) -> None:
        reply = await self._cluster.controller("WhoAmI", WhoAmIRequest(), CALL_S)
        self.reached = reply.level >= SCRAM_LEVEL
