"""Headers of copies: nothing of the user's is lost, nothing of ours grows."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.client.core import letters
from semel.client.core.letters import Origin
from semel.protos.batch import COPY_BYTES_MAX

HEADERS = st.lists(st.tuples(st.text(max_size=8), st.binary(max_size=8)), max_size=5)
ORIGIN = Origin("orders", 3, 99)


def fail(headers: letters.Headers, attempts: int = 1, reason: str = "why") -> letters.Headers:
    return letters.failed(
        headers,
        origin=letters.read(headers).origin or ORIGIN,
        source_offset=7,
        group="billing",
        attempts=attempts,
        reason=reason,
        failed_us=12,
        cause=letters.REJECTED,
    )


@given(HEADERS, st.integers(1, 5))
def test_what_fails_again_and_again_is_no_larger_than_what_failed_once(
    headers: letters.Headers, times: int
) -> None:
    once = fail(headers)
    again = once
    for _ in range(times):
        again = fail(again)
    assert again == once
    assert letters.own(again) == letters.own(headers)
    letter = letters.read(again)
    assert letter == (ORIGIN, 7, "billing", 1, "why", 12, letters.REJECTED, "")


@pytest.mark.parametrize(
    ("value", "read"),
    [
        (b"7", 7),
        (b"%d" % (2**63 - 1), 2**63 - 1),
        (b"%d" % 2**63, 0),
        (b"9" * 5_000, 0),
        (b"-1", 0),
        (b"", 0),
        ("\u0663".encode(), 0),
    ],
)
def test_a_number_that_anybody_may_have_written_is_read_without_harm(
    value: bytes, read: int
) -> None:
    assert letters.read([(letters.ATTEMPTS, value)]).attempts == read


@given(HEADERS)
def test_what_is_brought_back_begins_anew_and_knows_where_it_was(headers: letters.Headers) -> None:
    back = letters.redriven(fail(headers, attempts=4), source=Origin("b.dead-letters", 1, 5))
    letter = letters.read(back)
    assert letters.own(back) == letters.own(headers)
    assert (letter.origin, letter.group, letter.attempts) == (ORIGIN, "billing", 0)
    assert (letter.redriven, letter.source_offset) == ("b.dead-letters/1/5", 5)


@given(st.text(max_size=3_000))
def test_a_reason_is_cut_between_characters_and_a_copy_is_never_too_large(reason: str) -> None:
    headers = letters.failed(
        [],
        origin=Origin("t" * 249, 65_535, 2**63 - 1),
        source_offset=2**63 - 1,
        group="\U0001f600" * 249,
        attempts=10**9,
        reason=reason,
        failed_us=2**63 - 1,
        cause=letters.EXHAUSTED,
    )
    cut = letters.read(headers).reason
    assert reason.encode(errors="replace").decode().startswith(cut)
    assert len(cut.encode()) <= letters.REASON_BYTES_MAX
    assert sum(len(name) + len(value) for name, value in headers) <= COPY_BYTES_MAX


@given(st.lists(st.text(min_size=1, max_size=249), min_size=2, max_size=2, unique=True))
def test_groups_of_different_names_have_different_topics(groups: list[str]) -> None:
    one, other = (letters.redriven_topic(letters.dead_letter_topic(group)) for group in groups)
    assert one != other
    assert re.fullmatch(r"[A-Za-z0-9._-]{1,249}", one)
    assert letters.retry_topic(groups[0], 16) != letters.dead_letter_topic(groups[0])


def test_headers_that_somebody_else_wrote_break_nothing() -> None:
    letter = letters.read([("semel-origin-topic", b"\xff"), ("semel-attempts", b"-1"), ("x", b"")])
    assert letter.origin == Origin("\ufffd", 0, 0)
    assert letter.attempts == 0
    assert letters.read([]).origin is None
