"""What the log alone says of moved queues, for `semel verify --exactly-once`.

How it works. `MovedTables` reads the steps of moves beside the table that is being rebuilt
(`verify.py`): pieces of slices are put together again; when the queue is activated their rows are
the queue's table from then on. A sealed queue must end where it ended when it is forwarded.

`window_problems` holds a queue's windows against the batches that lie in its log, whichever group
stored them: a queue that came with rows and without their windows would take its next retry for
something new, and nothing else would show it.

Not here: the fold's own rules (`moves.py`): what they refuse has no later step.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from semel.broker.state.machine import State
from semel.broker.state.moves import MoveState
from semel.broker.state.results import ProducerState
from semel.broker.state.slices import read_slice
from semel.protos.errors import CorruptSegment
from semel.protos.ids import QueueKey
from semel.protos.v1 import control_pb2

Entry = tuple[int, int, int, int, int]
"""Base and last sequence, base offset, count, CRC of the content."""


@dataclass(slots=True)
class _Coming:
    job: int
    slice: bytearray = field(default_factory=bytearray)
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Arrived:
    """A queue was activated here."""

    log_end_offset: int
    split: bool
    rows: tuple[ProducerState, ...]


class MovedTables:
    """Moves, as far as they change tables."""

    def __init__(self, start: State | None) -> None:
        self._jobs: dict[QueueKey, int] = {}
        self._coming: dict[QueueKey, _Coming] = {}
        self._sealed: dict[QueueKey, tuple[int, int]] = {}
        """Job, and end of the queue when it was sealed."""
        for key, place in start.moves.places.items() if start is not None else ():
            assert start is not None
            self._jobs[key] = place.job
            if place.state is MoveState.FROZEN:
                self._sealed[key] = place.job, start.queues[key].log_end_offset
            incoming = start.moves.incoming.get(key)
            if incoming is not None:
                self._coming[key] = _Coming(
                    place.job, bytearray(incoming.slice), place.state is MoveState.READY
                )

    def forget(self, key: QueueKey) -> None:
        """The queue was deleted."""
        for known in (self._jobs, self._coming, self._sealed):
            known.pop(key, None)

    def seal(self, key: QueueKey, job: int, end: int) -> None:
        """SEAL: the queue ended there."""
        if job > self._jobs.get(key, 0):
            self._jobs[key] = job
            self._sealed[key] = job, end

    def unseal(self, key: QueueKey, job: int) -> None:
        """UNSEAL of a queue that is here: the job is over, also if its SEAL comes late."""
        if job >= self._jobs.get(key, 0):
            self._jobs[key] = job
            self._sealed.pop(key, None)

    def forward(self, key: QueueKey, job: int) -> int | None:
        """FORWARD: where the queue ended when it was sealed; None when that was not so."""
        sealed = self._sealed.pop(key, (0, 0))
        return sealed[1] if sealed[0] == job else None

    def feed(self, key: QueueKey, record: control_pb2.MoveQueue) -> Arrived | None:
        """A step on the target; what it brought when it was the last. Raises CorruptSegment."""
        coming = self._coming.get(key)
        match record.step:
            case control_pb2.MOVE_STEP_BEGIN:
                if record.job > self._jobs.get(key, 0):
                    self._jobs[key] = record.job
                    self._coming[key] = _Coming(record.job)
            case control_pb2.MOVE_STEP_ABORT:
                if coming is not None and coming.job == record.job:
                    del self._coming[key]
                self._jobs[key] = max(self._jobs.get(key, 0), record.job)
            case _ if coming is None or coming.job != record.job:
                pass
            case control_pb2.MOVE_STEP_PART if record.offset == len(coming.slice):
                coming.slice += record.part
            case control_pb2.MOVE_STEP_INGEST:
                coming.whole = hashlib.sha256(coming.slice).digest() == record.digest and _readable(
                    bytes(coming.slice)
                )
            case control_pb2.MOVE_STEP_ACTIVATE if coming.whole:
                del self._coming[key]
                found = read_slice(bytes(coming.slice))
                if found.queue.key != key:
                    raise CorruptSegment(f"queue {key} came with the slice of {found.queue.key}")
                return Arrived(
                    found.queue.log_end_offset,
                    found.queue.sealed,
                    tuple(found.producers.rows(key)),
                )
        return None


def _readable(data: bytes) -> bool:
    try:
        read_slice(data)
    except CorruptSegment:
        return False
    return True


def window_problems(
    windows: Mapping[int, Iterable[Entry]],
    stored: Mapping[int, Iterable[Entry]],
    log_start_offset: int,
    ended: Mapping[int, int],
) -> Iterator[str]:
    """What each producer's window and its newest stored batches (64, or all) do not agree about.

    `windows` are of producers that have a row. Up to its offset in `ended` nobody has to remember
    what a producer stored: the row that did has expired, and a new one knows nothing of it.
    """
    for producer, window in sorted(windows.items()):
        entries = [entry for entry in window if entry[3] and entry[2] >= log_start_offset]
        known = {entry[2]: entry for entry in stored.get(producer, ())}
        for entry in entries:
            if known.get(entry[2]) != entry:
                yield (
                    f"the window of producer {producer} remembers {entry[0]} to {entry[1]} at"
                    f" offset {entry[2]}, the log has {known.get(entry[2])} there"
                )
        owed = [entry for entry in known.values() if entry[2] > ended.get(producer, -1)]
        newest = max(owed, key=lambda entry: entry[2], default=None)
        last = max((entry[1] for entry in window), default=-1)
        if newest is not None and (not entries or entries[-1] != newest) and newest[1] >= last:
            yield (
                f"the window of producer {producer} does not remember its newest batch,"
                f" {newest[0]} to {newest[1]} at offset {newest[2]}"
            )
