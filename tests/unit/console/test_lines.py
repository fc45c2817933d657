"""Lines and JSON lines become messages, byte by byte, however the input is cut into blocks."""

from __future__ import annotations

import base64
import io
import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.console.lines import Block, read_json, read_lines
from semel.protos.errors import InvalidRequest, MessageTooLarge

LIMIT = 1 << 20
TEXTS = st.lists(st.sampled_from([b"\n", b"\r", b"\0", b"\xff", b":", b"a", b"=="])).map(b"".join)


def model(text: bytes) -> list[bytes]:
    lines = text.split(b"\n")
    return lines[:-1] if lines[-1] == b"" else lines


def collect(blocks: Iterator[Block]) -> list[tuple[int, bytes | None, bytes | None]]:
    """(number, key, value) of every message."""
    found: list[tuple[int, bytes | None, bytes | None]] = []
    for block in blocks:
        values = block.values.to_pylist()
        block.values.validate(full=True)
        if block.keys is not None:
            block.keys.validate(full=True)
        keys = [None] * len(values) if block.keys is None else block.keys.to_pylist()
        numbers = range(block.first, block.first + len(values))
        found += zip(numbers, keys, values, strict=True)
    return found


@given(TEXTS, st.integers(1, 9))
def test_lines_pass_unchanged(text: bytes, block_bytes: int) -> None:
    found = collect(read_lines(io.BytesIO(text), limit=LIMIT, block_bytes=block_bytes))
    assert found == [(i, None, line) for i, line in enumerate(model(text))]


@given(TEXTS, st.integers(1, 9), st.sampled_from([b":", b"==", b"\xff"]))
def test_keys_are_cut_at_the_first_separator(text: bytes, block_bytes: int, sep: bytes) -> None:
    blocks = read_lines(io.BytesIO(text), limit=LIMIT, separator=sep, block_bytes=block_bytes)
    expected: list[tuple[int, bytes | None, bytes | None]] = []
    for number, line in enumerate(model(text)):
        key, found, value = line.partition(sep)
        expected.append((number, key, value) if found else (number, None, line))
    assert collect(blocks) == expected


@given(st.lists(st.integers(0, 12), max_size=12), st.integers(1, 40), st.booleans())
def test_all_before_a_line_too_long_is_kept_and_nothing_after(
    lengths: list[int], block_bytes: int, last_newline: bool
) -> None:
    text = b"\n".join(b"x" * n for n in lengths) + (b"\n" if last_newline else b"")
    lines = model(text)
    good = next((i for i, line in enumerate(lines) if len(line) > 9), len(lines))
    found: list[bytes] = []

    def read() -> None:
        for block in read_lines(io.BytesIO(text), limit=9, block_bytes=block_bytes):
            found.extend(block.values.to_pylist())

    if good == len(lines):
        read()
    else:
        with pytest.raises(MessageTooLarge, match=f"line {good + 1} ") as caught:
            read()
        assert caught.value.limit_bytes == 9
    assert found == lines[:good]


def test_a_line_of_exactly_the_limit_is_good() -> None:
    text = b"k:" + b"v" * 8 + b"\n" + b"x" * 9
    found = collect(read_lines(io.BytesIO(text), limit=9, separator=b":"))
    assert found == [(0, b"k", b"v" * 8), (1, None, b"x" * 9)]


def test_an_endless_line_is_refused_without_reading_its_end() -> None:
    class Endless(io.RawIOBase):
        reads = 0

        def read(self, size: int = -1) -> bytes:
            self.reads += 1
            return b"x" * size

    endless = Endless()
    with pytest.raises(MessageTooLarge, match="line 1 "):
        list(read_lines(endless, limit=100, block_bytes=10))  # type: ignore[arg-type]
    assert endless.reads == 11


def test_an_empty_input_has_no_messages() -> None:
    assert list(read_lines(io.BytesIO(b""), limit=LIMIT)) == []
    assert list(read_json(io.BytesIO(b""), limit=LIMIT)) == []


@given(st.lists(st.tuples(st.binary(max_size=5), st.none() | st.binary(max_size=3))))
def test_json_carries_any_bytes(messages: list[tuple[bytes, bytes | None]]) -> None:
    lines = []
    for value, key in messages:
        line = {"value_base64": base64.b64encode(value).decode()}
        if key is not None:
            line["key_base64"] = base64.b64encode(key).decode()
        lines.append(json.dumps(line).encode())
    found = collect(read_json(io.BytesIO(b"\n".join(lines)), limit=LIMIT, block_bytes=16))
    assert found == [(i, key, value) for i, (value, key) in enumerate(messages)]


def test_json_text_and_headers() -> None:
    line = json.dumps({"value": "größe", "key": "k", "headers": {"trace": "ä"}}).encode()
    [block] = read_json(io.BytesIO(line), limit=LIMIT)
    assert block.values.to_pylist() == ["größe".encode()]
    assert block.headers == [{"trace": "ä".encode()}]


def test_json_null_values_need_a_key() -> None:
    text = b'{"key": "anna", "value": null}\n{"value": "x"}\n{"key": "b", "value_base64": "eQ=="}'
    assert collect(read_json(io.BytesIO(text), limit=LIMIT)) == [
        (0, b"anna", None),
        (1, None, b"x"),
        (2, b"b", b"y"),
    ]
    with pytest.raises(InvalidRequest, match="line 1 has neither value nor key"):
        list(read_json(io.BytesIO(b'{"value": null}'), limit=LIMIT))
    with pytest.raises(InvalidRequest, match='line 1 has neither "value" nor'):
        list(read_json(io.BytesIO(b'{"key": "anna"}'), limit=LIMIT))


def test_json_times_and_ids() -> None:
    due_us = (time.time_ns() // 1_000_000_000 + 600) * 1_000_000
    iso = datetime.fromtimestamp(due_us // 1_000_000, UTC).replace(tzinfo=None).isoformat()
    lines = [
        {"value": "a"},
        {"value": "b", "deliver_at": due_us - 1, "message_id": "ä"},
        {"value": "c", "deliver_at": iso, "message_id_base64": "/w=="},
        {"value": "d", "deliver_at": iso + "+00:00"},
        {"value": "e", "deliver_at": "1999-12-31T00:00:00"},
    ]
    text = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    [block] = read_json(io.BytesIO(text), limit=LIMIT)
    assert block.deliver_at == [None, due_us, due_us, due_us, 0]
    assert block.message_ids == [None, "ä".encode(), b"\xff", None, None]
    [block] = read_json(io.BytesIO(b'{"value": "a"}'), limit=LIMIT)
    assert (block.deliver_at, block.message_ids) == (None, None)


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{",
        b"[1]",
        b"{}",
        b'{"value": 1}',
        b'{"value": "a", "value_base64": "YQ=="}',
        b'{"value_base64": "Y"}',
        b'{"value": "\\ud800"}',
        b'{"value": "a", "vaule": "b"}',
        b'{"value": "a", "headers": ["x"]}',
        b'{"value": "a", "headers": {"x": 1}}',
        b'{"value": "a", "key": {}}',
        b'{"value": "a", "deliver_at": "soon"}',
        b'{"value": "a", "deliver_at": -1}',
        b'{"value": "a", "deliver_at": true}',
        b'{"value": "a", "message_id": 5}',
        b'{"value": "a", "message_id": ""}',
        b'{"value": "a", "message_id": "b", "message_id_base64": "YQ=="}',
        b'\xff{"value": "a"}',
        b'{"value": "a", "headers": {"x": "\\ud800"}}',
        b'{"value": "a", "headers": {"\\ud800": "x"}}',
        b'{"value": "a", "headers": []}',
        b'{"value": "a", "headers": ""}',
        b'{"value": "a", "key": "\\ud800"}',
        b'{"value": "a", "message_id": "\\ud800"}',
        b'{"value_base64": "\\ud800"}',
        b'{"value": "a", "\\ud800": "b"}',
        b'{"value": "a", "deliver_at": "\\ud800"}',
        b'{"value": "a", "deliver_at": 1' + b"0" * 30 + b"}",
        b'{"value": "a", "deliver_at": 1e999}',
        b'{"value": "a", "deliver_at": NaN}',
        b'{"value": "a", "deliver_at": "9999-12-31T23:59:59-23:59"}',
        b'{"value": ' + b"9" * 5_000 + b"}",
        b'{"value": ' + b"[" * 60_000 + b"}",
        b"\xff\xfe{}",
    ],
)
def test_a_malformed_json_line_is_named_and_all_before_it_kept(line: bytes) -> None:
    text = b'{"value": "good"}\n' + line + b'\n{"value": "after"}\n'
    found: list[bytes] = []

    def read() -> None:
        for block in read_json(io.BytesIO(text), limit=LIMIT):
            found.extend(block.values.to_pylist())

    with pytest.raises(InvalidRequest, match="line 2 "):
        read()
    assert found == [b"good"]


def test_a_json_message_over_the_limit_counts_key_and_headers() -> None:
    text = b'{"value": "aaa", "key": "bbb", "headers": {"cc": "dd"}}'
    assert collect(read_json(io.BytesIO(text), limit=10)) == [(0, b"bbb", b"aaa")]
    with pytest.raises(MessageTooLarge, match="line 1 "):
        list(read_json(io.BytesIO(text), limit=9))
