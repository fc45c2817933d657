"""Calls about delayed messages, which have no offsets and so cannot be fetched.

How it works. A page of delayed batches names them from the replicated state, in the order in which
they are due, and reads them in a reader thread. Batches leave as they were stored; the client takes
the messages apart. The next page begins behind the *place* of the last batch, which the client
sends back: batches that are added or released in between change nothing in the rest of the order.

Counts come from the state alone, a part of a queue at a time: 32,768 batches take about 0.3 ms,
after which others have their turn. A batch that is released meanwhile is counted or not, and one
that is added meanwhile is not. The work ends at the place that was the last one at its beginning:
else it would go on for as long as batches are added behind it.

What was released is told from the replicated state as well, in rows that grow coarser with age.

Not here: the order (`state/apply/delays.py`), the sums (`state/apply/delay_figures.py`), the
history (`state/apply/release_history.py`), the release (`background/delayed_release.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from semel.broker.log import Log
from semel.broker.replica.replica import Replica
from semel.broker.replica.stored_batches import read_batch
from semel.broker.server.checks import absent, check_settled, known
from semel.broker.state import DelayedExtent, DelayedPlace, DueHistogram
from semel.protos.errors import InvalidRequest, to_detail
from semel.protos.ids import QueueKey
from semel.protos.levels import HISTORY_LEVEL
from semel.protos.queue_refs import queue_key_of
from semel.protos.v1 import broker_pb2

MESSAGES_MAX: Final = 10_000
"""The most messages that a page may be asked for."""
PAGE_BYTES: Final = 1 << 20
"""A page has no more bytes of batches, unless its first batch alone has."""

BOUNDS_MAX: Final = 64
"""The most bounds that counts may be asked for."""
WITHIN_US_MAX: Final = 1 << 60
"""The furthest bound from now."""
COUNTED_BLOCKS: Final = 16
"""Blocks of extents that are counted before others have their turn."""

QUEUES_AT_ONCE: Final = 64
"""Queues without delayed messages that are looked at before others have their turn."""


class DelayCalls:
    """Serves the calls of semel.protos.v1.Broker about delayed messages."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica

    async def ListDelayed(  # noqa: N802
        self, request: broker_pb2.ListDelayedRequest, context: object
    ) -> broker_pb2.ListDelayedReply:
        if not 0 < request.messages_max <= MESSAGES_MAX:
            raise InvalidRequest(
                f"a page has 1 to {MESSAGES_MAX} messages, not {request.messages_max}"
            )
        if request.before_us < 0:
            raise InvalidRequest(f"before_us {request.before_us} is no time since 1970")
        replica = self._replica
        await replica.confirm_read()
        key = known(replica, queue_key_of(request.queue))
        check_settled(replica, key)
        delays = replica.state.delays
        after = _place(request)
        queue = delays.queues.get(key)
        if queue is None:
            return broker_pb2.ListDelayedReply()
        extents, more = queue.page(
            after, request.before_us or None, request.messages_max, PAGE_BYTES
        )
        log = replica.log
        page = [(each, tuple(queue.cancelled.rows(each.ordinal))) for each in extents]
        return await replica.in_reader(lambda: _read(log, page, more=more), replica.pools.clients)

    async def CountDelayed(  # noqa: N802
        self, request: broker_pb2.CountDelayedRequest, context: object
    ) -> broker_pb2.CountDelayedReply:
        within_us = list(request.within_us)
        if (
            len(within_us) > BOUNDS_MAX
            or any(not 0 <= each <= WITHIN_US_MAX for each in within_us)
            or any(low >= high for low, high in pairwise(within_us))
        ):
            raise InvalidRequest(
                f"counts have up to {BOUNDS_MAX} bounds from 0 that rise, not {within_us[:65]}"
            )
        replica = self._replica
        await replica.confirm_read()
        now_us, below_ordinal = replica.log_time_us(), replica.state.delays.next_ordinal
        bounds_us = [now_us + each for each in within_us]
        reply = broker_pb2.CountDelayedReply()
        for at, ref in enumerate(request.queues):
            if at % QUEUES_AT_ONCE == QUEUES_AT_ONCE - 1:
                await asyncio.sleep(0)
            key = queue_key_of(ref)
            if key not in replica.state.queues:
                reply.queues.add(queue=ref, error=to_detail(absent(replica, key)))
                continue
            check_settled(replica, key)
            histogram = DueHistogram(bounds_us, below_ordinal)
            await self._count(key, histogram)
            reply.queues.add(
                queue=ref,
                counts=[
                    broker_pb2.DelayedCount(**figures._asdict()) for figures in histogram.figures
                ],
                first_due_us=histogram.first_due_us,
                last_due_us=histogram.last_due_us,
            )
        return reply

    async def ListReleases(  # noqa: N802
        self, request: broker_pb2.ListReleasesRequest, context: object
    ) -> broker_pb2.ListReleasesReply:
        if not 0 < request.rows_max <= MESSAGES_MAX or request.since_us < 0:
            raise InvalidRequest(
                f"releases are listed from a time since 1970 on, 1 to {MESSAGES_MAX} of them, not"
                f" {request.rows_max} from {request.since_us}"
            )
        replica = self._replica
        await replica.require_level(HISTORY_LEVEL)
        await replica.confirm_read()
        asked = request.topic_id, request.since_us, request.rows_max
        reply = broker_pb2.ListReleasesReply()
        for row in replica.state.releases.newest(*asked):
            shown = row._asdict()
            del shown["topic_id"]
            reply.rows.add(**shown)
        return reply

    async def _count(self, key: QueueKey, histogram: DueHistogram) -> None:
        """Adds all batches of a queue, with pauses in which they may change."""
        queue = self._replica.state.delays.queues.get(key)
        if queue is None:
            return
        after: DelayedPlace | None = None
        last = queue.last
        while queue is not None and (packed := queue.packed(after, COUNTED_BLOCKS)):
            after = histogram.add(packed, queue.cancelled)
            if after >= last:
                return
            await asyncio.sleep(0)
            queue = self._replica.state.delays.queues.get(key)


def _place(request: broker_pb2.ListDelayedRequest) -> DelayedPlace | None:
    """The place behind which the page begins; the batch there may be gone. Raises InvalidRequest
    for one that no batch can have."""
    if not request.HasField("after"):
        return None
    after = DelayedPlace(request.after.due_us, request.after.ordinal)
    if after.due_us <= 0:
        raise InvalidRequest(f"no batch is delayed until {after.due_us}: list from the beginning")
    return after


def _read(
    log: Log, extents: Sequence[tuple[DelayedExtent, Sequence[int]]], *, more: bool
) -> broker_pb2.ListDelayedReply:
    """BLOCKING. The page with the stored batches, and which of their rows are cancelled.

    Raises CorruptBatch, CorruptSegment.
    """
    reply = broker_pb2.ListDelayedReply(more=more)
    for extent, rows in extents:
        where = extent.entry, extent.position, extent.length
        stored = read_batch(log, where, f"a batch that is due at {extent.due_us} is")
        place = broker_pb2.DelayedPlace(due_us=extent.due_us, ordinal=extent.ordinal)
        reply.batches.add(place=place, stored=stored, cancelled=rows)
    return reply
