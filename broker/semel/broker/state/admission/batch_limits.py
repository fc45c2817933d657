"""Limits of a batch that is not stored yet: its columns, its delivery time and its size.

How it works. The admission asks here only about a batch that it would append. A batch that is
stored is answered with Duplicate whatever these limits say now: they may have changed since.

Not here: what the queue's state forbids (`queue_admission.py`), the room for staged bytes
(`transaction_admission.py`), the sizes of control records (`record_limits.py`).
"""

from __future__ import annotations

from semel.broker.state.admission.decisions import Refused
from semel.broker.state.admission.delay_admission import delay_refusal
from semel.protos.batch import BatchFlags, BatchHeader
from semel.protos.errors import InvalidRequest, MessageTooLarge
from semel.protos.levels import NULL_LEVEL, lacking


def batch_refusal(
    header: BatchHeader, *, bytes_max: int, level: int, time_us: int
) -> Refused | None:
    """Why the batch may not be appended to an entry of log time `time_us`; None if it may.

    `bytes_max` is the queue's limit for a batch, `level` the broker group's feature level.
    """
    if header.flags & BatchFlags.NULL_VALUES and level < NULL_LEVEL:
        return Refused(lacking(NULL_LEVEL, level, "the broker group"))
    if header.flags & BatchFlags.OFFSET:
        return Refused(InvalidRequest("offsets are given by brokers: leave that column out"))
    delayed = delay_refusal(header, level, time_us)
    if delayed is not None or header.batch_length <= bytes_max:
        return delayed
    return Refused(
        MessageTooLarge(
            f"batch of {header.batch_length} bytes; queue {header.queue_id} takes {bytes_max}",
            limit_bytes=bytes_max,
        )
    )
