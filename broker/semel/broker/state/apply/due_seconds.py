"""How much of each topic is due in each second: an index over the delayed batches.

How it works. A topic has one packed entry for each second in which something of it is due, in
blocks that rise by second. A question, or a batch that is added, is a binary search for the block
and one within it, however many batches are due then. A million seconds take 24 MB, and blocks that
were split while they grew up to twice as much.

The index follows from what is delayed: it is no part of the state's bytes, and is made anew from
them when a node starts, by numpy over the packed batches.

Invariants
1. An entry has the sums over the topic's delayed batches that are due in its second; cancelled
   messages do not count. A second without any has no entry.
2. Seconds rise strictly over all blocks of a topic, and no block is empty.

Not here: the delayed batches (`delays.py`), how much may be due (`delay_limits.py`).
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

SECOND_US: Final = 1_000_000
_ENTRY: Final = struct.Struct("<qqq")
_PACKED: Final = np.dtype([("second", "<i8"), ("messages", "<i8"), ("bytes", "<i8")])
assert _PACKED.itemsize == _ENTRY.size
_BLOCK_ENTRIES: Final = 512
_BLOCK_BYTES: Final = _BLOCK_ENTRIES * _ENTRY.size
_SECOND: Final = struct.Struct("<q")

Numbers = npt.NDArray[np.int64]


class DueLoad(NamedTuple):
    """How much is due in one second."""

    messages: int = 0
    bytes: int = 0
    """Length of the stored batches, broker headers included."""


def second_of(due_us: int) -> int:
    """The second since 1970 in which a time lies."""
    return due_us // SECOND_US


class DueSeconds:
    """The seconds of all topics of a broker group."""

    __slots__ = ("_topics",)

    def __init__(self) -> None:
        self._topics: dict[int, _Seconds] = {}

    def load(self, topic_id: int, second: int) -> DueLoad:
        """How much of the topic is due in that second."""
        found = self._topics.get(topic_id)
        return DueLoad() if found is None else found.load(second)

    def change(self, topic_id: int, second: int, messages: int, length: int) -> None:
        """Adds to a second, or takes away what was added."""
        found = self._topics.get(topic_id)
        if found is None:
            found = self._topics[topic_id] = _Seconds()
        found.change(second, messages, length)
        if not found.blocks:
            del self._topics[topic_id]

    def change_many(
        self, topic_id: int, due_us: Numbers, messages: Numbers, length: Numbers, sign: int
    ) -> None:
        """Adds many batches at once (`sign` 1), or takes them away (-1)."""
        found = self._topics.pop(topic_id, None) or _Seconds()
        added = np.empty(len(due_us), _PACKED)
        added["second"] = due_us // SECOND_US
        added["messages"] = messages * sign
        added["bytes"] = length * sign
        found.replace(_summed([found.packed(), added]))
        if found.blocks:
            self._topics[topic_id] = found

    def all(self) -> dict[tuple[int, int], DueLoad]:
        """Every entry, by topic and second."""
        return {
            (topic_id, second): DueLoad(messages, length)
            for topic_id, found in self._topics.items()
            for second, messages, length in found.packed().tolist()
        }


class _Seconds:
    """The seconds of one topic."""

    __slots__ = ("blocks", "firsts")

    def __init__(self) -> None:
        self.blocks: list[bytearray] = []
        self.firsts: list[int] = []
        """The first second of each block."""

    def load(self, second: int) -> DueLoad:
        block, at, there = self._find(second)
        return DueLoad(*_ENTRY.unpack_from(self.blocks[block], at)[1:]) if there else DueLoad()

    def change(self, second: int, messages: int, length: int) -> None:
        if not self.blocks:
            self.blocks.append(bytearray())
            self.firsts.append(second)
        number, at, there = self._find(second)
        block = self.blocks[number]
        if there:
            _, before, size = _ENTRY.unpack_from(block, at)
            messages, length = before + messages, size + length
        assert messages >= 0 <= length, f"less than nothing is due in second {second}"
        if messages or length:
            entry = _ENTRY.pack(second, messages, length)
            block[at : at + _ENTRY.size * there] = entry
        else:
            del block[at : at + _ENTRY.size * there]
        if not block:
            del self.blocks[number], self.firsts[number]
            return
        if len(block) > _BLOCK_BYTES:
            half = _BLOCK_ENTRIES // 2 * _ENTRY.size
            self.blocks.insert(number + 1, block[half:])
            del block[half:]
            self.firsts.insert(number + 1, _second(self.blocks[number + 1], 0))
        self.firsts[number] = _second(block, 0)

    def _find(self, second: int) -> tuple[int, int, bool]:
        """The block in which the second is or belongs, where in it, and whether it is there."""
        number = max(0, bisect_right(self.firsts, second) - 1)
        block = self.blocks[number]
        places = range(len(block) // _ENTRY.size)
        place = bisect_right(places, second, key=lambda each: _second(block, each))
        if place and _second(block, place - 1) == second:
            return number, (place - 1) * _ENTRY.size, True
        return number, place * _ENTRY.size, False

    def packed(self) -> npt.NDArray[Any]:
        """All entries, rising."""
        return np.frombuffer(b"".join(self.blocks), _PACKED)

    def replace(self, entries: npt.NDArray[Any]) -> None:
        """Has these entries from now on, which rise."""
        data = entries.tobytes()
        cuts = range(0, len(data), _BLOCK_BYTES)
        self.blocks = [bytearray(data[at : at + _BLOCK_BYTES]) for at in cuts]
        self.firsts = [_second(block, 0) for block in self.blocks]


def _summed(parts: Iterable[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """One entry for each second, rising, without those that have nothing.

    Column by column, and without sorting what rises already, as the batches of one queue do.
    """
    given = list(parts)
    seconds, messages, length = (
        np.concatenate([part[name] for part in given]) for name in ("second", "messages", "bytes")
    )
    if not len(seconds):
        return np.empty(0, _PACKED)
    if (seconds[1:] < seconds[:-1]).any():
        order = np.argsort(seconds, kind="stable")
        seconds, messages, length = seconds[order], messages[order], length[order]
    begins = np.flatnonzero(np.diff(seconds, prepend=seconds[0] - 1))
    messages, length = np.add.reduceat(messages, begins), np.add.reduceat(length, begins)
    assert (messages >= 0).all(), "less than nothing is due in a second"
    kept = (messages > 0) | (length > 0)
    found = np.empty(np.count_nonzero(kept), _PACKED)
    columns = seconds[begins], messages, length
    found["second"], found["messages"], found["bytes"] = (each[kept] for each in columns)
    return found


def _second(block: bytearray, at: int) -> int:
    return int(_SECOND.unpack_from(block, at * _ENTRY.size)[0])
