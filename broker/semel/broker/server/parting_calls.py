"""The call that gives up a delayed batch of a queue that was split, and that no node can read.

How it works. Such a batch keeps all that is delayed behind it from the children of its queue
(`background/delayed_parting.py`). The master tries to read it once more, and asks every other
member for its copy. Only if all of them have answered, and no copy can be handed to the children,
the batch is given up: an entry says so, and every node drops it. The reply says what is lost.

Invariants
1. Nothing is given up that some member could still give, or while a member does not answer.
2. The caller names the batch: what was given up by somebody else is not followed by the next one.

Not here: the decision about the entry (`state/admission/part_admission.py`), repair of batches that
some node has (`repair/repair.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import google_crc32c
import grpc
import grpc.aio

from semel.broker.background.delayed_parting import Piece, next_piece
from semel.broker.identity import peer_channel
from semel.broker.replica.replica import Replica
from semel.broker.replica.stored_batches import read_batch
from semel.broker.server.checks import check_settled, known
from semel.protos import compat
from semel.protos.batch import BROKER_HEADER_BYTES
from semel.protos.errors import CorruptBatch, CorruptSegment, InvalidRequest, Throttled, Unavailable
from semel.protos.ids import NodeId, QueueKey
from semel.protos.parted_rows import part_rows
from semel.protos.queue_refs import queue_key_of, queue_ref
from semel.protos.v1 import broker_pb2, control_pb2, raft_pb2, raft_pb2_grpc

logger = logging.getLogger(__name__)

_ASK_S: Final = 5.0


class PartingCalls:
    """Serves GiveUpDelayed of semel.protos.v1.Broker."""

    def __init__(self, replica: Replica, caller: Callable[[NodeId], raft_pb2.PeerCaller]) -> None:
        """`caller` is how this node introduces itself to a member."""
        self._replica = replica
        self._caller = caller

    async def GiveUpDelayed(  # noqa: N802
        self, request: broker_pb2.GiveUpDelayedRequest, context: object
    ) -> broker_pb2.GiveUpDelayedReply:
        replica = self._replica
        await replica.confirm_read()
        key = known(replica, queue_key_of(request.queue))
        check_settled(replica, key)
        piece = self._next(key)
        (extent,) = piece.extents
        named = request.HasField("batch")
        if named and (request.batch.due_us, request.batch.ordinal) != extent[:2]:
            raise InvalidRequest(
                f"the next delayed batch of queue {key.queue_id} is another one than the one that"
                " was named: it was given up, or handed to the children of the queue, meanwhile"
            )
        reason = await self._why_unreadable(piece)
        messages = replica.state.delays.left(key, extent) if self._is_next(key, piece) else 0
        reply = broker_pb2.GiveUpDelayedReply(
            batch=broker_pb2.DelayedPlace(due_us=extent.due_us, ordinal=extent.ordinal),
            messages=messages,
            entry=extent.entry,
            bytes=extent.length,
            reason=reason,
        )
        if not named:
            return reply
        record = control_pb2.GiveUpDelayed(
            queue=queue_ref(key),
            due_us=extent.due_us,
            ordinal=extent.ordinal,
            entry=extent.entry,
            position=extent.position,
            messages=messages,
        )
        await replica.submit_control(control_pb2.ControlRecord(give_up_delayed=record))
        logger.error(
            "an operator has given up a delayed batch that no node can read queue=%s messages=%d"
            " due_us=%d entry=%d",
            key,
            messages,
            extent.due_us,
            extent.entry,
        )
        return reply

    def _next(self, key: QueueKey) -> Piece:
        """The next batch of the queue alone. Raises InvalidRequest."""
        state = self._replica.state
        if key not in state.delays.sealed:
            raise InvalidRequest(
                f"queue {key.queue_id} has no delayed messages that its children wait for; only"
                " those of a queue that was split can be given up"
            )
        piece = next_piece(state, state.delays.sealed - {key})
        assert piece is not None
        return piece._replace(extents=piece.extents[:1], cancelled=piece.cancelled[:1])

    def _is_next(self, key: QueueKey, piece: Piece) -> bool:
        held = self._replica.state.delays.queues.get(key)
        return held is not None and held.first_place == piece.extents[0][:2]

    async def _why_unreadable(self, piece: Piece) -> str:
        """Why no node can give the batch. Raises InvalidRequest if one can, Unavailable if not all
        members answer."""
        replica, (extent,), (cancelled,) = self._replica, piece.extents, piece.cancelled
        own = replica.config.node_id
        where, log = (extent.entry, extent.position, extent.length), replica.log

        def check(stored: bytes | None = None) -> str:
            """BLOCKING. Why a copy cannot be handed over; empty if it can."""
            try:
                if stored is None:
                    stored = read_batch(log, where, "it is")
                part_rows(stored[BROKER_HEADER_BYTES:], cancelled, piece.heirs, by_id=piece.by_id)
            except (CorruptBatch, CorruptSegment) as error:
                return error.message
            return ""

        reason = await replica.in_reader(check)
        if not reason:
            raise InvalidRequest(
                f"the next delayed batch of queue {piece.key.queue_id} can be read: it is handed to"
                " the children of the queue, and cannot be given up"
            )
        for node in sorted({*replica.peers.addresses, *replica.core.membership.nodes} - {own}):
            stored = await self._copy_of(node, where)
            if stored is not None and not await replica.in_reader(partial(check, stored)):
                raise Throttled(
                    f"node {node} has the next delayed batch of queue {piece.key.queue_id}, from"
                    " which it is repaired: nothing is to be given up",
                    retry_after_ms=1_000,
                )
        return reason

    async def _copy_of(self, node: NodeId, where: tuple[int, int, int]) -> bytes | None:
        """A member's copy of a record; None if it cannot read it. Raises Unavailable."""
        address = self._replica.peers.address_of(node)
        if address is None:
            raise Unavailable(f"node {node} has just left or joined; try again")
        index, position, length = where
        request = raft_pb2.PullRecordsRequest(
            records=[raft_pb2.RecordRef(index=index, position=position, length=length)],
            caller=self._caller(node),
        )
        chunk: Any = None
        try:
            async with (
                compat.timeout(_ASK_S),
                peer_channel(self._replica.config, node, address) as channel,
            ):
                stub: Any = raft_pb2_grpc.SnapshotsStub(channel)
                async for each in stub.PullRecords(request):
                    chunk = each
        except (grpc.aio.AioRpcError, TimeoutError, OSError) as error:
            reason = error.details() if isinstance(error, grpc.aio.AioRpcError) else error
            raise Unavailable(
                f"node {node} does not answer, and may have the batch that is to be given up"
                f" ({reason or 'timeout'}): start it, or take it out of the group"
            ) from None
        if chunk is None or len(chunk.data) != length:
            return None
        return chunk.data if google_crc32c.value(chunk.data) == chunk.crc else None
