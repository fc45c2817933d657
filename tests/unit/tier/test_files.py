"""Files are plain Parquet, and no wrong byte of them gets through, read whole or in parts."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from semel.tier import SCHEMA, CorruptTier, FileEntry, Wanted, digest_of, rows_of
from semel.tier.files import FileFooter, decode_whole, encode
from tests.kit.tier_rows import QUEUE, TIME_US, plain_rows, random_rows


def footer_of(entry: FileEntry, data: bytes) -> FileFooter:
    return FileFooter("file", entry, data[entry.length - entry.footer_length :])


def parts(
    entry: FileEntry, data: bytes, wanted: Wanted, columns: Sequence[str] = SCHEMA.names
) -> Iterator[pa.Table]:
    """Rows as a reader of ranges gets them."""
    footer = footer_of(entry, data)
    for group in footer.groups(wanted):
        pieces = {
            place.start: data[place.start : place.start + place.length]
            for place in footer.places(group, columns)
        }
        yield footer.decode(group, columns, pieces, wanted)


def whole(entry: FileEntry) -> Wanted:
    return Wanted(start=entry.start, end=entry.end)


@pytest.mark.parametrize("seed", range(10))
def test_rows_come_back_as_they_were(seed: int) -> None:
    rows = rows_of(random_rows(seed, 60, base_offset=77))
    entry, data = encode(QUEUE, rows, row_group_bytes=2_000)
    assert (entry.start, entry.end) == (77, 77 + rows.num_rows)
    assert entry.length == data.size
    found = decode_whole("file", entry, data.to_pybytes())
    assert found.schema.equals(SCHEMA)
    assert found.to_pylist() == rows.to_pylist()
    pieces = list(parts(entry, data.to_pybytes(), whole(entry)))
    assert len(pieces) > 5
    assert pa.concat_tables(pieces).to_pylist() == rows.to_pylist()
    assert entry.rows_sha256 == digest_of(rows) == digest_of(pa.concat_tables(pieces))


def test_equal_rows_are_equal_bytes_however_they_were_cut() -> None:
    rows = rows_of(random_rows(5, 60))
    first = encode(QUEUE, rows).entry
    assert encode(QUEUE, rows.combine_chunks()).entry == first
    again = pa.Table.from_pylist(rows.to_pylist(), SCHEMA)
    assert encode(QUEUE, again).entry == first


def test_any_program_reads_the_file(tmp_path: object) -> None:
    rows = rows_of(random_rows(6, 60))
    data = encode(QUEUE, rows, row_group_bytes=2_000).data
    file = pq.ParquetFile(pa.BufferReader(data))
    assert file.read().to_pylist() == rows.to_pylist()
    metadata = file.metadata
    facts = {key.decode(): value.decode() for key, value in metadata.metadata.items()}
    assert facts["semel.format"] == "1"
    assert facts["semel.topic_id"] == "123456789abcdef0"
    assert (facts["semel.queue"], facts["semel.start"]) == ("3", "0")
    assert facts["semel.end"] == str(rows.num_rows)
    names = [metadata.schema.column(at).path for at in range(metadata.num_columns)]
    for name in ("offset", "timestamp", "producer", "sequence", "append_time"):
        assert metadata.row_group(0).column(names.index(name)).statistics.has_min_max
    assert metadata.row_group(0).column(names.index("value")).statistics is None
    assert metadata.row_group(0).column(names.index("value")).compression == "ZSTD"


def test_row_groups_are_cut_by_bytes() -> None:
    rows = rows_of([plain_rows(1_000, value_bytes=968)])
    entry, data = encode(QUEUE, rows, row_group_bytes=100_000)
    footer = footer_of(entry, data.to_pybytes())
    assert footer.starts[:3] == [0, 99, 198]
    assert entry.row_bytes == pytest.approx(1_006_000, rel=0.01)


@pytest.mark.parametrize(("start", "end"), [(0, 1), (98, 100), (99, 198), (500, 500), (997, 1_000)])
def test_only_row_groups_with_wanted_offsets_are_read(start: int, end: int) -> None:
    rows = rows_of([plain_rows(1_000, value_bytes=968)])
    entry, data = encode(QUEUE, rows, row_group_bytes=100_000)
    wanted = Wanted(start=start, end=end)
    footer = footer_of(entry, data.to_pybytes())
    assert len(footer.groups(wanted)) == len({at // 99 for at in range(start, end)})
    found = [
        each
        for part in parts(entry, data.to_pybytes(), wanted, ["offset"])
        for each in part.column("offset").to_pylist()
    ]
    assert found == list(range(start, end))


def test_columns_are_pruned_and_ordered() -> None:
    rows = rows_of([plain_rows(1_000)])
    entry, data = encode(QUEUE, rows)
    footer = footer_of(entry, data.to_pybytes())
    few = sum(place.length for place in footer.places(0, ["offset", "timestamp"]))
    every = sum(place.length for place in footer.places(0, SCHEMA.names))
    assert few * 10 < every
    (part,) = parts(entry, data.to_pybytes(), whole(entry), ["sequence", "headers", "key"])
    assert part.schema.names == ["sequence", "headers", "key"]
    assert part.to_pylist() == rows.select(["sequence", "headers", "key"]).to_pylist()


def test_row_groups_outside_the_wanted_times_are_left_out() -> None:
    pieces = [plain_rows(10, base_offset=10 * n) for n in range(10)]
    rows = rows_of(pieces)
    entry, data = encode(QUEUE, rows, row_group_bytes=10 * 140)
    footer = footer_of(entry, data.to_pybytes())
    assert footer.starts[-2] > 50
    everything = footer.groups(whole(entry))

    def between(least: int | None, most: int | None) -> list[int]:
        wanted = Wanted(start=0, end=100, min_timestamp_us=least, max_timestamp_us=most)
        return footer.groups(wanted)

    assert between(TIME_US, None) == everything
    assert between(TIME_US + 91, None) == []
    assert between(None, TIME_US - 1) == []
    assert between(TIME_US + 90, TIME_US + 90) == everything[-1:]
    assert 0 < len(between(TIME_US + 30, TIME_US + 45)) < len(everything)


def test_a_time_that_python_has_no_date_for_is_found() -> None:
    rows = rows_of([plain_rows(10)])
    times = pa.array([-(1 << 62), *[0] * 8, 1 << 62]).cast(SCHEMA.field("timestamp").type)
    at = SCHEMA.get_field_index("timestamp")
    entry, data = encode(QUEUE, rows.set_column(at, SCHEMA.field("timestamp"), times))
    footer = footer_of(entry, data.to_pybytes())
    for least, most, found in ((1, None, [0]), (None, -1, [0]), (None, -(1 << 62) - 1, [])):
        wanted = Wanted(start=0, end=10, min_timestamp_us=least, max_timestamp_us=most)
        assert footer.groups(wanted) == found


def test_a_changed_byte_anywhere_is_noticed() -> None:
    rows = rows_of(random_rows(1, 30))
    entry, data = encode(QUEUE, rows, row_group_bytes=3_000)
    good = data.to_pybytes()
    rng = random.Random(4)
    footer = footer_of(entry, good)
    read = {
        at
        for group in footer.groups(whole(entry))
        for place in footer.places(group, SCHEMA.names)
        for at in range(place.start, place.start + place.length)
    } | set(range(entry.length - entry.footer_length, entry.length))
    assert len(read) >= entry.length - 8  # all but the magic at the beginning
    for at in [*rng.sample(range(4, entry.length), 300), entry.length - 1, entry.length - 5]:
        bad = bytearray(good)
        bad[at] ^= 1 << rng.randrange(8)
        with pytest.raises(CorruptTier):
            decode_whole("file", entry, bytes(bad))
        with pytest.raises(CorruptTier):
            list(parts(entry, bytes(bad), whole(entry)))


def test_a_file_that_is_cut_short_is_noticed() -> None:
    entry, data = encode(QUEUE, rows_of(random_rows(2, 30)))
    good = data.to_pybytes()
    for length in (0, 3, entry.length // 2, entry.length - entry.footer_length, entry.length - 1):
        with pytest.raises(CorruptTier):
            decode_whole("file", entry, good[:length])
        with pytest.raises(CorruptTier):
            list(parts(entry, good[:length], whole(entry)))


def test_a_file_with_right_bytes_and_other_rows_than_its_entry_says_is_refused() -> None:
    """A bug of the writer: the digest of rows is checked apart from that of bytes."""
    entry, data = encode(QUEUE, rows_of(random_rows(2, 30)))
    other = encode(QUEUE, rows_of(random_rows(3, 30)))
    lying = dataclasses.replace(entry, rows_sha256=other.entry.rows_sha256)
    with pytest.raises(CorruptTier, match="has other rows"):
        decode_whole("file", lying, data.to_pybytes())
    for wrong in ({"end": entry.end + 1}, {"rows": entry.rows - 1}, {"chunk_crcs": "00000000"}):
        with pytest.raises(CorruptTier, match="has other rows"):
            footer_of(dataclasses.replace(entry, **wrong), data.to_pybytes())
