"""The codecs of bodies without Arrow: see `codecs.py`, which says what they promise.

How it works. Zstandard is the standard library's module from Python 3.14 on, and its backport
before; LZ4 is python-lz4. Frame after frame is unpacked into what is left of the length, so that a
bomb stops one byte behind it.

Invariants
1. Bodies of several frames, and frames to be skipped, mean the same as to Arrow. No writer of ours
   makes any, but what one reader takes all must take.
2. Work is linear in the bytes given: no frame is copied to get at the next one.
"""

from __future__ import annotations

import sys
from typing import Any, Final

from lz4 import frame as lz4

from semel.protos.batch import Codec
from semel.protos.errors import CorruptBatch

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

_ZSTD_LEVEL: Final = 1
"""Arrow's level."""
_ZSTD_OPTIONS: Final[dict[int, int]] = {
    zstd.DecompressionParameter.window_log_max: (
        zstd.DecompressionParameter.window_log_max.bounds()[1]
    )
}
"""Takes every window, as Arrow does: what a frame claims is not touched before it is filled."""


def pack(data: bytes, codec: Codec) -> bytes:
    if codec is Codec.LZ4:
        packed: bytes = lz4.compress(data, store_size=False)
        return packed
    assert codec is Codec.ZSTD
    return zstd.compress(data, _ZSTD_LEVEL)


def unpack(frame: Any, codec: Codec, length: int) -> Any:
    take = _take_lz4 if codec is Codec.LZ4 else _take_zstd
    rest = memoryview(frame)
    pieces: list[bytes] = []
    left = length
    try:
        while len(rest) and left >= 0:
            piece, taken = take(rest, left + 1)
            left -= len(piece)
            rest = rest[taken:]
            if piece:
                pieces.append(piece)
    except (zstd.ZstdError, RuntimeError, ValueError, EOFError, MemoryError) as error:
        raise CorruptBatch(f"batch body cannot be decompressed: {error}") from error
    if left:
        found = f"{length - left}" if left > 0 else f"more than {length}"
        raise CorruptBatch(f"batch body has {found} bytes uncompressed, not {length}")
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _take_zstd(rest: memoryview, bytes_max: int) -> tuple[bytes, int]:
    """Returns what is in the first frame, up to `bytes_max`, and the frame's size. Raises EOFError
    for a frame that is cut, or has another length than it says."""
    size = zstd.get_frame_size(rest)
    said = zstd.get_frame_info(rest).decompressed_size
    reader = zstd.ZstdDecompressor(options=_ZSTD_OPTIONS)
    data = reader.decompress(rest[:size], bytes_max)
    if not reader.eof and len(data) < bytes_max:
        raise EOFError("the frame is cut")
    if reader.eof and said not in (None, len(data)):
        raise EOFError("the frame is not as long as it says")
    return data, size


def _take_lz4(rest: memoryview, bytes_max: int) -> tuple[bytes, int]:
    """Like `_take_zstd`."""
    context = lz4.create_decompression_context()
    data, taken, ended = lz4.decompress_chunk(context, rest, bytes_max)
    if not ended and len(data) < bytes_max:
        raise EOFError("the frame is cut")
    return data, taken
