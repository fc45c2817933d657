"""Rebuilds the file from the messages, and detects every error in them.

How it works. A message's sequence is the number of its line, so its bytes belong at that line's
place in the file. Every message's bytes are written there, whatever its queue and whenever it
arrives; the SHA-256 of the result is the topic's digest. In addition a counter for each line shows
which lines are lost or stored twice, and the last offset and sequence of each queue show whether
the order was kept. All of it is done a batch at a time, with no Python object for a message.

Invariants
1. The digest equals the file's only if every line is there with its own bytes and nothing else.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tools.demo.source import Array, Source

_NEWLINE = 10


class Rebuild:
    """One rebuilding of `source` in a scratch file."""

    def __init__(self, source: Source, text: Any) -> None:
        self._source = source
        self._text = text
        self._text[:] = _NEWLINE
        self._count = np.zeros(source.lines, np.uint32)
        self._last: dict[int, tuple[int, int]] = {}
        self.messages = 0
        """Number of messages that were added."""
        self.invented = 0
        """Number of messages whose sequence is no line, or whose length is not their line's."""
        self.out_of_order = 0
        """Number of places in a queue where the offset or the sequence did not rise."""

    @classmethod
    @contextmanager
    def on_disk(cls, source: Source, scratch: Path) -> Iterator[Rebuild]:
        """Rebuilds in the file `scratch`, which gets the size of the source."""
        yield cls(source, np.memmap(scratch, np.uint8, "w+", shape=(int(source.starts[-1]),)))

    def add(self, queue: int, offsets: Array, sequences: Array, values: pa.Array) -> None:
        """Adds a batch of one queue, in the order of delivery."""
        if len(values):
            self._check_order(queue, offsets, sequences)
            self.add_unordered(sequences, values)

    def add_unordered(self, sequences: Array, values: pa.Array) -> None:
        """Adds a batch whose messages may come in any order."""
        self.messages += len(values)
        if not len(values):
            return
        lengths, data = _flat(values)
        known = (sequences >= 0) & (sequences < self._source.lines)
        lines = np.where(known, sequences, 0)
        room = np.diff(self._source.starts)[lines] - 1
        fits = known & (lengths == room)
        self.invented += int(np.count_nonzero(~fits))
        np.add.at(self._count, lines[known], 1)
        begins = np.cumsum(lengths) - lengths
        starts = self._source.starts[lines]
        kept = np.repeat(fits, lengths)
        target = np.repeat(starts - begins, lengths) + np.arange(len(data))
        self._text[target[kept]] = data[kept]

    def _check_order(self, queue: int, offsets: Array, sequences: Array) -> None:
        last = self._last.get(queue)
        if last is not None:
            self.out_of_order += int(offsets[0] <= last[0] or sequences[0] <= last[1])
        wrong = (np.diff(offsets) <= 0) | (np.diff(sequences) <= 0)
        self.out_of_order += int(np.count_nonzero(wrong))
        self._last[queue] = (int(offsets[-1]), int(sequences[-1]))

    @property
    def queues(self) -> int:
        """Number of queues that delivered messages."""
        return len(self._last)

    @property
    def lost(self) -> int:
        """Number of lines without a message."""
        return int(np.count_nonzero(self._count == 0))

    @property
    def duplicates(self) -> int:
        """Number of messages beyond the first of their line."""
        return int(np.sum(np.maximum(self._count, 1) - 1, dtype=np.int64))

    def digest(self) -> str:
        """SHA-256 of the rebuilt text, cut to the length of the file."""
        return hashlib.sha256(memoryview(self._text[: self._source.size])).hexdigest()


def _flat(values: pa.Array) -> tuple[Array, Array]:
    """Lengths and joined bytes of a binary array."""
    if values.type != pa.binary():
        values = values.cast(pa.binary())
    _, offsets_buffer, data = values.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int32)[values.offset :][: len(values) + 1]
    text = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
    return np.diff(offsets).astype(np.int64), text[offsets[0] : offsets[-1]]
