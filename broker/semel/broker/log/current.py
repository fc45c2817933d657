"""Which of the log's directories is the live one, and the lock on all of them.

How it works. The log lives in a numbered directory `log-N`; the file CURRENT names N. A snapshot
is built beside it as `log-N+1`, whole and synced, before CURRENT is switched by a rename.

Crash cases. Before the switch the old directory stands and the new one is rubbish; after it the
reverse. Rubbish is removed when the log is opened, and only once the names that are found there are
durable: a process that was killed leaves a switch that a failure of power would undo. A damaged
CURRENT costs nothing as long as only one directory is there.

Format. `docs/formats/hard-state.md`.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Final

import google_crc32c

from semel.broker.log.files import FileLayer, read_file, replace_file
from semel.protos.errors import CorruptSegment, DataDirectoryError

CURRENT_STRUCT: Final = struct.Struct("<4sHHQQII")
MAGIC: Final = b"SMCU"
VERSION: Final = 1
_CURRENT: Final = "CURRENT"
_PREFIX: Final = "log-"


class CurrentDirectory:
    """The live directory below `root`."""

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
        """Finds or creates the live directory, durable with all names in it. Raises CorruptSegment,
        DataDirectoryError."""
        self._files.make_directory(self._root)
        present = self._numbers()
        number = self._read(present)
        if number is None:
            number = present[0] if present else 1
            self._files.make_directory(self._directory(number))
            self._switch(number)
        if number not in self._numbers():
            raise CorruptSegment(
                f"{self._directory(number)} is missing, though {_CURRENT} names it; restore it, "
                "or give this node an empty directory"
            )
        self.number = number
        self._files.make_directory(self.path)
        self.remove_others()

    def _read(self, present: list[int]) -> int | None:
        """The number in CURRENT; None when there is none, or a damaged one that does no harm."""
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

    def _switch(self, number: int) -> None:
        body = CURRENT_STRUCT.pack(MAGIC, VERSION, 0, number, 0, 0, 0)[:-4]
        crc = google_crc32c.value(body).to_bytes(4, "little")
        replace_file(self._files, self._root / _CURRENT, [body + crc])

    def stage(self) -> Path:
        """An empty directory for the next state of the log."""
        number = self.number + 1
        self._remove(number)
        self._files.make_directory(self._directory(number))
        return self._directory(number)

    def adopt_staged(self) -> None:
        """The staged directory, whose files are durable, becomes the live one."""
        self._files.sync_directory(self._directory(self.number + 1))
        self._files.sync_directory(self._root)
        self._switch(self.number + 1)
        self.number += 1

    def remove_others(self) -> None:
        """Removes what is not live."""
        for number in self._numbers():
            if number != self.number:
                self._remove(number)

    def _remove(self, number: int) -> None:
        directory = self._directory(number)
        if number not in self._numbers():
            return
        for name in self._files.names(directory):
            self._files.remove(directory / name)
        self._files.remove_directory(directory)
        self._files.sync_directory(self._root)
