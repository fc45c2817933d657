"""Stages of a transaction: producers whose batches have no offsets yet.

How it works. A stage is a producer with an identity of its own that no controller knows: a random
*stager* id. Batching, backpressure, retries and splits of queues work as in any producer. Instead
of a FENCE the brokers get an OPEN, and batches that they acknowledge are on hold. The *receipt*
sums the acknowledged batches up by queue. Another program, perhaps in another process, commits with
it.

Invariants
1. A receipt covers everything that was sent before, or there is none: `receipt` raises instead.
2. A stage whose receipt was given accepts no more messages.

Not here: committing (`transactions/commit.py`).
"""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from semel.client.config import ProducerConfig
from semel.client.core.routing import QueueRoute
from semel.client.core.sequences import Decision, Settled
from semel.client.producer.identity import Identity
from semel.client.producer.intake import Intake
from semel.client.producer.lanes import Lane
from semel.client.producer.producer import ProducerCore
from semel.client.transport.cluster import Cluster
from semel.protos.batch import decode_header
from semel.protos.errors import SemelError, TransactionAborted
from semel.protos.ids import GroupId, ProducerId, QueueKey
from semel.protos.queue_refs import queue_ref
from semel.protos.staging import (
    DIGEST_MASK,
    STAGER_EPOCH,
    STAGER_ID_END,
    STAGER_ID_MIN,
    batch_digest,
)
from semel.protos.v1 import broker_pb2, transaction_records_pb2, transactions_pb2_grpc

SERVICE: Final[type[Any]] = transactions_pb2_grpc.TransactionsStub
END_WAIT_S: Final = 1.0
TTL_MS_DEFAULT: Final = 3_600_000
"""One hour. A task's stage may wait that long for the slowest task of its job."""


class StagedPart(NamedTuple):
    """The batches that one writer has staged for one queue."""

    group_id: int
    topic_id: int
    queue_id: int
    batches: int
    messages: int
    digest: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StageReceipt:
    """The sums over the batches that one writer has staged. A receipt is small, and may be pickled
    and sent to the program that commits."""

    transaction_id: str
    epoch: int
    writer: int
    stager_id: int
    parts: tuple[StagedPart, ...]
    commits: tuple[tuple[int, int], ...] = ()
    """Broker groups, each with the number of commits of consumer groups that are staged there."""

    @property
    def messages(self) -> int:
        """Number of messages in all queues."""
        return sum(part.messages for part in self.parts)


class _Sum:
    """The acknowledged batches of one queue."""

    __slots__ = ("batches", "digest", "group_id", "messages")

    def __init__(self, group_id: GroupId) -> None:
        self.group_id = group_id
        self.batches = 0
        self.messages = 0
        self.digest = 0


class StagerIdentity(Identity):
    """The identity of a stage, which brokers know by OPEN alone."""

    def __init__(
        self, cluster: Cluster, transaction_id: str, epoch: int, writer: int, ttl_ms: int
    ) -> None:
        super().__init__(cluster, "")
        self.producer_id = ProducerId(
            STAGER_ID_MIN + secrets.randbelow(STAGER_ID_END - STAGER_ID_MIN)
        )
        self.epoch = STAGER_EPOCH
        self.transaction_id = transaction_id
        self.transaction_epoch = epoch
        self.writer = writer
        self.opened: set[GroupId] = set()
        """Groups that may know the stager."""
        self._ttl_ms = ttl_ms
        self._asking: set[asyncio.Task[Any]] = set()
        self._ended = False

    async def ensure(self) -> None:
        """A no-op: the identity is made here, not by the controllers."""

    async def reopen(self, old: tuple[ProducerId, int]) -> None:
        raise TransactionAborted(
            f"what was staged of transaction {self.transaction_id!r} is gone; begin it again"
        )

    async def _fence(
        self, queues: list[QueueRoute], template: broker_pb2.FenceProducerRequest, timeout_s: float
    ) -> list[broker_pb2.ProducerRow]:
        """Sends OPEN in place of FENCE. A stager that brokers have forgotten is refused in any
        case."""
        if self._ended:
            raise TransactionAborted(f"transaction {self.transaction_id!r} was given up")
        by_group = self._cluster.routes.by_home(queues)
        self.opened |= by_group.keys()
        asking = [
            self._cluster.spawn(
                self._cluster.call_master(
                    group_id,
                    "Open",
                    transaction_records_pb2.OpenStager(
                        transaction_id=self.transaction_id,
                        epoch=self.transaction_epoch,
                        stager_id=self.producer_id,
                        writer=self.writer,
                        session=template.session,
                        ttl_ms=self._ttl_ms,
                        queues=[queue_ref(key) for key in keys],
                    ),
                    timeout_s,
                    service=SERVICE,
                ),
                "semel-open-stager",
            )
            for group_id, keys in by_group.items()
        ]
        self._asking.update(asking)
        try:
            replies = await asyncio.gather(*asking)
        finally:
            self._asking.difference_update(asking)
        lasts = {
            key: last
            for keys, reply in zip(by_group.values(), replies, strict=True)
            for key, last in zip(keys, reply.last_sequences, strict=True)
        }
        return [broker_pb2.ProducerRow(last_sequence=lasts[queue.key]) for queue in queues]

    async def end(self) -> dict[GroupId, set[int]]:
        """Sends no further OPEN and returns the groups that may know the stager. An OPEN on its way
        would make it known again after it was given up."""
        self._ended = True
        if self._asking:
            await asyncio.wait(self._asking, timeout=END_WAIT_S)
        return {group: {int(self.producer_id)} for group in self.opened}


class StageCore(ProducerCore):
    """One stage on the I/O thread."""

    def __init__(
        self, cluster: Cluster, config: ProducerConfig, intake: Intake, identity: StagerIdentity
    ) -> None:
        super().__init__(cluster, "", config, intake, identity=identity)
        self.stager = identity
        self._sums: dict[QueueKey, _Sum] = {}
        self._receipt: StageReceipt | None = None

    def perform(self, lane: Lane, decisions: list[Decision]) -> None:
        """Counts acknowledged batches as the brokers do."""
        for decision in decisions:
            if isinstance(decision, Settled):
                header = decode_header(decision.batch.payload)
                found = self._sums.setdefault(lane.key, _Sum(lane.route.group_id))
                found.batches += 1
                found.messages += header.count
                found.digest = found.digest + batch_digest(header) & DIGEST_MASK
        super().perform(lane, decisions)

    async def receipt(self) -> StageReceipt:
        """Waits until everything sent is staged, and accepts no more. Raises TransactionAborted."""
        if self._receipt is not None:
            return self._receipt
        self.intake.shut()
        error: SemelError | None = None
        try:
            await self.flush()
        except SemelError as failure:
            error = failure
        if error is not None or self.stats.failed:
            why = "a message was refused" if error is None else error.message
            raise TransactionAborted(
                f"epoch {self.stager.transaction_epoch} of transaction"
                f" {self.stager.transaction_id!r} cannot be committed, {self.stats.failed:,}"
                f" messages were not staged: {why}"
            ) from error
        stager = self.stager
        self._receipt = StageReceipt(
            transaction_id=stager.transaction_id,
            epoch=stager.transaction_epoch,
            writer=stager.writer,
            stager_id=stager.producer_id,
            parts=tuple(
                StagedPart(
                    found.group_id,
                    key.topic_id,
                    key.queue_id,
                    found.batches,
                    found.messages,
                    found.digest,
                )
                for key, found in sorted(self._sums.items())
            ),
        )
        return self._receipt
