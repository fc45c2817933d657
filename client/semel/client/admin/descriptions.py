"""Results of administrative calls: frozen descriptions of topics, groups, nodes, producers."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

from semel.client.admin.topic_settings import Compaction, IdDedup, Storage, storage_of
from semel.client.core.routing import QueueRoute
from semel.client.reading.offsets import QueueOffsets
from semel.protos.batch import BATCH_BYTES_DEFAULT, MESSAGE_BYTES_MAX
from semel.protos.v1 import common_pb2, controller_pb2

DEFAULT_RETENTION_MS = 7 * 24 * 3600 * 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSettings:
    """The settings of a topic."""

    retention_ms: int
    """Older messages may be trimmed; -1 keeps them for ever."""
    retention_bytes: int
    """A larger queue is trimmed from its start; -1 is no limit."""
    message_bytes_max: int
    batch_bytes_max: int
    dedup: IdDedup | None = None
    """How the topic compares message ids; None: it does not."""
    delay_per_second_max: int = -1
    """At most so many messages may be due in one second; -1 is no limit."""
    compaction: Compaction | None = None
    """How the topic is compacted; None: it is not."""
    tier_after_ms: int = -1
    """Messages of this age go to the cluster's object store; -1: none does."""
    local_retention_ms: int = -1
    """Brokers keep what is in the object store only so long; -1: as long as `retention_ms`."""
    storage: Storage = "log"
    """Where the bodies of its messages are."""
    memory_bytes: int = 0
    """A topic in memory drops its oldest messages beyond this; 0 for one in the log."""

    @classmethod
    def of(cls, message: common_pb2.TopicSettings) -> TopicSettings:
        return cls(
            retention_ms=message.retention_ms or DEFAULT_RETENTION_MS,
            retention_bytes=message.retention_bytes or -1,
            message_bytes_max=message.message_bytes_max or MESSAGE_BYTES_MAX,
            batch_bytes_max=message.batch_bytes_max or BATCH_BYTES_DEFAULT,
            dedup=IdDedup.of(message),
            delay_per_second_max=message.delay_per_second_max or -1,
            compaction=Compaction.of(message),
            tier_after_ms=message.tier_after_ms or -1,
            local_retention_ms=message.local_retention_ms or -1,
            storage=storage_of(message),
            memory_bytes=message.memory_bytes,
        )


class Described:
    """A description that can be printed."""

    __slots__ = ()
    FORMER_NAMES: ClassVar[tuple[str, ...]] = ()
    """Names that fields had in older versions: properties, which `as_dict` repeats."""

    def as_dict(self) -> dict[str, Any]:
        """All fields, nested ones too, as plain objects; also under their former names."""
        plain: dict[str, Any] = asdict(self)  # type: ignore[call-overload]
        for name in plain:
            value = getattr(self, name)
            if isinstance(value, Described):
                plain[name] = value.as_dict()
            elif isinstance(value, list) and value and isinstance(value[0], Described):
                plain[name] = [each.as_dict() for each in value]
        return plain | {name: getattr(self, name) for name in self.FORMER_NAMES}


class HasReason(Described):
    """A description whose `reason` was called `trouble` in older versions."""

    __slots__ = ()
    FORMER_NAMES: ClassVar[tuple[str, ...]] = ("trouble",)
    reason: str

    @property
    def trouble(self) -> str:
        """Former name of `reason`."""
        return self.reason


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSummary(Described):
    """One topic of a list."""

    name: str
    topic_id: int
    queues: int
    settings: TopicSettings
    created_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueDescription(Described):
    """One queue of a topic."""

    queue: int
    group: int
    """Broker group that owns it."""
    slot_start: int
    slot_end: int
    log_start_offset: int
    log_end_offset: int
    bytes: int
    sealed: bool = False
    """It was split: it accepts no messages."""
    parent: int | None = None
    """The queue that was split into it."""
    delayed_messages: int = 0
    """Stored and not due yet: they have no offsets, and are not among `messages`."""
    next_due_us: int = 0
    """When the first of them is due, microseconds since the epoch; 0 when there is none."""
    gaps_to: int = 0
    """Compaction may have left gaps in the offsets below this one, or messages are lost; 0: there
    are none."""
    local_start_offset: int = 0
    """First offset that the brokers have; older ones are in the object store alone."""
    tier_end_offset: int = 0
    """End of what is in the object store; 0: nothing is."""
    lost_messages: int = 0
    """Messages of a topic in memory that were lost so far."""

    @classmethod
    def of(cls, queue: QueueRoute, offsets: QueueOffsets) -> QueueDescription:
        """Returns what its route and its broker group say of a queue."""
        return cls(
            queue=queue.key.queue_id,
            group=queue.group_id,
            slot_start=queue.slot_start,
            slot_end=queue.slot_end,
            log_start_offset=offsets.log_start_offset,
            log_end_offset=offsets.log_end_offset,
            bytes=offsets.bytes,
            delayed_messages=offsets.delayed_messages,
            next_due_us=offsets.next_due_us,
            sealed=queue.sealed,
            parent=queue.parent,
            gaps_to=offsets.gaps_to,
            local_start_offset=offsets.local_start_offset,
            tier_end_offset=offsets.tier_end_offset,
            lost_messages=offsets.lost_messages,
        )

    @property
    def messages(self) -> int:
        """How many offsets it holds, those included whose messages compaction has removed."""
        return self.log_end_offset - self.log_start_offset


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDedup(Described):
    """How far a topic's dedup by id reaches, and what it did since it began."""

    ids: int
    """Ids that the topic remembers."""
    bytes: int
    """What they count of `window_bytes`, 40 bytes an id."""
    oldest_age_s: float
    """How long ago the oldest of them arrived, at most: an older id is a new message."""
    hits: int
    """Messages that were not stored again."""
    conflicts: int
    """Messages that were refused: their id is known with other content."""
    lookups: int
    """Messages with an id."""
    evictions: int
    """Ids that were forgotten because of the window's size, or of their age."""
    window_bytes: int
    keep_ms: int
    """-1: only the bytes limit the window."""
    on_conflict: str
    """refuse or keep-first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDescription(Described):
    """One topic with its queues."""

    name: str
    topic_id: int
    settings: TopicSettings
    created_us: int
    queues: list[QueueDescription]
    dedup: TopicDedup | None = None
    """None: the topic compares no ids."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberDescription(Described):
    """One member of a consumer group."""

    member_id: str
    client: str
    topics: list[str]
    queues: list[tuple[str, int]]
    """(topic, queue) it should hold; a topic that is gone shows as its id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LockAge(Described):
    """How long a member has held a queue's lock, as far as the present master knows."""

    held_ms: int
    older: bool
    """The lock was granted before the master began, so it is older than that."""
    uncommitted_ms: int
    """How long messages have been delivered since the last commit and are not committed; 0 if none
    are."""
    lock_ms: int
    """After so long without a commit the lock ends."""

    @classmethod
    def of(cls, told: Any) -> LockAge:
        """What a broker has told."""
        return cls(
            held_ms=told.held_ms,
            older=told.older,
            uncommitted_ms=told.uncommitted_ms,
            lock_ms=told.lock_ms,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupQueue(Described):
    """A consumer group's state on one queue."""

    topic: str
    queue: int
    committed_offset: int
    """-1: never committed."""
    log_start_offset: int
    log_end_offset: int
    lag: int
    """Messages behind the end; without a commit all that exist."""
    owner: str
    """Member that holds the lock; empty for none."""
    token: int
    lock: LockAge | None = None
    """None without a lock, and from brokers that do not tell it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSummary(Described):
    """One consumer group of a list."""

    group: str
    members: int
    topics: list[str]
    """Topics on which it committed anything or holds a lock."""
    lag: int
    """Messages behind the ends of all its queues."""
    locks: int
    """Number of queues that a member has locked."""
    joined: bool = True
    """Consumers have joined it, now or ever. Otherwise its progress is that of a reader that shows
    its lag (`publish_progress`), of redrives, or was only ever set by hand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDescription(Described):
    """One consumer group."""

    group: str
    generation: int
    members: list[MemberDescription]
    queues: list[GroupQueue]
    kind: str = "consumers"
    """The kind of its members: `consumers` of this SDK, clients of `kafka`, whose one member here
    is the gateway that coordinates them, or the `gateways` themselves."""

    @property
    def lag(self) -> int:
        return sum(queue.lag for queue in self.queues)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDescription(Described):
    """One broker node, as the controllers know it."""

    id: int
    address: str
    role: str
    log_end_index: int
    alive: bool
    silent_ms: int
    damaged: int
    """Entries and records that are damaged on its disk and not repaired yet."""
    lost: int
    """Entries that are damaged on every node of its group: their messages are refused."""
    disk_full: bool
    rack: str = ""
    """The failure domain that the node was configured with."""
    produced_messages: int = 0
    """Messages per second from producers, over the last seconds; the next three are rates, too."""
    produced_bytes: int = 0
    fetched_messages: int = 0
    fetched_bytes: int = 0
    disk_free_bytes: int = 0
    disk_total_bytes: int = 0
    """0 when the node has not reported it."""

    @property
    def disk(self) -> str:
        """The fault of its disk in a word or two; "ok" without one."""
        faults = [
            *(["full"] if self.disk_full else []),
            *([f"{self.damaged} damaged"] if self.damaged else []),
            *([f"{self.lost} lost"] if self.lost else []),
        ]
        return ", ".join(faults) or "ok"


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerGroupDescription(Described):
    """One broker group."""

    id: int
    term: int
    master: int
    """Node id; 0 when none is known."""
    commit_index: int
    queues: int
    nodes: list[NodeDescription]


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerDescription(Described):
    """One controller."""

    id: int
    address: str
    role: str
    """master or standby."""
    alive: bool = True
    """It was heard of within the last seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueMove(HasReason):
    """A queue on its way from one broker group to another."""

    topic: str
    queue: int
    source: int
    """The broker group that has it until the move is decided."""
    target: int
    """The broker group that gets it."""
    stage: str
    """copying, sealing (producers wait), decided, activated, aborting, aborted (given up: see
    `reason`), or done."""
    copied_bytes: int
    total_bytes: int
    """Bytes of stored batches, as far as known."""
    reason: str
    """The reason why the last attempt failed or the move was given up; empty without one."""
    begun_us: int
    """Microseconds since the epoch."""

    @classmethod
    def of(cls, status: controller_pb2.MoveStatus, topic: str) -> QueueMove:
        return cls(
            topic=topic,
            queue=status.queue_id,
            source=status.source,
            target=status.target,
            stage=status.stage,
            copied_bytes=status.copied_bytes,
            total_bytes=status.total_bytes,
            reason=status.reason,
            begun_us=status.begun_us,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class UnfinishedTopic(HasReason):
    """A topic with steps left, which the active controller carries out by itself."""

    name: str
    topic_id: int
    step: str
    """creating, altering or deleting; "moving queue N to group M" for a move."""
    reason: str
    """The reason why the last attempt failed; empty when none has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterStatus(Described):
    """The cluster at a glance."""

    cluster_id: str
    version: str
    topics: int
    groups: list[BrokerGroupDescription]
    controllers: list[ControllerDescription]
    unfinished: list[UnfinishedTopic] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSummary(Described):
    """One named producer."""

    name: str
    producer_id: int
    epoch: int
    opened_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerQueue(Described):
    """A producer's row in one queue's sequence table."""

    topic: str
    queue: int
    epoch: int
    session: int
    last_sequence: int
    window: int
    """Number of batches that the queue remembers one by one."""
    last_time_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerDescription(Described):
    """One named producer with its rows."""

    name: str
    producer_id: int
    epoch: int
    opened_us: int
    queues: list[ProducerQueue]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceOutcome(Described):
    """The fate of one sequence."""

    outcome: str
    """committed, not_committed or too_old."""
    offset: int
    """-1 when not known."""
    last_sequence: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedQueue(Described):
    """One queue as recomputed from the logs."""

    queue: int
    group: int
    log_start_offset: int
    log_end_offset: int
    messages: int
    duplicates: int
    missing: int
    digest: str
    """SHA-256 over offsets and stored bytes, the same on every node."""
    delayed: int = 0
    """Stored and not due yet; not among `messages`."""
    id_duplicates: int = 0
    """Messages that were stored although their id was in the window of a topic with dedup by id, as
    far as the log still tells."""
    tiered_messages: int = 0
    """Messages that were read in the object store."""
    tiered_compared: int = 0
    """Those of them that the log has as well, and that were compared with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyResult(Described):
    """The findings of `verify`."""

    ok: bool
    """Proven: every node's whole log was read, and nothing speaks against it."""
    topic: str
    messages: int
    duplicates: int
    """Messages whose (producer, sequence) was stored before."""
    missing: int
    """Offsets without a message, and breaks in a producer's chain."""
    queues: list[VerifiedQueue]
    nodes_compared: int
    """Number of nodes whose whole log was read; every queue is read on all nodes of its group."""
    problems: list[str]
    """What contradicts it, beside `duplicates` and `missing`."""
    delayed: int = 0
    """Messages that are stored and not due yet; not among `messages`."""
    id_duplicates: int = 0
    """Messages that were stored although their id was in the window of the topic."""
    unread: list[str] = field(default_factory=list)
    """Nodes that did not answer, or not in time, and queues that no node has read: why it is not
    proven, though nothing contradicts it."""

    @property
    def violated(self) -> bool:
        """A log that was read contradicts it, whichever others were not read."""
        return bool(self.problems or self.duplicates or self.missing or self.id_duplicates)
