"""A batch's context: in the headers of its first message, never in the way of what was given."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from semel.client.core.batch_context import (
    BATCH_MARK,
    context_of,
    first_headers,
    with_first_headers,
)
from semel.client.core.batching import Chunk, route
from semel.client.core.encoding import encode_part
from semel.client.core.routing import QueueRoute, TopicRoute
from semel.protos.batch import Codec, check_batch
from semel.protos.body import HEADERS_TYPE
from semel.protos.columns import Columns, decode_columns, encode_batch
from semel.protos.errors import MessageTooLarge
from semel.protos.ids import GroupId, ProducerId, QueueId, QueueKey, Sequence, TopicId

CONTEXT = [("traceparent", b"00-" + b"1" * 32 + b"-" + b"2" * 16 + b"-01")]
MARKED = [*CONTEXT, (BATCH_MARK, b"1")]


def topic(queues: int = 1, **settings: Any) -> TopicRoute:
    step = 65_536 // queues
    return TopicRoute(
        name="t",
        topic_id=TopicId(1),
        queues=tuple(
            QueueRoute(
                key=QueueKey(TopicId(1), QueueId(number)),
                group_id=GroupId(1),
                slot_start=number * step,
                slot_end=(number + 1) * step,
            )
            for number in range(queues)
        ),
        by_slot=np.arange(queues, dtype=np.int32),
        slot_starts=np.arange(queues, dtype=np.int32) * step,
        **{"message_bytes_max": 0, "batch_bytes_max": 0, **settings},
    )


def headers_in(columns: Columns) -> list[list[tuple[str, bytes]]]:
    assert columns.headers is not None
    assert columns.headers.type == HEADERS_TYPE
    return [
        [(pair["key"], pair["value"]) for pair in pairs or ()]
        for pairs in columns.headers.to_pylist()
    ]


def carried(
    columns: Columns, context: Any = CONTEXT, route_: TopicRoute | None = None, size: int = 100
) -> Columns | None:
    """The batch as readers get it, or None if it gets no context."""
    headers = first_headers(columns, context, route_ or topic(), size)
    if headers is None:
        return None
    if columns.headers is not None:
        return decoded(encode(with_first_headers(columns, headers)))
    return decoded(encode(columns, headers))


def test_only_the_first_message_carries_the_context() -> None:
    found = carried(Columns.from_arrow([b"a", b"b", b"c"], keys=[b"k", None, b""]))
    assert found is not None
    assert headers_in(found) == [MARKED, [], []]
    assert found.values.to_pylist() == [b"a", b"b", b"c"]
    assert context_of(MARKED) == CONTEXT
    assert context_of(CONTEXT) == [], "a message's own context is not that of its batch"


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 8, 9, 1_000])
def test_a_batch_is_the_one_that_a_column_makes(count: int) -> None:
    columns = Columns.from_arrow([b"%d" % number for number in range(count)])
    headers = [dict(MARKED), *([None] * (count - 1))]
    whole = Columns.from_arrow(columns.values, headers=headers)
    assert encode(columns, MARKED) == encode(whole)


def test_given_headers_stay() -> None:
    given = [[("a", b"1")], [("b", b"2"), ("c", b"")], None]
    columns = Columns.from_arrow([b"x"] * 4, headers=[[("z", b"")], *given])
    for part in (columns.slice(1, 4), Columns.from_arrow([b"x"] * 3, headers=given)):
        found = carried(part)
        assert found is not None
        assert headers_in(found) == [[("a", b"1"), *MARKED], [("b", b"2"), ("c", b"")], []]


def test_a_context_that_the_caller_gave_is_not_replaced() -> None:
    assert carried(Columns.from_arrow([b"a"], headers=[[("traceparent", b"mine")]])) is None


def test_messages_whose_ids_are_compared_get_none() -> None:
    columns, compares = Columns.from_arrow([b"a"], message_ids=[b"id"]), topic(compares_ids=True)
    assert carried(columns, route_=compares) is None
    assert carried(Columns.from_arrow([b"a"]), route_=compares) is not None
    assert carried(columns) is not None


@pytest.mark.parametrize("limit", [0, 1_000])
def test_no_message_becomes_too_large(limit: int) -> None:
    route_ = topic(message_bytes_max=limit)
    bound = limit or 1 << 20
    added = sum(len(name) + len(value) for name, value in MARKED)
    assert carried(Columns.from_arrow([bytes(bound - added)]), CONTEXT, route_, bound) is not None
    over = Columns.from_arrow([bytes(bound - added - 1)], keys=[b"kk"])
    assert carried(over, CONTEXT, route_, bound) is None
    if not limit:
        whole = Columns.from_arrow(over.values, keys=over.keys, headers=[MARKED])
        with pytest.raises(MessageTooLarge):
            encode(whole)


def test_no_batch_becomes_too_large() -> None:
    columns = Columns.from_arrow([b"x" * 100] * 1_000)
    assert carried(columns, CONTEXT, topic(batch_bytes_max=110_000), 108_000) is None
    assert carried(columns, CONTEXT, topic(), 108_000) is not None


def test_a_context_of_kilobytes_is_left_out() -> None:
    """A copy of the message, as a dead letter, would not fit into a batch."""
    assert carried(Columns.from_arrow([b"x"]), [("baggage", bytes(3_000))]) is None


def test_every_batch_of_a_chunk_carries_it() -> None:
    keys = [b"k%d" % number for number in range(64)]
    chunk = Chunk("t", 1, 1.0)
    chunk.values = pa.array([b"v" * 100] * 64, pa.binary())
    chunk.keys = pa.array(keys, pa.binary())
    chunk.count, chunk.bytes = 64, 64 * 110
    chunk.context = CONTEXT
    parts = route(chunk, topic(4), sticky=0, batch_bytes=1_000, resume=None)
    assert len({part.queue.queue_id for part in parts}) == 4
    assert len(parts) > 4
    for part in parts:
        batch, *_ = encode_part(
            part,
            producer_id=ProducerId(1),
            epoch=1,
            session=1,
            previous_sequence=Sequence(-1),
            codec=Codec.LZ4,
        )
        assert headers_in(decoded(batch)) == [MARKED, *([[]] * (part.count - 1))]


def test_a_chunk_without_a_context_has_no_headers() -> None:
    chunk = Chunk("t", 1, 1.0)
    chunk.values = pa.array([b"v"] * 3, pa.binary())
    chunk.count, chunk.bytes = 3, 30
    (part,) = route(chunk, topic(), sticky=0, batch_bytes=1_000, resume=None)
    assert isinstance(part.columns, Columns)
    assert part.columns.headers is None
    assert part.first_headers is None


def decoded(batch: bytes) -> Columns:
    return decode_columns(batch, check_batch(batch))


def encode(columns: Columns, headers: Any = None) -> bytes:
    return encode_batch(
        columns,
        topic_id=1,
        queue_id=0,
        producer_id=1,
        epoch=1,
        session=1,
        previous_sequence=-1,
        base_sequence=0,
        last_sequence=len(columns) - 1,
        timestamp_us=1,
        first_headers=headers,
    )
