"""Compaction of one queue: how far it is, and how a COMPACT record is applied.

How it works. The master decides which messages go and writes what is kept of a batch as COMPACTED
records. The COMPACT record behind them in the same entry names a *run*: whole extents that follow
each other. For each of them it has a *fate*, one byte: the extent stays as it is, batches take its
place, or it goes and the batch in front of it stands for its offsets, too. Offsets never change.

A *pass* over a queue takes several such records, from its start to an offset. It removes each
message of whose key there is a newer one below that offset. The last record says that the pass is
over. So below `compacted_to` no key has two messages, as of that pass.

A *tombstone*, a message without a value, is removed once the older messages of its key have been
gone for the topic's `tombstone_ms`: whoever has read an older one can read the tombstone as long.
`marks` say when which offsets were free of older messages.

Invariants
1. A run is applied only if its extents are still those that the master has read (a CRC of their
   places says so), and the queue is neither copied nor sealed by a move, nor without compaction by
   now. Else the record changes nothing, on every node alike: a trim, a move or new settings may
   have come first.
2. `compacted_to` and `gaps_to` never fall. Every gap in the offsets lies below `gaps_to`.
3. Times of marks rise, and so do their offsets.

Format. docs/formats/state.md.

Not here: which messages go (`semel.broker.compaction`), the columns of extents (`extents.py`).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, NamedTuple

from semel.broker.state.apply.codec import Reader
from semel.broker.state.apply.extents import Extents, RecordPlace
from semel.broker.state.apply.results import StateDiverged
from semel.protos.batch import (
    BROKER_HEADER_BYTES,
    BatchFlags,
    decode_broker_header,
    decode_header,
)
from semel.protos.errors import CorruptSegment
from semel.protos.ids import QueueKey
from semel.protos.v1 import common_pb2, control_pb2

GONE: Final = 0
"""Fate of an extent whose messages are all removed, behind one that batches have taken the place
of."""
STAYS: Final = 255
"""Fate of an extent that stays as it is. Every other number says how many batches take its
place."""
TOMBSTONE_MS_DEFAULT: Final = 24 * 3_600_000
_MARKS_A_TIME: Final = 16
"""Marks within `tombstone_ms`, about: a tombstone stays up to this part longer."""
_FIXED: Final = struct.Struct("<IqqqqQqQI")
_MARK: Final = struct.Struct("<qq")


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionSettings:
    """How a topic is compacted."""

    tombstone_ms: int = TOMBSTONE_MS_DEFAULT
    """How long a tombstone stays after the older messages of its key."""
    lag_ms: int = 0
    """Messages that were appended less than this long ago stay."""

    @classmethod
    def from_message(cls, settings: common_pb2.TopicSettings) -> CompactionSettings | None:
        """None if the topic is not compacted."""
        if not settings.HasField("compaction"):
            return None
        message = settings.compaction
        return cls(tombstone_ms=message.tombstone_ms, lag_ms=message.lag_ms)


class Mark(NamedTuple):
    """Below `offset` each key had one message at log time `time_us`."""

    offset: int
    time_us: int


class Rewritten(NamedTuple):
    """A COMPACTED record of the entry that is being applied."""

    key: QueueKey
    base_offset: int
    span: int
    append_time_us: int
    place: RecordPlace


@dataclass(slots=True)
class Compaction:
    """How far the compaction of a queue is."""

    compacted_to: int = 0
    gaps_to: int = 0
    tombstones: int = 0
    """Tombstones that the last pass has left, below `compacted_to`."""
    purged_to: int = 0
    """Below this offset the last pass has removed all tombstones."""
    records: int = 0
    """COMPACT records that have changed the queue."""
    marks: list[Mark] = field(default_factory=list)

    def horizon(self, now_us: int, tombstone_ms: int) -> int:
        """Tombstones below this offset may be removed at log time `now_us`."""
        until_us = now_us - tombstone_ms * 1000
        return max((mark.offset for mark in self.marks if mark.time_us <= until_us), default=0)

    def copy(self) -> Compaction:
        """One that can be changed by itself."""
        return Compaction(
            self.compacted_to,
            self.gaps_to,
            self.tombstones,
            self.purged_to,
            self.records,
            list(self.marks),
        )

    def dated(self, shift_us: int, gaps_to: int) -> Compaction:
        """The same in a log whose time is ahead by `shift_us`, with gaps below `gaps_to` at least:
        all marks keep their age."""
        made = self.copy()
        made.marks = [Mark(mark.offset, mark.time_us + shift_us) for mark in made.marks]
        made.gaps_to = max(made.gaps_to, gaps_to)
        return made

    def end_pass(self, record: control_pb2.Compact, tombstone_ms: int, now_us: int) -> None:
        """Notes that a pass is over."""
        self.compacted_to = max(self.compacted_to, record.compacted_to)
        self.tombstones = record.tombstones
        self.purged_to = record.tombstones_below
        marks = self.marks
        if len(marks) > 1:
            # The last but one only if it is far enough from its predecessor: few marks suffice.
            step_us = tombstone_ms * 1000 // _MARKS_A_TIME
            if marks[-1].time_us - marks[-2].time_us < step_us:
                marks.pop()
        marks.append(Mark(self.compacted_to, now_us))
        while len(marks) > 1 and marks[1].time_us <= now_us - tombstone_ms * 1000:
            del marks[0]

    def parts(self, settings: CompactionSettings | None) -> bytes:
        """Canonical bytes of both."""
        given = settings or CompactionSettings(tombstone_ms=0)
        head = _FIXED.pack(
            settings is not None,
            given.tombstone_ms,
            given.lag_ms,
            self.compacted_to,
            self.gaps_to,
            self.tombstones,
            self.purged_to,
            self.records,
            len(self.marks),
        )
        return head + b"".join(_MARK.pack(*mark) for mark in self.marks)

    @classmethod
    def read(cls, reader: Reader) -> tuple[Compaction, CompactionSettings | None]:
        """The inverse of `parts`. Raises CorruptSegment."""
        (
            on,
            tombstone_ms,
            lag_ms,
            compacted_to,
            gaps_to,
            tombstones,
            purged_to,
            records,
            count,
        ) = reader.unpack(_FIXED)
        if on > 1:
            raise CorruptSegment(f"state says {on} where a queue is compacted or not")
        settings = CompactionSettings(tombstone_ms=tombstone_ms, lag_ms=lag_ms) if on else None
        marks = [Mark(*reader.unpack(_MARK)) for _ in range(count)]
        return cls(compacted_to, gaps_to, tombstones, purged_to, records, marks), settings


def rewritten(index: int, position: int, payload: memoryview, term: int) -> Rewritten:
    """Reads a COMPACTED record. Raises CorruptBatch, StateDiverged."""
    head = decode_broker_header(payload)
    batch = decode_header(payload, BROKER_HEADER_BYTES)
    if (
        not batch.flags & BatchFlags.OFFSET
        or batch.deliver_at_us
        or not head.span
        or head.term != term
        or len(payload) != batch.stored_length
    ):
        raise StateDiverged(f"entry {index} at {position}: {batch} is no compacted batch")
    place = RecordPlace(index, position, len(payload))
    return Rewritten(batch.queue_key, head.base_offset, head.span, head.append_time_us, place)


def apply_compact(
    record: control_pb2.Compact,
    key: QueueKey,
    extents: Extents,
    batches: Sequence[Rewritten],
    log_end_offset: int,
) -> int | None:
    """Puts the batches in the places of their extents. Returns by how many bytes the queue grew; it
    shrinks as a rule. None, and nothing has changed, if the extents are not those of the record.

    Raises StateDiverged for a record that contradicts itself.
    """
    run = extents.run(record.from_offset, len(record.fates), log_end_offset)
    if run is None or (run.end_offset, run.crc) != (record.to_offset, record.places_crc):
        return None
    left = list(reversed(batches))
    places: list[list[tuple[int, RecordPlace]] | None] = []
    """What takes the place of each extent; None for one that stays."""
    begun: list[tuple[int, int]] = []
    """Base offset and span of the batches that the record brings, in their order."""
    for number, fate in enumerate(record.fates):
        base, end, time_us = run.bases[number], run.bases[number + 1], run.times[number]
        if fate == STAYS:
            places.append(None)
            continue
        taken = [left.pop() for _ in range(min(fate, len(left)))]
        first_wrong = bool(taken) and taken[0].base_offset != base
        follows = number > 0 and places[number - 1] is not None
        if (
            len(taken) != fate
            or first_wrong
            or (fate == GONE and not follows)
            or any(
                each.key != key
                or each.append_time_us != time_us
                or not base <= each.base_offset < end
                for each in taken
            )
        ):
            raise StateDiverged(f"queue {key}: what takes the place of extent {base} does not fit")
        begun += [(each.base_offset, each.span) for each in taken]
        places.append([(each.base_offset, each.place) for each in taken])
    # Each batch stands for the offsets up to the next extent that is there.
    if left or not _fits(begun, places, run.bases):
        raise StateDiverged(f"queue {key}: compacted batches do not stand for the run's offsets")
    return extents.replace(run.ordinal, places)


def _fits(
    begun: Sequence[tuple[int, int]],
    places: Sequence[list[tuple[int, RecordPlace]] | None],
    bases: Sequence[int],
) -> bool:
    """Whether the spans of the batches end where the next extent of the new run begins."""
    starts: list[int] = []
    for number, given in enumerate(places):
        starts += [bases[number]] if given is None else [base for base, _ in given]
    starts.append(bases[-1])
    follows = dict(pairwise(starts))
    return all(follows[base] == base + span for base, span in begun)
