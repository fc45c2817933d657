"""Messages of Kombu as Semel's, and back, whoever wrote them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.contrib.kombu.envelope import due_us, incoming, is_expired, outgoing
from semel.protos.errors import InvalidRequest
from tests.unit.contrib.given_messages import message

NOW_US = 1_800_000_000_000_000


def sent(**changes: Any) -> dict[str, Any]:
    return {
        "body": '{"a": 1}',
        "content-type": "application/json",
        "content-encoding": "utf-8",
        "headers": {"id": "task-1", "retries": 0},
        "properties": {"delivery_info": {"exchange": "", "routing_key": "work"}},
        **changes,
    }


def back(given_out: dict[str, Any], **fields: Any) -> dict[str, Any]:
    found = outgoing(given_out, NOW_US)
    taken = message(value=found.value, headers=found.headers, **fields)
    return incoming(taken, "tag-1", redelivered=False)


def test_a_message_comes_back_as_it_was_sent() -> None:
    payload = back(sent())
    assert payload["body"] == b'{"a": 1}'
    assert payload["headers"] == {"id": "task-1", "retries": 0}
    assert (payload["content-type"], payload["content-encoding"]) == ("application/json", "utf-8")
    properties = payload["properties"]
    assert properties["delivery_tag"] == "tag-1"
    assert properties["delivery_info"]["routing_key"] == "work"
    assert properties["delivery_info"]["redelivered"] is False
    assert properties["semel"] == {"topic": "work", "queue": 0, "offset": 0, "attempt": 1}


def test_a_later_attempt_is_redelivered() -> None:
    assert back(sent(), attempt=2)["properties"]["delivery_info"]["redelivered"] is True


def test_the_value_is_the_body_and_nothing_else() -> None:
    found = outgoing(sent(body=b"\x00\xff"), NOW_US)
    assert found.value == b"\x00\xff"
    assert dict(found.headers)["content-type"] == b"application/json"


def test_a_key_becomes_the_key_and_is_no_property_any_more() -> None:
    properties = {"semel_key": "customer-7", "delivery_info": {}}
    assert outgoing(sent(properties=properties), NOW_US).key == b"customer-7"
    assert "semel_key" not in back(sent(properties=properties))["properties"]


def test_the_same_message_has_the_same_id_and_a_retry_another() -> None:
    first = outgoing(sent(), NOW_US).message_id
    tagged = sent(properties={**sent()["properties"], "delivery_tag": "another"})
    assert first is not None
    assert first.startswith("task-1:")
    assert outgoing(tagged, NOW_US + 5).message_id == first
    retried = sent(headers={"id": "task-1", "retries": 1})
    assert outgoing(retried, NOW_US).message_id != first
    assert outgoing(sent(headers={}), NOW_US).message_id is None


@given(st.text(min_size=1, max_size=300))
def test_an_id_fits_whatever_a_task_is_called(name: str) -> None:
    found = outgoing(sent(headers={"id": name}), NOW_US).message_id
    assert found is not None
    assert 1 <= len(found.encode()) <= 128


def test_a_body_that_is_no_bytes_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="the body"):
        outgoing(sent(body={"a": 1}), NOW_US)


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, None),
        ({"eta": None}, None),
        ({"eta": "tomorrow"}, None),
        ({"eta": "2026-01-01T00:00:00"}, None),  # the worker knows its zone
        ({"eta": "1970-01-01T00:00:01+00:00"}, 1_000_000),
        ({"eta": "1970-01-01T02:00:00.000007+02:00"}, 7),
        ({"eta": datetime(1970, 1, 2, tzinfo=UTC)}, 86_400_000_000),
        ({"x-delay": 1_500}, NOW_US + 1_500_000),
        ({"x-delay": "20"}, NOW_US + 20_000),
        ({"x-delay": -1}, None),
        ({"x-delay": True}, None),
        ({"x-delay": float("inf")}, None),
        ({"x-delay": 1, "eta": "1970-01-01T00:00:01+00:00"}, NOW_US + 1_000),
    ],
)
def test_when_a_message_is_due(headers: dict[str, Any], expected: int | None) -> None:
    assert due_us(headers, NOW_US) == expected


def test_an_eta_counts_whatever_its_zone() -> None:
    at = datetime(2030, 6, 1, 12, tzinfo=timezone(timedelta(hours=-3)))
    assert due_us({"eta": at.isoformat()}, NOW_US) == int(at.timestamp()) * 1_000_000


def test_a_message_expires_by_itself_by_its_queue_and_not_before_it_is_due() -> None:
    payload = {"properties": {"expiration": "2000"}, "headers": {}}
    assert not is_expired(payload, NOW_US, None, NOW_US + 1_999_999)
    assert is_expired(payload, NOW_US, None, NOW_US + 2_000_000)
    assert is_expired(payload, NOW_US, 1_000, NOW_US + 1_000_000)
    assert not is_expired({"properties": {}, "headers": {}}, NOW_US, None, NOW_US + (1 << 50))
    delayed = {"properties": {"expiration": "2000"}, "headers": {"x-delay": 10_000}}
    assert not is_expired(delayed, NOW_US, None, NOW_US + 11_999_999)
    assert is_expired(delayed, NOW_US, None, NOW_US + 12_000_000)


def test_a_message_of_another_producer_is_taken_as_it_is() -> None:
    plain = message(value=b"hello", headers=[("trace", b"7"), ("semel-attempts", b"1")], attempt=2)
    payload = incoming(plain, "tag", redelivered=False)
    assert (payload["body"], payload["headers"]) == (b"hello", {"trace": "7"})
    assert (payload["content-type"], payload["content-encoding"]) == ("application/data", "binary")
    told = message(value=b"[]", headers=[("content-type", b"application/json")])
    assert incoming(told, "tag", redelivered=False)["content-encoding"] == "utf-8"


@pytest.mark.parametrize(
    "sealed",
    [
        b"",
        b"\xff\xfe",
        b"{",
        b"[]",
        b"null",
        b'{"headers": []}',
        b'{"headers": {}, "properties": 3}',
        b'{"headers": {"__type__": "datetime", "__value__": 3}, "properties": {}}',
        b"[" * 100_000,
    ],
)
def test_an_envelope_that_cannot_be_read_breaks_nothing(sealed: bytes) -> None:
    payload = incoming(message(value=b"x", headers=[("kombu", sealed)]), "t", redelivered=True)
    assert payload["body"] == b"x"
    assert payload["properties"]["delivery_tag"] == "t"
    assert payload["properties"]["delivery_info"]["redelivered"] is True


@given(st.binary(max_size=200))
def test_no_envelope_raises(sealed: bytes) -> None:
    payload = incoming(message(headers=[("kombu", sealed)]), "t", redelivered=False)
    assert payload["properties"]["delivery_info"]["exchange"] == ""
