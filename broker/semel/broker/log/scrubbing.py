"""Reads all of a log directory once, a piece at a time, to find damage before it is met.

How it works. Segment by segment: the header pages and the IDs are compared with each other and with
what is in memory, and written anew from there when they differ; the frames are read from the disk,
never from a cache, and checked. Then the kept records, then the checkpoints. What cannot be written
anew from memory is noted for the owner, who gets it from a peer.

Invariants
1. Only sealed segments are written to, and only bytes that are proven to be wrong.
2. A file that goes away meanwhile (cleaning, a snapshot) is passed over.

Not here: how fast, how often (`broker/scrub.py`), mending what was found (`broker/repair.py`).
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import google_crc32c

from semel.broker.log.files import File
from semel.broker.log.segment import (
    HEADER_PAGES,
    HEADER_STRUCT,
    ID_BYTES,
    IDS_AT,
    PAGE,
    Segment,
    decode_header,
    decode_seal,
    encode_id,
    write_seal,
)
from semel.broker.log.types import DamagedEntry, IndexUnavailable
from semel.protos.errors import CorruptSegment

if TYPE_CHECKING:
    from semel.broker.log.store import Store

_log = logging.getLogger(__name__)

_PIECE_BYTES: Final = 1 << 20


def scrub(store: Store, synced_index: int) -> Iterator[int]:
    """BLOCKING, any thread: reads one piece more with each step, and yields how many bytes."""
    for segment in store.index.segments:
        try:
            yield _check_names(store, segment)
            yield from _check_frames(store, segment, synced_index)
        except (FileNotFoundError, IndexUnavailable, IndexError):
            continue  # recycled or truncated meanwhile
        except OSError as error:  # it cannot be written anew where it could not be read
            _log.error("not mended, replace this disk file=%s error=%s", segment.file_name, error)
    for ref in store.kept.refs():
        with contextlib.suppress(DamagedEntry, IndexUnavailable):  # noted, or dropped meanwhile
            store.kept.read(ref.index, ref.position, ref.length)
        yield ref.length
    for checkpoint in store.checkpoints.all():
        try:
            length = len(checkpoint.payload)
        except CorruptSegment:
            store.checkpoints.discard(checkpoint)
            length = checkpoint.length
        yield length


def _check_names(store: Store, segment: Segment) -> int:
    """Header pages, seal and IDs of a sealed segment; returns the bytes read."""
    with store.open_files.use(store.directory / segment.file_name) as file:
        pages = [file.read(PAGE, number * PAGE) for number in range(HEADER_PAGES)]
        seals = [decode_seal(page, segment.seed) for page in pages]
        if not segment.sealed or not any(seals):
            return HEADER_PAGES * PAGE  # still being written
        wrong = [
            number for number, page in enumerate(pages) if decode_header(page) != segment.header
        ]
        for number in wrong:
            file.write([segment.header.encode()[: HEADER_STRUCT.size]], number * PAGE)
        seal = next(one for one in seals if one is not None)
        area = file.read(seal.count * ID_BYTES, IDS_AT)
        if google_crc32c.value(area) != seal.ids_crc:
            _write_ids(store, segment, file, seal.count)
            wrong.append(0)
        if wrong or None in seals:
            write_seal(file, segment, seal.count, seal.end, seal.last_term)
    return HEADER_PAGES * PAGE + len(area)


def _write_ids(store: Store, segment: Segment, file: File, count: int) -> None:
    """From memory; what was cut off behind the segment's end stays as it is."""
    count = min(count, segment.end_index - segment.first_index)
    ids = []
    for index in range(segment.first_index, segment.first_index + count):
        start, end = segment.place(index)
        term = store.index.term_at(index)
        if term is None:
            raise IndexUnavailable(index, store.index.first_index, store.index.last_index)
        ids.append(encode_id(index, term, start, end - start, 1, segment.seed))
    file.write([b"".join(ids)], IDS_AT)


def _check_frames(store: Store, segment: Segment, synced_index: int) -> Iterator[int]:
    lo = segment.first_index
    while lo < (end := min(segment.end_index, synced_index + 1)):
        hi = max(lo + 1, segment.fit(lo, end, _PIECE_BYTES))
        start, stop = segment.place(lo)[0], segment.place(hi - 1)[1]
        try:
            store.reader.check(segment, lo, hi)
        except DamagedEntry as error:
            hi = error.index + 1  # noted; what follows is read again
        yield stop - start
        lo = hi
