"""Staging messages of a transaction: a producer whose batches have no offsets yet.

How it works. A stage is a producer with an identity of its own that no controller knows: a random
*stager* id. Batching, backpressure, retries and splits of queues are the producer's; instead of a
FENCE the brokers get an OPEN, and what they acknowledge is on hold. What was acknowledged is summed
up by queue: the *receipt*, with which somebody else, perhaps in another process, commits.

Invariants
1. A receipt covers everything that came in before, or there is none: `receipt` raises instead.
2. A stage whose receipt was given takes nothing more.

Not here: committing (`commit.py`).
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
"""One hour: what a task staged waits so long for the slowest one of its job."""


class StagedPart(NamedTuple):
    """What one writer has staged for one queue."""

    group_id: int
    topic_id: int
    queue_id: int
    batches: int
    messages: int
    digest: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StageReceipt:
    """What one writer has staged: small, and may be pickled and sent to whoever commits."""

    transaction_id: str
    epoch: int
    writer: int
    stager_id: int
    parts: tuple[StagedPart, ...]

    @property
    def messages(self) -> int:
        """In all queues."""
        return sum(part.messages for part in self.parts)


class _Sum:
    """What was acknowledged for one queue."""

    __slots__ = ("batches", "digest", "group_id", "messages")

    def __init__(self, group_id: GroupId) -> None:
        self.group_id = group_id
        self.batches = 0
        self.messages = 0
        self.digest = 0


class StagerIdentity(Identity):
    """Who stages: known to the brokers by OPEN alone."""

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
        """It is made, not asked for."""

    async def reopen(self, old: tuple[ProducerId, int]) -> None:
        raise TransactionAborted(
            f"what was staged of transaction {self.transaction_id!r} is gone; begin it again"
        )

    async def _fence(
        self, queues: list[QueueRoute], session: int, timeout_s: float, *, after_expiry: bool
    ) -> list[broker_pb2.ProducerRow]:
        """OPEN in place of FENCE; a stager that was forgotten is refused in any case."""
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
                        session=session,
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
        """Opens nothing more, and says where the stager may be known: an OPEN on its way would make
        it known again after it was given up."""
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
        """Counts what was acknowledged, as the brokers count it."""
        for decision in decisions:
            if isinstance(decision, Settled):
                header = decode_header(decision.batch.payload)
                found = self._sums.setdefault(lane.key, _Sum(lane.route.group_id))
                found.batches += 1
                found.messages += header.count
                found.digest = found.digest + batch_digest(header) & DIGEST_MASK
        super().perform(lane, decisions)

    async def receipt(self) -> StageReceipt:
        """Everything that came in is staged; nothing more comes in. Raises TransactionAborted."""
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
