"""Reading one stored batch of this node's log."""

from __future__ import annotations

from semel.broker.log import IndexUnavailable, Log
from semel.protos.errors import CorruptBatch


def read_batch(log: Log, place: tuple[int, int, int], subject: str) -> bytes:
    """BLOCKING. The stored batch at (index, position, length) of its record.

    `subject` begins the error if it is not here, verb included. Raises CorruptBatch,
    CorruptSegment.
    """
    try:
        return bytes(log.read_record(*place))
    except IndexUnavailable as error:
        raise CorruptBatch(f"{subject} not readable on this node: {error}") from None
