"""The master's judge: decides about batches and fences before they are proposed, exactly once.

How it works. The judge sees `spec`: the applied state plus everything accepted and not yet applied,
kept as an overlay of the queues and rows that have something in flight. A request is judged and
counted on in one uninterrupted call; the caller appends what was accepted to the entry being built,
in the order of judging. `on_applied` takes entries out of the overlay as the fold reaches them.

The judge lives only while its node is master: built when the no-op of its own term is applied, so
that the applied state holds everything older, and dropped when the node steps down, when unapplied
entries may be lost, or when something accepted could not be appended.

Order of the checks: queue, size, row, incarnation, next in the chain, stored before, in flight,
gap. "Stored before" comes ahead of "gap": a retry whose first answer was lost must find its
original, not an error about order.

Invariants
1. A batch is accepted only if its `previous_sequence` is the last accepted sequence of its row:
   nothing can be stored twice, and nothing stored late passes for a duplicate of what was lost.
2. Duplicate is said of applied batches only. A final refusal never rests on an accepted batch that
   may still be lost: such a request waits (Pending) or is asked to come back (Throttled).
3. A message that is certainly not stored is never answered with Duplicate: a batch that begins or
   ends in a gap between remembered batches is OutOfOrderSequence.
4. At most 64 batches of a row are in flight, so each of them can still be found in the window.

Not here: parked batches and their order (`parking.py`), locks and commits (decided at apply).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence as Many
from enum import Enum
from typing import Final, NamedTuple

from semel.broker.state.locks import unknown_queue
from semel.broker.state.machine import State, queue_key_of
from semel.broker.state.parking import Parking
from semel.broker.state.producers import WINDOW_BATCHES, OutcomeKind, Row
from semel.broker.state.queues import SLOTS, QueueSettings
from semel.broker.state.results import ApplyResult, BatchApplied, Done, FenceApplied
from semel.broker.state.verdicts import (
    Accepted,
    BatchKey,
    BatchVerdict,
    ControlVerdict,
    Duplicate,
    Parked,
    ParkKey,
    Pending,
    Refused,
)
from semel.protos.batch import BatchHeader, BrokerHeader
from semel.protos.errors import (
    DedupStateExpired,
    InvalidRequest,
    MessageTooLarge,
    OffsetOutOfRange,
    OutOfOrderSequence,
    PartialOverlap,
    ProducerFenced,
    SemelError,
    SequenceConflict,
    Throttled,
)
from semel.protos.ids import NO_SEQUENCE, Offset, ProducerId, QueueKey, Sequence, Term
from semel.protos.v1 import control_pb2

IN_FLIGHT_BATCHES_MAX: Final = WINDOW_BATCHES
RETRY_AFTER_MS: Final = 20
"""About one round of replication: by then what was in flight is applied or lost."""


class _InFlight(NamedTuple):
    """An accepted batch that is not applied."""

    base: int
    last: int
    messages: int
    content_crc: int
    base_offset: int


class _SpecRow:
    """A row as it will be when everything accepted is applied."""

    __slots__ = (
        "applied",
        "epoch",
        "exists",
        "in_flight",
        "last",
        "producer_id",
        "session",
        "uses",
    )

    def __init__(self, producer_id: ProducerId, applied: Row | None) -> None:
        self.producer_id = producer_id
        self.applied = applied
        """Where retries are looked up; None until a new row's fence is applied."""
        self.exists = applied is not None
        self.epoch = applied.epoch if applied else 0
        self.session = applied.session if applied else 0
        self.last: int = applied.last_sequence if applied else NO_SEQUENCE
        self.in_flight: deque[_InFlight] = deque()
        self.uses = 0
        """Accepted, unapplied records that concern the row."""


class _SpecQueue:
    """A queue as it will be when everything accepted is applied."""

    __slots__ = (
        "batch_bytes_max",
        "deleted",
        "expired_epoch_floor",
        "expired_id_ceiling",
        "key",
        "log_end_offset",
        "rows",
        "uses",
    )

    def __init__(self, key: QueueKey, log_end_offset: int, batch_bytes_max: int) -> None:
        self.key = key
        self.log_end_offset = log_end_offset
        self.batch_bytes_max = batch_bytes_max
        self.expired_epoch_floor = 0
        self.expired_id_ceiling = 0
        self.deleted = False
        self.rows: dict[int, _SpecRow] = {}
        self.uses = 0
        """Accepted, unapplied records that concern the queue or one of its rows."""

    def may_open(self, producer_id: int, epoch: int) -> bool:
        return epoch > self.expired_epoch_floor or producer_id > self.expired_id_ceiling


class _Kind(Enum):
    BATCH = "batch"
    FENCE = "fence"
    CREATE = "create_queue"
    DELETE = "delete_queue"
    EXPIRE = "expire_producers"


class _Unapplied(NamedTuple):
    """One accepted record, in log order, and what of the overlay it uses."""

    kind: _Kind
    base: int
    """First sequence of a batch."""
    queues: tuple[_SpecQueue, ...]
    rows: tuple[_SpecRow, ...]
    """One a queue, for a fence or a batch; any number of the only queue, for an expiry."""


class Judge:
    """Decides for one term of one master. Asserts that the term's no-op is applied."""

    def __init__(
        self, state: State, *, term: Term, park_ms: int = 2_000, park_bytes_max: int = 32 << 20
    ) -> None:
        assert state.applied_term == term, f"term {term} begins, {state.applied_term} is applied"
        self._state = state
        self._queues: dict[QueueKey, _SpecQueue] = {}
        self._unapplied: deque[_Unapplied] = deque()
        self._parking = Parking(park_ms=park_ms, bytes_max=park_bytes_max)

    @property
    def pending_count(self) -> int:
        """Accepted records that are not applied."""
        return len(self._unapplied)

    @property
    def parked_count(self) -> int:
        """Requests that wait for a predecessor."""
        return self._parking.count

    @property
    def parked_bytes(self) -> int:
        """What the parked requests hold together."""
        return self._parking.bytes

    # --- the overlay ------------------------------------------------------------------------

    def _queue(self, key: QueueKey) -> _SpecQueue | None:
        """The queue in spec, not yet part of the overlay if nothing uses it; None if unknown."""
        spec = self._queues.get(key)
        if spec is not None:
            return None if spec.deleted else spec
        queue = self._state.queues.get(key)
        if queue is None:
            return None
        spec = _SpecQueue(key, queue.log_end_offset, queue.settings.batch_bytes_max)
        spec.expired_epoch_floor = queue.expired_epoch_floor
        spec.expired_id_ceiling = queue.expired_id_ceiling
        return spec

    def _row(self, queue: _SpecQueue, producer_id: ProducerId) -> _SpecRow:
        """The row in spec, which may not exist; not yet part of the overlay if nothing uses it."""
        row = queue.rows.get(producer_id)
        if row is None:
            row = _SpecRow(producer_id, self._state.producers.find(queue.key, producer_id))
        return row

    def _use(
        self,
        kind: _Kind,
        queues: tuple[_SpecQueue, ...],
        rows: tuple[_SpecRow, ...],
        base: int = -1,
    ) -> None:
        """Counts on one accepted record until it is applied."""
        for queue in queues:
            queue.uses += 1
            self._queues[queue.key] = queue
        for at, row in enumerate(rows):
            row.uses += 1
            queues[at if len(queues) > 1 else 0].rows[row.producer_id] = row
        self._unapplied.append(_Unapplied(kind, base, queues, rows))

    # --- batches ----------------------------------------------------------------------------

    def judge_batch(self, header: BatchHeader, now_ms: float) -> BatchVerdict:
        """What becomes of a batch that passed `check_batch`. Accepted: append it now."""
        key = header.queue_key
        queue = self._queue(key)
        if queue is None:
            return Refused(unknown_queue(key))
        if header.batch_length > queue.batch_bytes_max:
            return Refused(
                MessageTooLarge(
                    f"batch of {header.batch_length} bytes; queue {key.queue_id} takes"
                    f" {queue.batch_bytes_max}",
                    limit_bytes=queue.batch_bytes_max,
                )
            )
        row = self._row(queue, header.producer_id)
        if not row.exists or header.epoch != row.epoch or header.session != row.session:
            return Refused(_incarnation_error(header, queue, row))
        if header.previous_sequence == row.last:
            return self._accept(header, queue, row)
        return self._judge_unchained(header, row, now_ms)

    def _accept(self, header: BatchHeader, queue: _SpecQueue, row: _SpecRow) -> BatchVerdict:
        if len(row.in_flight) >= IN_FLIGHT_BATCHES_MAX:
            return _come_back(f"{len(row.in_flight)} batches of this producer are in flight")
        base, last, offset = header.base_sequence, header.last_sequence, queue.log_end_offset
        row.in_flight.append(_InFlight(base, last, header.count, header.content_crc, offset))
        row.last = last
        queue.log_end_offset = offset + header.count
        self._use(_Kind.BATCH, (queue,), (row,), base)
        return Accepted(Offset(offset))

    def _judge_unchained(self, header: BatchHeader, row: _SpecRow, now_ms: float) -> BatchVerdict:
        """A batch that does not follow the last one: stored, in flight, too early, or wrong."""
        verdict = self._judge_applied(header, row)
        if verdict is not None:
            return verdict
        if header.base_sequence <= row.last:
            return self._judge_in_flight(header, row)
        if header.previous_sequence > row.last:
            return self._park(header, now_ms)
        if row.in_flight:
            return _come_back("batches of this producer are in flight")
        return Refused(_out_of_order(header, row))

    def _judge_applied(self, header: BatchHeader, row: _SpecRow) -> BatchVerdict | None:
        """Judges what the applied row alone decides; None when it does not."""
        applied = row.applied
        if applied is None or header.base_sequence > applied.last_sequence:
            return None
        base, last = header.base_sequence, header.last_sequence
        entry = applied.find(base)
        if entry is not None and (entry.base_sequence, entry.last_sequence, entry.count) == (
            base,
            last,
            header.count,
        ):
            if entry.content_crc == header.content_crc:
                return Duplicate(entry.base_offset)
            return Refused(
                SequenceConflict(
                    f"producer {header.producer_id} stored other content as {base} to {last} of"
                    f" queue {header.queue_id}"
                )
            )
        if not header.count and last <= applied.last_sequence:
            return Duplicate(Offset(-1))
        first = applied.outcome(base)
        if first.kind is OutcomeKind.NOT_COMMITTED:
            return Refused(_out_of_order(header, row))
        if last > applied.last_sequence:
            if row.in_flight:
                return None
            return Refused(
                PartialOverlap(
                    f"batch {base} to {last} of producer {header.producer_id} is stored up to"
                    f" {applied.last_sequence}; send the rest",
                    last_sequence=applied.last_sequence,
                )
            )
        if applied.outcome(last).kind is OutcomeKind.NOT_COMMITTED:
            return Refused(_out_of_order(header, row))
        return Duplicate(Offset(first.offset))

    def _judge_in_flight(self, header: BatchHeader, row: _SpecRow) -> BatchVerdict:
        """A batch that touches accepted ones which may still be lost."""
        wanted = (header.base_sequence, header.last_sequence, header.count, header.content_crc)
        for batch in row.in_flight:
            if batch[:4] == wanted:
                after = BatchKey(header.queue_key, header.producer_id, header.base_sequence)
                return Pending(after, Offset(batch.base_offset))
        return _come_back("it overlaps batches of this producer that are in flight")

    # --- parking ----------------------------------------------------------------------------

    def _park(self, header: BatchHeader, now_ms: float) -> BatchVerdict:
        key = self._parking.add(header, now_ms)
        return _come_back("too much waits for earlier batches") if key is None else Parked(key)

    def unpark(self, queue_key: QueueKey, producer_id: ProducerId) -> ParkKey | None:
        """A parked request that can be judged again now, no longer parked; None if there is none.

        To be called until None after every accepted batch of that row and every fence of it.
        """
        if not self._parking.count:
            return None
        queue = self._queue(queue_key)
        row = None if queue is None else self._row(queue, producer_id)
        if row is None or not row.exists:
            return self._parking.take(queue_key, producer_id, None, (0, 0))
        return self._parking.take(queue_key, producer_id, row.last, (row.epoch, row.session))

    def expire_parked(self, now_ms: float) -> list[tuple[ParkKey, SemelError]]:
        """Requests that waited for `park_ms`, no longer parked, and what to answer them."""
        return [(key, self._give_up(key)) for key in self._parking.expire(now_ms)]

    def _give_up(self, key: ParkKey) -> SemelError:
        applied = self._state.producers.find(key.queue_key, key.producer_id)
        return OutOfOrderSequence(
            f"batch after {key.previous_sequence} of producer {key.producer_id} waited in vain for"
            " the one before it",
            last_sequence=applied.last_sequence if applied else NO_SEQUENCE,
        )

    # --- control records --------------------------------------------------------------------

    def judge_fence(self, record: control_pb2.Fence) -> ControlVerdict:
        """Whether an incarnation may take over its rows: on all of the queues, or on none."""
        producer_id = ProducerId(record.producer_id)
        if not 0 < producer_id < 1 << 63:
            return Refused(InvalidRequest(f"producer id {producer_id} is out of range"))
        chosen: dict[QueueKey, tuple[_SpecQueue, _SpecRow]] = {}
        for reference in record.queues:
            key = queue_key_of(reference)
            queue = self._queue(key)
            if queue is None:
                return Refused(unknown_queue(key))
            row = self._row(queue, producer_id)
            if not row.exists and not queue.may_open(producer_id, record.epoch):
                return Refused(_expired(queue, producer_id))
            if row.exists and (record.epoch, record.session) < (row.epoch, row.session):
                return Refused(_fenced(producer_id, record.epoch, record.session, row))
            chosen[key] = queue, row
        for _, row in chosen.values():
            row.exists = True
            row.epoch, row.session = record.epoch, record.session
        queues = tuple(queue for queue, _ in chosen.values())
        self._use(_Kind.FENCE, queues, tuple(row for _, row in chosen.values()))
        return Accepted()

    def judge_create_queue(self, record: control_pb2.CreateQueue) -> ControlVerdict:
        """Idempotent; refused only when malformed or just being deleted."""
        key = queue_key_of(record.queue)
        if not 0 <= record.slot_start < record.slot_end <= SLOTS or key.topic_id >> 63:
            return Refused(
                InvalidRequest(
                    f"queue {key} cannot own slots {record.slot_start} to {record.slot_end}"
                )
            )
        queue = self._queue(key)
        if queue is None:
            if key in self._queues:
                return _come_back("the queue is being deleted")
            settings = QueueSettings.from_message(record.settings)
            queue = _SpecQueue(key, 0, settings.batch_bytes_max)
        self._use(_Kind.CREATE, (queue,), ())
        return Accepted()

    def judge_delete_queue(self, record: control_pb2.DeleteQueue) -> ControlVerdict:
        """Idempotent; from now on the queue is unknown to everything judged."""
        key = queue_key_of(record.queue)
        queue = self._queues.get(key) or self._queue(key) or _SpecQueue(key, 0, 0)
        queue.deleted = True
        self._use(_Kind.DELETE, (queue,), ())
        return Accepted()

    def judge_alter_topic(self, record: control_pb2.AlterTopic) -> ControlVerdict:
        """Settings bind from the moment they are applied."""
        settings = QueueSettings.from_message(record.settings)
        if settings.retention_ms < -1 or settings.retention_bytes < -1:
            return Refused(InvalidRequest("retention is -1 (no limit) or a positive number"))
        return Accepted()

    def judge_trim(self, record: control_pb2.Trim) -> ControlVerdict:
        """A queue can be trimmed up to its end as it is applied."""
        key = queue_key_of(record.queue)
        queue = self._state.queues.get(key)
        if queue is None or self._queue(key) is None:
            return Refused(unknown_queue(key))
        if not 0 <= record.log_start_offset <= queue.log_end_offset:
            return Refused(
                OffsetOutOfRange(
                    f"queue {key.queue_id} cannot start at {record.log_start_offset}",
                    log_start_offset=queue.log_start_offset,
                    log_end_offset=queue.log_end_offset,
                )
            )
        return Accepted()

    def judge_expire(
        self, queue_key: QueueKey, *, now_us: int, idle_ms: int, rows_max: int
    ) -> control_pb2.ExpireProducers | None:
        """The record that ends a queue's idle and surplus rows, already counted on: append it.

        None when nothing is to do. Rows with something in flight are left alone.
        """
        queue = self._queue(queue_key)
        if queue is None:
            return None
        producers = self._state.producers
        found, _ = producers.expirable(queue_key, now_us, idle_ms, rows_max)
        rows = [self._row(queue, number) for number in found if number not in queue.rows]
        if not rows:
            return None
        floor = max(row.epoch for row in rows)
        queue.expired_epoch_floor = max(queue.expired_epoch_floor, floor)
        queue.expired_id_ceiling = max(queue.expired_id_ceiling, rows[-1].producer_id)
        for row in rows:
            row.exists, row.applied, row.last = False, None, NO_SEQUENCE
        self._use(_Kind.EXPIRE, (queue,), tuple(rows))
        record = control_pb2.ExpireProducers(
            producer_ids=[row.producer_id for row in rows], epoch_floor=floor
        )
        record.queue.topic_id, record.queue.queue_id = queue_key
        return record

    # --- the fold catches up ----------------------------------------------------------------

    def on_applied(self, results: Many[ApplyResult]) -> None:
        """Takes what a frame did out of the overlay; right after `State.apply_frame`."""
        for result in results:
            if isinstance(result, BatchApplied):
                done = self._next(_Kind.BATCH)
                batch = done.rows[0].in_flight.popleft()
                assert (done.queues[0].key, batch.base, batch.base_offset) == (
                    result.queue_key,
                    result.base_sequence,
                    result.base_offset,
                ), "batches are applied in the order in which they were judged"
            elif isinstance(result, FenceApplied):
                done = self._next(_Kind.FENCE)
                for queue, row in zip(done.queues, done.rows, strict=True):
                    row.applied = self._state.producers.find(queue.key, row.producer_id)
            elif isinstance(result, Done) and result.what in _DONE_KINDS:
                done = self._next(_DONE_KINDS[result.what])
            else:
                continue
            self._release(done)

    def _next(self, kind: _Kind) -> _Unapplied:
        assert self._unapplied, f"a {kind.value} was applied that this judge never accepted"
        done = self._unapplied.popleft()
        assert done.kind is kind, f"{kind.value} applied, {done.kind.value} was accepted before it"
        return done

    def _release(self, done: _Unapplied) -> None:
        """What nothing in flight uses any more is read from the applied state again."""
        several = len(done.queues) > 1
        for at, row in enumerate(done.rows):
            row.uses -= 1
            if not row.uses:
                queue = done.queues[at if several else 0]
                del queue.rows[row.producer_id]
                assert queue.deleted or self._agrees(queue, row), "overlay and state have parted"
        for queue in done.queues:
            queue.uses -= 1
            if not queue.uses:
                del self._queues[queue.key]

    def _agrees(self, queue: _SpecQueue, row: _SpecRow) -> bool:
        applied = self._state.producers.find(queue.key, row.producer_id)
        if applied is None or not row.exists:
            return applied is None and not row.exists
        return (applied.epoch, applied.session, applied.last_sequence) == (
            row.epoch,
            row.session,
            row.last,
        )


_DONE_KINDS: Final = {kind.value: kind for kind in (_Kind.CREATE, _Kind.DELETE, _Kind.EXPIRE)}


def batch_record_parts(
    batch: bytes | memoryview, *, base_offset: Offset, append_time_us: int, term: Term
) -> list[bytes | memoryview]:
    """The payload of a BATCH record in two parts: broker header, and the client's bytes as sent."""
    head = BrokerHeader(base_offset=base_offset, append_time_us=append_time_us, term=term)
    return [head.encode(), batch]


def _come_back(why: str) -> Refused:
    return Refused(Throttled(f"not judged: {why}; send again", retry_after_ms=RETRY_AFTER_MS))


def _incarnation_error(header: BatchHeader, queue: _SpecQueue, row: _SpecRow) -> SemelError:
    if row.exists and (header.epoch, header.session) < (row.epoch, row.session):
        return _fenced(header.producer_id, header.epoch, header.session, row)
    return _expired(queue, header.producer_id)


def _fenced(producer_id: int, epoch: int, session: int, row: _SpecRow) -> ProducerFenced:
    return ProducerFenced(
        f"producer {producer_id} of epoch {epoch}, session {session} was fenced by epoch"
        f" {row.epoch}, session {row.session}",
        current_epoch=row.epoch,
        current_session=row.session,
    )


def _expired(queue: _SpecQueue, producer_id: int) -> DedupStateExpired:
    return DedupStateExpired(
        f"queue {queue.key.queue_id} has no row for this incarnation of producer {producer_id};"
        f" fence it with an epoch above {queue.expired_epoch_floor}",
        epoch_floor=queue.expired_epoch_floor,
    )


def _out_of_order(header: BatchHeader, row: _SpecRow) -> OutOfOrderSequence:
    last = row.applied.last_sequence if row.applied else NO_SEQUENCE
    return OutOfOrderSequence(
        f"batch {header.base_sequence} to {header.last_sequence} of producer"
        f" {header.producer_id} names {header.previous_sequence} as its predecessor; queue"
        f" {header.queue_id} has stored up to {last}, and not this",
        last_sequence=Sequence(last),
    )
