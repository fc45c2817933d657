"""Reading an audit log backwards, a page at a time, while it is written and rotates.

How it works. A *position* is a file and an offset in it: what begins there was read already. Files
are renamed when the log rotates, so a file is known by the checksum of its first line. A page ends
when it has enough lines, or has looked at so many bytes; it then says where to go on.

Invariants
1. Pages that follow one another have each line once, whatever is written meanwhile.
2. Memory and work of a page are bounded, whatever the files have in them.

Not here: writing (`audit.py`), the call (`audit_service.py`).
"""

from __future__ import annotations

import contextlib
import json
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import BinaryIO, Final

from semel.protos.errors import InvalidRequest
from semel.protos.security.audit import FILES_KEPT

LINES_MAX: Final = 500
SCANNED_BYTES_MAX: Final = 1 << 20
_BLOCK: Final = 64 << 10
_LINE_BYTES_MAX: Final = 256 << 10
"""More without an end of line is none of the log's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which lines are asked for."""

    search: str = ""
    """What a value has in it, whatever its case."""
    result: str = ""
    limit: int = LINES_MAX

    def has(self, line: bytes) -> bool:
        """The line is one of them; what is no JSON object never is."""
        try:
            found = json.loads(line)
        except ValueError:
            return False
        if not isinstance(found, dict) or (self.result and found.get("result") != self.result):
            return False
        search = self.search.casefold()
        return not search or any(search in str(value).casefold() for value in found.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditPage:
    """Lines found, the newest first."""

    lines: tuple[tuple[str, str], ...] = ()
    """Where to go on behind a line, and the line."""
    begin: str = ""
    """Where this page begins."""
    position: str = ""
    """Where the next page begins."""
    end: bool = True
    """There is none."""
    scanned_bytes: int = 0


def read_page(path: Path, position: str, wanted: Wanted) -> AuditPage:
    """BLOCKING. Returns the page that begins at `position`, empty for the end of the log. Raises
    InvalidRequest for what is no position, OSError."""
    place = _parsed(position) if position else None
    with contextlib.ExitStack() as stack:
        files = [(name, file) for file in _open_all(path, stack) if (name := _name(file))]
        if place is not None:
            names = [name for name, _ in files]
            if place[0] not in names:  # it was the oldest, and is gone
                return AuditPage(begin=position, position=position)
            files = files[names.index(place[0]) :]
        ends = [os.fstat(file.fileno()).st_size for _, file in files]
        if place is not None:
            ends[0] = min(ends[0], place[1])
        begin = at = f"{files[0][0]}:{ends[0]}" if files else ""
        found: list[tuple[str, str]] = []
        scanned = 0
        for (name, file), end in zip(files, ends, strict=True):
            for start, line in _backwards(file, end):
                at = f"{name}:{start}"
                scanned += len(line) + 1
                if wanted.has(line):
                    found.append((at, line.decode("utf-8", "replace")))
                if len(found) >= min(wanted.limit, LINES_MAX) or scanned >= SCANNED_BYTES_MAX:
                    return AuditPage(
                        lines=tuple(found),
                        begin=begin,
                        position=at,
                        end=False,
                        scanned_bytes=scanned,
                    )
        return AuditPage(lines=tuple(found), begin=begin, position=at, scanned_bytes=scanned)


def _parsed(position: str) -> tuple[str, int]:
    name, _, offset = position.partition(":")
    if not (offset.isascii() and offset.isdigit() and len(offset) < 19):
        raise InvalidRequest(f"{position[:40]!r} is no position in an audit log")
    return name, int(offset)


def _open_all(path: Path, stack: contextlib.ExitStack) -> Iterator[BinaryIO]:
    """The log's files, the newest first. One that is renamed meanwhile is met twice rather than
    not at all, and given once."""
    seen: set[tuple[int, int]] = set()
    for number in range(FILES_KEPT + 1):
        each = path.with_name(f"{path.name}.{number}") if number else path
        with contextlib.suppress(FileNotFoundError):
            file = stack.enter_context(each.open("rb"))
            status = os.fstat(file.fileno())
            if status.st_size and (status.st_dev, status.st_ino) not in seen:
                seen.add((status.st_dev, status.st_ino))
                yield file


def _name(file: BinaryIO) -> str:
    """Empty while the first line is being written."""
    first = file.readline(_LINE_BYTES_MAX)
    return f"{zlib.crc32(first):08x}" if first.endswith(b"\n") else ""


def _backwards(file: BinaryIO, end: int) -> Iterator[tuple[int, bytes]]:
    """The lines before `end`, the last one first, with where each begins. What stands behind the
    last end of line is being written, and is left out."""
    place, tail, in_line = end, b"", True
    while place > 0:
        size = min(_BLOCK, place)
        place -= size
        file.seek(place)
        lines = (file.read(size) + tail).split(b"\n")
        if in_line:
            lines.pop()
            in_line = not lines
        starts = list(accumulate((len(line) + 1 for line in lines), initial=place))
        whole = 0 if place == 0 else 1  # the first one may have begun before this block
        for number in range(len(lines) - 1, whole - 1, -1):
            yield starts[number], lines[number]
        tail = lines[0] if lines else b""
        if len(tail) > _LINE_BYTES_MAX:
            tail, in_line = b"", True
