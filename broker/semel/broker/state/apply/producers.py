"""The sequence table: what each producer has stored in each queue, and where.

How it works. The table has one row for each (queue, producer), by queue (`rows.py`). Only a fence
creates a row. A row outlives a trim of its messages, and only an entry of the log ends it.

Invariants
1. A name is kept once, and as long as its producer has a row.
2. The canonical bytes follow from the rows alone, whatever packed bytes blocks keep.

Format. u32 count of names, for each producer_id u64 and a text; u32 count of queues, for each
topic_id u64, queue_id u32, u32 count of rows and the rows. All are in rising order.

Not here: a row and its format (`rows.py`), whether a new batch is accepted
(`state/admission/admission.py`), floors of expired rows (`queues.py`).
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from typing import Final

from semel.broker.state.apply.codec import Reader, pack_text
from semel.broker.state.apply.results import ProducerState
from semel.broker.state.apply.rows import Outcome, OutcomeKind, QueueRows, Row
from semel.protos.errors import CorruptSegment
from semel.protos.ids import NO_SEQUENCE, Offset, ProducerId, QueueKey, Sequence
from semel.protos.queue_refs import queue_ref
from semel.protos.v1 import broker_pb2

_COUNT: Final = struct.Struct("<I")
_NAMED: Final = struct.Struct("<Q")
_QUEUE: Final = struct.Struct("<QII")


class SequenceTable:
    """All rows of one broker group."""

    __slots__ = ("_names", "_queues", "_rows_of", "row_count")

    def __init__(self) -> None:
        self._queues: dict[QueueKey, QueueRows] = {}
        self._names: dict[int, str] = {}
        self._rows_of: dict[int, int] = {}
        """How many rows each producer has."""
        self.row_count = 0

    def find(self, key: QueueKey, producer_id: int) -> Row | None:
        """The live row itself, to read only."""
        rows = self._queues.get(key)
        return None if rows is None else rows.find(producer_id)

    def change(self, key: QueueKey, producer_id: int) -> Row | None:
        """The live row itself, to change now; only the state machine does so."""
        rows = self._queues.get(key)
        return None if rows is None else rows.change(producer_id)

    def create(self, key: QueueKey, producer_id: int, row: Row) -> None:
        """Adds a row."""
        rows = self._queues.get(key)
        if rows is None:
            rows = self._queues[key] = QueueRows()
        rows.create(producer_id, row)
        self._count(producer_id)

    def _count(self, producer_id: int) -> None:
        self._rows_of[producer_id] = self._rows_of.get(producer_id, 0) + 1
        self.row_count += 1

    def remove(self, key: QueueKey, producer_id: int) -> Row | None:
        """Removes a row, and with the producer's last row its name."""
        rows = self._queues.get(key)
        row = None if rows is None else rows.remove(producer_id)
        if rows is None or row is None:
            return None
        if not len(rows):
            del self._queues[key]
        self._forget(producer_id)
        return row

    def inherit(self, key: QueueKey, child: QueueKey) -> None:
        """Gives a child of a split the rows of its parent."""
        for producer_id, row in self._items(key):
            self.create(child, producer_id, row.inherited())

    def only(self, key: QueueKey) -> SequenceTable:
        """A table of one queue's rows and their producers' names; it shares the rows."""
        table = SequenceTable()
        for producer_id, row in self._items(key):
            table.create(key, producer_id, row)
            table.set_name(ProducerId(producer_id), self._names.get(producer_id, ""))
        return table

    def adopt(self, key: QueueKey, other: SequenceTable) -> None:
        """Takes over the rows of a queue that was moved here."""
        for producer_id, row in other._items(key):
            self.create(key, producer_id, row)
            self.set_name(ProducerId(producer_id), other._names.get(producer_id, ""))

    def queues(self) -> list[QueueKey]:
        """The queues that have rows."""
        return list(self._queues)

    def _items(self, key: QueueKey) -> list[tuple[int, Row]]:
        """Producers and rows of a queue as they are now."""
        rows = self._queues.get(key)
        return [] if rows is None else list(rows.items())

    def remove_queue(self, key: QueueKey) -> None:
        """Removes all rows of a queue."""
        for producer_id, _ in self._items(key):
            self._forget(producer_id)
        self._queues.pop(key, None)

    def _forget(self, producer_id: int) -> None:
        self.row_count -= 1
        self._rows_of[producer_id] -= 1
        if not self._rows_of[producer_id]:
            del self._rows_of[producer_id]
            self._names.pop(producer_id, None)

    def name_of(self, producer_id: int) -> str | None:
        """The durable name of a producer that has a row; None for one without a name, or a row."""
        return self._names.get(producer_id)

    def set_name(self, producer_id: int, name: str) -> None:
        """Keeps the durable name of a producer that has a row; an empty name changes nothing."""
        if name and producer_id in self._rows_of:
            self._names[producer_id] = name

    def lookup(self, key: QueueKey, producer_id: int) -> ProducerState | None:
        """A copy of one row."""
        row = self.find(key, producer_id)
        return None if row is None else self._copy(key, producer_id, row)

    def rows(self, key: QueueKey | None = None) -> Iterator[ProducerState]:
        """Copies of the rows of one queue, or of all queues, by queue, then producer."""
        for queue_key in sorted(self._queues) if key is None else [key]:
            for producer_id, row in sorted(self._items(queue_key)):
                yield self._copy(queue_key, producer_id, row)

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
        """The fate of one sequence; NOT_COMMITTED without a row.

        `State.outcome` also considers expired rows.
        """
        row = self.find(key, producer_id)
        if row is None:
            return Outcome(OutcomeKind.NOT_COMMITTED, -1, NO_SEQUENCE)
        return row.outcome(sequence)

    def count(self, key: QueueKey) -> int:
        """How many rows a queue has."""
        rows = self._queues.get(key)
        return 0 if rows is None else len(rows)

    def expirable(
        self, key: QueueKey, now_us: int, idle_ms: int, rows_max: int, spare_ms: int = 0
    ) -> list[ProducerId]:
        """Producers whose row should end, in rising order.

        These are the rows that were idle for `idle_ms` of log time. If more than `rows_max` rows
        remain, the longest idle of them are added, except rows that changed in the last `spare_ms`.
        """
        rows = self._queues.get(key)
        if rows is None:
            return []
        chosen = rows.idle_since(now_us - idle_ms * 1000)
        surplus = len(rows) - len(chosen) - rows_max
        if surplus > 0:
            rest = [(row.last_time_us, n) for n, row in rows.items() if n not in chosen]
            if spare_ms:
                rest = [each for each in rest if each[0] <= now_us - spare_ms * 1000]
            chosen.update(number for _, number in sorted(rest)[:surplus])
        return [ProducerId(number) for number in sorted(chosen)]

    def queue_digest(self, key: QueueKey) -> bytes:
        """SHA-256 of the canonical bytes of a queue's rows, by rising producer id."""
        digest = hashlib.sha256()
        for producer_id, row in sorted(self._items(key)):
            digest.update(row.pack(producer_id))
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
            # All rows are one part, because each part has a cost for whoever writes them.
            parts.append(rows.pack())
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
            if key in table._queues:
                raise CorruptSegment(f"state holds the rows of queue {key} twice")
            if count:
                rows = table._queues[key] = QueueRows.read(reader, count)
                for producer_id in rows:
                    table._count(producer_id)
        for producer_id, name in names.items():
            table.set_name(producer_id, name)
        return table


def row_message(state: ProducerState, *, window: bool = True) -> broker_pb2.ProducerRow:
    """The row as the protocol sends it, with or without its window."""
    entries = state.window if window else ()
    return broker_pb2.ProducerRow(
        queue=queue_ref(state.queue_key),
        producer_id=state.producer_id,
        epoch=state.epoch,
        session=state.session,
        last_sequence=state.last_sequence,
        window=[
            broker_pb2.WindowEntry(
                base_sequence=entry.base_sequence,
                last_sequence=entry.last_sequence,
                base_offset=Offset(-1 if entry.dropped else entry.base_offset),
                count=entry.sent,
                dropped=entry.dropped,
            )
            for entry in entries
        ],
        last_time_us=state.last_time_us,
        name=state.name,
    )
