"""Recovery, which finds out at opening what the log holds after a crash, power failure or damage.

How it works. Segments are read newest first to find where each one ends: entries of an older
segment from a newer one's first index on are void. Then, oldest first, the IDs of each segment are
either accepted together, when the CRC in its seal matches, or walked one by one. Frames above the
checkpoint are checked whole, because they are about to be replayed; older frames are checked when
they are read.

Damage, entry by entry (design §3):

    ID     frame   elsewhere                       meaning
    good   good                                    an entry
    good   bad                                     damaged, known by (index, term): fetch it
    bad    good                                    an entry; its ID is written anew
    bad    bad     known to have been durable      halt: CorruptSegment
    bad    bad     not known to be                 never acknowledged: the log ends before it

A damaged entry that is not known to have been durable may be a torn write, but only after a power
failure: a frame is written before its ID, so after a mere kill a good ID proves that the frame was
whole. A segment's header records in which boot of the machine the segment was written.

An entry that recovery finds may be in the page cache only: the previous process was killed before
its sync, or the sync failed, after which the kernel marks the pages clean and never syncs them
again. So recovery writes every entry that is not *known* to have been durable again, with its ID,
and syncs it before the log counts it. These are only the last entries, which were under way when
the process ended.

An entry is known to have been durable when a newer segment exists (its predecessors were synced
first), when the seal counts it, when a later good ID says so (`lag`), or when the checkpoint covers
it.

Invariants
1. Recovery never cuts an entry that was reported durable, and never takes a torn write for an
   entry.
2. After the end of a log that was not closed, there may be frames that were never acknowledged.
   They are not overwritten in place: the next append opens a new segment, which makes them void for
   good.
3. Everything it returns is durable. A successful sync proves that: either an earlier process's,
   which its later writes show, or recovery's own.

Not here: checkpoints (`log/checkpoint.py`), kept records (`log/kept.py`).
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import google_crc32c
import numpy as np

from semel.broker.log.files import File, FileLayer
from semel.broker.log.segment import (
    HEADER_PAGES,
    ID_BYTES,
    ID_STRUCT,
    IDS_AT,
    LAG_MAX,
    PAGE,
    VERSION,
    FrameId,
    Seal,
    Segment,
    SegmentHeader,
    UnreadableIds,
    decode_header,
    decode_id,
    decode_seal,
    encode_id,
    write_seal,
)
from semel.broker.log.types import Damage
from semel.protos.errors import CorruptFrame, CorruptSegment, DataDirectoryError
from semel.protos.frames import FRAME_HEADER_BYTES, NewerFrame, check_frame, decode_frame_header

_log = logging.getLogger(__name__)

_SEGMENT: Final = "segment-"
_SPARE: Final = "spare-"
_READ_BYTES: Final = 8 << 20
_ID_ROW: Final = np.dtype(
    [
        ("index", "<u8"),
        ("term", "<u8"),
        ("place", "<u4"),
        ("length", "<u4"),
        ("lag", "<u4"),
        ("crc", "<u4"),
    ]
)
assert _ID_ROW.itemsize == ID_STRUCT.size


@dataclass(slots=True)
class Recovered:
    """The result of a recovery."""

    segments: tuple[Segment, ...] = ()
    first_index: int = 1
    base_term: int = 0
    runs: list[tuple[int, int]] = field(default_factory=list)
    """(first index, term) of every change of term."""
    damaged: dict[int, Damage] = field(default_factory=dict)
    spares: list[str] = field(default_factory=list)
    void: list[str] = field(default_factory=list)
    """Files to remove: leftovers of truncations and of crashes."""
    next_sequence: int = 1
    repaired: int = 0
    """Number of IDs that were written again."""


@dataclass(slots=True)
class _Found:
    """One segment file during recovery."""

    path: Path
    header: SegmentHeader
    seal: Seal | None
    end_index: int | None
    """First index of the next segment, before which everything was durable; None for the newest
    segment."""


def recover(
    files: FileLayer, directory: Path, checkpoint_index: int, checkpoint_term: int
) -> Recovered:
    """BLOCKING. Recovers the log in `directory`, whose names are durable, and makes the returned
    entries durable. Otherwise it only writes damaged IDs again and seals segments.

    `checkpoint_index` is 0 without a checkpoint. Raises CorruptSegment, DataDirectoryError, and
    DiskFull and OSError when something cannot be made durable.
    """
    result = Recovered(first_index=checkpoint_index + 1, base_term=checkpoint_term)
    boot = files.boot()
    found: list[_Found] = []
    for name in files.names(directory):
        if name.endswith(".tmp"):
            result.void.append(name)
        elif name.startswith(_SPARE):
            result.spares.append(name)
        elif name.startswith(_SEGMENT):
            found.append(_open(files, directory / name))
    if found:
        result.next_sequence = found[-1].header.sequence + 1
    live = _without_void(found, result)
    if not live:
        return result
    result.first_index = live[0].header.first_index
    result.base_term = live[0].header.previous_term
    if result.first_index > checkpoint_index + 1:
        raise CorruptSegment(
            f"{directory} begins at index {result.first_index}, but the newest good checkpoint "
            f"ends at {checkpoint_index}: segments or checkpoints are missing; restore them, or "
            "give this node an empty directory and let it fetch everything from its peers"
        )
    segments = []
    for one in live:
        file = files.open(one.path)
        try:
            segments.append(_Walk(file, one, checkpoint_index, boot, result).run())
        finally:
            file.close()
    result.segments = tuple(segments)
    last_index = segments[-1].end_index - 1
    if last_index < checkpoint_index:
        raise CorruptSegment(
            f"{directory} ends at index {last_index}, but its checkpoint is of {checkpoint_index}: "
            "entries that were durable are missing; give this node an empty directory"
        )
    if result.damaged:
        certain = any(one.certain for one in result.damaged.values())
        _log.log(
            logging.ERROR if certain else logging.WARNING,
            "log damaged directory=%s certain=%s entries=%s",
            directory,
            certain,
            sorted(result.damaged)[:20],
        )
    if result.repaired:
        _log.info("log repaired directory=%s ids=%d", directory, result.repaired)
    return result


def _open(files: FileLayer, path: Path) -> _Found:
    """Reads the header of a segment file, from either of its copies."""
    file = files.open(path)
    try:
        pages = [file.read(PAGE, number * PAGE) for number in range(HEADER_PAGES)]
        headers = [decode_header(page) for page in pages]
        header = next((one for one in headers if one is not None), None)
        if isinstance(header, SegmentHeader) and None in headers:
            bad = headers.index(None)
            pages[bad] = pages[1 - bad]
            file.write([pages[bad]], bad * PAGE)
            file.sync()
    finally:
        file.close()
    if isinstance(header, int):
        raise DataDirectoryError(
            f"{path} has format version {header}, this program knows {VERSION}; run the newer "
            "program, or give this node an empty directory"
        )
    if header is None or path.name != f"{_SEGMENT}{header.sequence:020d}":
        raise CorruptSegment(
            f"{path} has no good header in either copy; restore the file, or give this node an "
            "empty directory and let it fetch everything from its peers"
        )
    segment = Segment(header, 0)
    seal = next((s for page in pages if (s := decode_seal(page, segment.seed))), None)
    return _Found(path, header, seal, None)


def _without_void(found: list[_Found], result: Recovered) -> list[_Found]:
    """The segments that still count, oldest first, with their ends; adds the others to
    `result.void`."""
    live: list[_Found] = []
    limit: int | None = None
    for one in reversed(found):
        if limit is not None and one.header.first_index >= limit:
            result.void.append(one.path.name)
            continue
        one.end_index = limit
        limit = one.header.first_index
        live.append(one)
    live.reverse()
    return live


class _Walk:
    """Decides for each entry of one segment which row of the module's table applies."""

    def __init__(
        self, file: File, found: _Found, checkpoint_index: int, boot: int, result: Recovered
    ) -> None:
        self._file = file
        self._power_failed = not boot or boot != found.header.boot
        self._path = found.path
        self._header = found.header
        self._seal = found.seal
        self._end_index = found.end_index
        self._checkpoint_index = checkpoint_index
        self._result = result
        self._segment = Segment(found.header, found.header.frames_at)
        self._segment.on_disk = True
        self._places = array("I", [found.header.frames_at >> 3])
        self._term = result.runs[-1][1] if result.runs else result.base_term
        self._repairs: list[tuple[int, bytes]] = []
        # (slot, ID) to write again for entries that were durable.
        self._unproven: list[bytes] = []
        # IDs of the last entries, which are not proven to be durable.
        self._proven_index = 0

    def run(self) -> Segment:
        try:
            fast = self._take_sealed()
            if not fast:
                self._take_slowly()
        except NewerFrame as error:
            raise DataDirectoryError(
                f"{self._path} holds entries of a newer program: {error}; run that one, or give "
                "this node an empty directory"
            ) from None
        segment = self._segment
        segment.load(self._places)
        if self._end_index is not None and segment.end_index != self._end_index:
            self._halt(segment.end_index, "its ID and its frame are both damaged")
        if not fast:
            self._settle()
        return segment

    def _settle(self) -> None:
        """Makes the found entries durable. `_entry` has already written the unproven frames again;
        now their IDs follow, in the usual order."""
        segment = self._segment
        for slot, raw in self._repairs:
            self._file.write([raw], IDS_AT + slot * ID_BYTES)
        self._result.repaired += len(self._repairs)
        if self._unproven:
            first = segment.count - len(self._unproven)
            self._file.write([b"".join(self._unproven)], IDS_AT + first * ID_BYTES)
        self._file.sync()
        if segment.count and all(
            one.certain for one in self._result.damaged.values() if one.index >= segment.first_index
        ):
            # The segment gets no more frames, and all its frames are durable from now on.
            try:
                write_seal(self._file, segment, segment.count, segment.end, self._term)
            except UnreadableIds as error:
                _log.error("segment not sealed path=%s error=%s", self._path, error)
            else:
                segment.sealed = True

    def _halt(self, index: int, reason: str) -> None:
        raise CorruptSegment(
            f"entry {index} in {self._path} was durable, and {reason}; restore the file, or give "
            "this node an empty directory and let it fetch everything from its peers"
        )

    # The fast path: one CRC over all IDs.

    def _take_sealed(self) -> bool:
        seal = self._seal
        if seal is None:
            return False
        first = self._header.first_index
        area = self._file.read(seal.count * ID_BYTES, IDS_AT)
        if len(area) != seal.count * ID_BYTES or google_crc32c.value(area) != seal.ids_crc:
            return False
        count = seal.count if self._end_index is None else min(seal.count, self._end_index - first)
        rows = np.frombuffer(area, _ID_ROW)[:count]
        places = array("I", rows["place"].tobytes())
        places.append((int(rows["length"][-1]) >> 3) + places[-1] if count else self._places[0])
        self._places = places
        terms = rows["term"]
        changes = np.flatnonzero(np.diff(terms, prepend=np.uint64(self._term)))
        for slot in changes.tolist():
            self._result.runs.append((first + slot, int(terms[slot])))
        if count:
            self._term = int(terms[-1])
        self._segment.sealed = True
        self._check_frames(rows)
        return True

    def _check_frames(self, rows: np.ndarray[tuple[int], np.dtype[np.void]]) -> None:
        """Checks the frames above the checkpoint."""
        skip = max(0, self._checkpoint_index + 1 - self._header.first_index)
        wanted = [
            FrameId(int(r["index"]), int(r["term"]), int(r["place"]) << 3, int(r["length"]), 0)
            for r in rows[skip:]
        ]
        for one, frame in self._frames(wanted):
            if not _is_entry(frame, one):
                self._note_damage(one, certain=True)

    def _frames(self, ids: list[FrameId]) -> Iterator[tuple[FrameId, memoryview]]:
        """Yields each ID with the bytes that it points to, read in large pieces."""
        start = 0
        while start < len(ids):
            stop = start + 1
            base = ids[start].position
            while stop < len(ids) and ids[stop].end - base <= _READ_BYTES:
                stop += 1
            data = memoryview(self._file.read(ids[stop - 1].end - base, base))
            for one in ids[start:stop]:
                yield one, data[one.position - base : one.end - base]
            start = stop

    def _note_damage(self, one: FrameId, *, certain: bool) -> None:
        self._result.damaged[one.index] = Damage(
            index=one.index,
            term=one.term,
            length=one.length,
            file_name=self._path.name,
            position=one.position,
            certain=certain,
            torn=not certain and self._power_failed,
        )

    # The slow path: ID by ID.

    def _take_slowly(self) -> None:
        first = self._header.first_index
        capacity = self._header.id_capacity
        if self._end_index is not None:
            capacity = min(capacity, self._end_index - first)
        area = self._file.read(self._header.id_capacity * ID_BYTES, IDS_AT)
        ids = [self._id(area, slot) for slot in range(capacity)]
        self._proven_index = durable = self._durable_through(ids)
        position = self._header.frames_at
        for slot, one in enumerate(ids):
            index = first + slot
            following = self._entry(index, position, one)
            if following is None:
                if index <= durable:
                    self._halt(index, "its ID and its frame are both damaged")
                break
            position = following
            self._places.append(position >> 3)

    def _id(self, area: bytes, slot: int) -> FrameId | None:
        one = decode_id(area, slot, self._segment.seed)
        if one is None or one.index != self._header.first_index + slot:
            return None
        return one

    def _durable_through(self, ids: list[FrameId | None]) -> int:
        """The index up to which everything is known to have been durable."""
        through = self._checkpoint_index
        if self._end_index is not None:
            through = max(through, self._end_index - 1)
        elif self._seal is not None:
            through = max(through, self._header.first_index + self._seal.count - 1)
        return max([through, *(one.durable_before for one in ids if one is not None)])

    def _entry(self, index: int, position: int, one: FrameId | None) -> int | None:
        """Examines one entry; returns where the next one begins, or None when there is no entry at
        this place."""
        proven = index <= self._proven_index
        if one is not None and (one.position != position or one.term < self._term):
            one = None
        repaired = one is None
        if one is None:
            one = self._from_frame(index, position)
            if one is None:
                return None
        frame = self._file.read(one.length, position)
        if not repaired and not _is_entry(memoryview(frame), one):
            self._note_damage(one, certain=proven)
        elif not proven:
            self._write_again(frame, position)
        if repaired or not proven:
            raw = encode_id(index, one.term, position, one.length, one.lag, self._segment.seed)
            if not proven:
                self._unproven.append(raw)
                self._result.repaired += repaired
            else:
                self._repairs.append((index - self._header.first_index, raw))
        if one.term != self._term:
            self._result.runs.append((index, one.term))
            self._term = one.term
        return one.end

    def _write_again(self, frame: bytes, position: int) -> None:
        self._file.write([frame], position)

    def _from_frame(self, index: int, position: int) -> FrameId | None:
        """An ID made from the frame at this position, or None unless it is a good frame of this
        index."""
        try:
            header = decode_frame_header(self._file.read(FRAME_HEADER_BYTES, position))
            if header.index != index or header.term < self._term:
                return None
            check_frame(self._file.read(header.frame_length, position))
        except NewerFrame:
            raise
        except CorruptFrame:
            return None
        lag = max(1, index - self._proven_index)  # Claims no more than is known.
        return FrameId(index, header.term, position, header.frame_length, min(lag, LAG_MAX))


def _is_entry(frame: memoryview, one: FrameId) -> bool:
    try:
        header = check_frame(frame)
    except NewerFrame:
        raise
    except CorruptFrame:
        return False
    return (header.index, header.term) == (one.index, one.term)
