"""The identity of a data directory: its node, and the founding of the group that it belongs to.

A node that starts on another node's directory would vote with that node's vote; a directory of
another cluster would bring foreign data into replication; a directory of an ended founding has
another history. The file IDENTITY is text, so that an operator can read it, and contains the
identity twice, so that one damaged byte costs nothing. IDENTITY.copy has the same content: a
misdirected disk write that destroys one of the two files leaves the other.

How it works. The cluster, the group and the node are written once, into an empty directory. The
founding is added when the node learns it (`membership/founding.py`), and changes only when an
operator begins the group anew. IDENTITY is written before its copy, so where the two name different
foundings, IDENTITY is right.

Format. `docs/formats/hard-state.md`.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Final

import google_crc32c

from semel.broker.log.files import FileLayer, OsFiles, read_file, replace_file
from semel.protos.errors import DataDirectoryError, DiskFull

FORMAT: Final = 2
FORMAT_UNFOUNDED: Final = 1
"""Format of a directory that belongs to no founding; the only one that earlier programs know."""
_NAMES: Final = ("IDENTITY", "IDENTITY.copy")
_COPIES: Final = 2
"""Copies of the identity in each file."""
_FOUNDING: Final = "founding"


def check_identity(
    directory: Path,
    *,
    cluster_id: str,
    group_id: int,
    node_id: int,
    files: FileLayer | None = None,
) -> str:
    """BLOCKING. Writes the identity into an empty directory, or compares it with a directory's.

    Returns the founding that the directory belongs to, or an empty string for none. Raises
    DataDirectoryError, which says what was found, what was expected, and what to do.
    """
    files = files or OsFiles()
    paths = [directory / name for name in _NAMES]
    expected = _fields(cluster_id, group_id, node_id, "")
    files.make_directory(directory)  # Makes durable what a killed process left there.
    raws = [read_file(files, path) for path in paths]
    if raws == [None, None]:
        others = [name for name in files.names(directory) if not name.endswith(".tmp")]
        if others:
            raise DataDirectoryError(
                f"{directory} holds {', '.join(others[:5])} but no {_NAMES[0]}: it is not the data "
                "directory of a node; give this node an empty directory, or restore the file"
            )
        _write(files, paths, expected)
        return ""
    copies = [copy for raw in raws if raw is not None for copy in _copies(raw)]
    found = [one for one in map(_decode, copies) if one is not None]
    if not found:
        raise DataDirectoryError(
            f"{paths[0]} is damaged, and so is its copy; if this is the directory of "
            f"{_describe(expected)}, restore the file, else name the right directory"
        )
    for one in found:
        _compare(directory, one, expected)
    founding = found[0].get(_FOUNDING, "")
    whole = _encode(_fields(cluster_id, group_id, node_id, founding)) * _COPIES
    for path, raw in zip(paths, raws, strict=True):
        if raw != whole:
            with contextlib.suppress(DiskFull):  # There still is a good copy.
                replace_file(files, path, [whole])
    return founding


def save_founding(
    directory: Path,
    founding: str,
    *,
    cluster_id: str,
    group_id: int,
    node_id: int,
    files: FileLayer | None = None,
) -> None:
    """BLOCKING. Records durably that the directory belongs to `founding` from now on.

    Raises DiskFull and OSError; then the directory may name the old or the new founding.
    """
    paths = [directory / name for name in _NAMES]
    _write(files or OsFiles(), paths, _fields(cluster_id, group_id, node_id, founding))


def _fields(cluster_id: str, group_id: int, node_id: int, founding: str) -> dict[str, str]:
    fields = {
        "format": str(FORMAT if founding else FORMAT_UNFOUNDED),
        "cluster": cluster_id,
        "group": str(group_id),
        "node": str(node_id),
    }
    return {**fields, _FOUNDING: founding} if founding else fields


def _write(files: FileLayer, paths: list[Path], fields: dict[str, str]) -> None:
    for path in paths:
        replace_file(files, path, [_encode(fields) * _COPIES])


def _compare(directory: Path, found: dict[str, str], expected: dict[str, str]) -> None:
    if found.get("format") not in (str(FORMAT_UNFOUNDED), str(FORMAT)):
        raise DataDirectoryError(
            f"{directory} has format {found.get('format')}, this program knows {FORMAT}; run the "
            "newer program, or give this node an empty directory"
        )
    if any(found.get(key) != expected[key] for key in ("cluster", "group", "node")):
        raise DataDirectoryError(
            f"{directory} belongs to {_describe(found)}, not to {_describe(expected)}; name the "
            "right directory, or give this node an empty one"
        )


def _describe(identity: dict[str, str]) -> str:
    return " ".join(f"{key} {identity.get(key, '?')}" for key in ("cluster", "group", "node"))


def _copies(raw: bytes) -> list[bytes]:
    """The two halves of the file as copies, and the whole file, in case it has only one copy."""
    half = len(raw) // _COPIES
    return [raw[:half], raw[half:], raw]


def _encode(identity: dict[str, str]) -> bytes:
    text = "".join(f"{key}={value}\n" for key, value in identity.items()).encode()
    return text + f"crc32c={google_crc32c.value(text):08x}\n".encode()


def _decode(raw: bytes) -> dict[str, str] | None:
    """The fields, or None when the CRC does not match, or the lines are no fields."""
    text, mark, crc = raw.rpartition(b"crc32c=")
    if not mark or crc != f"{google_crc32c.value(text):08x}\n".encode():
        return None
    try:
        return dict(line.split("=", 1) for line in text.decode().splitlines())
    except ValueError:
        return None
