"""Fields that few messages have: the others pay nothing for them."""

from __future__ import annotations

import time

from semel.client.core.dues import After, When, due_of
from semel.client.core.message_ids import id_bytes


def rare_fields(
    deliver_at: When | None, deliver_after: After | None, message_id: bytes | str | None
) -> tuple[int, bytes | None]:
    """Returns the due time of one message and its id. Raises InvalidRequest."""
    due_us = due_of(deliver_at, deliver_after, time.time_ns() // 1000)
    return due_us, None if message_id is None else id_bytes(message_id)
