"""What a master does for delayed messages: looks when something is due, and has it released.

How it works. While something is delayed, the master asks ten times a second for the queues whose
first delayed batch is due by log time, which costs nothing for all others. Each gets one release at
a time; when that is applied, the next one of the queue is asked for without a look. Nothing is
remembered here: what is delayed stands in the replicated state, so the next master goes on at its
first look.

The first delayed batch that a group is sent finds a log whose members have not agreed on the rules
yet. It is refused, its client comes back, and meanwhile the level is raised here.

Not here: what is released, and that it is not early (`state/delays.py`); log time
(`state/log_clock.py`).
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from semel.broker.replica import Replica
from semel.broker.state import DELAY_LEVEL
from semel.protos.errors import NotMaster, SemelError

logger = logging.getLogger(__name__)

LOOK_S: Final = 0.1
RAISE_PAUSE_S: Final = 1.0
QUEUES_MAX: Final = 1_000
"""Queues at one look."""


class DelayDuty:
    """The background work of one replica; `run` ends only by cancellation."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica

    async def run(self) -> None:
        """The background task."""
        replica = self._replica
        while True:
            await replica.delaying.wait()
            await asyncio.sleep(LOOK_S)
            if not replica.is_master:
                replica.delays_wanted = False  # clients send to the next master again
            elif replica.delays_wanted:
                await self._raise_level()
            else:
                replica.release_due(QUEUES_MAX)
            if not (replica.delays_wanted or replica.state.delays.queues):
                replica.delaying.clear()

    async def _raise_level(self) -> None:
        try:
            await self._replica.raise_feature_level(DELAY_LEVEL)
            self._replica.delays_wanted = False
        except NotMaster:
            pass
        except SemelError as error:
            logger.warning("delayed messages are not taken yet: %s", error)
            await asyncio.sleep(RAISE_PAUSE_S)
