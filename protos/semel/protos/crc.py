"""CRC32C over any bytes-like object, without copying large ones.

`google_crc32c` takes only objects that own read-only memory, not memoryviews. A numpy view of the
same memory passes its check. Such a view costs half a microsecond; below a few KiB a copy is
cheaper.
"""

from __future__ import annotations

from typing import Final

import google_crc32c
import numpy as np

_COPY_BELOW: Final = 4096


def crc32c(data: bytes | bytearray | memoryview, crc: int = 0) -> int:
    """Returns the CRC32C of `data`, continued from `crc`, the CRC of the bytes before it."""
    if isinstance(data, bytes):
        return google_crc32c.extend(crc, data)  # type: ignore[no-any-return]
    if len(data) < _COPY_BELOW:
        return google_crc32c.extend(crc, bytes(data))  # type: ignore[no-any-return]
    return google_crc32c.extend(crc, np.frombuffer(data, np.uint8))  # type: ignore[no-any-return]


def crc32c_range(data: bytes | bytearray | memoryview, start: int, stop: int) -> int:
    """Returns the CRC32C of `data[start:stop]`; the range must lie inside."""
    if stop - start < _COPY_BELOW:
        return google_crc32c.value(bytes(data[start:stop]))  # type: ignore[no-any-return]
    view = np.frombuffer(data, np.uint8, stop - start, start)
    return google_crc32c.value(view)  # type: ignore[no-any-return]
