"""Whole clusters whose programs are on the brokers' machines: what they fetch comes through memory,
and is the same."""

from __future__ import annotations

import pytest

from tests.world import planted
from tests.world.soak import first_failure, run_until_seen


@pytest.mark.timeout(300)
def test_what_comes_through_memory_is_what_was_stored_under_faults() -> None:
    wanted = {"at rest": 12, "answer through memory": 100}
    run_until_seen(range(40), wanted, more=("shared_memory",))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("other", ["splits", "moves", "transactions", "delays"])
def test_memory_beside(other: str) -> None:
    wanted = {"at rest": 2, "answer through memory": 30}
    run_until_seen(range(6), wanted, more=(other, "shared_memory"))


def test_a_place_that_is_named_twice_is_found() -> None:
    """What was handed out changes while it is read."""
    plant, match = planted.names_a_slot_twice, "is not what the log holds"
    first_failure(range(20), plant, match=match, more=("shared_memory",))
