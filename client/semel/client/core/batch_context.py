"""Headers that the first message of a batch carries for all of it: a bulk call's trace context.

How it works. A context takes 66 bytes, which may be more than a message, and all messages of a bulk
call's batch have the same. So only the first message of the batch gets the headers, with BATCH_MARK
behind them, and whoever reads one of the others looks at the first. A list of headers that is empty
but for one message costs four bytes a message.

Invariants
1. Headers that a caller gave stay as they are. A first message that has one of the context's
   headers keeps its own, and the batch gets no context.
2. A context never makes a message, its copy or a batch too large: it is left out then.
3. Messages that are compared by their ids get none: a message that is sent again has another
   context, and would be another message under the same id.

Not here: what the headers say, and the headers of single messages (`tracing/`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa

from semel.client.core.letters import PREFIX
from semel.client.core.routing import TopicRoute
from semel.protos.batch import BATCH_BYTES_DEFAULT, HEADER_BYTES, MESSAGE_BYTES_MAX
from semel.protos.body import HEADERS_TYPE, offsets_of
from semel.protos.columns import Columns

Pairs = Sequence[tuple[str, bytes]]

BATCH_MARK: Final = f"{PREFIX}batch-context"
"""Header of the first message of a batch whose context is that of all messages without one."""
CONTEXT_BYTES_MAX: Final = 2_048
"""A copy of a message, as a dead letter, has some kilobytes more than the message may have."""
_ROW_BYTES_MAX: Final = 20
"""Bytes that a message takes in a batch at most, beside what it says: offsets and validity bits of
all columns."""


def first_headers(
    columns: Columns, context: Pairs, topic: TopicRoute, size: int
) -> list[tuple[str, bytes]] | None:
    """Returns the headers of the first message of a batch, its own and those of the context; None
    if the batch gets none. `size` is about how many bytes it takes without them."""
    if columns.message_ids is not None and topic.id_rules.compared:
        return None
    given = _pairs_of(columns.headers[0]) if columns.headers is not None else []
    if given and {name for name, _ in given} & {name for name, _ in context}:
        return None
    headers = [*given, *context, (BATCH_MARK, b"1")]
    if _bytes_of(context) > CONTEXT_BYTES_MAX or not _has_room(columns, headers, topic, size):
        return None
    return headers


def with_first_headers(columns: Columns, headers: Pairs) -> Columns:
    """Returns the columns with other headers of the first message."""
    head = pa.array([[{"key": name, "value": value} for name, value in headers]], HEADERS_TYPE)
    assert columns.headers is not None, "without such a column the encoder writes it"
    return dataclasses.replace(columns, headers=pa.concat_arrays([head, columns.headers.slice(1)]))


def context_of(headers: Pairs) -> list[tuple[str, bytes]]:
    """Returns what the headers of a batch's first message say of all its messages: nothing without
    the mark."""
    if all(name != BATCH_MARK for name, _ in headers):
        return []
    return [(name, value) for name, value in headers if not name.startswith(PREFIX)]


def _has_room(columns: Columns, headers: Pairs, topic: TopicRoute, size: int) -> bool:
    header_bytes = _bytes_of(headers)
    message = header_bytes + _first_bytes(columns.values)
    if columns.keys is not None:
        message += _first_bytes(columns.keys)
    batch = HEADER_BYTES + size + header_bytes + (_ROW_BYTES_MAX + 1) * (len(columns) + 8)
    return message <= min(topic.message_bytes_max or MESSAGE_BYTES_MAX, MESSAGE_BYTES_MAX) and (
        batch <= (topic.batch_bytes_max or BATCH_BYTES_DEFAULT)
    )


def _bytes_of(headers: Pairs) -> int:
    return sum(len(name.encode()) + len(value) for name, value in headers)


def _first_bytes(column: pa.Array) -> int:
    offsets = offsets_of(column)
    return int(offsets[1] - offsets[0])


def _pairs_of(scalar: Any) -> list[tuple[str, bytes]]:
    return [(pair["key"], pair["value"]) for pair in scalar.as_py() or ()]
