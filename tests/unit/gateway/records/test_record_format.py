"""The page about the format says what the code does."""

from __future__ import annotations

from semel.gateway.records import RecordCodec, record_errors
from semel.gateway.records.own_headers import DELIVER_AT, MESSAGE_ID
from semel.gateway.records.record_batch import (
    CRC_AT,
    CRC_FROM,
    HEAD_BYTES,
    HEAD_STRUCT,
    LENGTH_ENDS_AT,
    MAGIC_AT,
    RecordHead,
)
from tests.kit.format_tables import fields, struct_format, tables

PAGE = "kafka-records.md"


def test_the_header_has_the_documented_layout() -> None:
    described = fields(PAGE, "Header")
    assert struct_format(described) == HEAD_STRUCT.format.replace(">", "<")
    assert HEAD_STRUCT.format.startswith(">")
    assert HEAD_STRUCT.size == HEAD_BYTES
    assert tuple(field.name for field in described) == RecordHead._fields
    places = {field.name: field.offset for field in described}
    assert places["magic"] == MAGIC_AT
    assert places["crc"] == CRC_AT
    assert places["attributes"] == CRC_FROM
    assert places["leader_epoch"] == LENGTH_ENDS_AT


def test_the_codecs_are_documented() -> None:
    assert [int(row["value"]) for row in tables(PAGE, "Codecs")[0]] == list(RecordCodec)


def test_every_refusal_is_documented() -> None:
    described = {
        row["error of Kafka"].strip("`").lower() for row in tables(PAGE, "What is refused")[0]
    }
    kinds = [
        kind
        for kind in vars(record_errors).values()
        if isinstance(kind, type) and issubclass(kind, record_errors.RefusedRecords)
    ]
    assert described == {kind.kafka_code.name for kind in kinds}


def test_the_headers_are_documented() -> None:
    described = [row["header"].strip("`") for row in tables(PAGE, "Semel's headers")[0]]
    assert described == [DELIVER_AT, MESSAGE_ID]
