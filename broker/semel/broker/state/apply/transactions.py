"""Transactions in the replicated state: the fold of their records, and the judge's part.

How it works. Nearly every step is granted or refused at apply, like locks, so that retries and
races need no overlay: the order of the log decides. PUBLISH alone is decided by the judge, as it
gives out offsets; the fold checks it and halts on a mismatch. A PIN in flight keeps the judge from
splitting queues, and something pinned does, too: so what is pinned can always be published.

Invariants
1. A publication takes all of a pin or nothing, in one record: what is due later is delayed by it.
2. A queue is never split while something is pinned for it.

Not here: the rules of stagers and pins (`staging.py`) and of the coordinator (`coordination.py`);
who asks whom (`semel.broker.background.transactions`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from semel.broker.state.admission.decisions import (
    Accepted,
    BatchVerdict,
    ControlVerdict,
    Duplicate,
    Refused,
)
from semel.broker.state.apply.codec import Reader
from semel.broker.state.apply.coordination import Begun, Coordination
from semel.broker.state.apply.delays import Delays
from semel.broker.state.apply.queues import QueueState
from semel.broker.state.apply.results import (
    ApplyResult,
    Published,
    PublishedPart,
    Staged,
    StateDiverged,
    TransactionApplied,
)
from semel.broker.state.apply.splits import sealed_error
from semel.broker.state.apply.staging import StagedExtent, Staging
from semel.protos.batch import BROKER_HEADER_BYTES, BatchHeader, decode_header
from semel.protos.delays import is_delayed
from semel.protos.errors import (
    MessageTooLarge,
    SemelError,
    Throttled,
    TransactionAborted,
    UnknownQueue,
    UnsupportedVersion,
)
from semel.protos.ids import Offset, QueueKey
from semel.protos.levels import DELAY_LEVEL, TRANSACTION_LEVEL, lacking
from semel.protos.queue_refs import queue_key_of, queue_ref
from semel.protos.v1 import transaction_records_pb2

if TYPE_CHECKING:
    from semel.broker.state.admission.pending import Spec

RETRY_MS: Final = 20
FULL_RETRY_MS: Final = 500
FORGET_MAX: Final = 1_000
"""One record forgets at most so many transaction ids."""

Step = transaction_records_pb2.TransactionRecord
Queues = dict[QueueKey, QueueState]


class Transactions:
    """The part of the replicated state that transactions have."""

    __slots__ = ("coordination", "staging")

    def __init__(self) -> None:
        self.staging = Staging()
        self.coordination = Coordination()

    # --- the fold ---------------------------------------------------------------------------

    def stage(
        self,
        payload: memoryview,
        queues: Queues,
        index: int,
        position: int,
        now_us: int,
        level: int,
    ) -> Staged:
        """A STAGED record. Raises CorruptBatch."""
        batch = decode_header(payload, BROKER_HEADER_BYTES)
        length = len(payload)
        found = self.staging.check(batch, queues.get(batch.queue_key))
        if found is False:
            due_us = batch.deliver_at_us if level >= DELAY_LEVEL and is_delayed(batch) else 0
            self.staging.add(batch, index, position, length, now_us, due_us)
        return Staged(
            queue_key=batch.queue_key,
            length=length,
            duplicate=found is True,
            error=found if isinstance(found, SemelError) else None,
        )

    def apply(
        self, step: Step, queues: Queues, delays: Delays, index: int, now_us: int, level: int
    ) -> ApplyResult:
        """A step that a control record holds. Raises StateDiverged."""
        name = step.WhichOneof("step")
        staging, coordination = self.staging, self.coordination
        error: SemelError | None = None
        value: tuple[int, ...] = ()
        match name:
            case "open_stager":
                opened = staging.open(
                    step.open_stager, map(queue_key_of, step.open_stager.queues), queues, now_us
                )
                error, value = _split(opened)
            case "pin":
                error = staging.pin(step.pin, queues, now_us, level)
            case "publish":
                return self._publish(step.publish, queues, delays, index, now_us)
            case "drop_pin":
                staging.drop_pin(step.drop_pin.transaction_id, step.drop_pin.attempt)
            case "drop_stagers":
                limit_us = now_us if step.drop_stagers.expired_only else None
                numbers = step.drop_stagers.stager_ids
                value = (staging.drop_stagers(numbers, expired_before_us=limit_us),)
            case "begin":
                error, value = _split(coordination.begin(step.begin, now_us))
            case "decide":
                error = coordination.decide(step.decide, now_us)
            case "abort":
                value = (int(coordination.abort(step.abort, now_us)),)
            case "finish":
                coordination.finish(step.finish)
            case "forget":
                coordination.forget(step.forget.transaction_ids)
            case _:
                raise StateDiverged(
                    f"entry {index} has a step of a transaction that this version does not know;"
                    " upgrade this node"
                )
        return TransactionApplied(step=name, error=error, value=value)

    def _publish(
        self,
        record: transaction_records_pb2.PublishTransaction,
        queues: Queues,
        delays: Delays,
        index: int,
        now_us: int,
    ) -> Published:
        pin = self.staging.pin_of(record.transaction_id, record.attempt)
        found = {} if pin is None else self.staging.pinned_extents(pin)
        parts = tuple(
            PublishedPart(queue_key_of(part.queue), part.base_offset, part.messages)
            for part in record.parts
        )
        expected = tuple(
            PublishedPart(key, queues[key].log_end_offset, _messages_at_once(extents))
            for key, extents in found.items()
        )
        if (
            pin is None
            or pin.epoch != record.epoch
            or parts != expected
            or any(queues[key].sealed for key in found)
        ):
            raise StateDiverged(
                f"entry {index} publishes {parts} of transaction {record.transaction_id!r}; pinned"
                f" is {pin} with {expected}"
            )
        for key, extents in found.items():
            queue = queues[key]
            append_time_us = queue.append_time_us(now_us)
            for entry, position, length, messages, _, _, due_us in extents:
                if due_us:
                    delays.add(key, due_us, entry, position, length, messages)
                else:
                    queue.append(messages, entry, position, length, append_time_us)
        self.staging.drop_pin(record.transaction_id, record.attempt)
        return Published(transaction_id=record.transaction_id, attempt=record.attempt, parts=parts)

    # --- canonical bytes --------------------------------------------------------------------

    def parts(self, *, dues: bool) -> list[bytes]:
        """Canonical bytes: staging, then coordination; with due times from version 5 on."""
        return [*self.staging.parts(dues=dues), *self.coordination.parts()]

    @classmethod
    def read_parts(cls, reader: Reader, *, dues: bool) -> Transactions:
        """The inverse of `parts`. Raises CorruptSegment."""
        made = cls()
        made.staging = Staging.read_parts(reader, dues=dues)
        made.coordination = Coordination.read_parts(reader)
        return made


# --- the judge's part ---------------------------------------------------------------------------


def judge_staged(
    transactions: Transactions,
    batch: BatchHeader,
    queue: QueueState | None,
    *,
    room_bytes: int,
) -> BatchVerdict:
    """What is certain about a staged batch before it is proposed; the fold decides the rest."""
    key = batch.queue_key
    if queue is None:
        return Refused(UnknownQueue(f"queue {key.queue_id} of topic {key.topic_id} is not here"))
    if batch.batch_length > queue.settings.batch_bytes_max:
        limit = queue.settings.batch_bytes_max
        return Refused(
            MessageTooLarge(
                f"batch of {batch.batch_length} bytes; queue {key.queue_id} takes {limit}",
                limit_bytes=limit,
            )
        )
    found = transactions.staging.check(batch, queue)
    if found is True:
        return Duplicate(Offset(-1))
    if isinstance(found, TransactionAborted):
        return Refused(found)
    if queue.sealed and found is not False:
        return Refused(sealed_error(queue))
    if batch.batch_length > room_bytes:
        return _full("what they have staged")
    return Accepted()


def judge_step(
    transactions: Transactions,
    spec: Spec,
    level: int,
    step: Step,
    *,
    stagers_max: int,
    rows_max: int,
) -> ControlVerdict:
    """Whether a step may be proposed. A publication gets its offsets here, into the record."""
    if level < TRANSACTION_LEVEL:
        return Refused(lacking(TRANSACTION_LEVEL, level, "the broker group"))
    match step.WhichOneof("step"):
        case "open_stager":
            stagers = transactions.staging.stagers
            if (
                step.open_stager.stager_id not in stagers
                and len(stagers) + spec.opening >= stagers_max
            ):
                return _full(f"{stagers_max:,} stagers")
            spec.use_stager()
        case "begin" if _is_new(transactions, step) and _rows(transactions, spec) >= rows_max:
            return _full(f"{rows_max:,} ids, and none of them can be forgotten")
        case "finish" if _is_pinned(transactions, step.finish):
            return Refused(
                Throttled(
                    f"epoch {step.finish.epoch} of transaction {step.finish.transaction_id!r} is"
                    " not published here yet",
                    retry_after_ms=RETRY_MS,
                )
            )
        case "begin" | "decide" | "abort" | "finish" as name:
            spec.use_coordinator(name, (getattr(step, name).transaction_id,))
        case "forget":
            spec.use_coordinator("forget", step.forget.transaction_ids)
        case "pin":
            spec.use_pin("pin", step.pin.transaction_id)
        case "drop_pin":
            spec.use_pin("drop_pin", step.drop_pin.transaction_id)
        case "publish":
            record = step.publish
            pin = transactions.staging.pin_of(record.transaction_id, record.attempt)
            if pin is None or pin.epoch != record.epoch:
                return Refused(
                    TransactionAborted(
                        f"attempt {record.attempt} at epoch {record.epoch} of transaction"
                        f" {record.transaction_id!r} is not pinned here (any more)"
                    )
                )
            if spec.changes_pin(record.transaction_id):
                return Refused(
                    Throttled(
                        f"not judged: transaction {record.transaction_id!r} is being pinned,"
                        " published or dropped here; ask again",
                        retry_after_ms=RETRY_MS,
                    )
                )
            del record.parts[:]
            queues = []
            for key, extents in transactions.staging.pinned_extents(pin).items():
                queue = spec.queue(key)
                if queue is None:
                    continue  # its end is accepted, and comes first
                assert not queue.splitting, "a queue is not split while something is pinned for it"
                messages = _messages_at_once(extents)
                record.parts.add(
                    queue=queue_ref(key),
                    base_offset=queue.log_end_offset,
                    messages=messages,
                )
                queue.log_end_offset += messages
                queues.append(queue)
            spec.use_pin("publish", record.transaction_id, tuple(queues))
        case None:
            return Refused(
                UnsupportedVersion("this version does not know that step of a transaction")
            )
    return Accepted()


def judge_room(transactions: Transactions, spec: Spec, step: Step, *, rows_max: int) -> Step | None:
    """What has to be forgotten before an id may be begun that is new here; already counted on:
    append it first. None when there is room, and for any other step."""
    if not _is_new(transactions, step) or _rows(transactions, spec) < rows_max:
        return None
    surplus = _rows(transactions, spec) + 1 - rows_max
    names = transactions.coordination.oldest(min(surplus, FORGET_MAX), _Busy(spec))
    if not names:
        return None
    spec.use_coordinator("forget", names)
    return Step(forget=transaction_records_pb2.ForgetTransactions(transaction_ids=names))


def _is_new(transactions: Transactions, step: Step) -> bool:
    """Somebody begins under an id that the coordinator does not know."""
    rows = transactions.coordination.rows
    return step.HasField("begin") and step.begin.transaction_id not in rows


def _is_pinned(
    transactions: Transactions, finish: transaction_records_pb2.FinishTransaction
) -> bool:
    """This group is a participant itself, and has not published. Only the log can tell of others:
    `semel.broker.background.transactions` asks them first."""
    row = transactions.coordination.rows.get(finish.transaction_id)
    if row is None or row.epoch != finish.epoch:
        return False
    return transactions.staging.pin_of(finish.transaction_id, row.decided_attempt) is not None


def _rows(transactions: Transactions, spec: Spec) -> int:
    """The coordinator's rows, once all that is accepted is applied."""
    return len(transactions.coordination.rows) + spec.rows_coming()


class _Busy:
    """Transactions whose rows something in flight changes."""

    def __init__(self, spec: Spec) -> None:
        self._spec = spec

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._spec.coordinates(name)


def _full(of: str) -> Refused:
    return Refused(
        Throttled(
            f"the broker group's limit for transactions is reached: {of}; it goes on when some of"
            " them end",
            retry_after_ms=FULL_RETRY_MS,
        )
    )


def _messages_at_once(extents: Iterable[StagedExtent]) -> int:
    """What gets offsets with the publication; the rest is due later."""
    return sum(extent.messages for extent in extents if not extent.due_us)


def _split(
    found: Begun | tuple[int, ...] | SemelError,
) -> tuple[SemelError | None, tuple[int, ...]]:
    return (found, ()) if isinstance(found, SemelError) else (None, tuple(found))
