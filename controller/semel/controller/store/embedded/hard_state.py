"""Term, vote, and whether this controller is a voter: durable before any message states them.

How it works. The file `hard_state` holds one small record and is replaced whole: written under
another name, synced, renamed, and the directory synced. `save` returns after all of that.

Format, little-endian, docs/formats/metadata.md has the table:
    magic "SMVT" | version u16 | voter u8 | zero u8 | term u64 | voted_for u32 | incarnation u64 |
    crc32c u32 of all before it

Crash cases. The file holds the old record or the new one, never a mixture; nothing was promised
from the new one before `save` returned. Damage is refused with the file's name: a forgotten vote
could elect two masters in one term, and each of them could give out the same producer's epoch.

Invariants
1. The term never falls; a vote given in a term never changes (asserted).
2. The incarnation rises with every start.

Not here: the log (`journal.py`).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from typing import Final

import google_crc32c

from semel.controller.store.embedded.files import Files, replace_file
from semel.protos.errors import DataDirectoryError

FILE_NAME: Final = "hard_state"
MAGIC: Final = b"SMVT"
VERSION: Final = 1
RECORD_STRUCT: Final = struct.Struct("<4sHBBQIQI")
_BODY_BYTES: Final = RECORD_STRUCT.size - 4


@dataclass(frozen=True, slots=True, kw_only=True)
class HardState:
    """The promises that this controller has made."""

    term: int = 0
    voted_for: int | None = None
    """The controller to which this one gave its vote of `term`."""
    voter: bool
    """False from the loss of its disk until it has everything back."""
    incarnation: int = 0
    """Number of its newest start; requests of older ones are no longer answered."""


class HardStateFile:
    """The record of one directory. Blocking; one thread at a time."""

    def __init__(self, files: Files) -> None:
        """Reads the record. Raises DataDirectoryError when it is damaged or of a newer format."""
        self._files = files
        self.state: HardState | None = None
        """None in a new directory."""
        raw = files.read(FILE_NAME)
        if raw is not None:
            self.state = _decode(raw, files.where(FILE_NAME))

    def save(self, state: HardState) -> None:
        """Makes `state` durable. After an OSError the file may hold either state."""
        last = self.state
        if last is not None:
            assert state.term >= last.term, f"term falls from {last.term} to {state.term}"
            assert state.term > last.term or last.voted_for in (None, state.voted_for), (
                f"vote of term {state.term} changes from {last.voted_for} to {state.voted_for}"
            )
            assert state.incarnation >= last.incarnation
            if state == last:
                return
        replace_file(self._files, FILE_NAME, _encode(state))
        self.state = state

    def save_vote(self, term: int, voted_for: int | None) -> None:
        """Saves the present state with this term and vote."""
        assert self.state is not None
        self.save(replace(self.state, term=term, voted_for=voted_for))


def _encode(state: HardState) -> bytes:
    body = RECORD_STRUCT.pack(
        MAGIC, VERSION, state.voter, 0, state.term, state.voted_for or 0, state.incarnation, 0
    )[:_BODY_BYTES]
    return body + int(google_crc32c.value(body)).to_bytes(4, "little")


def _decode(raw: bytes, where: str) -> HardState:
    if len(raw) == RECORD_STRUCT.size:
        magic, version, voter, _, term, voted_for, incarnation, crc = RECORD_STRUCT.unpack(raw)
        if magic == MAGIC and crc == google_crc32c.value(raw[:_BODY_BYTES]):
            if version != VERSION:
                raise DataDirectoryError(
                    f"{where} has format version {version}, this program knows {VERSION}; run the "
                    "newer program"
                )
            return HardState(
                term=term, voted_for=voted_for or None, voter=bool(voter), incarnation=incarnation
            )
    raise DataDirectoryError(
        f"{where} is damaged: this controller no longer knows its vote, and a guess could elect "
        "two masters. Empty its directory and start it again: it gets everything back from the "
        "others. A controller that is alone needs a backup"
    )
