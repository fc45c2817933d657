"""The log frame, version 1: one Raft entry as it is replicated, written and read.

A frame is a 48-byte header and a payload of records: batches of any queues, control records, a
membership, or nothing (NOOP). CRCs cover all of it, and it is replicated and truncated as a whole.
A record's *position* is the byte offset of its 8-byte header in the frame, so (index, position)
finds it.

Format. `docs/formats/frame.md`; tests compare its tables with the structs below.

Invariants
1. `check_frame` accepts exactly the frames that `build_frame` makes: both CRCs match, the length is
   exact, and the records fill the payload and are as many as the header says.
2. Every record starts at a multiple of 8 in the frame, and so does the next frame.

Not here: the meaning of records (the broker's state), the places of frames on disk (the broker's
log).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import Final

import google_crc32c

from semel.protos.crc import crc32c, crc32c_range
from semel.protos.errors import CorruptFrame
from semel.protos.ids import Index, Term
from semel.protos.values import value

FRAME_MAGIC: Final = b"SMF1"
FRAME_VERSION: Final = 1

FRAME_HEADER_STRUCT: Final = struct.Struct("<4sHHQQqIIII")
FRAME_HEADER_BYTES: Final = 48
FRAME_HEADER_CRC_AT: Final = 40
RECORD_HEADER_STRUCT: Final = struct.Struct("<IHH")
RECORD_HEADER_BYTES: Final = 8

FRAME_BYTES_MAX: Final = 15 << 20
"""Below the 16 MiB of one gRPC message, so that any frame fits one."""
FRAME_RECORDS_MAX: Final = 0xFFFF

_PREFIX_STRUCT: Final = struct.Struct("<4sHHQQqII")
_TAIL_STRUCT: Final = struct.Struct("<II")
_PADDING: Final = tuple(bytes(-n % 8) for n in range(8))


class RecordKind(IntEnum):
    """The kinds of records. A node halts at a kind that it does not know."""

    NOOP = 1
    """Empty; begins a term."""
    MEMBERSHIP = 2
    """The group's voters and learners, as protobuf."""
    BATCH = 3
    """A stored batch: broker header, client header, body."""
    CONTROL = 4
    """Protobuf semel.protos.v1.ControlRecord."""
    STAGED = 5
    """A stored batch without offsets: part of a transaction. Feature level 3."""
    COPY = 6
    """A stored batch of a queue that is moved here, as it was stored there. Feature level 4."""
    COMPACTED = 7
    """A stored batch in the place of one of which compaction has removed messages. Feature level
    8."""
    MEMORY = 8
    """A stored batch without its body, which is in the memory of a majority. Feature level 9."""

    PARTED = 9
    """A stored batch without offset: the part of a delayed batch that a child of a split gets.
    Feature level 9."""
    MEMORY_COPY = 10
    """A COPY of a topic in memory without its body, which is in the memory of a majority. Feature
    level 9."""


_KINDS: Final = {kind.value: kind for kind in RecordKind}


class NewerFrame(CorruptFrame):
    """The frame's header is whole, but of a version that this program does not know. The frame is
    not damaged and needs no repair."""


@value
class FrameHeader:
    """The header of one frame."""

    index: Index
    term: Term
    time_us: int
    """Log time: never falls from one index to the next."""
    record_count: int
    payload_length: int
    """A multiple of 8."""
    payload_crc: int

    @property
    def frame_length(self) -> int:
        """Header and payload together."""
        return FRAME_HEADER_BYTES + self.payload_length


def build_frame(
    index: Index | int,
    term: Term | int,
    time_us: int,
    records: Sequence[tuple[RecordKind, Sequence[bytes | memoryview]]],
) -> tuple[bytes, list[int]]:
    """Returns one frame of `records`, each given in parts, and the records' positions.

    Asserts that there is a record and that the frame keeps to the limits.
    """
    assert 0 < len(records) <= FRAME_RECORDS_MAX, f"{len(records)} records in one frame"
    parts: list[bytes | memoryview] = [b""]
    positions: list[int] = []
    position = FRAME_HEADER_BYTES
    padding = b""
    crc = 0
    for kind, payload in records:
        length = 0
        for part in payload:
            length += len(part)
        # The padding of the record before and this header are one part: fewer CRC calls.
        glue = padding + RECORD_HEADER_STRUCT.pack(length, kind, 0)
        parts.append(glue)
        crc = google_crc32c.extend(crc, glue)
        for part in payload:
            parts.append(part)
            crc = crc32c(part, crc)
        positions.append(position)
        padding = _PADDING[length & 7]
        position += RECORD_HEADER_BYTES + length + len(padding)
    if padding:
        parts.append(padding)
        crc = google_crc32c.extend(crc, padding)
    assert position <= FRAME_BYTES_MAX, f"frame of {position} bytes"
    prefix = _PREFIX_STRUCT.pack(
        FRAME_MAGIC,
        FRAME_VERSION,
        len(records),
        index,
        term,
        time_us,
        position - FRAME_HEADER_BYTES,
        crc,
    )
    parts[0] = prefix + _TAIL_STRUCT.pack(google_crc32c.value(prefix), 0)
    return b"".join(parts), positions


def decode_frame_header(data: bytes | bytearray | memoryview, at: int = 0) -> FrameHeader:
    """Returns the frame header at `data[at:]` after checking it alone. Raises CorruptFrame,
    NewerFrame."""
    raw = bytes(data[at : at + FRAME_HEADER_BYTES])
    if len(raw) < FRAME_HEADER_BYTES:
        raise CorruptFrame(f"frame header is cut: {len(raw)} of {FRAME_HEADER_BYTES} bytes")
    magic, version, count, index, term, time_us, length, payload_crc, header_crc, zero = (
        FRAME_HEADER_STRUCT.unpack(raw)
    )
    if magic != FRAME_MAGIC:
        raise CorruptFrame(f"not a log frame: it starts with {magic!r}")
    if header_crc != google_crc32c.value(raw[:FRAME_HEADER_CRC_AT]) or zero:
        raise CorruptFrame("frame header is damaged: its CRC does not match")
    if version != FRAME_VERSION:
        raise NewerFrame(f"frame version {version} is unknown; this side knows {FRAME_VERSION}")
    if length % 8 or length > FRAME_BYTES_MAX - FRAME_HEADER_BYTES or not count or not index:
        raise CorruptFrame(f"frame {index} has {count} records in {length} bytes")
    return FrameHeader(index, term, time_us, count, length, payload_crc)


def frame_length_at(data: bytes | bytearray | memoryview, at: int) -> int:
    """Returns the length that the header at `data[at:]` claims, without any check. Give a slice of
    that length to `check_frame`.

    Raises CorruptFrame when there is no room for a header.
    """
    if len(data) - at < FRAME_HEADER_BYTES:
        raise CorruptFrame(f"frame header is cut: {len(data) - at} of {FRAME_HEADER_BYTES} bytes")
    length: int = FRAME_HEADER_STRUCT.unpack_from(data, at)[6]
    return FRAME_HEADER_BYTES + length


def check_frame(data: bytes | bytearray | memoryview) -> FrameHeader:
    """Returns the header of the frame that fills `data` exactly, after checking payload and
    records.

    The records' kinds are not checked. Raises CorruptFrame.
    """
    header = decode_frame_header(data)
    end = len(data)
    if header.frame_length != end:
        raise CorruptFrame(
            f"frame {header.index} is {header.frame_length} bytes long, {end} were given"
        )
    if crc32c_range(data, FRAME_HEADER_BYTES, end) != header.payload_crc:
        raise CorruptFrame(f"frame {header.index} is damaged: its payload's CRC does not match")
    position = FRAME_HEADER_BYTES
    count = zeros = 0
    unpack = RECORD_HEADER_STRUCT.unpack_from
    while position < end:
        length, _, zero = unpack(data, position)
        position += RECORD_HEADER_BYTES + (length + 7 & ~7)
        count += 1
        zeros |= zero
    if position != end or count != header.record_count or zeros:
        raise CorruptFrame(f"frame {header.index} has records that do not fill it")
    return header


def iter_records(
    frame: bytes | bytearray | memoryview,
) -> Iterator[tuple[int, RecordKind, memoryview]]:
    """Yields position, kind and payload (a view) of each record of a frame that was checked before.

    Raises CorruptFrame for a kind that this version does not know, and for a record that reaches
    beyond the frame.
    """
    view = memoryview(frame)
    end = len(view)
    position = FRAME_HEADER_BYTES
    unpack = RECORD_HEADER_STRUCT.unpack_from
    while position + RECORD_HEADER_BYTES <= end:
        length, kind, _ = unpack(view, position)
        start = position + RECORD_HEADER_BYTES
        if kind not in _KINDS:
            raise CorruptFrame(f"record kind {kind} is unknown to this version; upgrade this node")
        if start + length > end:
            break
        yield position, _KINDS[kind], view[start : start + length]
        position = start + (length + 7 & ~7)
    if position != end:
        raise CorruptFrame(f"record at {position} leads out of its frame of {end} bytes")
