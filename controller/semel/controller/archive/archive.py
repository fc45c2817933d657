"""The export file: the whole metadata of a cluster, from which any store can be filled.

Format. UTF-8 lines, each one JSON object without spaces, its members in the order given here:
    {"format":"semel-metadata","version":1,"cluster_id":…,"revision":…,"entries":…}
    {"key":…,"value":…}     one line an entry, by key; the value in base64 (RFC 4648, with padding)
    {"crc32c":…}            of all bytes before this line, eight hexadecimal digits
`revision` is the newest that the old store gave out, `entries` is the number of entries. The same
metadata gives the same bytes, whatever store it was in.

Invariants
1. A file that does not match its checksum, or is cut off, is refused as a whole.

Not here: reading stores and filling them (`transfer.py`), what the keys mean (`records.py`).
"""

from __future__ import annotations

import base64
import binascii
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import google_crc32c

from semel.protos.errors import DataDirectoryError, InvalidRequest

FORMAT: Final = "semel-metadata"
VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Archive:
    """All metadata of one cluster."""

    cluster_id: str
    revision: int
    """The newest revision that was given out; a store that takes this over must go on above it."""
    entries: Mapping[str, bytes]


def dump(archive: Archive) -> bytes:
    """The bytes of the file."""
    head = {
        "format": FORMAT,
        "version": VERSION,
        "cluster_id": archive.cluster_id,
        "revision": archive.revision,
        "entries": len(archive.entries),
    }
    lines = [_line(head)]
    lines += [
        _line({"key": key, "value": base64.b64encode(value).decode()})
        for key, value in sorted(archive.entries.items())
    ]
    content = b"".join(lines)
    return content + _line({"crc32c": _crc(content)})


def load(data: bytes, where: str) -> Archive:
    """The archive in a file's bytes; raises DataDirectoryError, which names `where`."""
    content, last = data[: data.rfind(b"\n", 0, -1) + 1], data[data.rfind(b"\n", 0, -1) + 1 :]
    if last != _line({"crc32c": _crc(content)}):
        raise DataDirectoryError(
            f"{where} is no whole export: it is damaged or cut off, its last line is not the "
            "checksum of the others. Export again"
        )
    try:
        head, *rows = [json.loads(line) for line in content.splitlines()]
        if head["format"] == FORMAT and head["version"] > VERSION:
            raise DataDirectoryError(
                f"{where} has version {head['version']}, this program knows up to {VERSION}. Use "
                "the newer program"
            )
        entries = {str(row["key"]): base64.b64decode(row["value"], validate=True) for row in rows}
        archive = Archive(
            cluster_id=str(head["cluster_id"]), revision=int(head["revision"]), entries=entries
        )
    except (ValueError, KeyError, TypeError, RecursionError, binascii.Error) as error:
        raise DataDirectoryError(f"{where} is not an export of Semel's: {error}") from error
    if head["format"] != FORMAT or dump(archive) != data:
        raise DataDirectoryError(f"{where} is not an export of Semel's")
    return archive


def write(archive: Archive, path: Path) -> int:
    """Writes a new file durably and whole; returns its size. Raises InvalidRequest, OSError."""
    if path.exists():
        raise InvalidRequest(f"{path} exists: choose another name, or move it away")
    data = dump(archive)
    temporary = path.with_name(path.name + ".new")
    with temporary.open("wb") as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return len(data)


def read(path: Path) -> Archive:
    """Reads a file. Raises DataDirectoryError, and InvalidRequest when it cannot be read."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InvalidRequest(f"cannot read {path}: {error.strerror or error}") from error
    return load(data, str(path))


def _line(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"


def _crc(content: bytes) -> str:
    return f"{int(google_crc32c.value(content)):08x}"
