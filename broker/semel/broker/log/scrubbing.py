"""One scrubbing pass over a log directory, which finds damage before a reader meets it.

How it works. The pass reads everything once, a piece at a time. For each segment it compares the
header pages and the IDs with each other and with the index in memory, and writes them again from
memory when they differ; it reads the frames from the disk, never from a cache, and checks them.
Then it checks the kept records, then the checkpoints. Damage that cannot be repaired from memory is
noted for the owner, who fetches the bytes from a peer.

Invariants
1. The pass writes only to sealed segments, and only over bytes that are proven to be wrong.
2. A file that goes away meanwhile (cleaning, a snapshot) is skipped.
3. What could not be synced is written again by the next pass, though it reads well by then: after a
   failed sync the page cache has it and the disk may not.

Not here: how fast and how often passes run (`repair/scrub.py`), repairing the damage from peers
(`repair/repair.py`).
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Final

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
from semel.broker.log.store import Store
from semel.broker.log.types import DamagedEntry, IndexUnavailable
from semel.protos.errors import CorruptSegment, DiskFull

_log = logging.getLogger(__name__)

_PIECE_BYTES: Final = 1 << 20


def scrub(store: Store, synced_index: int) -> Iterator[int]:
    """BLOCKING, any thread. Reads one more piece per step, and yields the number of bytes read."""
    for segment in store.index.segments:
        try:
            yield _check_names(store, segment)
            yield from _check_frames(store, segment, synced_index)
        except (FileNotFoundError, IndexUnavailable, IndexError):
            continue  # The segment was recycled or truncated meanwhile.
        except OSError as error:  # A block that cannot be read could not be written again either.
            _log.error("not repaired, replace this disk file=%s error=%s", segment.file_name, error)
        except DiskFull as error:  # On a file system that writes nothing in place.
            _log.error(
                "not repaired, the next pass tries again file=%s error=%s", segment.file_name, error
            )
    for ref in store.kept.refs():
        # A damaged record is noted by `read`; a missing one was dropped meanwhile.
        with contextlib.suppress(DamagedEntry, IndexUnavailable):
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
    """Checks the header pages, the seal and the IDs of a sealed segment; returns the bytes
    read."""
    with store.open_files.use(store.directory / segment.file_name) as file:
        pages = [file.read(PAGE, number * PAGE) for number in range(HEADER_PAGES)]
        seals = [decode_seal(page, segment.seed) for page in pages]
        if not segment.sealed or not any(seals):
            return HEADER_PAGES * PAGE  # The segment is still being written.
        seal = next(one for one in seals if one is not None)
        area = file.read(seal.count * ID_BYTES, IDS_AT)
        again = segment.file_name in store.rewriting
        wrong = [
            number
            for number, page in enumerate(pages)
            if again or decode_header(page) != segment.header
        ]
        ids_wrong = again or google_crc32c.value(area) != seal.ids_crc
        if wrong or ids_wrong or None in seals:
            store.rewriting.add(segment.file_name)
            for number in wrong:
                file.write([segment.header.encode()[: HEADER_STRUCT.size]], number * PAGE)
            if ids_wrong:
                _write_ids(store, segment, file, seal.count)
            write_seal(file, segment, seal.count, seal.end, seal.last_term)
            store.rewriting.discard(segment.file_name)
    return HEADER_PAGES * PAGE + len(area)


def _write_ids(store: Store, segment: Segment, file: File, count: int) -> None:
    """Writes the IDs again from memory, except those after the segment's end, which were cut
    off."""
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
            hi = error.index + 1  # The damage is noted; the frames after it are read again.
        yield stop - start
        lo = hi
