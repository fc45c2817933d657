"""A node's term and vote, which are durable before any message of that term leaves the node.

How it works. One small file has two slots, which are written in turn and in place, so that a full
disk cannot stop a vote. A slot holds the same numbered record twice, in blocks that are not
neighbours. The good copy with the highest number counts.

A record that a process finds may be in the page cache only: the previous process was killed before
its sync, or its sync failed, after which the kernel marks the pages clean and never syncs them
again. So the first `load` writes the record it found again, in the same place, and syncs it before
anybody relies on it. It does not touch the other slot, which may hold the newest record that was
promised.

Crash cases. A torn write leaves the other slot whole. The new record was not promised to anybody
yet, so it may count or not. The file itself is created under a temporary name.

Damage. One damaged block never hides the newest record, because the other copy lies elsewhere.
Without any good copy the node does not guess: a forgotten vote could elect two masters in one term.

Invariants
1. The term never falls, and a vote given in a term never changes (asserted).
2. This process has synced every record that `load` returns and `save` saves.

Format. `docs/formats/hard-state.md`; a test compares its table with the struct below.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Final

import google_crc32c

from semel.broker.log.files import File, FileLayer, OsFiles, replace_file
from semel.protos.errors import CorruptSegment, DataDirectoryError
from semel.protos.ids import NodeId

RECORD_STRUCT: Final = struct.Struct("<4sHHQQQII")
MAGIC: Final = b"SMHS"
VERSION: Final = 1
BLOCK_BYTES: Final = 4096
SLOT_BLOCKS: Final = ((0, 2), (1, 3))
"""For each slot, the blocks that hold its two copies."""
_BLOCKS: Final = 4
_BODY_BYTES: Final = RECORD_STRUCT.size - 4

_State = tuple[int, int, NodeId | None]
"""(number, term, voted for)"""


class HardStateFile:
    """The file that holds one node's hard state. BLOCKING; one thread at a time."""

    def __init__(self, path: Path, files: FileLayer | None = None) -> None:
        self._path = path
        self._files = files or OsFiles()
        self._last: _State | None = None

    def load(self) -> tuple[int, NodeId | None] | None:
        """The durable (term, voted for), or None when nothing was saved yet. Only the first call
        reads the file.

        Raises CorruptSegment when every copy is damaged, DataDirectoryError for a newer format,
        DiskFull and OSError when the record cannot be made durable.
        """
        if self._last is not None:
            return self._last[1], self._last[2]
        try:
            file = self._files.open(self._path)
        except FileNotFoundError:
            return None
        try:
            copies = [
                self._decode(file.read(RECORD_STRUCT.size, block * BLOCK_BYTES))
                for block in range(_BLOCKS)
            ]
            good = [copy for copy in copies if copy is not None]
            if not good:
                raise CorruptSegment(
                    f"{self._path} is damaged: this node no longer knows its vote, and a guess "
                    "could elect two masters; restore the file, or replace this node by an empty "
                    "one"
                )
            newest = max(good, key=lambda copy: copy[0])
            self._write(file, newest)
        finally:
            file.close()
        self._files.make_directory(self._path.parent)  # with this file's name
        self._last = newest
        return newest[1], newest[2]

    def repair(self) -> bool:
        """Writes the newest record again when one of its copies is damaged; returns whether one
        was."""
        if self._last is None:
            return False
        file = self._files.open(self._path)
        try:
            blocks = SLOT_BLOCKS[self._last[0] % 2]
            raw = [file.read(RECORD_STRUCT.size, block * BLOCK_BYTES) for block in blocks]
            damaged = any(self._decode(one) != self._last for one in raw)
            if damaged:
                self._write(file, self._last)
        finally:
            file.close()
        return damaged

    def save(self, term: int, voted_for: NodeId | None) -> None:
        """Saves the state durably. When it raises OSError, either the old or the new state may be
        in the file."""
        if self.load() is None:
            first = (0, term, voted_for)
            block = _encode(first).ljust(BLOCK_BYTES, b"\0")
            replace_file(self._files, self._path, [block] * _BLOCKS)
            self._last = first
            return
        assert self._last is not None
        number, old_term, old_vote = self._last
        assert term >= old_term, f"term falls from {old_term} to {term}"
        assert term > old_term or old_vote in (None, voted_for), (
            f"vote of term {term} changes from {old_vote} to {voted_for}"
        )
        following = (number + 1, term, voted_for)
        file = self._files.open(self._path)
        try:
            self._write(file, following)
        finally:
            file.close()
        self._last = following

    def _write(self, file: File, state: _State) -> None:
        for block in SLOT_BLOCKS[state[0] % 2]:
            file.write([_encode(state)], block * BLOCK_BYTES)
        file.sync()

    def _decode(self, raw: bytes) -> _State | None:
        if len(raw) < RECORD_STRUCT.size:
            return None
        magic, version, _, number, term, voted_for, _, crc = RECORD_STRUCT.unpack(raw)
        if magic != MAGIC or crc != google_crc32c.value(raw[:_BODY_BYTES]):
            return None
        if version != VERSION:
            raise DataDirectoryError(
                f"{self._path} has format version {version}, this program knows {VERSION}; run "
                "the newer program, or give this node an empty directory"
            )
        return number, term, NodeId(voted_for) if voted_for else None


def _encode(state: _State) -> bytes:
    number, term, voted_for = state
    body = RECORD_STRUCT.pack(MAGIC, VERSION, 0, number, term, voted_for or 0, 0, 0)[:_BODY_BYTES]
    return body + int(google_crc32c.value(body)).to_bytes(4, "little")
