"""The master's decisions about handing delayed batches of a split queue to its children.

How it works. The batches were read and parted before, from the applied state. Here it is decided
whether the state is still that one, with what is in flight: which batches come first, which of
their rows are cancelled, and whether the children are there. A batch that is given up goes the same
way, without parts.

Invariants
1. Of a queue one record is in flight at a time, and no message of its batches is cancelled while it
   is. So the rows that are left out are those that are cancelled when it is applied.

Not here: which rows a child gets (`semel.protos.parted_rows`), how the record is applied, and
whether the parts fit their batches (`state/apply/parted.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from semel.broker.state.admission.decisions import Accepted, ControlDecision, Refused, retry_later
from semel.broker.state.admission.pending import PendingQueue, PendingState, RecordUse
from semel.broker.state.apply.parted import PARTED_BATCHES_MAX, next_batch, rows_crc
from semel.broker.state.apply.state_machine import State
from semel.protos.ids import QueueId, QueueKey
from semel.protos.levels import DELAYED_SPLIT_LEVEL, lacking
from semel.protos.v1 import control_pb2


def admit_part(
    state: State, pending: PendingState, queue: PendingQueue, record: control_pb2.PartDelayed
) -> ControlDecision:
    """Decides about a record. If Accepted, append it now, behind its PARTED records.

    Refused with Throttled if something has changed since the batches were read: read again.
    """
    if state.feature_level < DELAYED_SPLIT_LEVEL:
        return Refused(lacking(DELAYED_SPLIT_LEVEL, state.feature_level, "the broker group"))
    held, ordinals = state.delays.queues.get(queue.key), {each.ordinal for each in record.batches}
    if queue.key not in state.delays.sealed or held is None:
        return retry_later("the queue has nothing to hand to children")
    if queue.parting or not 0 < len(record.batches) <= PARTED_BATCHES_MAX:
        return retry_later("delayed batches of the queue are being handed to its children")
    if not ordinals.isdisjoint(queue.cancelling):
        return retry_later("messages of the batches are being cancelled")
    first = list(islice(held, len(record.batches)))
    found = [(*extent[:4], _cancelled(held.cancelled.rows(extent.ordinal))) for extent in first]
    wanted = [
        (each.due_us, each.ordinal, each.entry, each.position, (each.cancelled, each.cancelled_crc))
        for each in record.batches
    ]
    if found != wanted:
        return retry_later("the batches were cancelled or parted meanwhile")
    for child in state.queues[queue.key].children:
        taking = pending.queue(QueueKey(queue.key.topic_id, QueueId(child.queue_id)))
        if taking is None or taking.splitting or taking.sealing:
            return retry_later(f"queue {child.queue_id} takes nothing now")
    queue.parting = frozenset(ordinals)
    pending.use(RecordUse.PART, (queue,), ())
    return Accepted()


def admit_give_up(
    state: State, pending: PendingState, queue: PendingQueue, record: control_pb2.GiveUpDelayed
) -> ControlDecision:
    """Decides about giving up the first delayed batch of a queue that was split.

    Refused with Throttled if something has changed since it was found to be unreadable.
    """
    if state.feature_level < DELAYED_SPLIT_LEVEL:
        return Refused(lacking(DELAYED_SPLIT_LEVEL, state.feature_level, "the broker group"))
    if queue.parting or record.ordinal in queue.cancelling:
        return retry_later("delayed batches of the queue are being handed over or cancelled")
    if (
        queue.key not in state.delays.sealed
        or next_batch(record, state.queues, state.delays) is None
    ):
        return retry_later("another batch is the next one by now")
    queue.parting = frozenset({record.ordinal})
    pending.use(RecordUse.PART, (queue,), ())
    return Accepted()


def _cancelled(rows: Sequence[int]) -> tuple[int, int]:
    return len(rows), rows_crc(rows)
