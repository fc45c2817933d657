"""What the log alone says of moved queues, for `semel verify --exactly-once`.

How it works. `MovedTables` reads the steps of moves beside the table that is being rebuilt
(`verify.py`): pieces of slices are put together again; when the queue is activated their rows are
the queue's table from then on. A sealed queue must end where it ended when it is forwarded.

A log holds steps that were refused, too: late ones, repeated ones, those of another job. So each
step is told apart by its job here as well, and one that is not the present job's own takes nothing
from it.

`window_problems` holds a queue's windows against the batches that lie in its log, whichever group
stored them: a queue that came with rows and without their windows would take its next retry for
something new, and nothing else would show it.

Not here: refusals that need more than the log tells of the queue (a child whose parent still holds
messages, a copy that is not whole): the controllers take no later step of such a job.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from semel.broker.state.apply.machine import State
from semel.broker.state.apply.moves import MoveState
from semel.broker.state.apply.results import ProducerState
from semel.broker.state.apply.slices import read_slice
from semel.protos.errors import CorruptSegment
from semel.protos.ids import QueueKey
from semel.protos.v1 import control_pb2

Entry = tuple[int, int, int, int, int]
"""Base and last sequence, base offset, count, CRC of the content."""


@dataclass(slots=True)
class _Coming:
    slice: bytearray = field(default_factory=bytearray)
    whole: bool = False


@dataclass(slots=True)
class _Known:
    """What a log has told of one queue's moves."""

    job: int = 0
    """The newest that changed anything; an older one changes nothing any more."""
    sealed_end: int | None = None
    """Where the queue ended when this job sealed it."""
    coming: _Coming | None = None
    """This job brings it here."""


@dataclass(frozen=True, slots=True)
class Left:
    """A queue that was sealed is dropped here."""

    sealed_end: int
    """Where it ended when it was sealed."""


@dataclass(frozen=True, slots=True)
class Arrived:
    """A queue was activated here."""

    log_end_offset: int
    split: bool
    rows: tuple[ProducerState, ...]


class MovedTables:
    """Moves, as far as they change tables."""

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

    def forget(self, key: QueueKey) -> None:
        """The queue was deleted."""
        self._known.pop(key, None)

    def step(
        self, record: control_pb2.MoveQueue, key: QueueKey, end: int | None, *, split: bool
    ) -> Left | Arrived | None:
        """The next step of a move in this log: what it means for the queue's table.

        `end` is where the queue ends now, None if it is not here; `split`: it has children, and
        stays. Raises CorruptSegment.
        """
        known = self._known.setdefault(key, _Known())
        newer, its_own = record.job > known.job, record.job == known.job
        match record.step:
            # The source.
            case control_pb2.MOVE_STEP_SEAL:
                if newer and end is not None and known.sealed_end is None and not split:
                    self._known[key] = _Known(record.job, sealed_end=end)
            case control_pb2.MOVE_STEP_UNSEAL:  # also of a job whose SEAL comes late
                if end is not None and (newer or (its_own and known.sealed_end is not None)):
                    self._known[key] = _Known(record.job)
            case control_pb2.MOVE_STEP_FORWARD:
                if its_own and known.sealed_end is not None:
                    self._known[key] = _Known(record.job)
                    return Left(known.sealed_end)
            # The target.
            case control_pb2.MOVE_STEP_BEGIN:
                if newer and end is None:
                    self._known[key] = _Known(record.job, coming=_Coming())
            case control_pb2.MOVE_STEP_ABORT:  # also of a job whose BEGIN comes late
                if end is None and (newer or (its_own and known.coming is not None)):
                    self._known[key] = _Known(record.job)
            case _ if known.coming is not None and its_own:
                return self._bring(record, key, known.coming)
        return None

    def _bring(
        self, record: control_pb2.MoveQueue, key: QueueKey, coming: _Coming
    ) -> Arrived | None:
        """A step of the job that brings the queue here."""
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
                slice_ = read_slice(bytes(coming.slice))
                if slice_.queue.key != key:
                    raise CorruptSegment(f"queue {key} came with the slice of {slice_.queue.key}")
                return Arrived(
                    slice_.queue.log_end_offset,
                    slice_.queue.sealed,
                    tuple(slice_.producers.rows(key)),
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
