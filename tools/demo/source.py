"""The file that the demo loads: the user's own, or the sources of Python's standard library."""

from __future__ import annotations

import hashlib
import os
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from semel.protos.errors import InvalidRequest

Array = np.ndarray[Any, np.dtype[Any]]
BLOCK_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A file, cut into lines."""

    path: Path
    size: int
    """Size in bytes."""
    starts: Array
    """Byte position of each line, int64, and one past the last line's newline at the end (which
    is one past the end of a file whose last line has no newline)."""
    digest: str
    """SHA-256 of the bytes, in hexadecimal."""

    @property
    def lines(self) -> int:
        """Number of lines."""
        return len(self.starts) - 1


def standard_library(target: Path) -> None:
    """Joins all of the standard library's Python files into one, in the order of their names."""
    found: list[Path] = []
    for folder, folders, names in os.walk(sysconfig.get_path("stdlib")):
        folders[:] = [name for name in folders if not name.endswith("-packages")]
        found += [Path(folder, name) for name in names if name.endswith(".py")]
    with target.open("wb") as out:
        for path in sorted(found):
            text = path.read_bytes()
            out.write(text if text.endswith(b"\n") or not text else text + b"\n")


def survey(path: Path) -> Source:
    """Reads the file once; raises InvalidRequest when it has no line, OSError when unreadable."""
    digest = hashlib.sha256()
    starts: list[Array] = [np.zeros(1, np.int64)]
    size = 0
    last = b"\n"
    with path.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            digest.update(block)
            starts.append(np.flatnonzero(np.frombuffer(block, np.uint8) == 10) + (size + 1))
            size += len(block)
            last = block[-1:]
    if size == 0:
        raise InvalidRequest(f"{path} is empty: the demo needs at least one line")
    if last != b"\n":
        starts.append(np.array([size + 1]))
    return Source(path=path, size=size, starts=np.concatenate(starts), digest=digest.hexdigest())
