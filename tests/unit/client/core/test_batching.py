"""Chunks, parts and the way back from a message to its outcome."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semel.client.core.batching import (
    NO_QUEUE,
    ROW_BYTES,
    Chunk,
    Outcome,
    Part,
    cuts,
    message_sizes,
    route,
)
from semel.client.core.encoding import encode_mark, encode_part, rebase, trim
from semel.client.producer.futures import BulkFuture, SendFuture
from semel.protos.batch import BatchFlags, Codec, check_batch
from semel.protos.columns import Columns, decode_columns
from semel.protos.errors import InvalidRequest, UnknownQueue
from semel.protos.few_rows import FEW_ROWS_MAX, FewRows
from semel.protos.ids import ProducerId, QueueId, QueueKey, Sequence, TopicId
from semel.protos.slots import slot_of_key, slots_of_positions
from tests.kit.batches import check_content
from tests.unit.client.chunks import chunk_of, topic, values_of

PRODUCER = ProducerId(9)
MESSAGES = st.lists(
    st.tuples(st.binary(max_size=40), st.one_of(st.none(), st.binary(max_size=4))),
    min_size=1,
    max_size=60,
)


@settings(max_examples=150, deadline=None)
@given(
    messages=MESSAGES, queues=st.integers(1, 7), limit=st.integers(1, 200), positions=st.booleans()
)
def test_every_message_is_found_again_in_order(
    messages: list[tuple[bytes, bytes | None]], queues: int, limit: int, positions: bool
) -> None:
    route_of = topic(queues)
    values = [value for value, _ in messages]
    keys = [key for _, key in messages]
    numbers = list(range(10, 10 + 3 * len(values), 3))
    chunk = chunk_of(values, keys=keys, positions=numbers if positions else None)
    resume = np.full(queues, -1, np.int64) if positions else None
    parts = route(chunk, route_of, sticky=queues - 1, batch_bytes=limit, resume=resume)
    assert chunk.parts == parts

    for row, (value, key) in enumerate(messages):
        assert chunk.outcome_of(row) is None
        if key is not None:
            slot = slot_of_key(key)
        elif positions:
            slot = int(slots_of_positions(np.array([numbers[row]]))[0])
        else:
            slot = route_of.queues[queues - 1].slot_start
        expected = int(route_of.queues_of_slots(np.array([slot]))[0])
        owner = route_of.queues[expected]
        assert owner.slot_start <= slot < owner.slot_end
        found = [
            (part, place)
            for part in parts
            for place, each in enumerate(values_of(part))
            if each == value and part.queue == owner.key
        ]
        assert found

    for number, part in enumerate(parts):
        listed = values_of(part)
        size = sum(len(value) + ROW_BYTES for value in listed)
        assert len(listed) == 1 or size <= limit
        chunk.settle(part, Outcome(base_offset=1_000 * number, base_sequence=50 * number))
    assert chunk.settled
    seen: dict[QueueKey, int] = {}
    for row, value in enumerate(values):
        result = chunk.outcome_of(row)
        assert result is not None
        outcome, home, place = result
        assert home is not None
        assert outcome is home.outcome
        metadata = SendFuture(chunk, row).result()
        assert metadata.offset == outcome.base_offset + place
        assert metadata.queue == home.queue.queue_id
        if positions:
            assert metadata.sequence == numbers[row]
        here = parts.index(home) * 100 + place
        assert seen.get(home.queue, -1) < here, "order within a queue"
        seen[home.queue] = here
        del value
    assert BulkFuture([(chunk, 0, len(values))]).result().stored == len(values)


@settings(max_examples=150, deadline=None)
@given(
    values=st.lists(st.binary(max_size=40), min_size=1, max_size=FEW_ROWS_MAX + 2),
    keyed=st.booleans(),
    queues=st.integers(1, 3),
    named=st.one_of(st.none(), st.integers(0, 2)),
)
def test_few_messages_take_the_short_way_to_the_same_batch(
    values: list[bytes], keyed: bool, queues: int, named: int | None
) -> None:
    keys = [value[:1] for value in values] if keyed else None
    named = None if named is None or named >= queues else named

    def routed(rows: Any, row_keys: Any) -> tuple[bool, list[tuple[QueueKey, bytes]]]:
        chunk = chunk_of(values, keys=row_keys, queues=named)
        chunk.values = rows
        parts = route(chunk, topic(queues), sticky=0, batch_bytes=1 << 20, resume=None)
        assert chunk.values is None
        assert chunk.parts == parts
        assert chunk.open_parts == len(parts)
        short = isinstance(parts[0].columns, FewRows)
        identity: Any = {"producer_id": 1, "epoch": 0, "session": 0, "previous_sequence": 0}
        found = [(part.queue, encode_part(part, codec=Codec.LZ4, **identity)[0]) for part in parts]
        return short, found

    # Arrow's arrays, as a bulk call has them, always take the other way.
    _, wanted = routed(pa.array(values, pa.binary()), keys and pa.array(keys, pa.binary()))
    short, found = routed(list(values), keys)
    assert found == wanted
    assert short == (len(values) <= FEW_ROWS_MAX and len(wanted) == 1)


def test_positions_that_are_stored_are_skipped() -> None:
    route_of = topic(2)
    positions = list(range(100))
    chunk = chunk_of([b"v%d" % n for n in positions], positions=positions)
    owners = route_of.queues_of_slots(slots_of_positions(np.arange(100)))
    resume = np.array([49, 9], np.int64)
    parts = route(chunk, route_of, sticky=0, batch_bytes=1 << 20, resume=resume)
    sent = {value for part in parts for value in values_of(part)}
    assert sent == {b"v%d" % n for n in positions if n > resume[owners[n]]}
    skipped = [row for row in positions if chunk.outcome_of(row) is not None]
    assert skipped == [n for n in positions if n <= resume[owners[n]]]
    metadata = SendFuture(chunk, skipped[0]).result()
    assert (metadata.duplicate, metadata.offset, metadata.sequence) == (True, -1, skipped[0])
    for part in parts:
        chunk.settle(part, Outcome(base_offset=0, base_sequence=0))
    summary = BulkFuture([(chunk, 0, 100)]).result()
    assert summary.skipped == summary.duplicates == len(skipped)
    assert summary.stored == 100 - len(skipped)
    some = BulkFuture([(chunk, 20, 70)]).result()
    assert some.messages == 50
    assert some.skipped == len([row for row in skipped if 20 <= row < 70])


def test_a_chunk_that_is_stored_already_is_settled_at_once() -> None:
    chunk = chunk_of([b"a", b"b"], positions=[0, 1])
    assert route(chunk, topic(1), sticky=0, batch_bytes=100, resume=np.array([5])) == []
    assert chunk.settled


def test_a_named_queue_wins_and_an_unknown_one_is_refused() -> None:
    chunk = chunk_of([b"a", b"b", b"c"], queues=[2, NO_QUEUE, 0])
    parts = route(chunk, topic(3), sticky=1, batch_bytes=100, resume=None)
    assert [(part.queue.queue_id, values_of(part)) for part in parts] == [
        (0, [b"c"]),
        (1, [b"b"]),
        (2, [b"a"]),
    ]
    with pytest.raises(UnknownQueue, match="no queue 7"):
        route(chunk_of([b"a"], queues=[7]), topic(3), sticky=0, batch_bytes=9, resume=None)
    with pytest.raises(UnknownQueue):
        route(chunk_of([b"a"], queues=7), topic(3), sticky=0, batch_bytes=9, resume=None)


def test_a_chunk_that_fails_before_it_is_routed_fails_whole() -> None:
    chunk = chunk_of([b"a", b"b"])
    called = []
    chunk.waiters.append(lambda: called.append(1))
    chunk.fail(InvalidRequest("no"))
    assert called == [1]
    for row in range(2):
        with pytest.raises(InvalidRequest, match="no"):
            SendFuture(chunk, row).result()
    assert chunk.told


def test_the_first_outcome_stands() -> None:
    chunk = chunk_of([b"a"])
    (part,) = route(chunk, topic(1), sticky=0, batch_bytes=9, resume=None)
    chunk.settle(part, Outcome(base_offset=4))
    chunk.settle(part, Outcome(error=InvalidRequest("late")))
    assert SendFuture(chunk, 0).result().offset == 4
    assert chunk.open_parts == 0


def encoded(values: list[bytes], positions: list[int] | None, codec: Codec) -> bytes:
    part = Part(Chunk("t", 77, 0.0), QueueKey(TopicId(5), QueueId(1)), 0, len(values), 0)
    part.columns = Columns.from_arrow(values)
    part.positions = None if positions is None else np.array(positions)
    previous = Sequence(-1 if positions is None else positions[0] - 1)
    payload, base, last = encode_part(
        part, producer_id=PRODUCER, epoch=2, session=3, previous_sequence=previous, codec=codec
    )
    header = check_batch(payload)
    assert (header.base_sequence, header.last_sequence) == (base, last)
    return payload


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("positions", [None, [5, 6, 7], [5, 9, 20]])
def test_rebase_and_trim_keep_the_messages(codec: Codec, positions: list[int] | None) -> None:
    values = [b"a" * 500, b"b" * 500, b"c" * 500]
    payload = encoded(values, positions, codec)
    old = check_content(payload)
    last = old.last_sequence if positions else Sequence(42)
    moved = rebase(
        payload,
        producer_id=PRODUCER,
        epoch=8,
        session=9,
        previous_sequence=Sequence(-1 if positions else 39),
        base_sequence=old.base_sequence if positions else Sequence(40),
        last_sequence=last,
    )
    new = check_content(moved)
    assert (new.epoch, new.session, new.content_crc) == (8, 9, old.content_crc)
    assert decode_columns(moved, new).values.to_pylist() == values
    rest, cut, base = trim(moved, new.base_sequence)
    header = check_content(rest)
    assert (cut, header.base_sequence, header.last_sequence) == (1, base, new.last_sequence)
    assert header.previous_sequence == new.base_sequence
    assert decode_columns(rest, header).values.to_pylist() == values[1:]


def test_a_mark_is_an_empty_batch() -> None:
    mark = encode_mark(
        QueueKey(TopicId(5), QueueId(1)),
        producer_id=PRODUCER,
        epoch=1,
        session=1,
        previous_sequence=Sequence(-1),
        position=Sequence(70),
        timestamp_us=3,
    )
    header = check_batch(mark)
    assert header.flags & BatchFlags.POSITION_MARK
    assert (header.count, header.previous_sequence, header.last_sequence) == (0, -1, 70)


def test_sizes_count_value_key_and_headers() -> None:
    columns = Columns.from_arrow(
        [b"12", b""], keys=[b"123", None], headers=[{"name": b"12345"}, None]
    ).slice(0, 2)
    assert message_sizes(columns).tolist() == [2 + 3 + 4 + 5, 0]
    assert message_sizes(columns.slice(1, 2)).tolist() == [0]


@given(
    sizes=st.lists(st.integers(0, 30), min_size=1, max_size=30),
    limit=st.integers(1, 60),
    start=st.integers(0, 29),
)
def test_cuts_cover_everything(sizes: list[int], limit: int, start: int) -> None:
    start = min(start, len(sizes) - 1)
    ends = np.concatenate(([0], np.cumsum(sizes)))
    ranges = cuts(ends, start, len(sizes), limit)
    assert [row for low, high in ranges for row in range(low, high)] == list(
        range(start, len(sizes))
    )
    for low, high in ranges:
        assert high - low == 1 or sum(sizes[low:high]) <= limit
        if high < len(sizes):
            assert sum(sizes[low : high + 1]) > limit


def test_arrow_of_any_kind_is_taken() -> None:
    array = pa.chunked_array([pa.array(["a", "b"]), pa.array(["c"])])
    chunk = chunk_of([])
    chunk.values, chunk.count = array, 3
    (part,) = route(chunk, topic(1), sticky=0, batch_bytes=100, resume=None)
    assert values_of(part) == [b"a", b"b", b"c"]
