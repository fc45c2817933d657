"""Turns requests of clients into log entries, and applied entries into answers.

How it works. Requests wait in one queue. Once a loop turn, `next_entry` asks the admission about
them in order and returns the records of one entry. The requests behind the records are remembered
under the entry's index. Applying the entry answers them (`on_applied`); losing mastership answers
all requests (`on_lost`).

The admission sees each request exactly when its record is put into an entry that is appended in the
same uninterrupted step, so that what it has accepted and what the log holds never differ.

Invariants
1. A request is answered exactly once.
2. No record is larger than the largest batch, so any one of them makes an entry.
3. Records accepted by the admission = records appended: after `next_entry` the caller appends, or
   dies.
4. A duplicate of an unapplied batch is answered after that batch, and with the same result.

Not here: what waits (`replica/requests.py`), rules (`state/admission/admission.py`), durability and
order of leaving (`replica/driver.py`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from itertools import chain
from typing import assert_never

from semel.broker.compaction import CompactedBatch
from semel.broker.memory import BODILESS
from semel.broker.replica.ack_sink import AckSink
from semel.broker.replica.requests import (
    Batch,
    Control,
    Copy,
    Entry,
    Eviction,
    Expiry,
    Item,
    Preceding,
    RecordParts,
    Release,
    answer_with,
    control_parts,
    size_of,
)
from semel.broker.state import (
    NO_OFFSET,
    RECORD_BYTES,
    Accepted,
    Admission,
    ApplyResult,
    BatchApplied,
    BatchDecision,
    BatchKey,
    CheckedIds,
    ControlDecision,
    DelayedReleased,
    Duplicate,
    DuplicateInFlight,
    KeptBatch,
    LookUpIds,
    Parked,
    ParkKey,
    Refused,
    Staged,
    TransactionIds,
    batch_record_parts,
    record_refusal,
    retry_later,
)
from semel.protos.batch import BatchHeader, BrokerHeader
from semel.protos.errors import InvalidRequest, SemelError
from semel.protos.frames import FRAME_RECORDS_MAX, RecordKind
from semel.protos.ids import Offset, ProducerId, QueueKey, Term
from semel.protos.queue_refs import queue_key_of
from semel.protos.staging import STAGER_ID_MIN
from semel.protos.v1.control_pb2 import ControlRecord, MoveQueue

_RECORD_OVERHEAD = 64
_RELEASED_AT_ONCE = 128
"""Delayed batches that one entry releases. Each takes up to 30 µs of the loop, here and when it is
applied, and what others send waits for that. So it is less than the state allows."""
_NEVER_MS = 1 << 40
_BUSY_MS = 10_000
"""Producers that wrote or fenced within this time keep their rows, however many there are: they
would come back at once."""
_FULL_LOOK_US = 1_000_000


class Proposer:
    """Requests of one mastership; the node makes a new one for each."""

    def __init__(
        self,
        admission: Admission,
        on_released: Callable[[DelayedReleased], None] = lambda _: None,
        look_up: Callable[[BatchHeader, bytes, AckSink], None] | None = None,
        add_moved: Callable[[MoveQueue], None] = lambda _: None,
        answer_again: Callable[[BatchHeader, int, AckSink], None] | None = None,
    ) -> None:
        """`look_up` takes a batch whose message ids must be looked up, and submits it again,
        `add_moved` the ids of an accepted step of a move. `answer_again` answers a retry of a batch
        that lost messages and is stored at an offset."""
        self.admission = admission
        self._on_released = on_released
        self._look_up = look_up
        self._add_moved = add_moved
        self._answer_again = answer_again
        self._queue: deque[Item] = deque()
        self._entries: dict[int, list[Item | Preceding]] = {}
        self._duplicates: dict[BatchKey, list[tuple[Batch, int]]] = {}
        self._dropped: dict[BatchKey, bytes] = {}
        """Messages of accepted batches that are not stored, packed for the producer."""
        self._preceding: list[RecordParts] = []
        """The records that must stand before the one that was just accepted."""
        self._parked: dict[ParkKey, Batch] = {}
        self._releasing: set[QueueKey] = set()
        """Queues whose release waits in the queue."""
        self._index = 0
        """Index of the entry being made."""
        self._time_us = 0
        """Time of the entry being made."""
        self._full_until_us: dict[QueueKey, int] = {}
        """Earliest time of the next look at a queue that had too many rows."""
        self._released = 0
        """Delayed batches that the entry being made releases."""
        self.pending_bytes = 0
        """Bytes of batches, control records and copies that wait for the admission."""
        self.pending_control_bytes = 0
        """Those of control records alone."""
        self.unapplied_bytes = 0
        """Bytes of entries that are appended and not applied."""
        self._sizes: dict[int, int] = {}

    @property
    def waiting(self) -> int:
        """Requests that wait for the admission, batches and control records."""
        return len(self._queue)

    @property
    def parked_count(self) -> int:
        """Batches that wait for their predecessor."""
        return len(self._parked)

    @property
    def parked_bytes(self) -> int:
        """Total bytes of those batches."""
        return self.admission.parked_bytes

    @property
    def entries_in_flight(self) -> int:
        """Entries that are appended and not applied."""
        return len(self._entries)

    @property
    def has_pending(self) -> bool:
        return bool(self._queue)

    def submit_batch(
        self, header: BatchHeader, data: bytes, sink: AckSink, ids: CheckedIds | None = None
    ) -> None:
        """`data` is the client batch, checked; `sink` gets the answer. `ids` are its message ids
        in a topic that compares them."""
        self._queue.append(Batch(header, data, sink, ids))
        self.pending_bytes += len(data)

    def submit_control(
        self,
        record: ControlRecord,
        looked_up: TransactionIds | None = None,
        compacted: tuple[CompactedBatch, ...] = (),
        parted: tuple[tuple[int, bytes], ...] = (),
    ) -> asyncio.Future[ApplyResult]:
        """The future gives the record's result, or raises: refused, NotMaster.

        `looked_up` is for a publication to topics that compare message ids, and for a rewrite; if
        the batches must be looked up again, the future raises Throttled. `compacted` is for a
        COMPACT record: the batches that must stand before it; `parted`, append times and bytes, for
        a PART_DELAYED record. A record beyond the limits
        (`state/admission/record_limits.py`) is refused at once.
        """
        future: asyncio.Future[ApplyResult] = asyncio.get_running_loop().create_future()
        if (refusal := record_refusal(record)) is not None:
            future.set_exception(refusal)
        else:
            item = Control(record, future, looked_up, compacted, parted)
            self._queue.append(item)
            size = size_of(item)
            self.pending_control_bytes += size
            self.pending_bytes += size
        return future

    def submit_copy(self, stored: bytes, *, in_memory: bool = False) -> asyncio.Future[ApplyResult]:
        """`stored` is a batch of a queue that moves here, checked; the future gives its result.
        With `in_memory` its body stays out of the log; both headers alone say that it is lost."""
        future: asyncio.Future[ApplyResult] = asyncio.get_running_loop().create_future()
        self._queue.append(Copy(stored, future, in_memory))
        self.pending_bytes += len(stored)
        return future

    def submit_expiry(
        self, queue_key: QueueKey, *, now_us: int, idle_ms: int, rows_max: int
    ) -> None:
        """Ends the idle and surplus rows of a queue."""
        self._queue.append(
            Expiry(queue_key=queue_key, now_us=now_us, idle_ms=idle_ms, rows_max=rows_max)
        )

    def submit_release(self, queue_key: QueueKey) -> None:
        """Gives offsets to the due batches of a queue; does nothing while such a release waits."""
        if queue_key not in self._releasing:
            self._releasing.add(queue_key)
            self._queue.append(Release(queue_key))

    def submit_eviction(self, topic_id: int, arrival: int = 0) -> None:
        """Shortens a topic's window of message ids if it is too large, or begins below
        `arrival`."""
        self._queue.append(Eviction(topic_id, arrival))

    def is_stored(self, header: BatchHeader) -> bool:
        """Whether the batch is stored and applied already."""
        return self.admission.find_stored(header) is not None

    def refuse_pending(self, error: SemelError) -> None:
        """Refuses all requests that wait for the admission, but for batches that were stored
        before: nothing has to be appended for those, and they get the answer that is due."""
        waiting, self._queue = self._queue, deque()
        self._releasing.clear()
        self.pending_bytes = self.pending_control_bytes = 0
        for item in waiting:
            if isinstance(item, Batch) and (stored := self.admission.find_stored(item.header)):
                self._answer_duplicate(item, stored)
            else:
                answer_with(item, error)

    def next_entry(
        self, index: int, term: int, time_us: int, now_ms: int, bytes_target: int
    ) -> Entry | None:
        """One entry of about `bytes_target` bytes; None if no waiting request was accepted."""
        records: list[RecordParts] = []
        owners: list[Item | Preceding] = []
        bodies: list[tuple[int, bytes]] = []
        size = self._released = 0
        self._index, self._time_us = index, time_us
        queue = self._queue
        while queue and len(records) < FRAME_RECORDS_MAX - 1:  # one may need another before it
            item = queue[0]
            length = size_of(item)
            if records and size + length > bytes_target:
                break
            if isinstance(item, Release) and self._released >= _RELEASED_AT_ONCE:
                break  # the next entry takes the rest
            if isinstance(item, Control) and item.is_large and records:
                break
            queue.popleft()
            if isinstance(item, Batch | Control | Copy):
                self.pending_bytes -= length
            if isinstance(item, Batch):
                accepted = self._admit_batch(item, time_us, term, now_ms)
            elif isinstance(item, Control):
                self.pending_control_bytes -= length
                room = self.admission.forget_before(item.record.transaction)
                if room is not None:
                    records.append(control_parts(ControlRecord(transaction=room)))
                    owners.append(Preceding())
                accepted = self._admit_control(item, time_us, term)
            elif isinstance(item, Copy):
                bodiless = item.in_memory and len(item.stored) > RECORD_BYTES
                kind = RecordKind.MEMORY_COPY if bodiless else RecordKind.COPY
                accepted = kind, (item.stored,)
            elif isinstance(item, Release):
                accepted = self._propose_release(item, time_us)
            elif isinstance(item, Eviction):
                accepted = self._propose_eviction(item, time_us)
            else:
                accepted = self._propose_expiry(item)
            if accepted is None:
                continue
            for preceding in self._preceding:
                records.append(preceding)
                owners.append(Preceding())
                size += sum(map(len, preceding[1])) + _RECORD_OVERHEAD
            self._preceding.clear()
            if accepted[0] in BODILESS:
                stored = bytes(accepted[1][0])
                accepted = accepted[0], (stored[:RECORD_BYTES],)
                if len(stored) > RECORD_BYTES:
                    bodies.append((len(records), stored))
            records.append(accepted)
            owners.append(item)
            size += length + _RECORD_OVERHEAD
        if not records:
            return None
        self._entries[index] = owners
        self._sizes[index] = size
        self.unapplied_bytes += size
        return Entry(records, size, bodies)

    def _admit_batch(self, item: Batch, time_us: int, term: int, now_ms: int) -> RecordParts | None:
        header = item.header
        staged = header.producer_id >= STAGER_ID_MIN
        decision: BatchDecision
        if staged:
            decision = self.admission.admit_staged(header, time_us=time_us)
        else:
            decision = self.admission.admit_batch(
                header, now_ms, time_us=time_us, entry=self._index, ids=item.ids
            )
        if isinstance(decision, Accepted):
            data = item.data
            if decision.checked is not None:
                data = decision.checked.decision.batch
                record = ControlRecord(check_ids=decision.checked.record)
                self._preceding.append(control_parts(record))
                if decision.checked.decision.answer:
                    key = BatchKey(header.queue_key, header.producer_id, header.base_sequence)
                    self._dropped[key] = decision.checked.decision.answer
            parts = batch_record_parts(
                data,
                base_offset=decision.base_offset,
                append_time_us=self.admission.append_time_us(header.queue_key, time_us),
                term=Term(term),
            )
            if staged:
                return RecordKind.STAGED, parts
            self._unpark(header.queue_key, header.producer_id)
            if self.admission.in_memory(header.queue_key):
                return RecordKind.MEMORY, (b"".join(parts),)  # `next_entry` takes the body away
            return RecordKind.BATCH, parts
        if isinstance(decision, Duplicate):
            self._answer_duplicate(item, decision)
        elif isinstance(decision, DuplicateInFlight):
            self._duplicates.setdefault(decision.after, []).append((item, decision.base_offset))
        elif isinstance(decision, LookUpIds):
            assert self._look_up is not None, "a node that has windows of ids can look them up"
            self._look_up(header, item.data, item.sink)
        elif isinstance(decision, Parked):
            self._parked[decision.park_key] = item
        elif isinstance(decision, Refused):
            item.sink.refuse(header, decision.error)
        else:
            assert_never(decision)
        return None

    def _answer_duplicate(self, item: Batch, stored: Duplicate) -> None:
        if stored.dropped:
            assert self._answer_again is not None, "a node that drops messages remembers which"
            self._answer_again(item.header, stored.base_offset, item.sink)
        else:
            due = self.admission.dues.of(item.header)
            item.sink.ack(item.header, "duplicate", stored.base_offset, 0, b"", due)

    def _unpark(self, queue_key: QueueKey, producer_id: ProducerId) -> None:
        """A batch or a fence was accepted: those that waited for it are decided next, in order."""
        ready: list[Batch] = []
        while (key := self.admission.unpark(queue_key, producer_id)) is not None:
            ready.append(self._parked.pop(key))
        self._queue.extendleft(reversed(ready))
        self.pending_bytes += sum(len(item.data) for item in ready)

    def has_overdue(self, now_ms: int) -> bool:
        """Whether the predecessor of any batch did not come in time."""
        return self.admission.has_overdue(now_ms)

    def expire_parked(self, now_ms: int) -> None:
        """Answers batches whose predecessor had not come by `now_ms`; see the admission."""
        for key, error in self.admission.expire_parked(now_ms):
            item = self._parked.pop(key)
            item.sink.refuse(item.header, error)

    def _admit_control(self, item: Control, time_us: int, term: int) -> RecordParts | None:
        record = item.record
        decision: ControlDecision | LookUpIds = Accepted()  # all others are decided at apply
        kept: list[KeptBatch] = []
        match record.WhichOneof("record"):
            case "create_queue":
                decision = self.admission.queues.admit_create_queue(record.create_queue)
            case "delete_queue":
                decision = self.admission.queues.admit_delete_queue(record.delete_queue)
            case "split_queue":
                decision = self.admission.queues.admit_split(record.split_queue)
            case "move_queue":
                decision = self.admission.queues.admit_move(record.move_queue)
            case "delete_group":
                decision = self.admission.admit_delete_group(record.delete_group)
            case "feature_level":
                decision = self.admission.admit_feature_level(record.feature_level)
            case "alter_topic":
                decision = self.admission.queues.admit_alter_topic(record.alter_topic)
            case "cancel_delayed":
                cancel = record.cancel_delayed
                decision = self.admission.admit_cancel(cancel, time_us=self._time_us)
            case "trim":
                decision = self.admission.queues.admit_trim(record.trim)
            case "fence":
                decision = self.admission.admit_fence(record.fence)
            case "lose_memory":
                decision = self.admission.queues.admit_lose_memory(record.lose_memory)
            case "part_delayed":
                decision = self.admission.queues.admit_part(record.part_delayed)
            case "give_up_delayed":
                decision = self.admission.queues.admit_give_up(record.give_up_delayed)
            case "compact":
                decision = self.admission.queues.admit_compact(record.compact)
            case "tiered":
                decision = self.admission.queues.admit_tiered(record.tiered)
            case "forget":
                decision = self.admission.queues.admit_forget(record.forget)
            case "transaction":
                decision = self.admission.admit_transaction(
                    record.transaction, item.looked_up, kept, self._index
                )
            case None:
                decision = Refused(InvalidRequest("the control record is empty"))
        if isinstance(decision, LookUpIds):
            decision = retry_later("the transaction's message ids must be looked up (again)")
        if isinstance(decision, Refused):
            answer_with(item, decision.error)
            return None
        if record.move_queue.ids:
            self._add_moved(record.move_queue)
        for made in item.compacted:
            header = BrokerHeader(
                base_offset=Offset(made.base_offset),
                append_time_us=made.append_time_us,
                term=Term(term),
                span=made.span,
            )
            self._preceding.append((RecordKind.COMPACTED, (header.encode(), made.batch)))
        for append_time_us, part in item.parted:
            parts = batch_record_parts(
                part, base_offset=NO_OFFSET, append_time_us=append_time_us, term=Term(term)
            )
            self._preceding.append((RecordKind.PARTED, parts))
        for batch in kept:
            self._preceding.append(control_parts(ControlRecord(check_ids=batch.record)))
            parts = batch_record_parts(
                batch.batch,
                base_offset=batch.base_offset,
                append_time_us=self.admission.append_time_us(batch.queue_key, time_us),
                term=Term(term),
            )
            self._preceding.append((RecordKind.STAGED, parts))
        if record.WhichOneof("record") == "fence":
            for queue in record.fence.queues:
                self._unpark(queue_key_of(queue), ProducerId(record.fence.producer_id))
                self._make_room(queue_key_of(queue))
        return control_parts(record)

    def _make_room(self, queue_key: QueueKey) -> None:
        """Ends rows of a queue as soon as there are too many, because the regular look would come
        too late for a queue that gets new producers all the time. It reads all rows, so it is done
        at most once a second."""
        if not self.admission.is_full(queue_key) or self._time_us < self._full_until_us.get(
            queue_key, 0
        ):
            return
        self._full_until_us[queue_key] = self._time_us + _FULL_LOOK_US
        self._queue.append(
            Expiry(
                queue_key=queue_key,
                now_us=self._time_us,
                idle_ms=_NEVER_MS,
                rows_max=self.admission.producers_max - self.admission.producers_max // 16,
                spare_ms=_BUSY_MS,
            )
        )

    def _propose_expiry(self, item: Expiry) -> RecordParts | None:
        record = self.admission.propose_expiry(
            item.queue_key,
            now_us=item.now_us,
            idle_ms=item.idle_ms,
            rows_max=item.rows_max,
            spare_ms=item.spare_ms,
        )
        if record is None:
            return None
        return control_parts(ControlRecord(expire_producers=record))

    def _propose_release(self, item: Release, time_us: int) -> RecordParts | None:
        self._releasing.discard(item.queue_key)
        record = self.admission.propose_release(
            item.queue_key, now_us=time_us, batches_max=_RELEASED_AT_ONCE - self._released
        )
        if record is None:
            return None
        self._released += record.batches
        return control_parts(ControlRecord(release_delayed=record))

    def _propose_eviction(self, item: Eviction, time_us: int) -> RecordParts | None:
        record = self.admission.ids.propose_eviction(item.topic_id, time_us, item.arrival)
        return None if record is None else control_parts(ControlRecord(evict_ids=record))

    def on_applied(self, index: int, results: Sequence[ApplyResult]) -> None:
        """Answers the requests behind the records of this entry."""
        self.admission.on_applied(results)
        owners = self._entries.pop(index, None)
        if owners is None:
            return  # an entry of an earlier term, or one that nobody waits for
        self.unapplied_bytes -= self._sizes.pop(index)
        assert len(owners) == len(results), f"entry {index} has {len(results)} results"
        for item, result in zip(owners, results, strict=True):
            if isinstance(item, Eviction | Expiry | Preceding):
                continue
            if isinstance(item, Release):
                assert isinstance(result, DelayedReleased)
                self._on_released(result)
                self.submit_release(result.queue_key)  # more may be due
                continue
            if isinstance(item, Control | Copy):
                if not item.future.done():
                    item.future.set_result(result)
                continue
            if isinstance(result, Staged):
                answered = "duplicate" if result.duplicate else "committed"
                if result.error is None:
                    item.sink.ack(item.header, answered, -1, 0)
                else:
                    item.sink.refuse(item.header, result.error)
                continue
            assert isinstance(result, BatchApplied)
            key = BatchKey(result.queue_key, result.producer_id, result.base_sequence)
            dropped = self._dropped.pop(key, b"")
            answer = result.append_time_us, dropped, self.admission.dues.of(item.header)
            item.sink.ack(item.header, "committed", result.base_offset, *answer)
            for duplicate, base_offset in self._duplicates.pop(key, ()):
                duplicate.sink.ack(duplicate.header, "duplicate", base_offset, *answer)

    def on_lost(self, error: Callable[[], SemelError]) -> None:
        """Mastership is lost: all requests get `error`. Appended ones may still be committed."""
        waiting: list[Item | Preceding] = [*self._queue, *self._parked.values()]
        waiting += chain.from_iterable(self._entries.values())
        waiting += [item for found in self._duplicates.values() for item, _ in found]
        self._queue.clear()
        self._releasing.clear()
        self._parked.clear()
        self._entries.clear()
        self._duplicates.clear()
        self._dropped.clear()
        self._sizes.clear()
        self.pending_bytes = self.pending_control_bytes = self.unapplied_bytes = 0
        for item in waiting:
            answer_with(item, error())
