"""Messages of a fetched batch: the same attributes, with Arrow and without."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.client import message as message_module
from semel.client.message import Message, Rows
from semel.protos.batch import BrokerHeader, Codec
from semel.protos.columns import Columns, decode_columns, encode_batch
from semel.protos.ids import Offset, QueueId, QueueKey, Term, TopicId

short = st.binary(max_size=8)
KEY = QueueKey(TopicId(1), QueueId(2))


def stored(columns: Columns, codec: Codec = Codec.NONE) -> memoryview:
    """As a fetch brings it."""
    batch = encode_batch(
        columns,
        topic_id=1,
        queue_id=2,
        producer_id=3,
        epoch=4,
        session=5,
        previous_sequence=99,
        base_sequence=100,
        last_sequence=99 + len(columns),
        timestamp_us=1_000,
        codec=codec,
    )
    header = BrokerHeader(base_offset=Offset(50), append_time_us=1, term=Term(1))
    return memoryview(header.encode() + batch)


def rows_of(batch: memoryview, start: int, end: int) -> Rows:
    return Rows("t", KEY, batch, 50 + start, start, end)


@given(st.data())
def test_messages_are_what_was_sent_whichever_way_they_are_decoded(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 5))

    def column(elements: st.SearchStrategy[Any]) -> list[Any] | None:
        whole = st.lists(elements, min_size=count, max_size=count)
        drawn: list[Any] | None = data.draw(st.one_of(st.none(), whole))
        return drawn

    values: list[bytes | None] = data.draw(st.lists(short, min_size=count, max_size=count))
    keys = column(st.one_of(st.none(), short))
    if keys is not None and data.draw(st.booleans()):
        values = [value if key is None else None for value, key in zip(values, keys, strict=True)]
    headers = column(st.lists(st.tuples(st.text(max_size=3), short), max_size=2))
    stamps = column(st.integers(0, 2**40))
    ids = column(st.one_of(st.none(), short))
    batch = stored(
        Columns.from_arrow(values, keys=keys, headers=headers, timestamps=stamps, message_ids=ids),
        data.draw(st.sampled_from(Codec)),
    )
    start = data.draw(st.integers(0, count - 1))
    end = data.draw(st.integers(start + 1, count))
    wanted = [
        {
            "topic": "t",
            "queue": 2,
            "offset": 50 + row,
            "timestamp_us": 1_000 if stamps is None else stamps[row],
            "key": None if keys is None else keys[row],
            "value": values[row],
            "headers": [] if headers is None else headers[row],
            "message_id": None if ids is None else ids[row],
            "producer_id": 3,
            "sequence": 100 + row,
        }
        for row in range(start, end)
    ]
    rows = rows_of(batch, start, end)
    names = data.draw(st.permutations(list(wanted[0])))  # what is asked for first must not matter
    found = [{name: getattr(message, name) for name in names} for message in rows.messages()]
    assert found == wanted
    after_arrow = rows_of(batch, start, end)
    assert after_arrow.arrow().num_rows == end - start
    assert [message.as_dict() for message in after_arrow.messages()] == wanted


def everything(message: Message) -> dict[str, Any]:
    return message.as_dict() | {"origin": message.origin, "attempt": message.attempt}


@pytest.mark.parametrize("keys", [None, [b"k", None]])
def test_a_few_plain_messages_need_no_arrow(
    keys: list[bytes | None] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That costs several times what all the rest of a small batch does."""
    values = [b"a" * 500, b"b" * 500]
    plain = stored(Columns.from_arrow(values, keys=keys))
    packed = stored(Columns.from_arrow(values, keys=keys), Codec.LZ4)
    calls = []
    decode = decode_columns

    def counting(*given: Any) -> Columns:
        calls.append(given)
        return decode(*given)

    monkeypatch.setattr(message_module, "decode_columns", counting)
    found = [everything(message) for message in rows_of(plain, 0, 2).messages()]
    assert [each["value"] for each in found] == values
    assert calls == []
    assert [everything(message) for message in rows_of(packed, 0, 2).messages()] == found
    assert len(calls) == 1
