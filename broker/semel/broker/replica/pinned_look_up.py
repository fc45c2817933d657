"""The look-up of a transaction's pinned batches, in the reader pool of the master.

How it works. It belongs to one mastership: ids that it finds may be in flight, and are lost with
it. So what it finds out names the term, and serves in no other one.

Not here: what becomes of the batches (`dedup/pinned_ids.py`), when they are looked up
(`background/publication.py`), which batches those are (`replica.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import Executor
from functools import partial
from typing import Final

from semel.broker.dedup.pinned_ids import PinnedIds, Rewrite
from semel.broker.log import IndexUnavailable, Log
from semel.broker.replica.message_ids import MessageIds
from semel.broker.state import KnownIds, TransactionIds
from semel.protos.errors import Unavailable

REWRITE_BYTES: Final = 4 << 20
"""About this many bytes of rewritten batches are in one entry."""


def read_stored(log: Log, entry: int, position: int, length: int) -> bytes:
    """BLOCKING. The payload of a record. Raises CorruptSegment and Unavailable."""
    try:
        return bytes(log.read_record(entry, position, length))
    except IndexUnavailable as error:
        raise Unavailable(f"a staged batch is not readable on this node: {error}") from None


class PinnedLookUp:
    """The pinned batches of all topics that compare ids."""

    def __init__(
        self,
        ids: MessageIds,
        log: Log,
        readers: Executor,
        term: int,
        topics: Mapping[int, tuple[PinnedIds, KnownIds]],
    ) -> None:
        self._ids = ids
        self._log = log
        self._readers = readers
        self._term = term
        self._topics = topics
        self._rewriting: list[tuple[PinnedIds, Iterator[list[Rewrite]]]] = []
        """The topics whose batches are rewritten, and have not been yet."""

    @property
    def topics(self) -> frozenset[int]:
        """The topics."""
        return frozenset(self._topics)

    @property
    def large(self) -> bool:
        """Whether it takes much memory."""
        return any(not pinned.small for pinned, _ in self._topics.values())

    async def finish(self) -> None:
        """Reads and looks up. Raises Throttled, CorruptSegment, CorruptBatch and Unavailable."""
        for pinned, window in self._topics.values():
            work = partial(pinned.look_up, self._read, window)
            await self._ids.look(pinned.index, self._readers, work)
        self._rewriting = [
            (pinned, pinned.rewrites(self._read, window, REWRITE_BYTES))
            for pinned, window in self._topics.values()
            if not pinned.small
        ]

    def _read(self, entry: int, position: int, length: int) -> bytes:
        return read_stored(self._log, entry, position, length)

    async def next_rewrites(self) -> TransactionIds:
        """What to rewrite next, in an entry of its own, before the publication; nothing if that is
        all. After a rewrite the batches must be looked up again. Raises what `finish` raises."""
        while self._rewriting:
            pinned, rewrites = self._rewriting[0]
            work = partial(next, rewrites, [])
            found = await self._ids.look(pinned.index, self._readers, work)
            if found:
                return TransactionIds(rewrites=found, term=self._term)
            del self._rewriting[0]
        return TransactionIds()

    def found(self) -> TransactionIds:
        """What the publication needs."""
        topics = {topic_id: pinned for topic_id, (pinned, _) in self._topics.items()}
        return TransactionIds(topics=topics, term=self._term)
