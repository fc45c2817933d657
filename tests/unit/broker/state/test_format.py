"""The tables in docs/formats/state.md say what the code does."""

from __future__ import annotations

import struct

import pytest

from semel.broker.state.apply import (
    cancelled_rows,
    compacted,
    coordination,
    delayed_copies,
    delayed_extent,
    delays,
    dropped_batches,
    expired,
    extents,
    id_windows,
    locks,
    lost_offsets,
    move_places,
    moves,
    queues,
    release_history,
    rows,
    stagers,
    state_machine,
    tiered,
)
from tests.kit.format_tables import fields, struct_format

DOCUMENT = "state.md"


@pytest.mark.parametrize(
    ("heading", "table", "code"),
    [
        ("Head", 0, state_machine._HEAD),
        ("Membership", 0, state_machine._MEMBERS),
        ("Queue", 0, queues._FIXED),
        ("Queue", 1, expired.HEAD),
        ("Lineage", 0, queues._LINEAGE),
        ("Lineage", 1, queues._CHILD),
        ("Compaction", 0, compacted._FIXED),
        ("Compaction", 1, compacted._MARK),
        ("Tier", 0, tiered._FIXED),
        ("Lost", 0, lost_offsets._FIXED),
        ("Lost", 1, lost_offsets._RANGE),
        ("Row", 0, rows.ROW),
        ("Row", 1, rows.ENTRY),
        ("Consumer group", 0, locks._FIXED),
        ("Stager", 0, stagers.STAGER),
        ("Stager", 1, stagers.STAGED_QUEUE),
        ("Stager", 2, stagers.STAGED_EXTENT),
        ("Pin", 0, stagers.PIN),
        ("Transaction", 0, coordination.HEAD),
        ("Transaction", 1, coordination.ROW),
        ("Move", 0, moves._PLACE),
        ("Move", 1, delayed_copies.COPIES),
        ("Move", 2, move_places._MIRROR),
        ("Delayed", 0, delays.HEAD),
        ("Delayed", 1, delays.DELAYED_QUEUE),
        ("Delayed", 2, delayed_extent.DELAYED_EXTENT),
        ("Delayed", 3, cancelled_rows._BATCH),
        ("Delayed", 4, struct.Struct("<Iq")),  # of `moved_origins.ORIGIN`
        ("Window of ids", 0, id_windows.WINDOW),
        ("Window of ids", 1, id_windows.MARK),
        ("Window of ids", 2, dropped_batches.BATCH),
        ("Window of ids", 3, dropped_batches.STRETCH),
        ("Window of ids", 4, id_windows._WAITING),
        ("Releases", 0, release_history.ROW),
    ],
)
def test_parts_have_the_documented_layout(heading: str, table: int, code: struct.Struct) -> None:
    assert struct_format(fields(DOCUMENT, heading, table)) == code.format


def test_full_chunks_have_the_documented_layout() -> None:
    described = fields(DOCUMENT, "Queue", 2)
    struct_format(described)
    assert sum(field.size for field in described) == extents.SEALED_BYTES
    *_, rows, low, _, _ = described
    assert (rows.offset, rows.size) == (extents._QUADS, 4 * extents.CHUNK)
    assert low.offset == extents.CHUNK * extents.EXTENT_BYTES
