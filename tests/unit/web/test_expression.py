"""Filters: what they find, what they refuse, and that nothing of them is ever executed."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.protos.errors import InvalidRequest
from semel.web.expression import CHARACTERS_MAX, Expression


@dataclass
class Row:
    value: bytes | None = (
        b'{"amount": 250.5, "who": {"name": "anna"}, "tags": ["a", "b"], "ok": true}'
    )
    key: bytes | None = b"k1"
    message_id: bytes | None = None
    headers: list[tuple[str, bytes]] = field(
        default_factory=lambda: [("content-type", b"json"), ("h", b"1"), ("h", b"2")]
    )
    queue: int = 3
    offset: int = 41
    sequence: int = 7
    producer_id: int = 9
    timestamp_us: int = 1_769_860_800_000_000
    """2026-01-31T12:00:00Z"""


@pytest.mark.parametrize(
    "text",
    [
        'key == "k1"',
        "key == 'k1' and offset >= 41 and offset <= 41",
        "json.amount > 250",
        "json.amount > 1000 or json.ok",
        "json.ok == true",
        'json.who.name startswith "an"',
        'json["who"]["name"] == "anna"',
        'json.tags[1] == "b"',
        'json.tags contains "a"',
        "json.tags[9] == null",
        "json.nothing.at.all == null",
        'header.content-type == "json"',
        'header["h"] == "1"',
        "header.none == null",
        "id == null",
        'value contains "anna"',
        "size > 10 and not (queue == 4 or queue == 5)",
        "not not queue",
        'time >= "2026-01-31T12:00:00Z"',
        'time < "2026-01-31T13:30:00+01:00"',
        '"2026-01-31" < time',
        'queue != "3"',
        "producer == 9 and sequence == 7",
        "-1 < queue",
    ],
)
def test_it_holds(text: str) -> None:
    assert Expression(text).fits(Row())


@pytest.mark.parametrize(
    "text",
    [
        'key == "k2"',
        "key != 'k1'",
        "json.amount < 250",
        'json.amount == "250.5"',
        "json.ok == 1",
        "json.who > 3",
        "json.who contains 'anna'",
        'key < "k1"',
        "header.h == '2'",
        "value startswith 'anna'",
        "false or null",
        "(queue == 3) and (queue == 4)",
    ],
)
def test_it_does_not_hold(text: str) -> None:
    assert not Expression(text).fits(Row())


@pytest.mark.parametrize("value", [None, b"", b"\xff", b"{", b"[" * 100_000, b'{"a": 1' * 9])
def test_what_is_no_json_has_no_members(value: bytes | None) -> None:
    assert Expression("json.a == null").fits(Row(value=value))
    assert not Expression("json.a == 1").fits(Row(value=value))


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("key ==", 7),
        ("key = 'a'", 5),
        ("amount > 3", 1),
        ("key == 'a' 'b'", 12),
        ("(key == 'a'", 12),
        ("json.", 6),
        ("json[x]", 6),
        ("header == 'a'", 1),
        ("header.a.b == 'a'", 1),
        ("time > 'yesterday'", 8),
        ("key == 'open", 8),
        ("__import__('os')", 1),
        ("key.__class__", 4),
        ("lambda: 0", 7),
        ("", 1),
    ],
)
def test_a_mistake_is_named_with_its_place(text: str, place: int) -> None:
    with pytest.raises(InvalidRequest, match=f"at character {place}:"):
        Expression(text)


def test_it_is_bounded() -> None:
    with pytest.raises(InvalidRequest, match="at most"):
        Expression("key == '" + "a" * CHARACTERS_MAX)
    with pytest.raises(InvalidRequest, match="nested"):
        Expression("(" * 100 + "key" + ")" * 100)
    assert Expression("not " * 100 + "key").fits(Row())


@given(st.text(max_size=60))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    try:
        expression = Expression(text)
    except InvalidRequest:
        return
    assert expression.fits(Row()) in (True, False)


_WORDS = st.sampled_from(
    [
        *"()[].",
        *("==", "<", ">=", "contains", "startswith", "and", "or", "not"),
        *("key", "json", "time", "header", "value", "true", "null"),
        *("12", "0.5", '"a"', "'2026-01-31'", "x"),
    ]
)


@given(st.lists(_WORDS, max_size=12))
def test_any_tokens_are_parsed_or_refused(words: list[str]) -> None:
    try:
        expression = Expression(" ".join(words))
    except InvalidRequest:
        return
    assert expression.fits(Row()) in (True, False)
