"""One digest of many rows: what they say and in which order, not how they are stored.

How it works. Every column is a few streams of bytes: which rows are present, their lengths, their
data. A SHA-256 runs over each stream, and the digest is the SHA-256 over these and the number of
rows. So it does not depend on how rows are cut into batches, row groups or files, on codecs, or on
where an array was sliced. The log and the tier can be compared by it: take the rows of the same
offsets from both.

Format. `docs/formats/tier.md`, "Digest of rows".

Rejected: a sum of one hash for each row, which could be joined over files without reading them
again. Arrow and numpy have no such hash for binary columns, and a loop over messages would take a
hundred times as long.
"""

from __future__ import annotations

import hashlib
import struct
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semel.protos.arrays import binary_buffers, header_buffers, nullable_buffers, numbers_of
from semel.tier.schema import NUMBERS, SCHEMA

_TAG: Final = b"semel rows 1"
_STREAMS: Final = tuple(
    f"{field.name}.{stream}"
    for field in SCHEMA
    for stream in (
        ("numbers",)
        if field.name in NUMBERS
        else ("lists", "name lengths", "names", "value lengths", "values")
        if field.name == "headers"
        else (("present",) if field.nullable else ()) + ("lengths", "data")
    )
)


class RowsDigest:
    """The digest of the rows that it was given, in the order in which it was given them."""

    def __init__(self) -> None:
        self.rows = 0
        self._streams = {name: hashlib.sha256() for name in _STREAMS}

    def update(self, rows: pa.Table) -> None:
        """Adds rows, which have SCHEMA."""
        assert rows.schema.names == SCHEMA.names, rows.schema.names
        for batch in rows.to_batches():
            for name, column in zip(SCHEMA.names, batch.columns, strict=True):
                self._add(name, column)
        self.rows += rows.num_rows

    def _add(self, name: str, column: pa.Array) -> None:
        if not len(column):
            return
        if name in NUMBERS:
            self._feed(f"{name}.numbers", numbers_of(column, np.int64))
        elif name == "headers":
            lists, names, name_data, values, value_data = header_buffers(column)
            self._feed(f"{name}.lists", _lengths(lists))
            self._feed(f"{name}.name lengths", _lengths(names))
            self._feed(f"{name}.names", name_data)
            self._feed(f"{name}.value lengths", _lengths(values))
            self._feed(f"{name}.values", value_data)
        elif f"{name}.present" in self._streams:
            valid, offsets, data = nullable_buffers(column)
            bits = np.unpackbits(valid, count=len(column), bitorder="little")
            self._feed(f"{name}.present", bits)
            self._feed(f"{name}.lengths", _lengths(offsets))
            self._feed(f"{name}.data", data)
        else:
            offsets, data = binary_buffers(column)
            self._feed(f"{name}.lengths", _lengths(offsets))
            self._feed(f"{name}.data", data)

    def _feed(self, stream: str, data: Any) -> None:
        self._streams[stream].update(data)

    def hexdigest(self) -> str:
        """The digest so far, 64 hexadecimal digits."""
        whole = hashlib.sha256(_TAG + struct.pack("<Q", self.rows))
        for name in _STREAMS:
            whole.update(self._streams[name].digest())
        return whole.hexdigest()


def _lengths(offsets: npt.NDArray[np.int32]) -> npt.NDArray[np.uint32]:
    return np.diff(offsets).astype(np.uint32)


def digest_of(rows: pa.Table) -> str:
    """The digest of `rows`, which have SCHEMA."""
    found = RowsDigest()
    found.update(rows)
    return found.hexdigest()
