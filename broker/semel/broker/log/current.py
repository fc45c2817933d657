"""The CURRENT file, which says which of the log's directories is the live one.

How it works. The log lives in a numbered directory `log-N`; the file CURRENT names N. A snapshot
is built beside it as `log-N+1`, whole and synced; then a rename switches CURRENT. All that is known
to need room is done before the rename.

Crash cases. Before the switch the old directory is live and the new one is rubbish; after the
switch it is the reverse. Opening the log removes the rubbish, but only once the names found there
are durable: a killed process can leave a switch that a power failure would undo. A damaged CURRENT
costs nothing as long as there is only one directory.

A failed switch. When the rename fails, or the sync of its directory, nobody knows which of the two
names the disk has, or will have: a journal may have taken the rename before the error was told, and
a second sync that succeeds proves nothing after a failed one. Both ways to go on could lose what is
acknowledged next: entries appended to the old log are gone if the disk has the new name, and the
reverse. So the log ends and the process with it, whatever the error is, a full disk included. Both
directories are whole and stay. The next start syncs the directory before it believes the name in
it, and takes the log that is named; each of the two holds all that this node has acknowledged.

Format. `docs/formats/hard-state.md`.

Not here: the lock on the data directory (`log/log.py`).
"""

from __future__ import annotations

import contextlib
import logging
import struct
from pathlib import Path
from typing import Final

import google_crc32c

from semel.broker.log.files import FileLayer, read_file, replace_file, write_file
from semel.protos.errors import CorruptSegment, DataDirectoryError, DiskFull

_log = logging.getLogger(__name__)

CURRENT_STRUCT: Final = struct.Struct("<4sHHQQII")
MAGIC: Final = b"SMCU"
VERSION: Final = 1
_CURRENT: Final = "CURRENT"
_PREPARED: Final = "CURRENT.tmp"
_PREFIX: Final = "log-"


class CurrentDirectory:
    """The live log directory below `root`."""

    def __init__(self, files: FileLayer, root: Path) -> None:
        self._files = files
        self._root = root
        self.number = 0

    @property
    def path(self) -> Path:
        return self._directory(self.number)

    def _directory(self, number: int) -> Path:
        return self._root / f"{_PREFIX}{number:020d}"

    def _numbers(self) -> list[int]:
        names = self._files.names(self._root)
        return [int(name.removeprefix(_PREFIX)) for name in names if name.startswith(_PREFIX)]

    def open(self) -> None:
        """Finds or creates the live directory, and makes it and all names in it durable. Raises
        CorruptSegment, DataDirectoryError."""
        self._files.make_directory(self._root)
        present = self._numbers()
        number = self._read(present)
        if number is None:
            number = present[0] if present else 1
            self._files.make_directory(self._directory(number))
            replace_file(self._files, self._root / _CURRENT, [self._content(number)])
        if number not in self._numbers():
            raise CorruptSegment(
                f"{self._directory(number)} is missing, though {_CURRENT} names it; restore it, "
                "or give this node an empty directory"
            )
        self.number = number
        self._files.make_directory(self.path)
        self.remove_others()

    def _read(self, present: list[int]) -> int | None:
        """The number in CURRENT; None when the file is missing, or damaged with at most one log
        directory present, which is harmless."""
        path = self._root / _CURRENT
        raw = read_file(self._files, path)
        if raw is not None and len(raw) == CURRENT_STRUCT.size:
            magic, version, _, number, _, _, crc = CURRENT_STRUCT.unpack(raw)
            if magic == MAGIC and crc == google_crc32c.value(raw[:-4]):
                if version != VERSION:
                    raise DataDirectoryError(
                        f"{path} has format version {version}, this program knows {VERSION}; run "
                        "the newer program, or give this node an empty directory"
                    )
                return int(number)
        if len(present) > 1:
            raise CorruptSegment(
                f"{path} is damaged, and {len(present)} log directories are there: it is unknown "
                "which one counts; give this node an empty directory"
            )
        return None

    def _content(self, number: int) -> bytes:
        body = CURRENT_STRUCT.pack(MAGIC, VERSION, 0, number, 0, 0, 0)[:-4]
        return body + int(google_crc32c.value(body)).to_bytes(4, "little")

    def stage(self) -> Path:
        """Creates and returns an empty directory for the next state of the log."""
        number = self.number + 1
        self._remove(number)
        self._files.make_directory(self._directory(number))
        return self._directory(number)

    def discard_staged(self) -> None:
        """Removes what is staged, as far as that is possible now; `stage` and the next start try
        again."""
        with contextlib.suppress(OSError, DiskFull):
            self._remove(self.number + 1)

    def prepare(self) -> None:
        """Does all of the switch to the staged directory, whose files are durable, for which there
        may be no room. Raises DiskFull; the live directory stays."""
        number = self.number + 1
        self._files.sync_directory(self._directory(number))
        self._files.sync_directory(self._root)
        write_file(self._files, self._root / _PREPARED, [self._content(number)])

    def adopt_staged(self) -> None:
        """Makes the staged directory, for which `prepare` was called, the live one.

        Raises OSError, also on a full disk: then the caller must end the log (see "A failed
        switch").
        """
        try:
            self._files.rename(self._root / _PREPARED, self._root / _CURRENT)
            self._files.sync_directory(self._root)
        except (OSError, DiskFull) as error:
            old, new = self.path.name, self._directory(self.number + 1).name
            raise OSError(
                f"{self._root / _CURRENT} could not be switched from {old} to {new} ({error}), so"
                " it is unknown which of the two the disk names. Both are whole: check the disk,"
                " then start the node again; it takes the one that is named"
            ) from error
        self.number += 1

    def remove_others(self) -> None:
        """Removes all log directories except the live one. What cannot be removed for lack of room
        (some file systems need room for that) stays until the next switch or start."""
        for number in self._numbers():
            if number == self.number:
                continue
            try:
                self._remove(number)
            except DiskFull as error:
                _log.warning(
                    "old log stays for now path=%s error=%s", self._directory(number), error
                )

    def _remove(self, number: int) -> None:
        directory = self._directory(number)
        if number not in self._numbers():
            return
        for name in self._files.names(directory):
            self._files.remove(directory / name)
        self._files.remove_directory(directory)
        self._files.sync_directory(self._root)
