"""The owner of a directory: the cluster, the controller's number, and its group.

How it works. `IDENTITY` is text, written once into an empty directory and compared at every start.
It includes the group because the number of votes that make a majority must not change without the
other controllers' knowledge: `semel controller export` and `import` make another group.

Format
    format=1
    cluster=<cluster id>
    controller=<number>
    members=<numbers, rising, with commas>
    crc32c=<eight hexadecimal digits, of all bytes before this line>

Not here: the cluster's own record of its id (`epoch.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import google_crc32c

from semel.controller.store.embedded.files import (
    LOCK_NAME,
    Files,
    is_temporary,
    replace_file,
)
from semel.protos.errors import DataDirectoryError

FILE_NAME: Final = "IDENTITY"
_FORMAT: Final = "1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The identity of one controller."""

    cluster_id: str
    controller_id: int
    members: tuple[int, ...]
    """Ids of all controllers of the group including this one, rising."""


def claim(files: Files, identity: Identity) -> None:
    """Writes the identity into an empty directory, or compares it with the one that is there.

    Raises DataDirectoryError when the directory belongs to another, or the file is damaged.
    """
    raw = files.read(FILE_NAME)
    if raw is None:
        _check_empty(files)
        replace_file(files, FILE_NAME, _encode(identity))
        return
    where = files.where(FILE_NAME)
    found = _decode(raw, where)
    if found.cluster_id != identity.cluster_id:
        raise DataDirectoryError(
            f"the data directory of {where} belongs to cluster {found.cluster_id or '(none)'}, not "
            f"to {identity.cluster_id or '(none)'}. Choose another directory"
        )
    if found.controller_id != identity.controller_id:
        raise DataDirectoryError(
            f"the data directory of {where} belongs to controller {found.controller_id}, not to "
            f"{identity.controller_id}. Choose another directory"
        )
    if found.members != identity.members:
        raise DataDirectoryError(
            f"the data directory of {where} belongs to a group of controllers "
            f"{_listed(found.members)}, not {_listed(identity.members)}. Start it with that group, "
            "or move the metadata with `semel controller export` and `import`"
        )


def read(directory: Path) -> Identity | None:
    """The directory's identity, or None without the file. Raises DataDirectoryError, OSError."""
    path = directory / FILE_NAME
    return _decode(path.read_bytes(), str(path)) if path.exists() else None


def _check_empty(files: Files) -> None:
    others = [
        name
        for name in files.names()
        if name not in (LOCK_NAME, "lost+found")
        and not name.endswith(".log")
        and not is_temporary(name)
    ]
    if others:
        raise DataDirectoryError(
            f"{files.where(others[0])} is not of a controller's replicated metadata, and there is "
            f"no {FILE_NAME} beside it. Choose an empty directory; what a single controller has "
            "kept is moved with `semel controller export` and `import`"
        )


def _encode(identity: Identity) -> bytes:
    body = (
        f"format={_FORMAT}\ncluster={identity.cluster_id}\n"
        f"controller={identity.controller_id}\nmembers={_listed(identity.members)}\n"
    ).encode()
    return body + f"crc32c={google_crc32c.value(body):08x}\n".encode()


def _decode(raw: bytes, where: str) -> Identity:
    body, separator, crc = raw.rpartition(b"crc32c=")
    if not separator or crc != f"{google_crc32c.value(body):08x}\n".encode():
        raise _damaged(where)
    try:
        fields = dict(line.split("=", 1) for line in body.decode().splitlines())
        if fields["format"] != _FORMAT:
            raise DataDirectoryError(
                f"{where} has format {fields['format']}, this program knows {_FORMAT}. Run the"
                " newer program"
            )
        return Identity(
            cluster_id=fields["cluster"],
            controller_id=int(fields["controller"]),
            members=tuple(int(number) for number in fields["members"].split(",")),
        )
    except (KeyError, ValueError):
        raise _damaged(where) from None


def _damaged(where: str) -> DataDirectoryError:
    return DataDirectoryError(
        f"{where} is damaged. Write it again by hand if you know whose directory this is, or"
        " empty the directory and start the controller again: it gets everything from the others"
    )


def _listed(members: Iterable[int]) -> str:
    return ",".join(map(str, members))
