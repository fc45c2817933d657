"""A batch's context: once for all messages, never in the way of what was given."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from semel.client.core.batch_context import decode_context, encode_context
from semel.client.core.batching import Chunk, Part, route
from semel.client.core.encoding import encode_part
from semel.client.core.routing import QueueRoute, TopicRoute
from semel.protos.batch import Codec, check_batch
from semel.protos.columns import Columns, decode_columns
from semel.protos.ids import GroupId, ProducerId, QueueId, QueueKey, Sequence, TopicId
from semel.protos.levels import CONTEXT_LEVEL

HEADERS = [("traceparent", b"00-" + b"1" * 32 + b"-" + b"2" * 16 + b"-01"), ("baggage", b"")]
CONTEXT = encode_context(HEADERS)


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


def parts_of(
    columns: Columns, route_: TopicRoute | None = None, batch_bytes: int = 1 << 20
) -> list[Part]:
    """The parts of a bulk call that has a context."""
    chunk = Chunk("t", 1, 1.0)
    chunk.values, chunk.keys, chunk.headers = columns.values, columns.keys, columns.headers
    chunk.message_ids = columns.message_ids
    chunk.count, chunk.bytes = len(columns), columns.values.nbytes
    chunk.context = CONTEXT
    return route(chunk, route_ or topic(), sticky=0, batch_bytes=batch_bytes, resume=None)


def sent(part: Part, level: int = CONTEXT_LEVEL, codec: Codec = Codec.NONE) -> Columns:
    """A part as readers get it."""
    batch, *_ = encode_part(
        part,
        level=level,
        producer_id=ProducerId(1),
        epoch=1,
        session=1,
        previous_sequence=Sequence(-1),
        codec=codec,
    )
    return decode_columns(batch, check_batch(batch))


def test_what_is_written_is_read() -> None:
    assert decode_context(CONTEXT) == HEADERS
    assert encode_context([]) is None
    assert decode_context(None) == []


@pytest.mark.parametrize(
    "unfit", [[("a\0b", b"1")], [("a", b"1\0")], [("baggage", bytes(b"x" * 2_048))]]
)
def test_a_context_that_does_not_fit_is_left_out(unfit: list[tuple[str, bytes]]) -> None:
    assert encode_context(unfit) is None


@pytest.mark.parametrize("strange", [b"\0", b"a", b"a\0b", b"a\0b\0c\0", b"\xff\0b\0"])
def test_a_context_that_is_malformed_is_none(strange: bytes) -> None:
    assert decode_context(strange) == []


def test_messages_keep_what_was_given() -> None:
    """Also ids that are compared: a context is no part of what a message says."""
    given = Columns.from_arrow(
        [b"a", b"b"], keys=[b"k", None], headers=[{"x": b"1"}, {}], message_ids=[b"1", b"2"]
    )
    (part,) = parts_of(given, topic(compares_ids=True))
    found = sent(part)
    assert found.context == CONTEXT
    assert found.values.to_pylist() == [b"a", b"b"]
    assert found.headers is not None
    assert found.headers.to_pylist() == [[{"key": "x", "value": b"1"}], []]
    (plain,) = parts_of(given)
    plain.chunk.context = None
    before, after = (
        encode_part(
            each,
            producer_id=ProducerId(1),
            epoch=1,
            session=1,
            previous_sequence=Sequence(-1),
            codec=Codec.NONE,
        )[0]
        for each in (plain, parts_of(given)[0])
    )
    assert check_batch(before).content_crc == check_batch(after).content_crc


def test_a_group_at_an_older_level_gets_none() -> None:
    (part,) = parts_of(Columns.from_arrow([b"a"] * 3))
    assert sent(part, CONTEXT_LEVEL - 1).context is None


def test_no_batch_becomes_too_large() -> None:
    columns = Columns.from_arrow([b"x" * 100] * 1_000)
    (part,) = parts_of(columns, topic(batch_bytes_max=110_000))
    assert sent(part).context is None
    (part,) = parts_of(columns)
    assert sent(part).context == CONTEXT


def test_every_batch_of_a_chunk_carries_it() -> None:
    columns = Columns.from_arrow([b"v" * 100] * 64, keys=[b"k%d" % n for n in range(64)])
    parts = parts_of(columns, topic(4), batch_bytes=1_000)
    assert len({part.queue.queue_id for part in parts}) == 4
    assert len(parts) > 4
    assert {sent(part, codec=Codec.LZ4).context for part in parts} == {CONTEXT}


def test_some_of_the_rows_keep_it() -> None:
    columns = Columns(values=pa.array([b"a", b"b"], pa.binary()), context=CONTEXT)
    for some in (
        columns.slice(1, 2),
        columns.filter(pa.array([True, False])),
        columns.take(pa.array([1])),
    ):
        assert (len(some), some.context) == (1, CONTEXT)
