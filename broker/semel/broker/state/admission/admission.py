"""The admission: the master's decision about each request, taken once, before it is proposed.

How it works. The admission sees the pending state: the applied state plus everything that is
accepted and not applied (`pending.py`). It decides about a request and notes it there, if it is
accepted, in one uninterrupted call. The caller appends the accepted records to the current
entry in the order of the decisions. `on_applied` removes them from the pending state when they are
applied.

An Admission lives only while its node is master. It is built when the no-op of its own term is
applied, so that the applied state holds everything older. It is dropped when the node steps down,
when unapplied entries may be lost, or when an accepted record could not be appended.

The checks of a batch come in this order: queue, row, incarnation, next in the chain, stored before,
in flight, sealed, limits (delivery time, size), gap, room in its second (`due_loads.py`). "Stored
before" precedes those after it because a retry whose first answer was lost must find its original,
and not an error about order, or about a split or a lower limit since then. For a staged batch the
order is: queue, stored before, given up, sealed, limits, room for staged bytes.

Invariants
1. A batch is accepted only if its `previous_sequence` is the last accepted sequence of its row:
   no batch is stored twice, and a lost batch is never answered as the duplicate of a later one.
2. Only an applied batch is answered with Duplicate. A final refusal never rests on an accepted
   batch that may still be lost: such a request waits (DuplicateInFlight), or is told to retry
   (Throttled).
3. A message that is certainly not stored is never answered with Duplicate: a batch that begins or
   ends in a gap between remembered batches is OutOfOrderSequence.
4. At most 64 batches of a row are in flight, so each of them can still be found in the window.
5. A queue whose split is accepted accepts nothing more, and only an applied split is answered with
   QueueSealed: a request that gets this answer is not stored in the queue and never will be.
6. Whether a batch is delayed follows from its header alone. A release is chosen from the applied
   state, with one release of a queue in flight at a time, so nothing in flight changes the choice.
7. Whatever an accepted, unapplied record makes belongs to that record alone: a second record about
   the same name is told to retry (`pending.py`). So every accepted record can be applied, and
   apply never has to choose.
8. A queue that a move has sealed does not change, and no final answer contradicts its table: a new
   request is told to retry, and is answered here or at the new broker group.

Not here: decisions about queues (`queue_admission.py`), staged batches and transactions
(`transaction_admission.py`), delays (`delay_admission.py`), cancellations (`cancel_admission.py`),
parked batches and their order (`parking.py`), locks and commits (decided at apply).
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from functools import partial
from typing import Final

from semel.broker.state.admission.batch_limits import batch_refusal, staging_refusal
from semel.broker.state.admission.cancel_admission import admit_cancel
from semel.broker.state.admission.decisions import (
    NO_OFFSET,
    Accepted,
    BatchDecision,
    BatchKey,
    CheckedBatch,
    ControlDecision,
    Duplicate,
    DuplicateInFlight,
    LookUpIds,
    Parked,
    ParkKey,
    Refused,
    expired,
    fenced,
    out_of_order,
    retry_later,
)
from semel.broker.state.admission.delay_admission import propose_release
from semel.broker.state.admission.id_admission import CheckedIds, IdAdmission
from semel.broker.state.admission.parking import Parking
from semel.broker.state.admission.pending import (
    InFlight,
    PendingQueue,
    PendingRow,
    PendingState,
    RecordUse,
)
from semel.broker.state.admission.queue_admission import QueueAdmission
from semel.broker.state.admission.transaction_admission import (
    KeptBatch,
    TransactionIds,
    admit_step,
    find_staged,
    forget_before,
    no_room_to_stage,
)
from semel.broker.state.apply.delays import RELEASE_BATCHES_MAX
from semel.broker.state.apply.parted import held_before
from semel.broker.state.apply.results import ApplyResult, Staged
from semel.broker.state.apply.rows import WINDOW_BATCHES, OutcomeKind
from semel.broker.state.apply.state_machine import State
from semel.protos.batch import BROKER_HEADER_BYTES, BatchHeader, BrokerHeader
from semel.protos.delays import is_delayed
from semel.protos.errors import (
    DelayThrottled,
    InvalidRequest,
    MessageTooLarge,
    OutOfOrderSequence,
    PartialOverlap,
    SemelError,
    SequenceConflict,
)
from semel.protos.ids import (
    NO_SEQUENCE,
    Offset,
    ProducerId,
    QueueKey,
    Term,
)
from semel.protos.queue_refs import queue_key_of, queue_ref
from semel.protos.staging import STAGER_ID_MIN
from semel.protos.v1 import control_pb2, transaction_records_pb2

IN_FLIGHT_BATCHES_MAX: Final = WINDOW_BATCHES
EXPIRED_ROWS_MAX: Final = 4_096
"""One record ends at most this many rows, so that it fits into an entry and is applied quickly."""


class Admission:
    """The decisions of one master in one term. Asserts that the no-op of the term is applied."""

    def __init__(
        self,
        state: State,
        *,
        term: Term,
        park_ms: int = 2_000,
        park_bytes_max: int = 32 << 20,
        staged_bytes_max: int = 1 << 40,
        stagers_max: int = 100_000,
        transactions_max: int = 100_000,
        producers_max: int = 100_000,
    ) -> None:
        assert state.applied_term == term, f"term {term} begins, {state.applied_term} is applied"
        self._state = state
        self._pending = PendingState(state)
        self.dues = self._pending.dues
        self.ids = IdAdmission(state, self._pending)
        self.queues = QueueAdmission(state, self._pending, self.ids)
        self._parking = Parking(park_ms=park_ms, bytes_max=park_bytes_max)
        self._staged_bytes_max = staged_bytes_max
        self._stagers_max = stagers_max
        self._transactions_max = transactions_max
        self.producers_max = producers_max
        self._staging_bytes = 0
        """Bytes of staged batches that are accepted and not applied."""

    @property
    def parked_count(self) -> int:
        """How many batches wait for their predecessor."""
        return self._parking.count

    @property
    def parked_bytes(self) -> int:
        """Total bytes of the parked batches."""
        return self._parking.bytes

    # --- batches ----------------------------------------------------------------------------

    def admit_batch(
        self,
        header: BatchHeader,
        now_ms: float,
        *,
        time_us: int,
        entry: int = 0,
        ids: CheckedIds | None = None,
    ) -> BatchDecision:
        """Decides about a batch that passed `check_batch`. If Accepted, append it now.

        `now_ms` is the monotonic time, from which a parked batch waits; `time_us` is the log time
        of the entry that the batch would be part of, and `entry` its index. `ids` are its message
        ids, looked up; without them a batch of a topic that compares ids is not decided
        (LookUpIds), unless it is no new one.
        """
        key = header.queue_key
        queue = self._pending.queue(key)
        if queue is None:
            return Refused(self._state.absent(key))
        row = self._pending.row(queue, header.producer_id)
        if not row.exists or header.epoch != row.epoch or header.session != row.session:
            return Refused(_incarnation_error(header, queue, row))
        if header.previous_sequence == row.last:
            refused = self._not_taken(header, queue, time_us)
            return refused or self._accept(header, queue, row, ids, entry)
        return self._decide_unchained(header, queue, row, now_ms, time_us)

    def find_stored(self, header: BatchHeader) -> Duplicate | None:
        """The answer to a batch that is stored and applied already; None for every other batch.

        It accepts nothing, so it may be asked while nothing can be appended.
        """
        found: BatchDecision | None = None
        if header.producer_id >= STAGER_ID_MIN:
            applied = self._state.queues.get(header.queue_key)
            if applied is not None:
                found = find_staged(self._state.transactions, header, applied)
        else:
            queue = self._pending.queue(header.queue_key)
            row = None if queue is None else self._pending.row(queue, header.producer_id)
            if row is None or (header.epoch, header.session) != (row.epoch, row.session):
                return None
            found = self._decide_from_applied(header, row)
        return found if isinstance(found, Duplicate) else None

    def _not_taken(self, header: BatchHeader, queue: PendingQueue, time_us: int) -> Refused | None:
        """Refuses a batch that is not stored if the queue has ended or a limit forbids the batch;
        None if neither is so."""
        return self.queues.ended(queue) or batch_refusal(
            header,
            bytes_max=self._pending.batch_bytes_max(queue),
            level=self._state.feature_level,
            time_us=time_us,
            in_memory=queue.in_memory,
        )

    def in_memory(self, key: QueueKey) -> bool:
        """Whether the log gets only the headers of a queue's batches."""
        queue = self._pending.queue(key)
        return queue is not None and queue.in_memory

    def _accept(
        self,
        header: BatchHeader,
        queue: PendingQueue,
        row: PendingRow,
        ids: CheckedIds | None,
        entry: int = 0,
    ) -> BatchDecision:
        if len(row.in_flight) >= IN_FLIGHT_BATCHES_MAX:
            return retry_later(f"{len(row.in_flight)} batches of this producer are in flight")
        if (unsettled := self.ids.unsettled(header.topic_id)) is not None:
            return unsettled
        base, last, offset = header.base_sequence, header.last_sequence, queue.log_end_offset
        count, delayed = header.count, is_delayed(header)
        checked: CheckedBatch | None = None
        window = self.ids.window(header.topic_id)
        compared = window is not None and count > 0
        admit = partial(self.dues.check, queue.key, header.deliver_at_us) if delayed else None
        try:
            if window is not None and ids is not None and compared:
                checked = self.ids.decide(header, window, ids, offset, entry, admit)
            elif admit is not None and not compared:
                admit(count)
        except (MessageTooLarge, DelayThrottled) as error:
            return Refused(error)
        if compared:
            if checked is None:
                return LookUpIds()
            count = checked.decision.count
        in_flight = InFlight(base, last, header.count, header.content_crc, offset)
        if delayed and count:
            offset = NO_OFFSET
            queue.delaying += 1
            length = header.batch_length if checked is None else len(checked.decision.batch)
            load = header.deliver_at_us, count, BROKER_HEADER_BYTES + length
            self.dues.use(queue.key, *load)
            in_flight = InFlight(*in_flight[:4], offset, *load)
        else:
            queue.log_end_offset = offset + count
        row.in_flight.append(in_flight)
        row.last = last
        self._pending.use(RecordUse.BATCH, (queue,), (row,))
        return Accepted(Offset(offset), checked)

    def _decide_unchained(
        self,
        header: BatchHeader,
        queue: PendingQueue,
        row: PendingRow,
        now_ms: float,
        time_us: int,
    ) -> BatchDecision:
        """A batch that does not follow the last one: stored, in flight, too early, or wrong."""
        decision = self._decide_from_applied(header, row)
        if decision is not None:
            return decision
        if header.base_sequence <= row.last:
            return self._decide_in_flight(header, row)
        if (refused := self._not_taken(header, queue, time_us)) is not None:
            return refused
        if header.previous_sequence > row.last:
            return self._park(header, now_ms)
        if row.in_flight:
            return retry_later("batches of this producer are in flight")
        return Refused(out_of_order(header, row))

    def _decide_from_applied(self, header: BatchHeader, row: PendingRow) -> BatchDecision | None:
        """The decision if the applied row alone determines it; else None."""
        applied = row.applied
        if applied is None or header.base_sequence > applied.last_sequence:
            return None
        base, last = header.base_sequence, header.last_sequence
        entry = applied.find(base)
        if (
            entry is not None
            and not entry.inherited
            and (entry.base_sequence, entry.last_sequence, entry.sent) == (base, last, header.count)
        ):
            if entry.content_crc == header.content_crc:
                return Duplicate(entry.base_offset, entry.dropped)
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
            return Refused(out_of_order(header, row))
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
            return Refused(out_of_order(header, row))
        return Duplicate(Offset(first.offset))

    def _decide_in_flight(self, header: BatchHeader, row: PendingRow) -> BatchDecision:
        """A batch that overlaps accepted batches which may still be lost."""
        wanted = (header.base_sequence, header.last_sequence, header.count, header.content_crc)
        for batch in row.in_flight:
            if batch[:4] == wanted:
                after = BatchKey(header.queue_key, header.producer_id, header.base_sequence)
                return DuplicateInFlight(after, Offset(batch.base_offset))
        return retry_later("it overlaps batches of this producer that are in flight")

    # --- parking ----------------------------------------------------------------------------

    def _park(self, header: BatchHeader, now_ms: float) -> BatchDecision:
        key = self._parking.add(header, now_ms)
        return retry_later("too much waits for earlier batches") if key is None else Parked(key)

    def unpark(self, queue_key: QueueKey, producer_id: ProducerId) -> ParkKey | None:
        """Removes a parked batch that can be decided again now; None if there is none.

        Call it until it returns None after every accepted batch and every fence of the row.
        """
        if not self._parking.count:
            return None
        queue = self._pending.queue(queue_key)
        row = None if queue is None else self._pending.row(queue, producer_id)
        if row is None or not row.exists:
            return self._parking.take(queue_key, producer_id, None, (0, 0))
        return self._parking.take(queue_key, producer_id, row.last, (row.epoch, row.session))

    def has_overdue(self, now_ms: float) -> bool:
        """Whether any batch was parked for `park_ms`."""
        return self._parking.has_overdue(now_ms)

    def expire_parked(self, now_ms: float) -> list[tuple[ParkKey, SemelError]]:
        """Removes the batches that were parked for `park_ms`, and returns their errors.

        The errors are final: call it once a quorum has confirmed that this node was still the
        master at `now_ms`.
        """
        return [(key, self._give_up(key)) for key in self._parking.expire(now_ms)]

    def _give_up(self, key: ParkKey) -> SemelError:
        applied = self._state.producers.find(key.queue_key, key.producer_id)
        return OutOfOrderSequence(
            f"batch after {key.previous_sequence} of producer {key.producer_id} waited for its"
            " predecessor, which did not come in time",
            last_sequence=applied.last_sequence if applied else NO_SEQUENCE,
        )

    # --- control records --------------------------------------------------------------------

    def admit_fence(self, record: control_pb2.Fence) -> ControlDecision:
        """Lets an incarnation take over its rows on all queues of the record, or on none."""
        producer_id = ProducerId(record.producer_id)
        if not 0 < producer_id < 1 << 63:
            return Refused(InvalidRequest(f"producer id {producer_id} is out of range"))
        chosen: dict[QueueKey, tuple[PendingQueue, PendingRow]] = {}
        for reference in record.queues:
            key = queue_key_of(reference)
            queue = self._pending.queue(key)
            if queue is None:
                return Refused(self._state.absent(key))
            row = self._pending.row(queue, producer_id)
            if not row.exists and not queue.expired.may_open(
                producer_id, record.epoch, after_expiry=record.after_expiry
            ):
                return Refused(expired(queue, producer_id))
            if row.exists and (record.epoch, record.session) < (row.epoch, row.session):
                return Refused(fenced(producer_id, record.epoch, record.session, row))
            if (
                row.exists
                and record.epoch > row.epoch
                and row.last == NO_SEQUENCE
                and not record.after_expiry
                and queue.expired.may_have_stored(producer_id)
            ):
                # An earlier run accepted the expiry, got an empty row and ended. This one does not
                # know, and would believe that nothing was ever stored.
                return Refused(expired(queue, producer_id))
            ended = self.queues.ended(queue)
            asks = row.exists and record.epoch == row.epoch and self.queues.sealed(key) is not None
            if ended is not None and not asks:
                # A new incarnation has nothing to write here. Once the split is applied, the
                # incarnation of the row may still ask what became of its batches.
                return ended
            chosen[key] = queue, row
        for _, row in chosen.values():
            row.exists = True
            row.epoch, row.session = record.epoch, record.session
        queues = tuple(queue for queue, _ in chosen.values())
        self._pending.use(RecordUse.FENCE, queues, tuple(row for _, row in chosen.values()))
        return Accepted()

    def admit_staged(self, header: BatchHeader, *, time_us: int) -> BatchDecision:
        """Decides what is certain of a stager's batch; apply decides the rest.

        If Accepted, append it as STAGED. `time_us` is the log time of its entry.
        """
        queue = self._state.queues.get(header.queue_key)
        if queue is None:
            return Refused(self._state.absent(header.queue_key))
        transactions = self._state.transactions
        if (certain := find_staged(transactions, header, queue)) is not None:
            return certain
        if (unsettled := self.ids.changing(header.topic_id)) is not None:
            return unsettled
        if queue.frozen:
            return retry_later("the queue is sealed by a move")
        room = self._staged_bytes_max - self._staging_bytes - transactions.staging.bytes
        refused = batch_refusal(
            header,
            bytes_max=queue.settings.batch_bytes_max,
            level=self._state.feature_level,
            time_us=time_us,
        ) or no_room_to_stage(header, room)
        if refused is not None:
            return refused
        self._staging_bytes += header.stored_length
        return Accepted()

    def admit_transaction(
        self,
        step: transaction_records_pb2.TransactionRecord,
        looked_up: TransactionIds | None = None,
        kept: list[KeptBatch] | None = None,
        entry: int = 0,
    ) -> ControlDecision | LookUpIds:
        """Most steps are decided at apply; a publication gets its offsets here.

        `looked_up` has the pinned batches of topics that compare message ids; `kept` gets what is
        kept of those of which messages are dropped, to be appended in front of the record, in that
        order. `entry` is the index of the entry.
        """
        state = self._state
        for reference in step.open_stager.queues:
            key = queue_key_of(reference)
            queue = state.queues.get(key)
            if (barred := state.moves.barred(key, queue) or staging_refusal(queue)) is not None:
                return Refused(barred)
        return admit_step(
            state.transactions,
            self._pending,
            state.feature_level,
            step,
            ids=self.ids,
            looked_up=TransactionIds() if looked_up is None else looked_up,
            kept=[] if kept is None else kept,
            entry=entry,
            stagers_max=self._stagers_max,
            rows_max=self._transactions_max,
        )

    def forget_before(
        self, step: transaction_records_pb2.TransactionRecord
    ) -> transaction_records_pb2.TransactionRecord | None:
        """The step to append before this one, already pending; None if there is none.

        Ask before `admit_transaction` decides about the step itself.
        """
        return forget_before(
            self._state.transactions, self._pending, step, rows_max=self._transactions_max
        )

    def is_full(self, queue_key: QueueKey) -> bool:
        """Whether the queue has too many producers' rows, so `propose_expiry` must end some."""
        return self._state.producers.count(queue_key) > self.producers_max

    def admit_delete_group(self, record: control_pb2.DeleteGroup) -> ControlDecision:
        """Refused while the slice of a sealed queue is sent: the group would come back with it.

        The caller has to notice earlier and later moves by the digest of moves in the answer.
        """
        if self._pending.sealing or self._state.moves.settling:
            return retry_later(f"a queue moves, perhaps with offsets of {record.group!r}")
        return Accepted()

    def admit_feature_level(self, record: control_pb2.FeatureLevel) -> ControlDecision:
        """The caller has made sure that every member knows the rules of the level."""
        if record.level > self._state.level_max:
            return Refused(
                InvalidRequest(
                    f"feature level {record.level} is not known here, only {self._state.level_max}"
                )
            )
        return Accepted()

    def propose_expiry(
        self, queue_key: QueueKey, *, now_us: int, idle_ms: int, rows_max: int, spare_ms: int = 0
    ) -> control_pb2.ExpireProducers | None:
        """The record that ends a queue's idle and surplus rows, already pending: append it.

        None if there are none. Rows with a record in flight stay. If there are more than
        `EXPIRED_ROWS_MAX`, the next call ends the rest.
        """
        queue = self._pending.queue(queue_key)
        if queue is None or self.queues.moving(queue) is not None:
            return None
        producers = self._state.producers
        found = producers.expirable(queue_key, now_us, idle_ms, rows_max, spare_ms)
        idle = [number for number in found if number not in queue.rows][:EXPIRED_ROWS_MAX]
        rows = [self._pending.row(queue, number) for number in idle]
        if not rows:
            return None
        queue.expired = queue.expired.copy()
        for row in rows:
            queue.expired.add(row.producer_id, row.epoch, stored=row.last >= 0)
            row.exists, row.applied, row.last = False, None, NO_SEQUENCE
        self._pending.use(RecordUse.EXPIRE, (queue,), tuple(rows))
        return control_pb2.ExpireProducers(
            queue=queue_ref(queue_key), producer_ids=[row.producer_id for row in rows]
        )

    def propose_release(
        self, queue_key: QueueKey, *, now_us: int, batches_max: int = RELEASE_BATCHES_MAX
    ) -> control_pb2.ReleaseDelayed | None:
        """The record that releases due delayed batches, already pending: append it.

        Its entry must have the time `now_us`. None if nothing is due or can be released now.
        """
        queue = self._pending.queue(queue_key)
        if queue is None or self.queues.ended(queue) is not None:
            return None
        state, applied = self._state, self._state.queues.get(queue_key)
        before = None if applied is None else held_before(state.queues, state.delays, applied)
        return propose_release(state.delays, self._pending, queue, now_us, batches_max, before)

    def admit_cancel(self, record: control_pb2.CancelDelayed, *, time_us: int) -> ControlDecision:
        """Takes a message out of a delayed batch; `time_us` is the log time of the entry."""
        key = queue_key_of(record.queue)
        queue = self._pending.queue(key)
        if queue is None:
            return Refused(self._state.absent(key))
        return self.queues.bars_cancel(queue) or admit_cancel(
            self._state.delays, self._pending, self.ids, queue, record, time_us
        )

    def append_time_us(self, queue_key: QueueKey, time_us: int) -> int:
        """The append time of a batch that was just accepted for an entry of `time_us`.

        See `QueueState.append_time_us`. It is the time of the entry if the creation of the queue
        is not applied yet.
        """
        queue = self._state.queues.get(queue_key)
        return time_us if queue is None else queue.append_time_us(time_us)

    # --- applied entries --------------------------------------------------------------------

    def on_applied(self, results: Many[ApplyResult]) -> None:
        """Ends the uses of the records of a frame; call it right after `State.apply_frame`."""
        self._pending.on_applied(results)
        self.ids.on_applied(results)
        for result in results:
            if isinstance(result, Staged):
                self._staging_bytes -= result.length


def batch_record_parts(
    batch: bytes | memoryview, *, base_offset: Offset, append_time_us: int, term: Term
) -> list[bytes | memoryview]:
    """The payload of a BATCH record in two parts: broker header, and the client's bytes as sent."""
    head = BrokerHeader(base_offset=base_offset, append_time_us=append_time_us, term=term)
    return [head.encode(), batch]


def _incarnation_error(header: BatchHeader, queue: PendingQueue, row: PendingRow) -> SemelError:
    if row.exists and (header.epoch, header.session) < (row.epoch, row.session):
        return fenced(header.producer_id, header.epoch, header.session, row)
    return expired(queue, header.producer_id)
