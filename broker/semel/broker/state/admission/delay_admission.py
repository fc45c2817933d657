"""The master's decisions about delayed batches: which it accepts, and which a release takes.

Not here: the delayed batches and how a release is applied (`state/apply/delays.py`), when a release
is proposed (`semel.broker.background.delayed_release`).
"""

from __future__ import annotations

from typing import Final

from semel.broker.state.admission.cancel_admission import left
from semel.broker.state.admission.decisions import Refused
from semel.broker.state.admission.pending import PendingQueue, PendingState
from semel.broker.state.apply.delayed_extent import DelayedPlace
from semel.broker.state.apply.delays import COLUMN_FLAG, Delays
from semel.protos.batch import BatchHeader
from semel.protos.delays import time_refusal
from semel.protos.errors import InvalidRequest, Throttled
from semel.protos.levels import DELAY_LEVEL, lacking
from semel.protos.queue_refs import queue_ref
from semel.protos.v1 import control_pb2

RETRY_MS: Final = 1_000


def delay_refusal(header: BatchHeader, level: int, time_us: int) -> Refused | None:
    """Refuses a delivery time that this broker group cannot keep, or that is a mistake at log time
    `time_us`; None if the batch is fine."""
    if (mistake := time_refusal(header.deliver_at_us, time_us)) is not None:
        return Refused(InvalidRequest(mistake))
    if header.flags & COLUMN_FLAG:
        return Refused(
            InvalidRequest(
                "group messages by time: a batch has one delivery time for all its messages; send"
                " one batch for each time, as `send_many` does with a column of times"
            )
        )
    if header.deliver_at_us and level < DELAY_LEVEL:
        return Refused(lacking(DELAY_LEVEL, level, "the broker group"))
    return None


def propose_release(
    delays: Delays,
    pending: PendingState,
    queue: PendingQueue,
    now_us: int,
    batches_max: int,
    before: DelayedPlace | None,
) -> control_pb2.ReleaseDelayed | None:
    """The record that releases applied batches which are due, already noted in `pending`. Those
    from `before` on come after what the queue's parent still holds.

    None if nothing is due, or if a release of the queue is in flight: that one takes the same
    batches. What a record in flight cancels is left out.
    """
    bounds = now_us, delays.next_ordinal, batches_max, before
    found = {
        extent.ordinal: messages
        for extent in delays.first(queue.key, *bounds)
        if (messages := left(delays, queue, extent))
    }
    if not found or queue.releasing:
        return None
    record = control_pb2.ReleaseDelayed(
        queue=queue_ref(queue.key),
        until_us=now_us,
        batches=len(found),
        base_offset=queue.log_end_offset,
        messages=sum(found.values()),
        below_ordinal=delays.next_ordinal,
    )
    queue.log_end_offset += record.messages
    queue.releasing = True
    pending.use_release(queue)
    return record


def held_by_delays(delays: Delays, queue: PendingQueue) -> Refused | None:
    """Refuses, below the level that has it, a split or a move of a queue that has delayed messages;
    None if it has none."""
    held = delays.held(queue.key)
    if held is None and queue.delaying:
        held = f"messages of queue {queue.key.queue_id} are being delayed"
    if held is None:
        return None
    return Refused(Throttled(f"not admitted: {held}; send again", retry_after_ms=RETRY_MS))
