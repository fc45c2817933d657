"""One queue's part of a fetch reply: the stored batches from an offset on.

How it works. Extents name the stored batches; the tail cache has the newest of them, the reader
How it works. Extents name the stored batches; the tail cache has the newest of them, the reader
pool reads the others from disk. Those of a topic in memory are in this node's memory, or are lost
(`OffsetsLost`), or come from a peer soon (`Unavailable`). Offsets that the log has no more come
from the object store, as batches made of its rows. Those are waited for before a read (`absent`),
so that a read of several queues is answered with what is here. A fetch under a lock is checked
against its fencing token, and counts as a delivery for the lock's clock.

Invariants
1. Batches of a result are in offset order without a gap, and the first one contains `offset`.

Not here: extents (`state/apply/queues.py`), bytes (`log/`, `tiers/cold_reads.py`), requests and
replies (`server/fetch.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from semel.broker.log import IndexUnavailable, Log
from semel.broker.memory import BodyStore
from semel.broker.replica.pools import Pools
from semel.broker.state import Extent, QueueState, State
from semel.broker.tiers.cold_reads import ColdReads
from semel.broker.tiers.pointers import pointer_of
from semel.protos.batch import BROKER_HEADER_BYTES, NEWER_FLAGS, decode_header
from semel.protos.errors import (
    CorruptBatch,
    LockLost,
    OffsetOutOfRange,
    OffsetsLost,
    SemelError,
    StorageError,
    Unavailable,
    UnsupportedVersion,
    to_detail,
)
from semel.protos.ids import QueueKey
from semel.protos.v1 import broker_pb2
from semel.tier import ColdBatch, Pointer

logger = logging.getLogger(__name__)

Part = bytes | memoryview


class ReadNode(Protocol):
    """The node, as this module needs it."""

    @property
    def state(self) -> State: ...

    @property
    def log(self) -> Log: ...

    @property
    def pools(self) -> Pools: ...

    @property
    def bodies(self) -> BodyStore: ...

    def on_delivered(
        self, group: str, queue_key: QueueKey, token: int, end_offset: int
    ) -> None: ...


class Found(NamedTuple):
    """One queue's part."""

    result: broker_pb2.FetchResult
    batches: list[Part]
    next_offset: int
    """The offset behind the batches; the one that was asked for, if there are none."""


class QueueReader:
    """Reads queues of one node."""

    def __init__(self, node: ReadNode, cold: ColdReads | None = None) -> None:
        """`cold` reads what only the object store has; None if the node was given none."""
        self._node = node
        self._cold = cold

    def nothing_for(self, wanted: broker_pb2.FetchQueue, key: QueueKey) -> bool:
        """The queue ends at the offset asked for, and may yet grow for this request."""
        queue = self._node.state.queues.get(key)
        return (
            queue is not None
            and wanted.offset == queue.log_end_offset
            and not queue.sealed
            and (not wanted.group or self._token(wanted.group, key) == wanted.token)
        )

    def absent(self, wanted: broker_pb2.FetchQueue, key: QueueKey) -> asyncio.Future[None] | None:
        """What a read has to wait for: done when the batches that it begins with are here, or
        cannot be had. None if they are here, or it has an error to tell. Never cancel it."""
        queue = self._node.state.queues.get(key)
        if queue is None or self._cold is None or not queue.is_cold(wanted.offset):
            return None
        try:
            if self._cold.find(key, wanted.offset) is not None:
                return None
        except SemelError:
            return None
        pointer = pointer_of(self._cold.folder, queue)
        return None if pointer is None else self._cold.fetch(pointer, wanted.offset)

    async def read(
        self,
        wanted: broker_pb2.FetchQueue,
        key: QueueKey,
        room: int,
        *,
        alone: bool,
        level_max: int,
    ) -> Found | None:
        """At most `room` bytes, but at least one batch if the reply holds nothing else (`alone`).
        `level_max` is the highest feature level that the client knows.

        An error of the queue is part of the result. None if nothing is new, or nothing fits.
        """
        queue = self._node.state.queues.get(key)
        try:
            if queue is None:
                raise self._node.state.absent(key)
            found = await self._read(wanted, key, queue, room, alone=alone)
            if found is not None and level_max < self._node.state.feature_level:
                found = _known_part(found, key, level_max)
            if found is not None and found.batches and wanted.group:
                delivered = wanted.group, key, wanted.token, found.next_offset
                self._node.on_delivered(*delivered)
            return found
        except SemelError as error:
            return Found(_failed(wanted, queue, error), [], wanted.offset)

    async def _read(
        self,
        wanted: broker_pb2.FetchQueue,
        key: QueueKey,
        queue: QueueState,
        room: int,
        *,
        alone: bool,
    ) -> Found | None:
        """Raises SemelError."""
        if wanted.group:
            current = self._token(wanted.group, key)
            if current != wanted.token:
                raise LockLost(
                    f"group {wanted.group} reads queue {key.queue_id} under token {current} now, "
                    f"not {wanted.token}; acquire it again",
                    current_token=current,
                )
        start, end = queue.log_start_offset, queue.log_end_offset
        if not start <= wanted.offset <= end:
            raise OffsetOutOfRange(
                f"offset {wanted.offset} of queue {key.queue_id} is outside [{start}, {end}]",
                log_start_offset=start,
                log_end_offset=end,
            )
        result = broker_pb2.FetchResult(
            queue=wanted.queue, log_start_offset=start, high_watermark=end, sealed=queue.sealed
        )
        if wanted.offset == end:
            # A sealed queue never grows: the reader hears of its end at once.
            return Found(result, [], end) if queue.sealed else None
        most = min(wanted.max_bytes or room, room)
        if queue.is_cold(wanted.offset):
            cold = await self._cold_part(wanted.offset, queue, most)
            if not alone and len(cold[0].stored) > room:
                return None
            found = _cold_found(result, wanted.offset, cold)
        else:
            extents = queue.extents_from(wanted.offset, most)
            if not alone and extents[0].length > room:
                return None
            if queue.in_memory:
                extents, batches = self._in_memory(queue, wanted.offset, extents)
            else:
                try:
                    batches = await self._stored(extents)
                except StorageError:
                    if not queue.is_cold(wanted.offset):
                        raise
                    return None  # the log gave it up meanwhile: the next look asks the tier
            found = _found(result, wanted.offset, extents, batches)
        return found

    def end_of(self, key: QueueKey) -> int:
        """The end of the queue; -1 if it is not here."""
        queue = self._node.state.queues.get(key)
        return -1 if queue is None else queue.log_end_offset

    def read_cached(self, wanted: broker_pb2.FetchQueue, key: QueueKey, room: int) -> Found | None:
        """What `read` finds for a reader without a group, if the tail cache has all of it; None
        otherwise, and if the queue has an error or an end to tell."""
        queue = self._node.state.queues.get(key)
        if queue is None or queue.sealed:
            return None
        start, end = queue.log_start_offset, queue.log_end_offset
        if not start <= wanted.offset < end or queue.is_cold(wanted.offset):
            return None
        extents = queue.extents_from(wanted.offset, room)
        if queue.in_memory:
            if _lost_at(queue, wanted.offset) is not None:
                return None
            extents, batches = self._held(queue, extents)
        else:
            batches = self._cached(extents)
        if not batches or len(batches) < len(extents):
            return None
        result = broker_pb2.FetchResult(
            queue=wanted.queue, log_start_offset=start, high_watermark=end
        )
        return _found(result, wanted.offset, extents, batches)

    async def _cold_part(
        self, offset: int, queue: QueueState, bytes_max: int
    ) -> Sequence[ColdBatch]:
        """Batches from the object store, the first of which has the offset. Raises Unavailable,
        CorruptBatch."""
        pointer, cold = cold_place(self._cold, queue)
        group = await cold.read(pointer, offset)
        if offset == group.start and queue.is_cold(group.end):
            cold.fetch_ahead(pointer, group.end)
        return group.part(offset, bytes_max)

    def _token(self, group: str, key: QueueKey) -> int:
        """Token of the lock that a consumer group holds on the queue; 0 for none."""
        held = self._node.state.groups.lookup(group, key)
        return held.token if held is not None and held.owner else 0

    def _in_memory(
        self, queue: QueueState, offset: int, extents: list[Extent]
    ) -> tuple[list[Extent], list[Part]]:
        """The first extents with their batches. Raises OffsetsLost and Unavailable."""
        if (end := _lost_at(queue, offset)) is not None:
            raise OffsetsLost(
                f"messages {offset} to {end - 1} of queue {queue.key.queue_id} of {queue.topic!r}"
                f" are lost: they were in the memory of nodes that died. It goes on at {end}",
                next_offset=end,
            )
        held, batches = self._held(queue, extents)
        if not batches:
            raise Unavailable(
                f"message {offset} of queue {queue.key.queue_id} of {queue.topic!r} is not in the"
                " memory of this node yet: ask again"
            )
        return held, batches

    def _held(self, queue: QueueState, extents: list[Extent]) -> tuple[list[Extent], list[Part]]:
        """The first extents whose batches are in memory and not lost, with those batches."""
        bodies = self._node.bodies
        batches: list[Part] = []
        for extent in extents:
            stored = bodies.get(extent.index, extent.position)
            if stored is None or (batches and _lost_at(queue, extent.base_offset) is not None):
                break
            batches.append(stored)
        return extents[: len(batches)], batches

    async def _stored(self, extents: Sequence[Extent]) -> list[Part]:
        """Stored batches of the extents: from the cache, or all from disk in one job."""
        cached = self._cached(extents)
        if len(cached) == len(extents):
            return cached
        loop = asyncio.get_running_loop()
        rest = await loop.run_in_executor(
            self._node.pools.clients, _read_records, self._node.log, extents[len(cached) :]
        )
        return cached + rest

    def _cached(self, extents: Sequence[Extent]) -> list[Part]:
        """Stored batches of the first extents, as many as the cache has in a row."""
        log = self._node.log
        cached: list[Part] = []
        for extent in extents:
            view = log.cached_record(extent.index, extent.position, extent.length)
            if view is None:
                break
            cached.append(view)
        return cached


def _lost_at(queue: QueueState, offset: int) -> int | None:
    """Where the lost range of an offset ends; None if it is not lost."""
    return queue.lost.end_at(offset) if queue.lost.ranges else None


def _found(
    result: broker_pb2.FetchResult, offset: int, extents: Sequence[Extent], batches: list[Part]
) -> Found:
    """Fills the result for a reader that is at the offset, in the first of the extents."""
    for extent, batch in zip(extents, batches, strict=True):
        skip = max(0, offset - extent.base_offset)
        result.batches.add(
            length=len(batch),
            base_offset=extent.base_offset + skip,
            row_start=extent.first_row + skip,
            row_end=extent.first_row + extent.count,
        )
    return Found(result, batches, extents[-1].base_offset + extents[-1].count)


def _cold_found(result: broker_pb2.FetchResult, offset: int, batches: Sequence[ColdBatch]) -> Found:
    """The same for batches from the object store."""
    for batch in batches:
        skip = max(0, offset - batch.base_offset)
        result.batches.add(
            length=len(batch.stored),
            base_offset=batch.base_offset + skip,
            row_start=skip,
            row_end=batch.offset_count,
        )
    last = batches[-1]
    return Found(result, [batch.stored for batch in batches], last.base_offset + last.offset_count)


def cold_place(cold: ColdReads | None, queue: QueueState) -> tuple[Pointer, ColdReads]:
    """The pointer to the manifest of a queue with cold offsets, and what reads them.

    Raises Unavailable on a node that was given no object store (`cold` is None).
    """
    if cold is None:
        raise Unavailable(
            f"offsets {queue.log_start_offset} to {queue.local_start} of queue"
            f" {queue.key.queue_id} of {queue.topic!r} are in the object store alone, and this"
            " broker was started without --tier: start it with the URL that the other brokers have"
        )
    pointer = pointer_of(cold.folder, queue)
    assert pointer is not None, "what is cold is in a manifest"
    return pointer, cold


def _read_records(log: Log, extents: Sequence[Extent]) -> list[Part]:
    """Runs in the reader pool; the log checks frames. Raises CorruptBatch, CorruptSegment."""
    batches: list[Part] = []
    for extent in extents:
        try:
            batch = log.read_record(extent.index, extent.position, extent.length)
        except IndexUnavailable as error:
            raise CorruptBatch(
                f"offsets from {extent.base_offset} are not readable on this node: {error}; "
                "another replica may have them"
            ) from None
        batches.append(batch)
    return batches


def _known_part(found: Found, key: QueueKey, level_max: int) -> Found:
    """The batches in front of the first one that a client cannot read that knows no level above
    `level_max`.

    Raises UnsupportedVersion if that is the very first.
    """
    unknown = sum(flag for flag, level in NEWER_FLAGS.items() if level > level_max)
    result = found.result
    for number, stored in enumerate(found.batches):
        flags = decode_header(stored, BROKER_HEADER_BYTES).flags & unknown
        if not flags:
            continue
        offset = result.batches[number].base_offset
        if not number:
            raise UnsupportedVersion(
                f"the batch from offset {offset} of queue {key.queue_id} has null values, was"
                " compacted or has a trace context, which this client does not know: upgrade it",
                level=max(level for flag, level in NEWER_FLAGS.items() if flag & flags),
            )
        del result.batches[number:]
        return Found(result, found.batches[:number], offset)
    return found


def _failed(
    wanted: broker_pb2.FetchQueue, queue: QueueState | None, error: SemelError
) -> broker_pb2.FetchResult:
    if isinstance(error, StorageError):
        logger.error("stored bytes cannot be read queue=%s error=%s", wanted.queue, error)
    return broker_pb2.FetchResult(
        queue=wanted.queue,
        error=to_detail(error),
        log_start_offset=queue.log_start_offset if queue else 0,
        high_watermark=queue.log_end_offset if queue else 0,
    )
