"""How much of each topic is due in each second: an index over the delayed batches.

How it works. A topic has one entry for each second in which something of it is due, in blocks of
three columns that rise by second. A question, or a batch that is added, is a binary search for the
block and one within it, however many batches are due then. A million seconds take 24 MB, and blocks
that were split while they grew up to twice as much.

The index follows from what is delayed: it is no part of the state's bytes, and is made anew from
them when a node starts, by numpy over the packed batches.

Invariants
1. An entry has the sums over the topic's delayed batches that are due in its second; cancelled
   messages do not count. A second without any has no entry.
2. Seconds rise strictly over all blocks of a topic, and no block is empty.

Not here: the delayed batches (`delays.py`), how much may be due (`delay_limits.py`).
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

SECOND_US: Final = 1_000_000
_PACKED: Final = np.dtype([("second", "<i8"), ("messages", "<i8"), ("bytes", "<i8")])
_BLOCK_ENTRIES: Final = 512

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


class _Block:
    """Entries that follow one another, by column."""

    __slots__ = ("length", "messages", "second")

    def __init__(self, second: array[int], messages: array[int], length: array[int]) -> None:
        self.second, self.messages, self.length = second, messages, length

    def columns(self) -> tuple[array[int], array[int], array[int]]:
        return self.second, self.messages, self.length

    def change(self, at: int, there: bool, entry: tuple[int, int, int]) -> None:
        """Puts an entry at a place, or takes the one away that is there if nothing is left."""
        empty = entry[1:] == (0, 0)
        for column, value in zip(self.columns(), entry, strict=True):
            if empty:
                del column[at : at + there]
            elif there:
                column[at] = value
            else:
                column.insert(at, value)

    def cut(self, at: int) -> _Block:
        """Takes off the entries from a place on, and returns them."""
        rest = _Block(self.second[at:], self.messages[at:], self.length[at:])
        for column in self.columns():
            del column[at:]
        return rest


class _Seconds:
    """The seconds of one topic."""

    __slots__ = ("blocks", "firsts")

    def __init__(self) -> None:
        self.blocks: list[_Block] = []
        self.firsts: list[int] = []
        """The first second of each block."""

    def load(self, second: int) -> DueLoad:
        number, at, there = self._find(second)
        block = self.blocks[number]
        return DueLoad(block.messages[at], block.length[at]) if there else DueLoad()

    def change(self, second: int, messages: int, length: int) -> None:
        if not self.blocks:
            self.blocks.append(_Block(array("q"), array("q"), array("q")))
            self.firsts.append(second)
        number, at, there = self._find(second)
        block = self.blocks[number]
        if there:
            messages += block.messages[at]
            length += block.length[at]
        assert messages >= 0 <= length, f"less than nothing is due in second {second}"
        block.change(at, there, (second, messages, length))
        if not block.second:
            del self.blocks[number], self.firsts[number]
            return
        if len(block.second) > _BLOCK_ENTRIES:
            rest = block.cut(_BLOCK_ENTRIES // 2)
            self.blocks.insert(number + 1, rest)
            self.firsts.insert(number + 1, rest.second[0])
        self.firsts[number] = block.second[0]

    def _find(self, second: int) -> tuple[int, int, bool]:
        """The block in which the second is or belongs, where in it, and whether it is there."""
        number = max(0, bisect_right(self.firsts, second) - 1)
        seconds = self.blocks[number].second
        at = bisect_left(seconds, second)
        return number, at, at < len(seconds) and seconds[at] == second

    def packed(self) -> npt.NDArray[Any]:
        """All entries, rising."""
        found = np.empty(sum(len(block.second) for block in self.blocks), _PACKED)
        for number, name in enumerate(_PACKED.names or ()):
            columns = [np.frombuffer(block.columns()[number], np.int64) for block in self.blocks]
            found[name] = np.concatenate(columns) if columns else ()
        return found

    def replace(self, entries: npt.NDArray[Any]) -> None:
        """Has these entries from now on, which rise."""
        columns = [np.ascontiguousarray(entries[name], np.int64) for name in _PACKED.names or ()]
        self.blocks = [
            _Block(*(array("q", column[at : at + _BLOCK_ENTRIES].tobytes()) for column in columns))
            for at in range(0, len(entries), _BLOCK_ENTRIES)
        ]
        self.firsts = [block.second[0] for block in self.blocks]


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
