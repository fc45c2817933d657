"""Takes what a mirror brings into the log of this broker group.

How it works. An answer of the source becomes records, in this order: FLOOR, COPY of batches, COPY
of delayed batches, PART of the slice, and SETTLE with its last piece. What is here already is left
out, and what does not follow is refused, so an answer that comes twice, late, or from another
program changes nothing. The state says how far the copy is.

Invariants
1. A batch is proposed only after its CRCs, its queue and its offset were checked.
2. The slice is settled after all that came with it.

Not here: what a record does (`state/apply/mirrored.py`), what the source answers
(`mirror_source.py`).
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

from semel.broker.state import (
    RESTORE_JOB,
    ApplyResult,
    Incoming,
    MoveApplied,
    MoveState,
    State,
    ordinal_of_copy,
    read_slice,
)
from semel.protos.batch import BROKER_HEADER_BYTES, check_batch, decode_broker_header
from semel.protos.errors import CorruptBatch, InvalidRequest, StaleGeneration, UnsupportedVersion
from semel.protos.ids import QueueKey
from semel.protos.queue_refs import queue_key_of, queue_ref
from semel.protos.v1 import control_pb2, mirrors_pb2

RECORD_BYTES_MAX: Final = 1 << 20


class Target(Protocol):
    """The node that gets the queues, as this module needs it."""

    @property
    def state(self) -> State: ...

    async def submit_control(self, record: control_pb2.ControlRecord) -> ApplyResult: ...

    async def submit_copy(self, stored: bytes) -> ApplyResult: ...

    async def in_reader(self, work: Any) -> Any: ...


class Seen(NamedTuple):
    """What a mirror has told of the source, as long as this node is master."""

    log_end_offset: int
    """Where the source's queue ended."""
    current_us: int
    """The settled slice is what the source has, as of this log time of the source."""


class MirrorTarget:
    """The mirrored queues of one replica."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self.seen: dict[QueueKey, Seen] = {}
        self.copied_bytes = 0
        """Bytes of batches that were copied here since the start."""

    async def begin(self, create: control_pb2.CreateQueue, source: str, epoch: int) -> None:
        """Begins a copy, or takes it over. Raises InvalidRequest, StaleGeneration."""
        await self._step(
            control_pb2.MOVE_STEP_MIRROR,
            queue_key_of(create.queue),
            create=create,
            source=source,
            mirror_epoch=epoch,
        )

    async def write(self, key: QueueKey, epoch: int, read: mirrors_pb2.ReadMirroredReply) -> None:
        """Takes an answer of the source. Raises CorruptBatch, InvalidRequest, StaleGeneration,
        UnsupportedVersion."""
        self._check_level(key, read.feature_level)
        incoming = self._incoming(key, epoch)
        step = partial(self._step, key=key, mirror_epoch=epoch)
        if read.batches or read.delayed:
            batches, delayed = list(read.batches), list(read.delayed)
            await self._target.in_reader(partial(_check, key, batches, delayed))
        at = incoming.queue.log_end_offset
        if read.base_offset > at or read.log_start_offset > incoming.queue.log_start_offset:
            hole = read.base_offset > at
            if hole and read.log_start_offset <= at:
                raise InvalidRequest(
                    f"offset {read.base_offset} of queue {key.queue_id} does not follow the copy,"
                    f" which ends at {at}"
                )
            floor = read.base_offset if hole else read.log_start_offset
            await step(control_pb2.MOVE_STEP_FLOOR, offset=floor)
        at, ordinal = incoming.queue.log_end_offset, incoming.delayed.below_ordinal
        copies = [stored for stored in read.batches if _offset(stored) >= at]
        copies += [stored for stored in read.delayed if _ordinal(stored) >= ordinal]
        await self._store(copies)
        if read.slice_bytes:
            await step(control_pb2.MOVE_STEP_PART, offset=read.slice_offset, part=read.slice_part)
            if read.slice_offset + len(read.slice_part) == read.slice_bytes:
                await step(
                    control_pb2.MOVE_STEP_SETTLE,
                    digest=read.slice_digest,
                    source_time_us=read.source_time_us,
                    ordinal_to=read.ordinal_to,
                )
                self._see(key, read, current=True)
        elif read.slice_digest:
            assert incoming.mirror is not None
            settled = hashlib.sha256(incoming.mirror.settled).digest()
            self._see(key, read, current=settled == read.slice_digest)
        elif read.log_end_offset:
            self._see(key, read, current=False)

    async def promote(
        self, key: QueueKey, digest: bytes, settings: control_pb2.CreateQueue
    ) -> None:
        """Makes an ordinary queue of the copy. Raises InvalidRequest."""
        await self._step(control_pb2.MOVE_STEP_PROMOTE, key, digest=digest, create=settings)
        self.seen.pop(key, None)

    async def drop(self, key: QueueKey) -> None:
        """Drops the copy, if there is one."""
        await self._step(control_pb2.MOVE_STEP_UNMIRROR, key)
        self.seen.pop(key, None)

    def status(self, key: QueueKey, *, whole: bool) -> mirrors_pb2.MirroredQueueStatus | None:
        """How far a copy is, with `whole` also what is known of it; None if it is not here."""
        state = self._target.state
        place, incoming = state.moves.places.get(key), state.moves.incoming.get(key)
        if incoming is None or incoming.mirror is None:
            queue = state.queues.get(key)
            if queue is None or place is None or place.job != RESTORE_JOB:
                return None
            return mirrors_pb2.MirroredQueueStatus(
                queue=queue_ref(key),
                log_start_offset=queue.log_start_offset,
                log_end_offset=queue.log_end_offset,
                promoted=True,
            )
        mirror, seen = incoming.mirror, self.seen.get(key)
        reply = mirrors_pb2.MirroredQueueStatus(
            queue=queue_ref(key),
            log_start_offset=incoming.queue.log_start_offset,
            log_end_offset=incoming.queue.log_end_offset,
            ordinal=incoming.delayed.below_ordinal,
            mirror_epoch=mirror.epoch,
            settled_end_offset=mirror.settled_end,
            settled_us=max(mirror.settled_us, 0 if seen is None else seen.current_us),
        )
        if mirror.settled:
            reply.settled_digest = hashlib.sha256(mirror.settled).digest()
        if mirror.settled and whole:
            found = read_slice(mirror.settled)
            reply.settled_child_ids.extend(child.queue_id for child in found.queue.children)
            reply.delayed_messages = found.delayed.messages
            for row in found.producers.rows(key):
                if row.name:
                    reply.producers.add(name=row.name, producer_id=row.producer_id, epoch=row.epoch)
            reply.groups = sum(1 for _ in found.groups.states())
        return reply

    def _see(self, key: QueueKey, read: mirrors_pb2.ReadMirroredReply, *, current: bool) -> None:
        known = self.seen.get(key, Seen(0, 0))
        current_us = read.source_time_us if current else known.current_us
        self.seen[key] = Seen(max(known.log_end_offset, read.log_end_offset), current_us)

    def _incoming(self, key: QueueKey, epoch: int) -> Incoming:
        moves = self._target.state.moves
        place, incoming = moves.places.get(key), moves.incoming.get(key)
        if incoming is None or incoming.mirror is None:
            promoted = place is not None and place.state is MoveState.HERE
            what = "is promoted: it takes no copies any more" if promoted else "is not mirrored"
            raise InvalidRequest(f"queue {key.queue_id} {what}")
        if incoming.mirror.epoch != epoch:
            raise StaleGeneration(
                f"another mirror goes on with queue {key.queue_id}, by epoch"
                f" {incoming.mirror.epoch}; this one has {epoch}, and ends"
            )
        return incoming

    def _check_level(self, key: QueueKey, level: int) -> None:
        own = self._target.state.feature_level
        if level > own:
            raise UnsupportedVersion(
                f"queue {key.queue_id} comes from a broker group at feature level {level}, this"
                f" group is at {own}: raise it first (semel cluster upgrade)",
                level=level,
            )

    async def _store(self, copies: Sequence[bytes]) -> None:
        results = await asyncio.gather(*(self._target.submit_copy(stored) for stored in copies))
        for result in results:
            assert isinstance(result, MoveApplied)
            if result.error is not None:
                raise result.error
        self.copied_bytes += sum(map(len, copies))

    async def _step(self, step: control_pb2.MoveStep, key: QueueKey, **fields: Any) -> None:
        record = control_pb2.MoveQueue(queue=queue_ref(key), job=RESTORE_JOB, step=step, **fields)
        result = await self._target.submit_control(control_pb2.ControlRecord(move_queue=record))
        assert isinstance(result, MoveApplied)
        if result.error is not None:
            raise result.error


def _check(key: QueueKey, batches: Sequence[bytes], delayed: Sequence[bytes]) -> None:
    """BLOCKING for some milliseconds. Raises CorruptBatch."""
    at: int | None = None
    for stored in batches:
        found, head = check_batch(stored, BROKER_HEADER_BYTES), decode_broker_header(stored)
        if found.queue_key != key or head.span or at not in (None, head.base_offset):
            raise CorruptBatch(
                f"offset {at} of queue {key.queue_id} came with a batch of {found.queue_key},"
                f" {found.count} messages from {head.base_offset}"
            )
        at = head.base_offset + found.count
    ordinal = 0
    for stored in delayed:
        found, number = check_batch(stored, BROKER_HEADER_BYTES), _ordinal(stored)
        if found.queue_key != key or number < ordinal:
            raise CorruptBatch(
                f"delayed batch {ordinal} of queue {key.queue_id} or a later one was expected, and"
                f" {number} of {found.queue_key} came"
            )
        ordinal = number + 1


def _offset(stored: bytes) -> int:
    return decode_broker_header(stored).base_offset


def _ordinal(stored: bytes) -> int:
    """The ordinal of the copy of a delayed batch; -1 if it is none."""
    found = ordinal_of_copy(decode_broker_header(stored))
    return -1 if found is None else found
