"""Compressed records: every form that clients send, bombs, and what other clients can read."""

from __future__ import annotations

import gzip
import struct
import tracemalloc
import zlib
from collections.abc import Callable

import pyarrow as pa
import pytest

from semel.gateway.records import CorruptRecords, RecordCodec, RecordsTooLarge, decode_produced
from semel.gateway.records.record_codecs import compress, decompress
from tests.kit.kafka_batches import HEAD_BYTES, Record, of_kafka_python, packed_with

MIB = 1 << 20
RECORDS = [Record(1_000, b"k%d" % row, b"value" * row) for row in range(90)]
BATCH = of_kafka_python(RECORDS)
PLAIN = BATCH[HEAD_BYTES:]
COMPRESSED = (RecordCodec.GZIP, RecordCodec.SNAPPY, RecordCodec.LZ4, RecordCodec.ZSTD)


def streamed(name: str) -> Callable[[bytes], bytes]:
    """A compressor that does not know how much will come, as Java's."""

    def pack(data: bytes) -> bytes:
        sink = pa.BufferOutputStream()
        with pa.CompressedOutputStream(sink, name) as stream:
            for start in range(0, len(data), 5_000):
                stream.write(data[start : start + 5_000])
        return bytes(sink.getvalue())

    return pack


def at_once(name: str) -> Callable[[bytes], bytes]:
    return lambda data: pa.compress(data, name, asbytes=True)


def xerial(data: bytes, block_bytes: int = 3_000) -> bytes:
    """The frames of snappy-java, which Java, kafka-python and others send."""
    found = struct.pack(">8sii", b"\x82SNAPPY\x00", 1, 1)
    for start in range(0, len(data), block_bytes):
        block = at_once("snappy")(data[start : start + block_bytes])
        found += struct.pack(">i", len(block)) + block
    return found


_STORED: tuple[RecordCodec, Callable[[bytes], bytes]] = (
    RecordCodec.GZIP,
    lambda data: gzip.compress(data, 0),
)
SENT: list[tuple[RecordCodec, Callable[[bytes], bytes]]] = [
    (RecordCodec.GZIP, gzip.compress),
    _STORED,
    (RecordCodec.SNAPPY, at_once("snappy")),
    (RecordCodec.SNAPPY, xerial),
    (RecordCodec.LZ4, at_once("lz4")),
    (RecordCodec.LZ4, streamed("lz4")),
    (RecordCodec.ZSTD, at_once("zstd")),
    (RecordCodec.ZSTD, streamed("zstd")),
]


@pytest.mark.parametrize(("codec", "pack"), SENT)
def test_every_form_that_clients_send_is_read(
    codec: RecordCodec, pack: Callable[[bytes], bytes]
) -> None:
    found = decode_produced(packed_with(BATCH, codec, pack), bytes_max=len(PLAIN))
    assert found.columns.keys is not None
    assert found.columns.keys.to_pylist() == [record.key for record in RECORDS]
    assert found.columns.values.to_pylist() == [record.value for record in RECORDS]


@pytest.mark.parametrize(("codec", "pack"), SENT)
def test_the_limit_is_exact(codec: RecordCodec, pack: Callable[[bytes], bytes]) -> None:
    data = pack(PLAIN)
    assert decompress(memoryview(data), codec, len(PLAIN)) == PLAIN
    with pytest.raises(RecordsTooLarge):
        decompress(memoryview(data), codec, len(PLAIN) - 1)


@pytest.mark.parametrize(("codec", "pack"), [each for each in SENT if each is not _STORED])
def test_bombs_are_refused_before_they_are_in_memory(
    codec: RecordCodec, pack: Callable[[bytes], bytes]
) -> None:
    bomb = xerial(bytes(64 * MIB), 8 * MIB) if pack is xerial else pack(bytes(64 * MIB))
    usual = pa.default_memory_pool()
    counted = pa.proxy_memory_pool(usual)
    pa.set_memory_pool(counted)
    tracemalloc.start()
    try:
        with pytest.raises(RecordsTooLarge):
            decompress(memoryview(bomb), codec, MIB)
        spent = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        pa.set_memory_pool(usual)
    assert spent + counted.max_memory() < 4 * MIB


@pytest.mark.parametrize(("codec", "pack"), SENT)
def test_a_cut_stream_is_damage(codec: RecordCodec, pack: Callable[[bytes], bytes]) -> None:
    data = pack(PLAIN)
    for length in (0, 1, 3, 7, 15, 16, 19, len(data) // 2, len(data) - 1):
        batch = packed_with(BATCH, codec, lambda _, length=length: data[:length])  # type: ignore[misc]
        with pytest.raises(CorruptRecords):
            decode_produced(batch, bytes_max=MIB)


@pytest.mark.parametrize(("codec", "pack"), SENT)
def test_bytes_behind_a_stream_are_damage(
    codec: RecordCodec, pack: Callable[[bytes], bytes]
) -> None:
    for behind in (b"\0", b"\0\0\0\1", b"more of it"):
        batch = packed_with(BATCH, codec, lambda data, behind=behind: pack(data) + behind)  # type: ignore[misc]
        with pytest.raises(CorruptRecords):
            decode_produced(batch, bytes_max=MIB)


@pytest.mark.parametrize("codec", COMPRESSED)
def test_what_is_no_stream_is_damage(codec: RecordCodec) -> None:
    for data in (b"", PLAIN, b"\xff" * 40, bytes(40)):
        with pytest.raises(CorruptRecords):
            decode_produced(packed_with(BATCH, codec, lambda _, data=data: data), bytes_max=MIB)  # type: ignore[misc]


@pytest.mark.parametrize("length", [-1, 0, 1 << 30])
def test_a_block_of_snappy_with_a_wrong_length_is_damage(length: int) -> None:
    head = struct.pack(">8sii", b"\x82SNAPPY\x00", 1, 1)
    with pytest.raises(CorruptRecords):
        decompress(memoryview(head + struct.pack(">i", length)), RecordCodec.SNAPPY, MIB)


@pytest.mark.parametrize("codec", RecordCodec)
@pytest.mark.parametrize("size", [1, 1_000, 9 * MIB])
def test_what_is_compressed_here_is_read_here(codec: RecordCodec, size: int) -> None:
    data = bytes(range(256)) * (size // 256) + b"x"
    packed = bytes(compress(data, codec))
    assert bytes(decompress(memoryview(packed), codec, len(data))) == data


def test_gzip_and_snappy_are_what_everybody_takes() -> None:
    assert gzip.decompress(bytes(compress(PLAIN, RecordCodec.GZIP))) == PLAIN
    assert zlib.decompress(bytes(compress(PLAIN, RecordCodec.GZIP)), wbits=31) == PLAIN
    packed = bytes(compress(PLAIN, RecordCodec.SNAPPY))
    assert pa.decompress(packed, len(PLAIN), "snappy", asbytes=True) == PLAIN


def test_lz4_frames_have_independent_blocks() -> None:
    """Java's reader refuses frames with linked blocks, and a wrong checksum of the header."""
    packed = bytes(compress(PLAIN, RecordCodec.LZ4))
    assert packed[:4] == bytes.fromhex("04224d18")
    assert packed[4] >> 6 == 1, "the version"
    assert packed[4] & 0x20, "independent"
    assert packed[6] == _xxh32_of_two(packed[4:6]) >> 8 & 0xFF
    assert packed[-4:] == bytes(4), "the end mark"


def test_bytes_that_do_not_become_fewer_are_stored() -> None:
    data = bytes(range(256))
    packed = bytes(compress(data, RecordCodec.LZ4))
    assert struct.unpack_from("<I", packed, 7)[0] == len(data) | 1 << 31
    assert bytes(decompress(memoryview(packed), RecordCodec.LZ4, 256)) == data


def _xxh32_of_two(data: bytes) -> int:
    """xxHash32 of two bytes, from its specification."""
    mask, first, second, third, fifth = (
        0xFFFFFFFF,
        0x9E3779B1,
        0x85EBCA77,
        0xC2B2AE3D,
        0x165667B1,
    )
    found = fifth + len(data)
    for byte in data:
        found = found + byte * fifth & mask
        found = (found << 11 | found >> 21) & mask
        found = found * first & mask
    found ^= found >> 15
    found = found * second & mask
    found ^= found >> 13
    found = found * third & mask
    return found ^ found >> 16
