"""The master's decisions about cancellations of delayed messages.

How it works. The message was found before: which batch, which row, under which number its id
arrived. Here it is decided whether it can be taken out now, against the applied state and what is
in flight. From then on its id counts as unknown, and a release leaves it out, in the order of the
log.

Invariants
1. A message is cancelled only if it is not due at the time of the entry. Log time never falls, so
   no release in front of the record takes it, and every one behind leaves it out.
2. No two records in flight cancel the same message.

Not here: finding the message (`server/id_calls.py`), how a cancellation is applied
(`state/apply/delays.py`).
"""

from __future__ import annotations

from semel.broker.state.admission.decisions import Accepted, ControlDecision, retry_later
from semel.broker.state.admission.id_admission import IdAdmission
from semel.broker.state.admission.pending import PendingQueue, PendingState, RecordUse
from semel.broker.state.apply.delayed_extent import DelayedExtent
from semel.broker.state.apply.delays import Delays
from semel.protos.v1 import control_pb2


def admit_cancel(
    delays: Delays,
    pending: PendingState,
    ids: IdAdmission,
    queue: PendingQueue,
    record: control_pb2.CancelDelayed,
    time_us: int,
) -> ControlDecision:
    """Decides about a record for an entry of `time_us`. If Accepted, append it now.

    Refused with Throttled if the message is not where the record says, or not any more: find it
    again.
    """
    if record.ordinal in queue.parting:
        return retry_later("the message is being handed to a child of its queue")
    cancelling = queue.cancelling.get(record.ordinal, set())
    if delays.to_cancel(record, time_us) is None or record.row in cancelling:
        return retry_later("the message is due or cancelled by now")
    if not ids.may_cancel(record.queue.topic_id, record.arrival):
        return retry_later("the window of message ids has left the message, or it is cancelled")
    if (refused := ids.unsettled(record.queue.topic_id)) is not None:
        return refused
    queue.cancelling.setdefault(record.ordinal, set()).add(record.row)
    ids.use_cancel(record.queue.topic_id, record.arrival)
    pending.use(RecordUse.CANCEL, (queue,), ())
    return Accepted()


def left(delays: Delays, queue: PendingQueue, extent: DelayedExtent) -> int:
    """How many messages of a delayed batch are left once everything accepted is applied."""
    return delays.left(queue.key, extent) - len(queue.cancelling.get(extent.ordinal, ()))
