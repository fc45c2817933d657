"""The calls by which a queue goes from one broker group to another.

How it works. The master of the group that has the queue answers `CopyQueue`, `CopyDelayed`,
`CopyIds` and `ReadSlice`. The master of the group that gets it answers `PullQueue`, for which it
calls the others (`background/queue_copy.py`). Only the newest slice that was made is remembered
between calls.

Batches that a transaction published were stored before they had offsets; the broker header of the
copy has the offsets. Of a delayed batch of which messages were cancelled each stretch that is left
becomes a batch of its own. Of a batch in memory whose body is lost, both headers go over.

Not here: the steps themselves, which come with `ApplyQueues` (`server/queue_calls.py`).
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Container, Sequence
from functools import partial
from typing import Final, NamedTuple
from weakref import WeakValueDictionary

from semel.broker.background.queue_copy import COPY_BYTES, PART_BYTES, QueuePull, Source
from semel.broker.config import BrokerConfig
from semel.broker.control_plane.route_cache import RoutesCopy
from semel.broker.dedup.moved_ids import PASS_IDS, Pass, Take
from semel.broker.log import Log
from semel.broker.membership.memory_safety import copies_refusal
from semel.broker.memory import BodyStore
from semel.broker.replica.replica import Replica
from semel.broker.replica.stored_batches import read_batch
from semel.broker.server.copied_records import read_copies, read_delayed_copies
from semel.broker.state import (
    RECORD_BYTES,
    Extent,
    MoveState,
    NumberedDelays,
    QueueState,
    ancestors,
    held_here,
    make_slice,
    move_refusal,
    unheld,
)
from semel.protos.errors import InvalidRequest, Throttled, Unavailable
from semel.protos.ids import QueueKey
from semel.protos.levels import DELAYED_MOVE_LEVEL, MOVE_LEVEL
from semel.protos.queue_refs import queue_key_of
from semel.protos.v1 import broker_pb2, broker_pb2_grpc

PULL_MS_MAX: Final = 30_000


class _PassName(NamedTuple):
    """Says which ids were read."""

    key: QueueKey
    seed: bytes
    take: Take
    horizon_us: int
    """0 below feature level 8."""


class MovesService(broker_pb2_grpc.MovesServicer):
    """Serves semel.protos.v1.Moves on one replica."""

    def __init__(self, config: BrokerConfig, replica: Replica, routes: RoutesCopy) -> None:
        self._config = config
        self._replica = replica
        self._routes = routes
        self._slice: tuple[QueueKey, int, bytes, bytes] | None = None
        """The newest slice that was made: queue, job, bytes, SHA-256."""
        self._pulling: WeakValueDictionary[QueueKey, asyncio.Lock] = WeakValueDictionary()
        """A queue's lock lives as long as a call holds it or waits for it."""
        self.copied_bytes = 0
        """Bytes of batches that were copied here since the start."""
        self._numbered: NumberedDelays | None = None
        """The delayed batches that are being copied, as of some moment."""
        self._pass: tuple[_PassName, Pass] | None = None
        """The newest message ids that were read."""

    async def CopyQueue(  # noqa: N802
        self, request: broker_pb2.CopyQueueRequest, context: object
    ) -> broker_pb2.CopyQueueReply:
        await self._replica.wait_master()
        queue, state = self._queue(queue_key_of(request.queue)), self._replica.state
        reply = broker_pb2.CopyQueueReply(
            log_start_offset=queue.local_start,
            log_end_offset=queue.log_end_offset,
            bytes=queue.bytes,
            feature_level=self._replica.state.feature_level,
        )
        level = state.feature_level
        ids = state.id_windows.topics
        if (refusal := move_refusal(state.queues, queue, state.delays, level, ids)) is not None:
            raise refusal
        if request.figures_only:
            if (held := held_here(state.delays, queue.key, level)) is not None:
                raise InvalidRequest(f"{held}: the queue stays until they are delivered")
            await self._replica.require_level(
                MOVE_LEVEL
            )  # else the move would be refused only when it begins
            return reply
        compacted = queue.settings.compaction is not None
        if compacted and not state.moves.holds(queue.key, request.job):
            raise unheld(queue, request.job)
        at = max(request.offset, queue.local_start)
        extents = queue.extents_from(at, min(request.max_bytes or COPY_BYTES, COPY_BYTES))
        log, bodies = self._replica.log, self._replica.bodies
        if queue.in_memory:
            work = partial(_read_bodies, log, bodies, extents, _lost_of(queue, extents))
        else:
            work = partial(read_copies, log, extents)
        found = await self._replica.in_reader(work, self._replica.pools.copies)
        if extents and not found:
            raise Unavailable(
                f"offsets from {at} on of queue {queue.key.queue_id} are not in the memory of this"
                " node yet; ask again"
            )
        for extent, stored in zip(extents, found, strict=False):
            reply.batches.add(base_offset=extent.base_offset, count=extent.count, stored=stored)
        return reply

    async def CopyDelayed(  # noqa: N802
        self, request: broker_pb2.CopyDelayedRequest, context: object
    ) -> broker_pb2.CopyDelayedReply:
        await self._replica.wait_master()
        key, state = queue_key_of(request.queue), self._replica.state
        self._queue(key)
        known = self._numbered
        if known is None or known.key != key or not known.reaches(request.ordinal):
            delayed = state.delays.queues.get(key)
            table = None if delayed is None else delayed.table()
            known = await self._replica.in_reader(
                lambda: NumberedDelays.of(key, table), self._replica.pools.copies
            )
            self._numbered = known
        found = known.page(
            state.delays.queues.get(key),
            request.ordinal,
            min(request.max_bytes or COPY_BYTES, COPY_BYTES),
        )
        if not known.reaches(found.ordinal_to):
            self._numbered = None  # it is large, and those that came since are not in it
        log = self._replica.log
        return broker_pb2.CopyDelayedReply(
            stored=await self._replica.in_reader(
                lambda: read_delayed_copies(log, found.extents), self._replica.pools.copies
            ),
            ordinal_to=found.ordinal_to,
            bytes_left=found.bytes_left,
            feature_level=state.feature_level,
        )

    async def ReadSlice(  # noqa: N802
        self, request: broker_pb2.ReadSliceRequest, context: object
    ) -> broker_pb2.ReadSliceReply:
        await self._replica.wait_master()
        key = queue_key_of(request.queue)
        queue, state = self._queue(key), self._replica.state
        place = state.moves.places.get(key)
        if place is None or place.state is not MoveState.FROZEN or place.job != request.job:
            raise InvalidRequest(f"queue {key.queue_id} is not sealed by move {request.job}")
        if self._slice is None or self._slice[:2] != (key, request.job):
            level = state.feature_level
            data = make_slice(queue, state.producers, state.groups, state.delays, level)
            self._slice = key, request.job, data, hashlib.sha256(data).digest()
        _, _, data, digest = self._slice
        length = min(request.max_bytes or PART_BYTES, PART_BYTES)
        return broker_pb2.ReadSliceReply(
            part=data[request.offset : request.offset + length],
            total_bytes=len(data),
            digest=digest,
            log_start_offset=queue.local_start,
            feature_level=state.feature_level,
            log_time_us=self._replica.log_time_us(),
        )

    async def CopyIds(  # noqa: N802
        self, request: broker_pb2.CopyIdsRequest, context: object
    ) -> broker_pb2.CopyIdsReply:
        await self._replica.wait_master()
        key, state = queue_key_of(request.queue), self._replica.state
        queue = self._queue(key)
        window, index = state.id_windows.topics.get(key.topic_id), None
        reply = broker_pb2.CopyIdsReply(feature_level=state.feature_level)
        if window is None:
            return reply
        index = self._replica.ids.index_of(key.topic_id)
        if index is None or self._replica.ids.behind:
            raise Throttled("the index of message ids is incomplete; ask again")
        seed, end = window.settings.seed, window.next_arrival
        at = max(request.arrival, window.first_arrival)
        take, horizon_us = Take.BEFORE_WAITING, state.log_time_us
        if state.feature_level >= DELAYED_MOVE_LEVEL:
            take = Take.WAITING if request.waiting else Take.SETTLED
            reply.horizon_us = horizon_us = request.horizon_us or horizon_us
        name = _PassName(key, seed, take, reply.horizon_us)
        known = self._pass
        if known is None or known[0] != name or at not in known[1].arrivals:
            family = {key.queue_id, *(each.key.queue_id for each in ancestors(state.queues, queue))}
            if take is Take.WAITING:
                family = {key.queue_id}  # what waits by a place in an ancestor is in other children
            known_here = (*state.queues, *state.moves.places)  # also those that moved away
            topic = (each.queue_id for each in known_here if each.topic_id == key.topic_id)
            others = frozenset(topic) - family
            arrivals = range(at, max(at, min(at + PASS_IDS, end)))
            gone = [arrival for each in window.gone for arrival in each]
            work = partial(Pass.of, index, arrivals, others, gone, horizon_us, take)
            found = await self._replica.ids.look(index, self._replica.pools.copies, work)
            known = self._pass = name, found
        reply.compares, reply.seed, reply.next_arrival = True, seed, end
        reply.ids, reply.ids_to = known[1].portion(at)
        reply.waits_from = known[1].waits_from(range(at, reply.ids_to))
        if reply.ids_to == known[1].arrivals.stop:
            self._pass = None  # it is large, and nobody asks for it again
        return reply

    async def PullQueue(  # noqa: N802
        self, request: broker_pb2.PullQueueRequest, context: object
    ) -> broker_pb2.PullQueueReply:
        if request.cluster_id != self._config.cluster_id:
            raise InvalidRequest(
                f"this broker belongs to cluster {self._config.cluster_id}, "
                f"the caller to {request.cluster_id}"
            )
        self._routes.check_epoch(request.controller_epoch)
        await self._replica.wait_master()
        key = queue_key_of(request.queue)
        source = Source(request.sources, self._replica.levels(), self._config.security)
        pull = QueuePull(
            self._replica,
            source,
            key,
            request.job,
            bytes_per_second=self._config.move_bytes_per_second,
            on_copied=self._on_copied,
            bodies_refusal=partial(copies_refusal, self._replica),
        )
        lock = self._pulling.get(key)
        if lock is None:
            lock = self._pulling[key] = asyncio.Lock()
        try:
            async with lock:  # a call that the caller has given up may still be at work
                return await pull.run(
                    min(request.max_ms, PULL_MS_MAX) / 1000, finish=request.finish
                )
        finally:
            await source.close()

    def _on_copied(self, length: int) -> None:
        self.copied_bytes += length

    def _queue(self, key: QueueKey) -> QueueState:
        queue = self._replica.state.queues.get(key)
        if queue is None:
            raise self._replica.state.absent(key)
        return queue


def _lost_of(queue: QueueState, extents: Sequence[Extent]) -> frozenset[int]:
    """The base offsets of those extents whose bodies are lost."""
    start, lost = queue.log_start_offset, queue.lost
    bases = (extent.base_offset for extent in extents)
    return frozenset(base for base in bases if lost.end_at(max(base, start)) is not None)


def _read_bodies(
    log: Log, bodies: BodyStore, extents: Sequence[Extent], lost: Container[int]
) -> list[bytes]:
    """BLOCKING. The same of a topic in memory: the first batches that are here, and of those that
    are lost both headers. Raises CorruptBatch, CorruptSegment."""
    found: list[bytes] = []
    for extent in extents:
        stored = bodies.get(extent.index, extent.position)
        if extent.base_offset in lost:
            place = extent.index, extent.position, RECORD_BYTES
            stored = read_batch(log, place, f"the headers of offset {extent.base_offset} are")
        if stored is None:
            break
        found.append(stored)
    return found
