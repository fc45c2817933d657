"""Moved queues in the log, as `semel verify --exactly-once` needs them.

How it works. `MovedTables` follows the steps of moves while `verifiers.py` rebuilds the table. It
joins the pieces of a slice; when the queue is activated, the rows of the slice become the queue's
table. A queue must still end where it was sealed when it is forwarded.

A queue of another cluster has steps of its own (`state/apply/mirrored.py`): what is promoted is the
slice with the digest that the step names.

A log also holds refused steps: late ones, repeated ones, those of another job. So each step is
matched with its job here as well, and a step of another job does not affect the current one.

`window_problems` compares the windows of a queue with the batches in its log, whichever broker
group stored them. A queue that arrived with rows but without their windows would take its next
retry for a new batch, and no other check would show it.

Not here: refusals that depend on more than the log says about the queue (a child whose parent still
holds messages, an incomplete copy). The controllers take no later step of such a job.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from semel.broker.state.apply.move_places import MoveState
from semel.broker.state.apply.results import ProducerState
from semel.broker.state.apply.slices import read_slice
from semel.broker.state.apply.state_machine import State
from semel.protos.errors import CorruptSegment
from semel.protos.ids import QueueKey
from semel.protos.v1 import control_pb2

Entry = tuple[int, int, int, int, int]
"""Base and last sequence, base offset, count, CRC of the content."""
DROPPED: Final = 1 << 31
"""Added to the count of a batch of which messages were dropped because their ids were known. Count
and CRC are those of the batch as it was sent."""


@dataclass(slots=True)
class _Coming:
    slice: bytearray = field(default_factory=bytearray)
    whole: bool = False
    mirror_epoch: int | None = None
    """Set if it comes from another cluster."""
    settled: bytes = b""


@dataclass(slots=True)
class _Known:
    """What the log has said so far about the moves of one queue."""

    job: int = 0
    """The newest job that changed anything; older jobs change nothing any more."""
    sealed_end: int | None = None
    """End offset of the queue when this job sealed it."""
    coming: _Coming | None = None
    """Set if this job brings the queue here."""


@dataclass(frozen=True, slots=True)
class Left:
    """A sealed queue is dropped here."""

    sealed_end: int
    """End offset of the queue when it was sealed."""


@dataclass(frozen=True, slots=True)
class Arrived:
    """A queue was activated here."""

    log_end_offset: int
    split: bool
    rows: tuple[ProducerState, ...]


class MovedTables:
    """The moves of a log, as far as they change tables."""

    def __init__(self, start: State | None) -> None:
        self._known: dict[QueueKey, _Known] = {}
        for key, place in start.moves.places.items() if start is not None else ():
            assert start is not None
            known = self._known[key] = _Known(place.job)
            if place.state is MoveState.FROZEN:
                known.sealed_end = start.queues[key].log_end_offset
            incoming = start.moves.incoming.get(key)
            if incoming is not None:
                whole = place.state is MoveState.READY
                known.coming = _Coming(bytearray(incoming.slice), whole)
                if incoming.mirror is not None:
                    known.coming.mirror_epoch = incoming.mirror.epoch
                    known.coming.settled = incoming.mirror.settled

    def forget(self, key: QueueKey) -> None:
        """Forgets a deleted queue."""
        self._known.pop(key, None)

    def step(
        self, record: control_pb2.MoveQueue, key: QueueKey, end: int | None, *, split: bool
    ) -> Left | Arrived | None:
        """Follows the next step of a move, and returns what it does to the queue's table.

        `end` is the end offset of the queue, None if it is not here. `split` says that it has
        children and therefore stays. Raises CorruptSegment.
        """
        known = self._known.setdefault(key, _Known())
        newer, its_own = record.job > known.job, record.job == known.job
        match record.step:
            # Steps at the source.
            case control_pb2.MOVE_STEP_SEAL:
                if newer and end is not None and known.sealed_end is None and not split:
                    self._known[key] = _Known(record.job, sealed_end=end)
            case control_pb2.MOVE_STEP_UNSEAL:  # also if the SEAL of the job comes later
                if end is not None and (newer or (its_own and known.sealed_end is not None)):
                    self._known[key] = _Known(record.job)
            case control_pb2.MOVE_STEP_FORWARD:
                if its_own and known.sealed_end is not None:
                    self._known[key] = _Known(record.job)
                    return Left(known.sealed_end)
            # Steps at the target.
            case control_pb2.MOVE_STEP_BEGIN:
                if newer and end is None:
                    self._known[key] = _Known(record.job, coming=_Coming())
            case control_pb2.MOVE_STEP_ABORT:  # also if the BEGIN of the job comes later
                if end is None and (newer or (its_own and known.coming is not None)):
                    self._known[key] = _Known(record.job)
            # Steps of a mirror.
            case control_pb2.MOVE_STEP_MIRROR:
                coming, epoch = known.coming, record.mirror_epoch
                if coming is not None and coming.mirror_epoch is not None:
                    if epoch > coming.mirror_epoch:
                        coming.mirror_epoch, coming.slice = epoch, bytearray()
                elif coming is None and end is None and not known.job:
                    coming = _Coming(mirror_epoch=epoch)
                    self._known[key] = _Known(record.job, coming=coming)
            case control_pb2.MOVE_STEP_UNMIRROR:
                if known.coming is not None and known.coming.mirror_epoch is not None:
                    self._known[key] = _Known()
            case _ if known.coming is not None and known.coming.mirror_epoch is not None:
                return self._mirror(record, key, known.coming)
            case _ if known.coming is not None and its_own:
                return self._bring(record, key, known.coming)
        return None

    def _mirror(
        self, record: control_pb2.MoveQueue, key: QueueKey, coming: _Coming
    ) -> Arrived | None:
        """Follows a step of the mirror of a queue."""
        if record.step == control_pb2.MOVE_STEP_PROMOTE:
            if hashlib.sha256(coming.settled).digest() != record.digest or not coming.settled:
                return None
            self._known[key] = _Known(record.job)
            return _arrived(key, coming.settled)
        if record.mirror_epoch != coming.mirror_epoch:
            return None
        if record.step == control_pb2.MOVE_STEP_PART:
            if record.offset == 0:
                coming.slice = bytearray(record.part)
            elif record.offset == len(coming.slice):
                coming.slice += record.part
        elif record.step == control_pb2.MOVE_STEP_SETTLE:
            if hashlib.sha256(coming.settled).digest() == record.digest and coming.settled:
                return None
            data, coming.slice = bytes(coming.slice), bytearray()
            if hashlib.sha256(data).digest() == record.digest and _readable(data):
                coming.settled = data
        return None

    def _bring(
        self, record: control_pb2.MoveQueue, key: QueueKey, coming: _Coming
    ) -> Arrived | None:
        """Follows a step of the job that brings the queue here."""
        match record.step:
            case control_pb2.MOVE_STEP_PART if not coming.whole:
                if record.offset == len(coming.slice):
                    coming.slice += record.part
            case control_pb2.MOVE_STEP_INGEST if not coming.whole:
                found = len(coming.slice), hashlib.sha256(coming.slice).digest()
                coming.whole = found == (record.offset, record.digest) and _readable(
                    bytes(coming.slice)
                )
            case control_pb2.MOVE_STEP_ACTIVATE if coming.whole:
                self._known[key] = _Known(record.job)
                return _arrived(key, bytes(coming.slice))
        return None


def _arrived(key: QueueKey, data: bytes) -> Arrived:
    """Raises CorruptSegment."""
    found = read_slice(data)
    if found.queue.key != key:
        raise CorruptSegment(f"queue {key} came with the slice of {found.queue.key}")
    rows = tuple(found.producers.rows(key))
    return Arrived(found.queue.log_end_offset, found.queue.sealed, rows)


def _readable(data: bytes) -> bool:
    try:
        read_slice(data)
    except CorruptSegment:
        return False
    return True


def _as_stored(entry: Entry, known: Mapping[int, Entry]) -> Entry:
    """The entry of a batch of which messages were dropped, with the figures of what is stored. If
    nothing of it is, it is like a position mark."""
    if entry[3] < DROPPED:
        return entry
    found = known.get(entry[2])
    return found if found is not None and found[:2] == entry[:2] else (*entry[:3], 0, 0)


def window_problems(
    windows: Mapping[int, Iterable[Entry]],
    stored: Mapping[int, Iterable[Entry]],
    log_start_offset: int,
    ended: Mapping[int, int],
) -> Iterator[str]:
    """Differences between each producer's window and its newest stored batches (64, or all).

    `windows` are those of producers with a row. No window has to remember the batches of a producer
    up to its offset in `ended`: their row has expired, and a new one does not know them.
    """
    for producer, window in sorted(windows.items()):
        known = {entry[2]: entry for entry in stored.get(producer, ())}
        as_stored = (_as_stored(entry, known) for entry in window)
        entries = [entry for entry in as_stored if entry[3] and entry[2] >= log_start_offset]
        for entry in entries:
            if known.get(entry[2]) != entry:
                yield (
                    f"the window of producer {producer} remembers {entry[0]} to {entry[1]} at"
                    f" offset {entry[2]}, the log has {known.get(entry[2])} there"
                )
        # Records may be deleted up to the middle of a batch: that one is compared no more.
        first = max(ended.get(producer, -1) + 1, log_start_offset)
        owed = [entry for entry in known.values() if entry[2] >= first]
        newest = max(owed, key=lambda entry: entry[2], default=None)
        last = max((entry[1] for entry in window), default=-1)
        if newest is not None and (not entries or entries[-1] != newest) and newest[1] >= last:
            yield (
                f"the window of producer {producer} does not remember its newest batch,"
                f" {newest[0]} to {newest[1]} at offset {newest[2]}"
            )
