"""Hands mastership to a slave that has room when the master's disk is full.

Not here: when the disk counts as full (`replica/replica.py`), handing mastership over
(`membership/changes.py`).
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from semel.broker.membership.changes import MembershipChanges
from semel.broker.replica.replica import Replica
from semel.protos.errors import SemelError

logger = logging.getLogger(__name__)

_CHECK_S: Final = 0.1
_YIELD_PAUSE_S: Final = 2.0


class FullDisk:
    """The background work of one replica; `run` ends only by cancellation."""

    def __init__(self, replica: Replica, changes: MembershipChanges) -> None:
        self._replica = replica
        self._changes = changes

    async def run(self) -> None:
        """Hands mastership over while there is no room for another segment.

        The newest segment still has room when that happens, so no request is refused meanwhile. If
        no slave has room, the master stays, refuses what does not fit, and serves what is stored.
        """
        replica = self._replica
        while True:
            await asyncio.sleep(_CHECK_S)
            full = replica.disk_full
            replica.set_fit("its disk is full", not full or len(replica.peers.addresses) == 1)
            if not full or not replica.is_master:
                continue
            try:
                master, _ = await self._changes.transfer(None, ignore_memory=True)
                logger.warning("disk full, mastership handed over to=%d", master)
            except SemelError as error:
                logger.warning("disk full, nobody takes mastership: %s", error)
                await asyncio.sleep(_YIELD_PAUSE_S)
