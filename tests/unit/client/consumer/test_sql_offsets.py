"""The offsets' table: claims and transactions against a model, and every paramstyle."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from semel.client.consumer.sql_offsets import (
    Place,
    Progress,
    SqlOffsets,
    begin,
    in_style,
    paramstyle_of,
)
from semel.protos.errors import InvalidRequest, LockLost, Unavailable

PLACE = Place("g", "c" * 32, "orders", 2**63 - 1, 3)


@pytest.fixture
def connect(tmp_path: Path) -> Iterator[Callable[[], sqlite3.Connection]]:
    """Connections to one database, which end with the test."""
    with ExitStack() as opened:
        yield lambda: opened.enter_context(closing(sqlite3.connect(tmp_path / "offsets.db")))


def test_the_new_owner_learns_the_offset_and_the_old_one_is_refused(
    connect: Callable[[], sqlite3.Connection],
) -> None:
    store = SqlOffsets(connect)
    assert store.claim(PLACE, 1, 40, "a") == 40
    assert store.claim(PLACE, 1, 99, "a") == 40, "the row is the truth, not where it would begin"
    connection = connect()
    store.advance(connection, [Progress(PLACE, 1, 40, 50)])
    connection.commit()
    assert store.claim(PLACE, 3, 0, "b") == 50
    with pytest.raises(LockLost) as caught:
        store.advance(connection, [Progress(PLACE, 1, 50, 60)])
    assert caught.value.current_token == 3
    connection.rollback()
    with pytest.raises(LockLost):
        store.claim(PLACE, 2, 0, "a")
    with pytest.raises(LockLost):
        store.move(Progress(PLACE._replace(queue_id=4), 3, 0, 60))
    store.move(Progress(PLACE, 3, 50, 70))
    store.move(Progress(PLACE, 3, 70, 70))
    assert store.claim(PLACE, 4, 0, "b") == 70
    other = PLACE._replace(topic_id=7)
    assert store.claim(other, 1, 5, "a") == 5, "a topic made again begins anew"


def test_the_other_queues_of_a_refused_transaction_are_not_stored(
    connect: Callable[[], sqlite3.Connection],
) -> None:
    store = SqlOffsets(connect)
    mine, lost = PLACE, PLACE._replace(queue_id=9)
    store.claim(mine, 1, 0, "a")
    store.claim(lost, 1, 0, "a")
    store.claim(lost, 2, 0, "b")
    connection = connect()
    with pytest.raises(LockLost):
        store.advance(connection, [Progress(mine, 1, 0, 8), Progress(lost, 1, 0, 8)])
    connection.rollback()
    assert store.claim(mine, 1, 0, "a") == 0


@pytest.mark.parametrize("before", [30, 45, 50])
def test_a_row_that_is_not_where_its_owner_left_it_stores_nothing(
    connect: Callable[[], sqlite3.Connection], before: int
) -> None:
    """A COMMIT that failed had been carried out; or somebody has changed the row."""
    store = SqlOffsets(connect)
    store.claim(PLACE, 1, 40, "a")
    connection = connect()
    with pytest.raises(LockLost, match=f"at offset 40 .* left it at {before}"):
        store.advance(connection, [Progress(PLACE, 1, before, 60)])
    connection.rollback()
    assert store.claim(PLACE, 1, 0, "a") == 40


def test_a_row_that_is_not_there_is_named_as_missing(tmp_path: Path) -> None:
    """Nobody else has the queue: the connection is another database's, or somebody deleted it."""
    other = sqlite3.connect(tmp_path / "other.db")
    SqlOffsets(lambda: sqlite3.connect(tmp_path / "other.db")).claim(
        PLACE._replace(queue_id=1), 1, 0, "a"
    )
    store = SqlOffsets(lambda: sqlite3.connect(tmp_path / "offsets.db"))
    store.claim(PLACE, 1, 0, "a")
    with closing(other), pytest.raises(LockLost, match=r"has no row .* of one database"):
        store.advance(other, [Progress(PLACE, 1, 0, 8)])


MODES: list[dict[str, Any]] = [{}, {"isolation_level": None}]
if sys.version_info >= (3, 12):
    MODES += [{"autocommit": True}, {"autocommit": False}]


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_claims_are_durable_in_every_mode_of_sqlite(tmp_path: Path, mode: dict[str, Any]) -> None:
    path = tmp_path / "offsets.db"
    store = SqlOffsets(lambda: sqlite3.connect(path, **mode))
    assert store.claim(PLACE, 1, 40, "a") == 40
    store.move(Progress(PLACE, 1, 40, 50))
    assert SqlOffsets(lambda: sqlite3.connect(path)).claim(PLACE, 2, 0, "b") == 50
    with pytest.raises(LockLost):
        store.claim(PLACE, 1, 0, "a")
    assert store.claim(PLACE, 3, 0, "a") == 50, "what failed is rolled back"


class Owners(RuleBasedStateMachine):
    """Owners come in the order of their tokens, and write late, out of order, or never."""

    @initialize()
    def start(self) -> None:
        self.connection = sqlite3.connect(":memory:", check_same_thread=False)
        keep = SimpleNamespace(
            cursor=self.connection.cursor,
            commit=self.connection.commit,
            rollback=self.connection.rollback,
            close=lambda: None,
        )
        self.store = SqlOffsets(lambda: keep, paramstyle="qmark")
        self.results: list[int] = []
        self.owners: dict[int, int] = {}
        """Next offset in memory, by token."""
        self.newest = 0

    def teardown(self) -> None:
        self.connection.close()

    @rule()
    def take_over(self) -> None:
        self.newest += 1
        offset = self.store.claim(PLACE, self.newest, 0, "m")
        assert offset == len(self.results)
        self.owners[self.newest] = offset

    @rule(which=st.integers(0, 9), count=st.integers(1, 5), crash=st.booleans())
    def process(self, which: int, count: int, crash: bool) -> None:
        if not self.owners:
            return
        token = sorted(self.owners)[-1 - which % len(self.owners)]
        start = self.owners[token]
        begin(self.connection)
        try:
            self.store.advance(self.connection, [Progress(PLACE, token, start, start + count)])
        except LockLost:
            self.connection.rollback()
            assert token != self.newest
            del self.owners[token]
            return
        if crash:
            self.connection.rollback()
            del self.owners[token]
            return
        self.connection.commit()
        assert token == self.newest, "an old owner must not get through"
        assert start == len(self.results)
        self.results += range(start, start + count)
        self.owners[token] = start + count


Owners.TestCase.settings = settings(max_examples=40, deadline=None, stateful_step_count=25)
TestOwners = Owners.TestCase


@pytest.mark.parametrize(
    ("style", "statement", "parameters"),
    [
        ("qmark", "a = ? AND b = ? AND c = ?", (1, 2, 1)),
        ("numeric", "a = :1 AND b = :2 AND c = :3", (1, 2, 1)),
        ("format", "a = %s AND b = %s AND c = %s", (1, 2, 1)),
        ("named", "a = :x AND b = :y AND c = :x", {"x": 1, "y": 2}),
        ("pyformat", "a = %(x)s AND b = %(y)s AND c = %(x)s", {"x": 1, "y": 2}),
    ],
)
def test_statements_in_every_paramstyle(style: str, statement: str, parameters: Any) -> None:
    found = in_style(style, "a = :x AND b = :y AND c = :x", {"x": 1, "y": 2})
    assert found == (statement, parameters)


def test_the_paramstyle_of_a_driver_is_found_and_that_of_none_must_be_given() -> None:
    class Special(sqlite3.Connection):
        pass

    with closing(sqlite3.connect(":memory:", factory=Special)) as special:
        assert paramstyle_of(special) == "qmark"
    with pytest.raises(InvalidRequest, match="paramstyle="):
        paramstyle_of(object())


def test_a_connection_that_commits_by_itself_is_refused_or_begun() -> None:
    with pytest.raises(InvalidRequest, match="autocommit"):
        begin(SimpleNamespace(autocommit=True))
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as by_hand:
        begin(by_hand)
        assert by_hand.in_transaction


@pytest.mark.parametrize(
    "wrong", [{"table": "a; DROP TABLE b"}, {"table": ""}, {"paramstyle": "perl"}]
)
def test_wrong_arguments_are_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(InvalidRequest):
        SqlOffsets(lambda: None, **wrong)


def test_what_the_database_raises_is_told_as_its_own(tmp_path: Path) -> None:
    store = SqlOffsets(lambda: sqlite3.connect(tmp_path / "no" / "file"))
    with pytest.raises(Unavailable, match="OperationalError: unable to open"):
        store.claim(PLACE, 1, 0, "m")
    with closing(sqlite3.connect(tmp_path / "x.db")) as full:
        full.execute("CREATE TABLE semel_offsets (other INTEGER)")
        full.commit()
    with pytest.raises(Unavailable, match="no such column"):
        SqlOffsets(lambda: sqlite3.connect(tmp_path / "x.db")).claim(PLACE, 1, 0, "m")
