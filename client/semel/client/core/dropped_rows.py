"""Messages of a batch that were not stored because their ids were known, by their place in a part.

How it works. An acknowledgement names them by sequence (`semel.protos.dropped`). Here they get
their places among the rows of the part that was sent, so that a handle, which knows its place,
finds them, and counts how many of the rows before it were dropped: only the others have offsets.

Not here: handles (`producer/futures.py`), which messages are dropped (the broker).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from semel.protos.batch import decode_header
from semel.protos.columns import decode_columns
from semel.protos.dropped import ANSWER, Verdict
from semel.protos.errors import CorruptBatch, IdConflict

Rows = npt.NDArray[np.int64]
_VERDICTS: Final = np.array([Verdict.DUPLICATE, Verdict.CONFLICT], np.uint32)


def read_table(data: bytes) -> npt.NDArray[Any]:
    """Returns the dropped messages of an acknowledgement, by rising sequence. Raises
    CorruptBatch."""
    if len(data) % ANSWER.itemsize:
        raise CorruptBatch(f"dropped messages have {len(data)} bytes")
    table = np.frombuffer(data, ANSWER)
    if not np.isin(table["verdict"], _VERDICTS).all():
        raise CorruptBatch("a dropped message has an unknown verdict")
    if not (np.diff(table["sequence"]) > 0).all():
        raise CorruptBatch("the sequences of dropped messages do not rise")
    return table


class DroppedRows:
    """The dropped messages of one part."""

    __slots__ = ("_ids", "_table", "places")

    def __init__(
        self, places: Rows, table: npt.NDArray[Any], ids: Mapping[int, bytes | None]
    ) -> None:
        """`ids` has the ids of conflicts, by place."""
        self.places = places
        """Rising, one for each row of the table."""
        self._table = table
        self._ids = ids

    @classmethod
    def of(
        cls, table: npt.NDArray[Any], payload: bytes, positions: Rows | None, trimmed: int
    ) -> DroppedRows:
        """Reads the rows of a batch as it was sent: the part without its first `trimmed` rows.

        `positions` are the part's, if it has source positions.
        """
        header = decode_header(payload)
        if positions is None:
            places = table["sequence"] - header.base_sequence + trimmed
        else:
            places = np.searchsorted(positions, table["sequence"])
        conflicts = places[table["verdict"] == Verdict.CONFLICT].tolist()
        ids: dict[int, bytes | None] = {}
        if conflicts:
            column = decode_columns(payload, header).message_ids
            if column is not None:
                pieces = column.take(np.array(conflicts) - trimmed).to_pylist()
                ids = dict(zip(conflicts, pieces, strict=True))
        return cls(places, table, ids)

    def find(self, place: int) -> int | None:
        """Returns the index of a row, or None if it was not dropped."""
        at = int(np.searchsorted(self.places, place))
        return at if at < len(self.places) and self.places[at] == place else None

    def before(self, place: int) -> int:
        """Returns how many of the rows before `place` were dropped."""
        return int(np.searchsorted(self.places, place))

    def first(self, index: int) -> tuple[int, int, int]:
        """Returns the queue, the offset and the due time of the message that has the id. The offset
        is -1 if that was delayed, and the due time 0 if it was not."""
        row = self._table[index]
        return int(row["queue"]), int(row["offset"]), int(row["due_us"])

    def error(self, index: int, topic: str) -> IdConflict | None:
        """Returns the error of a conflict; None for a duplicate."""
        if self._table["verdict"][index] != Verdict.CONFLICT:
            return None
        queue, offset, due_us = self.first(index)
        message_id = self._ids.get(int(self.places[index])) or b""
        where = f"delayed until {due_us} us" if offset < 0 else f"at offset {offset}"
        return IdConflict(
            f"topic {topic!r} has a message with the id {message_id!r} and other content, in queue"
            f" {queue} {where}; this one is not stored: give it an id of its own, or send what was"
            " sent before",
            message_id=message_id,
            queue_id=queue,
            offset=offset,
            due_us=due_us,
        )

    def first_conflict(self, topic: str) -> IdConflict | None:
        """Returns the error of the first conflict, or None without any."""
        if not self.conflicts:
            return None
        return self.error(int(np.argmax(self.is_conflict)), topic)

    @property
    def is_conflict(self) -> npt.NDArray[np.bool_]:
        """One for each dropped row."""
        found: npt.NDArray[np.bool_] = self._table["verdict"] == Verdict.CONFLICT
        return found

    @property
    def conflicts(self) -> int:
        """Number of messages whose id is stored with other content."""
        return int(np.count_nonzero(self.is_conflict))

    @property
    def duplicates(self) -> int:
        """Number of messages that are stored already."""
        return len(self.places) - self.conflicts
