"""Trims queues that are too old or too large, and recycles the segments that this frees.

How it works. Where a queue starts is shared state: the master proposes a TRIM, which goes through
the log; and a FORGET for what the object store has as well, if this node can read it there.
Cleaning concerns the bytes on this node's own disk, so every node does it for itself.

Cleaning. Segments are cleaned oldest first, up to the newest checkpoint and leaving
`retained_log_bytes` for slaves that catch up. The log copies records that are still live to a kept
file, so cleaning pays only while enough is dead: a byte that becomes free is worth three that are
copied. How many segments go is what is worth most. Where queues are cut at their old ends, that is
where they begin, and nothing is copied. What is left is three quarters live at least.

Not here: when a queue is too old or too large (`state/`), the files (`log/`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from typing import Final

from semel.broker.background.checkpointing import Checkpointing
from semel.broker.background.propose import propose
from semel.broker.background.queues_in_turns import queues_in_turns
from semel.broker.log import RecordRef
from semel.broker.replica.replica import Replica
from semel.broker.state import QueueState
from semel.protos.errors import SemelError
from semel.protos.queue_refs import queue_ref
from semel.protos.v1 import control_pb2

logger = logging.getLogger(__name__)

_COPIED_PER_FREED: Final = 3
"""Bytes that may be copied to free one."""


def worth_cleaning(segments: Sequence[int], live: Sequence[int]) -> int:
    """How many of the oldest segments to clean: as many as free most, less what copying costs.

    `segments` are their sizes, `live` the live bytes of each, oldest first.
    """
    best = count = worth = 0
    for number, (size, alive) in enumerate(zip(segments, live, strict=True), 1):
        worth += _COPIED_PER_FREED * max(0, size - alive) - alive
        if worth > best:
            best, count = worth, number
    return count


class Retention:
    """The background work of one replica; `run` ends only by cancellation."""

    def __init__(
        self, replica: Replica, checkpointing: Checkpointing, *, forgets: bool = False
    ) -> None:
        """`forgets`: this node has the object store that tiered topics go to."""
        self._forgets = forgets
        self._replica = replica
        self._checkpointing = checkpointing
        self._dead_min = 0
        """How much must be dead before it can pay to look again."""
        self._looked_at = 0
        """After this entry too little was dead."""

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._replica.config.retention_check_ms / 1000)
            if self._replica.is_master:
                await self._trim_queues()
            try:
                await self._clean()
            except (SemelError, OSError) as error:
                logger.error("log not cleaned, it is tried again error=%s", error)

    async def _trim_queues(self) -> None:
        """One TRIM for each queue that is too old or too large, one FORGET for each of which the
        log has more than it is to keep."""
        now_us = self._replica.log_time_us()
        async for queue in queues_in_turns(self._replica.state, _has_messages):
            target = queue.retention_target(now_us)
            reference = queue_ref(queue.key)
            if target is not None:
                trim = control_pb2.Trim(queue=reference, log_start_offset=target)
                await propose(self._replica, control_pb2.ControlRecord(trim=trim))
            if self._forgets and (target := queue.forget_target(now_us)) is not None:
                forget = control_pb2.Forget(queue=reference, local_start=target)
                await propose(self._replica, control_pb2.ControlRecord(forget=forget))

    async def _clean(self) -> None:
        """Recycles the oldest segments as far as that pays, and kept files that are mostly dead."""
        replica = self._replica
        log, state, incarnation = replica.log, replica.state, replica.log.incarnation
        if state.applied_index == self._looked_at:
            return  # a sum over very many queues is work, too
        config, stats = replica.config, log.stats()
        dead = stats.segment_bytes + stats.kept_bytes - state.live_bytes
        if dead < max(config.retained_log_bytes + config.log.segment_bytes, self._dead_min):
            self._looked_at = state.applied_index
            return
        self._dead_min = 0
        upto = self._worth_cleaning(self._retained_from())
        if upto == log.first_index:  # another look pays when another segment can be dead
            self._dead_min = dead + config.log.segment_bytes
            if not stats.kept_bytes:
                return
        elif self._checkpointing.index < upto or not log.compact_limit:
            # Also if the present one would do: the log is cleaned only when there is a second one,
            # which a group without traffic would never write.
            await self._checkpointing.write()
        upto = min(upto, self._checkpointing.index + 1)
        # Taken on the loop: the cleaner runs in a thread and must not look at changing state. A
        # record that is trimmed meanwhile is copied for nothing, and dropped the next time. A
        # snapshot may replace the log meanwhile, which these do not fit: hence `incarnation`.
        lo = log.first_index
        live = state.live_table(0 if stats.kept_bytes else lo, upto)

        def keep(first: int, end: int) -> Iterable[RecordRef]:
            return (RecordRef(*record) for record in live.between(first, end))

        def work() -> int:
            first_index = log.compact(upto, keep, incarnation=incarnation)
            log.drop_kept(live.holds, incarnation=incarnation)
            return first_index

        first_index = await asyncio.get_running_loop().run_in_executor(
            replica.pools.background, work
        )
        kept_records = len(live.between(lo, upto))
        logger.info("log cleaned first_index=%d kept_records=%d", first_index, kept_records)

    def _worth_cleaning(self, end: int) -> int:
        """First index behind the segments that are worth cleaning, of those that end at `end` or
        before."""
        log = self._replica.log
        segments = [one for one in log.sealed_segments() if one.end_index <= end]
        bounds = [log.first_index, *(one.end_index for one in segments)]
        live = self._replica.state.live_bytes_between(bounds)
        return bounds[worth_cleaning([one.bytes for one in segments], live)]

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


def _has_messages(queue: QueueState) -> bool:
    return queue.log_start_offset != queue.log_end_offset
