"""The term and the vote of a node: durable before any message of that term leaves.

How it works. One small file that is replaced whole: written under a temporary name, synced, renamed,
and the directory synced. It holds the same record twice, in different blocks of the disk, so that
damage to one copy costs nothing.

Crash cases. The old record or the new one, never a mixture; nothing was promised of the new one yet.

Invariants
1. The term never falls, and a vote once given in a term never changes (asserted).
2. Without a readable copy nothing is guessed: a forgotten vote could elect two masters in one term.

Format. `docs/formats/hard-state.md`; a test compares its table with the struct below.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Final

import google_crc32c

from semel.broker.log.files import FileLayer, OsFiles, read_file, replace_file
from semel.protos.errors import CorruptSegment, DataDirectoryError
from semel.protos.ids import NodeId

RECORD_STRUCT: Final = struct.Struct("<4sHHQQII")
MAGIC: Final = b"SMHS"
VERSION: Final = 1
COPY_AT: Final = 4096
_BODY_BYTES: Final = RECORD_STRUCT.size - 4


class HardStateFile:
    """The hard state of one node, in a file of its own. BLOCKING; one thread at a time."""

    def __init__(self, path: Path, files: FileLayer | None = None) -> None:
        self._path = path
        self._files = files or OsFiles()
        self._last: tuple[int, NodeId | None] | None = None

    def load(self) -> tuple[int, NodeId | None] | None:
        """(term, voted for), or None when nothing was saved yet.

        Raises CorruptSegment when both copies are damaged, DataDirectoryError for a newer format.
        """
        raw = read_file(self._files, self._path)
        if raw is None:
            return None
        size = RECORD_STRUCT.size
        copies = {raw[:size], raw[COPY_AT : COPY_AT + size]}
        good = {state for copy in copies if (state := self._decode(copy)) is not None}
        if len(good) != 1:
            raise CorruptSegment(
                f"{self._path} is damaged: this node no longer knows its vote, and a guess could "
                "elect two masters; restore the file, or replace this node by an empty one"
            )
        self._last = good.pop()
        return self._last

    def save(self, term: int, voted_for: NodeId | None) -> None:
        """Durable when it returns. Raises DiskFull, OSError: then the old one stands."""
        if self._last is not None:
            old_term, old_vote = self._last
            assert term >= old_term, f"term falls from {old_term} to {term}"
            assert term > old_term or old_vote in (None, voted_for), (
                f"vote of term {term} changes from {old_vote} to {voted_for}"
            )
        body = RECORD_STRUCT.pack(MAGIC, VERSION, 0, term, voted_for or 0, 0, 0)[:_BODY_BYTES]
        record = body + int(google_crc32c.value(body)).to_bytes(4, "little")
        replace_file(self._files, self._path, [record.ljust(COPY_AT, b"\0"), record])
        self._last = (term, voted_for)

    def _decode(self, raw: bytes) -> tuple[int, NodeId | None] | None:
        if len(raw) < RECORD_STRUCT.size:
            return None
        magic, version, _, term, voted_for, _, crc = RECORD_STRUCT.unpack(raw)
        if magic != MAGIC or crc != google_crc32c.value(raw[:_BODY_BYTES]):
            return None
        if version != VERSION:
            raise DataDirectoryError(
                f"{self._path} has format version {version}, this program knows {VERSION}; run "
                "the newer program, or give this node an empty directory"
            )
        return term, NodeId(voted_for) if voted_for else None
