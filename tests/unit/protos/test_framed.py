"""The framing between replicas: whole messages out of any pieces, and damage ends the stream."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.protos import framed
from semel.protos.errors import InvalidRequest
from semel.protos.framed import (
    ASKING,
    HEAD,
    HELLO,
    MESSAGE_BYTES_MAX,
    MessageBuffer,
    decode_asking,
    decode_hello,
    encode_asking,
    encode_head,
    encode_hello,
)
from tests.kit.format_tables import fields, struct_format

DOCUMENT = "framed-streams.md"
TICKET = bytes(range(16))


def feed(buffer: MessageBuffer, data: bytes, cuts: list[int]) -> None:
    """Gives `data` in pieces that end at `cuts` (lengths), as a socket would."""
    at = 0
    for cut in [*cuts, len(data)]:
        end = min(at + cut, len(data))
        while at < end:
            target = buffer.target()
            count = min(len(target), end - at)
            assert count, "no room, and so no progress"
            target[:count] = data[at : at + count]
            at += count
            buffer.received(count)


@given(
    lengths=st.lists(st.sampled_from([1, 7, 80, 1_000, 65_527, 65_528, 65_529, 200_000])),
    cuts=st.lists(st.integers(1, 100_000)),
)
def test_messages_come_out_whole_and_in_order(lengths: list[int], cuts: list[int]) -> None:
    messages = [bytes([number % 251]) * length for number, length in enumerate(lengths)]
    found: list[bytes] = []
    buffer = MessageBuffer(lambda view: found.append(bytes(view)))
    feed(buffer, b"".join(encode_head(len(one)) + one for one in messages), cuts)
    assert found == messages


@given(position=st.integers(0, HEAD.size * 8 - 1))
def test_a_flipped_bit_in_a_head_is_damage(position: int) -> None:
    data = bytearray(encode_head(5) + b"hello")
    data[position // 8] ^= 1 << position % 8
    buffer = MessageBuffer(lambda _: pytest.fail("a damaged head was believed"))
    with pytest.raises(InvalidRequest, match="damaged"):
        feed(buffer, bytes(data), [])


@pytest.mark.parametrize("length", [0, MESSAGE_BYTES_MAX + 1])
def test_an_impossible_length_is_damage(length: int) -> None:
    buffer = MessageBuffer(lambda _: None)
    with pytest.raises(InvalidRequest, match="damaged"):
        feed(buffer, HEAD.pack(length, length ^ 0xFFFF_FFFF), [])


def test_a_hello_carries_its_ticket() -> None:
    assert decode_hello(encode_hello(TICKET)[HEAD.size :]) == TICKET


@pytest.mark.parametrize("position", range(8))
def test_a_damaged_hello_is_refused(position: int) -> None:
    data = bytearray(encode_hello(TICKET)[HEAD.size :])
    data[position] ^= 0x40
    with pytest.raises(InvalidRequest):
        decode_hello(bytes(data))


def test_a_hello_of_a_newer_version_says_what_to_do() -> None:
    data = bytearray(encode_hello(TICKET)[HEAD.size :])
    data[4] = 2
    with pytest.raises(InvalidRequest, match=r"version 2 .* update the older one"):
        decode_hello(bytes(data))
    with pytest.raises(InvalidRequest, match="a hello of 24 bytes"):
        decode_hello(bytes(data) + b"x")


@given(request=st.binary(max_size=1_000))
def test_what_a_hello_asks_for_is_read_again(request: bytes) -> None:
    assert decode_asking(encode_asking(request)[HEAD.size :]) == request


def test_a_hello_with_a_ticket_asks_for_nothing() -> None:
    assert decode_asking(encode_hello(TICKET)[HEAD.size :]) is None
    assert decode_asking(b"short") is None


@pytest.mark.parametrize("position", range(8))
def test_a_damaged_hello_that_asks_is_refused(position: int) -> None:
    data = bytearray(encode_asking(bytes(16))[HEAD.size :])
    data[position] ^= 0x40
    with pytest.raises(InvalidRequest):
        decode_hello(bytes(data) if decode_asking(bytes(data)) is None else b"")


def test_the_document_agrees() -> None:
    assert struct_format(fields(DOCUMENT, "Asking")) == ASKING.format
    assert struct_format(fields(DOCUMENT, "Head")) == HEAD.format
    assert struct_format(fields(DOCUMENT, "Hello")) == HELLO.format
    text = (framed.__doc__ or "").split()
    assert "docs/formats/framed-streams.md" in text
