"""Limits of a batch that is not stored yet: its columns, its delivery time and its size.

How it works. The admission asks here only about a batch that it would append. A batch that is
stored is answered with Duplicate whatever these limits say now: they may have changed since.

Not here: what the queue's state forbids (`queue_admission.py`), the room for staged bytes
(`transaction_admission.py`), the sizes of control records (`record_limits.py`).
"""

from __future__ import annotations

from semel.broker.state.admission.decisions import Refused
from semel.broker.state.admission.delay_admission import delay_refusal
from semel.broker.state.apply.queues import QueueState
from semel.protos.batch import BatchFlags, BatchHeader
from semel.protos.errors import InvalidRequest, MessageTooLarge
from semel.protos.levels import CONTEXT_LEVEL, NULL_LEVEL, lacking


def batch_refusal(
    header: BatchHeader, *, bytes_max: int, level: int, time_us: int, in_memory: bool = False
) -> Refused | None:
    """Why the batch may not be appended to an entry of log time `time_us`; None if it may.

    `bytes_max` is the queue's limit for a batch, `level` the broker group's feature level;
    `in_memory` says that the log has no bodies of the queue.
    """
    if header.flags & BatchFlags.NULL_VALUES and level < NULL_LEVEL:
        return Refused(lacking(NULL_LEVEL, level, "the broker group"))
    if header.flags & BatchFlags.CONTEXT and level < CONTEXT_LEVEL:
        return Refused(lacking(CONTEXT_LEVEL, level, "the broker group"))
    if header.flags & BatchFlags.OFFSET:
        return Refused(InvalidRequest("offsets are given by brokers: leave that column out"))
    if in_memory and header.deliver_at_us:
        return Refused(
            InvalidRequest(
                f"queue {header.queue_id} is of a topic in memory, which takes no delayed messages:"
                " send them to a topic in the log"
            )
        )
    delayed = delay_refusal(header, level, time_us)
    if delayed is not None or header.batch_length <= bytes_max:
        return delayed
    return Refused(
        MessageTooLarge(
            f"batch of {header.batch_length} bytes; queue {header.queue_id} takes {bytes_max}",
            limit_bytes=bytes_max,
        )
    )


def staging_refusal(queue: QueueState | None) -> InvalidRequest | None:
    """Why a transaction cannot write to a queue, whatever it writes; None if it can."""
    if queue is None or not queue.in_memory:
        return None
    return InvalidRequest(
        f"topic {queue.topic!r} is in memory, and transactions write to topics in the log only"
    )
