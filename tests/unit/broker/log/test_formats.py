"""The tables in `docs/formats/` say what the log's files hold."""

from __future__ import annotations

import struct

import google_crc32c
import numpy as np
import pytest

from semel.broker.log import checkpoint, current, hard_state, kept, recovery, segment
from tests.kit.format_tables import fields, struct_format

SEGMENT = "segment.md"
TABLES = [
    (SEGMENT, "Segment header", segment.HEADER_STRUCT),
    (SEGMENT, "Seal", segment.SEAL_STRUCT),
    (SEGMENT, "ID", segment.ID_STRUCT),
    (SEGMENT, "Kept header", kept.HEADER_STRUCT),
    (SEGMENT, "Kept record", kept.RECORD_STRUCT),
    (SEGMENT, "Kept table entry", kept.ENTRY_STRUCT),
    (SEGMENT, "Kept trailer", kept.TRAILER_STRUCT),
    ("checkpoint.md", "Checkpoint header", checkpoint.HEADER_STRUCT),
    ("hard-state.md", "Hard state", hard_state.RECORD_STRUCT),
    ("hard-state.md", "Current", current.CURRENT_STRUCT),
]


@pytest.mark.parametrize(("document", "heading", "code"), TABLES)
def test_layouts_are_as_documented(document: str, heading: str, code: struct.Struct) -> None:
    assert struct_format(fields(document, heading)) == code.format


def _values(document: str, heading: str, data: bytes) -> dict[str, int]:
    return {
        field.name: int(struct.unpack_from("<" + field.code, data, field.offset)[0])
        for field in fields(document, heading)
        if field.type != "bytes" and field.name != "zero"
    }


def test_a_segment_header_holds_what_is_documented() -> None:
    header = segment.SegmentHeader(
        sequence=3,
        generation=2**63 + 5,
        first_index=77,
        previous_term=4,
        id_capacity=100,
        boot=2**64 - 3,
    )
    page = header.encode()
    assert len(page) == segment.PAGE
    assert segment.decode_header(page) == header
    assert _values(SEGMENT, "Segment header", page) == {
        "version": 1,
        "sequence": 3,
        "generation": 2**63 + 5,
        "first_index": 77,
        "previous_term": 4,
        "id_capacity": 100,
        "frames_at": 8192 + 4096,
        "boot": 2**64 - 3,
        "crc": google_crc32c.value(page[:60]),
    }


def test_a_seal_holds_what_is_documented() -> None:
    seal = segment.Seal(count=5, end=9000, last_term=6, ids_crc=7)
    seed = segment.salt(11)
    raw = segment.encode_seal(seal, seed)
    assert segment.decode_seal(bytes(segment.SEAL_AT) + raw, seed) == seal
    assert segment.decode_seal(bytes(segment.SEAL_AT) + raw, segment.salt(12)) is None
    salted = google_crc32c.value((11).to_bytes(8, "little") + raw[:44])
    assert _values(SEGMENT, "Seal", raw) == {
        "count": 5,
        "end": 9000,
        "last_term": 6,
        "ids_crc": 7,
        "crc": salted,
    }


def test_an_id_holds_what_is_documented() -> None:
    seed = segment.salt(11)
    raw = segment.encode_id(70, 4, 12_288, 120, 2, seed)
    assert _values(SEGMENT, "ID", raw) == {
        "index": 70,
        "term": 4,
        "place": 12_288 // 8,
        "length": 120,
        "lag": 2,
        "crc": google_crc32c.value((11).to_bytes(8, "little") + raw[:28]),
    }
    found = segment.decode_id(bytes(32) + raw, 1, seed)
    assert found == segment.FrameId(70, 4, 12_288, 120, 2)
    assert found.durable_before == 68
    assert segment.decode_id(bytes(32) + raw, 0, seed) is None
    assert segment.decode_id(bytes(32) + raw, 1, segment.salt(12)) is None
    assert segment.decode_id(raw[:31], 0, seed) is None


def test_ids_are_read_in_bulk_as_one_by_one() -> None:
    seed = segment.salt(1)
    area = b"".join(segment.encode_id(n, n + 1, n * 8, n * 16, n, seed) for n in range(1, 9))
    rows = np.frombuffer(area, recovery._ID_ROW)
    for slot, row in enumerate(rows):
        one = segment.decode_id(area, slot, seed)
        assert one is not None
        assert one.index == row["index"]
        assert one.term == row["term"]
        assert one.position == int(row["place"]) * 8
        assert (one.length, one.lag) == (row["length"], row["lag"])


@pytest.mark.parametrize("size", [0, 3, segment.HEADER_STRUCT.size - 1])
def test_a_cut_header_is_no_header(size: int) -> None:
    page = segment.SegmentHeader(
        sequence=1, generation=2, first_index=3, previous_term=0, id_capacity=5
    ).encode()
    assert segment.decode_header(page[:size]) is None
