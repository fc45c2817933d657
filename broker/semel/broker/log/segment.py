"""The segment file (header, ID area, frames) and its representation in memory.

How it works. A segment is preallocated, filled from the front, sealed and, when its entries are no
longer needed, recycled: it gets a new random generation and is filled again over its old bytes.
Each frame has an ID (32 bytes: index, term, place and more) in an area of its own, so that a
damaged frame still has a name and the place of the next frame is known. The CRC of an ID is salted
with the generation, so that the IDs of an earlier life are not valid.

Format. `docs/formats/segment.md`; a test compares its tables with the structs below.

    0       header, 64 bytes; at 512 the seal, 48 bytes
    4096    the same page again: one damaged block does not cost the segment
    8192    IDs, 32 bytes each
    ...     frames, without gaps, from a multiple of 4096

Invariants
1. A file with a segment's name has a durable header: the header is written and synced under a
   spare's name before the file is renamed. So two bad copies are damage, never the result of a
   crash.
2. Everything below a segment's first index was durable before its header was.
3. Frames of a segment are consecutive, in index and in place.

Not here: when segments are made and sealed (`log/keeper.py`), what their states after a crash mean
(`log/recovery.py`).
"""

from __future__ import annotations

import errno
import struct
from array import array
from bisect import bisect_right
from dataclasses import dataclass
from typing import Final

import google_crc32c

from semel.broker.log.files import File

PAGE: Final = 4096
HEADER_PAGES: Final = 2
HEADER_STRUCT: Final = struct.Struct("<4sHHQQQQIIQII")
HEADER_MAGIC: Final = b"SMSG"
VERSION: Final = 1
SEAL_AT: Final = 512
SEAL_STRUCT: Final = struct.Struct("<4sIQQIIQII")
SEAL_MAGIC: Final = b"SMSE"
ID_STRUCT: Final = struct.Struct("<QQIIII")
ID_BYTES: Final = ID_STRUCT.size
IDS_AT: Final = HEADER_PAGES * PAGE
_ID_BODY: Final = struct.Struct("<QQIII")
_ID_BODY_BYTES: Final = _ID_BODY.size
_CRC: Final = struct.Struct("<I")
LAG_MAX: Final = 0xFFFF_FFFF


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentHeader:
    """The fields that never change during one life of a segment."""

    sequence: int
    """Rises with every segment of the log; it is also in the file's name."""
    generation: int
    """64 random bits, drawn again at every recycling."""
    first_index: int
    previous_term: int
    """Term of the entry before the first; 0 at the start of a log."""
    id_capacity: int
    boot: int = 0
    """The machine's boot in which all of its frames are written (`FileLayer.boot`); 0 means
    unknown."""

    @property
    def frames_at(self) -> int:
        """File offset of the first frame."""
        return frames_at(self.id_capacity)

    def encode(self) -> bytes:
        """Encodes one header page, without a seal."""
        body = HEADER_STRUCT.pack(
            HEADER_MAGIC,
            VERSION,
            0,
            self.sequence,
            self.generation,
            self.first_index,
            self.previous_term,
            self.id_capacity,
            self.frames_at,
            self.boot,
            0,
            0,
        )[: HEADER_STRUCT.size - _CRC.size]
        return (body + _CRC.pack(google_crc32c.value(body))).ljust(PAGE, b"\0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Seal:
    """Written when a segment is full and synced, so that one CRC can check all its IDs."""

    count: int
    end: int
    """File offset of the end of the last frame."""
    last_term: int
    ids_crc: int
    """CRC32C of the first `count` IDs, as stored in the file."""


@dataclass(frozen=True, slots=True)
class FrameId:
    """The ID of one frame."""

    index: int
    term: int
    position: int
    length: int
    lag: int
    """Everything up to index - lag was durable on this node when this ID was written."""

    @property
    def end(self) -> int:
        return self.position + self.length

    @property
    def durable_before(self) -> int:
        return self.index - self.lag


def frames_at(id_capacity: int) -> int:
    """File offset of the first frame in a segment with room for `id_capacity` IDs."""
    return IDS_AT + (id_capacity * ID_BYTES + PAGE - 1) // PAGE * PAGE


def decode_header(page: bytes) -> SegmentHeader | int | None:
    """The header in one page; the version number if this program does not know it; None if the page
    is damaged."""
    raw = page[: HEADER_STRUCT.size]
    if len(raw) < HEADER_STRUCT.size:
        return None
    magic, version, _, sequence, generation, first, term, capacity, _, boot, _, crc = (
        HEADER_STRUCT.unpack(raw)
    )
    if magic != HEADER_MAGIC or crc != google_crc32c.value(raw[: -_CRC.size]):
        return None
    if version != VERSION:
        return int(version)
    return SegmentHeader(
        sequence=sequence,
        generation=generation,
        first_index=first,
        previous_term=term,
        id_capacity=capacity,
        boot=boot,
    )


def salt(generation: int) -> int:
    """The CRC from which the CRC of every ID and seal of a generation continues."""
    return google_crc32c.value(generation.to_bytes(8, "little"))  # type: ignore[no-any-return]


def encode_seal(seal: Seal, seed: int) -> bytes:
    body = SEAL_STRUCT.pack(
        SEAL_MAGIC, seal.count, seal.end, seal.last_term, seal.ids_crc, 0, 0, 0, 0
    )[: SEAL_STRUCT.size - _CRC.size]
    return body + _CRC.pack(google_crc32c.extend(seed, body))


def decode_seal(page: bytes, seed: int) -> Seal | None:
    """The seal in a header page; None when there is none or it is damaged."""
    raw = page[SEAL_AT : SEAL_AT + SEAL_STRUCT.size]
    if len(raw) < SEAL_STRUCT.size:
        return None
    magic, count, end, term, ids_crc, _, _, _, crc = SEAL_STRUCT.unpack(raw)
    if magic != SEAL_MAGIC or crc != google_crc32c.extend(seed, raw[: -_CRC.size]):
        return None
    return Seal(count=count, end=end, last_term=term, ids_crc=ids_crc)


def encode_id(index: int, term: int, position: int, length: int, lag: int, seed: int) -> bytes:
    body = _ID_BODY.pack(index, term, position >> 3, length, lag)
    return body + _CRC.pack(google_crc32c.extend(seed, body))


def decode_id(area: bytes, slot: int, seed: int) -> FrameId | None:
    """The ID in a slot of the ID area; None when the ID is damaged or was never written."""
    at = slot * ID_BYTES
    body = area[at : at + _ID_BODY_BYTES]
    if len(body) < _ID_BODY_BYTES or len(area) < at + ID_BYTES:
        return None
    if google_crc32c.extend(seed, body) != _CRC.unpack_from(area, at + _ID_BODY_BYTES)[0]:
        return None
    index, term, place, length, lag = _ID_BODY.unpack(body)
    return FrameId(index, term, place << 3, length, lag)


def ids_hold(file: File, segment: Segment, count: int) -> bool:
    """Whether the first `count` IDs in the file are intact."""
    area = file.read(count * ID_BYTES, IDS_AT)
    first = segment.header.first_index
    return all(
        (one := decode_id(area, slot, segment.seed)) is not None and one.index == first + slot
        for slot in range(count)
    )


class UnreadableIds(OSError):
    """A block of IDs reads as zeros, and a seal must not declare zeros to be IDs."""


def write_seal(file: File, segment: Segment, count: int, end: int, last_term: int) -> None:
    """Seals a segment whose first `count` frames are durable. Raises UnreadableIds."""
    ids = file.read(count * ID_BYTES, IDS_AT)
    if any(not any(ids[at : at + PAGE]) for at in range(0, len(ids), PAGE)):
        raise UnreadableIds(errno.EIO, "IDs that are to be sealed cannot be read")
    seal = Seal(count=count, end=end, last_term=last_term, ids_crc=google_crc32c.value(ids))
    raw = encode_seal(seal, segment.seed)
    for page in range(HEADER_PAGES):
        file.write([raw], page * PAGE + SEAL_AT)
    file.sync()


class Segment:
    """One segment in memory, with the place of each frame in 4 bytes.

    The owner's thread grows and cuts it; other threads read it. The header, and so the file name,
    is fixed before the first byte is written.
    """

    __slots__ = ("_places", "bytes_limit", "header", "on_disk", "sealed", "seed")

    def __init__(self, header: SegmentHeader, bytes_limit: int) -> None:
        self.header = header
        self.bytes_limit = bytes_limit
        """Frames must end at or before this offset."""
        self.seed = salt(header.generation)
        self.on_disk = False
        """True once the file has the segment's name."""
        self.sealed = False
        """True once the segment gets no more frames."""
        self._places = array("I", [header.frames_at >> 3])
        # Invariant: _places[k] is the offset of frame k in units of 8; the last element is the end.

    @property
    def file_name(self) -> str:
        return segment_name(self.header.sequence)

    @property
    def first_index(self) -> int:
        return self.header.first_index

    @property
    def end_index(self) -> int:
        """The index after the last frame's."""
        return self.header.first_index + len(self._places) - 1

    @property
    def count(self) -> int:
        return len(self._places) - 1

    @property
    def end(self) -> int:
        """File offset of the end of the last frame."""
        return self._places[-1] << 3

    def has_room(self, length: int) -> bool:
        return (
            not self.sealed
            and len(self._places) <= self.header.id_capacity
            and self.end + length <= self.bytes_limit
        )

    def add(self, length: int) -> None:
        """Adds a frame of `length` bytes after the last one."""
        self._places.append(self._places[-1] + (length >> 3))

    def load(self, places: array[int]) -> None:
        """Replaces all places. `places` has one element more than there are frames."""
        self._places = places

    def cut(self, from_index: int) -> None:
        """Drops the frames at and above `from_index`; the segment gets no more frames."""
        self.sealed = True
        del self._places[from_index - self.first_index + 1 :]

    def place(self, index: int) -> tuple[int, int]:
        """The frame's start and end in the file. Raises IndexError when it is not in this
        segment."""
        slot = index - self.header.first_index
        if slot < 0:
            raise IndexError(index)
        places = self._places
        return places[slot] << 3, places[slot + 1] << 3

    def fit(self, lo: int, hi_max: int, max_bytes: int) -> int:
        """The largest hi ≤ hi_max such that the frames [lo, hi) of this segment take ≤
        max_bytes."""
        slot = lo - self.header.first_index
        places = self._places
        found = bisect_right(places, places[slot] + (max_bytes >> 3), slot) - 1
        return min(self.header.first_index + found, hi_max)


def segment_name(sequence: int) -> str:
    return f"segment-{sequence:020d}"


def spare_name(sequence: int) -> str:
    return f"spare-{sequence:020d}"
