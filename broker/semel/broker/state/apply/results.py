"""What applying one log record did: the answers that waiting callers get.

One result for each record of a frame, in the record's order. Results say *granted* or *refused*
where a record is decided at apply (locks, commits); a batch or a fence is decided before it is
proposed (`state/admission/admission.py`), so applying it cannot be refused: a mismatch is
`StateDiverged`.

Not here: verdicts on requests that are not in the log yet (`state/admission/decisions.py`).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final, NamedTuple, Self

from semel.broker.state.apply.codec import Reader, pack_text
from semel.protos.errors import SemelError
from semel.protos.ids import Index, NodeId, Offset, ProducerId, QueueKey, Sequence
from semel.protos.v1.common_pb2 import NodeAddress
from semel.protos.values import value

_NODE: Final = struct.Struct("<I")


class StateDiverged(Exception):
    """The log and the state contradict each other: this node must halt.

    No `SemelError`, so that nothing which handles requests catches it. Either memory or disk is
    damaged, or two versions disagree about a rule; going on would spread the damage.
    """


@dataclass(frozen=True, slots=True)
class WindowEntry:
    """One batch that the window remembers; `count` 0 is a position mark, or what was inherited."""

    base_sequence: Sequence
    last_sequence: Sequence
    base_offset: Offset
    """-1 in an inherited entry, and of a delayed batch, also once it is released."""
    count: int
    content_crc: int

    @property
    def inherited(self) -> bool:
        """It stands for everything that the parent had stored when it was split."""
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
    """Log time of the last change."""
    name: str
    window: tuple[WindowEntry, ...]
    """Oldest first; at most 64."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRef:
    """One replica, as the membership names it."""

    node_id: NodeId
    address: str
    rack: str

    @classmethod
    def of(cls, message: NodeAddress) -> Self:
        """From a record of the log."""
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
    """Applied, nothing to tell. `what` is the record's name in control.proto, or "noop"."""

    what: str
    queue_key: QueueKey | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDeleted:
    """A consumer group is forgotten on all queues that are here."""

    queues: int
    """On so many it was known."""
    moves_digest: bytes
    """Of `Moves` at this point: it differs whenever a queue has come or gone since."""


@value
class BatchApplied:
    """A batch is stored at `[base_offset, base_offset + count)`; at -1 when it is delayed."""

    queue_key: QueueKey
    producer_id: ProducerId
    base_sequence: Sequence
    last_sequence: Sequence
    base_offset: Offset
    count: int
    append_time_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FenceApplied:
    """The rows as they are now; nothing of an older incarnation can land after them."""

    rows: tuple[ProducerState, ...]
    """One for each queue of the record, in its order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LockGranted:
    """The member owns the queue under `token`."""

    group: str
    queue_key: QueueKey
    member_id: str
    token: int
    committed_offset: int
    """-1: the group never committed here."""
    lock_ms: int
    session_ms: int
    metadata: bytes = b""
    """What an earlier owner left beside the offset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LockRefused:
    """The member does not own the queue: QueueLocked, StaleGeneration, ParentUnread or
    UnknownQueue."""

    group: str
    queue_key: QueueKey
    error: SemelError


class CommitOutcome(NamedTuple):
    """Stored if `error` is None; else LockLost, OffsetOutOfRange, InvalidRequest, UnknownQueue."""

    queue_key: QueueKey
    offset: int
    """-1: it was about metadata alone."""
    token: int
    error: SemelError | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitApplied:
    """One outcome for each queue of the record, in its order."""

    group: str
    outcomes: tuple[CommitOutcome, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Released:
    """`released` is False when the token was not the current one (any more)."""

    group: str
    queue_key: QueueKey
    token: int
    released: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetReset:
    """A group's progress was moved, or `error`: UnknownQueue, OffsetOutOfRange."""

    group: str
    queue_key: QueueKey
    token: int
    """The new token; nobody holds it."""
    error: SemelError | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """A batch of a transaction is on hold, by this record or an earlier one, or `error`."""

    queue_key: QueueKey
    length: int
    """Of the record."""
    duplicate: bool
    error: SemelError | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionApplied:
    """A step of a transaction was done, or refused with `error`."""

    step: str
    """Its name in transaction_records.proto."""
    error: SemelError | None = None
    value: tuple[int, ...] = ()
    """open_stager: last sequence of each queue. begin: epoch, attempt (0: committed already), last
    committed epoch. abort: 1 if it is committed. drop_stagers: how many."""


class PublishedPart(NamedTuple):
    """What one queue got by a publication."""

    queue_key: QueueKey
    base_offset: int
    messages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A transaction's batches on this group became messages, all at once."""

    transaction_id: str
    attempt: int
    parts: tuple[PublishedPart, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayedReleased:
    """Delayed batches have become `[base_offset, base_offset + messages)` of their queue."""

    queue_key: QueueKey
    base_offset: int
    messages: int
    batches: int
    late_us: int
    """How long after its time the first of them came, by log time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveApplied:
    """A step of a move was taken, or a copy; or refused with `error`: InvalidRequest, Throttled,
    QueueMoved, UnknownQueue."""

    step: int
    """control_pb2.MoveStep; 0 for a copy."""
    queue_key: QueueKey
    error: SemelError | None
    copied_offset: int
    """End of the incoming queue; -1 without one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MembershipApplied:
    """The group has these replicas from here on."""

    membership: Membership


ApplyResult = (
    Done
    | GroupDeleted
    | BatchApplied
    | FenceApplied
    | LockGranted
    | LockRefused
    | CommitApplied
    | Released
    | OffsetReset
    | Staged
    | TransactionApplied
    | Published
    | DelayedReleased
    | MoveApplied
    | MembershipApplied
)
