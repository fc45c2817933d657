"""The caches of frames in memory: the newest frames of the log, and frames recently read from disk.

Invariants
1. The tail cache never evicts a frame that is not yet durable, even above its bound: the frame may
   not be readable from disk yet.
2. The tail cache holds the consecutive indexes [first, last] of the log, or nothing.

Not here: when frames are read from disk (`log/reader.py`).
"""

from __future__ import annotations

import threading
from collections import OrderedDict


class TailCache:
    """The newest frames of the log. One thread changes it; any thread may call `get`."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._frames: dict[int, bytes] = {}
        self._first = 0
        self._last = -1
        self.bytes = 0

    def get(self, index: int) -> bytes | None:
        return self._frames.get(index)

    def range(self, lo: int, hi: int) -> list[bytes] | None:
        """The frames [lo, hi), or None unless all of them are cached."""
        if lo < self._first or hi > self._last + 1 or lo >= hi:
            return None
        frames = self._frames
        return [frames[index] for index in range(lo, hi)]

    def add(self, index: int, frame: bytes) -> None:
        """Adds the frame that follows the last one."""
        if not self._frames:
            self._first = index
        self._frames[index] = frame
        self._last = index
        self.bytes += len(frame)

    def evict(self, durable_index: int) -> None:
        """Drops the oldest frames until the cache is within its bound, but no frame above
        `durable_index`."""
        while self.bytes > self._bytes_max and self._first <= min(durable_index, self._last):
            self.bytes -= len(self._frames.pop(self._first))
            self._first += 1

    def cut(self, from_index: int) -> None:
        """Drops all frames at and above `from_index`."""
        while self._last >= from_index and self._frames:
            self.bytes -= len(self._frames.pop(self._last))
            self._last -= 1

    def clear(self) -> None:
        self._frames = {}
        self._last = self._first - 1
        self.bytes = 0


class ReadCache:
    """An LRU cache of frames read from disk. Any thread may use it."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        self._frames: OrderedDict[tuple[int, int], bytes] = OrderedDict()
        self._bytes = 0

    def get(self, key: tuple[int, int]) -> bytes | None:
        """The cached frame, or None. `key` is (segment sequence, index), so that a truncated entry
        is never found again."""
        with self._lock:
            frame = self._frames.get(key)
            if frame is not None:
                self._frames.move_to_end(key)
            return frame

    def put(self, key: tuple[int, int], frame: bytes) -> None:
        """Caches the frame, unless it is larger than half of the bound: it would evict too many
        others."""
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
