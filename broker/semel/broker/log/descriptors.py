"""File descriptors kept back for the node's own files, for when connections have taken all others.

How it works. A node cannot refuse a connection before the kernel has given it a descriptor, and a
log that cannot open its next segment has failed for good. So some descriptors are occupied from
the start. When the process may open no more, one is let go and the file is opened in its place;
closing a file puts its descriptor back under the same number, so that no connection can take it in
between.

Invariants
1. At most `count` descriptors are kept back, and one that stands in for files.
2. A descriptor that was let go is regained by the next file that is closed.

Not here: the limit itself, which the process raises as far as it may when it starts.
"""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

_EXHAUSTED = (errno.EMFILE, errno.ENFILE)


class Reserve:
    """Opens and closes files. Any thread."""

    def __init__(self, count: int = 0) -> None:
        """Occupies `count` descriptors. Raises OSError when there are not so many."""
        self._count = count
        self._lock = threading.Lock()
        self._nothing = _occupy() if count else -1
        """What stands in for a file; never let go."""
        self._kept = [_occupy() for _ in range(count)]

    def open(self, path: Path, flags: int, mode: int = 0o777) -> int:
        """As `os.open`; EMFILE and ENFILE only when nothing is kept back any more."""
        while True:
            try:
                return os.open(path, flags, mode)
            except OSError as error:
                if error.errno not in _EXHAUSTED or not self._let_go():
                    raise

    def close(self, descriptor: int) -> None:
        """As `os.close`, or keeps the descriptor back where one is missing."""
        with self._lock:
            if len(self._kept) < self._count:
                os.dup2(self._nothing, descriptor, inheritable=False)
                self._kept.append(descriptor)
                return
        os.close(descriptor)

    def release(self) -> None:
        """Gives all back; files are opened and closed as without a reserve from now on."""
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
