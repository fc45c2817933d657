"""Reads all data of this node, slowly and without end, to find damage before a second copy is bad.

How it works. A pass reads everything once (`log/scrubbing.py`) in the reader pool, a piece at a
time, with a pause after each piece that keeps the rate at `scrub_bytes_per_second`. Then it checks
term and vote, and the identity. The log repairs from memory what it can; `repair/repair.py` repairs
the rest from a peer; a damaged checkpoint is replaced by a new one.

Not here: what counts as damage, and how the log reports it (`log/`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from semel.broker.repair.repair import note_missing
from semel.broker.replica.replica import Replica
from semel.broker.snapshots.checkpoints import Checkpoints
from semel.protos.errors import DiskFull, SemelError

logger = logging.getLogger(__name__)

_STOPPED_S = 1.0
"""Pause between two looks whether a pass that was stopped goes on."""


class Scrub:
    """The background task; the node's status reads its fields."""

    def __init__(
        self, replica: Replica, checkpoints: Checkpoints, check_identity: Callable[[], object]
    ) -> None:
        """`check_identity` blocks; it raises SemelError if no good copy of the identity is left."""
        self._replica = replica
        self._checkpoints = checkpoints
        self._check_identity = check_identity
        self.passes = 0
        """Passes completed since the start."""
        self.position_bytes = 0
        """Bytes read in the pass under way."""
        self.total_bytes = 0
        """Estimate of the bytes that the pass under way will read."""

    async def run(self) -> None:
        """Ends only by cancellation. While the rate is 0, no pass begins."""
        config = self._replica.config
        while True:
            await asyncio.sleep(config.scrub_pause_ms / 1000)
            if not config.scrub_bytes_per_second:
                continue
            began = time.monotonic()
            await self._pass()
            self.passes += 1
            logger.info(
                "scrub done pass=%d bytes=%d seconds=%.1f damaged=%d",
                self.passes,
                self.position_bytes,
                time.monotonic() - began,
                len(self._replica.log.damaged),
            )

    async def _rest(self, length: int) -> None:
        """Waits as long as so many bytes take, and until the rate is not 0."""
        while True:
            rate = self._replica.config.scrub_bytes_per_second
            await asyncio.sleep(length / rate if rate else _STOPPED_S)
            if rate:
                return

    async def _pass(self) -> None:
        replica = self._replica
        loop = asyncio.get_running_loop()
        stats = replica.log.stats()
        self.position_bytes, self.total_bytes = 0, stats.segment_bytes + stats.kept_bytes
        pieces = replica.log.scrub()
        while True:
            length = await loop.run_in_executor(replica.pools.background, next, pieces, None)
            if length is None:
                break
            self.position_bytes += length
            await self._rest(length)
        note_missing(replica)
        if replica.log.checkpoints_damaged:
            logger.error("a checkpoint is damaged, writing a new one")
            try:
                await self._checkpoints.write(anew=True)
            except (DiskFull, OSError) as error:  # The older checkpoint still counts.
                logger.error("no new checkpoint, the next pass tries again error=%s", error)
        replica.driver.repair_hard_state()
        try:
            await loop.run_in_executor(replica.pools.background, self._check_identity)
        except SemelError as error:
            logger.error("no good copy of the identity is left error=%s", error)
