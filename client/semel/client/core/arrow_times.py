"""Due times that a caller has as a column of Arrow: integers, or timestamps with a zone.

Not here: which due times are refused, and lists of times (`core/dues.py`).
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semel.protos.errors import InvalidRequest

_AT_ONCE: Final = 0
_INT64_MAX: Final = (1 << 63) - 1
_TICKS: Final = {"s": 1_000_000, "ms": 1_000, "us": 1}
"""Microseconds per unit of Arrow's timestamps, except for the finest unit."""


def column_us(column: Any, now_us: int) -> npt.NDArray[np.int64]:
    """Returns a column's times in microseconds, rounded up; 0 for nulls and timestamps that have
    passed. Raises InvalidRequest."""
    try:
        if not isinstance(column, pa.Array | pa.ChunkedArray):
            column = pa.array(column)
        if isinstance(column, pa.ChunkedArray):
            column = pa.concat_arrays(column.chunks or [pa.array([], column.type)])
        kind = column.type
        if pa.types.is_null(kind):
            return np.zeros(len(column), np.int64)
        if pa.types.is_integer(kind):
            return _numbers(column.cast(pa.int64()))
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise InvalidRequest(f"deliver_at cannot be read as times: {error}") from error
    if not pa.types.is_timestamp(kind):
        raise InvalidRequest(
            "deliver_at must be a column of timestamps with a time zone or of whole microseconds"
            f" since 1970, not {kind}"
        )
    if kind.tz is None:
        raise InvalidRequest(
            f"deliver_at is {kind}, without a time zone, so nobody knows when that is: cast it to"
            " timestamp('us', 'UTC')"
        )
    times = _numbers(column.cast(pa.int64()))
    if kind.unit == "ns":
        times = -(-times // 1_000)
    else:
        tick = _TICKS[kind.unit]
        times = np.clip(times, 0, _INT64_MAX // tick) * tick
    return np.where(times <= now_us, _AT_ONCE, times)


def _numbers(column: pa.Array) -> npt.NDArray[np.int64]:
    return np.array(column.fill_null(_AT_ONCE).to_numpy(zero_copy_only=False), np.int64)
