"""The codecs of bodies with Arrow: see `codecs.py`, which says what they promise."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa

from semel.protos.batch import Codec
from semel.protos.errors import CorruptBatch

_NAMES: Final = {Codec.LZ4: "lz4", Codec.ZSTD: "zstd"}


def pack(data: bytes, codec: Codec) -> bytes:
    packed: bytes = pa.Codec(_NAMES[codec]).compress(data, asbytes=True)
    return packed


def unpack(frame: Any, codec: Codec, length: int) -> Any:
    try:
        if codec is Codec.LZ4:
            # If a frame is shorter than claimed, the one-shot call returns memory that it never
            # wrote; the stream tells how much there was.
            stream = pa.CompressedInputStream(pa.BufferReader(frame), "lz4")
            data = stream.read_buffer(length + 1)
        else:
            data = pa.Codec(_NAMES[codec]).decompress(frame, length)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise CorruptBatch(f"batch body cannot be decompressed: {error}") from error
    if data.size != length:
        raise CorruptBatch(f"batch body has {data.size} bytes uncompressed, not {length}")
    return data
