"""Results of applied log records: the answers that waiting callers get.

How it works. Each record of a frame has one result, in the order of the records. If a record is
decided at apply (locks, commits), its result says *granted* or *refused*. A batch or a fence is
decided before it is proposed (`state/admission/admission.py`), so apply cannot refuse it: a
mismatch is `StateDiverged`.

Not here: decisions about requests that are not in the log yet (`state/admission/decisions.py`).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final, NamedTuple, Self

from semel.broker.state.apply.codec import Reader, pack_text
from semel.broker.state.apply.tiered import TierState
from semel.protos.errors import SemelError
from semel.protos.ids import Index, NodeId, Offset, ProducerId, QueueKey, Sequence
from semel.protos.v1.common_pb2 import NodeAddress
from semel.protos.values import value

_NODE: Final = struct.Struct("<I")
DROPPED_FLAG: Final = 1 << 31
"""Added to the count of a batch of which some messages were dropped. Count and CRC are then those
of the batch as it was sent, and only the index of message ids knows the offsets of its messages."""


class StateDiverged(Exception):
    """The log and the state contradict each other: this node must halt.

    This is no `SemelError`, so that no handler of requests catches it. Either memory or disk is
    damaged, or two versions disagree about a rule. If the node went on, it would spread the damage.
    """


@dataclass(frozen=True, slots=True)
class WindowEntry:
    """One batch of a window. If `count` is 0, it is a position mark or an inherited entry."""

    base_sequence: Sequence
    last_sequence: Sequence
    base_offset: Offset
    """-1 for an inherited entry and for a delayed batch, also after its release."""
    count: int
    """Messages, with DROPPED_FLAG if some were dropped."""
    content_crc: int

    @property
    def sent(self) -> int:
        """Messages of the batch as it was sent."""
        return self.count & ~DROPPED_FLAG

    @property
    def dropped(self) -> bool:
        """Whether some of its messages were not stored because their ids were known."""
        return self.count >= DROPPED_FLAG

    @property
    def inherited(self) -> bool:
        """The entry stands for everything that the parent had stored when it was split."""
        return self.base_offset < 0 and not self.count


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerState:
    """A copy of one row of the sequence table."""

    queue_key: QueueKey
    producer_id: ProducerId
    epoch: int
    session: int
    last_sequence: Sequence
    last_time_us: int
    """Log time of the last change of the row."""
    name: str
    window: tuple[WindowEntry, ...]
    """At most 64 entries, oldest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRef:
    """One replica as the membership names it."""

    node_id: NodeId
    address: str
    rack: str

    @classmethod
    def of(cls, message: NodeAddress) -> Self:
        """Reads it from a record of the log."""
        return cls(node_id=NodeId(message.node_id), address=message.address, rack=message.rack)

    @classmethod
    def read(cls, reader: Reader) -> Self:
        """The inverse of `packed`. Raises CorruptSegment."""
        (node_id,) = reader.unpack(_NODE)
        return cls(node_id=NodeId(node_id), address=reader.text(), rack=reader.text())

    def packed(self) -> bytes:
        """Canonical bytes."""
        return _NODE.pack(self.node_id) + pack_text(self.address) + pack_text(self.rack)


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """The group's replicas as of `index`."""

    index: Index
    voters: tuple[NodeRef, ...] = ()
    learners: tuple[NodeRef, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """The record was applied and has no further result.

    `what` is the record's name in control.proto, or "noop".
    """

    what: str
    queue_key: QueueKey | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDeleted:
    """A consumer group was deleted from all queues of this broker group."""

    queues: int
    """How many queues knew it."""
    moves_digest: bytes
    """Digest of `Moves` at this point. It changes whenever a queue comes or goes."""


@value
class BatchApplied:
    """A batch is stored at `[base_offset, base_offset + count)`, or at -1 if it is delayed."""

    queue_key: QueueKey
    producer_id: ProducerId
    base_sequence: Sequence
    last_sequence: Sequence
    base_offset: Offset
    count: int
    append_time_us: int


@value
class IdsChecked:
    """The batch in the next record has `ids` messages with ids, which arrive one by one from
    `first_arrival` on."""

    topic_id: int
    first_arrival: int
    ids: int


@value
class IdsEvicted:
    """The window of the topic's message ids begins at `first_arrival`."""

    topic_id: int
    first_arrival: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FenceApplied:
    """The rows after a fence. No batch of an older incarnation can be stored after it."""

    rows: tuple[ProducerState, ...]
    """One row for each queue of the record, in its order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LockGranted:
    """The member now holds the lock of the queue, under `token`."""

    group: str
    queue_key: QueueKey
    member_id: str
    token: int
    committed_offset: int
    """-1 if the group never committed here."""
    lock_ms: int
    session_ms: int
    metadata: bytes = b""
    """The metadata that an earlier owner stored beside the offset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LockRefused:
    """The member did not get the lock of the queue.

    `error` is QueueLocked, StaleGeneration, ParentUnread, UnknownQueue, InvalidRequest, or that of
    a move: Throttled or QueueMoved.
    """

    group: str
    queue_key: QueueKey
    error: SemelError


class CommitOutcome(NamedTuple):
    """What became of one commit: stored if `error` is None.

    Else `error` is LockLost, OffsetOutOfRange, InvalidRequest or UnknownQueue.
    """

    queue_key: QueueKey
    offset: int
    """-1 if the commit was about metadata alone."""
    token: int
    error: SemelError | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitApplied:
    """One outcome for each queue of the record, in its order."""

    group: str
    outcomes: tuple[CommitOutcome, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Released:
    """A ReleaseLock was applied; `released` is False if its token was not current."""

    group: str
    queue_key: QueueKey
    token: int
    released: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetReset:
    """A group's progress was reset, or refused with `error`.

    `error` is UnknownQueue, OffsetOutOfRange, or that of a move: Throttled or QueueMoved.
    """

    group: str
    queue_key: QueueKey
    token: int
    """The new token, which nobody holds."""
    error: SemelError | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """A batch of a transaction is staged, by this record or an earlier one, or refused."""

    queue_key: QueueKey
    length: int
    """Length of the record's payload."""
    duplicate: bool
    error: SemelError | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedChecked:
    """The kept part of a staged batch, which the entry's publication or rewrite takes."""

    queue_key: QueueKey


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionApplied:
    """A step of a transaction was applied, or refused with `error`."""

    step: str
    """Name of the step in transaction_records.proto."""
    error: SemelError | None = None
    value: tuple[int, ...] = ()
    """Depends on the step. open_stager: the last sequence of each queue. begin: epoch, attempt (0:
    already committed), last committed epoch. abort: 1 if the attempt is committed. drop_stagers:
    how many were dropped. rewrite: how many batches were replaced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitsStaged:
    """Progress of a group was staged with a transaction, one outcome for each queue of the record.

    `error` is TransactionAborted or ProducerFenced: then nothing is staged, and there are no
    outcomes.
    """

    group: str
    cost: int
    """What was asked for costs so much in memory."""
    outcomes: tuple[CommitOutcome, ...] = ()
    error: SemelError | None = None


class Progress(NamedTuple):
    """Progress of a consumer group that a publication has stored."""

    group: str
    queue_key: QueueKey
    token: int
    """The token of the lock under which it was staged; somebody else may hold it by now."""
    offset: int


class PublishedPart(NamedTuple):
    """The messages that one queue got by a publication."""

    queue_key: QueueKey
    base_offset: int
    messages: int


class TopicArrivals(NamedTuple):
    """Message ids of one topic, which arrive one by one from `first_arrival` on."""

    topic_id: int
    first_arrival: int
    ids: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """All batches of a transaction on this group became messages at once."""

    transaction_id: str
    attempt: int
    parts: tuple[PublishedPart, ...]
    duplicates: int = 0
    """Messages that were dropped because their ids were known."""
    conflicts: int = 0
    """Messages that were dropped because their ids were known with other content."""
    progress: tuple[Progress, ...] = ()
    """The progress of consumer groups that was stored with it."""
    arrived: tuple[TopicArrivals, ...] = ()
    """The message ids of each topic that compares them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayedReleased:
    """Delayed batches got the offsets `[base_offset, base_offset + messages)` of their queue."""

    queue_key: QueueKey
    base_offset: int
    messages: int
    batches: int
    released_us: int
    """Log time of the entry."""
    dues: tuple[tuple[int, int], ...]
    """Due times, rising, each with its messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compacted:
    """A run of extents was compacted, or nothing was changed (`done` is False) because the run is
    not there any more, or must not change."""

    queue_key: QueueKey
    done: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TieredApplied:
    """A queue has this pointer to its manifest from now on."""

    queue_key: QueueKey
    tier: TierState


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayedCancelled:
    """A message was taken out of a delayed batch."""

    queue_key: QueueKey
    ordinal: int
    """Names the batch."""
    row: int
    arrival: int
    """The number under which its id arrived."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayedParted:
    """The first delayed batches of a queue that was split became batches of its children."""

    queue_key: QueueKey
    batches: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayedGivenUp:
    """A delayed batch of a queue that was split was given up."""

    queue_key: QueueKey
    messages: int
    """Messages that are lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveApplied:
    """A step of a move, or a copy, was applied, or refused with `error`.

    `error` is InvalidRequest, Throttled, QueueMoved or UnknownQueue.
    """

    step: int
    """A control_pb2.MoveStep; 0 for a copy."""
    queue_key: QueueKey
    error: SemelError | None
    copied_offset: int
    """End offset of the incoming queue; -1 if there is none."""
    first_arrival: int = 0
    """The arrival of the first id of an IDS step."""
    ids: int = 0
    """How many ids arrived with an IDS step, granted or refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MembershipApplied:
    """The broker group has these replicas from this entry on."""

    membership: Membership


ApplyResult = (
    Done
    | GroupDeleted
    | BatchApplied
    | IdsChecked
    | IdsEvicted
    | FenceApplied
    | LockGranted
    | LockRefused
    | CommitApplied
    | Released
    | OffsetReset
    | Staged
    | StagedChecked
    | TransactionApplied
    | CommitsStaged
    | Published
    | DelayedReleased
    | DelayedCancelled
    | DelayedParted
    | DelayedGivenUp
    | Compacted
    | TieredApplied
    | MoveApplied
    | MembershipApplied
)
