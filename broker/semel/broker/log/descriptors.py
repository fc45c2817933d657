"""A reserve of file descriptors for the node's own files, for when connections take all others.

How it works. A node cannot refuse a connection before the kernel has given it a descriptor, and a
log that cannot open its next segment has failed for good. So the reserve occupies some descriptors
from the start. When the process may open no more files, the reserve releases one and the file is
opened in its place. Closing a file puts its descriptor back under the same number, so that no
connection can take it in between.

Invariants
1. The reserve holds at most `count` descriptors, plus one that is open on /dev/null and is
   duplicated over each descriptor that returns.
2. The next file that is closed returns a descriptor that was released.

Not here: the limit itself, which the process raises as far as it may when it starts
(`__main__.py`).
"""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

_EXHAUSTED = (errno.EMFILE, errno.ENFILE)


class Reserve:
    """Opens and closes files. Any thread may use it."""

    def __init__(self, count: int = 0) -> None:
        """Occupies `count` descriptors. Raises OSError when fewer are available."""
        self._count = count
        self._lock = threading.Lock()
        self._nothing = _occupy() if count else -1
        """The descriptor that `close` duplicates over a returning one; never released before
        `release`."""
        self._kept = [_occupy() for _ in range(count)]

    def open(self, path: Path, flags: int, mode: int = 0o777) -> int:
        """Works like `os.open`, but raises EMFILE and ENFILE only when the reserve is empty."""
        while True:
            try:
                return os.open(path, flags, mode)
            except OSError as error:
                if error.errno not in _EXHAUSTED or not self._let_go():
                    raise

    def close(self, descriptor: int) -> None:
        """Works like `os.close`, but keeps the descriptor while the reserve lacks one."""
        with self._lock:
            if len(self._kept) < self._count:
                os.dup2(self._nothing, descriptor, inheritable=False)
                self._kept.append(descriptor)
                return
        os.close(descriptor)

    def release(self) -> None:
        """Closes all reserved descriptors; from now on files open and close without a reserve."""
        with self._lock:
            for descriptor in self._kept:
                os.close(descriptor)
            if self._count:
                os.close(self._nothing)
            self._kept.clear()
            self._count = 0

    def _let_go(self) -> bool:
        with self._lock:
            if not self._kept:
                return False
            os.close(self._kept.pop())
            return True


def _occupy() -> int:
    return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
