"""A handler says what it knows, and the response has what its version has of that."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from kio.index import load_request_schema
from kio.schema.errors import ErrorCode

from semel.gateway.answers import answer
from semel.gateway.versions import ApiKey


def request(key: ApiKey, version: int) -> Any:
    kind = load_request_schema(key, version)
    return object.__new__(kind)  # what it asks for does not matter here


def test_a_field_that_the_version_lacks_is_left_out() -> None:
    values = {"error_code": ErrorCode.none, "throttle_time": 7}
    old = answer(request(ApiKey.HEARTBEAT, 0), **values)
    assert not hasattr(old, "throttle_time")
    new = answer(request(ApiKey.HEARTBEAT, 1), **values)
    assert new.throttle_time == timedelta(milliseconds=7)


def test_a_field_that_no_version_has_is_a_mistake_of_ours() -> None:
    with pytest.raises(AssertionError, match="throtle_time"):
        answer(request(ApiKey.HEARTBEAT, 1), error_code=ErrorCode.none, throtle_time=7)


def test_a_field_without_a_default_must_be_said() -> None:
    with pytest.raises(AssertionError, match="error_code"):
        answer(request(ApiKey.HEARTBEAT, 1))


def test_entities_are_mappings() -> None:
    members = ({"member_id": name, "metadata": b"m", "group_instance_id": None} for name in "ab")
    said = answer(
        request(ApiKey.JOIN_GROUP, 2),
        error_code=ErrorCode.none,
        protocol_name="range",
        leader="a",
        member_id="b",
        members=members,
    )
    assert [member.member_id for member in said.members] == ["a", "b"]
    assert not hasattr(said.members[0], "group_instance_id")
    assert said.generation_id == -1
