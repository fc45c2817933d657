"""The log's entries on disk: two equal files, with one frame written per sync.

How it works. `add` and the deletions change the list in memory and are buffered; `sync` writes the
buffered records as one frame to both files and syncs both, and the transport calls it before any
message leaves. Frames are only ever appended. Entries that are no longer needed leave the files
when `delete_to` or `clear` rewrites the files as the next generation, after the dump that replaces
those entries is durable.

Format. `journal.a` and `journal.b` are byte for byte equal. Little-endian:
    header  magic "SMJL" | version u16 | zero u16 | generation u64 | crc32c u32
    frame   magic "SMJF" | length u32 | number u64 | generation u64 | crc32c u32 of these |
            records (`length` bytes) | crc32c u32 of the frame up to here
    record  index u64 | term u64 | length u32 | command;
            length 2^32 - 1 without a command deletes all entries from `index` on
Frame 0 of a generation holds all entries with which the generation began.

Start. What is read comes out of the page cache, and a process that was killed, or whose sync has
failed, may have left a frame there that the disk has not; a sync would then find nothing to write
(docs/decisions/restarts.md). Only frame 0 is proven, by the files' names, which they get after
their sync. So if more is found, all entries are rewritten as the next generation before any counts.

Crash cases and damage. Only the last frame can be unsynced, so only the last frame can be torn.
    * A frame is good in one file: it counts, and the files are rewritten.
    * The last frame is good in neither: it was torn before its sync, and nobody was told of it.
      (Or both copies of a synced frame were damaged, in two files: two faults.)
    * A frame is good in neither, and a later one is good: both copies are damaged, and the files
      are refused by name.
    * The generations differ: the newer one counts when its frame 0 is whole, else the older one;
      nothing was appended to the newer one before both of its files were in place.

Invariants
1. Whatever `sync` has returned for is at two places on the disk, and so is everything that was
   found at start, once the object is made.
2. Indexes have no gap; terms never fall from entry to entry (checked when read).
3. Nothing is unpickled: a command's first byte is its kind, and only two kinds are known.

Not here: the term and the vote (`hard_state.py`), the dump (`dump.py`).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

import google_crc32c

from semel.controller.store.embedded.files import Files
from semel.protos.errors import DataDirectoryError

FILE_NAMES: Final = ("journal.a", "journal.b")
HEADER_STRUCT: Final = struct.Struct("<4sHHQI")
FRAME_STRUCT: Final = struct.Struct("<4sIQQI")
RECORD_STRUCT: Final = struct.Struct("<QQI")
HEADER_MAGIC: Final = b"SMJL"
FRAME_MAGIC: Final = b"SMJF"
VERSION: Final = 1
DELETES_FROM: Final = 0xFFFFFFFF
COMMAND: Final = b"\x00"
NO_OP: Final = b"\x01"
"""Kinds of entries, as pysyncobj numbers them."""


class Entry(NamedTuple):
    """One entry, as the tuple that pysyncobj expects."""

    command: bytes
    index: int  # type: ignore[assignment]  # tuples have a method of that name
    term: int


FIRST: Final = Entry(NO_OP, 1, 0)
"""The first entry of every log."""


def check_kind(command: bytes) -> bytes:
    """Returns the command unchanged. Raises ValueError for a kind that is not in use."""
    if command[:1] not in (COMMAND, NO_OP):
        raise ValueError(f"an entry of kind {command[:1].hex() or 'nothing'}")
    return command


class JournalFiles:
    """Entries in memory and on disk. Blocking; one thread at a time."""

    def __init__(self, files: Files) -> None:
        """Reads the files and makes durable what they hold.

        Raises DataDirectoryError when they are damaged or newer, and OSError.
        """
        self._files = files
        self.entries: list[Entry] = []
        """Rising indexes without a gap; empty only in a new directory."""
        self.bytes = 0
        """Length of one file."""
        self._generation = 0
        self._number = 0
        self._pending: list[bytes] = []
        self._rewrite = True
        """True when the files hold something other than a prefix of `entries`."""
        images = [files.read(name) for name in FILE_NAMES]
        if any(image is not None for image in images):
            self._load([image or b"" for image in images])

    @property
    def last(self) -> Entry:
        """The newest entry."""
        return self.entries[-1]

    def add(self, entry: Entry) -> None:
        """Appends the entry; durable after `sync`."""
        assert not self.entries or entry.index == self.last.index + 1
        self.entries.append(entry)
        self._pending.append(_record(entry))

    def delete_from(self, index: int) -> None:
        """Deletes the entry at `index` and all after it; durable after `sync`."""
        del self.entries[index - self.entries[0].index :]
        self._pending.append(RECORD_STRUCT.pack(index, 0, DELETES_FROM))

    def delete_to(self, index: int) -> None:
        """Deletes all entries before `index`; durable when it returns."""
        self.replace(self.entries[index - self.entries[0].index :])

    def clear(self) -> None:
        """Forgets all entries. The files follow at the next `sync`, which needs an entry."""
        self.entries = []
        self._pending.clear()
        self._rewrite = True

    def replace(self, entries: Sequence[Entry]) -> None:
        """Replaces all entries by `entries`; durable when it returns."""
        assert entries
        self.entries = list(entries)
        self._pending.clear()
        self._generation += 1
        records = b"".join(map(_record, self.entries))
        data = _header(self._generation) + _frame(0, self._generation, records)
        for name in FILE_NAMES:  # one after the other: a disk that is almost full has room for it
            self._files.create(name + ".tmp", data)
            self._files.sync(name + ".tmp")
            self._files.rename(name + ".tmp", name)
        self._files.sync_directory()
        self._number = 1
        self._rewrite = False
        self.bytes = len(data)

    def sync(self) -> None:
        """Makes all changes durable. After an OSError the process must end."""
        if self._rewrite:
            self.replace(self.entries)
        if not self._pending:
            return
        frame = _frame(self._number, self._generation, b"".join(self._pending))
        self._pending.clear()
        for name in FILE_NAMES:
            self._files.append(name, frame)
        for name in FILE_NAMES:
            self._files.sync(name)
        self._number += 1
        self.bytes += len(frame)

    def at(self, index: int) -> Entry | None:
        """The entry at that index; None when the journal does not hold it."""
        position = index - self.entries[0].index if self.entries else -1
        return self.entries[position] if 0 <= position < len(self.entries) else None

    def _load(self, images: list[bytes]) -> None:
        generations = [self._read_header(*pair) for pair in zip(FILE_NAMES, images, strict=True)]
        whole = [
            generation
            for generation, image in zip(generations, images, strict=True)
            if generation and _good_frame(image, HEADER_STRUCT.size, 0, generation) is not None
        ]
        if not whole:
            raise self._damaged("neither copy has a whole beginning")
        generation = max(whole)
        copies = [
            image if found in (0, generation) else b""
            for found, image in zip(generations, images, strict=True)
        ]
        position, number = HEADER_STRUCT.size, 0
        try:
            while (frame := _either_frame(copies, position, number, generation)) is not None:
                self._take(frame)
                position += FRAME_STRUCT.size + len(frame) + 4
                number += 1
        except (ValueError, struct.error) as error:
            raise self._damaged(str(error)) from error
        if any(_holds_frame_after(copy, position, number, generation) for copy in copies):
            raise self._damaged(f"frame {number} is unreadable in both copies")
        if not self.entries:
            raise self._damaged("no entry is left")
        self._generation = max(generations)
        self._number = number
        self.bytes = position
        self._rewrite = False
        proven = number == 1  # by the names of the files
        if not proven or images[0] != images[1] or len(images[0]) != position:
            self.replace(self.entries)

    def _take(self, records: bytes) -> None:
        position = 0
        while position < len(records):
            index, term, length = RECORD_STRUCT.unpack_from(records, position)
            position += RECORD_STRUCT.size
            if length == DELETES_FROM:
                if not self.entries or not self.entries[0].index < index:
                    raise ValueError(f"entry {index} is deleted and was never there")
                del self.entries[index - self.entries[0].index :]
                continue
            command = check_kind(records[position : position + length])
            position += length
            if position > len(records):
                raise ValueError("a record ends behind its frame")
            if self.entries and (index != self.last.index + 1 or term < self.last.term):
                raise ValueError(
                    f"entry {index} of term {term} follows {self.last.index} of {self.last.term}"
                )
            self.entries.append(Entry(command, index, term))

    def _read_header(self, name: str, image: bytes) -> int:
        """The generation; 0 when the header is damaged or there is no file."""
        if len(image) < HEADER_STRUCT.size:
            return 0
        magic, version, _, generation, crc = HEADER_STRUCT.unpack_from(image)
        if magic != HEADER_MAGIC or crc != _crc(image[: HEADER_STRUCT.size - 4]):
            return 0
        if version != VERSION:
            raise DataDirectoryError(
                f"{self._files.where(name)} has format version {version}, this program knows "
                f"{VERSION}; run the newer program"
            )
        return int(generation)

    def _damaged(self, what: str) -> DataDirectoryError:
        where = " and ".join(self._files.where(name) for name in FILE_NAMES)
        return DataDirectoryError(
            f"{where} are damaged: {what}. Empty this controller's directory and start it again: "
            "it gets everything back from the others. A controller that is alone needs a backup"
        )


def _crc(data: bytes) -> int:
    return int(google_crc32c.value(data))


def _header(generation: int) -> bytes:
    body = HEADER_STRUCT.pack(HEADER_MAGIC, VERSION, 0, generation, 0)[:-4]
    return body + _crc(body).to_bytes(4, "little")


def _record(entry: Entry) -> bytes:
    return RECORD_STRUCT.pack(entry.index, entry.term, len(entry.command)) + entry.command


def _frame(number: int, generation: int, records: bytes) -> bytes:
    head = FRAME_STRUCT.pack(FRAME_MAGIC, len(records), number, generation, 0)[:-4]
    head += _crc(head).to_bytes(4, "little")
    return head + records + _crc(head + records).to_bytes(4, "little")


def _frame_head(image: bytes, position: int, generation: int) -> tuple[int, int] | None:
    """(number, length) of the frame header at `position`; None when it is not whole."""
    head = image[position : position + FRAME_STRUCT.size]
    if len(head) < FRAME_STRUCT.size:
        return None
    magic, length, number, of, crc = FRAME_STRUCT.unpack(head)
    if magic != FRAME_MAGIC or of != generation or crc != _crc(head[:-4]):
        return None
    return number, length


def _good_frame(image: bytes, position: int, number: int, generation: int) -> bytes | None:
    """The records of frame `number` at `position`; None when the frame is not whole."""
    head = _frame_head(image, position, generation)
    if head is None or head[0] != number:
        return None
    start = position + FRAME_STRUCT.size
    end = start + head[1]
    if len(image) < end + 4:
        return None
    if int.from_bytes(image[end : end + 4], "little") != _crc(image[position:end]):
        return None
    return image[start:end]


def _either_frame(
    copies: Sequence[bytes], position: int, number: int, generation: int
) -> bytes | None:
    for copy in copies:
        frame = _good_frame(copy, position, number, generation)
        if frame is not None:
            return frame
    return None


def _holds_frame_after(image: bytes, position: int, number: int, generation: int) -> bool:
    """True when a later frame's header follows: frame `number` had then been synced."""
    found = image.find(FRAME_MAGIC, position)
    while found >= 0:
        head = _frame_head(image, found, generation)
        if head is not None and head[0] > number:
            return True
        found = image.find(FRAME_MAGIC, found + 1)
    return False
