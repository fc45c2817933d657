"""Trims queues that are too old or too large, and recycles the segments that this frees.

How it works. Where a queue starts is shared state: the master proposes a TRIM, which goes through
the log. Cleaning concerns the bytes on this node's own disk, so every node does it for itself.

Cleaning. Segments are cleaned oldest first, up to the newest checkpoint and leaving
`retained_log_bytes` for slaves that catch up. The log copies records that are still live to a kept
file. Cleaning pays only when enough is dead: nothing is cleaned while more than three quarters of
the stored bytes are live.

Not here: when a queue is too old or too large (`state/`), the files (`log/`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Final

from semel.broker.background.checkpointing import Checkpointing
from semel.broker.background.propose import propose
from semel.broker.log import RecordRef
from semel.broker.replica.replica import Replica
from semel.protos.errors import SemelError
from semel.protos.queue_refs import queue_ref
from semel.protos.v1 import control_pb2

logger = logging.getLogger(__name__)

_LIVE_SHARE_MAX: Final = 0.75


class Retention:
    """The background work of one replica; `run` ends only by cancellation."""

    def __init__(self, replica: Replica, checkpointing: Checkpointing) -> None:
        self._replica = replica
        self._checkpointing = checkpointing

    async def run(self) -> None:
        interval = self._replica.config.retention_check_ms / 1000
        while True:
            await asyncio.sleep(interval)
            if self._replica.is_master:
                await self._trim_queues()
            try:
                await self._clean()
            except (SemelError, OSError) as error:
                logger.error("log not cleaned, it is tried again error=%s", error)

    async def _trim_queues(self) -> None:
        """One TRIM for each queue that is too old or too large."""
        now_us = self._replica.log_time_us()
        for key, queue in list(self._replica.state.queues.items()):
            target = queue.retention_target(now_us)
            if target is None:
                continue
            trim = control_pb2.Trim(queue=queue_ref(key), log_start_offset=target)
            await propose(self._replica, control_pb2.ControlRecord(trim=trim))

    async def _clean(self) -> None:
        """Recycles the oldest segments when enough of the log is dead."""
        replica = self._replica
        log, state, incarnation = replica.log, replica.state, replica.log.incarnation
        stats = log.stats()
        stored = stats.segment_bytes + stats.kept_bytes
        live = state.live_bytes
        spare = replica.config.retained_log_bytes + replica.config.log.segment_bytes
        if stored - live < spare or live > stored * _LIVE_SHARE_MAX:
            return
        upto = self._retained_from()
        if upto <= log.first_index:
            return
        if self._checkpointing.index < upto or not log.compact_limit:
            # Also if the present one would do: the log is cleaned only when there is a second one,
            # which a group without traffic would never write.
            await self._checkpointing.write()
        upto = min(upto, self._checkpointing.index + 1)
        # Taken on the loop: the cleaner runs in a thread and must not look at changing state. A
        # record that is trimmed meanwhile is copied for nothing, and dropped the next time. A
        # snapshot may replace the log meanwhile, which these do not fit: hence `incarnation`.
        lo = log.first_index
        live_refs = [RecordRef(*record) for record in state.live_records(lo, upto)]
        live_kept = {record[:2] for record in state.live_records(0, lo)}

        def keep(first: int, end: int) -> Iterable[RecordRef]:
            return (ref for ref in live_refs if first <= ref.index < end)

        def work() -> int:
            first_index = log.compact(upto, keep, incarnation=incarnation)
            fresh = {(ref.index, ref.position) for ref in live_refs}
            alive = live_kept | fresh
            log.drop_kept(lambda *place: place in alive, incarnation=incarnation)
            return first_index

        first_index = await asyncio.get_running_loop().run_in_executor(replica.readers, work)
        logger.info("log cleaned first_index=%d kept_records=%d", first_index, len(live_refs))

    def _retained_from(self) -> int:
        """First index of the newest `retained_log_bytes`."""
        log = self._replica.log
        lo = log.first_index
        hi = end = self._replica.state.applied_index + 1
        room = self._replica.config.retained_log_bytes
        while lo < hi:  # bisection for the first index from which all the rest fits
            middle = (lo + hi) // 2
            if log.fit(middle, end, room) >= end:
                hi = middle
            else:
                lo = middle + 1
        return lo
