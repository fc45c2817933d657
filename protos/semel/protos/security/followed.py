"""Files that are replaced while a program runs, and followed.

How it works. A file's *stamp* (inode, size, time of its last change) differs once it was replaced.
Whoever needs what it holds compares the stamps first, which takes a few microseconds.

Not here: the three files of TLS, which have to fit together (`tls_files.py`).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Generic, TypeAlias, TypeVar

from semel.protos.errors import InvalidRequest

logger = logging.getLogger(__name__)

Stamp: TypeAlias = tuple[int, int, int]
T = TypeVar("T")


def stamp_of(path: Path) -> Stamp:
    """BLOCKING. The stamp of a file; zeros for one that cannot be looked at."""
    try:
        return stamp_in(path.stat())
    except OSError:
        return (0, 0, 0)


def stamp_in(found: os.stat_result) -> Stamp:
    """The stamp of a file in what was found out about it."""
    return found.st_ino, found.st_size, found.st_mtime_ns


class Followed(Generic[T]):
    """What some files hold, as they are now."""

    def __init__(self, paths: Iterable[Path], load: Callable[[], T]) -> None:
        """BLOCKING. Raises what `load` raises."""
        self._paths = tuple(paths)
        self._load = load
        self._tried = self._stamp()
        self._value = load()

    def current(self) -> T:
        """BLOCKING, a few microseconds. What they hold, read again if one was replaced."""
        stamp = self._stamp()
        if stamp != self._tried:
            self._tried = stamp
            try:
                self._value = self._load()
                logger.info("replaced file is used path=%s", self._paths[0])
            except InvalidRequest as error:
                logger.warning("replaced file is not used, the one before stays: %s", error)
        return self._value

    def _stamp(self) -> tuple[Stamp, ...]:
        return tuple(map(stamp_of, self._paths))
