"""Compresses and decompresses the records of a batch, with pyarrow and zlib.

Invariants
1. Nothing is decompressed beyond the limit: not more than a chunk (`_CHUNK_BYTES`) of memory beyond
   it is spent on a bomb.
2. What is compressed here can be read by every client: an LZ4 frame has independent blocks, which
   Java's reader asks for.

Format. gzip, Zstandard and LZ4 are one frame each. Snappy is one raw block, or blocks in the frame
of snappy-java ("xerial"): a header of 16 bytes, then each block behind its length.
"""

from __future__ import annotations

import struct
import zlib
from typing import Final

import pyarrow as pa

from semel.gateway.records.record_batch import RecordCodec
from semel.gateway.records.record_errors import CorruptRecords, RecordsTooLarge

_CHUNK_BYTES: Final = 256 << 10
_FIRST_BYTES: Final = 4 << 10
_RATIO: Final = 8
"""A small frame is rarely more than so many times as large afterwards, and takes no whole chunk."""
_GZIP_WINDOW: Final = 31
"""zlib's number for a gzip header and the largest window."""
_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER_BYTES: Final = 16
_LENGTH: Final = struct.Struct(">i")

_LZ4_FRAME_START: Final = bytes.fromhex("04224d18607073")
"""Magic, version 1 with independent blocks of at most 4 MiB, and the checksum of these two bytes.
Arrow's own frames have linked blocks."""
_LZ4_BLOCK_BYTES: Final = 4 << 20
_LZ4_STORED_BIT: Final = 1 << 31
"""In a block's length: the block is not compressed."""
_LZ4_LENGTH: Final = struct.Struct("<I")


def decompress(data: memoryview, codec: RecordCodec, bytes_max: int) -> bytes | memoryview:
    """Returns the records, over the same memory without a codec.

    Raises RecordsTooLarge for more than `bytes_max` bytes, CorruptRecords for others than the
    codec's, or bytes behind its end.
    """
    try:
        match codec:
            case RecordCodec.NONE:
                found: bytes | memoryview = data
            case RecordCodec.GZIP:
                found = _gunzip(data, bytes_max)
            case RecordCodec.SNAPPY:
                found = _unsnap(data, bytes_max)
            case RecordCodec.LZ4:
                found = _inflate(data, "lz4", bytes_max)
            case RecordCodec.ZSTD:
                found = _inflate(data, "zstd", bytes_max)
    except (pa.ArrowException, OSError, ValueError, zlib.error) as error:
        raise CorruptRecords(f"records cannot be decompressed: {error}") from error
    if len(found) > bytes_max:
        raise _too_large(bytes_max)
    return found


def compress(data: pa.Buffer | bytes, codec: RecordCodec) -> pa.Buffer | bytes:
    """Returns the records as a reader of any client takes them."""
    match codec:
        case RecordCodec.NONE:
            return data
        case RecordCodec.GZIP:
            return zlib.compress(data, wbits=_GZIP_WINDOW)
        case RecordCodec.SNAPPY:
            return pa.Codec("snappy").compress(data)
        case RecordCodec.LZ4:
            return _lz4_frame(memoryview(data))
        case RecordCodec.ZSTD:
            return pa.Codec("zstd").compress(data)


def _gunzip(data: memoryview, bytes_max: int) -> bytes:
    stream = zlib.decompressobj(_GZIP_WINDOW)
    found = stream.decompress(data, bytes_max + 1)
    if len(found) > bytes_max:
        raise _too_large(bytes_max)
    if not stream.eof or stream.unused_data:
        raise CorruptRecords("gzip stream is cut, or has bytes behind it")
    return found


def _inflate(data: memoryview, name: str, bytes_max: int) -> bytes:
    """Reads a stream by chunks: a reader's buffer is as large as what is asked for."""
    if not data:
        raise CorruptRecords(f"{name} frame is cut")
    stream = pa.CompressedInputStream(pa.BufferReader(pa.py_buffer(data)), name)
    chunks: list[bytes] = []
    left = bytes_max
    size = min(_CHUNK_BYTES, max(_FIRST_BYTES, _RATIO * len(data)))
    while chunk := stream.read(size):
        left -= len(chunk)
        if left < 0:
            raise _too_large(bytes_max)
        chunks.append(chunk)
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def _unsnap(data: memoryview, bytes_max: int) -> bytes:
    if bytes(data[: len(_XERIAL_MAGIC)]) != _XERIAL_MAGIC:
        return _unsnap_block(data, bytes_max)
    chunks: list[bytes] = []
    at, left = _XERIAL_HEADER_BYTES, bytes_max
    while at < len(data):
        if at + _LENGTH.size > len(data):
            raise CorruptRecords("snappy stream is cut")
        (length,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size
        if not 0 < length <= len(data) - at:
            raise CorruptRecords(f"snappy stream has a block of {length} bytes")
        chunks.append(_unsnap_block(data[at : at + length], left))
        left -= len(chunks[-1])
        at += length
    return b"".join(chunks)


def _unsnap_block(data: memoryview, bytes_max: int) -> bytes:
    length = shift = 0
    for each in data[:5]:
        length |= (each & 0x7F) << shift
        shift += 7
        if each < 0x80:
            break
    else:
        raise CorruptRecords("snappy block has no length")
    if length > bytes_max:
        raise _too_large(bytes_max)
    return pa.Codec("snappy").decompress(  # type: ignore[no-any-return]
        pa.py_buffer(data), length, asbytes=True
    )


def _lz4_frame(data: memoryview) -> bytes:
    codec = pa.Codec("lz4_raw")
    parts = [_LZ4_FRAME_START]
    for start in range(0, len(data), _LZ4_BLOCK_BYTES):
        block = data[start : start + _LZ4_BLOCK_BYTES]
        packed = codec.compress(pa.py_buffer(block), asbytes=True)
        if len(packed) < len(block):
            parts += [_LZ4_LENGTH.pack(len(packed)), packed]
        else:
            parts += [_LZ4_LENGTH.pack(len(block) | _LZ4_STORED_BIT), bytes(block)]
    parts.append(bytes(4))
    return b"".join(parts)


def _too_large(bytes_max: int) -> RecordsTooLarge:
    return RecordsTooLarge(f"records have more than {bytes_max} bytes: send smaller batches")
