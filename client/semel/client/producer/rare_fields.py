"""Fields that few messages have, kept apart so that the others pay nothing for them."""

from __future__ import annotations

import time
from typing import Final, NamedTuple

from semel.client.core.dues import AT_ONCE, After, When, due_of
from semel.client.core.message_ids import MESSAGE_ID_BYTES_MAX, id_bytes


class Extra(NamedTuple):
    """The rare fields of one message."""

    due_us: int
    message_id: bytes | None


NO_EXTRA: Final = Extra(AT_ONCE, None)
_new: Final = tuple.__new__
"""Makes an Extra without the call in between that the class has."""


def extra_of(
    deliver_at: When | None, deliver_after: After | None, message_id: bytes | str | None
) -> Extra | None:
    """Returns the rare fields of one message, or None if it has none. Raises InvalidRequest."""
    if deliver_at is None and deliver_after is None:
        # Ordinary ids pay for no call: a loop of send() has a microsecond for each message.
        if type(message_id) is bytes and 0 < len(message_id) <= MESSAGE_ID_BYTES_MAX:
            return _new(Extra, (AT_ONCE, message_id))
        if message_id is None:
            return None
    due_us = due_of(deliver_at, deliver_after, time.time_ns() // 1000)
    return Extra(due_us, None if message_id is None else id_bytes(message_id))
