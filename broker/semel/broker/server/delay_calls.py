"""Calls about delayed messages, which have no offsets and so cannot be fetched.

How it works. A page of delayed batches names them from the replicated state, in the order in which
they are due, and reads them in a reader thread. Batches leave as they were stored; the client takes
the messages apart. The next page begins behind the *place* of the last batch, which the client
sends back: batches that are added or released in between change nothing in the rest of the order.

Not here: the order (`state/apply/delays.py`), the release (`background/delayed_release.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from semel.broker.log import IndexUnavailable, Log
from semel.broker.replica.replica import Replica
from semel.broker.server.checks import check_settled, known
from semel.broker.state import DelayedExtent, DelayedPlace
from semel.protos.errors import CorruptBatch, InvalidRequest
from semel.protos.queue_refs import queue_key_of
from semel.protos.v1 import broker_pb2

MESSAGES_MAX: Final = 10_000
"""The most messages that a page may be asked for."""
PAGE_BYTES: Final = 1 << 20
"""A page has no more bytes of batches, unless its first batch alone has."""


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
        after = _place(request, delays.next_ordinal)
        queue = delays.queues.get(key)
        reply = broker_pb2.ListDelayedReply()
        if queue is None:
            return reply
        extents, reply.more = queue.page(
            after, request.before_us or None, request.messages_max, PAGE_BYTES
        )
        log = replica.log
        for extent, stored in zip(
            extents, await replica.in_reader(lambda: _read(log, extents)), strict=True
        ):
            place = broker_pb2.DelayedPlace(due_us=extent.due_us, ordinal=extent.ordinal)
            reply.batches.add(place=place, stored=stored)
        return reply


def _place(request: broker_pb2.ListDelayedRequest, next_ordinal: int) -> DelayedPlace | None:
    """The place behind which the page begins. Raises InvalidRequest for one that no batch had."""
    if not request.HasField("after"):
        return None
    after = DelayedPlace(request.after.due_us, request.after.ordinal)
    if after.due_us <= 0 or after.ordinal >= next_ordinal:
        raise InvalidRequest(
            f"no batch of this broker group was ever delayed as number {after.ordinal} until"
            f" {after.due_us}: list from the beginning"
        )
    return after


def _read(log: Log, extents: Sequence[DelayedExtent]) -> list[bytes]:
    """BLOCKING. The stored batches. Raises CorruptBatch, CorruptSegment."""
    found = []
    for extent in extents:
        try:
            found.append(bytes(log.read_record(extent.entry, extent.position, extent.length)))
        except IndexUnavailable as error:
            raise CorruptBatch(
                f"a batch that is due at {extent.due_us} is not readable on this node: {error}"
            ) from None
    return found
