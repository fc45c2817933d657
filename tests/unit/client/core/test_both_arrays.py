"""What the client makes of messages, over Arrow and over numpy: parts, batches, due times, rows."""

from __future__ import annotations

import io
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.protos.batch import BrokerHeader, Codec, check_batch
from semel.protos.dropped import ANSWER, Verdict
from semel.protos.errors import InvalidRequest, MessageTooLarge
from semel.protos.ids import Offset, ProducerId, QueueId, QueueKey, Sequence, Term, TopicId
from tests.kit.both_arrays import over_arrow, over_numpy
from tests.unit.client.chunks import topic

NOW_US = 1_700_000_000_000_000
KEYS = st.sampled_from([None, b"", b"a", b"bb", b"customer-17", b"x" * 40])


def both() -> tuple[Any, Any]:
    return over_arrow(), over_numpy()


def sent(ways: Any, columns: dict[str, Any], queues: int, resume: Any, batch_bytes: int) -> Any:
    """The batches that a chunk becomes: queue, first row, sequences and bytes of each."""
    chunk = ways.batching.Chunk("t", 1_000, 0.0)
    for name, column in columns.items():
        setattr(chunk, name, column)
    chunk.count = len(columns["values"])
    chunk.bytes = sum(len(value or b"") + 8 for value in columns["values"])
    route = topic(queues)
    parts = ways.batching.route(
        chunk, route, sticky=0, batch_bytes=batch_bytes, resume=resume and np.array(resume)
    )
    batches = []
    for part in parts:
        batch, base, last = ways.encoding.encode_part(
            part,
            producer_id=ProducerId(1),
            epoch=2,
            session=3,
            previous_sequence=Sequence(-1),
            codec=Codec.ZSTD,
        )
        header = check_batch(batch)
        cut = None
        if part.positions is None and header.count > 1:
            cut = ways.encoding.trim(batch, Sequence(base))
        batches.append((part.queue.queue_id, part.first, base, last, batch, cut))
    return batches, None if chunk.order is None else chunk.order.tolist()


@given(st.data(), st.booleans())
def test_both_send_the_same_batches(data: st.DataObject, positioned: bool) -> None:
    count = data.draw(st.integers(1, 100))
    seed = data.draw(st.integers(0, 2**32))
    rng = np.random.default_rng(seed)
    sized = data.draw(st.booleans())
    columns: dict[str, Any] = {
        "values": [rng.bytes(8 if sized else int(rng.integers(0, 9))) for _ in range(count)],
        "keys": data.draw(st.none() | st.lists(KEYS, min_size=count, max_size=count)),
    }
    if data.draw(st.booleans()):
        columns["headers"] = [[("n", rng.bytes(2))] * int(rng.integers(0, 3))] * count
    if data.draw(st.booleans()):
        columns["timestamps"] = rng.integers(0, 2**40, count).tolist()
    if data.draw(st.booleans()):
        columns["message_ids"] = [rng.bytes(int(rng.integers(1, 9))) for _ in range(count)]
    if columns["keys"] is not None and data.draw(st.booleans()):
        columns["values"][0] = None if columns["keys"][0] is not None else b""
    resume = None
    if positioned:
        columns["positions"] = np.cumsum(rng.integers(1, 5, count))
        resume = [3, -1, 10]
    found = [sent(ways, dict(columns), 3, resume, 200) for ways in both()]
    assert found[0] == found[1]


TIMES: tuple[Any, ...] = (
    [None, NOW_US + 5, NOW_US - 5],
    (NOW_US + 5, None),
    [datetime.now(UTC) + timedelta(hours=1)],
    [datetime.now()],
    np.array([NOW_US + 7, 0]),
    np.array([NOW_US + 7], np.uint64),
    np.array([2**63], np.uint64),
    np.array(["2030-01-01"], "M8[us]"),
    np.array([1.5]),
    iter([NOW_US + 9]),
    ["soon"],
    [True],
    [2**63],
    "soon",
    5.0,
    object(),
)


@pytest.mark.parametrize("times", TIMES)
def test_both_take_and_refuse_the_same_due_times(times: Any) -> None:
    found: list[Any] = []
    for ways in both():
        again = iter([NOW_US + 9]) if hasattr(times, "__next__") else times
        count = len(times) if hasattr(times, "__len__") else 1
        try:
            found.append(ways.dues.due_column(again, count, NOW_US).tolist())
        except InvalidRequest:
            found.append(InvalidRequest)
    assert found[0] == found[1]


def test_without_arrow_its_due_times_are_refused_by_what_to_install() -> None:
    with pytest.raises(InvalidRequest, match=r"pip install 'semel\[arrow\]'"):
        over_numpy().dues.due_column(pa.array([NOW_US]), 1, NOW_US)


@pytest.mark.parametrize("ids", [[b"a", None, b"b" * 200], [b""], [b"x" * 1_025], [None, b"y"]])
@pytest.mark.parametrize("keys", [None, [b"k", None, b"l"]])
def test_both_check_the_same_ids(ids: list[bytes | None], keys: list[bytes | None] | None) -> None:
    found: list[Any] = []
    for ways in both():
        rules = ways.message_ids.IdRules("t", 128, 2)
        column = ways.arrays.binary_array(ids)
        named = None if keys is None else ways.arrays.binary_array(keys[: len(ids)])
        try:
            found.append(rules.check_many(column, named, False).tolist())
        except InvalidRequest as error:
            found.append(error.message)
    assert found[0] == found[1]


@pytest.mark.parametrize("trimmed", [0, 1])
def test_both_name_the_ids_of_conflicts(trimmed: int) -> None:
    found = []
    for ways in both():
        columns = ways.columns.Columns.from_arrow([b"v"] * 3, message_ids=[b"a", None, b"c"])
        batch = ways.columns.encode_batch(
            columns,
            topic_id=1,
            queue_id=2,
            producer_id=3,
            epoch=4,
            session=5,
            previous_sequence=99,
            base_sequence=100,
            last_sequence=102,
            timestamp_us=1_000,
        )
        table = np.array([(100, 0, 0, 7, 2), (102, 1, 0, 7, 2)], ANSWER)
        assert (table["verdict"] == Verdict.CONFLICT).all()
        dropped = ways.dropped_rows.DroppedRows.of(table, batch, None, trimmed)
        found.append(str(dropped.first_conflict("t")))
    assert found[0] == found[1]
    assert "b'a'" in found[0]


def read(ways: Any, stored: memoryview, start: int, end: int) -> Any:
    """All that messages of a fetched batch say."""
    rows = ways.message.Rows("t", QueueKey(TopicId(1), QueueId(2)), stored, 50 + start, start, end)
    some = rows.headers_of(0, end - start)
    return [message.as_dict() for message in rows.messages()], some, rows.context


@given(st.data(), st.sampled_from(Codec))
def test_both_read_the_same_messages(data: st.DataObject, codec: Codec) -> None:
    count = data.draw(st.integers(1, 80))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    arrow = over_arrow()
    keys = data.draw(st.none() | st.lists(KEYS, min_size=count, max_size=count))
    columns = arrow.columns.Columns.from_arrow(
        [rng.bytes(int(rng.integers(0, 9))) for _ in range(count)],
        keys=keys,
        headers=data.draw(st.none() | st.just([[("é", b"1"), ("b", b"")][: count % 3]] * count)),
        timestamps=data.draw(st.none() | st.just(rng.integers(0, 2**40, count))),
        message_ids=data.draw(st.none() | st.just([b"id", None, b""][:1] * count)),
        sequences=data.draw(st.none() | st.just(np.arange(100, 100 + 2 * count, 2))),
    )
    batch = arrow.columns.encode_batch(
        columns,
        topic_id=1,
        queue_id=2,
        producer_id=3,
        epoch=4,
        session=5,
        previous_sequence=99,
        base_sequence=100,
        last_sequence=99 + (count if columns.sequences is None else 2 * count),
        source_positions=columns.sequences is not None,
        timestamp_us=1_000,
        codec=codec,
    )
    header = BrokerHeader(base_offset=Offset(50), append_time_us=1, term=Term(1))
    stored = memoryview(header.encode() + batch)
    start = data.draw(st.integers(0, count - 1))
    end = data.draw(st.integers(start, count))
    found = [read(ways, stored, start, end) for ways in both()]
    assert found[0] == found[1]


def test_without_arrow_no_record_batch_is_made() -> None:
    ways = over_numpy()
    assert ways.message.ARROW_SCHEMA is None
    with pytest.raises(InvalidRequest, match=r"pip install 'semel\[arrow\]'"):
        ways.message.Rows.arrow(object.__new__(ways.message.Rows))
    with pytest.raises(InvalidRequest, match=r"^poll_arrow needs pyarrow"):
        ways.pulling.Puller.arrow(object.__new__(ways.pulling.Puller))


TEXTS = st.lists(st.sampled_from([b"\n", b"\r", b"\0", b"\xff", b":", b"a", b"=="])).map(b"".join)


@given(TEXTS, st.integers(1, 9), st.sampled_from([b"", b":", b"==", b"\xff"]), st.integers(1, 9))
def test_both_cut_the_same_lines(text: bytes, block_bytes: int, sep: bytes, limit: int) -> None:
    found = []
    for ways in both():
        lines: list[Any] = []
        blocks = ways.lines.read_lines(
            io.BytesIO(text), limit=limit, separator=sep, block_bytes=block_bytes
        )
        try:
            for block in blocks:
                keys = None if block.keys is None else block.keys.to_pylist()
                lines.append((block.first, block.read_bytes, block.values.to_pylist(), keys))
        except MessageTooLarge as error:
            lines.append(error.message)
        found.append(lines)
    assert found[0] == found[1]


def test_both_read_the_same_json_lines() -> None:
    text = b'{"value": "a", "key": "k", "headers": {"n": "1"}}\n{"value": null, "key": "l"}\n'
    found = []
    for ways in both():
        [block] = ways.lines.read_json(io.BytesIO(text), limit=100)
        found.append((block.values.to_pylist(), block.keys.to_pylist(), block.headers))
    assert found[0] == found[1] == ([b"a", None], [b"k", b"l"], [{"n": b"1"}, {}])
