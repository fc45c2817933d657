"""Message ids that users choose, which the intake checks and which travel with the messages.

Brokers store ids and do not compare them: two messages may have the same id.

Not here: their column in a batch (`semel.protos.columns`).
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa

from semel.client.core.batching import Rows
from semel.client.core.fields import as_bytes
from semel.protos.body import offsets_of
from semel.protos.errors import InvalidRequest

MESSAGE_ID_BYTES_MAX: Final = 1_024


def id_bytes(message_id: Any) -> bytes:
    """Returns one id as bytes; a str becomes UTF-8. Raises InvalidRequest."""
    found = as_bytes("message_id", message_id)
    if not 0 < len(found) <= MESSAGE_ID_BYTES_MAX:
        raise _wrong_length(len(found), "message_id")
    return found


def check_ids(message_ids: pa.Array) -> Rows:
    """Returns the size of each id of a binary column, 0 for a null. Raises InvalidRequest."""
    sizes: Rows = np.diff(offsets_of(message_ids)).astype(np.int64)
    wrong = sizes > MESSAGE_ID_BYTES_MAX
    if message_ids.null_count:
        given = message_ids.is_valid().to_numpy(zero_copy_only=False)
        sizes = np.where(given, sizes, 0)
        wrong = given & (wrong | (sizes == 0))
    else:
        wrong |= sizes == 0
    if wrong.any():
        row = int(np.argmax(wrong))
        raise _wrong_length(int(sizes[row]), f"message_id of row {row}")
    return sizes


def _wrong_length(size: int, name: str) -> InvalidRequest:
    todo = "give None for none" if not size else "shorten it, or give a digest of it"
    return InvalidRequest(
        f"{name} has {size:,} bytes; an id has 1 to {MESSAGE_ID_BYTES_MAX:,}: {todo}"
    )
