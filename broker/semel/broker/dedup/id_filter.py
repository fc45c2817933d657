"""Blocked Bloom filters over the keys of message ids: most ids are new, and are found to be new
without a look at the disk.

How it works. A filter is an array of blocks, two 64-bit words each. The upper half of a key's first
half chooses a block, and groups of six bits of its second half choose four bits in each word. So a
look-up touches one cache line, whatever the filter's size, and the mask of a key is the same for
all filters. (Putze, Sanders, Singler, "Cache-, hash-, and space-efficient Bloom filters", 2007.)

Invariants
1. A key that was added is always found.
2. Blocks rise with the keys, so sorted keys fill a filter from its beginning to its end.

Not here: computing keys (`fingerprints.py`).
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from semel.broker.dedup.fingerprints import U64

BITS_PER_KEY: Final = 20
"""When a filter is full, it takes about 8 in 10,000 new keys for known ones."""
_BLOCK_BITS: Final = 128
_BLOCKS_MIN: Final = 8
_BITS_PER_WORD: Final = 4
_BIT_MASK: Final = np.uint64(63)
_ONE: Final = np.uint64(1)
_HALF: Final = np.uint64(32)


class Probes(NamedTuple):
    """Keys, as filters want them; the same for all filters."""

    upper: U64
    """The upper half of the first half of each key, in 32 bits."""
    left: U64
    """The bits in the first word of a block."""
    right: U64
    """The bits in the second word."""

    @classmethod
    def of(cls, first: U64, second: U64) -> Probes:
        """Takes both halves of keys."""
        return cls(first >> _HALF, _bits(second, 0), _bits(second, _BITS_PER_WORD))


def _bits(second: U64, from_group: int) -> U64:
    bits = _ONE << ((second >> np.uint64(6 * from_group)) & _BIT_MASK)
    for group in range(from_group + 1, from_group + _BITS_PER_WORD):
        bits |= _ONE << ((second >> np.uint64(6 * group)) & _BIT_MASK)
    return bits


class IdFilter:
    """One filter, made for a number of keys."""

    __slots__ = ("_left", "_right", "words")

    def __init__(self, words: U64) -> None:
        """Takes the words of a filter: the first ones of all blocks, then the second ones."""
        self.words = words
        self._left = words[: len(words) // 2]
        self._right = words[len(words) // 2 :]

    @classmethod
    def for_keys(cls, count: int) -> IdFilter:
        """An empty filter for up to `count` keys."""
        blocks = max(_BLOCKS_MIN, -(-count * BITS_PER_KEY // _BLOCK_BITS))
        return cls(np.zeros(2 * blocks, np.uint64))

    @property
    def keys(self) -> int:
        """The number of keys that the filter is made for, or a little more."""
        return len(self._left) * _BLOCK_BITS // BITS_PER_KEY

    def _places(self, probes: Probes) -> U64:
        return (probes.upper * np.uint64(len(self._left))) >> _HALF

    def add(self, probes: Probes) -> None:
        """Adds keys."""
        places = self._places(probes)
        np.bitwise_or.at(self._left, places, probes.left)
        np.bitwise_or.at(self._right, places, probes.right)

    def add_sorted(self, probes: Probes) -> None:
        """Adds keys whose first halves do not fall, in a third of the time."""
        if not len(probes.upper):
            return
        places = self._places(probes)
        starts = np.flatnonzero(np.concatenate(([True], places[1:] != places[:-1])))
        chosen = places[starts]
        self._left[chosen] |= np.bitwise_or.reduceat(probes.left, starts)
        self._right[chosen] |= np.bitwise_or.reduceat(probes.right, starts)

    def might_hold(self, probes: Probes) -> npt.NDArray[np.int64]:
        """The rows of the keys that may have been added, rising."""
        # take() with signed places is five times as fast as an index of unsigned ones.
        places = self._places(probes).view(np.int64)
        found = np.take(self._left, places)
        found &= probes.left
        rows = np.flatnonzero(found == probes.left)
        right = probes.right[rows]
        same = (self._right[places[rows]] & right) == right
        chosen: npt.NDArray[np.int64] = rows[same]
        return chosen

    def might_hold_one(self, first: int, second: int) -> bool:
        """Whether one key may have been added, without numpy's calls."""
        place = (first >> 32) * len(self._left) >> 32
        left, right = _one_mask(second), _one_mask(second >> 6 * _BITS_PER_WORD)
        return int(self._left[place]) & left == left and int(self._right[place]) & right == right


def _one_mask(second: int) -> int:
    return (
        1 << (second & 63)
        | 1 << (second >> 6 & 63)
        | 1 << (second >> 12 & 63)
        | 1 << (second >> 18 & 63)
    )
