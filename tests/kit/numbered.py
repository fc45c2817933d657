"""Numbered messages of writers that are killed, and the judge of what became of them. Pure.

How it works. A writer has lives. In each it numbers its messages of each partition from 0 on, and
is told which are stored. Whatever dies meanwhile: what is stored of a life and partition must be
its numbers from 0 on without a gap, each once, in order, and at least those that were acknowledged.
A life that was killed may have stored more than it knew.
"""

from __future__ import annotations

import re
import struct
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

_VALUE: Final = struct.Struct(">IIQ")
_WHOLE: Final = re.compile(rb"[0-9a-f]{%d}" % (2 * _VALUE.size))
_FIELDS: Final = np.dtype([("life", ">u4"), ("partition", ">u4"), ("number", ">u8")])


def value_of(life: int, partition: int, number: int) -> bytes:
    """The message: digits, since programs of others take it for text."""
    return _VALUE.pack(life, partition, number).hex().encode()


class Findings(NamedTuple):
    """Numbers of messages; all but the first are 0 if what was promised is so."""

    stored: int
    lost: int
    twice: int
    disordered: int
    invented: int

    @property
    def clean(self) -> bool:
        return not (self.lost or self.twice or self.disordered or self.invented)


class NumberedJudge:
    """Takes in what a topic has, partition by partition in the order of offsets."""

    def __init__(self) -> None:
        self._stored = 0
        self._invented = 0
        self._numbers: dict[tuple[int, int], list[npt.NDArray[np.int64]]] = defaultdict(list)

    def take(self, partition: int, values: Sequence[bytes]) -> None:
        """Takes in the next messages of a partition."""
        whole = [value for value in values if _WHOLE.fullmatch(value)]
        self._stored += len(values)
        self._invented += len(values) - len(whole)
        found = np.frombuffer(bytes.fromhex(b"".join(whole).decode()), _FIELDS)
        here = found[found["partition"] == partition]
        self._invented += len(found) - len(here)
        for life in np.unique(here["life"]):
            numbers = here["number"][here["life"] == life].astype(np.int64)
            self._numbers[int(life), partition].append(numbers)

    def judge(self, acked: Mapping[int, Sequence[int]]) -> Findings:
        """Compares it with how many messages of each life and partition were acknowledged."""
        lost = twice = disordered = 0
        invented = self._invented
        for life, partition in self._numbers:
            if life not in acked:
                invented += sum(map(len, self._numbers[life, partition]))
        for life, counts in acked.items():
            for partition, count in enumerate(counts):
                parts = self._numbers.get((life, partition), [])
                numbers = np.concatenate([np.zeros(0, np.int64), *parts])
                unique, first = np.unique(numbers, return_index=True)
                below = max(count, int(unique[-1]) + 1 if len(unique) else 0)
                lost += below - len(unique)
                twice += len(numbers) - len(unique)
                disordered += int((np.diff(first) < 0).sum())
        return Findings(self._stored, lost, twice, disordered, invented)
