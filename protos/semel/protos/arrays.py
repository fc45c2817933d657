"""The few things that batches do with arrays: Arrow's where it is installed, else plain ones.

How it works. A column is a `pyarrow.Array`, or of `plain_arrays.py`: runs of bytes, numbers, or the
headers of messages. Both have `len`, `null_count`, `slice(start, length)`, `take(rows)`,
`filter(kept)` and `to_pylist()`, with numpy arrays as arguments. All else is a function, of which
each way has its own. Code that is for Arrow alone, such as the brokers', uses Arrow itself.

Invariants
1. A process has arrays of one kind.
2. Both write the same batches, read the same columns, and refuse the same with the same errors.

Not here: what a batch looks like (`body.py`, `columns.py`).
"""

from __future__ import annotations

from typing import Any, TypeAlias

from semel.protos.arrow import INSTALLED

if INSTALLED:
    from semel.protos.arrow_arrays import (
        aligned,
        as_binary,
        as_headers,
        as_numbers,
        binary_array,
        binary_buffers,
        binary_over,
        buffer_over,
        coalesce,
        cut,
        data_of,
        header_buffers,
        headers_over,
        is_array,
        nullable_buffers,
        number_array,
        numbers_of,
        numbers_over,
        offsets_of,
        pairs_of,
        pieces_of,
        places_in,
        row_numbers,
        valid_of,
    )
else:
    from semel.protos.plain_arrays import (
        aligned,
        as_binary,
        as_headers,
        as_numbers,
        binary_array,
        binary_buffers,
        binary_over,
        buffer_over,
        coalesce,
        cut,
        data_of,
        header_buffers,
        headers_over,
        is_array,
        nullable_buffers,
        number_array,
        numbers_of,
        numbers_over,
        offsets_of,
        pairs_of,
        pieces_of,
        places_in,
        row_numbers,
        valid_of,
    )

Array: TypeAlias = Any
"""A column of either kind."""

__all__ = [
    "Array",
    "aligned",
    "as_binary",
    "as_headers",
    "as_numbers",
    "binary_array",
    "binary_buffers",
    "binary_over",
    "buffer_over",
    "coalesce",
    "cut",
    "data_of",
    "header_buffers",
    "headers_over",
    "is_array",
    "nullable_buffers",
    "number_array",
    "numbers_of",
    "numbers_over",
    "offsets_of",
    "pairs_of",
    "pieces_of",
    "places_in",
    "row_numbers",
    "valid_of",
]
