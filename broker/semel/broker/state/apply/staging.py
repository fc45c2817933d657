"""Transactions on a participant: the batches that are staged for its queues, and the pins.

How it works. A *stager* adds batches to queues of this broker group. They are stored in the log and
have no offsets: extents on hold. A *pin* names the stagers that win, compares what the record says
about them with what is here, and ends all other stagers of the transaction. A pinned stager no
longer times out: only a publication ends it, or the coordinator's answer that the attempt is
aborted.

Invariants
1. In each queue the batches of a stager follow each other without a gap, and each is stored once.
2. Pinned batches stay until they are published or dropped; only what is kept of them, once the
   coordinator has decided, takes their places (`replace`). A queue with pinned batches is
   not split (the admission prevents it, the state machine checks it).
3. `bytes` is the total length of all extents on hold, `bytes_of` that of one topic's. Each of them
   is live for cleaning and for snapshots.
4. `places` tells of all staged commits, and what they cost in memory. None is of a deleted consumer
   group, or of a queue that is not here.

Format. docs/formats/state.md.

Not here: what stagers and pins hold (`stagers.py`), which attempt wins (`coordination.py`), offsets
(`queues.py`), how records are applied (`transactions.py`), batches that are due after their
publication (`delays.py`).
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Collection, Container, Iterable, Iterator, Mapping
from typing import Final

import numpy as np

from semel.broker.state.apply.codec import Reader
from semel.broker.state.apply.extents import I64, add_lengths
from semel.broker.state.apply.queues import QueueState
from semel.broker.state.apply.splits import sealed_error
from semel.broker.state.apply.staged_commits import (
    Place,
    StagedCommit,
    StagedPlaces,
    left_queue,
)
from semel.broker.state.apply.stagers import (
    Pin,
    StagedExtent,
    StagedQueue,
    Stager,
    pack_pin,
    pack_stager,
    read_pin,
    read_stager,
)
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
from semel.protos.ids import QueueKey
from semel.protos.levels import LEVEL_MAX, STAGED_COMMITS_LEVEL
from semel.protos.queue_refs import queue_key_of
from semel.protos.staging import DIGEST_MASK, batch_digest
from semel.protos.v1 import transaction_records_pb2

_COUNT: Final = struct.Struct("<I")
CHECKED_BYTES_MAX: Final = 1 << 30
CHECKED_MESSAGES_MAX: Final = 4_000_000
CHECKED_BATCHES_MAX: Final = 32_768
"""What one transaction may publish of a broker group to topics that compare message ids. A master
has about 100 bytes a message in memory from the look-up to the publication, and every node 24 while
it follows; it applies nothing else while it reads the batches again. A batch takes up to 20 bytes
in the publication's record."""
REPEAT_LEVEL: Final = 6
"""From this feature level on an attempt may pin what the attempt before it has pinned: a commit
that is repeated with the same receipts. Below this level such a commit is aborted."""


class Staging:
    """All stagers and pins of one broker group."""

    __slots__ = ("_topic_bytes", "bytes", "pins", "places", "stagers")

    def __init__(self) -> None:
        self.stagers: dict[int, Stager] = {}
        self.pins: dict[str, Pin] = {}
        """By transaction id."""
        self.bytes = 0
        self.places = StagedPlaces()
        self._topic_bytes: dict[int, int] = {}
        """The part of `bytes` of each topic that has any."""

    # --- staging ----------------------------------------------------------------------------

    def open(
        self,
        record: transaction_records_pb2.OpenStager,
        keys: Iterable[QueueKey],
        queues: Mapping[QueueKey, QueueState],
        now_us: int,
        level: int = LEVEL_MAX,
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
            if not keys and record.session < stager.session:
                return _fenced(record.session, stager.session)
            for key in keys:
                staged = stager.queues.get(key)
                if staged is not None and record.session < staged.session:
                    return _fenced(record.session, staged.session)
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
        if level >= STAGED_COMMITS_LEVEL:
            stager.session = max(stager.session, record.session)
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
            return _fenced(batch.session, staged.session)
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
        self._count(batch.topic_id, length)

    def open_for_commits(
        self, record: transaction_records_pb2.StageCommits
    ) -> Stager | TransactionAborted | ProducerFenced:
        """The stager that takes a record's commits, or why none of them can be staged."""
        stager = self.stagers.get(record.stager_id)
        if (
            stager is None
            or stager.pinned
            or (stager.transaction_id, stager.epoch) != (record.transaction_id, record.epoch)
        ):
            return _over(record.transaction_id, record.epoch)
        if record.HasField("session") and record.session < stager.session:
            return _fenced(record.session, stager.session)
        return stager

    def add_commit(self, stager: Stager, group: str, key: QueueKey, commit: StagedCommit) -> None:
        """Stages progress that a lock's holder may commit, unless a later one is staged."""
        place = group, key
        present = stager.commits.get(place)
        if present is not None:
            if present.is_later_than(commit):
                return
            self.drop_commit(stager, place)
        stager.commits[place] = commit
        self.places.add(stager.stager_id, place, commit)

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
        if len(stager.commits) != winner.commits:
            return TransactionAborted(
                f"{name}: writer {stager.writer} claims {winner.commits} commits of consumer"
                f" groups, there are {len(stager.commits)}: perhaps a group was deleted, or a queue"
                " was deleted or moved. Nothing is stored; begin it again"
            )
        if (left := left_queue(stager.commits, queues)) is not None:
            return TransactionAborted(
                f"{name}: queue {left[1].queue_id} was moved after progress of group {left[0]!r}"
                " was staged. Nothing is stored; begin it again"
            )
        return None

    def _too_much(
        self, record: transaction_records_pb2.PinTransaction, compared: Container[int]
    ) -> TransactionAborted | None:
        """Refuses what has more than one publication may have; None if it has not."""
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

    def replace(
        self,
        pin: Pin,
        producer_id: int,
        key: QueueKey,
        replaced: tuple[int, int, int],
        extent: StagedExtent,
    ) -> bool:
        """Puts what is kept of a pinned batch in its place; False if there is no such batch.

        `replaced` has its first sequence, its messages and its content CRC.
        """
        stager = self.stagers.get(producer_id)
        staged = None if stager is None else stager.queues.get(key)
        if staged is None or producer_id not in pin.winners:
            return False
        extents = staged.extents
        at = bisect_left(extents, extent.base_sequence, key=lambda each: each.base_sequence)
        if at == len(extents) or replaced != (
            extents[at].base_sequence,
            extents[at].messages,
            extents[at].content_crc,
        ):
            return False
        self._count(key.topic_id, extent.length - extents[at].length)
        extents[at] = extent
        return True

    def has_staged(self, topic_id: int) -> bool:
        """Whether any batch is staged for a queue of the topic."""
        return topic_id in self._topic_bytes

    def bytes_of(self, topic_id: int) -> int:
        """The total length of what is staged for queues of the topic."""
        return self._topic_bytes.get(topic_id, 0)

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
        """Whether any batch is pinned for the queue, or progress on it."""
        winners = [self.stagers[number] for pin in self.pins.values() for number in pin.winners]
        return any(
            staged.extents for stager in winners if (staged := stager.queues.get(key)) is not None
        ) or any(place[1] == key for stager in winners for place in stager.commits)

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
        """Removes a queue that is deleted, or moved away, with everything that is staged for it."""
        for stager in self.stagers.values():
            self._release(stager, key)
            for place in [place for place in stager.commits if place[1] == key]:
                self.drop_commit(stager, place)

    def remove_group(self, group: str, only: Collection[QueueKey] = ()) -> None:
        """Removes the staged progress of a deleted consumer group, on `only` these queues if any
        are named."""
        for stager in self.stagers.values():
            for place in list(stager.commits):
                if place[0] == group and (not only or place[1] in only):
                    self.drop_commit(stager, place)

    def _remove(self, number: int) -> None:
        stager = self.stagers.pop(number)
        for place in list(stager.commits):
            self.drop_commit(stager, place)
        for key, staged in stager.queues.items():
            self._count(key.topic_id, -staged.bytes)

    def drop_commit(self, stager: Stager, place: Place) -> None:
        """Gives up what a stager has staged there."""
        self.places.remove(stager.stager_id, place, stager.commits.pop(place))

    def _release(self, stager: Stager, key: QueueKey) -> None:
        staged = stager.queues.pop(key, None)
        if staged is not None:
            self._count(key.topic_id, -staged.bytes)

    def _count(self, topic_id: int, change: int) -> None:
        """The topic has so many bytes more on hold."""
        self.bytes += change
        left = self._topic_bytes.get(topic_id, 0) + change
        if left:
            self._topic_bytes[topic_id] = left
        else:
            self._topic_bytes.pop(topic_id, None)

    # --- questions and bytes ----------------------------------------------------------------

    def live_records(self, lo_index: int, hi_index: int) -> Iterator[tuple[int, int, int]]:
        """(index, position, length) of staged records in entries `[lo_index, hi_index)`."""
        for number in sorted(self.stagers):
            stager = self.stagers[number]
            for key in sorted(stager.queues):
                for extent in stager.queues[key].extents:
                    if lo_index <= extent.entry < hi_index:
                        yield extent.entry, extent.position, extent.length

    def add_live_bytes(self, bounds: I64, sums: I64) -> None:
        """Adds to `sums[k]` the lengths of staged records in `[bounds[k], bounds[k + 1])`."""
        records = list(self.live_records(int(bounds[0]), int(bounds[-1])))
        table = np.array(records, np.int64).reshape(-1, 3)
        add_lengths(table[:, 0], table[:, 2], bounds, sums)

    def parts(self, version: int) -> list[bytes]:
        """Canonical bytes of a version of the state: stagers by rising id, then pins by transaction
        id."""
        parts = [_COUNT.pack(len(self.stagers))]
        for number in sorted(self.stagers):
            parts.append(pack_stager(self.stagers[number], version))
        parts.append(_COUNT.pack(len(self.pins)))
        parts += [pack_pin(self.pins[name], version) for name in sorted(self.pins)]
        return parts

    @classmethod
    def read_parts(cls, reader: Reader, version: int) -> Staging:
        """The inverse of `parts`. Raises CorruptSegment."""
        staging = cls()
        for _ in range(reader.unpack(_COUNT)[0]):
            stager = read_stager(reader, version)
            staging.stagers[stager.stager_id] = stager
            for place, commit in stager.commits.items():
                staging.places.add(stager.stager_id, place, commit)
            for key, staged in stager.queues.items():
                staging._count(key.topic_id, staged.bytes)
        for _ in range(reader.unpack(_COUNT)[0]):
            pin = read_pin(reader, version)
            name = pin.transaction_id
            if not staging.stagers.keys() >= set(pin.winners):
                raise CorruptSegment(f"state pins stagers of {name!r} that it does not have")
            staging.pins[name] = pin
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


def _fenced(session: int, current: int) -> ProducerFenced:
    return ProducerFenced(
        f"session {session} of the stager was fenced by {current}",
        current_epoch=1,
        current_session=current,
    )


def _over(transaction_id: str, epoch: int) -> TransactionAborted:
    return TransactionAborted(
        f"this stager's part of epoch {epoch} of transaction {transaction_id!r} is closed"
    )


def _other(transaction_id: str) -> TransactionAborted:
    return TransactionAborted(
        f"transaction {transaction_id!r} was pinned with other winners under the same attempt"
    )
