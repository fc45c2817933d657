"""Files of rows: ordinary Parquet that any program reads, and parts of it that ours can trust.

How it works. Rows are cut into row groups by their bytes and not by their number, so one row group
is a good piece to fetch whether messages are small or large. The entry in the manifest keeps the
CRC of every column chunk and of Parquet's own metadata at the end. So a reader fetches only the row
groups and columns that it needs, each by a range of bytes, and still notices any byte that is
wrong. Decoding works on those bytes alone: they are put in their places of a buffer as long as the
file, the rest of which is memory that nobody touches.

Equal rows written by the same version of Arrow are equal bytes, so a range that is written twice
gets the same name.

Format. `docs/formats/tier.md`, "Files".

Invariants
1. What `decode` returns are the rows that `encode` was given, or CorruptTier is raised.

Not here: fetching bytes (`queue_reader.py`), the table of rows (`rows.py`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from semel.protos.crc import crc32c
from semel.protos.ids import QueueKey
from semel.tier.digest import digest_of
from semel.tier.documents import sha256_of
from semel.tier.errors import CorruptTier
from semel.tier.manifest import FileEntry
from semel.tier.rows import cuts, row_bytes
from semel.tier.schema import FORMAT, SCHEMA

ROW_GROUP_BYTES: Final = 8 << 20
"""Before compression."""
ZSTD_LEVEL: Final = 1
"""Level 3 makes files of JSON 1.5 % smaller, and takes 2.7 times as long for random values."""
PAGE_BYTES: Final = 1 << 20

_DICTIONARIES: Final = (
    "key",
    "headers.list.element.key",
    "producer",
    "producer_epoch",
    "producer_session",
    "append_time",
    "arrival_time",
)
_DELTAS: Final = ("offset", "timestamp", "sequence")
_STATISTICS: Final = ("offset", "timestamp", "producer", "sequence", "append_time")
_TAIL_BYTES: Final = 8
"""Length of the metadata, and magic."""


class EncodedFile(NamedTuple):
    """A file that is ready to be stored."""

    entry: FileEntry
    data: pa.Buffer


class Place(NamedTuple):
    """Bytes `[start, start + length)` of a file, and the CRC32C that they must have."""

    start: int
    length: int
    crc: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which rows a reader wants: ranges are half-open, None is everything."""

    start: int
    end: int
    """Offsets."""
    min_timestamp_us: int | None = None
    max_timestamp_us: int | None = None
    """Row groups that cannot have a message with a timestamp from the one to the other, inclusive,
    are left out; rows of the others are not filtered."""


# --- writing ------------------------------------------------------------------------------------


def encode(
    queue: QueueKey,
    rows: pa.Table,
    covers: tuple[int, int] | None = None,
    *,
    row_group_bytes: int = ROW_GROUP_BYTES,
    nonce: str = "",
) -> EncodedFile:
    """Returns the file that has `rows`, which are one or more, with SCHEMA: all that the queue has
    of the offsets from `covers[0]` to before `covers[1]`; None is from the first to the last. Its
    `nonce` makes its name unlike those of all other attempts to write these rows."""
    rows = rows.combine_chunks()
    assert rows.num_rows and rows.schema.equals(SCHEMA), "rows of the tier's columns, at least one"
    offsets = _numbers(rows, "offset")
    start, end = covers or (int(offsets[0]), int(offsets[-1]) + 1)
    assert start <= offsets[0] and offsets[-1] < end and (np.diff(offsets) > 0).all(), (
        f"rows rise within offsets {start} to {end}"
    )
    sizes = row_bytes(rows)
    data = _parquet(queue, rows, cuts(sizes, row_group_bytes), start, end, nonce)
    metadata = pq.read_metadata(pa.BufferReader(data))
    footer_length = metadata.serialized_size + _TAIL_BYTES
    view = memoryview(data)
    crcs = [
        f"{crc32c(view[place : place + length]):08x}"
        for group in range(metadata.num_row_groups)
        for place, length in _chunk_places(metadata, group)
    ]
    timestamps, appended = _numbers(rows, "timestamp"), _numbers(rows, "append_time")
    entry = FileEntry(
        start=start,
        end=end,
        rows=rows.num_rows,
        length=data.size,
        sha256=sha256_of(view),
        rows_sha256=digest_of(rows),
        row_bytes=int(sizes.sum()),
        footer_length=footer_length,
        footer_crc=crc32c(view[-footer_length:]),
        chunk_crcs="".join(crcs),
        min_timestamp_us=int(timestamps.min()),
        max_timestamp_us=int(timestamps.max()),
        first_append_us=int(appended[0]),
        last_append_us=int(appended[-1]),
    )
    return EncodedFile(entry, data)


def _numbers(rows: pa.Table, name: str) -> Any:
    return rows.column(name).cast(pa.int64()).to_numpy()


def _parquet(
    queue: QueueKey, rows: pa.Table, ends: Sequence[int], start: int, end: int, nonce: str
) -> pa.Buffer:
    facts = {
        "semel.format": str(FORMAT),
        "semel.topic_id": f"{queue.topic_id:016x}",
        "semel.queue": str(queue.queue_id),
        "semel.start": str(start),
        "semel.end": str(end),
        "semel.nonce": nonce,
    }
    schema = SCHEMA.with_metadata(facts)
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(
        sink,
        schema,
        version="2.6",
        compression="zstd",
        compression_level=ZSTD_LEVEL,
        use_dictionary=list(_DICTIONARIES),
        column_encoding=dict.fromkeys(_DELTAS, "DELTA_BINARY_PACKED"),
        write_statistics=list(_STATISTICS),
        data_page_size=PAGE_BYTES,
    ) as writer:
        row = 0
        for row_end in ends:
            piece = rows.slice(row, row_end - row)
            writer.write_table(piece.replace_schema_metadata(facts), row_group_size=row_end - row)
            row = row_end
    return sink.getvalue()


def _chunk_places(metadata: Any, group: int) -> list[tuple[int, int]]:
    """Start and length of each column chunk of a row group, in the order of Parquet's columns."""
    row_group = metadata.row_group(group)
    found = []
    for number in range(row_group.num_columns):
        column = row_group.column(number)
        start = column.data_page_offset
        if column.has_dictionary_page and column.dictionary_page_offset is not None:
            start = min(start, column.dictionary_page_offset)
        found.append((start, column.total_compressed_size))
    return found


# --- reading ------------------------------------------------------------------------------------


class FileFooter:
    """Parquet's metadata of one file: which bytes are needed for which rows."""

    def __init__(self, name: str, entry: FileEntry, footer: bytes) -> None:
        """`footer` is the last `footer_length` bytes of the file. Raises CorruptTier."""
        self._name = name
        self.entry = entry
        self._footer = footer
        if len(footer) != entry.footer_length or crc32c(footer) != entry.footer_crc:
            raise CorruptTier(f"{name}: its metadata is damaged, or it is not whole")
        try:
            self._metadata = pq.read_metadata(pa.BufferReader(self._file({})))
        except (pa.ArrowException, OSError, ValueError) as error:
            raise CorruptTier(f"{name}: its metadata cannot be read: {error}") from error
        metadata = self._metadata
        counts = [metadata.row_group(at).num_rows for at in range(metadata.num_row_groups)]
        self._paths = [metadata.schema.column(at).path for at in range(metadata.num_columns)]
        self._counts: list[int] = counts
        self.starts: list[int] = [entry.start, *self._firsts()[1:], entry.end]
        """Start of each row group, in offsets, and the end of the last."""
        chunks = sum(metadata.row_group(at).num_columns for at in range(metadata.num_row_groups))
        facts = metadata.metadata or {}
        covers = facts.get(b"semel.start"), facts.get(b"semel.end")
        if (
            sum(counts) != entry.rows
            or len(entry.chunk_crcs) != 8 * chunks
            or covers != (b"%d" % entry.start, b"%d" % entry.end)
        ):
            raise CorruptTier(f"{name} has other rows than the manifest says")

    def _firsts(self) -> list[int]:
        """First offset of each row group. Raises CorruptTier unless they rise in the range."""
        at = self._paths.index("offset")
        groups = range(self._metadata.num_row_groups)
        found = [self._metadata.row_group(group).column(at).statistics.min for group in groups]
        if sorted({self.entry.start - 1, *found, self.entry.end}) != [
            self.entry.start - 1,
            *found,
            self.entry.end,
        ]:
            raise CorruptTier(f"{self._name} has other offsets than the manifest says")
        return found

    @property
    def dense(self) -> bool:
        """Every offset has a row."""
        return self.entry.rows == self.entry.end - self.entry.start

    def groups(self, wanted: Wanted) -> list[int]:
        """Row groups that may have wanted rows, in order."""
        found = []
        for group in range(self._metadata.num_row_groups):
            start = max(self.starts[group], wanted.start)
            end = min(self.starts[group + 1], wanted.end)
            if start < end and self._may_have(group, wanted):
                found.append(group)
        return found

    def group_at(self, offset: int) -> int:
        """The row group that stands for an offset of the file."""
        assert self.entry.start <= offset < self.entry.end, "an offset of the file"
        return bisect_right(self.starts, offset) - 1

    def _may_have(self, group: int, wanted: Wanted) -> bool:
        """Whether statistics leave it open that some timestamps of the row group are wanted."""
        at = self._paths.index("timestamp")
        statistics = self._metadata.row_group(group).column(at).statistics
        if statistics is None or not statistics.has_min_max:
            return True
        # As numbers: a producer may have written a time that Python has no date for.
        least, most = statistics.min_raw, statistics.max_raw
        return not (
            (wanted.min_timestamp_us is not None and most < wanted.min_timestamp_us)
            or (wanted.max_timestamp_us is not None and least > wanted.max_timestamp_us)
        )

    def places(self, group: int, columns: Sequence[str]) -> list[Place]:
        """The bytes of some columns of a row group, in the order of the file."""
        found = []
        crcs = self.entry.chunk_crcs
        before = sum(self._metadata.row_group(at).num_columns for at in range(group))
        for number, (start, length) in enumerate(_chunk_places(self._metadata, group)):
            if self._paths[number].split(".")[0] in columns:
                at = 8 * (before + number)
                found.append(Place(start, length, int(crcs[at : at + 8], 16)))
        return found

    def decode(
        self, group: int, columns: Sequence[str], pieces: Mapping[int, bytes], wanted: Wanted
    ) -> pa.Table:
        """Returns the columns of a row group, in the order of `columns`, for the wanted offsets.

        `pieces` has the bytes of each of `places` by its start; where the file is not dense, column
        `offset` must be one of `columns`. Raises CorruptTier.
        """
        for place in self.places(group, columns):
            piece = pieces[place.start]
            if len(piece) != place.length or crc32c(piece) != place.crc:
                raise CorruptTier(
                    f"{self._name} is damaged, or not whole, at bytes {place.start} to"
                    f" {place.start + place.length}"
                )
        try:
            file = pq.ParquetFile(pa.BufferReader(self._file(pieces)), metadata=self._metadata)
            rows = file.read_row_group(group, columns=list(columns), use_threads=False)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise CorruptTier(f"{self._name} cannot be decoded: {error}") from error
        start = self.starts[group]
        first, last = wanted.start - start, wanted.end - start
        if not self.dense:
            offsets = _numbers(rows, "offset")
            first, last = np.searchsorted(offsets, (wanted.start, wanted.end)).tolist()
        first, last = max(first, 0), min(last, self._counts[group])
        rows = rows.select(list(columns)).slice(first, max(last - first, 0))
        return rows.cast(pa.schema([SCHEMA.field(name) for name in columns]))

    def _file(self, pieces: Mapping[int, bytes]) -> pa.Buffer:
        """The file with only some of its bytes. Memory that is not written to is never mapped."""
        whole = np.zeros(self.entry.length, np.uint8)
        whole[len(whole) - len(self._footer) :] = np.frombuffer(self._footer, np.uint8)
        for start, piece in pieces.items():
            whole[start : start + len(piece)] = np.frombuffer(piece, np.uint8)
        return pa.py_buffer(whole)


def decode_whole(name: str, entry: FileEntry, data: bytes) -> pa.Table:
    """Returns all rows of a file. Checks every digest of the entry. Raises CorruptTier."""
    if len(data) != entry.length or sha256_of(data) != entry.sha256:
        raise CorruptTier(f"{name} is damaged, or not whole: {len(data)} of {entry.length} bytes")
    try:
        rows = pq.read_table(pa.BufferReader(data), use_threads=False).cast(SCHEMA)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise CorruptTier(f"{name} cannot be decoded: {error}") from error
    rows = rows.replace_schema_metadata(None)
    if digest_of(rows) != entry.rows_sha256:
        raise CorruptTier(f"{name} has other rows than the manifest says")
    return rows


def filter_times(rows: pa.Table, least_us: int | None, most_us: int | None) -> pa.Table:
    """Rows whose timestamps are from `least_us` to `most_us`, inclusive; None is no bound."""
    if least_us is None and most_us is None:
        return rows
    times = rows.column("timestamp").cast(pa.int64())
    kept = None
    for fits in (
        None if least_us is None else pc.greater_equal(times, least_us),
        None if most_us is None else pc.less_equal(times, most_us),
    ):
        if fits is not None:
            kept = fits if kept is None else pc.and_(kept, fits)
    return rows.filter(kept)
