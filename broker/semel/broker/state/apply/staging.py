"""Transactions on a participant: the batches that are staged for its queues, and the pins.

How it works. A *stager* adds batches to queues of this broker group. They are stored in the log and
have no offsets: extents on hold. A *pin* names the stagers that win, compares what the record says
about them with what is here, and ends all other stagers of the transaction. A pinned stager no
longer times out: only a publication ends it, or the coordinator's answer that the attempt is
aborted.

Invariants
1. In each queue the batches of a stager follow each other without a gap, and each is stored once.
2. Pinned batches do not change until they are published or dropped. A queue with pinned batches is
   not split (the admission prevents it, the state machine checks it).
3. `bytes` is the total length of all extents on hold. Each of them is live for cleaning and for
   snapshots.

Format. docs/formats/state.md.

Not here: which attempt wins (`coordination.py`), offsets (`queues.py`), how records are applied
(`transactions.py`), batches that are due after their publication (`delays.py`).
"""

from __future__ import annotations

import struct
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from semel.broker.state.apply.codec import Reader, pack_text
from semel.broker.state.apply.queues import QueueState
from semel.broker.state.apply.splits import sealed_error
from semel.protos.batch import BatchFlags, BatchHeader
from semel.protos.errors import (
    CorruptSegment,
    OutOfOrderSequence,
    ProducerFenced,
    SemelError,
    SequenceConflict,
    TransactionAborted,
    TransactionConflict,
    TransactionFenced,
    UnknownQueue,
)
from semel.protos.ids import NO_SEQUENCE, QueueId, QueueKey, TopicId
from semel.protos.queue_refs import queue_key_of
from semel.protos.staging import DIGEST_MASK, batch_digest
from semel.protos.v1 import transaction_records_pb2

STAGER: Final = struct.Struct("<QQIQqII")
STAGED_QUEUE: Final = struct.Struct("<QIIqQQI")
STAGED_EXTENT: Final = struct.Struct("<qqIIqI")
DUE: Final = struct.Struct("<q")
PIN: Final = struct.Struct("<QQIqI")
_ID: Final = struct.Struct("<Q")
_COUNT: Final = struct.Struct("<I")
CHECKED_BYTES_MAX: Final = 4 << 20
CHECKED_MESSAGES_MAX: Final = 65_536
CHECKED_BATCHES_MAX: Final = 8_192
"""What one transaction may publish of a broker group to topics that compare message ids. Their
batches are decided in one entry, and stand in it once more without the messages that are dropped.
With 40 bytes a message and 200 a batch for the decision that fits into one."""
REPEAT_LEVEL: Final = 6
"""From this feature level on an attempt may pin what the attempt before it has pinned: a commit
that is repeated with the same receipts. Below this level such a commit is aborted."""


class StagedExtent(NamedTuple):
    """One staged batch: in the log, and without offsets."""

    entry: int
    """Index of the entry that holds it."""
    position: int
    length: int
    """Length of the record's payload: broker header and batch."""
    messages: int
    base_sequence: int
    content_crc: int
    due_us: int = 0
    """When its messages are due after the publication; 0 if at once."""


@dataclass(slots=True)
class StagedQueue:
    """The batches that one stager has staged for one queue."""

    session: int
    last_sequence: int = NO_SEQUENCE
    messages: int = 0
    digest: int = 0
    extents: list[StagedExtent] = field(default_factory=list)


@dataclass(slots=True)
class Stager:
    """One writer's attempt at its part of a transaction."""

    stager_id: int
    transaction_id: str
    epoch: int
    writer: int
    ttl_us: int
    expires_us: int
    """Log time at which it ends if it is not pinned."""
    pinned: bool = False
    queues: dict[QueueKey, StagedQueue] = field(default_factory=dict)

    @property
    def messages(self) -> int:
        """How many messages its batches have."""
        return sum(queue.messages for queue in self.queues.values())

    @property
    def bytes(self) -> int:
        """Total length of its stored batches."""
        return sum(each.length for queue in self.queues.values() for each in queue.extents)


@dataclass(slots=True)
class Pin:
    """The winners of one transaction, which wait for the coordinator's decision."""

    transaction_id: str
    epoch: int
    attempt: int
    coordinator: int
    """The broker group that decides."""
    pinned_us: int
    winners: tuple[int, ...]
    """Stager ids in the order of publication."""


class Staging:
    """All stagers and pins of one broker group."""

    __slots__ = ("bytes", "pins", "stagers")

    def __init__(self) -> None:
        self.stagers: dict[int, Stager] = {}
        self.pins: dict[str, Pin] = {}
        """By transaction id."""
        self.bytes = 0

    # --- staging ----------------------------------------------------------------------------

    def open(
        self,
        record: transaction_records_pb2.OpenStager,
        keys: Iterable[QueueKey],
        queues: Mapping[QueueKey, QueueState],
        now_us: int,
    ) -> tuple[int, ...] | SemelError:
        """The last sequence of each queue; or why it cannot open, and then nothing has changed."""
        keys = tuple(keys)
        stager = self.stagers.get(record.stager_id)
        for key in keys:
            queue = queues.get(key)
            if queue is None:
                return UnknownQueue(f"queue {key.queue_id} of topic {key.topic_id} is not here")
            if queue.sealed:
                return sealed_error(queue)
        if stager is not None:
            if stager.pinned or (stager.transaction_id, stager.epoch) != (
                record.transaction_id,
                record.epoch,
            ):
                return _over(record.transaction_id, record.epoch)
            for key in keys:
                staged = stager.queues.get(key)
                if staged is not None and record.session < staged.session:
                    return ProducerFenced(
                        f"session {record.session} of the stager was fenced by {staged.session}",
                        current_epoch=1,
                        current_session=staged.session,
                    )
        else:
            # A new stager may open beside a pin of the same epoch: the program that pinned may be
            # dead, and the next one need not wait until brokers have noticed. The new stager adds
            # nothing to the pin.
            stager = Stager(
                record.stager_id,
                record.transaction_id,
                record.epoch,
                record.writer,
                record.ttl_ms * 1000,
                0,
            )
            self.stagers[stager.stager_id] = stager
        stager.expires_us = now_us + stager.ttl_us
        lasts = []
        for key in keys:
            staged = stager.queues.setdefault(key, StagedQueue(record.session))
            staged.session = record.session
            lasts.append(staged.last_sequence)
        return tuple(lasts)

    def check(self, batch: BatchHeader, queue: QueueState | None) -> SemelError | bool:
        """False if the batch is to be added, True if it is here already, or why it is refused."""
        key = batch.queue_key
        stager = self.stagers.get(batch.producer_id)
        staged = None if stager is None else stager.queues.get(key)
        if queue is None:
            return UnknownQueue(f"queue {key.queue_id} of topic {key.topic_id} is not here")
        if stager is None or staged is None or stager.pinned:
            return TransactionAborted(
                "the staged batches are committed, or were given up, or their time is over: the"
                " batch is not stored; begin the transaction again"
            )
        if batch.session != staged.session:
            return ProducerFenced(
                f"session {batch.session} of the stager was fenced by {staged.session}",
                current_epoch=1,
                current_session=staged.session,
            )
        if batch.base_sequence <= staged.last_sequence:
            return _known(batch, staged)
        if queue.sealed:
            return sealed_error(queue)
        if batch.previous_sequence != staged.last_sequence or batch.flags & (
            BatchFlags.SOURCE_POSITIONS | BatchFlags.POSITION_MARK
        ):
            return OutOfOrderSequence(
                f"staged batch {batch.base_sequence} names {batch.previous_sequence} as its"
                f" predecessor; queue {key.queue_id} has {staged.last_sequence}",
                last_sequence=staged.last_sequence,
            )
        return False

    def add(
        self,
        batch: BatchHeader,
        index: int,
        position: int,
        length: int,
        now_us: int,
        due_us: int = 0,
    ) -> None:
        """Adds a batch for which `check` returned False."""
        stager = self.stagers[batch.producer_id]
        staged = stager.queues[batch.queue_key]
        staged.extents.append(
            StagedExtent(
                index, position, length, batch.count, batch.base_sequence, batch.content_crc, due_us
            )
        )
        staged.last_sequence = batch.last_sequence
        staged.messages += batch.count
        staged.digest = staged.digest + batch_digest(batch) & DIGEST_MASK
        stager.expires_us = now_us + stager.ttl_us
        self.bytes += length

    # --- pins -------------------------------------------------------------------------------

    def pin(
        self,
        record: transaction_records_pb2.PinTransaction,
        queues: Mapping[QueueKey, QueueState],
        now_us: int,
        level: int = REPEAT_LEVEL,
        compared: Container[int] = (),
    ) -> SemelError | None:
        """Pins the winners, or returns why it cannot, and then nothing has changed.

        Topics in `compared` compare message ids. A lower attempt can no longer be decided, so this
        attempt may pin the stagers of its pin.
        """
        winners = tuple(winner.stager_id for winner in record.winners)
        present = self.pins.get(record.transaction_id)
        if present is not None:
            if present.coordinator != record.coordinator:
                # Attempts of two coordinators cannot be compared, so neither may end the other one.
                return TransactionConflict(
                    f"transaction {record.transaction_id!r} is being committed by broker group"
                    f" {present.coordinator}, group {record.coordinator} cannot decide about it"
                )
            if present.attempt > record.attempt:
                return TransactionFenced(
                    f"attempt {present.attempt} of transaction {record.transaction_id!r} has taken"
                    f" the place of attempt {record.attempt}"
                )
            if present.attempt == record.attempt:
                same = (present.epoch, present.winners) == (record.epoch, winners)
                return None if same else _other(record.transaction_id)
        free = present.winners if present is not None and level >= REPEAT_LEVEL else ()
        for winner in record.winners:
            reason = self._compare(record, winner, queues, free)
            if reason is not None:
                return reason
        if len(set(winners)) != len(winners):
            return _other(record.transaction_id)
        if (reason := self._too_much(record, compared)) is not None:
            return reason
        if present is not None:
            del self.pins[present.transaction_id]
            for number in set(present.winners).difference(winners):
                self._remove(number)
        for number in winners:
            self.stagers[number].pinned = True
        losers = [
            stager.stager_id
            for stager in self.stagers.values()
            if stager.transaction_id == record.transaction_id
            and stager.epoch <= record.epoch
            and not stager.pinned
        ]
        for number in losers:
            self._remove(number)
        self.pins[record.transaction_id] = Pin(
            record.transaction_id,
            record.epoch,
            record.attempt,
            record.coordinator,
            now_us,
            winners,
        )
        return None

    def _compare(
        self,
        record: transaction_records_pb2.PinTransaction,
        winner: transaction_records_pb2.Winner,
        queues: Mapping[QueueKey, QueueState],
        free: Container[int],
    ) -> TransactionAborted | None:
        """Why a winner cannot be pinned; None if it can.

        Its claim must equal what is staged here, and no other attempt may have pinned it. The
        stagers in `free` may be pinned by the attempt before this one.
        """
        stager = self.stagers.get(winner.stager_id)
        name = f"epoch {record.epoch} of transaction {record.transaction_id!r}"
        if (
            stager is None
            or (stager.pinned and winner.stager_id not in free)
            or (stager.transaction_id, stager.epoch) != (record.transaction_id, record.epoch)
        ):
            return TransactionAborted(
                f"{name}: a writer's staged batches are gone: their time was over, or they were"
                " given up. Nothing is stored; begin it again"
            )
        claimed = {queue_key_of(part.queue): part for part in winner.parts}
        held = {key for key, staged in stager.queues.items() if staged.extents}
        if set(claimed) != held or len(claimed) != len(winner.parts):
            return TransactionAborted(
                f"{name}: writer {stager.writer} names other queues than those that it has staged"
                " batches for. Nothing is stored; begin it again"
            )
        for key, part in claimed.items():
            staged = stager.queues[key]
            queue = queues.get(key)
            if queue is None or queue.sealed or queue.frozen:
                what = "deleted" if queue is None else "split" if queue.sealed else "moved"
                return TransactionAborted(
                    f"{name}: queue {key.queue_id} was {what} after messages were staged for it."
                    " Nothing is stored; begin it again"
                )
            if (len(staged.extents), staged.messages, staged.digest) != (
                part.batches,
                part.messages,
                part.digest,
            ):
                return TransactionAborted(
                    f"{name}: writer {stager.writer} claims {part.batches} batches with"
                    f" {part.messages} messages in queue {key.queue_id}, there are"
                    f" {len(staged.extents)} with {staged.messages}, or others. Nothing is stored;"
                    " begin it again"
                )
        return None

    def _too_much(
        self, record: transaction_records_pb2.PinTransaction, compared: Container[int]
    ) -> TransactionAborted | None:
        """Refuses what would not fit into the entry of the publication; None if it fits."""
        extents = [
            extent
            for winner in record.winners
            for key, staged in self.stagers[winner.stager_id].queues.items()
            if key.topic_id in compared
            for extent in staged.extents
        ]
        size = sum(extent.length for extent in extents)
        messages = sum(extent.messages for extent in extents)
        if (
            size <= CHECKED_BYTES_MAX
            and messages <= CHECKED_MESSAGES_MAX
            and len(extents) <= CHECKED_BATCHES_MAX
        ):
            return None
        return TransactionAborted(
            f"epoch {record.epoch} of transaction {record.transaction_id!r} has {messages:,}"
            f" messages in {len(extents):,} batches of {size:,} bytes for topics of this broker"
            f" group that compare message ids; at most {CHECKED_MESSAGES_MAX:,} in"
            f" {CHECKED_BATCHES_MAX:,} batches of {CHECKED_BYTES_MAX:,} bytes are taken. Nothing is"
            " stored; use smaller transactions"
        )

    def has_staged(self, topic_id: int) -> bool:
        """Whether any batch is staged for a queue of the topic."""
        return any(
            key.topic_id == topic_id and staged.extents
            for stager in self.stagers.values()
            for key, staged in stager.queues.items()
        )

    def pin_of(self, transaction_id: str, attempt: int) -> Pin | None:
        """The pin of exactly this attempt; None if there is none."""
        pin = self.pins.get(transaction_id)
        return pin if pin is not None and pin.attempt == attempt else None

    def pinned_extents(self, pin: Pin) -> dict[QueueKey, list[StagedExtent]]:
        """The pinned batches by queue, in the order of publication."""
        found: dict[QueueKey, list[StagedExtent]] = {}
        for number in pin.winners:
            for key, staged in self.stagers[number].queues.items():
                if staged.extents:
                    found.setdefault(key, []).extend(staged.extents)
        return {key: found[key] for key in sorted(found)}

    def is_pinned(self, key: QueueKey) -> bool:
        """Whether any batch is pinned for the queue."""
        return any(
            staged.extents
            for pin in self.pins.values()
            for number in pin.winners
            if (staged := self.stagers[number].queues.get(key)) is not None
        )

    # --- ends -------------------------------------------------------------------------------

    def drop_pin(self, transaction_id: str, attempt: int) -> bool:
        """Ends a pin and its stagers, published or not; False if there is no such pin."""
        pin = self.pin_of(transaction_id, attempt)
        if pin is None:
            return False
        del self.pins[transaction_id]
        for number in pin.winners:
            self._remove(number)
        return True

    def drop_stagers(self, numbers: Iterable[int], *, expired_before_us: int | None) -> int:
        """Ends the stagers that are not pinned, and returns how many.

        With `expired_before_us` it ends only those whose time was over by then.
        """
        dropped = 0
        for number in numbers:
            stager = self.stagers.get(number)
            if stager is None or stager.pinned:
                continue
            if expired_before_us is not None and stager.expires_us > expired_before_us:
                continue
            self._remove(number)
            dropped += 1
        return dropped

    def expired(self, now_us: int, count_max: int) -> list[int]:
        """Up to `count_max` stagers whose time is over."""
        found = (
            number
            for number, stager in self.stagers.items()
            if not stager.pinned and stager.expires_us <= now_us
        )
        return sorted(found)[:count_max]

    def remove_queue(self, key: QueueKey) -> None:
        """Removes a deleted queue with everything that is staged for it."""
        for stager in self.stagers.values():
            self._release(stager, key)

    def _remove(self, number: int) -> None:
        stager = self.stagers.pop(number)
        self.bytes -= stager.bytes

    def _release(self, stager: Stager, key: QueueKey) -> None:
        staged = stager.queues.pop(key, None)
        if staged is not None:
            self.bytes -= sum(extent.length for extent in staged.extents)

    # --- questions and bytes ----------------------------------------------------------------

    def live_records(self, lo_index: int, hi_index: int) -> Iterator[tuple[int, int, int]]:
        """(index, position, length) of staged records in entries `[lo_index, hi_index)`."""
        for number in sorted(self.stagers):
            stager = self.stagers[number]
            for key in sorted(stager.queues):
                for extent in stager.queues[key].extents:
                    if lo_index <= extent.entry < hi_index:
                        yield extent.entry, extent.position, extent.length

    def parts(self, *, dues: bool) -> list[bytes]:
        """Canonical bytes: stagers by rising id, then pins by transaction id.

        `dues` adds due times (from version 5 of the state on).
        """
        parts = [_COUNT.pack(len(self.stagers))]
        for number in sorted(self.stagers):
            parts.append(_pack_stager(self.stagers[number], dues=dues))
        parts.append(_COUNT.pack(len(self.pins)))
        for name in sorted(self.pins):
            pin = self.pins[name]
            parts.append(
                PIN.pack(pin.epoch, pin.attempt, pin.coordinator, pin.pinned_us, len(pin.winners))
                + b"".join(_ID.pack(number) for number in pin.winners)
                + pack_text(name)
            )
        return parts

    @classmethod
    def read_parts(cls, reader: Reader, *, dues: bool) -> Staging:
        """The inverse of `parts`. Raises CorruptSegment."""
        staging = cls()
        for _ in range(reader.unpack(_COUNT)[0]):
            stager = _read_stager(reader, dues=dues)
            staging.stagers[stager.stager_id] = stager
            staging.bytes += stager.bytes
        for _ in range(reader.unpack(_COUNT)[0]):
            epoch, attempt, coordinator, pinned_us, count = reader.unpack(PIN)
            winners = tuple(reader.unpack(_ID)[0] for _ in range(count))
            name = reader.text()
            if not set(winners) <= staging.stagers.keys():
                raise CorruptSegment(f"state pins stagers of {name!r} that it does not have")
            staging.pins[name] = Pin(name, epoch, attempt, coordinator, pinned_us, winners)
        return staging


def _known(batch: BatchHeader, staged: StagedQueue) -> SemelError | bool:
    """The answer to a batch at or below the last sequence: True, or a conflict."""
    for extent in reversed(staged.extents):
        if extent.base_sequence == batch.base_sequence:
            if (extent.messages, extent.content_crc) == (batch.count, batch.content_crc):
                return True
            break
        if extent.base_sequence < batch.base_sequence:
            break
    return SequenceConflict(
        f"the stager has staged other content as {batch.base_sequence} to {batch.last_sequence} of"
        f" queue {batch.queue_id}"
    )


def _pack_stager(stager: Stager, *, dues: bool) -> bytes:
    head = STAGER.pack(
        stager.stager_id,
        stager.epoch,
        stager.writer,
        stager.ttl_us,
        stager.expires_us,
        stager.pinned,
        len(stager.queues),
    )
    parts = [head, pack_text(stager.transaction_id)]
    for key in sorted(stager.queues):
        staged = stager.queues[key]
        parts.append(
            STAGED_QUEUE.pack(
                key.topic_id,
                key.queue_id,
                staged.session,
                staged.last_sequence,
                staged.messages,
                staged.digest,
                len(staged.extents),
            )
        )
        for extent in staged.extents:
            parts.append(STAGED_EXTENT.pack(*extent[:-1]))
            if dues:
                parts.append(DUE.pack(extent.due_us))
    return b"".join(parts)


def _read_stager(reader: Reader, *, dues: bool) -> Stager:
    number, epoch, writer, ttl_us, expires_us, pinned, count = reader.unpack(STAGER)
    if pinned > 1:
        raise CorruptSegment(f"state has {pinned} where a stager says 0 or 1")
    stager = Stager(number, reader.text(), epoch, writer, ttl_us, expires_us, bool(pinned))
    for _ in range(count):
        topic_id, queue_id, session, last, messages, digest, extents = reader.unpack(STAGED_QUEUE)
        stager.queues[QueueKey(TopicId(topic_id), QueueId(queue_id))] = StagedQueue(
            session,
            last,
            messages,
            digest,
            [
                StagedExtent(*reader.unpack(STAGED_EXTENT), *(reader.unpack(DUE) if dues else ()))
                for _ in range(extents)
            ],
        )
    return stager


def _over(transaction_id: str, epoch: int) -> TransactionAborted:
    return TransactionAborted(
        f"this stager's part of epoch {epoch} of transaction {transaction_id!r} is closed"
    )


def _other(transaction_id: str) -> TransactionAborted:
    return TransactionAborted(
        f"transaction {transaction_id!r} was pinned with other winners under the same attempt"
    )
