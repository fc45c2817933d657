"""Calls about single messages that are known by their ids: find one, cancel one that is delayed.

How it works. The index of message ids gives the place of the newest message with the id, and the
stored batch is read there, if it is still there. Both follow a confirmed read, so a master that was
replaced tells nothing. A cancellation becomes a control record that names batch and row; admission
decides it against what is in flight. If the message is no longer where it was found, it is sought
again: it was released, or another caller has cancelled it.

The answer "cancelled" does not depend on who has cancelled: a caller whose first answer was lost
asks again, and gets the same one, for as long as the window knows the id.

A message that only the object store has is read there. Of one that was delayed the offset is not
known any more: it is sought among those that were appended from its due time on.

Not here: the index (`replica/message_ids.py`), reading (`stored_rows.py`), the decision
(`state/admission/cancel_admission.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from semel.broker.replica.clock import monotonic_ms
from semel.broker.replica.replica import Replica
from semel.broker.server.checks import check_settled
from semel.broker.server.queue_reader import cold_place
from semel.broker.server.stored_rows import ColdRow, FoundRow, candidates, cold_row, read_row
from semel.broker.state import DelayedCancelled, QueueState, descendants
from semel.broker.tiers.cold_reads import ColdReads
from semel.protos.errors import InvalidRequest, Throttled, UnknownQueue
from semel.protos.id_dedup import COMPARED_ID_BYTES_MAX
from semel.protos.ids import QueueId, QueueKey, TopicId
from semel.protos.queue_refs import queue_ref
from semel.protos.v1 import broker_pb2, control_pb2
from semel.tier import ColdBatch

CANCEL_MS_MAX: Final = 3_000
"""So long a cancellation waits for a message that is due to be delivered, or to be decided."""
SOUGHT_GROUPS: Final = 8
"""Row groups of the object store in which a message that was delayed is sought: some 64 MiB."""
_RETRY_MS: Final = 20


class IdCalls:
    """Serves the calls of semel.protos.v1.Broker about messages with ids."""

    def __init__(self, replica: Replica, cold: ColdReads | None = None) -> None:
        """`cold` reads what only the object store has; None if the node was given none."""
        self._replica = replica
        self._cold = cold

    async def FindMessage(  # noqa: N802
        self, request: broker_pb2.FindMessageRequest, context: object
    ) -> broker_pb2.FindMessageReply:
        await self._replica.confirm_read()
        topic_id = self._checked(request.topic_id, request.message_id)
        reply, _, _ = await self._find(topic_id, request.message_id)
        return reply

    async def CancelMessage(  # noqa: N802
        self, request: broker_pb2.CancelMessageRequest, context: object
    ) -> broker_pb2.CancelMessageReply:
        deadline_ms = monotonic_ms() + CANCEL_MS_MAX
        while True:
            await self._replica.confirm_read()
            topic_id = self._checked(request.topic_id, request.message_id)
            try:
                return await self._cancel(topic_id, request.message_id)
            except Throttled as error:
                if monotonic_ms() >= deadline_ms:
                    raise
                await asyncio.sleep(max(_RETRY_MS, error.retry_after_ms) / 1_000)

    async def _cancel(self, topic_id: TopicId, message_id: bytes) -> broker_pb2.CancelMessageReply:
        """Raises InvalidRequest, and Throttled if the message must be sought again."""
        found, arrival, row = await self._find(topic_id, message_id)
        reply = broker_pb2.CancelMessageReply(
            fate=found.fate,
            offset=found.offset,
            due_us=found.due_us,
            append_time_us=found.append_time_us,
        )
        if found.fate == broker_pb2.MESSAGE_FATE_UNKNOWN:
            return reply
        reply.queue.CopyFrom(found.queue)
        if not found.due_us:
            raise InvalidRequest(
                f"the message with the id {message_id!r} was not delayed: it has been in queue"
                f" {found.queue.queue_id} at offset {found.offset} since it was stored; only a"
                " delayed message can be cancelled"
            )
        if found.fate != broker_pb2.MESSAGE_FATE_DELAYED:
            return reply
        assert row is not None
        if found.due_us <= self._replica.log_time_us():
            raise Throttled("the message is due and being delivered", retry_after_ms=_RETRY_MS)
        record = control_pb2.CancelDelayed(
            queue=found.queue,
            due_us=found.due_us,
            ordinal=row.candidate.ordinal,
            row=row.row,
            arrival=arrival,
            entry=row.candidate.entry,
        )
        result = await self._replica.submit_control(
            control_pb2.ControlRecord(cancel_delayed=record)
        )
        assert isinstance(result, DelayedCancelled)
        reply.fate = broker_pb2.MESSAGE_FATE_CANCELLED
        return reply

    def _checked(self, topic_id: int, message_id: bytes) -> TopicId:
        """Raises UnknownQueue and InvalidRequest."""
        state = self._replica.state
        if not 0 < len(message_id) <= COMPARED_ID_BYTES_MAX:
            raise InvalidRequest(
                f"a message id has 1 to {COMPARED_ID_BYTES_MAX} bytes, not {len(message_id)}"
            )
        if topic_id not in state.id_windows.topics:
            queue = next(state.queues.of_topic(topic_id), None)
            if queue is None:
                raise UnknownQueue(
                    f"topic {topic_id} has no queue on broker group"
                    f" {self._replica.config.group_id}; refresh the routes"
                )
            raise InvalidRequest(
                f"topic {queue.topic!r} compares no message ids, so no message is known by its id;"
                f" `semel topic alter {queue.topic} --dedup-by-id 4GiB` turns it on for messages"
                " from then on"
            )
        return TopicId(topic_id)

    async def _find(
        self, topic_id: TopicId, message_id: bytes
    ) -> tuple[broker_pb2.FindMessageReply, int, FoundRow | None]:
        """The answer, the arrival of the id, and the message where it is readable.

        Raises Throttled, CorruptBatch, CorruptSegment.
        """
        replica = self._replica
        unknown = broker_pb2.FindMessageReply(offset=-1)
        place = await replica.ids.locate(topic_id, message_id)
        window = replica.state.id_windows.topics.get(topic_id)
        if place is None or window is None or place.arrival < window.first_arrival:
            return unknown, -1, None
        key = QueueKey(topic_id, QueueId(place.queue_id))
        reply = broker_pb2.FindMessageReply(
            fate=broker_pb2.MESSAGE_FATE_REMOVED,
            queue=queue_ref(key),
            offset=place.offset,
            due_us=place.due_us,
        )
        if window.is_superseded(place.arrival):
            return unknown, -1, None
        if window.is_cancelled(place.arrival):
            reply.fate = broker_pb2.MESSAGE_FATE_CANCELLED
            return reply, place.arrival, None
        check_settled(replica, key)
        if key not in replica.state.queues and key in replica.state.moves.places:
            return unknown, -1, None  # the group that has the queue knows; a client asks again
        queue = replica.state.queues.get(key)
        if queue is not None and not place.due_us and queue.is_cold(place.offset):
            found = await self._find_cold(queue, message_id, reply)
            return (reply if found else unknown), place.arrival, None
        among, log = candidates(replica.state, key, place), replica.log
        if not among:
            family = [] if queue is None else [queue, *descendants(replica.state.queues, queue)]
            sought: list[tuple[ColdRow, QueueState]] = []
            for each in family:  # what was delayed when a queue was split is in its children
                if each.log_start_offset < each.local_start:
                    cold_found = await self._seek_cold(each, message_id, place.due_us)
                    sought += [] if cold_found is None else [(cold_found, each)]
            if sought:
                newest, holder = max(sought, key=lambda one: one[0].arrival_us)
                await self._fill(holder, newest, reply)
            return reply, place.arrival, None
        row = await replica.in_reader(
            lambda: read_row(log, among, message_id, place.due_us), replica.pools.clients
        )
        if row is None:
            # Another id with the same fingerprint, if the message cannot have gone.
            return (reply if place.due_us else unknown), place.arrival, None
        check_settled(replica, row.candidate.queue_key)
        extent = row.candidate.extent
        reply.queue.CopyFrom(queue_ref(row.candidate.queue_key))
        reply.fate = (
            broker_pb2.MESSAGE_FATE_DELAYED if extent is None else broker_pb2.MESSAGE_FATE_STORED
        )
        reply.offset = row.offset
        reply.append_time_us = 0 if extent is None else extent.append_time_us
        reply.stored, reply.row = row.stored, row.row
        return reply, place.arrival, row

    async def _find_cold(
        self, queue: QueueState, message_id: bytes, reply: broker_pb2.FindMessageReply
    ) -> bool:
        """Looks for the message at `reply.offset`, which only the object store has, and fills the
        reply. False if another one with the same fingerprint is there. Raises Unavailable,
        CorruptBatch."""
        pointer, cold = cold_place(self._cold, queue)
        group = await cold.read(pointer, reply.offset)
        found = await self._newest_in(group.part(reply.offset, 1), message_id)
        if found is not None:
            await self._fill(queue, found, reply)
        return found is not None

    async def _seek_cold(self, queue: QueueState, message_id: bytes, due_us: int) -> ColdRow | None:
        """Looks for a message that was delayed until `due_us`. Raises Unavailable, CorruptBatch.

        Others with its id, which the window had left behind before it arrived, may lie behind that
        time as well, if it was due when it came. The newest one is meant, which only is known where
        all was looked at; else one counts that was waiting at that time.
        """
        pointer, cold = cold_place(self._cold, queue)
        offset = max(queue.log_start_offset, await cold.offset_at(pointer, due_us))
        found: list[ColdRow] = []
        for _ in range(SOUGHT_GROUPS):
            if not queue.is_cold(offset):
                break
            group = await cold.read(pointer, offset)
            row = await self._newest_in(group.batches, message_id)
            found += [] if row is None else [row]
            offset = group.end
        # What was released before a queue moved here is not found in its log.
        may_be_elsewhere = queue.is_cold(offset) or queue.key in self._replica.state.moves.places
        if may_be_elsewhere:
            found = [row for row in found if row.arrival_us < due_us]
        return max(found, key=lambda row: row.arrival_us, default=None)

    async def _newest_in(self, batches: Sequence[ColdBatch], message_id: bytes) -> ColdRow | None:
        """The message with the id that arrived last. Raises CorruptBatch."""

        def look() -> ColdRow | None:
            rows = [row for batch in batches if (row := cold_row(batch, message_id)) is not None]
            return max(rows, key=lambda row: row.arrival_us, default=None)

        return await self._replica.in_reader(look, self._replica.pools.clients)

    async def _fill(
        self, queue: QueueState, found: ColdRow, reply: broker_pb2.FindMessageReply
    ) -> None:
        """Fills the reply with a message. Raises Unavailable, CorruptBatch."""
        pointer, cold = cold_place(self._cold, queue)
        reply.fate = broker_pb2.MESSAGE_FATE_STORED
        reply.queue.CopyFrom(queue_ref(queue.key))
        reply.row, reply.offset = found.row, found.offset
        reply.stored = found.batch.stored
        reply.append_time_us = await cold.append_time_us(pointer, reply.offset)
