"""Whole clusters whose programs are on the brokers' machines: what they fetch comes through memory,
and is the same."""

from __future__ import annotations

import pytest

from tests.world import planted
from tests.world.soak import first_failure, run_seeds


@pytest.mark.timeout(300)
def test_what_comes_through_memory_is_what_was_stored_under_faults() -> None:
    seen, failures, _ = run_seeds(range(40), more=("shared_memory",))
    assert not failures
    assert seen["answer through memory"] >= 300


@pytest.mark.timeout(300)
@pytest.mark.parametrize("other", ["splits", "moves", "transactions", "delays"])
def test_memory_beside(other: str) -> None:
    seen, failures, _ = run_seeds(range(6), more=(other, "shared_memory"))
    assert not failures
    assert seen["answer through memory"] >= 30


def test_a_place_that_is_named_twice_is_found() -> None:
    """What was handed out changes while it is read."""
    plant, match = planted.names_a_slot_twice, "is not what the log holds"
    first_failure(range(20), plant, match=match, more=("shared_memory",))
