"""Bugs in moves of compacted queues, for worlds with both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

import numpy as np

from semel.broker.server import moves_service
from semel.broker.server.copied_records import read_copies
from semel.broker.state.apply.compacted import Compaction
from semel.broker.state.apply.queues import QueueState
from semel.protos.batch import BROKER_HEADER_BYTES, BatchFlags, check_batch, decode_broker_header
from semel.protos.columns import decode_columns
from semel.protos.compacted_rows import compact_rows, gap_mark, offsets_of_rows


def loses_marks() -> AbstractContextManager[object]:
    """Tombstones have to wait anew after each move."""
    dated = Compaction.dated

    def bad(self: Any, shift_us: int, gaps_to: int) -> Any:
        found = dated(self, shift_us, gaps_to)
        found.marks = found.marks[:-1]
        return found

    return patch.object(Compaction, "dated", bad)


def dates_marks_early() -> AbstractContextManager[object]:
    """Tombstones do not stay as long as they must."""
    dated = Compaction.dated

    def bad(self: Any, shift_us: int, gaps_to: int) -> Any:
        return dated(self, shift_us - 1_100_000, gaps_to)

    return patch.object(Compaction, "dated", bad)


def is_compacted_while_it_is_copied() -> AbstractContextManager[object]:
    compact = QueueState.compact

    def bad(self: Any, *args: Any) -> bool:
        held, self.held = self.held, False
        try:
            return compact(self, *args)
        finally:
            self.held = held

    return patch.object(QueueState, "compact", bad)


def _copied(change: Callable[[bytes], bytes]) -> AbstractContextManager[object]:
    """Has `change` make what goes over of each compacted batch with messages."""
    read = read_copies

    def bad(log: Any, extents: Any) -> list[bytes]:
        return [
            change(stored) if _has_messages(stored) else stored for stored in read(log, extents)
        ]

    return patch.object(moves_service, "read_copies", bad)


def _has_messages(stored: bytes) -> bool:
    header = check_batch(stored, BROKER_HEADER_BYTES)
    return bool(header.flags & BatchFlags.OFFSET and header.count)


def _rewritten(stored: bytes, *, closed: bool) -> bytes:
    head, data = decode_broker_header(stored), stored[BROKER_HEADER_BYTES:]
    header = check_batch(data)
    columns = decode_columns(data, header)
    offsets = offsets_of_rows(columns, head.base_offset, 0, head.span)
    kept = np.ones(len(offsets), np.bool_)
    if closed:
        offsets = np.arange(head.base_offset, head.base_offset + len(offsets))
    else:
        kept[-1] = False
    made = compact_rows(header, columns, offsets, kept)
    return stored[:BROKER_HEADER_BYTES] + (made[0][1] if made else gap_mark(header))


def closes_gaps() -> AbstractContextManager[object]:
    """Messages of a compacted batch get the first offsets of its span."""
    return _copied(lambda stored: _rewritten(stored, closed=True))


def loses_the_newest() -> AbstractContextManager[object]:
    """The last message of each compacted batch stays behind."""
    return _copied(lambda stored: _rewritten(stored, closed=False))


Plant = Callable[[], AbstractContextManager[object]]

PLANTS: dict[str, tuple[Plant, str, Sequence[int]]] = {
    "loses marks": (loses_marks, "came with", range(12)),
    "dates marks early": (dates_marks_early, "are removed at", range(30)),
    "is compacted while it is copied": (
        is_compacted_while_it_is_copied,
        "compacted while it moves",
        range(12, 36),
    ),
    "closes gaps": (closes_gaps, "was stored there", range(40)),
    "loses the newest": (loses_the_newest, "is gone", (16, 30)),
}
"""Each with words of its error, and seeds of which one at least finds it."""
