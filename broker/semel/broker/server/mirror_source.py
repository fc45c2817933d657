"""What a mirror reads of a queue: the messages that its copy lacks, and what else is known of it.

How it works. An answer is of one moment, that of one applied entry: the batches from the copy's end
on, the delayed batches from its ordinal on, and, if both are told to their ends, the slice
(`state/apply/slices.py`) that fits them. A slice that is larger than one answer is kept, and told
in pieces.

Invariants
1. A slice is told only with the rest of the messages and delayed batches that it counts.
2. Of a queue to which a split still hands delayed batches, none is told before all have come: their
   ordinals are lower than those of others. Neither it nor the queue that was split has a slice
   meanwhile.

Not here: what the target does with an answer (`mirror_target.py`).
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from typing import Final, NamedTuple

import numpy as np

from semel.broker.replica.replica import Replica
from semel.broker.server.copied_records import read_copies, read_delayed_copies
from semel.broker.state import (
    DelayedExtent,
    NumberedDelays,
    QueueState,
    held_above,
    make_slice,
    slice_refusal,
)
from semel.protos.errors import InvalidRequest, Unavailable
from semel.protos.ids import QueueKey
from semel.protos.levels import MIRROR_LEVEL
from semel.protos.queue_refs import queue_key_of
from semel.protos.v1 import mirrors_pb2

READ_BYTES_MAX: Final = 4 << 20
"""Bytes of batches in an answer, or one batch of each kind; three of the largest are below a
message's limit."""
PART_BYTES: Final = 1 << 20
SLICES_KEPT: Final = 8


class _Delayed(NamedTuple):
    extents: list[DelayedExtent]
    ordinal_to: int
    bytes_left: int
    complete: bool


class MirrorSource:
    """Answers of one replica."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._slices: OrderedDict[bytes, tuple[QueueKey, bytes]] = OrderedDict()
        """By SHA-256; those of which a mirror may ask for more."""

    async def read(self, request: mirrors_pb2.ReadMirroredRequest) -> mirrors_pb2.ReadMirroredReply:
        """Raises InvalidRequest for a queue that cannot be mirrored, QueueMoved, UnknownQueue,
        NotMaster."""
        await self._replica.require_level(MIRROR_LEVEL)
        await self._replica.confirm_read()  # else an older state might be told than before
        state, key = self._replica.state, queue_key_of(request.queue)
        if request.slice_digest:
            return self._piece(key, request.slice_digest, request.slice_offset)
        queue = state.queues.get(key)
        if queue is None:
            raise state.absent(key)
        if (refusal := self._refusal(queue)) is not None:
            raise InvalidRequest(refusal)
        if request.offset > queue.log_end_offset:
            raise Unavailable(
                f"queue {key.queue_id} of {queue.topic!r} ends at {queue.log_end_offset}, before"
                f" the copy, which ends at {request.offset}: it is not the queue that was copied"
            )
        at = max(request.offset, queue.local_start)
        limit = min(request.max_bytes or READ_BYTES_MAX, READ_BYTES_MAX)
        extents = queue.extents_from(at, limit)
        size = sum(extent.length for extent in extents)
        delayed = self._delayed(queue, request.ordinal, max(1, limit - size))
        end = extents[-1].base_offset + extents[-1].count if extents else at
        reply = mirrors_pb2.ReadMirroredReply(
            log_start_offset=queue.local_start,
            log_end_offset=queue.log_end_offset,
            base_offset=extents[0].base_offset if extents else at,
            ordinal_to=delayed.ordinal_to,
            delayed_bytes_left=delayed.bytes_left,
            source_time_us=self._replica.log_time_us(),
            feature_level=state.feature_level,
        )
        ends = end == queue.log_end_offset and delayed.complete
        if request.slice_wanted and ends and not (queue.sealed and key in state.delays.queues):
            self._add_slice(reply, queue, request.settled_digest)
        # All that is told was taken in one step; its bytes do not change any more.
        log, copies = self._replica.log, self._replica.pools.copies
        reply.batches.extend(
            await self._replica.in_reader(lambda: read_copies(log, extents), copies)
        )
        if delayed.extents:
            reply.delayed.extend(
                await self._replica.in_reader(
                    lambda: read_delayed_copies(log, delayed.extents), copies
                )
            )
        return reply

    def _refusal(self, queue: QueueState) -> str | None:
        if queue.key.topic_id in self._replica.state.id_windows.topics:
            return f"topic {queue.topic!r} compares message ids: it cannot be mirrored"
        if queue.settings.tier_after_ms > 0:
            return f"topic {queue.topic!r} is tiered: it cannot be mirrored"
        return slice_refusal(queue)

    def _delayed(self, queue: QueueState, ordinal: int, bytes_max: int) -> _Delayed:
        state = self._replica.state
        if held_above(state.queues, state.delays, queue) is not None:
            return _Delayed([], ordinal, 0, complete=False)
        known = state.delays.queues.get(queue.key)
        if known is None:
            return _Delayed([], state.delays.next_ordinal, 0, complete=True)
        table = known.table()
        later = NumberedDelays.of(queue.key, table[table["ordinal"] >= np.uint64(ordinal)])
        page = later.page(known, ordinal, bytes_max)
        if later.reaches(page.ordinal_to):
            return _Delayed(page.extents, page.ordinal_to, page.bytes_left, complete=False)
        return _Delayed(page.extents, state.delays.next_ordinal, 0, complete=True)

    def _add_slice(
        self, reply: mirrors_pb2.ReadMirroredReply, queue: QueueState, settled: bytes
    ) -> None:
        state = self._replica.state
        data = make_slice(queue, state.producers, state.groups, state.delays, state.feature_level)
        reply.slice_digest = digest = hashlib.sha256(data).digest()
        if digest == settled:
            return
        self._slices[digest] = queue.key, data
        self._slices.move_to_end(digest)
        while len(self._slices) > SLICES_KEPT:
            self._slices.popitem(last=False)
        reply.slice_bytes, reply.slice_part = len(data), data[:PART_BYTES]
        reply.child_ids.extend(child.queue_id for child in queue.children)
        for row in state.producers.rows(queue.key):
            if row.name:
                reply.producers.add(name=row.name, producer_id=row.producer_id, epoch=row.epoch)

    def _piece(self, key: QueueKey, digest: bytes, offset: int) -> mirrors_pb2.ReadMirroredReply:
        """A later piece of a slice; without `slice_bytes` if this node does not have it any more:
        then the mirror asks anew."""
        reply = mirrors_pb2.ReadMirroredReply(
            source_time_us=self._replica.log_time_us(),
            feature_level=self._replica.state.feature_level,
        )
        known = self._slices.get(digest)
        if known is not None and known[0] == key:
            reply.slice_digest, reply.slice_bytes = digest, len(known[1])
            reply.slice_offset = offset
            reply.slice_part = known[1][offset : offset + PART_BYTES]
        return reply
