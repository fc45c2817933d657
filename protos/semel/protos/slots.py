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
import pyarrow as pa

from semel.protos.errors import InvalidRequest

SLOT_COUNT: Final = 65_536
SLOT_MASK: Final = SLOT_COUNT - 1

_COLUMN_KEY_BYTES_MAX: Final = 1_024
"""Longer keys are few in a batch, and take more steps together than alone."""
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
    keys: pa.Array | pa.ChunkedArray | Sequence[bytes | None],
    positions: npt.NDArray[np.int64] | None = None,
) -> Slots:
    """Returns the slot of each key. A null key takes the slot of its source position.

    Raises InvalidRequest for a null key without `positions`.
    """
    listed: Any = keys
    if isinstance(listed, pa.Array | pa.ChunkedArray):
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


def slots_of_column(keys: pa.Array) -> Slots:
    """Returns the slot of each key of a binary column, without a step for each key; of a null any
    number.

    All keys are hashed together, a word of each at a time; only very long ones are hashed by
    themselves.
    """
    count = len(keys)
    bounds = np.frombuffer(keys.buffers()[1], np.int32)[keys.offset : keys.offset + count + 1]
    raw = keys.buffers()[2]
    data = np.frombuffer(b"" if raw is None else raw, np.uint8)
    starts, lengths = bounds[:-1].astype(np.int64), np.diff(bounds)
    long = lengths > _COLUMN_KEY_BYTES_MAX
    words = np.where(long, 0, lengths // 4)
    h = np.zeros(count, np.uint32)
    order = np.argsort(-words, kind="stable")
    # How many keys have a word of each number: those come first in the order.
    having = count - np.searchsorted(np.sort(words), np.arange(1, words.max(initial=0) + 1))
    for word, number in enumerate(having.tolist()):
        rows = order[:number]
        at = starts[rows] + 4 * word
        k = np.zeros(number, np.uint32)
        for byte in range(4):
            k |= data[at + byte].astype(np.uint32) << np.uint32(8 * byte)
        h[rows] = _rotate(h[rows] ^ (_rotate(k * _C1, 15) * _C2), 13) * _M + _N
    tails, left = starts + 4 * words.astype(np.int64), np.where(long, 0, lengths % 4)
    k = np.zeros(count, np.uint32)
    for byte in range(3):
        rows = np.flatnonzero(left > byte)
        k[rows] |= data[tails[rows] + byte].astype(np.uint32) << np.uint32(8 * byte)
    h ^= _rotate(k * _C1, 15) * _C2
    slots = _finished(h ^ lengths.astype(np.uint32))
    for row in np.flatnonzero(long).tolist():
        slots[row] = slot_of_key(data[starts[row] : starts[row] + lengths[row]].tobytes())
    return slots


def _finished(h: npt.NDArray[np.uint32]) -> Slots:
    h = h ^ (h >> np.uint32(16))
    h *= _F1
    h ^= h >> np.uint32(13)
    h *= _F2
    h ^= h >> np.uint32(16)
    return h.astype(np.uint16)


def _rotate(x: npt.NDArray[np.uint32], bits: int) -> npt.NDArray[np.uint32]:
    return (x << np.uint32(bits)) | (x >> np.uint32(32 - bits))


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
