"""Which process runs which tests, and in which order they begin."""

from __future__ import annotations

import pytest

from tests.kit.distribution import in_order, piece_of, spread_evenly


@pytest.mark.parametrize(
    ("node_id", "piece"),
    [
        ("tests/unit/test_it.py::TestIt::test_one[a::b]", "tests/unit/test_it.py"),
        ("tests/integration/test_it.py::test_one", "tests/integration/test_it.py"),
        ("tests/world/test_it.py::test_one[a::b]", "tests/world/test_it.py::test_one[a::b]"),
        ("tests/world/test_budget.py::test_one", "tests/world/test_budget.py"),
    ],
)
def test_tests_stay_together_where_they_share_something(node_id: str, piece: str) -> None:
    assert piece_of(node_id) == piece


def test_kinds_are_spread_evenly_in_their_own_order() -> None:
    assert spread_evenly(["abcdef", "XY", "", "1"]) == list("aXb1cdYef") or spread_evenly(
        ["abcdef", "XY", "", "1"]
    ) == list("abXc1deYf")


def test_what_waits_runs_beside_what_computes_and_small_files_come_last() -> None:
    waiting = [f"tests/integration/test_{name}.py::test_one" for name in "abcd"]
    worlds = [f"tests/world/test_it.py::test_one[{number}]" for number in range(4)]
    units = [f"tests/unit/test_{name}.py::test_one" for name in "abcd"]
    found = in_order([*waiting, *units, *worlds])
    assert found[8:] == units
    assert {tuple(sorted(found[at : at + 2])) for at in (0, 2, 4, 6)} == {
        tuple(sorted(pair)) for pair in zip(waiting, worlds, strict=True)
    }


def test_each_test_is_there_once() -> None:
    some = [
        f"tests/{place}/test_{name}.py::test_{number}"
        for place in ("pythons", "world", "sim", "integration", "unit", "checking", "new")
        for name in "ab"
        for number in range(3)
    ]
    found = in_order(some)
    assert sorted(found) == sorted(some)
    assert in_order(found[::-1]) != found
