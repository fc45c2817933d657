"""A table has of each key the newest value, in whatever order queues are read."""

from __future__ import annotations

from itertools import permutations
from typing import NamedTuple

from semel.client.core.table_rows import TableRows

PARENTS = {1: 0, 2: 0, 3: 1}


class Sent(NamedTuple):
    queue: int
    key: bytes | None
    value: bytes | None


def test_the_last_value_of_a_key_counts() -> None:
    rows = TableRows(PARENTS.get)
    rows.take([Sent(0, b"a", b"1"), Sent(0, None, b"x"), Sent(0, b"b", b""), Sent(0, b"a", b"2")])
    assert rows.values == {b"a": b"2", b"b": b""}
    rows.take([Sent(0, b"a", None), Sent(0, b"c", None)])
    assert rows.values == {b"b": b""}
    rows.take([Sent(0, b"a", b"3")])
    assert rows.values == {b"a": b"3", b"b": b""}


def test_a_child_goes_before_its_parents_whichever_is_read_first() -> None:
    """Keys a and b went from queue 0 to 1, and from there a to 3; c went to 2."""
    queues = [
        [Sent(0, b"a", b"old"), Sent(0, b"b", b"old"), Sent(0, b"c", b"old"), Sent(0, b"d", b"1")],
        [Sent(1, b"a", b"older"), Sent(1, b"b", b"new")],
        [Sent(2, b"c", None)],
        [Sent(3, b"a", b"new")],
    ]
    for order in permutations(queues):
        rows = TableRows(PARENTS.get)
        for messages in order:
            rows.take(messages)
        assert rows.values == {b"a": b"new", b"b": b"new", b"d": b"1"}, order
