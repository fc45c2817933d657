"""Messages as an application sees them.

How it works. A fetched batch becomes `Rows`: its columns, turned into Python lists one by one and
only when somebody asks. A `Message` is a row number beside it, so that a loop which looks at values
alone pays for values alone. A batch of a few messages, which a reader that keeps up usually gets,
is decoded without Arrow unless the caller asks for Arrow.

The offsets of a batch that was compacted have gaps: the batch names them, and some may be left over
behind its last message. A batch that only stands for a gap has no message.

Not here: bytes and their checks (`semel.protos.columns`).
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import numpy as np

from semel.client.core import letters
from semel.client.core.batch_context import decode_context
from semel.client.core.due_in_second import DueInSecond
from semel.client.core.letters import Origin
from semel.protos.arrays import numbers_of, offsets_of, pairs_of, pieces_of
from semel.protos.arrow import INSTALLED, missing
from semel.protos.batch import (
    BROKER_HEADER_BYTES,
    BatchFlags,
    BatchHeader,
    check_batch,
    decode_broker_header,
    decode_header,
)
from semel.protos.columns import Columns, decode_columns
from semel.protos.errors import CorruptBatch
from semel.protos.few_rows import cut_few
from semel.protos.ids import QueueKey

if TYPE_CHECKING:
    import pyarrow as pa

if INSTALLED:
    from semel.client.core import arrow_rows

ARROW_SCHEMA: Final[Any] = arrow_rows.ARROW_SCHEMA if INSTALLED else None
"""Columns of `poll_arrow`; None where Arrow is not installed."""
Value: TypeAlias = bytes | Any
"""bytes, or None. Most programs never send None, so type checkers do not ask for a case for it."""
OFFSET_END: Final = 1 << 62
"""Above every offset."""


class RecordMetadata(NamedTuple):
    """Where a message was stored."""

    topic: str
    queue: int
    offset: int
    """-1 for a message that is delayed, which gets one when it is due, and for a duplicate whose
    offset the queue does not remember. Of a duplicate by message id, `queue` and `offset` are the
    place of the first message with the id."""
    sequence: int
    duplicate: bool
    """It was stored by an earlier attempt, or the topic has a message with its id."""
    timestamp_us: int
    """Log time of its append, microseconds since the epoch; 0 when not known."""
    due_us: int = 0
    """When the first message with the id of a duplicate is due, microseconds since 1970, if it was
    delayed; else 0."""
    due_in_second: DueInSecond | None = None
    """Messages and bytes that are due in the second of a delayed message, its own included, in its
    topic on its broker group, when it was acknowledged. None for a message that is not delayed, and
    where it is not known: in transactions, from an older broker, and after some retries."""


class Rows:
    """Rows of one stored batch, decoded column by column."""

    __slots__ = (
        "_columns",
        "_context",
        "_headers",
        "_ids",
        "_keys",
        "_offsets",
        "_sequences",
        "_stamps",
        "_stored",
        "_values",
        "base_offset",
        "count",
        "end_offset",
        "header",
        "queue",
        "row_start",
        "token",
        "topic",
    )

    def __init__(
        self,
        topic: str,
        queue: QueueKey,
        stored: memoryview,
        base_offset: int,
        row_start: int,
        row_end: int,
        token: int = 0,
    ) -> None:
        """Checks CRCs and lengths. `base_offset` is the offset of row `row_start`. Of a compacted
        batch the messages with offsets from `base_offset` on count, below
        `base_offset + row_end - row_start`.

        Raises CorruptBatch.
        """
        batch = stored[BROKER_HEADER_BYTES:]
        decode_broker_header(stored)
        header = check_batch(batch)
        end_offset = base_offset + row_end - row_start
        offsets: list[int] | None = None
        columns: Columns | None = None
        if header.flags & BatchFlags.OFFSET:
            numbers = np.empty(0, np.int64)
            if header.count:
                columns = decode_columns(batch, header)
                assert columns.offsets is not None, "the flag says so"
                numbers = numbers_of(columns.offsets, np.int64)
            row_start, row_end = np.searchsorted(numbers, (base_offset, end_offset)).tolist()
            offsets = numbers[row_start:row_end].tolist()
            if columns is not None:
                columns = columns.slice(row_start, row_end)
        elif not 0 <= row_start <= row_end <= header.count:
            raise CorruptBatch(f"batch of {header.count} has no messages {row_start} to {row_end}")
        self.topic = topic
        self.queue = queue
        self.token = token
        """Fencing token of the lock under which they were fetched; 0 without a group."""
        self.header: BatchHeader = header
        self.base_offset = base_offset
        self.end_offset = end_offset
        """Readers go on here once they have all messages."""
        self.row_start = row_start
        self.count = row_end - row_start
        self._offsets = offsets
        """The offset of each message; None if they follow one another from `base_offset` on."""
        self._stored = stored
        self._columns = columns
        self._values: list[bytes | None] | None = None
        self._keys: list[bytes | None] | None = None
        self._headers: list[list[tuple[str, bytes]]] | None = None
        self._context: list[tuple[str, bytes]] | None = None
        self._ids: list[bytes | None] | None = None
        self._stamps: list[int] | None = None
        self._sequences: list[int] | None = None

    @classmethod
    def whole(cls, topic: str, queue: QueueKey, stored: memoryview) -> Rows:
        """Returns all messages of a stored batch, wherever they are in the queue: their offsets
        mean nothing. Raises CorruptBatch."""
        header = decode_header(stored, BROKER_HEADER_BYTES)
        named = bool(header.flags & BatchFlags.OFFSET)
        return cls(topic, queue, stored, 0, 0, OFFSET_END if named else header.count)

    @property
    def size(self) -> int:
        """Bytes of the whole stored batch."""
        return len(self._stored)

    def offset_of(self, row: int) -> int:
        """Returns the offset of a message, counted from the first of these rows."""
        return self.base_offset + row if self._offsets is None else self._offsets[row]

    def position(self, row: int) -> int:
        """Returns where a reader goes on that has the messages in front of `row`: past the gap
        behind them if these are all."""
        if self._offsets is None:
            return self.base_offset + row
        if row == self.count:
            return self.end_offset
        return self._offsets[row - 1] + 1 if row else self.base_offset

    def rows_below(self, offset: int) -> int:
        """Returns how many of the messages have an offset below `offset`."""
        if self._offsets is None:
            return min(max(0, offset - self.base_offset), self.count)
        return bisect_left(self._offsets, offset)

    @property
    def columns(self) -> Columns:
        columns = self._columns
        if columns is None:
            columns = decode_columns(self._stored[BROKER_HEADER_BYTES:], self.header)
            if self.count != self.header.count:
                columns = columns.slice(self.row_start, self.row_start + self.count)
            self._columns = columns
        return columns

    @property
    def values(self) -> list[bytes | None]:
        if self._values is None:
            few = self._cut()
            self._values = pieces_of(self.columns.values) if few is None else few[0]
        return self._values

    @property
    def keys(self) -> list[bytes | None]:
        if self._keys is None:
            if (few := self._cut()) is not None:
                self._keys = few[1]
            elif (keys := self.columns.keys) is None:
                self._keys = [None] * self.count
            else:
                self._keys = pieces_of(keys)
        return self._keys

    def _cut(self) -> tuple[list[bytes | None], list[bytes | None]] | None:
        """Decodes values and keys, and keeps them, without Arrow. Returns None unless the messages
        are few and have no other fields."""
        if self._columns is not None:
            return None
        few = cut_few(self._stored[BROKER_HEADER_BYTES:], self.header)
        if few is None:
            return None
        rows = slice(self.row_start, self.row_start + self.count)
        values: list[bytes | None] = [*few[0][rows]]
        self._values, self._keys = values, few[1][rows]
        return values, self._keys

    def _has(self, flag: BatchFlags) -> bool:
        """The batch has this column."""
        return bool(self.header.flags & flag)

    @property
    def headers(self) -> list[list[tuple[str, bytes]]]:
        if self._headers is None:
            headers = self.columns.headers if self._has(BatchFlags.HEADERS) else None
            if headers is None:
                self._headers = [[] for _ in range(self.count)]
            else:
                self._headers = pairs_of(headers)
        return self._headers

    @property
    def stored_context(self) -> bytes | None:
        """What the stored batch carries for all its messages, as it has it."""
        return self.columns.context if self._has(BatchFlags.CONTEXT) else None

    @property
    def context(self) -> list[tuple[str, bytes]]:
        """Headers that the stored batch carries for all its messages."""
        if self._context is None:
            self._context = decode_context(self.stored_context)
        return self._context

    def headers_of(self, start: int, end: int) -> list[list[tuple[str, bytes]]]:
        """Returns the headers of those of rows `[start, end)` that have any, and of some between
        them, without decoding those of the others."""
        headers = self.columns.headers if self._has(BatchFlags.HEADERS) else None
        if headers is None:
            return []
        rows = np.flatnonzero(np.diff(offsets_of(headers)[start : end + 1]))
        if not len(rows):
            return []
        first, last = int(rows[0]), int(rows[-1])
        return pairs_of(headers.slice(start + first, last - first + 1))

    @property
    def message_ids(self) -> list[bytes | None]:
        if self._ids is None:
            ids = self.columns.message_ids if self._has(BatchFlags.MESSAGE_ID) else None
            self._ids = [None] * self.count if ids is None else ids.to_pylist()
        return self._ids

    @property
    def stamps(self) -> list[int]:
        if self._stamps is None:
            stamps = self.columns.timestamps if self._has(BatchFlags.TIMESTAMP) else None
            self._stamps = (
                [self.header.first_timestamp_us] * self.count
                if stamps is None
                else stamps.to_pylist()
            )
        return self._stamps

    @property
    def sequences(self) -> list[int]:
        if self._sequences is None:
            sequences = self.columns.sequences if self._has(BatchFlags.SEQUENCE) else None
            first = self.header.base_sequence + self.row_start
            self._sequences = (
                list(range(first, first + self.count))
                if sequences is None
                else sequences.to_pylist()
            )
        return self._sequences

    def messages(self, start: int = 0, end: int | None = None) -> list[Message]:
        """Returns messages of rows `[start, end)`, counted from the first of these rows."""
        return [Message(self, row) for row in range(start, self.count if end is None else end)]

    def arrow(self, start: int = 0) -> pa.RecordBatch:
        """Returns rows from `start` on as ARROW_SCHEMA, without a copy if the batch has no
        codec. Raises InvalidRequest where Arrow is not installed."""
        if not INSTALLED:
            raise missing("Arrow's record batch")
        columns = self.columns
        if start:
            columns = columns.slice(start, self.count)
        first, offset = self.row_start + start, self.base_offset + start
        return arrow_rows.record_batch(
            columns, self.header, first, offset, self.topic, self.queue.queue_id
        )


class Message:
    """One message. Attributes are read-only and decoded on first use."""

    __slots__ = ("_row", "_rows")

    def __init__(self, rows: Rows, row: int) -> None:
        self._rows = rows
        self._row = row

    @property
    def rows(self) -> Rows:
        """The batch that holds it; for the consumer's own use."""
        return self._rows

    @property
    def topic(self) -> str:
        return self._rows.topic

    @property
    def topic_id(self) -> int:
        """The topic's id, which differs from that of a deleted topic of the same name."""
        return self._rows.queue.topic_id

    @property
    def queue(self) -> int:
        return self._rows.queue.queue_id

    @property
    def offset(self) -> int:
        return self._rows.offset_of(self._row)

    @property
    def key(self) -> bytes | None:
        return self._rows.keys[self._row]

    @property
    def value(self) -> Value:
        """None says that the key has no value any more."""
        return self._rows.values[self._row]

    @property
    def headers(self) -> list[tuple[str, bytes]]:
        return self._rows.headers[self._row]

    @property
    def carried_headers(self) -> list[tuple[str, bytes]]:
        """Its headers, and those that its batch carries for all its messages."""
        headers, context = self.headers, self._rows.context
        if not context or {name for name, _ in headers} & {name for name, _ in context}:
            return headers
        return [*headers, *context]

    @property
    def origin(self) -> Origin:
        """The (topic, queue, offset) at which it was stored first: its own, unless it is a retry, a
        dead letter or was brought back."""
        return letters.read(self.headers).origin or Origin(self.topic, self.queue, self.offset)

    @property
    def attempt(self) -> int:
        """The number of this attempt at processing it, from 1."""
        return letters.read(self.headers).attempts + 1

    @property
    def timestamp_us(self) -> int:
        """The timestamp that the producer gave, or the time when its batch was begun; microseconds
        since the epoch."""
        return self._rows.stamps[self._row]

    @property
    def message_id(self) -> bytes | None:
        """The message id that the sender chose, or None. Other messages may have the same."""
        return self._rows.message_ids[self._row]

    @property
    def producer_id(self) -> int:
        return self._rows.header.producer_id

    @property
    def sequence(self) -> int:
        """The number that the producer gave it in this queue."""
        return self._rows.sequences[self._row]

    def __repr__(self) -> str:
        return f"Message(topic={self.topic!r}, queue={self.queue}, offset={self.offset})"

    def as_dict(self) -> dict[str, Any]:
        """Returns all attributes, for printing."""
        return {
            "topic": self.topic,
            "queue": self.queue,
            "offset": self.offset,
            "timestamp_us": self.timestamp_us,
            "key": self.key,
            "value": self.value,
            "headers": self.headers,
            "message_id": self.message_id,
            "producer_id": self.producer_id,
            "sequence": self.sequence,
        }
