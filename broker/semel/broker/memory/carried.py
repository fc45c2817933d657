"""The bodies that travel behind the frames of an APPEND.

How it works. The frames of an APPEND come first and are the same as everywhere. If any of them has
MEMORY records, or MEMORY_COPY records, which are the same of a queue that moves here, a table
follows: one length for each of those records, in order, then the bodies.
The receiver puts each body behind the header that stands in the frame, and checks it against the
CRC there. A sender that does not have a body says so, and the receiver pulls it later.

Format. `docs/formats/raft-messages.md`; a test compares it with the structs below.

Invariants
1. What `read_bodies` returns for a record is the header of the frame and a body of its CRC.
2. Below MEMORY_LEVEL there is no table: an APPEND has the bytes that it always had.

Not here: the batches that a node has (`memory/bodies.py`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, Protocol

import google_crc32c

from semel.broker.state import RECORD_BYTES
from semel.protos.crc import crc32c_range
from semel.protos.errors import CorruptBatch, InvalidRequest
from semel.protos.frames import (
    FRAME_HEADER_BYTES,
    RECORD_HEADER_BYTES,
    RECORD_HEADER_STRUCT,
    RecordKind,
)

MAGIC: Final = b"SMBD"
HEAD: Final = struct.Struct("<4sI")
LENGTH: Final = struct.Struct("<I")
CRC: Final = struct.Struct("<I")
LACKING: Final = 0xFFFFFFFF
"""In place of a length: the sender does not have the body."""
BODILESS: Final = frozenset({RecordKind.MEMORY, RecordKind.MEMORY_COPY})
"""Records whose bodies travel beside the frame."""
_BODY: Final = struct.Struct("<40xI4xI")
"""Length and CRC of the body, as the header of a stored batch has them."""


class Carried(NamedTuple):
    """A record with a body, as an APPEND brought it."""

    position: int
    stored: bytes | None
    """Broker header and batch; None if the sender lacks it."""


class Bodies(Protocol):
    """The batches of a node, as this module needs them."""

    def get(self, index: int, position: int) -> bytes | None: ...

    def records_of(self, index: int) -> bool:
        """Whether the entry may have MEMORY records with bodies."""


def pack_bodies(
    first_index: int, frames: Sequence[bytes], bodies: Bodies
) -> list[bytes | memoryview]:
    """What follows frames with consecutive indexes: nothing, or the table and the bodies."""
    lengths: list[int] = []
    found: list[bytes | memoryview] = []
    for index, frame in enumerate(frames, first_index):
        if not bodies.records_of(index):
            continue
        for position, payload, length in _records(frame):
            stored = bodies.get(index, position)
            # The frame may come from the disk: the batch must be that of this very record.
            if stored is None or stored[:RECORD_BYTES] != payload:
                lengths.append(LACKING)
            else:
                lengths.append(length)
                found.append(memoryview(stored)[RECORD_BYTES:])
    if not lengths:
        return []
    table = HEAD.pack(MAGIC, len(lengths)) + struct.pack(f"<{len(lengths)}I", *lengths)
    return [table + CRC.pack(google_crc32c.value(table)), *found]


def read_bodies(
    data: memoryview, at: int, frames: Sequence[tuple[int, bytes]]
) -> dict[int, list[Carried]]:
    """The bodies at `data[at:]`, by the indexes of the frames in front of them.

    Raises InvalidRequest and CorruptBatch.
    """
    if len(data) - at < HEAD.size:
        raise InvalidRequest(f"{len(data) - at} bytes behind the frames of an APPEND")
    magic, count = HEAD.unpack_from(data, at)
    end = at + HEAD.size + LENGTH.size * count
    if magic != MAGIC or end + CRC.size > len(data):
        raise InvalidRequest(f"{magic!r} behind the frames of an APPEND, {count} bodies")
    if google_crc32c.value(bytes(data[at:end])) != CRC.unpack_from(data, end)[0]:
        raise InvalidRequest("the table of bodies of an APPEND is damaged: its CRC does not match")
    lengths = iter(struct.unpack_from(f"<{count}I", data, at + HEAD.size))
    at = end + CRC.size
    found: dict[int, list[Carried]] = {}
    for index, frame in frames:
        for position, payload, length in _records(frame):
            given = next(lengths, None)
            stored = None
            if given == length and at + length <= len(data):
                stored = b"".join((payload, data[at : at + length]))
                at += length
                if crc32c_range(stored, RECORD_BYTES, len(stored)) != _BODY.unpack_from(stored)[1]:
                    raise CorruptBatch(
                        f"the body of record {position} of entry {index} arrived damaged"
                    )
            elif given != LACKING:
                raise InvalidRequest(
                    f"a body of {given} bytes came for record {position} of entry {index}, which"
                    f" has {length}"
                )
            found.setdefault(index, []).append(Carried(position, stored))
    if at != len(data) or next(lengths, None) is not None:
        raise InvalidRequest("an APPEND has more bodies than MEMORY records")
    return found


def _records(frame: bytes) -> Iterator[tuple[int, bytes, int]]:
    """Position, payload and length of the body of each MEMORY record with a body, of a frame that
    was checked before."""
    position, end = FRAME_HEADER_BYTES, len(frame)
    unpack = RECORD_HEADER_STRUCT.unpack_from
    while position < end:
        length, kind, _ = unpack(frame, position)
        start = position + RECORD_HEADER_BYTES
        if kind in BODILESS and length == RECORD_BYTES:
            payload = frame[start : start + length]
            body_length = _BODY.unpack_from(payload)[0]
            if body_length:
                yield position, payload, body_length
        position = start + (length + 7 & ~7)
