"""Files of rows: ordinary Parquet that any program reads, and parts of it that ours can trust.

How it works. Rows are cut into row groups by their bytes and not by their number, so one row group
is a good piece to fetch whether messages are small or large. The entry in the manifest keeps the
CRC of every column chunk and of Parquet's own metadata at the end. So a reader fetches only the row
groups and columns that it needs, each by a range of bytes, and still notices any byte that is
wrong. Decoding works on those bytes alone, where they are: Arrow reads them through a file that has
nothing else.

Memory that is touched for the first time costs a machine as much as encoding. So rows stay where
their batches are, in as many chunks, and Parquet is written into one buffer that is large enough:
pages of it that nobody writes to are never there. Values that no codec makes smaller are stored as
they are, by a sample of them.

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

from semel.protos.arrays import offsets_of
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

CHUNK_BYTES_MIN: Final = 1 << 16
"""Rows in smaller chunks, on average, are copied into one chunk first: each takes its time."""
SAMPLES: Final = 4
SAMPLE_BYTES: Final = 1 << 16
SAVED_MIN: Final = 0.05
"""Values are compressed if this part of a sample is saved."""

_LEAVES: Final = tuple(
    leaf
    for name in SCHEMA.names
    for leaf in (
        (f"{name}.list.element.key", f"{name}.list.element.value") if name == "headers" else (name,)
    )
)
"""The columns as Parquet has them."""
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
_MAGIC: Final = b"PAR1"
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
    if rows.column(0).num_chunks * CHUNK_BYTES_MIN > rows.nbytes:
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
    plain = () if _pays(rows.column("value")) else ("value",)
    data = pa.allocate_buffer(_bytes_max(rows, len(ends)))
    sink = pa.FixedSizeBufferWriter(data)
    with pq.ParquetWriter(
        sink,
        schema,
        version="2.6",
        compression={leaf: "none" if leaf in plain else "zstd" for leaf in _LEAVES},
        compression_level={leaf: ZSTD_LEVEL for leaf in _LEAVES if leaf not in plain},
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
        writer.close()
        length = sink.tell()
    sink.close()
    return data.slice(0, length)


def _bytes_max(rows: pa.Table, groups: int) -> int:
    """More than the file takes, whatever the rows are: dictionaries that are given up, and what a
    codec adds, are at most as large again."""
    headers = sum(len(chunk.flatten()) for chunk in rows.column("headers").chunks)
    size: int = 2 * rows.nbytes + 128 * (rows.num_rows + headers)
    return size + ((groups + 1) << 20)


def _pays(column: pa.ChunkedArray) -> bool:
    """Whether a codec makes the values of a column smaller, as far as a sample can tell."""
    sample, ends = [], np.cumsum([len(chunk) for chunk in column.chunks])
    for number in range(SAMPLES):
        row = (2 * number + 1) * len(column) // (2 * SAMPLES)
        at = int(np.searchsorted(ends, row, side="right"))
        chunk = column.chunk(at)
        offsets = offsets_of(chunk)
        start, end = int(offsets[row - int(ends[at])]), int(offsets[-1])
        if start < end:
            sample.append(chunk.buffers()[2].slice(start, min(end - start, SAMPLE_BYTES)))
    whole = b"".join(sample)
    packed = pa.Codec("zstd", ZSTD_LEVEL).compress(whole, asbytes=True)
    return len(packed) <= len(whole) * (1 - SAVED_MIN)


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
        if len(footer) != entry.footer_length or crc32c(footer) != entry.footer_crc:
            raise CorruptTier(f"{name}: its metadata is damaged, or it is not whole")
        try:
            self._metadata = pq.read_metadata(pa.BufferReader(_MAGIC + footer))
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
        self,
        group: int,
        columns: Sequence[str],
        pieces: Mapping[int, bytes | memoryview],
        wanted: Wanted,
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
            source = pa.PythonFile(_Pieces(self.entry.length, pieces), mode="r")
            file = pq.ParquetFile(source, metadata=self._metadata, pre_buffer=False)
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


class _Pieces:
    """A file that has only some of its bytes, as Arrow's `PythonFile` reads it: without a copy."""

    closed = False

    def __init__(self, length: int, pieces: Mapping[int, bytes | memoryview]) -> None:
        self._length = length
        self._pieces = pieces
        self._starts = sorted(pieces)
        self._at = 0

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self._pieces = {}

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, self._length)[whence]
        return self._at

    def read(self, count: int) -> memoryview:
        """Raises OSError for bytes that are not there."""
        number = bisect_right(self._starts, self._at) - 1
        start = self._starts[number] if number >= 0 else 0
        piece = memoryview(self._pieces.get(start, b""))
        found = piece[self._at - start : self._at - start + count]
        if len(found) != count:
            raise OSError(f"bytes {self._at} to {self._at + count} were not fetched")
        self._at += count
        return found


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
