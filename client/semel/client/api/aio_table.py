"""The asyncio `AsyncTable`: a topic as a mapping that follows it.

How it works. A reader reads the topic from its start and goes on. Whoever looks at the table first
takes in what has arrived, without waiting; nothing runs in the background but the reader's
prefetching.

One object belongs to one task at a time.

The synchronous half, `api/sync_table.py`, is generated from this module by `tools/unasync.py`,
which explains the marks in the comments.

Not here: which message of a key counts (`core/table_rows.py`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Final, Self

from semel.client.api.aio_reading import AsyncReader
from semel.client.core.table_rows import TableRows
from semel.client.reading.offsets import list_offsets
from semel.client.reading.pulling import await_ready
from semel.client.session import Session
from semel.protos.errors import Closed, TimedOut

_TAKEN: Final = 10_000
"""Messages that are taken at a time."""


class AsyncTable(Mapping[bytes, bytes]):
    """The newest value of each key of a topic, as far as it was read. A message without a value
    takes its key out; messages without a key are left out.

    Every look takes in what has arrived meanwhile. Raises OffsetOutOfRange when retention overtook
    it, and like a reader.
    """

    def __init__(self, session: Session, topic: str, reader: AsyncReader) -> None:
        self._session = session
        self._topic = topic
        self._reader = reader
        self._rows = TableRows(self._parent_of)
        self._closed = False

    def __getitem__(self, key: bytes) -> bytes:
        self.refresh()
        return self._rows.values[key]

    def __len__(self) -> int:
        self.refresh()
        return len(self._rows.values)

    def __iter__(self) -> Iterator[bytes]:
        """Iterates over the keys as of now, in no certain order."""
        self.refresh()
        return iter(list(self._rows.values))

    def refresh(self) -> None:
        """Takes in what has arrived, without waiting for more."""
        if self._closed:
            raise Closed("the table is closed")
        while messages := self._reader._puller.messages(_TAKEN):
            self._rows.take(messages)

    def positions(self) -> dict[int, int]:
        """Returns by queue the next offset to take in."""
        return self._reader.positions()

    async def catch_up(self, timeout: float | None = None) -> None:
        """Returns once everything is in that was stored when it was called. Raises TimedOut after
        `timeout` seconds."""
        cluster = self._session.cluster
        deadline = None if timeout is None else time.monotonic() + timeout
        route = await self._session.await_run(cluster.topic(self._topic, refresh=True))
        found = await self._session.await_run(list_offsets(cluster, list(route.every)))
        ends = {queue: offsets.log_end_offset for queue, offsets in found.items()}
        await self._reach(ends, deadline)

    async def wait_for(self, offsets: Mapping[int, int], timeout: float | None = None) -> None:
        """Returns once everything below these offsets is in, by queue: after a `send` that is
        `{metadata.queue: metadata.offset + 1}`. Raises TimedOut after `timeout` seconds."""
        await self._reach(offsets, None if timeout is None else time.monotonic() + timeout)

    async def _reach(self, ends: Mapping[int, int], deadline: float | None) -> None:
        while True:
            self.refresh()
            positions = self.positions()
            behind = {queue: end for queue, end in ends.items() if positions.get(queue, 0) < end}
            if not behind:
                return
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise TimedOut(f"the table of {self._topic!r} is behind {behind}: {positions}")
            await await_ready(self._reader._feed, left)
            self._session.check()

    def _parent_of(self, queue: int) -> int | None:
        route = self._session.cluster.routes.topic(self._topic)
        found = None if route is None else route.find(queue)
        return None if found is None else found.parent

    async def close(self) -> None:
        """Ends it; every further look raises Closed."""
        self._closed = True
        await self._reader.close()

    async def __aenter__(self) -> Self:
        """Reads what is stored, so that the table is complete as of now."""
        await self._reader.open()  # asyncio only
        await self.catch_up()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()
