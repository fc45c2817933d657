"""Delayed messages and ids from the intake to the batch: one due time a chunk, nothing lost."""

from __future__ import annotations

import time
from itertools import groupby
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semel.client.config import ProducerConfig, build
from semel.client.core.batching import Chunk, Part, route
from semel.client.core.encoding import encode_part, rebase, trim
from semel.client.core.sequences import InFlight, Known, _offset_of
from semel.client.core.splitting import divide, of_encoded, of_waiting
from semel.client.producer.intake import Intake, TopicIntake
from semel.client.producer.rare_fields import rare_fields
from semel.protos.batch import BatchFlags, Codec, check_batch
from semel.protos.columns import decode_columns
from semel.protos.errors import InvalidRequest, MessageTooLarge
from semel.protos.ids import ProducerId, Sequence
from tests.kit.batches import check_content
from tests.unit.client.chunks import chunk_of, heirs, topic

SECOND = 1_000_000
SOON = (time.time_ns() // 1_000 // SECOND + 3_600) * SECOND
LATER = SOON + SECOND


def make_intake(**options: Any) -> Intake:
    return Intake(build(ProducerConfig, options), wake=lambda: None, open_topic=None)


def send(
    intake: Intake, value: bytes, due_us: int = 0, message_id: bytes | None = None
) -> tuple[Chunk, int]:
    return intake.append("t", value, None, None, None, None, None, True, due_us, message_id)


def taken(intake: Intake, topic_intake: TopicIntake) -> list[Chunk]:
    found = []
    while (chunk := intake.take(topic_intake, open_too=True)) is not None:
        found.append(chunk)
    return found


def encoded(part: Part, previous: int = -1) -> bytes:
    payload, _, _ = encode_part(
        part,
        producer_id=ProducerId(9),
        epoch=1,
        session=1,
        previous_sequence=Sequence(previous),
        codec=Codec.NONE,
    )
    return payload


def test_another_due_time_begins_another_chunk() -> None:
    intake = make_intake()
    dues = [None, None, SOON, SOON, LATER, None, SOON]
    for number, due_us in enumerate(dues):
        send(intake, b"%d" % number, due_us or 0)
    chunks = taken(intake, intake.topic("t"))
    assert [(chunk.due_us, chunk.values) for chunk in chunks] == [
        (0, [b"0", b"1"]),
        (SOON, [b"2", b"3"]),
        (LATER, [b"4"]),
        (0, [b"5"]),
        (SOON, [b"6"]),
    ]
    assert all(chunk.message_ids is None for chunk in chunks)
    assert intake.messages == len(dues)
    assert len(intake.snapshot()) == len(chunks)


def test_ids_share_a_chunk_with_messages_that_have_none() -> None:
    intake = make_intake()
    for number, message_id in enumerate([None, b"a", None, b"c"]):
        send(intake, b"%d" % number, message_id=message_id)
    send(intake, b"4", SOON, b"d")
    send(intake, b"5")
    chunks = taken(intake, intake.topic("t"))
    assert [chunk.message_ids for chunk in chunks] == [[None, b"a", None, b"c"], [b"d"], None]
    (part,) = route(chunks[0], topic(1), sticky=0, batch_bytes=1_000, resume=None)
    payload = encoded(part)
    columns = decode_columns(payload, check_content(payload))
    assert columns.message_ids is not None
    assert columns.message_ids.to_pylist() == [None, b"a", None, b"c"]
    assert columns.values.to_pylist() == [b"0", b"1", b"2", b"3"]


def test_a_chunk_that_was_taken_takes_nothing_more() -> None:
    intake = make_intake()
    first, _ = send(intake, b"a", SOON)
    assert intake.take(intake.topic("t"), open_too=True) is first
    second, row = send(intake, b"b", SOON)
    assert second is not first
    assert row == 0
    third, _ = send(intake, b"c")
    assert intake.take(intake.topic("t"), open_too=False) is second
    assert intake.take(intake.topic("t"), open_too=True) is third
    fourth, _ = send(intake, b"d")
    assert fourth is not third
    assert intake.fail(InvalidRequest("over")) == [fourth]


def test_ids_count_for_the_size_of_a_chunk_but_not_for_the_limit_of_a_message() -> None:
    intake = make_intake(batch_bytes=2_000)
    for _ in range(4):
        send(intake, b"v", 0, b"x" * 1_000)
    assert [chunk.count for chunk in taken(intake, intake.topic("t"))] == [2, 2]
    intake.topic("t").message_bytes_max = 10
    send(intake, b"v" * 10, 0, b"x" * 1_000)
    with pytest.raises(MessageTooLarge):
        send(intake, b"v" * 11)
    _, pieces = intake.bulk_pieces(
        "t", [b"v"] * 3, None, None, None, None, None, [b"x" * 1_000, None, b"y" * 1_000]
    )
    assert [len(piece.columns) for piece in pieces] == [2, 1]
    assert sum(piece.size for piece in pieces) == 2_000 + 3 * 9


def test_rare_fields_of_one_message() -> None:
    assert rare_fields(None, None, None) == (0, None)
    assert rare_fields(SOON, None, None) == (SOON, None)
    assert rare_fields(None, None, "ä") == (0, "ä".encode())
    with pytest.raises(InvalidRequest, match="contradict"):
        rare_fields(SOON, 3, b"id")
    with pytest.raises(InvalidRequest, match="message_id"):
        rare_fields(SOON, None, b"")


DUES = st.sampled_from([None, 0, SOON - 5, SOON, LATER])


@settings(max_examples=200, deadline=None)
@given(
    rows=st.lists(
        st.tuples(
            st.binary(max_size=30),
            st.one_of(st.none(), st.binary(max_size=2)),
            DUES,
            st.one_of(st.none(), st.binary(min_size=1, max_size=20)),
        ),
        min_size=1,
        max_size=40,
    ),
    queues=st.integers(1, 4),
    limit=st.integers(1, 300),
    positions=st.booleans(),
    column=st.booleans(),
    cut=st.integers(0, 3),
)
def test_every_row_of_a_bulk_is_in_one_batch_with_its_due_time_and_id(
    rows: list[tuple[bytes, bytes | None, int | None, bytes | None]],
    queues: int,
    limit: int,
    positions: bool,
    column: bool,
    cut: int,
) -> None:
    """From the call to the bytes; some batches are rebased and trimmed on the way."""
    values = [b"%d|" % number + value for number, (value, *_) in enumerate(rows)]
    keys = [key for _, key, _, _ in rows]
    ids = [message_id for *_, message_id in rows]
    dues = [due_us for _, _, due_us, _ in rows] if column else [SOON] * len(rows)
    numbers = list(range(7, 7 + 2 * len(rows), 2)) if positions else None
    intake = make_intake(source_positions=positions, batch_bytes=max(limit, 64))
    topic_intake, pieces = intake.bulk_pieces(
        "t", values, keys, None, None, numbers, dues if column else SOON, ids
    )
    expected = {
        value: (-(-(due_us or 0) // SECOND) * SECOND, key, message_id)
        for value, key, due_us, message_id in zip(values, keys, dues, ids, strict=True)
    }
    found: dict[bytes, tuple[int, bytes | None, bytes | None]] = {}
    last_of: dict[tuple[int, int], int] = {}
    position_of = -1
    for piece in pieces:
        intake.append_piece(topic_intake, piece, None, True)
    resume = np.full(queues, -1, np.int64) if positions else None
    chunks = taken(intake, topic_intake)
    assert sum(chunk.count for chunk in chunks) == len(rows)
    for chunk in chunks:
        if positions:
            assert int(chunk.positions[0]) > position_of, "positions do not rise"
            position_of = int(chunk.positions[-1])
        for part in route(chunk, topic(queues), sticky=0, batch_bytes=limit, resume=resume):
            previous = 99
            if positions:
                assert part.positions is not None
                previous = int(part.positions[0]) - 1
            payload = encoded(part, previous)
            header = check_content(payload)
            skipped = min(cut, header.count - 1)
            done = decode_columns(payload, header).slice(0, skipped)
            if not positions:
                payload = rebase(
                    payload,
                    producer_id=ProducerId(9),
                    epoch=2,
                    session=2,
                    previous_sequence=Sequence(199),
                    base_sequence=Sequence(200),
                    last_sequence=Sequence(199 + header.count),
                )
                header = check_content(payload)
            if skipped:
                sequences = decode_columns(payload, header).sequences
                stored = (
                    header.base_sequence + skipped - 1
                    if sequences is None
                    else sequences[skipped - 1].as_py()
                )
                payload, _, _ = trim(payload, Sequence(stored))
            rest = check_content(payload)
            assert rest.deliver_at_us == header.deliver_at_us == chunk.due_us
            assert not rest.flags & BatchFlags.DELIVER_AT
            for columns in (done, decode_columns(payload, rest)):
                listed = columns.values.to_pylist()
                of_keys = [None] * len(listed) if columns.keys is None else columns.keys.to_pylist()
                given_ids = columns.message_ids
                of_ids = [None] * len(listed) if given_ids is None else given_ids.to_pylist()
                for value, key, message_id in zip(listed, of_keys, of_ids, strict=True):
                    assert value not in found, "twice"
                    found[value] = (rest.deliver_at_us, key, message_id)
                    row = int(value.partition(b"|")[0])
                    lane = (part.queue.queue_id, rest.deliver_at_us)
                    assert row > last_of.get(lane, -1), "rows of one due time change their order"
                    last_of[lane] = row
    assert found == expected
    if positions:
        runs = [due_us for due_us, _ in groupby(expected.values(), key=lambda each: each[0])]
        assert [due for due, _ in groupby(chunks, key=lambda each: each.due_us)] == runs


@pytest.mark.parametrize(
    ("deliver_at", "message_ids", "message"),
    [
        ([SOON], None, "1 deliver_at for 2 values"),
        ("soon", None, "deliver_at must be"),
        (-1, None, "not negative"),
        (None, [b"a"], "message_ids for 2 values"),
        (None, [b"a", 5], "message id column cannot be stored"),
        (None, [b"a", b"x" * 1_025], "row 1 has 1,025 bytes"),
    ],
)
def test_a_bulk_that_is_refused_leaves_nothing(
    deliver_at: Any, message_ids: Any, message: str
) -> None:
    intake = make_intake()
    with pytest.raises(InvalidRequest, match=message):
        intake.bulk_pieces("t", [b"a", b"b"], None, None, None, None, deliver_at, message_ids)
    assert intake.messages == 0
    assert intake.snapshot() == []


def test_an_empty_bulk_with_columns_is_nothing() -> None:
    assert make_intake().bulk_pieces("t", [], None, None, None, None, [], [])[1] == []


@pytest.mark.parametrize("sent", [False, True])
def test_what_goes_to_the_children_of_a_split_keeps_both(sent: bool) -> None:
    values = [b"%d" % number for number in range(40)]
    ids: list[bytes | None] = [b"id%d" % n if n % 3 else None for n in range(40)]
    chunk = chunk_of(values, keys=[b"k" + value for value in values], message_ids=ids)
    chunk.due_us = SOON
    (part,) = route(chunk, topic(1), sticky=0, batch_bytes=1 << 20, resume=None)
    one = of_encoded(part, encoded(part), 0) if sent else of_waiting(part)
    found: dict[bytes, bytes | None] = {}
    children = set()
    for made in divide(one, heirs(), 0):
        payload = encoded(made)
        header = check_batch(payload)
        columns = decode_columns(payload, header)
        assert header.deliver_at_us == SOON
        assert columns.message_ids is not None
        found |= dict(zip(columns.values.to_pylist(), columns.message_ids.to_pylist(), strict=True))
        children.add(header.queue_id)
    assert found == dict(zip(values, ids, strict=True))
    assert len(children) > 1


def test_rows_of_a_batch_without_an_offset_have_none() -> None:
    batch = InFlight(
        base=Sequence(5), last=Sequence(9), previous=Sequence(4), payload=b"", count=5, tag=None
    )
    assert _offset_of(batch, [Known(Sequence(0), Sequence(9), -1, 10)]) == -1
    assert _offset_of(batch, [Known(Sequence(0), Sequence(9), 70, 10)]) == 75
