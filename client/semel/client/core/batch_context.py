"""What a batch carries once for all its messages: the trace context of a bulk call.

How it works. A context takes 66 bytes, which may be more than a message, and all messages of a bulk
call's batch have the same. So the batch has it, once, beside its columns.

Format. `name NUL value NUL` for each header, in UTF-8.

Invariants
1. A context never makes a batch too large, or a copy of one of its messages: it is left out then.
2. Contexts come from strangers: one that is malformed is none, and raises nothing.

Not here: what the headers say, and the headers of single messages (`tracing/`).
"""

from __future__ import annotations

from collections.abc import Sequence

from semel.client.core.routing import TopicRoute
from semel.protos.batch import BATCH_BYTES_DEFAULT, CONTEXT_BYTES_MAX, HEADER_BYTES
from semel.protos.columns import Columns

_ROW_BYTES_MAX = 20
"""Bytes that a message takes in a batch at most, beside what it says: offsets and validity bits of
all columns."""


def encode_context(headers: Sequence[tuple[str, bytes]]) -> bytes | None:
    """Returns the headers as a batch has them; None for none, and for too many or unfit ones."""
    pieces = [piece for name, value in headers for piece in (name.encode(), value)]
    found = b"".join([piece + b"\0" for piece in pieces])
    fits = found.count(0) == len(pieces) and 0 < len(found) <= CONTEXT_BYTES_MAX
    return found if fits else None


def decode_context(context: bytes | None) -> list[tuple[str, bytes]]:
    """Returns the headers of a context; none of one that is malformed."""
    if context is None:
        return []
    *pieces, end = context.split(b"\0")
    if end or len(pieces) % 2:
        return []
    try:
        names = [name.decode() for name in pieces[::2]]
    except UnicodeDecodeError:
        return []
    return list(zip(names, pieces[1::2], strict=True))


def has_room(columns: Columns, context: bytes, topic: TopicRoute, size: int) -> bool:
    """Whether the batch of a part may have the context; `size` is about how many bytes it takes
    without."""
    batch = HEADER_BYTES + size + len(context) + (_ROW_BYTES_MAX + 1) * (len(columns) + 8)
    return batch <= (topic.batch_bytes_max or BATCH_BYTES_DEFAULT)
