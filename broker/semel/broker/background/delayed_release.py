"""What a master does for delayed messages: looks when something is due, and has it released.

How it works. While something is delayed, the master asks ten times a second for the queues whose
first delayed batch is due by log time, which costs nothing for all others. Each gets one release at
a time; when that is applied, the next one of the queue is asked for without a look. Nothing is
remembered here: what is delayed stands in the replicated state, so the next master goes on at its
first look.

Not here: what is released, and that it is not early (`state/apply/delays.py`); log time
(`state/log_clock.py`).
"""

from __future__ import annotations

import asyncio
from typing import Final

from semel.broker.replica.replica import Replica

LOOK_S: Final = 0.1
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
            await replica.applier.delaying.wait()
            await asyncio.sleep(LOOK_S)
            if replica.is_master:
                replica.release_due(QUEUES_MAX)
            if not replica.state.delays.queues:
                replica.applier.delaying.clear()
