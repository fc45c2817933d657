"""Calls about producers: fencing them, and the outcome of their batches.

How it works. A call that changes state becomes a control record, and is answered once that is
applied. A call that reads state, and may answer "no" or "not yet", first has a heartbeat round
confirm the mastership, so that a master that was replaced without knowing it cannot answer from the
past.

Not here: produce streams (`server/produce.py`), the sequence table (`state/apply/producers.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

from semel.broker.control_plane.producer_owners import ProducerOwners
from semel.broker.quotas.broker_quotas import calling_principal
from semel.broker.quotas.open_producers import OpenProducers
from semel.broker.replica.replica import Replica
from semel.broker.server.checks import check_settled, known
from semel.broker.state import FenceApplied, OutcomeKind, ProducerState, row_message
from semel.protos.errors import InvalidRequest
from semel.protos.ids import ProducerId
from semel.protos.queue_refs import queue_key_of, queue_ref
from semel.protos.v1 import broker_pb2, control_pb2

_OUTCOMES: Final = {
    OutcomeKind.COMMITTED: broker_pb2.ProduceOutcomeReply.OUTCOME_COMMITTED,
    OutcomeKind.NOT_COMMITTED: broker_pb2.ProduceOutcomeReply.OUTCOME_NOT_COMMITTED,
    OutcomeKind.TOO_OLD: broker_pb2.ProduceOutcomeReply.OUTCOME_TOO_OLD,
}
_ROWS_DEFAULT: Final = 10_000
_QUEUES_AT_ONCE: Final = 64
_ROWS_AT_ONCE: Final = 64
"""After so many the event loop turns."""


class ProducerCalls:
    """Serves the calls of semel.protos.v1.Broker about producers."""

    def __init__(
        self,
        replica: Replica,
        owners: ProducerOwners | None = None,
        quotas: OpenProducers | None = None,
    ) -> None:
        """Without `owners` everybody may fence every producer, without `quotas` any number."""
        self._replica = replica
        self._owners = owners
        self._quotas = quotas

    async def FenceProducer(  # noqa: N802
        self, request: broker_pb2.FenceProducerRequest, context: object
    ) -> broker_pb2.FenceProducerReply:
        _check_producer(request.producer_id)
        if not request.queues:
            return broker_pb2.FenceProducerReply()
        wanted = [queue_key_of(queue) for queue in request.queues]
        if len(set(wanted)) != len(wanted):
            raise InvalidRequest("a fence names each queue once")
        if self._owners is not None:
            await self._owners.check(request)
        if self._quotas is not None:
            self._quotas.on_open(calling_principal(), request.producer_id)
        fence = control_pb2.Fence(
            queues=[queue_ref(key) for key in sorted(wanted)],
            producer_id=request.producer_id,
            epoch=request.epoch,
            session=request.session,
            name=request.name,
            after_expiry=request.after_expiry,
        )
        result = await self._replica.submit_control(control_pb2.ControlRecord(fence=fence))
        assert isinstance(result, FenceApplied)
        rows = {row.queue_key: row for row in result.rows}
        return broker_pb2.FenceProducerReply(rows=[row_message(rows[key]) for key in wanted])

    async def GetProduceOutcome(  # noqa: N802
        self, request: broker_pb2.ProduceOutcomeRequest, context: object
    ) -> broker_pb2.ProduceOutcomeReply:
        _check_producer(request.producer_id)
        await self._replica.confirm_read()
        key = known(self._replica, queue_key_of(request.queue))
        check_settled(self._replica, key)
        outcome = self._replica.state.outcome(
            key, ProducerId(request.producer_id), request.sequence
        )
        return broker_pb2.ProduceOutcomeReply(
            outcome=_OUTCOMES[outcome.kind],
            offset=outcome.offset,
            last_sequence=outcome.last_sequence,
        )

    async def DescribeProducers(  # noqa: N802
        self, request: broker_pb2.DescribeProducersRequest, context: object
    ) -> broker_pb2.DescribeProducersReply:
        if request.confirmed:
            await self._replica.confirm_read()
        state = self._replica.state
        keys = [queue_key_of(queue) for queue in request.queues] or sorted(state.queues)
        limit = request.limit or _ROWS_DEFAULT
        reply = broker_pb2.DescribeProducersReply()
        for number, key in enumerate(keys, 1):
            if number % _QUEUES_AT_ONCE == 0:
                await asyncio.sleep(0)
            known(self._replica, key)
            if request.confirmed:
                check_settled(self._replica, key)
            if request.producer_id:
                row = state.producers.lookup(key, request.producer_id)
                rows: Iterable[ProducerState] = [row] if row is not None else []
            else:
                rows = state.producers.rows(key)
            for found in rows:
                if len(reply.rows) == limit:
                    reply.truncated = True
                    return reply
                reply.rows.append(row_message(found, window=request.windows))
                if len(reply.rows) % _ROWS_AT_ONCE == 0:
                    await asyncio.sleep(0)
        return reply


def _check_producer(producer_id: int) -> None:
    if not 0 < producer_id < 1 << 63:
        raise InvalidRequest(f"producer id {producer_id} is out of range; open the producer first")
