"""Broker groups that stage batches, for the lanes of Kafka's transactions, without a network.

How it works. What brokers decide is the broker's own code (`Staging`, and what it tells). A wire
stages at once, or holds answers back until a test lets them go. Several gateways may stand on one
world. A test splits, moves and drops as it likes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from semel.broker.server.transactions_described import described
from semel.broker.state.apply.coordination import Row
from semel.broker.state.apply.queues import Child
from semel.broker.state.apply.staging import Staging
from semel.client.core.routing import QueueRoute
from semel.gateway.partitions import PartitionLine
from semel.gateway.producing.kafka_lanes import BatchOutcome, NumberedBatch
from semel.gateway.producing.kafka_numbers import Numbers
from semel.gateway.producing.stage_lanes import StageLane, StageProducers
from semel.gateway.transactions.numbers import stager_id_of
from semel.protos.batch import decode_header
from semel.protos.columns import encode_batch
from semel.protos.errors import QueueSealed, SemelError
from semel.protos.few_rows import FewRows
from semel.protos.ids import GroupId, ProducerId, QueueId, QueueKey, TopicId
from semel.protos.queue_refs import queue_key_of
from semel.protos.v1 import transaction_records_pb2, transactions_pb2

ID = "booking"
GROUPS = (GroupId(1), GroupId(2))
KEY = QueueKey(TopicId(1), QueueId(0))
ROUTE = QueueRoute(key=KEY, group_id=GROUPS[0], slot_start=0, slot_end=8)


class StagingWorld:
    """See the module's text. There is one queue."""

    def __init__(self) -> None:
        self.staging = {group: Staging() for group in GROUPS}
        self.home = GROUPS[0]
        """The broker group that has the queue."""
        self.queue = SimpleNamespace(
            key=KEY, topic="orders", sealed=False, frozen=False, children=[]
        )
        self.row = Row("query")
        self.values: dict[int, list[bytes]] = {}
        """What each stager has staged for the queue, in order."""
        self.opened: list[tuple[int, int]] = []
        """Epoch and session of each call that opened a stager at the queue."""

    def begin(self, epoch: int) -> None:
        """Begins a transaction and opens its stager at the queue, as a coordinator does."""
        self.row.begun_epoch, self.row.attempt = epoch, self.row.attempt + 1
        self.row.epoch = max(self.row.epoch, epoch - 1)
        record = transaction_records_pb2.OpenStager(
            transaction_id=ID, epoch=epoch, stager_id=stager_id_of(ID, epoch, KEY), ttl_ms=60_000
        )
        lasts = self.staging[self.home].open(record, [KEY], self.queues(self.home), 0)
        assert lasts == (-1,), lasts

    def drop(self) -> None:
        """Gives up what is staged."""
        for staging in self.staging.values():
            staging.stagers.clear()

    def move(self) -> None:
        """The queue goes to the other broker group."""
        self.home = next(group for group in GROUPS if group != self.home)

    def split(self) -> None:
        """The queue is split, and takes nothing new."""
        self.queue.sealed, self.queue.children = (
            True,
            [Child(QueueId(1), 0, 4), Child(QueueId(2), 4, 8)],
        )

    def queues(self, group: GroupId) -> Mapping[QueueKey, Any]:
        """The queues of a broker group."""
        return {KEY: self.queue} if group == self.home else {}

    def staged(self, epoch: int) -> list[bytes]:
        """What the transaction has staged."""
        return self.values.get(stager_id_of(ID, epoch, KEY), [])

    # --- calls ------------------------------------------------------------------------------------

    def describe(self, group: GroupId) -> transactions_pb2.DescribeTransactionsReply:
        rows = {ID: self.row} if group == GROUPS[0] and self.row.attempt else {}
        state: Any = SimpleNamespace(
            coordination=SimpleNamespace(rows=rows), staging=self.staging[group]
        )
        request = transactions_pb2.DescribeTransactionsRequest(transaction_id=ID)
        return described(state, request, staged_bytes_max=0, log_time_us=0, level=10)

    def open(
        self, group: GroupId, record: transaction_records_pb2.OpenStager
    ) -> transactions_pb2.OpenStagerReply:
        keys = [queue_key_of(each) for each in record.queues]
        lasts = self.staging[group].open(record, keys, self.queues(group), 0)
        if isinstance(lasts, SemelError):
            raise lasts
        self.opened.append((record.epoch, record.session))
        return transactions_pb2.OpenStagerReply(last_sequences=lasts)

    def stage(self, group: GroupId, payload: bytes, values: list[bytes]) -> bool | SemelError:
        """Stages a batch. Returns whether it was staged before, or why it is refused."""
        header = decode_header(payload)
        staging = self.staging[group]
        found = staging.check(header, self.queues(group).get(header.queue_key))
        if found is False:
            staging.add(header, 1, 0, len(payload), 0)
            self.values.setdefault(header.producer_id, []).extend(values)
        return found


class Wire:
    """The stream to one broker group."""

    def __init__(self, world: StagingWorld, group: GroupId) -> None:
        self.group_id = group
        self.level = 10
        self.in_flight_bytes = 0
        self.held = False
        """Batches that come are not looked at until `release`."""
        self._world = world
        self._waiting: list[StageLane] = []
        self._busy = False

    def attach(self, link: object) -> None: ...

    def forget(self, lane: StageLane) -> None:
        self._waiting = [each for each in self._waiting if each is not lane]

    def on_ready(self, lane: StageLane) -> None:
        if lane not in self._waiting:
            self._waiting.append(lane)
        if not self.held:
            asyncio.get_running_loop().call_soon(self.release)

    def release(self) -> None:
        """Takes what lanes have for it, and answers."""
        self.held = False
        while self._waiting:
            lane = self._waiting.pop(0)
            while (batch := lane.next_batch()) is not None:
                assert isinstance(batch.tag, NumberedBatch)
                values = batch.tag.encode.keywords["values"]  # type: ignore[attr-defined]
                found = self._world.stage(self.group_id, bytes(batch.payload), values)
                window = lane.window
                assert window is not None
                if isinstance(found, SemelError):
                    decisions = window.on_refused(batch.base, batch.last, found)
                    lane.on_answer(found, decisions)
                else:
                    lane.on_answer(None, window.on_stored(batch.base, batch.last, -1, 0, found))


@dataclass
class Gateway:
    """One gateway's lanes on the world."""

    world: StagingWorld
    home: GroupId = GROUPS[0]
    """Where it believes the queue to be."""
    splits: list[QueueSealed] = field(default_factory=list)
    """Those that it was told of."""
    looked_up: int = 0

    def __post_init__(self) -> None:
        self.wires_by_group = {group: Wire(self.world, group) for group in GROUPS}
        self.tasks: set[asyncio.Task[Any]] = set()
        self.routes = SimpleNamespace(
            home=lambda route: self.home, groups=lambda: GROUPS, on_moved=lambda error: None
        )
        self.wires = SimpleNamespace(to=self.wires_by_group.__getitem__)
        self.lanes = StageProducers(
            self,  # type: ignore[arg-type]
            lambda topic_id, error: self.splits.append(error),
            self._is_split,
        )

    async def _is_split(self, key: QueueKey) -> bool:
        self.looked_up += 1
        self.home = self.world.home
        return bool(self.world.queue.sealed)

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    async def call_master(
        self,
        group: GroupId,
        method: str,
        request: Any,
        timeout_s: float | None = None,
        *,
        service: object = None,
    ) -> Any:
        await asyncio.sleep(0.001)
        if method == "Describe":
            return self.world.describe(group)
        assert method == "Open"
        return self.world.open(group, request)

    def put(self, epoch: int, base_sequence: int, values: Iterable[bytes]) -> list[BatchOutcome]:
        """Sends a batch; `epoch` is Kafka's. The list gets the outcome."""
        told: list[BatchOutcome] = []
        many = list(values)
        batch = NumberedBatch(
            base_sequence=base_sequence,
            count=len(many),
            encode=_Encoding(many),
            level=0,
            tell=told.append,
        )
        line = PartitionLine(0, (ROUTE,), (0,), 0)
        self.lanes.stage(line, ID, 1 << 61, epoch, batch)
        return told


class _Encoding:
    """Makes a batch, and remembers of what."""

    def __init__(self, values: list[bytes]) -> None:
        self.keywords = {"values": values}

    def __call__(
        self, producer_id: ProducerId, epoch: int, session: int, numbers: Numbers
    ) -> bytes:
        return encode_batch(
            FewRows(self.keywords["values"]),
            topic_id=KEY.topic_id,
            queue_id=KEY.queue_id,
            producer_id=producer_id,
            epoch=epoch,
            session=session,
            previous_sequence=numbers.previous,
            base_sequence=numbers.base,
            last_sequence=numbers.last,
            timestamp_us=1,
        )
