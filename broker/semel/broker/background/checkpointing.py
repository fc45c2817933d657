"""Decides when this node writes a checkpoint: after so many entries, records or bytes of the log.

How it works. All are counted from the checkpoint before. Records bound how long a start takes to
apply what is behind the checkpoint: an entry may have hundreds of small ones. A large state is
written more rarely, so that writing it never takes more than a small part of what the log writes. A
checkpoint concerns this node's own disk only, so every node decides for itself.

Not here: writing it (`snapshots/checkpoints.py`).
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from semel.broker.replica.replica import Replica
from semel.broker.snapshots.checkpoints import Checkpoints
from semel.protos.errors import DiskFull

logger = logging.getLogger(__name__)

_CHECK_S: Final = 0.5
_LOG_SHARE: Final = 32
"""The log grows by this many times the size of a checkpoint before the next one is written."""
RECORDS_MAX: Final = 50_000
"""Behind a checkpoint: what a start applies in about a second."""
_LARGE_BYTES: Final = 16 << 20
"""Larger checkpoints are written after as many times more records: reading one takes as long."""


class Checkpointing:
    """The background work of one replica; `run` ends only by cancellation."""

    def __init__(self, replica: Replica, checkpoints: Checkpoints) -> None:
        self._replica = replica
        self._checkpoints = checkpoints
        self._log_bytes = 0
        """Bytes that had been appended to the log when the last checkpoint was due."""
        self._records = 0
        """Records that had been applied by then."""

    @property
    def index(self) -> int:
        """Index of the newest checkpoint."""
        return self._checkpoints.index

    async def run(self) -> None:
        """Writes a checkpoint whenever one is due."""
        config = self._replica.config
        while True:
            await asyncio.sleep(_CHECK_S)
            replica = self._replica
            behind = replica.state.applied_index - self._checkpoints.index
            appended = replica.log.stats().appended_bytes
            due_bytes = max(config.checkpoint_bytes, _LOG_SHARE * self._checkpoints.length)
            applied = replica.applier.applied_records
            due_records = RECORDS_MAX * max(1.0, self._checkpoints.length / _LARGE_BYTES)
            if (
                behind >= config.checkpoint_records
                or appended - self._log_bytes >= due_bytes
                or applied - self._records >= due_records
            ):
                self._log_bytes, self._records = appended, applied
                await self.write()

    async def write(self) -> None:
        """Writes one; a full disk is reported and tried again later."""
        try:
            await self._checkpoints.write()
        except (DiskFull, OSError) as error:
            logger.error("checkpoint not written, it is tried again error=%s", error)
