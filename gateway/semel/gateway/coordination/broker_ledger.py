"""A transaction id at the brokers, as the coordinator of Kafka's transactions asks for it.

How it works. Each call goes out by the client of whoever asks, so brokers judge it by that one's
rights. A stager's number of the writer, which orders nothing between queues, is the transaction's
timeout: a gateway that takes over reads it there.

Not here: what is asked, and why (`transactions/coordinator.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from semel.client.core.routing import QueueRoute
from semel.client.transactions.commit import Begun, TransactionCore
from semel.client.transactions.staging import SERVICE, StagedPart, StageReceipt
from semel.client.transport.cluster import Cluster
from semel.gateway.transactions.ledger import Attempt, Found, Part, Pinned, Stage
from semel.gateway.transactions.standing import Row
from semel.protos.errors import PermissionDenied, QueueMoved
from semel.protos.ids import GroupId
from semel.protos.levels import KAFKA_TRANSACTIONS_LEVEL, lacking
from semel.protos.queue_refs import queue_key_of, queue_ref
from semel.protos.v1 import transaction_records_pb2, transactions_pb2

QUERY_ID: Final = "semel.kafka-gateway"
"""Owns all transaction ids of Kafka's clients, so that no program of the SDK takes one by
mistake."""
CALL_S: Final = 10.0
SLACK_MS: Final = 10_000
"""A stager lives so much longer than its transaction may last, and so ends after it."""
MOVES_MAX: Final = 3
SESSION: Final = 0
"""Queues are opened under it; who stages first raises it (`producing/stage_lanes.py`)."""


class BrokerLedger:
    """See the module's text. Lives on the client's I/O thread."""

    def __init__(
        self,
        cluster: Cluster,
        core: TransactionCore,
        transaction_id: str,
        risen: set[GroupId],
    ) -> None:
        """`risen` has broker groups that are known to be at the level that is needed, and gets
        more of them."""
        self._cluster = cluster
        self._core = core
        self._id = transaction_id
        self._risen = risen

    async def check_level(self) -> None:
        if self._risen.issuperset(self._cluster.routes.groups()):
            return
        for group, reply in (await self._core.described(self._id)).items():
            if reply.level < KAFKA_TRANSACTIONS_LEVEL:
                raise lacking(KAFKA_TRANSACTIONS_LEVEL, reply.level, f"broker group {group}")
            self._risen.add(group)

    async def row(self) -> Row:
        return _row_of(await self._core.coordinated(self._id))

    async def find(self) -> Found:
        replies = await self._core.described(self._id)
        coordinator = await self._core.coordinator(self._id)
        return Found(
            _row_of(replies[coordinator]),
            [stage_of(group, one) for group, reply in replies.items() for one in reply.staged],
            [
                Pinned(group, pin.epoch, pin.attempt, [stage_of(group, one) for one in pin.winners])
                for group, reply in replies.items()
                for pin in reply.pinned
            ],
        )

    async def begin(self, epoch: int) -> Attempt:
        return Attempt(*await self._core.begin(self._id, QUERY_ID, epoch))

    async def open(self, epoch: int, timeout_ms: int, stagers: Mapping[int, QueueRoute]) -> None:
        for attempt in range(MOVES_MAX):
            calls = [
                self._cluster.call_master(
                    self._cluster.routes.home(queue),
                    "Open",
                    transaction_records_pb2.OpenStager(
                        transaction_id=self._id,
                        epoch=epoch,
                        stager_id=stager_id,
                        writer=timeout_ms,
                        session=SESSION,
                        ttl_ms=timeout_ms + SLACK_MS,
                        queues=[queue_ref(queue.key)],
                    ),
                    CALL_S,
                    service=SERVICE,
                )
                for stager_id, queue in stagers.items()
            ]
            results = await asyncio.gather(*calls, return_exceptions=True)
            failures = [each for each in results if isinstance(each, BaseException)]
            if not failures:
                return
            denied = [each for each in failures if isinstance(each, PermissionDenied)]
            other = [each for each in failures if not isinstance(each, QueueMoved)]
            if other or attempt == MOVES_MAX - 1:
                raise (denied or other or failures)[0]

    async def drop(self, stages: Iterable[Stage]) -> None:
        stagers: dict[GroupId, set[int]] = {}
        for stage in stages:
            stagers.setdefault(stage.group, set()).add(stage.stager_id)
        await self._core.drop_stagers(stagers)

    async def commit(self, begun: Attempt, stages: Sequence[Stage]) -> None:
        receipts = [
            StageReceipt(
                transaction_id=self._id,
                epoch=begun.epoch,
                writer=0,
                stager_id=stage.stager_id,
                parts=tuple(StagedPart(*part) for part in stage.parts),
                commits=((stage.group, stage.commits),) if stage.commits else (),
            )
            for stage in stages
            if stage.parts or stage.commits
        ]
        await self._core.commit(self._id, QUERY_ID, begun.epoch, receipts, begun=Begun(*begun))

    async def published(self, epoch: int) -> None:
        await self._core.published(self._id, epoch)


def stage_of(group: GroupId, one: transactions_pb2.StagedTransaction) -> Stage:
    """Returns what a broker group tells of a stager."""
    return Stage(
        group=group,
        epoch=one.epoch,
        stager_id=one.stager_id,
        timeout_ms=one.writer,
        queues=frozenset(queue_key_of(each) for each in one.queues),
        parts=tuple(
            Part(
                group,
                part.queue.topic_id,
                part.queue.queue_id,
                part.batches,
                part.messages,
                part.digest,
            )
            for part in one.parts
        ),
        commits=len(one.commits),
    )


def _row_of(reply: transactions_pb2.DescribeTransactionsReply) -> Row:
    for row in reply.coordinated:
        return Row(
            epoch=row.epoch,
            begun_epoch=row.begun_epoch,
            attempt=row.attempt,
            changed_us=row.changed_us,
            log_time_us=reply.log_time_us,
        )
    return Row(log_time_us=reply.log_time_us)
