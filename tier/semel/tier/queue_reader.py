"""Reading one queue from the tier, with or without brokers.

How it works. A broker knows from its log which manifest counts. Everybody else lists the copies of
pointers, and takes the one with the highest number: it may be older than the log's, but was decided
once. From there on every object is named by its content and checked against what names it, so a
reader gets right rows or an error. Objects that a pointer leads to stay for a day after the next
one is decided; a reader that works for longer begins anew with a newer pointer.

Not here: planning of many queues (the Spark source's `tier_view.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping, Sequence
from typing import Final, TypeAlias

import pyarrow as pa

from semel.protos.errors import InvalidRequest, OffsetOutOfRange
from semel.protos.ids import QueueKey
from semel.tier import layout
from semel.tier.errors import CorruptTier, ObjectMissing
from semel.tier.files import FileFooter, Wanted, decode_whole, filter_times
from semel.tier.layout import Kind
from semel.tier.manifest import (
    FileEntry,
    Manifest,
    PageEntry,
    Pointer,
    check_whole,
    decode,
    decode_page,
    decode_pointer,
)
from semel.tier.planning import find_append_time
from semel.tier.schema import SCHEMA
from semel.tier.store import Store

_ATTEMPTS: Final = 3
PageCache: TypeAlias = MutableMapping[str, tuple[FileEntry, ...]]


def newest_pointer(store: Store, cluster_id: str, queue: QueueKey) -> Pointer | None:
    """Returns the newest decided pointer that the store lists; None if it has none.

    Raises CorruptTier if it belongs to something else.
    """
    folder = f"{layout.queue_folder(cluster_id, queue)}/{Kind.POINTER}"
    for attempt in range(_ATTEMPTS):
        numbers = [
            found.first
            for each in store.objects(folder)
            if (found := layout.parse(cluster_id, each.name)) is not None and not found.temporary
        ]
        if not numbers:
            return None
        try:
            return read_pointer(store, cluster_id, queue, max(numbers))
        except ObjectMissing:  # the list lagged, and newer ones have made it superfluous
            if attempt == _ATTEMPTS - 1:
                raise
    raise AssertionError("unreachable: the last attempt returns or raises")


def read_pointer(store: Store, cluster_id: str, queue: QueueKey, number: int) -> Pointer:
    """Returns the pointer of a number. Raises ObjectMissing, CorruptTier."""
    name = layout.pointer_name(cluster_id, queue, number)
    pointer = decode_pointer(f"{store.url}/{name}", store.read(name))
    if pointer.name != name:
        raise CorruptTier(f"{store.url}/{name} is the pointer of {pointer.name}")
    return pointer


def read_manifest(store: Store, pointer: Pointer) -> Manifest:
    """Returns the manifest that a pointer names. Raises ObjectMissing, CorruptTier."""
    name = f"{store.url}/{pointer.manifest_name}"
    data = store.read(pointer.manifest_name)
    check_whole(name, data, pointer.length, pointer.sha256)
    manifest = decode(name, data)
    if (manifest.cluster_id, manifest.queue, manifest.number) != (
        pointer.cluster_id,
        pointer.queue,
        pointer.number,
    ):
        raise CorruptTier(f"{name} is the manifest of another queue, or another number")
    return manifest


class QueueReader:
    """The rows of one manifest."""

    def __init__(self, store: Store, manifest: Manifest, pages: PageCache | None = None) -> None:
        """`pages` keeps the pages that were read, by their digests; without it all of them are
        kept."""
        self.manifest = manifest
        self._store = store
        self._pages: PageCache = {} if pages is None else pages

    def files_of(self, page: PageEntry) -> tuple[FileEntry, ...]:
        """The files of a page, which is read once. Raises ObjectMissing, CorruptTier."""
        found = self._pages.get(page.sha256)
        if found is None:
            name = page.name(self.manifest.cluster_id, self.manifest.queue)
            found = decode_page(f"{self._store.url}/{name}", page, self._store.read(name))
            self._pages[page.sha256] = found
        return found

    def all_files(self) -> Iterator[FileEntry]:
        """Every file, in order."""
        for page in self.manifest.pages:
            yield from self.files_of(page)
        yield from self.manifest.files

    def files(self, wanted: Wanted) -> Iterator[FileEntry]:
        """The files that may have wanted rows, in order. Only pages that may have some are read."""
        for page in self.manifest.pages:
            if _may_have(page, wanted):
                yield from (file for file in self.files_of(page) if _may_have(file, wanted))
        yield from (file for file in self.manifest.files if _may_have(file, wanted))

    def file_at(self, offset: int) -> FileEntry:
        """The file that stands for an offset. Raises OffsetOutOfRange, ObjectMissing,
        CorruptTier."""
        self._check_range(offset, offset + 1)
        return next(self.files(Wanted(start=offset, end=offset + 1)))

    def rows(self, wanted: Wanted, columns: Sequence[str] = SCHEMA.names) -> Iterator[pa.Table]:
        """The wanted rows with some of SCHEMA's columns: one table for a row group that has some.

        Raises OffsetOutOfRange outside the manifest, InvalidRequest for an unknown column,
        ObjectMissing, CorruptTier.
        """
        check_columns(columns)
        self._check_range(wanted.start, wanted.end)
        timed = wanted.min_timestamp_us is not None or wanted.max_timestamp_us is not None
        for file in self.files(wanted):
            footer = self.footer(file)
            needed = list(
                dict.fromkeys(
                    (*columns, *(["timestamp"] * timed), *(["offset"] * (not footer.dense)))
                )
            )
            for group in footer.groups(wanted):
                found = self.group(footer, group, needed, wanted)
                found = filter_times(found, wanted.min_timestamp_us, wanted.max_timestamp_us)
                if found.num_rows:
                    yield found.select(list(columns))

    def whole_file(self, file: FileEntry) -> pa.Table:
        """All rows of a file, checked against every digest. Raises ObjectMissing, CorruptTier."""
        name = file.name(self.manifest.cluster_id, self.manifest.queue)
        return decode_whole(f"{self._store.url}/{name}", file, self._store.read(name))

    def offset_at(self, time_us: int) -> int:
        """The first offset that was appended at `time_us` or later, or the manifest's end."""
        manifest = self.manifest
        parts: list[PageEntry | FileEntry] = [*manifest.pages, *manifest.files]
        at = find_append_time(parts, time_us)
        if at is None:
            return manifest.end
        part = parts[at]
        if isinstance(part, PageEntry):
            files = self.files_of(part)
            place = find_append_time(files, time_us)
            assert place is not None, "the page's last append time is its last file's"
            part = files[place]
        footer = self.footer(part)
        wanted = Wanted(start=part.start, end=part.end)
        for group in footer.groups(wanted):
            rows = self.group(footer, group, ["append_time", "offset"], wanted)
            times = rows.column("append_time").cast(pa.int64()).to_numpy()
            found = int(times.searchsorted(time_us))
            if found < len(times):
                return max(manifest.start, int(rows.column("offset")[found].as_py()))
        raise CorruptTier(f"append times of offsets from {part.start} are not those of their file")

    def _check_range(self, wanted_start: int, wanted_end: int) -> None:
        """Raises OffsetOutOfRange for a range outside the manifest."""
        start, end = self.manifest.start, self.manifest.end
        if not start <= wanted_start <= wanted_end <= end:
            raise OffsetOutOfRange(
                f"the tier has offsets {start} to {end} of queue {self.manifest.queue_id} of topic"
                f" {self.manifest.topic!r}, not {wanted_start} to {wanted_end}",
                log_start_offset=start,
                log_end_offset=end,
            )

    def footer(self, file: FileEntry) -> FileFooter:
        """Parquet's metadata of a file. Raises ObjectMissing, CorruptTier."""
        name = file.name(self.manifest.cluster_id, self.manifest.queue)
        place = (file.length - file.footer_length, file.footer_length)
        (footer,) = self._store.read_ranges(name, [place])
        return FileFooter(f"{self._store.url}/{name}", file, bytes(footer))

    def group(
        self, footer: FileFooter, group: int, columns: Sequence[str], wanted: Wanted
    ) -> pa.Table:
        """Columns of a row group, for the wanted offsets. Raises ObjectMissing, CorruptTier."""
        places = footer.places(group, columns)
        name = footer.entry.name(self.manifest.cluster_id, self.manifest.queue)
        found = self._store.read_ranges(name, [(place.start, place.length) for place in places])
        pieces = {place.start: piece for place, piece in zip(places, found, strict=True)}
        return footer.decode(group, columns, pieces, wanted)


def check_columns(columns: Sequence[str]) -> None:
    """Raises InvalidRequest unless the tier has each of these columns, and there is one."""
    if not columns or (strange := [name for name in columns if name not in SCHEMA.names]):
        raise InvalidRequest(
            f"the tier has the columns {', '.join(SCHEMA.names)};"
            f" {strange[0] if columns else 'none'} was asked for"
        )


def _may_have(part: PageEntry | FileEntry, wanted: Wanted) -> bool:
    return (
        max(part.start, wanted.start) < min(part.end, wanted.end)
        and (wanted.min_timestamp_us is None or part.max_timestamp_us >= wanted.min_timestamp_us)
        and (wanted.max_timestamp_us is None or part.min_timestamp_us <= wanted.max_timestamp_us)
    )
