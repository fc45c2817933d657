"""Checkpoints of this node's own state.

How it works. A checkpoint is the replicated state at one index, in canonical bytes. The loop takes
it, and a thread writes and syncs it while the node goes on serving. A checkpoint bounds the replay
at the start and lets the log be cleaned. A peer that is too far behind to get entries, or that is
new and empty, pulls it.

Not here: when one is written (`background/checkpointing.py`), the file (`log/checkpoint.py`), and
giving it to peers (`snapshots/snapshot_service.py`).
"""

from __future__ import annotations

import asyncio
import logging
import time

from semel.broker.replica.replica import Replica
from semel.protos.metrics import Histogram

logger = logging.getLogger(__name__)


class Checkpoints:
    """Writes checkpoints of one replica, one at a time."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._writing = asyncio.Lock()
        checkpoint = replica.log.checkpoint
        self.index = 0 if checkpoint is None else checkpoint.index
        """Index of the newest checkpoint."""
        self.seconds = Histogram()
        """Durations of writing one, from taking the state until the file was durable."""
        self.pause_seconds = Histogram()
        """Durations for which taking the state stopped the event loop."""

    @property
    def length(self) -> int:
        """Bytes of the newest checkpoint's payload; 0 without one."""
        checkpoint = self._replica.log.checkpoint
        return 0 if checkpoint is None else checkpoint.length

    async def write(self, *, anew: bool = False) -> int:
        """Makes the newest applied state durable; returns the index of the newest checkpoint.

        Without `anew`, it writes nothing if there is a checkpoint of that state already.
        """
        async with self._writing:
            replica = self._replica
            state, log = replica.state, replica.log
            index, term = state.applied_index, state.applied_term
            if index <= self.index and not anew:
                return self.index
            began = time.monotonic()  # The loop's own clock stands still within a turn.
            parts = state.to_parts()
            self.pause_seconds.observe(time.monotonic() - began)
            windows = state.id_windows.topics.items()
            await replica.ids.settle({key: each.next_arrival for key, each in windows})
            written = await asyncio.get_running_loop().run_in_executor(
                replica.pools.background, log.save_checkpoint, index, term, parts
            )
            if not written:
                return self.index  # that of the snapshot which has replaced the log meanwhile
            self.seconds.observe(time.monotonic() - began)
            self.index = max(self.index, index)
            logger.info("checkpoint written index=%d bytes=%d", index, self.length)
            return self.index
