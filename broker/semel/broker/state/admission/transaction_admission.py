"""The master's decisions about transactions: staged batches, steps, and offsets of publications.

How it works. Most steps are granted or refused at apply. The master admits them unless a limit is
reached, and notes them in the pending state. A publication gives out offsets, so it is decided
here.

Not here: how the steps are applied (`state/apply/transactions.py`), the calls between broker groups
(`semel.broker.background.transaction_work`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from semel.broker.state.admission.decisions import (
    NO_OFFSET,
    Accepted,
    CheckedBatch,
    ControlDecision,
    Duplicate,
    LookUpIds,
    Refused,
)
from semel.broker.state.admission.id_admission import CheckedIds, IdAdmission
from semel.broker.state.admission.pending import PendingState
from semel.broker.state.apply.queues import QueueState
from semel.broker.state.apply.splits import sealed_error
from semel.broker.state.apply.transactions import Step, Transactions, messages_at_once
from semel.protos.batch import BatchHeader
from semel.protos.errors import (
    Throttled,
    TransactionAborted,
    UnsupportedVersion,
)
from semel.protos.ids import Offset, QueueKey
from semel.protos.levels import TRANSACTION_LEVEL, lacking
from semel.protos.queue_refs import queue_ref
from semel.protos.v1 import transaction_records_pb2

RETRY_MS: Final = 20
FULL_RETRY_MS: Final = 500
FORGET_MAX: Final = 1_000
"""One record forgets at most this many transaction ids."""


class StagedIds(NamedTuple):
    """A pinned batch whose message ids were looked up."""

    header: BatchHeader
    ids: CheckedIds


LookedUpBatches = Mapping[tuple[int, int], StagedIds | None]
"""Pinned batches of topics that compare ids, by index and position of their records; None for one
without ids."""


class KeptBatch(NamedTuple):
    """What a publication keeps of a staged batch with message ids."""

    checked: CheckedBatch
    queue_key: QueueKey
    base_offset: Offset
    """-1 if it is delayed."""


def find_staged(
    transactions: Transactions, batch: BatchHeader, queue: QueueState
) -> Duplicate | Refused | None:
    """The decision about a staged batch if the applied state makes it certain; else None.

    Duplicate if it is stored, whatever has changed since. Refused if its stager is gone, or if it
    is not stored and the queue is split.
    """
    found = transactions.staging.check(batch, queue)
    if found is True:
        return Duplicate(Offset(-1))
    if isinstance(found, TransactionAborted):
        return Refused(found)
    if queue.sealed and found is not False:
        return Refused(sealed_error(queue))
    return None


def no_room_to_stage(batch: BatchHeader, room_bytes: int) -> Refused | None:
    """Refuses a batch, for now, that is larger than the room for staged bytes; None if it fits."""
    return _full("staged bytes") if batch.batch_length > room_bytes else None


def admit_step(
    transactions: Transactions,
    pending: PendingState,
    level: int,
    step: Step,
    *,
    ids: IdAdmission,
    looked_up: LookedUpBatches,
    kept: list[KeptBatch],
    entry: int,
    stagers_max: int,
    rows_max: int,
) -> ControlDecision | LookUpIds:
    """Whether a step may be proposed as part of the entry `entry`. The record of a publication gets
    its offsets here.

    `looked_up` and `kept` are those of a publication to topics that compare message ids.
    """
    if level < TRANSACTION_LEVEL:
        return Refused(lacking(TRANSACTION_LEVEL, level, "the broker group"))
    match step.WhichOneof("step"):
        case "open_stager":
            stagers = transactions.staging.stagers
            if (
                step.open_stager.stager_id not in stagers
                and len(stagers) + pending.opening >= stagers_max
            ):
                return _full(f"{stagers_max:,} stagers")
            pending.use_stager()
        case "begin" if _is_new(transactions, step) and _rows(transactions, pending) >= rows_max:
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
            pending.use_coordinator(name, (getattr(step, name).transaction_id,))
        case "forget":
            pending.use_coordinator("forget", step.forget.transaction_ids)
        case "pin":
            pending.use_pin("pin", step.pin.transaction_id)
        case "drop_pin":
            pending.use_pin("drop_pin", step.drop_pin.transaction_id)
        case "publish":
            return _admit_publication(
                transactions, pending, step.publish, ids, looked_up, kept, entry
            )
        case None:
            return Refused(
                UnsupportedVersion("this version does not know that step of a transaction")
            )
    return Accepted()


def _admit_publication(
    transactions: Transactions,
    pending: PendingState,
    record: transaction_records_pb2.PublishTransaction,
    ids: IdAdmission,
    looked_up: LookedUpBatches,
    kept: list[KeptBatch],
    entry: int,
) -> ControlDecision | LookUpIds:
    """Gives the record the offsets of what is pinned, in each queue that is not being deleted.

    If topics compare message ids, `looked_up` are the batches of these, and `kept` gets what is
    kept of those that have ids: append it in front. LookUpIds if any has to be looked up (again).
    """
    pin = transactions.staging.pin_of(record.transaction_id, record.attempt)
    if pin is None or pin.epoch != record.epoch:
        return Refused(
            TransactionAborted(
                f"attempt {record.attempt} at epoch {record.epoch} of transaction"
                f" {record.transaction_id!r} is not pinned here (any more)"
            )
        )
    if pending.changes_pin(record.transaction_id):
        return Refused(
            Throttled(
                f"not admitted: transaction {record.transaction_id!r} is being pinned,"
                " published or dropped here; ask again",
                retry_after_ms=RETRY_MS,
            )
        )
    del record.parts[:]
    queues = []
    # A queue whose deletion is accepted is left out: that will be applied first.
    present = {
        key: (queue, extents)
        for key, extents in transactions.staging.pinned_extents(pin).items()
        if (queue := pending.queue(key)) is not None
    }
    for key, (_, extents) in present.items():
        if (unsettled := ids.unsettled(key.topic_id)) is not None:
            return unsettled
        if ids.window(key.topic_id) is None:
            continue
        for extent in extents:
            name = extent.entry, extent.position
            if name not in looked_up:
                return LookUpIds()
            found = looked_up[name]
            if found is not None and not ids.catch_up(key.topic_id, found.ids):
                return LookUpIds()
    for key, (queue, extents) in present.items():
        assert not queue.splitting, "a queue is not split while something is pinned for it"
        messages = messages_at_once(extents)
        window = ids.window(key.topic_id)
        if window is not None:
            offset = queue.log_end_offset
            for extent in extents:
                found = looked_up[extent.entry, extent.position]
                count = extent.messages
                if found is not None:
                    checked = ids.decide(found.header, window, found.ids, offset, entry)
                    assert checked is not None, "its look-up was completed"
                    count = checked.decision.count
                    delayed = bool(extent.due_us and count)
                    kept.append(KeptBatch(checked, key, NO_OFFSET if delayed else Offset(offset)))
                offset += 0 if extent.due_us else count
            messages = offset - queue.log_end_offset
        record.parts.add(
            queue=queue_ref(key),
            base_offset=queue.log_end_offset,
            messages=messages,
        )
        queue.log_end_offset += messages
        queues.append(queue)
    pending.use_pin("publish", record.transaction_id, tuple(queues))
    return Accepted()


def forget_before(
    transactions: Transactions, pending: PendingState, step: Step, *, rows_max: int
) -> Step | None:
    """The step that makes room for a BEGIN under a new id, already noted in `pending`.

    The caller appends it before that BEGIN. None if there is room, and for any other step.
    """
    if not _is_new(transactions, step) or _rows(transactions, pending) < rows_max:
        return None
    surplus = _rows(transactions, pending) + 1 - rows_max
    names = transactions.coordination.oldest(min(surplus, FORGET_MAX), _Busy(pending))
    if not names:
        return None
    pending.use_coordinator("forget", names)
    return Step(forget=transaction_records_pb2.ForgetTransactions(transaction_ids=names))


def _is_new(transactions: Transactions, step: Step) -> bool:
    """Whether the step is a BEGIN under an id that the coordinator does not know."""
    rows = transactions.coordination.rows
    return step.HasField("begin") and step.begin.transaction_id not in rows


def _is_pinned(
    transactions: Transactions, finish: transaction_records_pb2.FinishTransaction
) -> bool:
    """Whether this broker group is a participant itself and has not published yet.

    `semel.broker.background.transaction_work` asks the other participants before it sends a FINISH.
    """
    row = transactions.coordination.rows.get(finish.transaction_id)
    if row is None or row.epoch != finish.epoch:
        return False
    return transactions.staging.pin_of(finish.transaction_id, row.decided_attempt) is not None


def _rows(transactions: Transactions, pending: PendingState) -> int:
    """How many rows the coordinator has once everything accepted is applied."""
    return len(transactions.coordination.rows) + pending.rows_coming()


class _Busy:
    """The transactions whose rows an accepted, unapplied record changes."""

    def __init__(self, pending: PendingState) -> None:
        self._pending = pending

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._pending.coordinates(name)


def _full(of: str) -> Refused:
    return Refused(
        Throttled(
            f"the broker group's limit for transactions is reached: {of}; try again when some"
            " transactions have ended",
            retry_after_ms=FULL_RETRY_MS,
        )
    )
