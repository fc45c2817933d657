"""Reading one stored record of this node's log, if it still has it."""

from __future__ import annotations

from semel.broker.log import IndexUnavailable, Log, RecordRef
from semel.protos.errors import CorruptSegment


def read_or_none(log: Log, ref: RecordRef) -> bytes | None:
    """BLOCKING. None when the record is not here any more, or cannot be read."""
    try:
        return bytes(log.read_record(ref.index, ref.position, ref.length))
    except (IndexUnavailable, CorruptSegment):
        return None
