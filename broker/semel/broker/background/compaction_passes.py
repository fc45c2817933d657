"""Compacts the queues of topics that ask for it: of each key the newest message stays.

How it works. The master looks at its queues in turn. A queue is *dirty* from where the last pass
over it ended. When the dirty part is a large enough share of all its bytes, or has waited for as
long as tombstones stay, or old tombstones are to go, a pass begins. It reads the dirty part for the
newest offset of each key. Then it reads the queue from its start, a run of extents at a time, and
proposes what is left of each run (a COMPACT record). The last record says that the pass is over.

Nothing is remembered between passes but what the replicated state holds. A master that is replaced,
restarted or refused in between has removed only messages of whose keys there are newer ones, and
the next pass begins at the start.

Reading, decoding and sorting happen in the reader pool, a piece of about a megabyte at a time, and
after each piece the pass rests as long as its budget of bytes a second demands.

Invariants
1. Only what is committed and applied is read, and nothing that is younger than the topic's lag.
2. A message is removed only for a newer one of its key below the end of the pass, which is applied,
   too; or as a tombstone that the replicated state allows to remove.

Not here: which messages go (`semel.broker.compaction`), how a run is applied
(`state/apply/compacted.py`).
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Sequence
from typing import Final

from semel.broker.background.queues_in_turns import queues_in_turns
from semel.broker.compaction import NewestOffsets, RunBuilder
from semel.broker.log import Log
from semel.broker.replica.replica import Replica
from semel.broker.replica.stored_batches import read_batch
from semel.broker.state import Compacted, Extent, QueueState
from semel.protos.batch import BROKER_HEADER_BYTES, BatchFlags, check_batch
from semel.protos.columns import decode_columns
from semel.protos.compacted_rows import offsets_of_rows
from semel.protos.errors import SemelError
from semel.protos.ids import QueueKey
from semel.protos.queue_refs import queue_ref
from semel.protos.v1 import control_pb2

logger = logging.getLogger(__name__)

PIECE_BYTES: Final = 1 << 20
PIECE_EXTENTS: Final = 1_024


class QueueCompaction:
    """The background work of one replica; `run` ends only by cancellation."""

    def __init__(
        self,
        replica: Replica,
        seed: Callable[[], bytes] = lambda: secrets.token_bytes(16),
    ) -> None:
        self._replica = replica
        self._seed = seed
        self.passes = 0
        """Passes that were completed since the start."""
        self.read_bytes = 0
        self.written_bytes = 0

    async def run(self) -> None:
        replica = self._replica
        while True:
            await asyncio.sleep(replica.config.compaction_check_ms / 1000)
            if not replica.is_master:
                continue
            for key in await wanting(replica):
                try:
                    await self._pass(key)
                except (SemelError, OSError) as error:
                    logger.warning("queue not compacted, it is tried again error=%s", error)

    async def _pass(self, key: QueueKey) -> None:
        """One pass over a queue. Ends early when it is interrupted, which loses only work."""
        replica, term = self._replica, self._replica.term
        queue = self._queue(key, term)
        if queue is None or queue.settings.compaction is None:
            return
        now_us = replica.log_time_us()
        horizon = queue.compaction.horizon(now_us, queue.settings.compaction.tombstone_ms)
        newest = NewestOffsets(self._seed(), replica.config.compaction_keys_max)
        end = await self._read_dirty(key, term, newest, queue.compaction_target(now_us))
        at, tombstones = 0, 0
        while end is not None and (queue := self._queue(key, term)) is not None:
            extents = piece(queue, at, end)
            record = control_pb2.Compact(queue=queue_ref(key), tombstones_below=horizon)
            builder = RunBuilder(newest, horizon)
            if not extents and max(at, queue.log_start_offset) < end:
                logger.info("compaction interrupted queue=%s at=%d", key, at)
                return
            if extents:
                run = queue.extents.run(extents[0].base_offset, len(extents), queue.log_end_offset)
                assert run is not None, "the extents are those of the queue"
                await replica.in_reader(_builds(replica.log, extents, builder))
                found = builder.finish()
                tombstones += builder.tombstones
                at = found.to_offset
                record.places_crc = run.crc
                if found.changes:
                    record.from_offset, record.to_offset = found.from_offset, found.to_offset
                    record.fates = found.fates
            over = at >= end or not extents
            if over:
                record.compacted_to, record.tombstones = end, tombstones
            if over or record.fates:
                batches = found.batches if extents and record.fates else ()
                result = await replica.submit_control(
                    control_pb2.ControlRecord(compact=record), compacted=batches
                )
                assert isinstance(result, Compacted)
                if not result.done:
                    logger.info("compaction interrupted queue=%s at=%d", key, at)
                    return
            if over:
                self.passes += 1
                logger.info("queue compacted queue=%s compacted_to=%d", key, end)
                return
            await self._rest(sum(extent.length for extent in extents), builder.made_bytes)

    async def _read_dirty(
        self, key: QueueKey, term: int, newest: NewestOffsets, target: int
    ) -> int | None:
        """Reads the keys of the dirty part, up to `target` or until the table is full. Returns
        where it ended; None if the queue is not ours any more."""
        queue = self._queue(key, term)
        at = 0 if queue is None else queue.compaction.compacted_to
        while (queue := self._queue(key, term)) is not None:
            extents = piece(queue, at, target)
            if not extents or newest.full:
                return max(at, queue.compaction.compacted_to)
            await self._replica.in_reader(_adds(self._replica.log, extents, newest, at))
            at = extents[-1].base_offset + extents[-1].count
            await self._rest(sum(extent.length for extent in extents), 0)
        return None

    def _queue(self, key: QueueKey, term: int) -> QueueState | None:
        """The queue as long as this mastership may compact it."""
        replica = self._replica
        queue = replica.state.queues.get(key)
        if not replica.is_master or replica.term != term or queue is None or moves(queue):
            return None
        return queue if queue.settings.compaction is not None else None

    async def _rest(self, read: int, written: int) -> None:
        self.read_bytes += read
        self.written_bytes += written
        await asyncio.sleep((read + written) / self._replica.config.compaction_bytes_per_second)


def moves(queue: QueueState) -> bool:
    """Whether a COMPACT record would have no effect, because the queue is being moved."""
    return queue.frozen or queue.held


async def wanting(replica: Replica) -> list[QueueKey]:
    """The queues that need a pass, the dirtiest first."""
    found = []
    now_us = replica.log_time_us()
    async for queue in queues_in_turns(replica.state, _may_want):
        settings, compaction = queue.settings.compaction, queue.compaction
        assert settings is not None, "such queues are wanted"
        share = queue.dirty_share(now_us)
        waited_us = now_us - queue.first_append_us(compaction.compacted_to)
        overdue = share and waited_us >= settings.tombstone_ms * 1000
        purging = compaction.tombstones and compaction.purged_to < compaction.horizon(
            now_us, settings.tombstone_ms
        )
        if purging or overdue or (share and share * 100 >= replica.config.compaction_dirty_percent):
            found.append((share, queue.key))
    return [key for _, key in sorted(found, reverse=True)]


def _may_want(queue: QueueState) -> bool:
    return queue.settings.compaction is not None and not moves(queue)


def piece(queue: QueueState, at: int, end: int) -> list[Extent]:
    """The next extents from `at` on, or from the queue's start, that end at `end` or before."""
    at = max(at, queue.log_start_offset)
    if at >= min(end, queue.log_end_offset):
        return []
    extents = queue.extents_from(at, PIECE_BYTES)[:PIECE_EXTENTS]
    return [extent for extent in extents if extent.base_offset + extent.count <= end]


def _stored(log: Log, extent: Extent) -> bytes:
    """BLOCKING. Raises CorruptBatch, CorruptSegment."""
    place = extent.index, extent.position, extent.length
    return read_batch(log, place, f"offsets from {extent.base_offset} are")


def _adds(
    log: Log, extents: Sequence[Extent], newest: NewestOffsets, from_offset: int
) -> Callable[[], None]:
    """Work for a reader thread: adds the keys of the messages from an offset on."""

    def work() -> None:
        for extent in extents:
            data = _stored(log, extent)[BROKER_HEADER_BYTES:]
            header = check_batch(data)
            if header.flags & BatchFlags.POSITION_MARK:
                continue
            columns = decode_columns(data, header)
            offsets = offsets_of_rows(columns, extent.base_offset, extent.first_row, extent.count)
            offsets[offsets < from_offset] = -1
            newest.add(columns, offsets)

    return work


def _builds(log: Log, extents: Sequence[Extent], builder: RunBuilder) -> Callable[[], None]:
    """Work for a reader thread: adds the extents to a run."""

    def work() -> None:
        for extent in extents:
            builder.add(extent, _stored(log, extent))

    return work
