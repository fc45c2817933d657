"""The rows of the sequence table: one producer on one queue, and all producers of a queue.

How it works. A row is the incarnation (epoch, session) that may write, the last sequence, and the
*window* of the newest 64 batches, packed into one bytearray of 32 bytes a batch. The window answers
retries with the original offset; what is older is known only to be stored (at or below the last
sequence).

Rows of a queue whose producer ids are next to each other are a *block*. From one snapshot to the
next a block keeps its canonical bytes until one of its rows changes: a snapshot stops the broker
group while it takes the rows, and of a million of them nearly all are idle. What is kept tells
when the longest idle of them was used, too, so that expiry need not look at each.

Invariants
1. Sequences in a window rise strictly; the last entry ends at the row's last sequence.
2. A window with fewer than 64 entries holds everything the row ever stored.
3. A row that a split copied begins with one *inherited* entry: sequences up to its last one were
   decided at the parent, which knows their offsets; here they are stored, at offset -1. Its count
   is 0; a delayed batch has offset -1 and its own count, for ever.
4. What a block keeps are the bytes of its rows: a row is changed by whoever has it from `change`,
   before anything else is asked of the queue's rows.

Format of a row. producer_id u64, epoch u32, session u32, last_sequence i64, last_time_us i64,
entries u32, then for each entry base_sequence i64, last_sequence i64, base_offset i64, count u32,
content_crc u32.

Not here: rows of all queues and their producers' names (`producers.py`), whether a new batch is
accepted (`state/admission/admission.py`).
"""

from __future__ import annotations

import struct
from collections.abc import ItemsView, Iterator
from enum import Enum
from typing import Final, NamedTuple

from semel.broker.state.apply.codec import Reader
from semel.broker.state.apply.results import WindowEntry
from semel.protos.errors import CorruptSegment
from semel.protos.ids import NO_SEQUENCE

WINDOW_BATCHES: Final = 64
ENTRY: Final = struct.Struct("<qqqII")
WINDOW_BYTES: Final = WINDOW_BATCHES * ENTRY.size
ROW: Final = struct.Struct("<QIIqqI")
BLOCK_BITS: Final = 6
"""A block is 64 producer ids: one busy producer costs a snapshot that many rows at most, and a
million rows of neighbours are 16,000 pieces."""
_BASE: Final = struct.Struct("<q")


class OutcomeKind(Enum):
    """The fate of a sequence, as the table knows it."""

    COMMITTED = "committed"
    """Stored, or inside the range of a stored batch that jumps: then the offset is -1, and the
    chain makes sure that it can never be stored by another batch. A delayed batch's are -1, too."""
    NOT_COMMITTED = "not_committed"
    """Not stored. Above the last sequence it may still come."""
    TOO_OLD = "too_old"
    """At or below the last sequence and older than the window, or the row has expired."""


class Outcome(NamedTuple):
    """The answer to one outcome query."""

    kind: OutcomeKind
    offset: int
    """-1 when not known."""
    last_sequence: int
    """-1 without a row."""


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
        """The newest entries, oldest first, as they are packed."""

    def fence(self, epoch: int, session: int, time_us: int) -> None:
        """An incarnation may write from now on."""
        self.epoch = epoch
        self.session = session
        self.last_time_us = time_us

    def append(
        self, base: int, last: int, base_offset: int, count: int, content_crc: int, time_us: int
    ) -> None:
        """The batch `[base, last]` is stored at `base_offset`."""
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
        """The row as a child's begins: it knows that all was stored, and not where."""
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
    """What a block keeps while none of its rows changes."""

    data: bytes
    oldest_us: int
    """Least `last_time_us`."""


class QueueRows:
    """All rows of one queue, at least one, by producer id."""

    __slots__ = ("_packed", "_rows", "_sizes")

    def __init__(self) -> None:
        self._rows: dict[int, Row] = {}
        self._sizes: dict[int, int] = {}
        """Rows of each block that has any."""
        self._packed: dict[int, _Packed] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[int]:
        """Producer ids, in no order."""
        return iter(self._rows)

    def items(self) -> ItemsView[int, Row]:
        """To look at."""
        return self._rows.items()

    def find(self, producer_id: int) -> Row | None:
        """A row to look at."""
        return self._rows.get(producer_id)

    def change(self, producer_id: int) -> Row | None:
        """A row to change."""
        self._packed.pop(producer_id >> BLOCK_BITS, None)
        return self._rows.get(producer_id)

    def create(self, producer_id: int, row: Row) -> None:
        """A row begins."""
        assert producer_id not in self._rows
        block = producer_id >> BLOCK_BITS
        self._packed.pop(block, None)
        self._rows[producer_id] = row
        self._sizes[block] = self._sizes.get(block, 0) + 1

    def remove(self, producer_id: int) -> Row | None:
        """A row ends."""
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
        """Producer ids of a block's rows, rising."""
        first = block << BLOCK_BITS
        return [each for each in range(first, first + (1 << BLOCK_BITS)) if each in self._rows]

    @classmethod
    def read(cls, reader: Reader, count: int) -> QueueRows:
        """The inverse of `pack`, of so many rows. Raises CorruptSegment."""
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
        """Producer ids of rows that were last used at that time or before."""
        found: set[int] = set()
        for block in self._sizes:
            packed = self._packed.get(block)
            if packed is None or packed.oldest_us <= limit_us:
                found.update(
                    each for each in self._ids(block) if self._rows[each].last_time_us <= limit_us
                )
        return found
