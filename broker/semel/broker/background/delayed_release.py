"""Releases delayed messages once they are due.

How it works. While something is delayed, the master looks ten times a second for queues whose first
delayed batch is due by log time; all other queues cost nothing. Each queue gets one release at a
time; when that is applied, the next one of the queue is proposed without another look. Nothing is
remembered here: the replicated state holds what is delayed, so the next master goes on at its first
look.

Not here: which batches are released, and that none is early (`state/apply/delays.py`); log time
(`state/log_clock.py`).
"""

from __future__ import annotations

import asyncio
from typing import Final

from semel.broker.replica.replica import Replica

LOOK_S: Final = 0.1
QUEUES_MAX: Final = 1_000
"""Queues that one look takes."""


class DelayedRelease:
    """The background work of one replica; `run` ends only by cancellation."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica

    async def run(self) -> None:
        """Ends only by cancellation."""
        replica = self._replica
        while True:
            await replica.applier.delaying.wait()
            await asyncio.sleep(LOOK_S)
            if replica.is_master:
                replica.release_due(QUEUES_MAX)
            if not replica.state.delays.queues:
                replica.applier.delaying.clear()
