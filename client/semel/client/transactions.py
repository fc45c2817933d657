"""`consumer.transaction(connection)`: results and offsets in one transaction of the user's.

How it works. Entering begins the transaction. Leaving stores the offsets of everything that was
given out (or up to one message) in it, under the tokens of the locks, and commits; an exception
rolls back, and what was given out since the last transaction is given out again. The brokers learn
of the progress afterwards, in the background: lag and locks depend on it, correctness does not.

| the process dies | in the database | then |
|---|---|---|
| before COMMIT | neither results nor offsets | the messages come again |
| after COMMIT, brokers not told | both | the next owner begins behind them |

Invariants
1. After an exception nothing of the transaction is in the database; if COMMIT itself failed, nobody
   knows, and the queues are acquired and their offsets read again.
2. What is to be retried or rejected is copied before COMMIT (`retrying.py`).

SQL runs in the caller's thread (with asyncio on its loop), like the caller's own statements.

Not here: SQL (`sql_offsets.py`).
"""

from __future__ import annotations

import contextlib
from types import TracebackType
from typing import Any

from semel.client.consumer import ConsumerCore
from semel.client.message import Message
from semel.client.session import Session
from semel.client.sql_offsets import begin


class Transaction:
    """One transaction of a synchronous consumer; its context is the connection."""

    def __init__(
        self, session: Session, core: ConsumerCore, connection: Any, message: Message | None
    ) -> None:
        """Raises InvalidRequest."""
        self._session = session
        self._core = core
        self._connection = connection
        self._message = message
        self._store = core.store

    def __enter__(self) -> Any:
        begin(self._connection)
        return self._connection

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        run, core, connection = self._session.run, self._core, self._connection
        if kind is not None:
            connection.rollback()
            run(core.rewind())
            return
        try:
            progress = run(core.progress(self._message))
        except BaseException:
            connection.rollback()
            run(core.rewind())
            raise
        try:
            self._store.advance(connection, progress)
            connection.commit()
        except BaseException:
            with contextlib.suppress(Exception):
                connection.rollback()
            run(core.give_up())
            raise
        run(core.on_stored(progress))


class AsyncTransaction:
    """One transaction of an asyncio consumer; its context is the connection."""

    def __init__(
        self, session: Session, core: ConsumerCore, connection: Any, message: Message | None
    ) -> None:
        """Raises InvalidRequest."""
        self._session = session
        self._core = core
        self._connection = connection
        self._message = message
        self._store = core.store

    async def __aenter__(self) -> Any:
        begin(self._connection)
        return self._connection

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        run, core, connection = self._session.await_run, self._core, self._connection
        if kind is not None:
            connection.rollback()
            await run(core.rewind())
            return
        try:
            progress = await run(core.progress(self._message))
        except BaseException:
            connection.rollback()
            await run(core.rewind())
            raise
        try:
            self._store.advance(connection, progress)
            connection.commit()
        except BaseException:
            with contextlib.suppress(Exception):
                connection.rollback()
            await run(core.give_up())
            raise
        await run(core.on_stored(progress))
