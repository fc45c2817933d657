"""The rows of the sequence table: one row for a producer on a queue, and all rows of a queue.

How it works. A row holds the incarnation (epoch, session) that may write, the last sequence, and
the *window* of the newest 64 batches, packed into one bytearray with 32 bytes for each batch. The
window answers retries with the original offset. Of an older batch (at or below the last sequence)
the row knows only that it is stored.

Rows of a queue whose producer ids are close together form a *block*. A block keeps its canonical
bytes from one snapshot to the next until one of its rows changes: a snapshot stops the broker group
while it takes the rows, and nearly all of a million rows are idle. The kept bytes come with the
time at which the longest idle row was used, so that expiry need not look at each row.

Invariants
1. Sequences in a window rise strictly; the last entry ends at the row's last sequence.
2. A window with fewer than 64 entries holds everything the row ever stored.
3. A row that a split copied begins with one *inherited* entry. Sequences up to the entry's last one
   were decided at the parent, which knows their offsets; here they count as stored, at offset -1.
   The count of an inherited entry is 0. A delayed batch keeps offset -1 and its own count for ever.
   The count of a batch of which messages were dropped has DROPPED_FLAG.
4. The bytes that a block keeps are those of its rows as they are now. So a row is changed only by
   the caller that got it from `change`, and before anything else is asked of the queue's rows.

Format of a row. producer_id u64, epoch u32, session u32, last_sequence i64, last_time_us i64,
entries u32, then for each entry base_sequence i64, last_sequence i64, base_offset i64, count u32,
content_crc u32.

Not here: the rows of all queues and the names of producers (`producers.py`), whether a new batch is
accepted (`state/admission/admission.py`).
"""

from __future__ import annotations

import struct
from collections.abc import ItemsView, Iterator
from enum import Enum
from typing import Final, NamedTuple

from semel.broker.state.apply.codec import Reader
from semel.broker.state.apply.results import DROPPED_FLAG, WindowEntry
from semel.protos.errors import CorruptSegment
from semel.protos.ids import NO_SEQUENCE

WINDOW_BATCHES: Final = 64
ENTRY: Final = struct.Struct("<qqqII")
WINDOW_BYTES: Final = WINDOW_BATCHES * ENTRY.size
ROW: Final = struct.Struct("<QIIqqI")
BLOCK_BITS: Final = 6
"""A block spans 64 producer ids: one busy producer costs a snapshot 64 rows at most, and a million
rows with adjacent ids are 16,000 pieces."""
_BASE: Final = struct.Struct("<q")


class OutcomeKind(Enum):
    """The fate of a sequence, as the table knows it."""

    COMMITTED = "committed"
    """Stored, or inside the range of a stored batch that skips sequences. Then the offset is -1,
    and the chain ensures that no other batch can ever store the sequence. The offset is -1 also for
    the sequences of a delayed batch."""
    NOT_COMMITTED = "not_committed"
    """Not stored. If it is above the last sequence it may still be stored later."""
    TOO_OLD = "too_old"
    """At or below the last sequence, but older than the window; or the row has expired."""


class Outcome(NamedTuple):
    """The answer to one outcome query."""

    kind: OutcomeKind
    offset: int
    """-1 if it is not known."""
    last_sequence: int
    """-1 if there is no row."""


class Row:
    """One producer on one queue."""

    __slots__ = ("epoch", "last_sequence", "last_time_us", "session", "window")

    def __init__(
        self,
        epoch: int,
        session: int,
        last_time_us: int,
        *,
        last_sequence: int = NO_SEQUENCE,
        window: bytes = b"",
    ) -> None:
        self.epoch = epoch
        self.session = session
        self.last_sequence = last_sequence
        self.last_time_us = last_time_us
        self.window: bytearray | bytes = window
        """The newest entries in packed form, oldest first."""

    def fence(self, epoch: int, session: int, time_us: int) -> None:
        """Makes this incarnation the one that may write from now on."""
        self.epoch = epoch
        self.session = session
        self.last_time_us = time_us

    def append(
        self, base: int, last: int, base_offset: int, count: int, content_crc: int, time_us: int
    ) -> None:
        """Records that the batch `[base, last]` is stored at `base_offset`."""
        window = self.window
        if not isinstance(window, bytearray):
            window = self.window = bytearray(window)
        window += ENTRY.pack(base, last, base_offset, count, content_crc)
        if len(window) > WINDOW_BYTES:
            del window[: ENTRY.size]
        self.last_sequence = last
        self.last_time_us = time_us

    def find(self, sequence: int) -> WindowEntry | None:
        """The newest remembered batch with base_sequence <= sequence."""
        window = self.window
        low, high = 0, len(window) // ENTRY.size
        while low < high:
            middle = (low + high) // 2
            if _BASE.unpack_from(window, middle * ENTRY.size)[0] <= sequence:
                low = middle + 1
            else:
                high = middle
        if not low:
            return None
        return WindowEntry(*ENTRY.unpack_from(window, (low - 1) * ENTRY.size))

    def outcome(self, sequence: int) -> Outcome:
        """The fate of one sequence."""
        last = self.last_sequence
        if sequence > last:
            return Outcome(OutcomeKind.NOT_COMMITTED, -1, last)
        entry = self.find(sequence)
        if entry is None:
            forgotten = len(self.window) >= WINDOW_BYTES
            kind = OutcomeKind.TOO_OLD if forgotten else OutcomeKind.NOT_COMMITTED
            return Outcome(kind, -1, last)
        base, end, count = entry.base_sequence, entry.last_sequence, entry.count
        if entry.inherited:
            kind = OutcomeKind.TOO_OLD if sequence <= end else OutcomeKind.NOT_COMMITTED
            return Outcome(kind, -1, last)
        if sequence > end or not count:
            return Outcome(OutcomeKind.NOT_COMMITTED, -1, last)
        if count & DROPPED_FLAG:
            return Outcome(OutcomeKind.COMMITTED, -1, last)
        if count == end - base + 1 or sequence == base:
            offset = entry.base_offset + sequence - base if entry.base_offset >= 0 else -1
        elif sequence == end:
            offset = entry.base_offset + count - 1 if entry.base_offset >= 0 else -1
        elif count == 2:
            return Outcome(OutcomeKind.NOT_COMMITTED, -1, last)
        else:
            offset = -1
        return Outcome(OutcomeKind.COMMITTED, offset, last)

    def inherited(self) -> Row:
        """A row for a child of a split: it knows that everything was stored, but not where."""
        last = self.last_sequence
        window = b"" if last == NO_SEQUENCE else ENTRY.pack(0, last, -1, 0, 0)
        return Row(self.epoch, self.session, self.last_time_us, last_sequence=last, window=window)

    def entries(self) -> tuple[WindowEntry, ...]:
        """The window, oldest first."""
        return tuple(WindowEntry(*fields) for fields in ENTRY.iter_unpack(self.window))

    def pack(self, producer_id: int) -> bytes:
        """Canonical bytes."""
        window = self.window
        head = ROW.pack(
            producer_id,
            self.epoch,
            self.session,
            self.last_sequence,
            self.last_time_us,
            len(window) // ENTRY.size,
        )
        return head + window


class _Packed(NamedTuple):
    """The bytes that a block keeps while none of its rows changes."""

    data: bytes
    oldest_us: int
    """The lowest `last_time_us` of the rows."""


class QueueRows:
    """All rows of one queue, at least one, by producer id."""

    __slots__ = ("_packed", "_rows", "_sizes")

    def __init__(self) -> None:
        self._rows: dict[int, Row] = {}
        self._sizes: dict[int, int] = {}
        """How many rows each block has; only blocks that have any."""
        self._packed: dict[int, _Packed] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[int]:
        """Iterates over the producer ids, in no particular order."""
        return iter(self._rows)

    def items(self) -> ItemsView[int, Row]:
        """Producer ids and rows, to read only."""
        return self._rows.items()

    def find(self, producer_id: int) -> Row | None:
        """The row, to read only."""
        return self._rows.get(producer_id)

    def change(self, producer_id: int) -> Row | None:
        """The row, to change now; see invariant 4."""
        self._packed.pop(producer_id >> BLOCK_BITS, None)
        return self._rows.get(producer_id)

    def create(self, producer_id: int, row: Row) -> None:
        """Adds a row."""
        assert producer_id not in self._rows
        block = producer_id >> BLOCK_BITS
        self._packed.pop(block, None)
        self._rows[producer_id] = row
        self._sizes[block] = self._sizes.get(block, 0) + 1

    def remove(self, producer_id: int) -> Row | None:
        """Removes a row and returns it."""
        row = self._rows.pop(producer_id, None)
        if row is None:
            return None
        block = producer_id >> BLOCK_BITS
        self._packed.pop(block, None)
        self._sizes[block] -= 1
        if not self._sizes[block]:
            del self._sizes[block]
        return row

    def pack(self) -> bytes:
        """Canonical bytes of all rows, by rising producer id."""
        return b"".join([self._block(block).data for block in sorted(self._sizes)])

    def _block(self, block: int) -> _Packed:
        packed = self._packed.get(block)
        if packed is None:
            rows = [(each, self._rows[each]) for each in self._ids(block)]
            packed = self._packed[block] = _Packed(
                b"".join([row.pack(each) for each, row in rows]),
                min(row.last_time_us for _, row in rows),
            )
        return packed

    def _ids(self, block: int) -> list[int]:
        """The producer ids of a block's rows in rising order."""
        first = block << BLOCK_BITS
        return [each for each in range(first, first + (1 << BLOCK_BITS)) if each in self._rows]

    @classmethod
    def read(cls, reader: Reader, count: int) -> QueueRows:
        """The inverse of `pack` for `count` rows. Raises CorruptSegment."""
        found = cls()
        block = before = -1
        began, oldest_us = reader.at, 0
        for _ in range(count):
            at = reader.at
            producer_id, epoch, session, last, time_us, entries = reader.unpack(ROW)
            if entries > WINDOW_BATCHES or producer_id <= before:
                raise CorruptSegment(f"state holds a malformed row of producer {producer_id}")
            before = producer_id
            if producer_id >> BLOCK_BITS != block:
                found._keep(block, reader.between(began, at), oldest_us)
                block, began, oldest_us = producer_id >> BLOCK_BITS, at, time_us
            window = bytes(reader.take(entries * ENTRY.size))
            oldest_us = min(oldest_us, time_us)
            found._rows[producer_id] = Row(
                epoch, session, time_us, last_sequence=last, window=window
            )
            found._sizes[block] = found._sizes.get(block, 0) + 1
        found._keep(block, reader.between(began, reader.at), oldest_us)
        return found

    def _keep(self, block: int, data: bytes, oldest_us: int) -> None:
        if data:
            self._packed[block] = _Packed(data, oldest_us)

    def idle_since(self, limit_us: int) -> set[int]:
        """Producer ids of the rows that were last used at `limit_us` or earlier."""
        found: set[int] = set()
        for block in self._sizes:
            packed = self._packed.get(block)
            if packed is None or packed.oldest_us <= limit_us:
                found.update(
                    each for each in self._ids(block) if self._rows[each].last_time_us <= limit_us
                )
        return found
