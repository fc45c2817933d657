"""Frames in memory: the newest ones of the log, and those read from disk lately.

Invariants
1. A frame that is not yet durable is never evicted from the tail cache, whatever the bound: it may
   not be readable from disk yet.
2. The tail cache holds the consecutive indexes [first, last] of the log, or nothing.

Not here: when to read from disk (`reader.py`).
"""

from __future__ import annotations

import threading
from collections import OrderedDict


class TailCache:
    """The newest frames. One thread changes it; `get` may be called from any."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._frames: dict[int, bytes] = {}
        self._first = 0
        self._last = -1
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._frames)

    def get(self, index: int) -> bytes | None:
        return self._frames.get(index)

    def range(self, lo: int, hi: int) -> list[bytes] | None:
        """The frames [lo, hi), or None unless all of them are here."""
        if lo < self._first or hi > self._last + 1 or lo >= hi:
            return None
        frames = self._frames
        return [frames[index] for index in range(lo, hi)]

    def add(self, index: int, frame: bytes) -> None:
        """Takes the frame behind the last one."""
        if not self._frames:
            self._first = index
        self._frames[index] = frame
        self._last = index
        self.bytes += len(frame)

    def evict(self, durable_index: int) -> None:
        """Drops the oldest frames until the bound is kept, never one above `durable_index`."""
        while self.bytes > self._bytes_max and self._first <= min(durable_index, self._last):
            self.bytes -= len(self._frames.pop(self._first))
            self._first += 1

    def cut(self, from_index: int) -> None:
        """Drops the frames from `from_index` on."""
        while self._last >= from_index and self._frames:
            self.bytes -= len(self._frames.pop(self._last))
            self._last -= 1

    def clear(self) -> None:
        self._frames = {}
        self._last = self._first - 1
        self.bytes = 0


class ReadCache:
    """Frames read from disk, least recently used dropped first. Any thread."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        self._frames: OrderedDict[tuple[int, int], bytes] = OrderedDict()
        self._bytes = 0

    def get(self, key: tuple[int, int]) -> bytes | None:
        """`key`: (segment sequence, index), so that a truncated entry is never found again."""
        with self._lock:
            frame = self._frames.get(key)
            if frame is not None:
                self._frames.move_to_end(key)
            return frame

    def put(self, key: tuple[int, int], frame: bytes) -> None:
        """Frames larger than half of the bound are not worth the others' places."""
        if len(frame) > self._bytes_max // 2:
            return
        with self._lock:
            if key in self._frames:
                return
            self._frames[key] = frame
            self._bytes += len(frame)
            while self._bytes > self._bytes_max:
                _, dropped = self._frames.popitem(last=False)
                self._bytes -= len(dropped)

    def clear(self) -> None:
        with self._lock:
            self._frames.clear()
            self._bytes = 0
