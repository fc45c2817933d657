"""Which node of a group is asked next, and what its caller is told in the end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.protos.errors import (
    InvalidRequest,
    NotMaster,
    RetriableError,
    SemelError,
    Throttled,
    TimedOut,
    Unavailable,
)
from semel.protos.masters import MasterSearch, Round

ADDRESSES = st.lists(st.sampled_from(["", "a:1", "b:1", "c:1", "d:1"]), max_size=8)


@given(ADDRESSES, st.lists(st.tuples(st.booleans(), ADDRESSES), max_size=6))
def test_a_round_gives_every_address_once(
    addresses: list[str], added: list[tuple[bool, list[str]]]
) -> None:
    nodes = Round(addresses)
    told, asked = set(addresses), []
    for first, more in added:
        if address := nodes.next():
            asked.append(address)
        told.update(more)
        if first:
            for one in more:
                nodes.ask_next(one)
        else:
            nodes.ask_too(more)
    while address := nodes.next():
        asked.append(address)
    assert nodes.over
    assert len(asked) == len(set(asked))
    assert set(asked) == told - {""}


def test_who_is_named_comes_next_and_who_is_added_comes_last() -> None:
    nodes = Round(["a:1", "b:1"])
    assert nodes.next() == "a:1"
    nodes.ask_too(["c:1"])
    nodes.ask_next("d:1")
    nodes.ask_next("")
    assert [nodes.next() for _ in range(5)] == ["d:1", "b:1", "c:1", "", ""]


def test_a_round_is_over_when_only_addresses_that_were_asked_are_named() -> None:
    nodes = Round(["a:1", "b:1"])
    assert not nodes.over
    nodes.next()
    nodes.next()
    nodes.ask_next("a:1")
    nodes.ask_next("")
    assert nodes.over
    nodes.ask_too(["c:1"])
    assert not nodes.over
    assert [nodes.next(), nodes.next()] == ["c:1", ""]


def test_a_search_follows_the_hint_of_a_node_that_is_not_the_master() -> None:
    search = MasterSearch("broker group 2", ["a:1", "b:1", "c:1"])
    assert search.next() == "a:1"
    search.on_error(NotMaster("node 1 is not the master", master_address="c:1"))
    assert search.next() == "c:1"
    search.on_error(NotMaster("node 3 is not the master", master_address="a:1"))
    assert search.next() == "b:1"
    search.on_error(NotMaster("node 2 is not the master"))
    assert search.next() == ""
    search.again(["a:1"])
    assert search.next() == "a:1"


@pytest.mark.parametrize(
    ("errors", "told"),
    [
        ([], Unavailable("no node of broker group 2 is known")),
        (
            [Unavailable("refused"), NotMaster("node 1 is a slave", master_address="x:1", term=4)],
            Unavailable("broker group 2 has no master: node 1 is a slave"),
        ),
        (
            [NotMaster("node 1 is a slave"), Unavailable("refused")],
            Unavailable("broker group 2: refused"),
        ),
        ([Unavailable("refused"), TimedOut("late")], TimedOut("broker group 2: late")),
    ],
)
def test_the_last_node_s_word_is_told_but_never_not_master(
    errors: list[SemelError], told: SemelError
) -> None:
    search = MasterSearch("broker group 2", ["a:1", "b:1"])
    for error in errors:
        assert search.next()
        search.on_error(error)
    assert repr(search.error) == repr(told)


def test_what_another_node_would_say_too_ends_a_search() -> None:
    search = MasterSearch("broker group 2", ["a:1", "b:1"])
    for error in (InvalidRequest("senseless"), Throttled("busy", retry_after_ms=5)):
        with pytest.raises(type(error)) as caught:
            search.on_error(error)
        assert caught.value is error


def test_a_caller_that_asks_again_keeps_what_it_was_told() -> None:
    search = MasterSearch("broker group 2", ["a:1"], passing=(RetriableError,))
    assert search.next()
    busy = Throttled("busy", retry_after_ms=5)
    search.on_error(busy)
    assert search.next() == ""
    search.again(["a:1"])
    assert search.next() == "a:1"
    search.on_error(TimedOut("late"), cut_short=True)
    assert search.error is busy
    search.on_error(TimedOut("late"))
    assert isinstance(search.error, TimedOut)
    with pytest.raises(InvalidRequest):
        search.on_error(InvalidRequest("senseless"))


def test_a_first_attempt_that_is_cut_short_is_told_for_want_of_better() -> None:
    search = MasterSearch("broker group 2", ["a:1"])
    assert search.next()
    search.on_error(TimedOut("late"), cut_short=True)
    assert isinstance(search.error, TimedOut)
