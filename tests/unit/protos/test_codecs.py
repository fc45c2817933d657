"""The codecs of bodies: both ways write the same frames, and take and refuse the same bytes."""

from __future__ import annotations

import struct
import tracemalloc
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.protos import arrow_codecs, plain_codecs
from semel.protos.batch import Codec
from semel.protos.errors import CorruptBatch

BOTH = pytest.mark.parametrize("ways", [arrow_codecs, plain_codecs], ids=["arrow", "plain"])
CODECS = st.sampled_from([Codec.LZ4, Codec.ZSTD])
CONTENTS = st.binary(max_size=300) | st.builds(
    lambda piece, times: piece * times, st.binary(max_size=9), st.integers(0, 20_000)
)
WINDOW_OF_512_MIB = bytes.fromhex("28b52ffd00914d000010000001000c0a6001")
"""A frame of 145 zeros that does not say how long it is."""
EMPTY_THAT_SAYS_32 = bytes.fromhex("28b52ffd2020010000")


def outcome(ways: Any, frame: bytes, codec: Codec, length: int) -> bytes | None:
    """What it unpacks; None if it refuses."""
    try:
        return bytes(ways.unpack(frame, codec, length))
    except CorruptBatch:
        return None


@given(CODECS, CONTENTS)
def test_both_write_the_same_frame_and_read_it(codec: Codec, content: bytes) -> None:
    frame = arrow_codecs.pack(content, codec)
    assert plain_codecs.pack(content, codec) == frame
    if content:
        for ways in (arrow_codecs, plain_codecs):
            assert outcome(ways, frame, codec, len(content)) == content


@st.composite
def damaged(draw: st.DrawFn) -> tuple[bytes, Codec, int]:
    """Frames, some of them to be skipped, that may be damaged, their codec and a claimed length."""
    codec = draw(CODECS)
    frames = []
    length = 0
    for content in draw(st.lists(CONTENTS | st.none(), min_size=1, max_size=3)):
        if content is None:
            skipped = draw(st.binary(max_size=9))
            frames.append(struct.pack("<II", 0x184D2A53, len(skipped)) + skipped)
        else:
            length += len(content)
            frames.append(plain_codecs.pack(content, codec))
    frame = bytearray(b"".join(frames))
    match draw(st.sampled_from(["", "flip", "cut", "more"])):
        case "flip" if frame:
            bit = draw(st.integers(0, 8 * len(frame) - 1))
            frame[bit // 8] ^= 1 << bit % 8
        case "cut":
            del frame[draw(st.integers(0, len(frame))) :]
        case "more":
            frame += draw(st.binary(min_size=1, max_size=9))
    claimed = max(1, length + draw(st.sampled_from([0, 0, 0, -1, 1, -100, 100])))
    return bytes(frame), codec, claimed


@given(damaged())
def test_both_take_and_refuse_the_same(given: tuple[bytes, Codec, int]) -> None:
    found = outcome(arrow_codecs, *given)
    assert outcome(plain_codecs, *given) == found
    assert found is None or len(found) == given[2]


@BOTH
def test_a_window_larger_than_the_content_is_taken(ways: ModuleType) -> None:
    assert outcome(ways, WINDOW_OF_512_MIB, Codec.ZSTD, 145) is not None


@BOTH
def test_a_frame_that_is_shorter_than_it_says_is_refused(ways: ModuleType) -> None:
    frame = plain_codecs.pack(b"more", Codec.ZSTD)
    assert outcome(ways, frame + EMPTY_THAT_SAYS_32, Codec.ZSTD, 4) is None


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.ZSTD])
def test_a_bomb_stops_behind_the_claimed_length(codec: Codec) -> None:
    frame = plain_codecs.pack(bytes(64 << 20), codec)
    tracemalloc.start()
    try:
        with pytest.raises(CorruptBatch, match=r"more than 1000 bytes|decompressed"):
            plain_codecs.unpack(frame, codec, 1_000)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.ZSTD])
def test_very_many_frames_take_no_quadratic_time(codec: Codec) -> None:
    frames = plain_codecs.pack(b"x", codec) * 100_000  # some minutes if each is copied
    assert plain_codecs.unpack(frames, codec, 100_000) == b"x" * 100_000
