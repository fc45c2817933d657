"""Options, and what a producer's intake accepts."""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest

from semel.client.config import ClientConfig, ProducerConfig, build, parse_bootstrap
from semel.client.producer.futures import SendFuture
from semel.client.producer.intake import Intake
from semel.client.reading.offsets import check_places
from semel.protos.errors import BufferFull, Closed, InvalidRequest, MessageTooLarge


def make_intake(**options: Any) -> Intake:
    return Intake(build(ProducerConfig, options), wake=lambda: None, open_topic=None)


def append(intake: Intake, value: Any = b"v", **fields: Any) -> Any:
    key, headers, timestamp_us, queue, position = (
        fields.get(name) for name in ("key", "headers", "timestamp_us", "queue", "position")
    )
    return intake.append("t", value, key, headers, timestamp_us, queue, position, True)


def test_an_unknown_option_names_the_nearest() -> None:
    with pytest.raises(InvalidRequest, match="did you mean 'linger_ms'"):
        build(ProducerConfig, {"lingerms": 3})
    with pytest.raises(InvalidRequest, match="unknown option 'zzz'"):
        build(ClientConfig, {"zzz": 3})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("linger_ms", -1),
        ("batch_bytes", 0),
        ("batch_bytes", 5 << 20),
        ("compression", "gzip"),
        ("buffer_full", "drop"),
        ("max_in_flight", 65),
        ("max_in_flight", True),
        ("delivery_timeout_ms", "1s"),
        ("source_positions", 1),
    ],
)
def test_values_out_of_range_are_refused(name: str, value: object) -> None:
    with pytest.raises(InvalidRequest, match=name):
        build(ProducerConfig, {name: value})


@pytest.mark.parametrize(
    "bootstrap", ["", " , ", "host", "host:", ":7070", "h:0", "h:99999", "h:x"]
)
def test_a_bootstrap_that_is_none_is_refused(bootstrap: str) -> None:
    with pytest.raises(InvalidRequest, match="bootstrap"):
        parse_bootstrap(bootstrap)


def test_bootstrap_lists_controllers() -> None:
    assert parse_bootstrap("a:1, [::1]:2,") == ("a:1", "[::1]:2")


def test_columns_appear_with_the_first_message_that_has_them() -> None:
    intake = make_intake()
    append(intake)
    append(intake, "text", key="k", headers={"h": b"1"}, timestamp_us=5, queue=1)
    append(intake, bytearray(b"x"))
    topic = intake.topic("t")
    chunk = intake.take(topic, open_too=True)
    assert chunk is not None
    assert chunk.values == [b"v", b"text", b"x"]
    assert chunk.keys == [None, b"k", None]
    assert chunk.headers == [(), [("h", b"1")], ()]
    assert chunk.timestamps == [chunk.created_us, 5, chunk.created_us]
    assert chunk.queues == [-1, 1, -1]
    assert intake.take(topic, open_too=True) is None


@pytest.mark.parametrize(
    ("value", "fields"),
    [
        (None, {}),
        (7, {}),
        ("\udc80", {}),
        (b"v", {"key": 3}),
        (b"v", {"headers": 5}),
        (b"v", {"headers": {1: b""}}),
        (b"v", {"headers": {"a": None}}),
        (b"v", {"headers": ["ab", "c"]}),
        (b"v", {"timestamp_us": "now"}),
        (b"v", {"timestamp_us": 1 << 63}),
        (b"v", {"queue": -1}),
        (b"v", {"queue": "0"}),
        (b"v", {"position": 0}),
    ],
)
def test_what_is_no_message_is_refused_and_harms_no_other(value: Any, fields: Any) -> None:
    intake = make_intake()
    append(intake, b"before")
    with pytest.raises(InvalidRequest):
        append(intake, value, **fields)
    append(intake, b"after")
    chunk = intake.take(intake.topic("t"), open_too=True)
    assert chunk is not None
    assert chunk.values == [b"before", b"after"]
    assert chunk.count == 2
    assert chunk.keys is chunk.headers is chunk.timestamps is chunk.queues is None


def test_size_limits_are_exact() -> None:
    intake = make_intake()
    append(intake, bytes((1 << 20) - 3), key=b"abc")
    with pytest.raises(MessageTooLarge) as caught:
        append(intake, bytes((1 << 20) - 2), key=b"abc")
    assert caught.value.limit_bytes == 1 << 20
    _, pieces = intake.bulk_pieces("t", [bytes(1 << 20)], None, None, None, None)
    assert len(pieces) == 1
    with pytest.raises(MessageTooLarge, match="message 1 of the call"):
        intake.bulk_pieces("t", [b"", bytes((1 << 20) + 1)], None, None, None, None)


def test_positions_must_rise() -> None:
    intake = make_intake(source_positions=True)
    append(intake, position=0)
    append(intake, position=7)
    for wrong in (7, 3, -1, 1 << 63, 1.5, True, None):
        with pytest.raises(InvalidRequest, match="position"):
            append(intake, position=wrong)
    for positions in ([8, 8], [9, 8], [-1, 0], [8], [[8, 9]], ["a", "b"], [1 << 63, 5]):
        with pytest.raises(InvalidRequest, match="positions"):
            intake.bulk_pieces("t", [b"a", b"b"], None, None, None, positions)
    topic_intake, (piece,) = intake.bulk_pieces("t", [b"a"], None, None, None, [7])
    with pytest.raises(InvalidRequest, match="does not rise"):
        intake.append_piece(topic_intake, piece, None, True)
    with pytest.raises(InvalidRequest, match="needs a position"):
        intake.bulk_pieces("t", [b"a"], None, None, None, None)
    with pytest.raises(InvalidRequest, match="source_positions=True"):
        make_intake().bulk_pieces("t", [b"a"], None, None, None, [1])


def test_bulk_is_cut_and_keeps_its_place() -> None:
    intake = make_intake(batch_bytes=100)
    append(intake, b"first")
    topic, pieces = intake.bulk_pieces("t", [b"x" * 42] * 5, None, None, None, None)
    assert [len(piece.columns) for piece in pieces] == [2, 2, 1]
    for piece in pieces:
        intake.append_piece(topic, piece, None, True)
    append(intake, b"last")
    counts = []
    while (chunk := intake.take(topic, open_too=True)) is not None:
        counts.append(chunk.count)
    assert counts == [1, 2, 2, 1, 1]
    assert intake.messages == 7


def test_an_empty_bulk_is_nothing() -> None:
    assert make_intake().bulk_pieces("t", [], None, None, None, None)[1] == []
    assert make_intake(source_positions=True).bulk_pieces("t", [], None, None, None, [])[1] == []


def test_columns_of_different_length_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="keys"):
        make_intake().bulk_pieces("t", [b"a", b"b"], [b"k"], None, None, None)
    with pytest.raises(InvalidRequest, match="null"):
        make_intake().bulk_pieces("t", [b"a", None], None, None, None, None)


def test_a_full_buffer_raises_if_asked_to() -> None:
    intake = make_intake(buffer_bytes=100, buffer_full="raise")
    append(intake, bytes(200))
    with pytest.raises(BufferFull):
        append(intake)


def test_a_full_buffer_blocks_until_there_is_room() -> None:
    intake = make_intake(buffer_bytes=100)
    first, _ = append(intake, bytes(200))
    done = threading.Event()

    def send() -> None:
        append(intake, b"second")
        done.set()

    thread = threading.Thread(target=send)
    thread.start()
    assert not done.wait(0.05)
    intake.release(first)
    assert done.wait(5)
    thread.join()
    assert intake.has_room()


def test_whoever_waits_for_room_hears_of_the_end() -> None:
    intake = make_intake(buffer_bytes=100)
    append(intake, bytes(200))
    caught: list[Exception] = []

    def send() -> None:
        try:
            append(intake)
        except Closed as error:
            caught.append(error)

    thread = threading.Thread(target=send)
    thread.start()
    left = intake.fail(Closed("the producer is closed"))
    thread.join(5)
    assert caught
    assert [chunk.count for chunk in left] == [1]
    with pytest.raises(Closed):
        append(intake)


def test_waking_is_for_chunks_not_for_messages() -> None:
    woken = []
    intake = Intake(ProducerConfig(), wake=lambda: woken.append(1), open_topic=None)
    for _ in range(100):
        append(intake)
    assert len(woken) == 1
    assert intake.on_woken() == [intake.topic("t")]
    append(intake)
    assert len(woken) == 1


def test_the_topic_is_opened_before_its_first_message() -> None:
    opened: list[str] = []
    intake = Intake(ProducerConfig(), wake=lambda: None, open_topic=opened.append)
    append(intake)
    append(intake)
    assert opened == ["t"]
    with pytest.raises(InvalidRequest, match="topic"):
        intake.append("", b"v", None, None, None, None, None, True)


def test_callbacks_run_once() -> None:
    intake = make_intake()
    chunk, row = append(intake)
    future = SendFuture(chunk, row)
    seen: list[SendFuture] = []
    future.add_done_callback(seen.append)
    assert seen == []
    chunk.fail(Closed("end"))
    assert seen == [future]
    future.add_done_callback(seen.append)
    assert seen == [future, future]
    assert isinstance(future.exception(), Closed)


def test_places_of_a_reader() -> None:
    for good in (
        "earliest",
        "latest",
        0,
        7,
        datetime.now(UTC),
        {0: "latest", 3: 9},
        np.int64(3).item(),
    ):
        check_places("start", good)
    for bad in ("first", -1, True, datetime(2024, 1, 1), {"0": 1}, {0: {0: 1}}, None, 1.5):
        with pytest.raises(InvalidRequest):
            check_places("start", bad)
