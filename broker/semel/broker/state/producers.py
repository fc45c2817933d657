"""The sequence table: what each producer has stored in each queue, and where.

How it works. One row for each (queue, producer): the incarnation (epoch, session) that may write,
the last sequence, and the *window* of the newest 64 batches, packed into one bytearray of 32 bytes
a batch. The window answers retries with the original offset; what is older is known only to be
stored (at or below the last sequence). Rows are created by a fence and by nothing else, live on
when the messages are trimmed, and end by an entry only.

Invariants
1. Sequences in a window rise strictly; the last entry ends at the row's last sequence.
2. A window with fewer than 64 entries holds everything the row ever stored.
3. A name is kept once, as long as a row of its producer exists.
4. A row that a split copied begins with one *inherited* entry: sequences up to its last one were
   decided at the parent, which knows their offsets; here they are stored, at offset -1.
5. The canonical bytes that an idle row keeps are those of its fields: what changes a row that is
   in a table (`append`, `fence`, a new window) drops them.

Format of a row. producer_id u64, epoch u32, session u32, last_sequence i64, last_time_us i64,
entries u32, then for each entry base_sequence i64, last_sequence i64, base_offset i64, count u32,
content_crc u32.

Not here: whether a new batch is accepted (`judge.py`), floors of expired rows (`queues.py`).
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from enum import Enum
from typing import Final, NamedTuple

from semel.broker.state.codec import Reader, pack_text
from semel.broker.state.results import ProducerState, WindowEntry
from semel.protos.errors import CorruptSegment
from semel.protos.ids import NO_SEQUENCE, Offset, ProducerId, QueueKey, Sequence
from semel.protos.v1 import broker_pb2, common_pb2

WINDOW_BATCHES: Final = 64
ENTRY: Final = struct.Struct("<qqqII")
WINDOW_BYTES: Final = WINDOW_BATCHES * ENTRY.size
ROW: Final = struct.Struct("<QIIqqI")
_BASE: Final = struct.Struct("<q")
_COUNT: Final = struct.Struct("<I")
_NAMED: Final = struct.Struct("<Q")
_QUEUE: Final = struct.Struct("<QII")


class OutcomeKind(Enum):
    """The fate of a sequence, as the table knows it."""

    COMMITTED = "committed"
    """Stored, or inside the range of a stored batch that jumps: then the offset is -1, and the
    chain makes sure that it can never be stored by another batch."""
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

    __slots__ = ("_packed", "_window", "epoch", "last_sequence", "last_time_us", "session")

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
        self._window: bytearray | bytes = window
        """Empty while `_packed` has it."""
        self._packed: bytes | None = None
        """Canonical bytes, if nothing has changed since `packed`."""

    @property
    def window(self) -> bytearray | bytes:
        """The newest entries, oldest first, as they are packed."""
        return self._window if self._packed is None else self._packed[ROW.size :]

    @window.setter
    def window(self, entries: bytearray | bytes) -> None:
        self._window = entries
        self._packed = None

    def fence(self, epoch: int, session: int, time_us: int) -> None:
        """An incarnation may write from now on."""
        self.window = self.window
        self.epoch = epoch
        self.session = session
        self.last_time_us = time_us

    def append(
        self, base: int, last: int, base_offset: int, count: int, content_crc: int, time_us: int
    ) -> None:
        """The batch `[base, last]` is stored at `base_offset`."""
        window = self.window
        if not isinstance(window, bytearray):
            window = bytearray(window)
        self.window = window
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
            offset = entry.base_offset + sequence - base
        elif sequence == end:
            offset = entry.base_offset + count - 1
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

    def packed(self, producer_id: int) -> bytes:
        """The same, kept while the row is idle: a snapshot stops the broker group while it takes
        the rows, and most of them have not changed since the one before."""
        if self._packed is None:
            self._packed, self._window = self.pack(producer_id), b""
        return self._packed


class SequenceTable:
    """All rows of one broker group."""

    __slots__ = ("_names", "_queues", "_rows_of", "row_count")

    def __init__(self) -> None:
        self._queues: dict[QueueKey, dict[int, Row]] = {}
        self._names: dict[int, str] = {}
        self._rows_of: dict[int, int] = {}
        """How many rows each producer has."""
        self.row_count = 0

    def find(self, key: QueueKey, producer_id: int) -> Row | None:
        """The live row itself; only the fold changes it."""
        rows = self._queues.get(key)
        return None if rows is None else rows.get(producer_id)

    def create(self, key: QueueKey, producer_id: int, row: Row) -> None:
        """A row begins."""
        rows = self._queues.setdefault(key, {})
        assert producer_id not in rows
        rows[producer_id] = row
        self._rows_of[producer_id] = self._rows_of.get(producer_id, 0) + 1
        self.row_count += 1

    def remove(self, key: QueueKey, producer_id: int) -> Row | None:
        """A row ends, and with its last row the producer's name."""
        rows = self._queues.get(key, {})
        row = rows.pop(producer_id, None)
        if row is None:
            return None
        if not rows:
            del self._queues[key]
        self._forget(producer_id)
        return row

    def inherit(self, key: QueueKey, child: QueueKey) -> None:
        """A new queue begins with the rows of its parent."""
        for producer_id, row in self._queues.get(key, {}).items():
            self.create(child, producer_id, row.inherited())

    def only(self, key: QueueKey) -> SequenceTable:
        """A table with the rows of one queue, which are shared, and their producers' names."""
        table = SequenceTable()
        for producer_id, row in self._queues.get(key, {}).items():
            table.create(key, producer_id, row)
            table.set_name(ProducerId(producer_id), self._names.get(producer_id, ""))
        return table

    def adopt(self, key: QueueKey, other: SequenceTable) -> None:
        """A queue that was moved here brings its rows."""
        for producer_id, row in other._queues.get(key, {}).items():
            self.create(key, producer_id, row)
            self.set_name(ProducerId(producer_id), other._names.get(producer_id, ""))

    def remove_queue(self, key: QueueKey) -> None:
        """All rows of a queue end."""
        for producer_id in self._queues.pop(key, {}):
            self._forget(producer_id)

    def _forget(self, producer_id: int) -> None:
        self.row_count -= 1
        self._rows_of[producer_id] -= 1
        if not self._rows_of[producer_id]:
            del self._rows_of[producer_id]
            self._names.pop(producer_id, None)

    def set_name(self, producer_id: int, name: str) -> None:
        """Remembers the durable name of a producer that has a row; an empty one changes nothing."""
        if name and producer_id in self._rows_of:
            self._names[producer_id] = name

    def lookup(self, key: QueueKey, producer_id: int) -> ProducerState | None:
        """A copy of one row."""
        row = self.find(key, producer_id)
        return None if row is None else self._copy(key, producer_id, row)

    def rows(self, key: QueueKey | None = None) -> Iterator[ProducerState]:
        """Copies of the rows of one queue or of all, by queue, then producer."""
        for queue_key in sorted(self._queues) if key is None else [key]:
            rows = self._queues.get(queue_key, {})
            for producer_id in sorted(rows):
                yield self._copy(queue_key, producer_id, rows[producer_id])

    def _copy(self, key: QueueKey, producer_id: int, row: Row) -> ProducerState:
        return ProducerState(
            queue_key=key,
            producer_id=ProducerId(producer_id),
            epoch=row.epoch,
            session=row.session,
            last_sequence=Sequence(row.last_sequence),
            last_time_us=row.last_time_us,
            name=self._names.get(producer_id, ""),
            window=row.entries(),
        )

    def outcome(self, key: QueueKey, producer_id: int, sequence: int) -> Outcome:
        """The fate of one sequence; without a row NOT_COMMITTED. See `State.outcome`, which also
        knows of expired rows."""
        row = self.find(key, producer_id)
        if row is None:
            return Outcome(OutcomeKind.NOT_COMMITTED, -1, NO_SEQUENCE)
        return row.outcome(sequence)

    def expirable(
        self, key: QueueKey, now_us: int, idle_ms: int, rows_max: int
    ) -> list[ProducerId]:
        """Producers whose row should end, in rising order.

        Idle for `idle_ms` of log time, and of the rest the longest idle beyond `rows_max`.
        """
        rows = self._queues.get(key, {})
        limit = now_us - idle_ms * 1000
        chosen = {number for number, row in rows.items() if row.last_time_us <= limit}
        surplus = len(rows) - len(chosen) - rows_max
        if surplus > 0:
            rest = [(row.last_time_us, n) for n, row in rows.items() if n not in chosen]
            chosen.update(number for _, number in sorted(rest)[:surplus])
        return [ProducerId(number) for number in sorted(chosen)]

    def queue_digest(self, key: QueueKey) -> bytes:
        """SHA-256 of the canonical bytes of a queue's rows, by rising producer id."""
        digest = hashlib.sha256()
        rows = self._queues.get(key, {})
        for producer_id in sorted(rows):
            digest.update(rows[producer_id].pack(producer_id))
        return digest.digest()

    def parts(self) -> list[bytes]:
        """Canonical bytes: names by id, then the rows by queue and id."""
        parts = [_COUNT.pack(len(self._names))]
        for producer_id in sorted(self._names):
            parts.append(_NAMED.pack(producer_id) + pack_text(self._names[producer_id]))
        parts.append(_COUNT.pack(len(self._queues)))
        for key in sorted(self._queues):
            rows = self._queues[key]
            parts.append(_QUEUE.pack(key.topic_id, key.queue_id, len(rows)))
            # One part for all rows: whoever writes parts pays for each of them.
            parts.append(b"".join([rows[each].packed(each) for each in sorted(rows)]))
        return parts

    @classmethod
    def read_parts(cls, reader: Reader) -> SequenceTable:
        """The inverse of `parts`. Raises CorruptSegment."""
        table = cls()
        names: dict[int, str] = {}
        for _ in range(reader.unpack(_COUNT)[0]):
            (producer_id,) = reader.unpack(_NAMED)
            names[producer_id] = reader.text()
        for _ in range(reader.unpack(_COUNT)[0]):
            topic_id, queue_id, count = reader.unpack(_QUEUE)
            key = QueueKey(topic_id, queue_id)
            for _ in range(count):
                producer_id, epoch, session, last, time_us, entries = reader.unpack(ROW)
                if entries > WINDOW_BATCHES or table.find(key, producer_id) is not None:
                    raise CorruptSegment(f"state holds a malformed row of producer {producer_id}")
                window = bytes(reader.take(entries * ENTRY.size))
                row = Row(epoch, session, time_us, last_sequence=last, window=window)
                table.create(key, producer_id, row)
        for producer_id, name in names.items():
            table.set_name(producer_id, name)
        return table


def row_message(state: ProducerState, *, window: bool = True) -> broker_pb2.ProducerRow:
    """A row as the protocol sends it, with its window unless told otherwise."""
    entries = state.window if window else ()
    return broker_pb2.ProducerRow(
        queue=common_pb2.QueueRef(
            topic_id=state.queue_key.topic_id, queue_id=state.queue_key.queue_id
        ),
        producer_id=state.producer_id,
        epoch=state.epoch,
        session=state.session,
        last_sequence=state.last_sequence,
        window=[
            broker_pb2.WindowEntry(
                base_sequence=entry.base_sequence,
                last_sequence=entry.last_sequence,
                base_offset=Offset(entry.base_offset),
                count=entry.count,
            )
            for entry in entries
        ],
        last_time_us=state.last_time_us,
        name=state.name,
    )
