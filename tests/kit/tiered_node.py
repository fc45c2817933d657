"""A node whose topic is tiered, for tests of what its background work does: a log in memory, whose
records are decided by the real admission, and a store in a folder.

Not here: real processes (`cluster.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import pyarrow as pa

from semel.broker.background.tiering import Tiering
from semel.broker.state import Accepted, ApplyResult, QueueState, Refused
from semel.broker.tiers.place import TierPlace
from semel.broker.tiers.pointers import pointer_of
from semel.protos.batch import BrokerHeader, Codec, check_batch
from semel.protos.columns import Columns, encode_batch
from semel.protos.errors import NotMaster
from semel.protos.frames import RecordKind
from semel.protos.ids import Term
from semel.protos.levels import TIER_LEVEL
from semel.protos.v1 import control_pb2
from semel.tier import Manifest, QueueReader, Store, read_manifest
from tests.kit.faulty_store import FaultySystem
from tests.kit.state_log import KEY, Group, control, ref

T = TypeVar("T")

CLUSTER = "c"
SECOND_US = 1_000_000


class TieredNode:
    """The master of a group with one queue, `KEY`; it is its own replica for background work."""

    def __init__(self, folder: Path, *, retention_ms: int = -1, **config: Any) -> None:
        """Messages go to the tier after a second, and stay in the log for two."""
        self.config: Any = SimpleNamespace(
            tier_file_bytes=2_000,
            tier_wait_ms=1_000,
            tier_bytes_max=1 << 20,
            tier_bytes_per_second=1 << 40,
            tier_check_ms=10,
            tier_collect_ms=10,
            tier_facts_ms=0,
            cluster_id=CLUSTER,
        )
        self.group = Group(queues=())
        self.group.raise_level(TIER_LEVEL)
        settings = {"tier_after_ms": 1_000, "local_retention_ms": 2_000} | config
        self.group.create(KEY, retention_ms=retention_ms, **settings)
        self.group.fence()
        self.is_master = True
        self.term = 1
        self.sent = 0
        self.confirmed = 0
        """How often a quorum was asked."""
        self.proposed: list[control_pb2.ControlRecord] = []
        self.before_proposal: Callable[[], None] = lambda: None
        folder.mkdir(exist_ok=True)
        self.system = FaultySystem()
        self.place = TierPlace(
            "s3://bucket", CLUSTER, lambda url: Store(self.system, str(folder), url)
        )
        self.boot_s = 0.0
        self.pools: Any = SimpleNamespace(clients=None)
        self.tiering = self.new_tiering()
        self.log: Any = SimpleNamespace(read_record=self._read_record)

    def new_tiering(self) -> Tiering:
        """The work of a process that has just started."""
        replica: Any = self
        return Tiering(replica, self.place, lambda: self.boot_s)

    def _read_record(self, index: int, position: int, length: int) -> bytes:
        return self.group.payload(index, position)

    # --- what background work needs of a replica

    @property
    def state(self) -> Any:
        return self.group.state

    def log_time_us(self) -> int:
        return self.group.now_us

    async def confirm_read(self) -> None:
        self.confirmed += 1
        if not self.is_master:
            raise self.not_master()

    def not_master(self) -> NotMaster:
        return NotMaster("another node is the master")

    async def in_reader(self, work: Callable[[], T], pool: Any = None) -> T:
        await asyncio.sleep(0)
        return work()

    async def submit_control(self, record: control_pb2.ControlRecord) -> ApplyResult:
        self.before_proposal()
        self.proposed.append(record)
        admission = self.group.admission.queues
        if record.HasField("tiered"):
            decision = admission.admit_tiered(record.tiered)
        elif record.HasField("delete_queue"):
            decision = admission.admit_delete_queue(record.delete_queue)
        else:
            decision = admission.admit_forget(record.forget)
        if isinstance(decision, Refused):
            raise decision.error
        assert isinstance(decision, Accepted), decision
        field = record.WhichOneof("record")
        assert field is not None
        self.group.entry.append(control(**{field: getattr(record, field)}))
        return self.group.commit()[-1]

    # --- what tests do

    def send(
        self,
        count: int = 1,
        *,
        value_bytes: int = 100,
        codec: Codec = Codec.NONE,
        ids: bool = False,
        first_id: int | None = None,
    ) -> None:
        """Stores one batch; with `ids` message 5 has the id "5", unless the first id is given."""
        first = self.sent if first_id is None else first_id
        values = [b"%d " % (self.sent + at) + b"v" * value_bytes for at in range(count)]
        batch = encode_batch(
            Columns(
                values=pa.array(values, pa.binary()),
                message_ids=pa.array([b"%d" % (first + at) for at in range(count)], pa.binary())
                if ids
                else None,
            ),
            topic_id=KEY.topic_id,
            queue_id=KEY.queue_id,
            producer_id=1,
            epoch=1,
            session=0,
            previous_sequence=self.sent - 1,
            base_sequence=self.sent,
            last_sequence=self.sent + count - 1,
            timestamp_us=self.group.now_us,
            codec=codec,
        )
        decision = self.group.admission.admit_batch(
            check_batch(batch), 0, time_us=self.group.now_us
        )
        assert isinstance(decision, Accepted), decision
        head = BrokerHeader(decision.base_offset, self.group.now_us, Term(self.group.term))
        self.group.entry.append((RecordKind.BATCH, [head.encode(), batch]))
        self.group.commit()
        self.sent += count

    def passes(self, seconds: float) -> None:
        self.group.now_us += int(seconds * SECOND_US)
        self.boot_s += seconds

    async def tier(self) -> int:
        """Looks until there is nothing to do; returns the number of steps that were done."""
        before = self.tiering.steps
        while await self.tiering.look():
            pass
        return self.tiering.steps - before

    def forget(self) -> None:
        """What retention of the log does."""
        target = self.queue.forget_target(self.group.now_us)
        if target is not None:
            record = control_pb2.Forget(queue=ref(), local_start=target)
            assert isinstance(self.group.admission.queues.admit_forget(record), Accepted)
            self.group.apply(control(forget=record))

    def trim(self, start: int) -> None:
        trim = control_pb2.Trim(queue=ref(), log_start_offset=start)
        assert isinstance(self.group.admission.queues.admit_trim(trim), Accepted)
        self.group.entry.append(control(trim=trim))
        self.group.commit()

    @property
    def queue(self) -> QueueState:
        found: QueueState = self.state.queues[KEY]
        return found

    @property
    def store(self) -> Store:
        assert self.place.store is not None
        return self.place.store

    @property
    def manifest(self) -> Manifest:
        """What the state's pointer leads to."""
        pointer = pointer_of(CLUSTER, self.queue)
        assert pointer is not None
        return read_manifest(self.store, pointer)

    def values(self) -> list[int]:
        """The numbers of the messages in the tier, in order, as the manifest has them."""
        reader = QueueReader(self.store, self.manifest)
        return [
            int(value.split()[0])
            for file in reader.all_files()
            for value in reader.whole_file(file)["value"].to_pylist()
        ]
