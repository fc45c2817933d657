"""The master's decisions about delayed batches: which are taken, and what a release takes.

Not here: delayed batches themselves, and how a release is applied (`state/apply/delays.py`); when
one is proposed (`semel.broker.background.delayed_release`).
"""

from __future__ import annotations

from typing import Final

from semel.broker.state.admission.decisions import Refused
from semel.broker.state.admission.pending import PendingQueue, PendingState
from semel.broker.state.apply.delays import COLUMN_FLAG, Delays
from semel.protos.batch import BatchHeader
from semel.protos.errors import InvalidRequest, Throttled
from semel.protos.levels import DELAY_LEVEL, lacking
from semel.protos.queue_refs import queue_ref
from semel.protos.v1 import control_pb2

RETRY_MS: Final = 1_000


def delay_refusal(header: BatchHeader, level: int) -> Refused | None:
    """The refusal of a delivery time that this group cannot keep."""
    if header.flags & COLUMN_FLAG:
        return Refused(
            InvalidRequest(
                "group messages by time: a batch whose messages have delivery times of their own is"
                " not taken yet, only one time for all of them"
            )
        )
    if header.deliver_at_us and level < DELAY_LEVEL:
        return Refused(lacking(DELAY_LEVEL, level, "the broker group"))
    return None


def propose_release(
    delays: Delays, pending: PendingState, queue: PendingQueue, now_us: int, batches_max: int
) -> control_pb2.ReleaseDelayed | None:
    """The release of what is applied and due, counted on in spec; None when there is nothing, or
    one of the queue is in flight: it takes what this one would."""
    found = delays.first(queue.key, now_us, delays.next_ordinal, batches_max)
    if not found or queue.releasing:
        return None
    record = control_pb2.ReleaseDelayed(
        queue=queue_ref(queue.key),
        until_us=now_us,
        batches=len(found),
        base_offset=queue.log_end_offset,
        messages=sum(extent.messages for extent in found),
        below_ordinal=delays.next_ordinal,
    )
    queue.log_end_offset += record.messages
    queue.releasing = True
    pending.use_release(queue)
    return record


def held_by_delays(delays: Delays, queue: PendingQueue) -> Refused | None:
    """The refusal of what would leave delayed messages behind; None when there are none."""
    held = delays.held(queue.key)
    if held is None and queue.delaying:
        held = f"messages of queue {queue.key.queue_id} are being delayed"
    if held is None:
        return None
    return Refused(Throttled(f"not judged: {held}; send again", retry_after_ms=RETRY_MS))
