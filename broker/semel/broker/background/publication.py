"""Publishes pinned transactions on their master: looks ids up, rewrites, proposes.

How it works. Each round looks the ids of all pinned batches up, in a thread. If messages of a large
transaction are to be dropped, what is kept of their batches is written first, several batches in an
entry, and the next round sees it in their places. A publication is proposed when nothing is left to
rewrite. If ids of it have arrived from elsewhere since its look-up, it goes round once more.

So that others who send the same ids cannot keep it from ending, the last rounds hold ids of its
topics back: what is found then stays as it is.

Every round begins with what is pinned, so whoever is master next goes on where this one was.

Invariants
1. Batches are rewritten only for a transaction that its coordinator has decided to commit: messages
   that are dropped do not come back.

Not here: the look-up (`replica/pinned_look_up.py`), who asks for a publication
(`transaction_work.py`), the rules (`state/admission/transaction_admission.py`).
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final, Protocol

from semel.broker.state import ApplyResult, Published, TransactionIds
from semel.protos.errors import Throttled
from semel.protos.v1 import control_pb2, transaction_records_pb2

logger = logging.getLogger(__name__)

FREE_ROUNDS: Final = 3
"""After this number of rounds ids of others are held back."""
ROUNDS_MAX: Final = 8
RETRY_MS: Final = 20


class LookUp(Protocol):
    """A look-up of the ids of all pinned batches (`replica/pinned_look_up.py`)."""

    @property
    def topics(self) -> frozenset[int]: ...

    @property
    def large(self) -> bool: ...

    async def finish(self) -> None: ...

    async def next_rewrites(self) -> TransactionIds: ...

    def found(self) -> TransactionIds: ...


class PublishingReplica(Protocol):
    """The replica, as this module needs it."""

    def look_up_pinned(self, transaction_id: str, attempt: int) -> LookUp: ...

    def hold_ids(self, topics: frozenset[int]) -> None: ...

    def release_ids(self, topics: frozenset[int]) -> None: ...

    async def submit_control(
        self, record: control_pb2.ControlRecord, looked_up: TransactionIds | None = None
    ) -> ApplyResult: ...


class Publications:
    """All publications on one node."""

    def __init__(self, replica: PublishingReplica) -> None:
        self._replica = replica
        self._large = asyncio.Lock()
        """Held during the publication of a large transaction: the memory for one is enough."""

    async def publish(self, record: transaction_records_pb2.PublishTransaction) -> Published:
        """Returns once the attempt's pin is published. Raises TransactionAborted if there is none,
        Throttled, NotMaster, StorageError and Unavailable."""
        if not self._replica.look_up_pinned(record.transaction_id, record.attempt).large:
            return await self._publish(record)
        async with self._large:
            return await self._publish(record)

    async def _publish(self, record: transaction_records_pb2.PublishTransaction) -> Published:
        replica, held = self._replica, frozenset[int]()
        try:
            for left in reversed(range(ROUNDS_MAX)):
                looking = replica.look_up_pinned(record.transaction_id, record.attempt)
                if left < ROUNDS_MAX - FREE_ROUNDS and not held:
                    held = looking.topics
                    replica.hold_ids(held)
                try:
                    await looking.finish()
                    if await _rewrite(replica, record, looking):
                        continue
                    published = await replica.submit_control(_step(publish=record), looking.found())
                    assert isinstance(published, Published)
                    return published
                except Throttled as error:  # what was looked up may be too old
                    if not looking.topics or not left:
                        raise
                    await asyncio.sleep((error.retry_after_ms or 0) / 1000)
        finally:
            replica.release_ids(held)
        raise Throttled(
            f"transaction {record.transaction_id!r} is not published yet; ask again",
            retry_after_ms=RETRY_MS,
        )


async def _rewrite(
    replica: PublishingReplica,
    record: transaction_records_pb2.PublishTransaction,
    looking: LookUp,
) -> bool:
    """Writes what has to be written before the publication; False if nothing has."""
    rewrite = transaction_records_pb2.RewriteBatches(
        transaction_id=record.transaction_id, attempt=record.attempt
    )
    batches = 0
    while found := await looking.next_rewrites():
        await replica.submit_control(_step(rewrite=rewrite), found)
        batches += len(found.rewrites)
    if batches:
        logger.info(
            "batches rewritten without known ids transaction=%s batches=%d",
            record.transaction_id,
            batches,
        )
    return bool(batches)


def _step(
    *,
    publish: transaction_records_pb2.PublishTransaction | None = None,
    rewrite: transaction_records_pb2.RewriteBatches | None = None,
) -> control_pb2.ControlRecord:
    """A record of its own: the admission fills it in."""
    step = transaction_records_pb2.TransactionRecord(publish=publish, rewrite=rewrite)
    return control_pb2.ControlRecord(transaction=step)
