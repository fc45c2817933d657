"""Offsets in the user's own SQL database, stored with the results of processing.

How it works. One row for each queue of a group holds the next offset and the *fencing token* of the
lock under which it may be changed. A member that acquires the queue's lock *claims* the row: in one
transaction it raises the token and reads the offset. One transaction of the user then writes the
results and the new offset. It finds its row only under the token of the claim, and only at the
offset where the owner left it. So either both are stored or neither, and an owner that was replaced
changes nothing.

The SQL is plain, common to SQLite and PostgreSQL, and works through any DB-API 2.0 driver. The
driver's `paramstyle` is looked up in the modules of its connection's class. Nothing depends on
`rowcount`: a row is read back in the transaction that changed it.

Format. A table `semel_offsets`, made when it is missing:

    consumer_group, cluster_id, topic_id, queue_id   the key; a topic made again has another id
    topic       its name, for people
    next_offset first offset whose result is not in the database
    token       fencing token of the lock that may change the row
    member      the consumer that claimed it last, for people

Invariants
1. A token never falls. The offset changes only under the row's own token, from where its owner left
   it, and never falls either.
2. After a claim returned an offset, every uncommitted transaction of an older owner fails.

Not here: when to claim (`consumer/consumer.py`), the user's side (`api/sql_transaction.py`).
"""

from __future__ import annotations

import contextlib
import functools
import re
import sqlite3
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from semel.protos.errors import InvalidRequest, LockLost, Unavailable

CLAIM_ATTEMPTS: Final = 3
"""Two claims of a new row may meet; the second attempt finds it."""
TABLE: Final = "semel_offsets"
_STYLES: Final = ("qmark", "numeric", "named", "format", "pyformat")
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}(\.[A-Za-z_][A-Za-z0-9_]{0,62})?")
_PARAMETER: Final = re.compile(r":([a-z_]+)")
_KEY: Final = (
    "consumer_group = :consumer_group AND cluster_id = :cluster_id"
    " AND topic_id = :topic_id AND queue_id = :queue_id"
)


class Place(NamedTuple):
    """The key of a row: one queue of one group."""

    consumer_group: str
    cluster_id: str
    topic: str
    topic_id: int
    queue_id: int

    def parameters(self, **more: Any) -> dict[str, Any]:
        return {
            "consumer_group": self.consumer_group,
            "cluster_id": self.cluster_id,
            "topic_id": f"{self.topic_id:016x}",
            "queue_id": self.queue_id,
            **more,
        }


class Progress(NamedTuple):
    """The progress in one queue that a transaction makes durable."""

    place: Place
    token: int
    before: int
    """The next offset that the row must hold before."""
    offset: int
    """The next offset that the row holds afterwards."""


class SqlOffsets:
    """The database in which a consumer keeps its offsets: its option `offset_store`.

    `connect` makes a new DB-API connection each time it is called, in any thread. The connection is
    used for claims, and closed. `paramstyle` is detected unless it is given.
    """

    def __init__(
        self,
        connect: Callable[[], Any],
        *,
        table: str = TABLE,
        paramstyle: str | None = None,
    ) -> None:
        """Raises InvalidRequest."""
        if not callable(connect):
            raise InvalidRequest("SqlOffsets needs a function that makes a connection")
        if not _NAME.fullmatch(table):
            raise InvalidRequest(f"{table!r} is no table name: letters, digits and '_'")
        if paramstyle is not None and paramstyle not in _STYLES:
            raise InvalidRequest(f"paramstyle must be one of {', '.join(_STYLES)}")
        self._connect = connect
        self._table = table
        self._style = paramstyle
        self._made = False

    # --- under a connection of its own ----------------------------------------------------------

    def claim(self, place: Place, token: int, start: int, member: str) -> int:
        """Claims the row and returns its next offset, `start` when the row is new. Blocks.

        Raises LockLost when a newer owner has it, and Unavailable for any error of the database.
        """
        with self._own_connection() as connection:
            for attempt in range(CLAIM_ATTEMPTS):
                try:
                    if not self._made:
                        self._make(connection)
                    with _transaction(connection):
                        return self._claim(connection, place, token, start, member)
                except LockLost:
                    raise
                except Exception as error:
                    # Another process may just have made the same table or row.
                    if attempt == CLAIM_ATTEMPTS - 1:
                        raise _unavailable(error) from error
        raise AssertionError("unreachable")

    def move(self, progress: Progress) -> None:
        """Stores progress without results. Blocks. Raises LockLost, Unavailable."""
        with self._own_connection() as connection:
            try:
                with _transaction(connection):
                    self.advance(connection, [progress])
            except LockLost:
                raise
            except Exception as error:
                raise _unavailable(error) from error

    @contextlib.contextmanager
    def _own_connection(self) -> Iterator[Any]:
        try:
            connection = self._connect()
        except Exception as error:
            raise _unavailable(error) from error
        try:
            yield connection
        finally:
            connection.close()

    def _make(self, connection: Any) -> None:
        with _transaction(connection):
            self._execute(
                connection,
                f"CREATE TABLE IF NOT EXISTS {self._table} ("
                " consumer_group VARCHAR(255) NOT NULL,"
                " cluster_id VARCHAR(64) NOT NULL,"
                " topic_id VARCHAR(16) NOT NULL,"
                " queue_id INTEGER NOT NULL,"
                " topic VARCHAR(255) NOT NULL,"
                " next_offset BIGINT NOT NULL,"
                " token BIGINT NOT NULL,"
                " member VARCHAR(255) NOT NULL,"
                " PRIMARY KEY (consumer_group, cluster_id, topic_id, queue_id))",
                {},
            )
        self._made = True

    def _claim(self, connection: Any, place: Place, token: int, start: int, member: str) -> int:
        self._execute(
            connection,
            f"UPDATE {self._table} SET token = :token, member = :member"
            f" WHERE {_KEY} AND token <= :token",
            place.parameters(token=token, member=member),
        )
        found = self._row(connection, place)
        if found is None:
            self._execute(
                connection,
                f"INSERT INTO {self._table} (consumer_group, cluster_id, topic_id, queue_id,"
                " topic, next_offset, token, member) VALUES (:consumer_group, :cluster_id,"
                " :topic_id, :queue_id, :topic, :next_offset, :token, :member)",
                place.parameters(topic=place.topic, next_offset=start, token=token, member=member),
            )
            return start
        offset, newest = found
        if newest != token:
            raise _lost(place, token, newest)
        return offset

    # --- under the user's connection ------------------------------------------------------------

    def advance(self, connection: Any, progress: Sequence[Progress]) -> None:
        """Stores progress in the open transaction, without a commit.

        Raises LockLost when a queue has a newer owner, its offset is not where this one left it,
        or its row is not there: the transaction must be rolled back then.
        """
        for place, token, before, offset in progress:
            self._execute(
                connection,
                f"UPDATE {self._table} SET next_offset = :next_offset"
                f" WHERE {_KEY} AND token = :token AND next_offset = :before",
                place.parameters(token=token, before=before, next_offset=offset),
            )
            found = self._row(connection, place)
            if found is None:
                raise self._missing(place)
            if found[1] != token:
                raise _lost(place, token, found[1])
            if found[0] != offset:
                raise _changed(place, token, before, found[0])

    def _missing(self, place: Place) -> LockLost:
        return LockLost(
            f"the table {self._table} that the transaction's connection sees has no row for queue"
            f" {place.queue_id} of topic {place.topic!r}, which this consumer of group"
            f" {place.consumer_group!r} has claimed: check that the connection and offset_store are"
            " of one database; if somebody deleted the row, the queue is claimed anew"
        )

    def _row(self, connection: Any, place: Place) -> tuple[int, int] | None:
        cursor = self._execute(
            connection,
            f"SELECT next_offset, token FROM {self._table} WHERE {_KEY}",
            place.parameters(),
        )
        row = cursor.fetchone()
        return None if row is None else (int(row[0]), int(row[1]))

    def _execute(self, connection: Any, statement: str, parameters: dict[str, Any]) -> Any:
        cursor = connection.cursor()
        style = self._style or paramstyle_of(connection)
        if parameters:
            cursor.execute(*in_style(style, statement, parameters))
        else:
            cursor.execute(statement)
        return cursor


def paramstyle_of(connection: Any) -> str:
    """Returns the paramstyle of a connection's driver. Raises InvalidRequest if it is unknown."""
    for cls in type(connection).__mro__:
        name = cls.__module__
        while name:
            style = getattr(sys.modules.get(name), "paramstyle", None)
            if style in _STYLES:
                return str(style)
            name = name.rpartition(".")[0]
    raise InvalidRequest(
        f"no paramstyle is known for a connection of class {type(connection).__qualname__}:"
        " give it, SqlOffsets(…, paramstyle='format')"
    )


def in_style(style: str, statement: str, parameters: dict[str, Any]) -> tuple[str, Any]:
    """Returns a statement with `:name` parameters in the form that the paramstyle needs."""
    if style == "named":
        return statement, parameters
    if style == "pyformat":
        return _PARAMETER.sub(r"%(\1)s", statement), parameters
    values: list[Any] = []

    def place(match: re.Match[str]) -> str:
        values.append(parameters[match[1]])
        return {"qmark": "?", "format": "%s", "numeric": f":{len(values)}"}[style]

    return _PARAMETER.sub(place, statement), tuple(values)


def begin(connection: Any) -> None:
    """Makes sure that the next statements are one transaction.

    Raises InvalidRequest for a connection that commits each statement by itself.
    """
    if getattr(connection, "autocommit", False) is True:
        raise InvalidRequest(
            "the connection is in autocommit mode: results and offset would not be one transaction"
        )
    by_hand = isinstance(connection, sqlite3.Connection) and connection.isolation_level is None
    if by_hand and not connection.in_transaction:
        connection.execute("BEGIN")


@contextlib.contextmanager
def _transaction(connection: Any) -> Iterator[None]:
    commit, rollback = connection.commit, connection.rollback
    if isinstance(connection, sqlite3.Connection):
        if getattr(connection, "autocommit", None) is True:  # Python 3.12: commit() does nothing
            commit = functools.partial(connection.execute, "COMMIT")
            rollback = functools.partial(connection.execute, "ROLLBACK")
        if not connection.in_transaction:  # with autocommit=False one is always open
            # Begins for all kinds of statements, and waits for the present writer.
            connection.execute("BEGIN IMMEDIATE")
    else:
        begin(connection)
    try:
        yield
    except BaseException:
        rollback()
        raise
    commit()


def _lost(place: Place, token: int, newest: int) -> LockLost:
    return LockLost(
        f"queue {place.queue_id} of topic {place.topic!r} is processed under token {newest} in the"
        f" database, not {token}: another consumer of group {place.consumer_group!r} has it",
        current_token=newest,
    )


def _changed(place: Place, token: int, before: int, found: int) -> LockLost:
    return LockLost(
        f"queue {place.queue_id} of topic {place.topic!r} is at offset {found} in the database,"
        f" where this consumer of group {place.consumer_group!r} left it at {before}: somebody"
        " changed the row; nothing is stored, and the queue is read from there",
        current_token=token,
    )


def _unavailable(error: Exception) -> Unavailable:
    return Unavailable(f"the database of the offsets: {type(error).__name__}: {error}")
