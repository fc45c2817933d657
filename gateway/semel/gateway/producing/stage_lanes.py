"""Batches of Kafka transactions at the brokers: whose stager they go to, and in which place.

How it works. The gateway that coordinates a transactional id opens a stager of the transaction at
each queue before a client may send there. A gateway that gets a batch asks the queue's broker group
which stager of the transactional id, and of the client's epoch, is open there: the newest one
counts. So any gateway takes any batch.

The base. A batch's place follows from the client's number of the first one in the queue. Whoever
brings that opens the stager at the queue under the session *number + 1*, before it stages: so the
base is in the log beside the stager, and whoever comes later is told it, by OPEN's refusal of a
lower session. While nothing is staged, nothing was acknowledged, and the batch that comes is the
first; clients send a batch again before later ones.

A lane is of one transaction. When its stager is gone, the client may have begun the next
transaction: what was on its way goes to the stager that is newer than that, and if there is none,
it fails.

Invariant: a lane opens no queue anew: it asks whether it is open first.

Not here: who opens and commits stagers (`transactions/coordinator.py`), answers
(`stage_window.py`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from semel.client.core.routing import QueueRoute
from semel.client.core.sequences import Decision, Failed, Settled
from semel.client.transactions.commit import TransactionCore
from semel.client.transactions.staging import SERVICE
from semel.client.transport.cluster import Cluster
from semel.gateway.partitions import PartitionLine
from semel.gateway.producing.kafka_lanes import (
    FENCE_TIMEOUT_S,
    KafkaLane,
    KafkaProducers,
    NumberedBatch,
    ProducerKey,
)
from semel.gateway.producing.stage_window import StageWindow
from semel.gateway.transactions.numbers import kafka_epoch_of
from semel.protos.errors import (
    ProducerFenced,
    QueueSealed,
    SemelError,
    TransactionAborted,
    TransactionFenced,
    Unavailable,
)
from semel.protos.ids import GroupId, QueueKey, TopicId
from semel.protos.queue_refs import queue_key_of, queue_ref
from semel.protos.v1 import transaction_records_pb2, transactions_pb2

PROBE: Final = 0
"""A session below all under which something is staged."""
TTL_MS: Final = 60_000
"""The life of a stager that has ended since it was asked for: what it stages belongs to nothing."""
REBINDS_MAX: Final = 8
"""How often batches that nobody stages go to another stager, before they fail."""


class Place(NamedTuple):
    """Where a lane goes on."""

    session: int
    last_sequence: int

    @property
    def base(self) -> int:
        """The client's number of what is at place 0."""
        return self.session - 1


class StageLane(KafkaLane):
    """One transaction's way to one queue."""

    def __init__(
        self,
        owner: StageProducers,
        key: ProducerKey,
        route: QueueRoute,
        generation: int,
        transaction_id: str,
    ) -> None:
        super().__init__(owner, key, route, generation)
        self.transaction_id = transaction_id
        self.after_epoch = -1
        """It goes to a stager of a higher epoch."""
        self.bound_epoch = -1
        """Epoch of its stager; -1 until that is found."""
        self.rebinds = 0
        """How often a stager was searched anew since a batch was staged."""


class StageProducers(KafkaProducers):
    """The transactional producers of one gateway. Lives on the client's I/O thread."""

    def __init__(
        self,
        cluster: Cluster,
        on_sealed: Callable[[TopicId, QueueSealed], None],
        is_split: Callable[[QueueKey], Awaitable[bool]],
    ) -> None:
        """`is_split` looks up where a queue is, and returns whether it was split."""
        super().__init__(cluster, on_sealed)
        self._is_split = is_split
        self._core = TransactionCore(cluster)

    def stage(
        self,
        line: PartitionLine,
        transaction_id: str,
        producer_id: int,
        epoch: int,
        batch: NumberedBatch,
    ) -> None:
        """Sends a batch of the transaction that is open; `epoch` is Kafka's. Its `tell` is called
        with the outcome, maybe at once."""
        key = ProducerKey(line.open.key, producer_id, epoch)
        lane = self._lanes.get(key)
        if lane is None:
            lane = StageLane(self, key, line.open, line.generation, transaction_id)
            self._add(lane)
        self._put_in(lane, batch)

    def perform(self, lane: KafkaLane, decisions: list[Decision]) -> None:
        """Carries out the decisions of a window."""
        assert isinstance(lane, StageLane)
        for decision in decisions:
            if isinstance(decision, Failed) and isinstance(
                decision.error, TransactionAborted | ProducerFenced
            ):
                self._rebind(lane, decision)
                return
            if isinstance(decision, Settled):
                lane.rebinds = 0
        super().perform(lane, decisions)

    def _rebind(self, lane: StageLane, failed: Failed) -> None:
        """The stager is gone, or another gateway has begun to stage: searches anew."""
        window = lane.window
        assert window is not None
        batches = sorted([failed.batch, *window.batches()], key=lambda each: each.base)
        window.end(failed.error)
        lane.link.count(-sum(each.size for each in batches))
        self._forget(lane)
        after = lane.bound_epoch - isinstance(failed.error, ProducerFenced)
        again = StageLane(self, lane.producer, lane.route, lane.generation, lane.transaction_id)
        again.after_epoch, again.rebinds = after, lane.rebinds + 1
        for each in batches:
            assert isinstance(each.tag, NumberedBatch)
            again.waiting.append(each.tag)
        self._add(again)
        if again.rebinds > REBINDS_MAX:
            self._end(again, failed.error)
            return
        self._fence_soon(again)

    def _start_fences(self) -> None:
        lanes, self._to_fence = self._to_fence, []
        for lane in lanes:
            assert isinstance(lane, StageLane)
            self._cluster.spawn(self._bind(lane), "semel-kafka-stage")

    async def _bind(self, lane: StageLane) -> None:
        try:
            stager = await self._find(lane)
            place = await self._claim(lane, stager)
        except SemelError as error:
            lane.fencing = False
            if isinstance(error, QueueSealed):
                self._on_sealed(lane.key.topic_id, error)
            self._end(lane, error)
            return
        lane.fencing = False
        if self._lanes.get(lane.producer) is not lane:
            return
        self._follow(lane)
        lane.bound_epoch = stager.epoch
        lane.window = StageWindow(
            stager_id=stager.stager_id,
            session=place.session,
            base=place.base,
            last_sequence=place.last_sequence,
        )
        while lane.waiting:
            self._number(lane, lane.window, lane.waiting.popleft())

    async def _find(self, lane: StageLane) -> transactions_pb2.StagedTransaction:
        """Returns the stager that is open at the queue. Raises TransactionAborted,
        TransactionFenced, Unavailable."""
        home = self._cluster.routes.home(lane.route)
        stager = await self._open_at(lane, home)
        if stager is None:
            # The coordinator may know of a split or a move that is not known here yet.
            if await self._is_split(lane.key):
                raise Unavailable(f"queue {lane.key.queue_id} was split: its children go on")
            if (moved_to := self._cluster.routes.home(lane.route)) != home:
                stager = await self._open_at(lane, moved_to)
        if stager is not None:
            return stager
        known = await self._core.coordinated(lane.transaction_id)
        name = f"transactional id {lane.transaction_id!r}"
        for row in known.coordinated:
            if kafka_epoch_of(row.epoch) != lane.producer.epoch:
                raise TransactionFenced(f"{name} was taken over by another producer")
        raise TransactionAborted(
            f"no transaction of {name} is open at queue {lane.key.queue_id}; begin it again"
        )

    async def _open_at(
        self, lane: StageLane, group: GroupId
    ) -> transactions_pb2.StagedTransaction | None:
        """Returns the newest stager that a broker group has open at the queue, or None."""
        reply: transactions_pb2.DescribeTransactionsReply = await self._cluster.call_master(
            group,
            "Describe",
            transactions_pb2.DescribeTransactionsRequest(transaction_id=lane.transaction_id),
            FENCE_TIMEOUT_S,
            service=SERVICE,
        )
        open_here = [
            one
            for one in reply.staged
            if one.epoch > lane.after_epoch
            and kafka_epoch_of(one.epoch) == lane.producer.epoch
            and lane.key in map(queue_key_of, one.queues)
        ]
        return max(open_here, key=lambda one: one.epoch, default=None)

    async def _claim(self, lane: StageLane, stager: transactions_pb2.StagedTransaction) -> Place:
        """Returns the base of a queue, and how far it is. Raises SemelError."""
        staged = any(queue_key_of(part.queue) == lane.key for part in stager.parts)
        wanted = PROBE if staged else lane.waiting[0].base_sequence + 1
        try:
            last = await self._open(lane, stager, wanted)
        except ProducerFenced as fenced:
            wanted = fenced.current_session
            last = await self._open(lane, stager, wanted)
        else:
            if last >= 0 or not wanted:
                # Somebody has staged since, in a place that is not known any more.
                raise TransactionAborted(
                    f"queue {lane.key.queue_id} was opened twice by transactional id"
                    f" {lane.transaction_id!r}; begin the transaction again"
                )
        return Place(wanted, last)

    async def _open(
        self, lane: StageLane, stager: transactions_pb2.StagedTransaction, session: int
    ) -> int:
        reply = await self._cluster.call_master(
            self._cluster.routes.home(lane.route),
            "Open",
            transaction_records_pb2.OpenStager(
                transaction_id=lane.transaction_id,
                epoch=stager.epoch,
                stager_id=stager.stager_id,
                writer=stager.writer,
                session=session,
                ttl_ms=TTL_MS,
                queues=[queue_ref(lane.key)],
            ),
            FENCE_TIMEOUT_S,
            service=SERVICE,
        )
        return int(reply.last_sequences[0])
