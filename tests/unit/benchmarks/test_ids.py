"""The benchmark of message ids sends known ids with the content that they had."""

from __future__ import annotations

import argparse

import pytest

from benchmarks.id_load import ID_BYTES, NumberedIds
from benchmarks.ids import windows


def numbers(ids: NumberedIds) -> list[int]:
    column = ids.column().to_pylist()
    assert {len(each) for each in column} == {ID_BYTES}
    return [int.from_bytes(each[8:], "little") for each in column]


def test_a_share_of_the_ids_is_known_and_stands_in_the_row_that_it_had() -> None:
    ids = NumberedIds(rows=100, share=0.05)
    assert numbers(ids) == list(range(100))
    assert numbers(ids) == list(range(100, 200))
    ids.window = 200
    found = numbers(ids)
    again = [number for number in found if number < 200]
    assert len(again) == ids.known == 5
    assert [number % 100 for number in found] == list(range(100))


def test_known_ids_were_sent_and_are_in_the_window() -> None:
    ids = NumberedIds(rows=10, share=0.5, window=40)
    sent: set[int] = set()
    again = 0
    for call in range(50):
        found = numbers(ids)
        assert min(found) >= 10 * call - 40
        again += len(sent.intersection(found))
        sent.update(found)
    assert again == ids.known == 49 * 5
    assert len(sent) == 500 - again


def test_nothing_older_is_known_after_other_ids_have_come() -> None:
    ids = NumberedIds(rows=10, share=0.5, window=40)
    for _ in range(5):
        ids.column()
    ids.forget()
    assert numbers(ids) == list(range(50, 60))
    assert min(numbers(ids)) >= 50


def test_windows_rise() -> None:
    assert windows("30000,1m") == [30_000, 1 << 20]
    for wrong in ("1m,30000", "30000,30000", "0", "ten"):
        with pytest.raises(argparse.ArgumentTypeError):
            windows(wrong)
