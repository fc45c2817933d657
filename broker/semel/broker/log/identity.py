"""Whose data directory this is: written once, checked at every start.

A node that starts on another node's directory would vote with that node's vote; one of another
cluster would replicate strange data. The file IDENTITY is text, so that an operator can read it,
and holds it twice, so that one damaged byte costs nothing.

Format. `docs/formats/hard-state.md`.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Final

import google_crc32c

from semel.broker.log.files import FileLayer, OsFiles, read_file, replace_file
from semel.protos.errors import DataDirectoryError, DiskFull

FORMAT: Final = 1
_NAME: Final = "IDENTITY"
_COPIES: Final = 2


def check_identity(
    directory: Path,
    *,
    cluster_id: str,
    group_id: int,
    node_id: int,
    files: FileLayer | None = None,
) -> None:
    """BLOCKING. Writes the identity into an empty directory, or compares it.

    Raises DataDirectoryError, which says what was found, what was expected, and what to do.
    """
    files = files or OsFiles()
    path = directory / _NAME
    expected = {
        "format": str(FORMAT),
        "cluster": cluster_id,
        "group": str(group_id),
        "node": str(node_id),
    }
    raw = read_file(files, path)
    if raw is None:
        others = [name for name in files.names(directory) if not name.endswith(".tmp")]
        if others:
            raise DataDirectoryError(
                f"{directory} holds {', '.join(others[:5])} but no {_NAME}: it is not the data "
                "directory of a node; give this node an empty directory, or restore the file"
            )
        files.make_directory(directory)
        files.sync_directory(directory.parent)
        replace_file(files, path, [_encode(expected)] * _COPIES)
        return
    found = next((one for one in map(_decode, _copies(raw)) if one is not None), None)
    if found is None:
        raise DataDirectoryError(
            f"{path} is damaged; if this is the directory of cluster {cluster_id} group {group_id} "
            f"node {node_id}, restore the file, else name the right directory"
        )
    if found.get("format") != expected["format"]:
        raise DataDirectoryError(
            f"{directory} has format {found.get('format')}, this program knows {FORMAT}; run the "
            "newer program, or give this node an empty directory"
        )
    if found != expected:
        raise DataDirectoryError(
            f"{directory} belongs to {_describe(found)}, not to {_describe(expected)}; name the "
            "right directory, or give this node an empty one"
        )
    if raw != _encode(expected) * _COPIES:
        with contextlib.suppress(DiskFull):  # the good copy still stands
            replace_file(files, path, [_encode(expected)] * _COPIES)


def _describe(identity: dict[str, str]) -> str:
    return " ".join(f"{key} {identity.get(key, '?')}" for key in ("cluster", "group", "node"))


def _copies(raw: bytes) -> list[bytes]:
    """Both copies, and the whole as the only one."""
    half = len(raw) // _COPIES
    return [raw[:half], raw[half:], raw]


def _encode(identity: dict[str, str]) -> bytes:
    text = "".join(f"{key}={value}\n" for key, value in identity.items()).encode()
    return text + f"crc32c={google_crc32c.value(text):08x}\n".encode()


def _decode(raw: bytes) -> dict[str, str] | None:
    """The fields; None when the CRC does not match."""
    text, mark, crc = raw.rpartition(b"crc32c=")
    if not mark or crc != f"{google_crc32c.value(text):08x}\n".encode():
        return None
    lines = text.decode().splitlines()
    return dict(line.split("=", 1) for line in lines)
