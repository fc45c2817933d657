"""Decisions about requests that are not in the log yet, and the errors of refusals.

Not here: how they are taken (`admission.py`), the results of applied records
(`state/apply/results.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from semel.broker.state.admission.pending import PendingQueue, PendingRow
from semel.protos.batch import BatchHeader
from semel.protos.errors import (
    DedupStateExpired,
    OutOfOrderSequence,
    ProducerFenced,
    SemelError,
    Throttled,
)
from semel.protos.ids import NO_SEQUENCE, Offset, ProducerId, QueueKey, Sequence
from semel.protos.v1 import control_pb2
from semel.protos.values import value

NO_OFFSET: Final = Offset(-1)
RETRY_AFTER_MS: Final = 20
"""About one round of replication: by then the records in flight are applied or lost."""


class BatchKey(NamedTuple):
    """Names an accepted batch until it is applied; `BatchApplied` has the same three fields."""

    queue_key: QueueKey
    producer_id: ProducerId
    base_sequence: Sequence


class ParkKey(NamedTuple):
    """Names one parked request; `serial` tells a repeated request from the first one."""

    queue_key: QueueKey
    producer_id: ProducerId
    previous_sequence: Sequence
    serial: int


class IdDecision(Protocol):
    """What becomes of the messages of a batch."""

    @property
    def count(self) -> int:
        """Messages that are kept."""
        ...

    @property
    def arrived(self) -> int:
        """Kept messages with ids."""
        ...

    @property
    def duplicates(self) -> int: ...

    @property
    def conflicts(self) -> int: ...

    @property
    def logged(self) -> bytes:
        """The dropped messages, packed for the log."""
        ...

    @property
    def answer(self) -> bytes:
        """The dropped messages, packed for the producer."""
        ...

    @property
    def batch(self) -> bytes:
        """The batch of the messages that are kept."""
        ...


class CheckedBatch(NamedTuple):
    """An accepted batch of a topic that compares ids."""

    decision: IdDecision
    record: control_pb2.CheckIds
    """It stands directly in front of the batch."""


@value
class Accepted:
    """The caller must append the record to the current entry now: the admission counts on it."""

    base_offset: Offset = NO_OFFSET
    """Base offset of the batch; -1 for a delayed batch or a control record."""
    checked: CheckedBatch | None = None
    """The decision about its message ids, if the topic compares them."""


@value
class Duplicate:
    """The batch was stored before and is applied; `base_offset` is -1 if it is not known."""

    base_offset: Offset
    dropped: bool = False
    """Some of its messages were not stored, because their ids were known."""


@dataclass(frozen=True, slots=True)
class DuplicateInFlight:
    """The batch is a duplicate of the accepted batch `after`, which is not applied yet.

    When `after` is applied, the answer is Duplicate at `base_offset`. If its entry is lost, the
    answer is NotMaster.
    """

    after: BatchKey
    base_offset: Offset


@dataclass(frozen=True, slots=True)
class LookUpIds:
    """The batch is fine, and its message ids must be looked up (again) before it is decided."""


@dataclass(frozen=True, slots=True)
class Parked:
    """The predecessor of the batch has not arrived.

    The caller keeps the bytes under `park_key` until `Admission.unpark` or
    `Admission.expire_parked` returns the key.
    """

    park_key: ParkKey


@dataclass(frozen=True, slots=True)
class Refused:
    """This request stores nothing, now or later."""

    error: SemelError


BatchDecision = Accepted | Duplicate | DuplicateInFlight | LookUpIds | Parked | Refused
ControlDecision = Accepted | Refused


def retry_later(why: str) -> Refused:
    """Refuses a request that must wait until a record in flight is applied or lost."""
    return Refused(Throttled(f"not admitted: {why}; send again", retry_after_ms=RETRY_AFTER_MS))


def fenced(producer_id: int, epoch: int, session: int, row: PendingRow) -> ProducerFenced:
    return ProducerFenced(
        f"producer {producer_id} of epoch {epoch}, session {session} was fenced by epoch"
        f" {row.epoch}, session {row.session}",
        current_epoch=row.epoch,
        current_session=row.session,
    )


def expired(queue: PendingQueue, producer_id: int) -> DedupStateExpired:
    floor = queue.expired.floor_of(producer_id)
    return DedupStateExpired(
        f"queue {queue.key.queue_id} of topic {queue.key.topic_id} has no row of producer"
        f" {producer_id}, or its row expired: what the producer stored there is not known. Fence"
        f" the producer after expiry, with an epoch above {floor}",
        epoch_floor=floor,
    )


def out_of_order(header: BatchHeader, row: PendingRow) -> OutOfOrderSequence:
    last = row.applied.last_sequence if row.applied else NO_SEQUENCE
    return OutOfOrderSequence(
        f"batch {header.base_sequence} to {header.last_sequence} of producer"
        f" {header.producer_id} names {header.previous_sequence} as its predecessor; queue"
        f" {header.queue_id} has stored up to {last}, and not this",
        last_sequence=Sequence(last),
    )
