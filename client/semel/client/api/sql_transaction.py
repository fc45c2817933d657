"""`consumer.transaction(connection)`: results and offsets in one transaction of the user.

How it works. Entering the context begins the transaction. Leaving it stores the offsets of
everything that was given out (or up to one message), under the tokens of that time, and commits.
The brokers learn of the progress afterwards, in the background: lag and locks depend on it,
correctness does not.

If anything fails between BEGIN and COMMIT, everything that was given out since the last transaction
is marked at once to be given back. The consumer first begins again there, and gives out nothing
else before. Marking awaits nothing, so a cancellation or a Ctrl-C leaves no message out.

| the process dies | in the database | then |
|---|---|---|
| before COMMIT | neither results nor offsets | the messages are delivered again |
| after COMMIT, brokers not told | both | the next owner begins after them |

Invariants
1. After an exception nothing of the transaction is in the database. If COMMIT itself failed, that
   is unknown, so the queues are acquired and their offsets read again.
2. Messages to be retried or rejected are copied before COMMIT (`dead_letters/retrying.py`).

SQL runs in the caller's thread (with asyncio on its loop), like the caller's own statements.

Not here: the contexts themselves (`api/aio_reading.py`), SQL (`consumer/sql_offsets.py`), spans
(`reading/outstanding.py`), tokens (`consumer/commits.py`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from semel.client.consumer.consumer import ConsumerCore
from semel.client.consumer.sql_offsets import Progress, begin
from semel.client.message import Message
from semel.client.reading.outstanding import Span


class SqlWork:
    """The part of a transaction that runs in the caller's thread, in both halves of the API."""

    def __init__(self, core: ConsumerCore, connection: Any, message: Message | None) -> None:
        """Raises InvalidRequest."""
        self.connection = connection
        self._message = message
        self._store = core.store
        self._outstanding = core.puller.outstanding

    def begin(self) -> Any:
        try:
            begin(self.connection)
        except BaseException:
            self._outstanding.give_back()
            raise
        return self.connection

    def spans(self) -> list[Span]:
        """Returns the spans to store. Raises InvalidRequest."""
        if self._message is None:
            return self._outstanding.spans()
        return self._outstanding.processed_up_to(self._message)

    def roll_back(self) -> None:
        self._outstanding.give_back()
        self.connection.rollback()

    def commit(self, spans: Sequence[Span], progress: Sequence[Progress]) -> None:
        """Raises LockLost, and whatever the database raises."""
        try:
            self._store.advance(self.connection, progress)
            self.connection.commit()
            self._outstanding.settle(spans)
        except BaseException:
            self._outstanding.give_back(in_doubt=True)
            with contextlib.suppress(Exception):
                self.connection.rollback()
            raise
