"""Requests from anybody: whatever the bytes are, an entity or one clear error."""

from __future__ import annotations

import io
import random
import struct
from typing import Any

import pytest
from kio.index import load_request_schema
from kio.serial import entity_writer

from semel.gateway.schema_reader import ITEMS_MAX, read
from semel.gateway.versions import TABLE, ApiKey
from semel.protos.errors import InvalidRequest
from tests.kit.kafka_entities import random_entity

SERVED = [
    (key, version)
    for key, each in TABLE.items()
    for version in range(each.lowest, each.highest + 1)
]


def written(entity: Any) -> bytes:
    buffer = io.BytesIO()
    entity_writer(type(entity))(buffer, entity)
    return buffer.getvalue()


@pytest.mark.parametrize(("key", "version"), SERVED)
def test_what_kio_writes_is_read(key: ApiKey, version: int) -> None:
    kind = load_request_schema(key, version)
    rng = random.Random(f"{key} {version}")
    for _ in range(20):
        entity = random_entity(kind, rng)
        data = written(entity)
        found, end = read(kind, memoryview(data))
        assert end == len(data)
        assert written(found) == data


@pytest.mark.parametrize(("key", "version"), SERVED)
def test_any_other_bytes_are_one_clear_error(key: ApiKey, version: int) -> None:
    kind = load_request_schema(key, version)
    rng = random.Random(f"{key} {version} bad")
    data = written(random_entity(kind, rng))
    for cut in range(len(data)):
        try:
            found, end = read(kind, memoryview(data)[:cut])
        except InvalidRequest:
            continue
        assert end <= cut, found
    for _ in range(50):
        bad = bytearray(data or b"\0")
        for _ in range(rng.randint(1, 4)):
            bad[rng.randrange(len(bad))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        try:
            read(kind, memoryview(bad))
        except InvalidRequest:
            continue


@pytest.mark.parametrize("count", [2**31 - 1, 10**9, -2, -(2**31)])
def test_an_array_that_lies_about_its_length_takes_no_memory(count: int) -> None:
    kind = load_request_schema(ApiKey.METADATA, 8)
    with pytest.raises(InvalidRequest, match="entries are announced"):
        read(kind, memoryview(struct.pack(">i", count) + bytes(20)))


def test_a_request_has_so_many_entries_at_most() -> None:
    kind = load_request_schema(ApiKey.METADATA, 8)
    many = struct.pack(">i", ITEMS_MAX + 1) + bytes(2 * (ITEMS_MAX + 1) + 3)
    with pytest.raises(InvalidRequest, match="more than"):
        read(kind, memoryview(many))


def test_a_tagged_field_that_is_unknown_is_passed_over() -> None:
    kind = load_request_schema(ApiKey.API_VERSIONS, 3)
    data = b"\x02a\x02b" + b"\x01" + b"\x63\x03xyz"
    found, end = read(kind, memoryview(data))
    assert (found.client_software_name, found.client_software_version) == ("a", "b")
    assert end == len(data)


def test_a_tagged_field_that_reaches_beyond_the_request_is_refused() -> None:
    kind = load_request_schema(ApiKey.API_VERSIONS, 3)
    with pytest.raises(InvalidRequest, match="announced"):
        read(kind, memoryview(b"\x02a\x02b\x01\x63\xff\xff\xff\xff\x07"))
