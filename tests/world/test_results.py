"""Whole clusters whose consumers keep results and offsets in one SQL database: each result once."""

from __future__ import annotations

import pytest

from tests.world.parts.results import PLANTS, Books, verdict
from tests.world.soak import first_failure, run_until_seen

WORLDS = 24
SEEDS = range(80)
"""Tried in order, `WORLDS` at least, until everything rare has happened."""
RARE = {
    "at rest": WORLDS,
    "accountant crash": 2,
    "accountant froze": 4,
    "accountant slept beyond its lock": 4,
    "claim without a database": 5,
    "offsets reset in a transaction": 3,
    "operator: reset offsets of results": 10,
    "transaction broken": 5,
    "transaction refused: lock lost": 8,
    "transaction with results": 200,
}
FOUND_BY: dict[str, tuple[int, ...]] = {
    "overlooks lost locks": (2, 8),
    "rewinds in doubt": (18, 28),
    "stores under any token": (11, 29),
}
"""Seeds that are tried first: those that found the planted bug when it was planted."""


@pytest.mark.timeout(300)
def test_each_result_is_stored_once_and_in_order_under_faults() -> None:
    run_until_seen(SEEDS, RARE, more=("results",))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("others", [("splits",), ("moves",), ("moves", "splits")], ids=",".join)
def test_results_beside(others: tuple[str, ...]) -> None:
    wanted = {"at rest": 2, "transaction with results": 20}
    run_until_seen(range(4), wanted, more=(*others, "results"))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_bug_is_found(name: str) -> None:
    """The first of them is what the client once did when a background commit lost its lock."""
    more = ("alone", "results") if name == "stores under any token" else ("results",)
    first_failure((*FOUND_BY[name], *range(60)), PLANTS[name], match="once more", more=more)


def test_the_verdict_sees_what_is_wrong() -> None:
    books = Books()
    stored = {(0, 0): "a", (0, 1): "b"}
    assert "none of message 0" in verdict(books, stored)
    books.digests.update(stored)
    assert verdict(books, stored) == ""
    books.digests[0, 1] = "c"
    assert "of another message" in verdict(books, stored)
    books.digests[0, 1], books.digests[0, 2] = "b", "d"
    assert "which is not there" in verdict(books, stored)
    books.close()
