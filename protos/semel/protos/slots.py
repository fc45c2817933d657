"""Routing as a pure function of the message: key or source position -> slot -> queue.

A topic has 65,536 slots; each queue owns a half-open range of them. The slot of a message is the
low 16 bits of MurmurHash3 (x86, 32 bits, seed 0; Austin Appleby, public domain) of its key, or of
its source position as 8 little-endian bytes. Nothing else counts, so the same message goes to the
same slot from any client, version and machine. An exact resume depends on that.

Not here: which queues a topic has now (the controller's routes).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final

import mmh3
import numpy as np
import numpy.typing as npt

from semel.protos.arrays import Array, data_of, is_array, offsets_of
from semel.protos.errors import InvalidRequest

SLOT_COUNT: Final = 65_536
SLOT_MASK: Final = SLOT_COUNT - 1

_COLUMN_KEY_BYTES_MAX: Final = 1_024
"""Longer keys are few in a batch, and take more steps together than alone."""
_FEW_KEYS: Final = 32
"""Up to this number of keys a loop in Python takes less time than the calls of numpy."""
_KEYS_PER_LENGTH: Final = 64
"""Keys of one length, on average, from which on they are hashed together."""
_KEYS_AT_ONCE: Final = 1 << 14
"""Keys whose hashes are computed together: they stay in the processor's cache."""
Slots = npt.NDArray[np.uint16]

_C1: Final = np.uint32(0xCC9E2D51)
_C2: Final = np.uint32(0x1B873593)
_M: Final = np.uint32(5)
_N: Final = np.uint32(0xE6546B64)
_F1: Final = np.uint32(0x85EBCA6B)
_F2: Final = np.uint32(0xC2B2AE35)
_U32: Final = np.uint64(0xFFFFFFFF)


def slot_of_key(key: bytes) -> int:
    """Returns the slot of one key."""
    return mmh3.hash(key, 0, signed=False) & SLOT_MASK


def slots_of_keys(
    keys: Array | Sequence[bytes | None],
    positions: npt.NDArray[np.int64] | None = None,
) -> Slots:
    """Returns the slot of each key. A null key takes the slot of its source position.

    Raises InvalidRequest for a null key without `positions`.
    """
    listed: Any = keys
    if is_array(listed) and len(listed) > _FEW_KEYS and not listed.null_count:
        return slots_of_column(listed)
    if hasattr(listed, "to_pylist"):  # chunked arrays have it, too
        listed = listed.to_pylist()
    digest = mmh3.mmh3_32_uintdigest
    try:
        hashes = [digest(key) for key in listed]
    except TypeError:
        return _slots_of_mixed_keys(listed, positions)
    return np.array(hashes, np.uint32).astype(np.uint16)


def _slots_of_mixed_keys(
    keys: Sequence[bytes | str | None], positions: npt.NDArray[np.int64] | None
) -> Slots:
    if positions is None:
        if None in keys:
            raise InvalidRequest(f"message {keys.index(None)} has neither a key nor a position")
        positions = np.zeros(len(keys), np.int64)
    slots = slots_of_positions(positions)
    for row, key in enumerate(keys):
        if key is not None:
            slots[row] = slot_of_key(key.encode() if isinstance(key, str) else key)
    return slots


def slots_of_positions(positions: npt.NDArray[np.int64]) -> Slots:
    """Returns the slot of each source position."""
    words = positions.astype(np.int64, copy=False).view(np.uint64)
    low = (words & _U32).astype(np.uint32)
    high = (words >> np.uint64(32)).astype(np.uint32)
    h = np.zeros(len(positions), np.uint32)
    # Unsigned numpy arithmetic wraps, as the algorithm wants.
    for block in (low, high):
        k = _rotate(block * _C1, 15) * _C2
        h = _rotate(h ^ k, 13) * _M + _N
    return _finished(h ^ np.uint32(8))  # the length of the input


def slots_of_column(keys: Array) -> Slots:
    """Returns the slot of each key of a binary or string column; of a null any number.

    Keys of one length are hashed together, a word of each at a time. If there are many lengths,
    each key is hashed by itself.
    """
    count = len(keys)
    bounds = offsets_of(keys)
    lengths = np.diff(bounds)
    least, most = (int(lengths.min()), int(lengths.max())) if count else (0, 0)
    if least == most <= _COLUMN_KEY_BYTES_MAX:
        return _slots_of_rows(data_of(keys), int(bounds[0]), count, most)
    classes = np.unique(lengths) if most <= _COLUMN_KEY_BYTES_MAX else lengths
    if len(classes) * _KEYS_PER_LENGTH > count:
        return slots_of_keys([key or b"" for key in keys.to_pylist()])
    slots = np.empty(count, np.uint16)
    for length in classes.tolist():
        rows = np.flatnonzero(lengths == length)
        column = keys.take(rows)
        slots[rows] = _slots_of_rows(data_of(column), 0, len(rows), length)
    return slots


def _slots_of_rows(data: Any, start: int, count: int, length: int) -> Slots:
    """The slots of `count` keys of `length` bytes that follow one another from `start` on."""
    slots = np.empty(count, np.uint16)
    width = -(-length // 4)
    for first in range(0, count, _KEYS_AT_ONCE):
        rows = min(_KEYS_AT_ONCE, count - first)
        h = np.zeros(rows, np.uint32)
        if length:
            at = start + first * length
            if length % 4:
                padded = np.zeros((rows, 4 * width), np.uint8)
                raw = np.frombuffer(data, np.uint8, rows * length, at)
                padded[:, :length] = raw.reshape(rows, length)
                words = padded.view("<u4")
            else:
                words = np.frombuffer(data, "<u4", rows * width, at).reshape(rows, width)
            for number in range(width):
                k = words[:, number] * _C1
                k = _rotate(k, 15)
                k *= _C2
                h ^= k
                if 4 * number + 4 <= length:  # else these are the last one to three bytes
                    h = _rotate(h, 13)
                    h *= _M
                    h += _N
        h ^= np.uint32(length)
        slots[first : first + rows] = _finished(h)
    return slots


def _finished(h: npt.NDArray[np.uint32]) -> Slots:
    h = h ^ (h >> np.uint32(16))
    h *= _F1
    h ^= h >> np.uint32(13)
    h *= _F2
    h ^= h >> np.uint32(16)
    return h.astype(np.uint16)


def _rotate(x: npt.NDArray[np.uint32], bits: int) -> npt.NDArray[np.uint32]:
    rotated = x << np.uint32(bits)
    rotated |= x >> np.uint32(32 - bits)
    return rotated


def split_slots(queues: int) -> list[tuple[int, int]]:
    """Returns `queues` half-open ranges that cover all slots; their sizes differ by at most one.

    Raises InvalidRequest unless 1 <= queues <= 65,536.
    """
    if not 1 <= queues <= SLOT_COUNT:
        raise InvalidRequest(f"a topic has 1 to {SLOT_COUNT} queues, not {queues}")
    bounds = [number * SLOT_COUNT // queues for number in range(queues + 1)]
    return list(pairwise(bounds))


def queue_for_slots(
    starts: npt.NDArray[np.int64] | Sequence[int], slots: npt.NDArray[Any] | Sequence[int]
) -> npt.NDArray[np.int64]:
    """Returns, for each slot, the index in `starts` of the range that holds it.

    `starts` are the first slots of ranges that cover all slots: they rise, from 0.
    """
    return np.searchsorted(np.asarray(starts), np.asarray(slots), side="right") - 1
