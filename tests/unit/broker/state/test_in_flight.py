"""Whatever the admission accepts can be applied: no two records in flight make a node halt.

The admission decides about a request while others are accepted and not applied. These tests let
every request of `in_flight.py` meet every other one in that state, and longer rows by chance.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from semel.broker.state import MoveState, State, StateDiverged
from semel.broker.state.admission.pending import PendingState
from tests.kit.state_log import unapplied_count
from tests.unit.broker.state.in_flight import (
    BEGINNINGS,
    CHILD,
    FIRST,
    REQUESTS,
    SECOND,
    SIBLING,
    THIRD,
    Master,
    beginning,
    meet,
    run,
)


def check(master: Master) -> None:
    """What holds in every state; and `semel verify`, which reads the log alone, agrees with it."""
    state = master.state
    assert not state.queues.keys() & state.moves.incoming.keys(), "a queue in two tables"
    for key in state.queues.keys() & state.moves.places.keys():
        assert state.moves.places[key].state is not MoveState.AWAY, "a queue in two groups"
    assert not unapplied_count(master.admission)
    tables = master.tables
    assert not tables.problems
    for key in KEYS:
        queue = state.queues.get(key)
        assert tables.log_end_offset(key) == (0 if queue is None else queue.log_end_offset)
        assert tables.queue_digest(key) == state.producers.queue_digest(key), f"verify of {key}"


KEYS = (FIRST, SECOND, CHILD, SIBLING, THIRD)
BYTES = {name: run(beginning(name)) for name in BEGINNINGS}


@pytest.mark.parametrize("name", BEGINNINGS)
def test_any_two_records_in_flight_can_be_applied(name: str) -> None:
    async def all_pairs() -> None:
        data = BYTES[name]
        begun = [first for first in REQUESTS if meet(data, (REQUESTS[first],))[1] == [True]]
        for first, second in product(begun, REQUESTS):
            try:
                master, _ = meet(data, (REQUESTS[first], REQUESTS[second]))
                check(master)
            except (AssertionError, StateDiverged) as error:
                raise AssertionError(f"in {name!r}, {first!r} then {second!r}: {error}") from error

    run(all_pairs())


def test_each_request_is_accepted_somewhere() -> None:
    """Else its pairs would say nothing."""

    async def accepted() -> set[str]:
        return {
            request
            for data in BYTES.values()
            for request in REQUESTS
            if meet(data, (REQUESTS[request],))[1] == [True]
        }

    assert not REQUESTS.keys() - run(accepted())


MOMENTS = st.sampled_from(["apply", "next entry", "next entry", "next entry"])


@settings(max_examples=1_000, deadline=None)
@example("plain", [("split 0", "next entry"), ("split 1", "next entry")])
@example(
    "plain", [("split 0", "next entry"), ("create 10", "next entry"), ("fence a child", "apply")]
)
@example(
    "ready",
    [("create 10", "apply"), ("activate 10 1", "next entry"), ("batch on a child", "apply")],
)
@given(
    st.sampled_from(sorted(BEGINNINGS)),
    st.lists(st.tuples(st.sampled_from(sorted(REQUESTS)), MOMENTS), max_size=12),
)
def test_any_row_of_records_can_be_applied(name: str, requests: list[tuple[str, str]]) -> None:
    async def play() -> None:
        master = Master(BYTES[name])
        for request, moment in requests:
            master.ask(REQUESTS[request])
            if moment == "apply":
                master.apply()
        master.apply()
        check(master)
        assert b"".join(State.from_bytes(master.data).to_parts()) == master.data

    run(play())


# --- planted: what the admission knew of records in flight before -------------------------------


@contextmanager
def names_nothing() -> Iterator[None]:
    """The admission does not look at what unapplied records make."""
    original = PendingState.use

    def use(self: Any, kind: Any, queues: Any, rows: Any, names: Any = ()) -> None:
        original(self, kind, queues, rows)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PendingState, "use", use)
        yield


@pytest.mark.parametrize(
    ("name", "first", "second"),
    [
        ("plain", "split 0", "split 1"),
        ("arrived", "split a child", "split 1 beside it"),
        ("pinned", "drop pin", "publish 1"),
        ("pinned, and a rival", "pin another", "publish 1"),
    ],
)
def test_an_admission_that_knows_no_names_in_flight_halts_all_nodes(
    name: str, first: str, second: str
) -> None:
    async def play() -> None:
        meet(await beginning(name), (REQUESTS[first], REQUESTS[second]))

    run(play())
    with names_nothing(), pytest.raises(StateDiverged):
        run(play())
