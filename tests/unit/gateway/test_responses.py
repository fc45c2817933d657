"""Responses that are written by hand are those that kio reads, in all versions."""

from __future__ import annotations

from typing import Any

import pytest
from kio.index import load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader

from semel.gateway.fetching.fetch_response import Fetched, encode_fetched
from semel.gateway.producing.produce_response import Produced, encode_produced
from semel.gateway.versions import TABLE, ApiKey
from semel.gateway.wire import LENGTH, Raw, RequestHead, encode_response


def read(key: ApiKey, version: int, raw: Raw) -> Any:
    data = b"".join(encode_response(RequestHead(key, version, 77), raw))
    assert LENGTH.unpack_from(data)[0] == len(data) - LENGTH.size
    assert data[4:8] == (77).to_bytes(4, "big")
    entity, size = entity_reader(load_response_schema(key, version))(data, 8)
    assert 8 + size == len(data)
    return entity


def versions(key: ApiKey) -> list[int]:
    return list(range(TABLE[key].lowest, TABLE[key].highest + 1))


@pytest.mark.parametrize("version", versions(ApiKey.PRODUCE))
def test_produce(version: int) -> None:
    topics = [
        ("orders", {0: Produced(base_offset=5), 3: Produced(ErrorCode.message_too_large)}),
        ("ünï", {1: Produced(ErrorCode.invalid_record, message="no")}),
    ]
    found = read(ApiKey.PRODUCE, version, encode_produced(topics, throttle_ms=9, version=version))
    assert [topic.name for topic in found.responses] == ["orders", "ünï"]
    first, second = found.responses[0].partition_responses
    assert (first.index, first.error_code, first.base_offset) == (0, ErrorCode.none, 5)
    assert (second.index, second.error_code) == (3, ErrorCode.message_too_large)
    assert second.base_offset == -1
    assert found.throttle_time.total_seconds() == 0.009
    if version >= 8:
        assert first.error_message is None
        assert found.responses[1].partition_responses[0].error_message == "no"


def test_a_producer_that_is_unknown_is_told_where_the_log_begins() -> None:
    """Java's client sends the same again for as long as it is told -1."""
    unknown = [("orders", {0: Produced(ErrorCode.unknown_producer_id), 1: Produced(base_offset=5)})]
    for version in range(5, TABLE[ApiKey.PRODUCE].highest + 1):
        found = read(
            ApiKey.PRODUCE, version, encode_produced(unknown, throttle_ms=0, version=version)
        )
        parts = found.responses[0].partition_responses
        assert [each.log_start_offset for each in parts] == [0, -1]


@pytest.mark.parametrize("version", versions(ApiKey.FETCH))
def test_fetch(version: int) -> None:
    topics = [
        (
            "orders",
            [
                Fetched(2, high_watermark=10, log_start_offset=3, batches=(b"abc", b"de")),
                Fetched(4, ErrorCode.offset_out_of_range),
            ],
        ),
        ("empty", []),
    ]
    raw = encode_fetched(
        topics, version=version, throttle_ms=4, error=ErrorCode.none, session_id=88
    )
    found = read(ApiKey.FETCH, version, raw)
    one, other = found.responses[0].partitions
    assert (one.partition_index, one.error_code, one.high_watermark) == (2, ErrorCode.none, 10)
    assert one.last_stable_offset == 10
    assert bytes(one.records) == b"abcde"
    assert not one.aborted_transactions
    assert (other.partition_index, other.error_code) == (4, ErrorCode.offset_out_of_range)
    assert not other.records
    if version >= 5:
        assert (one.log_start_offset, other.log_start_offset) == (3, -1)
    if version >= 7:
        assert (found.error_code, found.session_id) == (ErrorCode.none, 88)
    assert found.throttle_time.total_seconds() == 0.004
