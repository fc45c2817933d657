"""Segments and the index in memory: their edges."""

from __future__ import annotations

import os
from array import array
from pathlib import Path

import google_crc32c
import pytest

from semel.broker.log.files import File
from semel.broker.log.index import LogIndex, Retired, Roll, Write
from semel.broker.log.segment import (
    HEADER_STRUCT,
    ID_BYTES,
    IDS_AT,
    PAGE,
    SEAL_AT,
    SEAL_STRUCT,
    Seal,
    Segment,
    SegmentHeader,
    UnreadableIds,
    decode_header,
    decode_seal,
    encode_id,
    encode_seal,
    frames_at,
    ids_hold,
    salt,
    segment_name,
    spare_name,
    write_seal,
)
from semel.broker.log.types import IndexUnavailable
from tests.kit.disk import SimFiles
from tests.unit.broker.log.indexes import AT, SMALL, index_of, put

ROOT = Path("/node")


def header(sequence: int = 1, first_index: int = 1, **more: int) -> SegmentHeader:
    fields = {"generation": 7, "previous_term": 0, "id_capacity": 4} | more
    return SegmentHeader(sequence=sequence, first_index=first_index, **fields)


# --- segments -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("capacity", "at"), [(0, 8192), (1, 12_288), (128, 12_288), (129, 16_384), (256, 16_384)]
)
def test_frames_begin_at_the_page_behind_the_ids(capacity: int, at: int) -> None:
    assert frames_at(capacity) == at
    assert header(id_capacity=capacity).frames_at == at


def test_names_sort_by_sequence() -> None:
    assert segment_name(12) == "segment-00000000000000000012"
    assert spare_name(12) == "spare-00000000000000000012"
    assert Segment(header(sequence=12), 0).file_name == segment_name(12)


def test_a_header_page_is_zero_behind_the_header() -> None:
    page = header(boot=9).encode()
    assert len(page) == PAGE
    assert not any(page[HEADER_STRUCT.size :])
    fields = HEADER_STRUCT.unpack_from(page)
    assert fields[:3] == (b"SMSG", 1, 0)
    assert fields[8:11] == (AT, 9, 0)
    assert decode_header(page[: HEADER_STRUCT.size]) == header(boot=9)
    assert decode_header(page[: HEADER_STRUCT.size - 1]) is None


def test_a_header_of_another_version_or_file_is_told_apart() -> None:
    page = bytearray(header().encode()[: HEADER_STRUCT.size])
    for at, value, found in ((4, 2, 2), (0, 0, None)):
        changed = bytearray(page)
        changed[at] = value
        changed[-4:] = int(google_crc32c.value(bytes(changed[:-4]))).to_bytes(4, "little")
        assert decode_header(bytes(changed)) == found


def test_a_seal_fills_its_place_with_zeros_between() -> None:
    raw = encode_seal(Seal(count=1, end=2, last_term=3, ids_crc=4), salt(7))
    assert len(raw) == SEAL_STRUCT.size
    assert SEAL_STRUCT.unpack(raw)[5:8] == (0, 0, 0)
    page = bytes(SEAL_AT) + raw
    assert decode_seal(page, salt(7)) is not None
    assert decode_seal(page[:-1], salt(7)) is None
    other = bytearray(page)
    other[SEAL_AT] ^= 1
    crc = google_crc32c.extend(salt(7), bytes(other[SEAL_AT:-4]))
    other[-4:] = int(crc).to_bytes(4, "little")
    assert decode_seal(bytes(other), salt(7)) is None, "another magic"


def test_a_seal_is_written_to_both_pages_and_synced() -> None:
    disk = SimFiles()
    disk.make_directory(ROOT)
    file = disk.open(ROOT / "a", create=True)
    file.write([bytes(range(64)) * 2], IDS_AT)
    write_seal(file, Segment(header(), 0), 2, 777, 5)
    found = disk.restart(survives=0.0)
    assert found.find("a") == [], "the name was never synced"
    disk.sync_directory(ROOT)
    image = bytes(disk.restart(survives=0.0).image(ROOT / "a"))
    wanted = Seal(count=2, end=777, last_term=5, ids_crc=google_crc32c.value(bytes(range(64))))
    for page in (0, PAGE):
        assert decode_seal(image[page : page + PAGE], salt(7)) == wanted


def with_ids(count: int, first_index: int = 10) -> tuple[SimFiles, File, Segment]:
    disk = SimFiles()
    disk.make_directory(ROOT)
    file = disk.open(ROOT / "a", create=True)
    segment = Segment(header(first_index=first_index, id_capacity=300), 0)
    ids = [encode_id(first_index + at, 1, AT, 96, 1, segment.seed) for at in range(count)]
    file.write([b"".join(ids)], IDS_AT)
    return disk, file, segment


def test_ids_hold_when_every_one_is_good_and_in_its_place() -> None:
    disk, file, segment = with_ids(3)
    assert [ids_hold(file, segment, count) for count in range(5)] == [True] * 4 + [False]
    for slot in range(3):
        disk.image(ROOT / "a")[IDS_AT + slot * ID_BYTES + 20] ^= 1
        assert ids_hold(file, segment, 3) is False
        assert ids_hold(file, segment, slot) is True
        disk.image(ROOT / "a")[IDS_AT + slot * ID_BYTES + 20] ^= 1
    image = disk.image(ROOT / "a")
    first = bytes(image[IDS_AT : IDS_AT + ID_BYTES])
    image[IDS_AT + ID_BYTES : IDS_AT + 2 * ID_BYTES] = first
    assert ids_hold(file, segment, 2) is False, "a good one of another entry"


@pytest.mark.parametrize("page", [0, 1])
def test_a_block_of_ids_that_reads_as_zeros_is_not_sealed(page: int) -> None:
    disk, file, segment = with_ids(200)
    write_seal(file, segment, 200, 9_999, 1)
    image = disk.image(ROOT / "a")
    sealed = bytes(image[:IDS_AT])
    at = IDS_AT + page * PAGE
    end = min(at + PAGE, IDS_AT + 200 * ID_BYTES)
    if not page:
        image[at : at + 1] = b"\1"
        image[at + 1 : end] = bytes(end - at - 1)
        write_seal(file, segment, 200, 9_999, 1)  # one byte of it can be read
    image[at:end] = bytes(end - at)
    with pytest.raises(UnreadableIds):
        write_seal(file, segment, 200, 9_998, 1)
    if page:
        assert bytes(image[:IDS_AT]) == sealed


def test_a_segment_knows_where_its_frames_lie() -> None:
    segment = Segment(header(first_index=10), AT + 1_000)
    assert (segment.count, segment.end_index, segment.end) == (0, 10, AT)
    assert not segment.on_disk
    assert segment.has_room(1_000)
    assert not segment.has_room(1_001)
    for length in (96, 200, 104):
        segment.add(length)
    assert [segment.place(index) for index in (10, 11, 12)] == [
        (AT, AT + 96),
        (AT + 96, AT + 296),
        (AT + 296, AT + 400),
    ]
    assert (segment.count, segment.end_index, segment.end) == (3, 13, AT + 400)
    assert segment.has_room(600)
    assert not segment.has_room(608)
    for outside in (9, 13):
        with pytest.raises(IndexError):
            segment.place(outside)
    segment.add(8)
    assert not segment.has_room(8), "four IDs are all"
    segment.cut(12)
    assert (segment.count, segment.end, segment.sealed) == (2, AT + 296, True)
    assert not segment.has_room(8)
    segment.load(array("I", [AT >> 3, (AT >> 3) + 1]))
    assert (segment.count, segment.end) == (1, AT + 8)


@pytest.mark.parametrize(
    ("lo", "hi_max", "max_bytes", "hi"),
    [
        (10, 14, 399, 12),
        (10, 14, 400, 13),
        (11, 14, 304, 13),
        (11, 14, 303, 12),
        (10, 14, 95, 10),
        (10, 14, 96, 11),
        (10, 12, 9_999, 12),
        (12, 13, 104, 13),
    ],
)
def test_frames_that_fit_into_so_many_bytes(lo: int, hi_max: int, max_bytes: int, hi: int) -> None:
    segment = Segment(header(first_index=10), 1 << 20)
    for length in (96, 200, 104, 80):
        segment.add(length)
    assert segment.fit(lo, hi_max, max_bytes) == hi


# --- the index ------------------------------------------------------------------------------------


def test_an_empty_index() -> None:
    index = LogIndex(SMALL, first_index=5, base_term=3)
    assert (index.first_index, index.last_index, index.last_term) == (5, 4, 3)
    assert [index.term_at(one) for one in (3, 4, 5)] == [None, 3, None]
    assert index.needs_roll(0, 0)
    assert index.unsealed() is None
    for outside in (4, 5):
        with pytest.raises(IndexUnavailable):
            index.locate(outside)


def test_frames_are_placed_one_behind_the_other_and_roll_when_there_is_no_room() -> None:
    index = index_of(next_sequence=8, boot=6)
    first, write = put(index, 96, 200, era=3)
    assert isinstance(first, Roll)
    assert isinstance(write, Write)
    assert (first.retired, first.void) == (None, ())
    made = first.segment.header
    assert (made.sequence, made.first_index, made.previous_term) == (8, 1, 0)
    assert (made.id_capacity, made.boot) == (4, 6)
    assert first.segment.bytes_limit == SMALL.segment_bytes
    assert (write.first_index, write.position, write.era, write.last_index) == (1, AT, 3, 2)
    assert (len(write.frames), write.terms) == (2, [1, 1])
    (more,) = put(index, 104, term=2)
    assert isinstance(more, Write)
    assert (more.first_index, more.position, more.last_index) == (3, AT + 296, 3)
    assert not index.needs_roll(1, 8)
    assert index.needs_roll(2, 16)
    last, roll, behind = put(index, 8, 16, term=2)
    assert isinstance(last, Write)
    assert isinstance(roll, Roll)
    assert isinstance(behind, Write)
    assert roll.retired == Retired(first.segment, 4, AT + 408, 2)
    assert first.segment.sealed
    assert (roll.segment.header.sequence, roll.segment.first_index) == (9, 5)
    assert roll.segment.header.previous_term == 2
    assert roll.segment.header.generation != made.generation
    assert (behind.first_index, behind.position) == (5, AT)
    assert [index.term_at(one) for one in range(7)] == [0, 1, 1, 2, 2, 2, None]
    assert [index.size_of(one) for one in range(1, 6)] == [96, 200, 104, 8, 16]
    assert [index.locate(one).first_index for one in range(1, 6)] == [1, 1, 1, 1, 5]
    assert index.unsealed() == Retired(roll.segment, 1, AT + 16, 2)
    assert index._run_first == [0, 1, 3], "a term is kept once, wherever its entries end"


def test_room_is_counted_in_bytes_to_the_last_one() -> None:
    room = SMALL.segment_bytes - AT
    index = index_of()
    put(index, room - 96)
    assert not index.needs_roll(1, 96)
    assert index.needs_roll(1, 97)
    assert not index.needs_roll(3, 96)
    assert index.needs_roll(4, 96)
    (exactly,) = put(index, 96)
    assert isinstance(exactly, Write)
    roll, _ = put(index, 8)
    assert isinstance(roll, Roll)


def test_a_frame_larger_than_a_segment_has_one_to_itself() -> None:
    index = index_of()
    roll, write = put(index, 40_000)
    assert isinstance(roll, Roll)
    assert isinstance(write, Write)
    assert roll.segment.bytes_limit == AT + 40_000
    assert index.needs_roll(1, 8)


def test_entries_that_fit_are_counted_over_segments() -> None:
    index = index_of()
    put(index, 96, 96, 96, 96, 104, 104)
    for lo, hi_max, max_bytes, hi in (
        (1, 7, 95, 2),
        (1, 7, 192, 3),
        (1, 7, 191, 2),
        (1, 7, 384, 5),
        (1, 7, 487, 5),
        (1, 7, 488, 6),
        (1, 7, 9_999, 7),
        (1, 99, 9_999, 7),
        (3, 4, 9_999, 4),
        (4, 6, 200, 6),
        (4, 6, 199, 5),
        (5, 7, 1, 6),
    ):
        assert index.fit(lo, hi_max, max_bytes) == hi, (lo, hi_max, max_bytes)


def test_a_truncation_starts_a_new_segment_and_forgets_terms() -> None:
    index = index_of()
    put(index, 96, 96)
    put(index, 96, 96, term=2)
    put(index, 96, term=3)  # a second segment, with entry 5
    old, second = index.segments
    index.truncate(4)
    assert (index.last_index, index.last_term, index.segments) == (3, 2, (old,))
    assert (old.count, old.sealed) == (3, True)
    assert index.unsealed() is None, "only a new segment makes the cut durable"
    assert index.needs_roll(1, 8)
    roll, write = put(index, 104, term=4, era=1)
    assert isinstance(roll, Roll)
    assert isinstance(write, Write)
    assert (roll.retired, roll.void) == (None, (second,))
    assert (roll.segment.first_index, roll.segment.header.sequence) == (4, 3)
    assert [index.term_at(one) for one in range(1, 6)] == [1, 1, 2, 4, None]
    (again,) = put(index, 8, term=4)
    assert isinstance(again, Write), "nothing is void any more"


def test_a_truncation_inside_the_newest_segment_seals_what_is_left() -> None:
    index = index_of()
    put(index, 96, 96, 96)
    (old,) = index.segments
    index.truncate(3)
    roll, _ = put(index, 96, term=2)
    assert isinstance(roll, Roll)
    assert roll.retired == Retired(old, 2, AT + 192, 1)
    assert roll.void == ()


def test_a_truncation_cuts_the_last_segment_that_is_left() -> None:
    index = index_of()
    put(index, *[96] * 10)
    first, second, third = index.segments
    index.truncate(7)
    assert index.segments == (first, second)
    assert (first.count, second.count, second.end_index) == (4, 2, 7)
    roll, _ = put(index, 96, term=2)
    assert isinstance(roll, Roll)
    assert roll.void == (third,)


def test_a_truncation_of_everything_voids_every_segment() -> None:
    index = index_of()
    put(index, 96, 96)
    (old,) = index.segments
    index.truncate(1)
    assert (index.last_index, index.segments, index.last_term) == (0, (), 0)
    roll, _ = put(index, 96, term=2)
    assert isinstance(roll, Roll)
    assert (roll.retired, roll.void) == (None, (old,))
    for outside in (0, 3):
        with pytest.raises(AssertionError, match="truncation at"):
            index.truncate(outside)


def test_a_segment_that_a_truncation_left_empty_does_not_shadow_the_new_one() -> None:
    empty = Segment(header(sequence=2, first_index=3), 1 << 20)
    full = Segment(header(), 1 << 20)
    full.add(96)
    full.add(96)
    full.sealed = True
    index = index_of(segments=(full, empty), runs=[(1, 1)], next_sequence=3)
    assert (index.last_index, index.last_term) == (2, 1)
    roll, _ = put(index, 96)
    assert isinstance(roll, Roll)
    assert (roll.retired, roll.void) == (None, (empty,))
    assert index.segments == (full, roll.segment)


def test_a_segment_found_without_a_seal_is_sealed_before_the_next_one() -> None:
    found = Segment(header(), 1 << 20)
    found.add(96)
    index = index_of(segments=(found,), runs=[(1, 2)], next_sequence=2)
    assert index.unsealed() == Retired(found, 1, AT + 96, 2)
    assert index.needs_roll(1, 8), "it gets no more frames"
    roll, _ = put(index, 96, term=2)
    assert isinstance(roll, Roll)
    assert roll.retired == Retired(found, 1, AT + 96, 2)
    sealed = Segment(header(), 1 << 20)
    sealed.add(96)
    sealed.sealed = True
    index = index_of(segments=(sealed,), runs=[(1, 2)], next_sequence=2)
    assert index.unsealed() is None
    roll, _ = put(index, 96, term=2)
    assert isinstance(roll, Roll)
    assert roll.retired is None


def test_the_newest_segment_decides_whether_something_is_to_be_sealed() -> None:
    old = Segment(header(), 1 << 20)
    old.add(96)
    old.sealed = True
    new = Segment(header(sequence=2, first_index=2), 1 << 20)
    new.add(96)
    index = index_of(segments=(old, new), runs=[(1, 2)], next_sequence=3)
    assert index.unsealed() == Retired(new, 1, AT + 96, 2)


def test_a_generation_is_of_64_random_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "urandom", lambda count: bytes(range(1, count + 1)))
    index = index_of()
    put(index, 96)
    assert index.segments[0].header.generation == 0x08_07_06_05_04_03_02_01


def test_the_oldest_segment_goes_first() -> None:
    index = index_of()
    put(index, *[96] * 9)
    first, second, tail = index.segments
    with pytest.raises(AssertionError):
        index.drop_before(second)
    index.drop_before(first)
    assert (index.first_index, index.segments) == (5, (second, tail))
    assert index.term_at(4) == 1
    assert index.term_at(3) is None
    index.drop_before(second)
    with pytest.raises(AssertionError):
        index.drop_before(tail)
