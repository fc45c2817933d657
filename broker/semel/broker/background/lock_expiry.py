"""Releases expired locks.

How it works. A lock ends by an entry of the log, which the master proposes once the lock has
expired by the master's own clock. While the event loop stood still, no holder could be heard; after
such a stop every holder first gets its full time again.

Not here: when a lock expires (`state/lock_clock.py`).
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from semel.broker.background.propose import propose
from semel.broker.replica.clock import monotonic_ms
from semel.broker.replica.replica import Replica
from semel.protos.queue_refs import queue_ref
from semel.protos.v1 import control_pb2

logger = logging.getLogger(__name__)

_CHECK_S: Final = 0.1


class LockExpiry:
    """The background work of one replica; `run` ends only by cancellation."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica

    async def run(self) -> None:
        """Proposes the release of expired locks; the master's clock alone decides."""
        while True:
            await asyncio.sleep(_CHECK_S)
            clock = self._replica.lock_clock
            if clock is None or self._replica.driver.loop_stopped():
                continue  # after a stop, the next tick first gives every holder its full time
            for group, queue_key, token in clock.expired(monotonic_ms()):
                logger.info("lock expired group=%s queue=%s token=%d", group, queue_key, token)
                release = control_pb2.ReleaseLock(
                    group=group, queue=queue_ref(queue_key), token=token
                )
                await propose(self._replica, control_pb2.ControlRecord(release_lock=release))
