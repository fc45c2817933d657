"""Delivery times: which batches are delayed, and which times are refused as mistakes.

A batch is *delayed* if its header has a delivery time and it has no DELIVER_AT column: all its
messages are due at that time. It is stored like any other batch and has no offsets until it is due.

Not here: storing and releasing (the broker), grouping messages by time (the client).
"""

from __future__ import annotations

from typing import Final

from semel.protos.batch import BatchFlags, BatchHeader

AHEAD_MAX_US: Final = 3_651 * 86_400_000_000
"""Ten years, and a day for clocks that differ. A later time is taken for a number in another
unit."""


def is_delayed(header: BatchHeader) -> bool:
    """Whether all messages of the batch are due at its delivery time."""
    return header.deliver_at_us > 0 and not header.flags & BatchFlags.DELIVER_AT


def due_of(header: BatchHeader) -> int:
    """Returns when the messages of a batch are due; 0 if at once."""
    return header.deliver_at_us if is_delayed(header) else 0


def time_refusal(deliver_at_us: int, now_us: int) -> str | None:
    """Returns why a batch's delivery time is refused, or None for a good one, such as one that has
    passed."""
    if deliver_at_us - now_us <= AHEAD_MAX_US:
        return None
    nanoseconds = abs(deliver_at_us // 1_000 - now_us) <= AHEAD_MAX_US
    return (
        f"delivery time {deliver_at_us} is more than ten years ahead: it counts microseconds since"
        " 1970" + (", and these look like nanoseconds" if nanoseconds else "")
    )
