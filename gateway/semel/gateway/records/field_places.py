"""Where the fields of a batch's records lie in its bytes, and their bytes as Arrow arrays.

How it works. Places that rise cut the bytes into pieces: a field, what lies between it and the next
one, the next field, and so on. Arrow gets the bytes as an array of all pieces and takes every
second one, which copies each field once and loops over none of them in Python (a few fields are
cut out one by one).
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Numbers: TypeAlias = npt.NDArray[np.int64]

NO_FIELD: Final = -1
"""The length of a field that is null."""
_FEW: Final = 32
"""Up to this number of fields a loop takes less time."""
_SECONDS: Final = pa.array(np.arange(0, 1 << 15, 2))
_NO_BYTES: Final = pa.py_buffer(b"")


class Places(NamedTuple):
    """One field of each record, in the order of their bytes. All of it lies inside the bytes."""

    starts: Numbers
    lengths: Numbers
    """NO_FIELD for a null."""
    has_nulls: bool


class RecordFields(NamedTuple):
    """The fields of all records of a batch."""

    time_deltas: Numbers
    keys: Places
    values: Places
    header_lists: Numbers
    """count + 1 offsets: which headers are a record's."""
    header_names: Places
    """None of them is null."""
    header_values: Places


def picked(data: Any, places: Places) -> pa.Array:
    """Returns the fields as a binary array with memory of its own."""
    starts, lengths, has_nulls = places
    count = len(starts)
    if not count:
        return pa.array([], pa.binary())
    if count <= _FEW:
        return pa.array(
            [
                None if length < 0 else bytes(data[start : start + length])
                for start, length in zip(starts.tolist(), lengths.tolist(), strict=True)
            ],
            pa.binary(),
        )
    bounds = np.empty(2 * count + 1, np.int32)
    bounds[:-1:2] = starts
    bounds[1::2] = starts + (np.maximum(lengths, 0) if has_nulls else lengths)
    bounds[-1] = bounds[-2]
    pieces = pa.Array.from_buffers(
        pa.binary(), 2 * count, [None, pa.py_buffer(bounds), pa.py_buffer(data)]
    )
    seconds = _SECONDS if count <= len(_SECONDS) else pa.array(np.arange(0, 2 * count, 2))
    fields = pieces.take(seconds.slice(0, count))
    if not has_nulls:
        return fields
    validity = pa.py_buffer(np.packbits(lengths >= 0, bitorder="little"))
    _, offsets, content = fields.buffers()
    return pa.Array.from_buffers(pa.binary(), count, [validity, offsets, content or _NO_BYTES])
