"""Fair turns against a model, and with owners that behave badly."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.broker.quotas.fair_line import FairLine


def shares(offers: dict[str, tuple[int, int]], turns: int) -> dict[str, int]:
    """What each owner got after so many turns, if it has so many streams with messages of a size;
    each stream asks for its next turn when it had one."""
    line: FairLine[int] = FairLine()
    got = dict.fromkeys(offers, 0)
    for owner, (streams, size) in offers.items():
        for stream in range(streams):
            line.enter(owner)
            line.wait(owner, size, stream)
    for _ in range(turns):
        owner, cost, stream = line.next()
        got[owner] += cost
        line.wait(owner, cost, stream)
    return got


@given(
    st.dictionaries(
        st.sampled_from("abcde"), st.tuples(st.integers(1, 9), st.integers(1, 1_000)), min_size=2
    ),
    st.integers(1, 500),
)
def test_all_who_want_turns_get_the_same(offers: dict[str, tuple[int, int]], turns: int) -> None:
    got = shares(offers, turns)
    assert max(got.values()) - min(got.values()) <= 2 * max(size for _, size in offers.values())


def test_one_small_stream_gets_as_much_as_nine_large_ones() -> None:
    got = shares({"greedy": (9, 1_000_000), "modest": (1, 1_000)}, 20_000)
    assert got["modest"] == pytest.approx(got["greedy"], rel=0.1)


def test_a_line_in_order_of_arrival_would_fail_these_tests() -> None:
    """The planted bug: whoever has more streams gets more."""

    class InOrder(FairLine[int]):
        def _push(self, owner: str) -> None:
            self._had[owner] = 0
            super()._push(owner)

    line = InOrder()
    got = {"greedy": 0, "modest": 0}
    for owner, streams, size in (("greedy", 9, 1_000), ("modest", 1, 1)):
        for stream in range(streams):
            line.wait(owner, size, stream)
    for _ in range(1_000):
        owner, cost, stream = line.next()
        got[owner] += cost
        line.wait(owner, cost, stream)
    assert got["greedy"] > 100 * got["modest"]


def test_who_comes_back_has_saved_nothing_up() -> None:
    line: FairLine[int] = FairLine()
    for owner in ("old", "new"):
        line.enter(owner)
    for _ in range(100):
        line.use("old", 10)
    line.wait("new", 10, 1)
    line.wait("old", 10, 2)
    first = [line.next()[0] for _ in range(2)]
    assert sorted(first) == ["new", "old"]


def test_turns_of_one_owner_come_in_order_and_what_was_not_used_is_given_back() -> None:
    line: FairLine[str] = FairLine()
    line.enter("a")
    for who in "xyz":
        line.wait("a", 5, who)
    assert [line.next()[2] for _ in range(3)] == ["x", "y", "z"]
    line.give_back("a", 4)
    line.enter("b")
    line.wait("b", 5, "b")
    line.wait("a", 5, "a")
    assert [line.next()[2] for _ in range(2)] == ["b", "a"]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=200))
def test_it_remembers_nobody_who_has_left(steps: list[tuple[str, bool]]) -> None:
    line: FairLine[int] = FairLine()
    here = dict.fromkeys("abc", 0)
    for owner, enters in steps:
        if enters:
            line.enter(owner)
            here[owner] += 1
            line.wait(owner, 1, 0)
        elif here[owner]:
            line.leave(owner)
            here[owner] -= 1
    while line:
        line.next()
    assert line.owners == sum(count > 0 for count in here.values())
    assert set(line._had) <= {owner for owner, count in here.items() if count}
