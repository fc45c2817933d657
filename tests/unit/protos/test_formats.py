"""The tables in `docs/formats/` say what the code does."""

from __future__ import annotations

import struct
from dataclasses import fields as dataclass_fields
from pathlib import Path
from typing import Any

import pytest

from semel.protos import batch, body, dropped, frames, streams
from semel.protos.batch import BatchFlags, BatchHeader, BrokerHeader, Codec
from semel.protos.frames import RecordKind
from tests.kit import format_tables as reader
from tests.kit.format_tables import Field, fields, struct_format, tables

BATCH = "batch.md"
FRAME = "frame.md"


@pytest.mark.parametrize(
    ("document", "heading", "code", "size"),
    [
        (BATCH, "Client header", batch.HEADER_STRUCT, batch.HEADER_BYTES),
        (BATCH, "Broker header", batch.BROKER_HEADER_STRUCT, batch.BROKER_HEADER_BYTES),
        (FRAME, "Frame header", frames.FRAME_HEADER_STRUCT, frames.FRAME_HEADER_BYTES),
    ],
)
def test_headers_have_the_documented_layout(
    document: str, heading: str, code: struct.Struct, size: int
) -> None:
    assert struct_format(fields(document, heading)) == code.format
    assert code.size == size


@pytest.mark.parametrize(("table", "dtype"), [(0, dropped.DROPPED), (1, dropped.ANSWER)])
def test_dropped_messages_have_the_documented_layout(table: int, dtype: Any) -> None:
    described = fields(BATCH, "Dropped messages", table)
    assert struct.calcsize(struct_format(described)) == dtype.itemsize
    found = {name: (offset, of.itemsize) for name, (of, offset) in dtype.fields.items()}
    assert found == {field.name: (field.offset, field.size) for field in described}


def test_the_record_header_has_the_documented_layout() -> None:
    described = fields(FRAME, "Record")
    assert struct_format(described) == frames.RECORD_HEADER_STRUCT.format
    assert frames.RECORD_HEADER_STRUCT.size == frames.RECORD_HEADER_BYTES
    assert tables(FRAME, "Record")[0][3]["offset"] == str(frames.RECORD_HEADER_BYTES)


def _value_at(data: bytes, field: Field) -> int:
    (value,) = struct.unpack_from("<" + field.code, data, field.offset)
    return int(value)


@pytest.mark.parametrize(
    ("heading", "table", "code"),
    [
        ("Produce request", 0, streams.PRODUCE_HEAD_STRUCT),
        ("Produce request", 1, streams.PREFIX_STRUCT),
        ("Fetch reply", 0, streams.PREFIX_STRUCT),
    ],
)
def test_stream_envelopes_have_the_documented_layout(
    heading: str, table: int, code: struct.Struct
) -> None:
    assert struct_format(fields("streams.md", heading, table)) == code.format


def test_each_batch_field_stands_where_its_name_is_documented() -> None:
    names = [field.name for field in dataclass_fields(BatchHeader)]
    distinct = {name: 100 + place for place, name in enumerate(names)}
    distinct |= {"codec": Codec.ZSTD, "flags": BatchFlags.SOURCE_POSITIONS}
    data = BatchHeader(**distinct).encode()  # type: ignore[arg-type]
    described = {field.name: field for field in fields(BATCH, "Client header")}
    assert {name: _value_at(data, described[name]) for name in names} == distinct
    assert described.keys() - set(names) == {"magic", "version", "reserved", "header_crc"}


def test_each_broker_field_stands_where_its_name_is_documented() -> None:
    names = [field.name for field in dataclass_fields(BrokerHeader)]
    distinct = {name: 100 + place for place, name in enumerate(names)}
    data = BrokerHeader(**distinct).encode()  # type: ignore[arg-type]
    described = {field.name: field for field in fields(BATCH, "Broker header")}
    assert {name: _value_at(data, described[name]) for name in names} == distinct


def test_each_frame_field_stands_where_its_name_is_documented() -> None:
    data, _ = frames.build_frame(101, 102, 103, [(RecordKind.NOOP, [])] * 5)
    header = frames.decode_frame_header(data)
    described = {field.name: field for field in fields(FRAME, "Frame header")}
    for field in dataclass_fields(frames.FrameHeader):
        assert _value_at(data, described[field.name]) == getattr(header, field.name)
    assert (header.index, header.term, header.time_us, header.record_count) == (101, 102, 103, 5)


def test_crcs_cover_what_is_documented() -> None:
    for document, heading, at in [
        (BATCH, "Client header", batch.HEADER_CRC_AT),
        (BATCH, "Broker header", batch.BROKER_HEADER_CRC_AT),
        (FRAME, "Frame header", frames.FRAME_HEADER_CRC_AT),
    ]:
        (row,) = [row for row in tables(document, heading)[0] if row["field"] == "header_crc"]
        assert int(row["offset"]) == at
        assert row["meaning"] == f"CRC32C of bytes 0 to {at - 1}"


@pytest.mark.parametrize(
    ("document", "heading", "column", "members"),
    [
        (BATCH, "Flags", "bit", {flag.name: flag.value for flag in BatchFlags}),
        (BATCH, "Codecs", "value", {codec.name: codec.value for codec in Codec}),
        (FRAME, "Kinds", "value", {kind.name: kind.value for kind in RecordKind}),
    ],
)
def test_enumerations_are_documented_completely(
    document: str, heading: str, column: str, members: dict[str, int]
) -> None:
    (rows,) = tables(document, heading)
    assert {row["name"]: int(row[column]) for row in rows} == members


def test_the_body_has_the_documented_buffers_in_order() -> None:
    rows = tables(BATCH, "Body")[1]
    documented: dict[int, int] = {}
    for row in rows:
        if row["flag"]:
            bit = BatchFlags[row["flag"]].value
            documented[bit] = documented.get(bit, 0) + 1
    assert list(documented.items()) == list(body.BUFFER_COUNTS)
    assert [row["column"] for row in rows if not row["flag"]] == ["value", "value"]


def test_magics_versions_and_limits_are_documented() -> None:
    for document, heading, magic, version in [
        (BATCH, "Client header", batch.BATCH_MAGIC, batch.BATCH_VERSION),
        (FRAME, "Frame header", frames.FRAME_MAGIC, frames.FRAME_VERSION),
    ]:
        rows = {row["field"]: row["meaning"] for row in tables(document, heading)[0]}
        assert rows["magic"] == f"`{magic.decode()}`"
        assert rows["version"] == str(version)
    assert batch.BATCH_BYTES_MAX == 8 << 20
    assert batch.BATCH_BYTES_DEFAULT == 4 << 20
    assert batch.MESSAGE_BYTES_MAX == 1 << 20
    assert batch.UNCOMPRESSED_BYTES_MAX == 64 << 20
    assert frames.FRAME_BYTES_MAX == 15 << 20


@pytest.mark.parametrize(
    ("wrong", "right"),
    [("| 16 | 4 | u32 | body_crc", "| 20 | 4 | u32 | body_crc"), ("i64 | base_", "u64 | base_")],
)
def test_a_wrong_table_is_noticed(
    wrong: str, right: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The planted bug: a document that was edited and not the code."""
    text = (reader.FORMATS / BATCH).read_text(encoding="utf-8")
    assert wrong in text
    (tmp_path / BATCH).write_text(text.replace(wrong, right), encoding="utf-8")
    monkeypatch.setattr(reader, "FORMATS", tmp_path)
    try:
        same = struct_format(fields(BATCH, "Client header")) == batch.HEADER_STRUCT.format
    except ValueError:
        same = False
    assert not same
