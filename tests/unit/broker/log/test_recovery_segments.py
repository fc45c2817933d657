"""Recovery over segments: which of them count, and what their headers and seals must say."""

from __future__ import annotations

import google_crc32c
import pytest

from semel.broker.log.recovery import Recovered
from semel.broker.log.segment import (
    HEADER_STRUCT,
    PAGE,
    SEAL_AT,
    segment_name,
    spare_name,
)
from semel.protos.errors import CorruptSegment, DataDirectoryError
from tests.kit.disk import SimFiles
from tests.unit.broker.log.built_segments import (
    ROOT,
    build,
    extent,
    recovered,
)

# --- which segments count -------------------------------------------------------------------------


def test_an_empty_directory_begins_behind_its_checkpoint() -> None:
    disk = SimFiles()
    disk.make_directory(ROOT)
    found = recovered(disk, 7, 3)
    assert found == Recovered(first_index=8, base_term=3)
    assert (found.segments, found.next_sequence, found.runs) == ((), 1, [])


def test_files_are_told_apart_by_their_names() -> None:
    disk = SimFiles()
    build(disk, 4, 1, [1, 1], sealed=2)
    for name in (spare_name(9), "segment-x.tmp", "checkpoint-1.tmp", "checkpoint-1", "other"):
        disk.open(ROOT / name, create=True)
    found = recovered(disk)
    assert found.void == ["checkpoint-1.tmp", "segment-x.tmp"]
    assert found.spares == [spare_name(9)]
    assert (found.next_sequence, extent(found)) == (5, [(1, 3)])
    assert found.segments[0].on_disk


def test_a_newer_segment_voids_what_older_ones_hold_from_its_first_index_on() -> None:
    disk = SimFiles()
    build(disk, 1, 1, [1, 1, 1, 1], sealed=4)
    build(disk, 2, 5, [1, 1], previous_term=1, sealed=2)
    build(disk, 3, 3, [2, 2], previous_term=1, sealed=2)
    found = recovered(disk)
    assert extent(found) == [(1, 3), (3, 5)]
    assert found.void == [segment_name(2)]
    assert (found.runs, found.next_sequence) == ([(1, 1), (3, 2)], 4)
    assert (found.first_index, found.base_term) == (1, 0)


def test_a_segment_that_begins_where_another_begins_replaces_it() -> None:
    disk = SimFiles()
    build(disk, 1, 1, [1, 1], sealed=2)
    build(disk, 2, 1, [2], sealed=1)
    found = recovered(disk)
    assert (extent(found), found.void) == ([(1, 2)], [segment_name(1)])


@pytest.mark.parametrize("sealed", [None, 4])
def test_the_cut_of_an_older_segment_counts_whether_it_is_sealed_or_not(sealed: int | None) -> None:
    disk = SimFiles()
    first = build(disk, 1, 1, [1, 1, 2, 2], sealed=sealed)
    build(disk, 2, 3, [3], previous_term=1, sealed=1)
    found = recovered(disk)
    assert extent(found) == [(1, 3), (3, 4)]
    assert found.runs == [(1, 1), (3, 3)]
    assert found.segments[0].end == first.segment.place(2)[1]
    assert found.segments[0].sealed


def test_a_hole_before_the_log_or_in_it_halts() -> None:
    for checkpoint, begins in ((4, 6), (0, 2)):
        disk = SimFiles()
        build(disk, 1, begins, [1], previous_term=1, sealed=1)
        with pytest.raises(CorruptSegment, match=f"begins at index {begins}"):
            recovered(disk, checkpoint, 1)
    disk = SimFiles()
    build(disk, 1, 5, [1], previous_term=1, sealed=1)
    assert extent(recovered(disk, 4, 1)) == [(5, 6)]
    disk = SimFiles()
    build(disk, 1, 1, [1, 1], sealed=2)
    build(disk, 2, 4, [1], previous_term=1, sealed=1)
    with pytest.raises(CorruptSegment, match="entry 3 "):
        recovered(disk)


def test_a_log_that_ends_before_its_checkpoint_halts() -> None:
    disk = SimFiles()
    build(disk, 1, 1, [1, 1, 1], sealed=3)
    assert extent(recovered(disk, 3, 1)) == [(1, 4)]
    with pytest.raises(CorruptSegment, match="ends at index 3, but its checkpoint is of 4"):
        recovered(disk, 4, 1)


def test_terms_go_on_over_segments() -> None:
    disk = SimFiles()
    build(disk, 1, 6, [2, 2], previous_term=2, sealed=2)
    build(disk, 2, 8, [2, 3], previous_term=2)
    build(disk, 3, 10, [3, 5], previous_term=3)
    build(disk, 4, 12, [5, 5], previous_term=5, sealed=2)
    found = recovered(disk, 5, 2)
    assert (found.base_term, found.runs) == (2, [(9, 3), (11, 5)])
    assert [one.header.sequence for one in found.segments] == [1, 2, 3, 4]
    assert recovered(disk, 13, 5).runs == [(9, 3), (11, 5)], "the newest segment has the end"


def test_frames_of_a_later_segment_are_checked_from_its_first_on() -> None:
    disk = SimFiles()
    build(disk, 1, 1, [1, 1], sealed=2)
    build(disk, 2, 3, [1, 1, 1], previous_term=1, sealed=3).break_frame(3)
    assert list(recovered(disk).damaged) == [3]


# --- headers and seals ----------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [0, 1])
def test_a_damaged_header_page_is_written_anew(bad: int) -> None:
    disk = SimFiles()
    one = build(disk, 1, 1, [1], sealed=1)
    whole = bytes(one.image)
    one.image[bad * PAGE + 9] ^= 1
    disk = disk.copy()  # the damage is on the disk
    recovered(disk)
    assert bytes(disk.restart(survives=0.0).image(one.path)) == whole
    operations = disk.operations
    recovered(disk)
    assert disk.operations == operations, "nothing is written when nothing is damaged"


def test_a_file_of_a_newer_version_is_left_as_it_is() -> None:
    disk = SimFiles()
    one = build(disk, 1, 1, [1], sealed=1)
    head = bytearray(one.image[: HEADER_STRUCT.size])
    head[4] = 2
    head[-4:] = int(google_crc32c.value(bytes(head[:-4]))).to_bytes(4, "little")
    one.image[: len(head)] = head
    one.image[PAGE] ^= 1
    before = bytes(one.image)
    with pytest.raises(DataDirectoryError, match="version 2"):
        recovered(disk)
    assert bytes(one.image) == before


@pytest.mark.parametrize("bad", [0, 1])
def test_one_good_seal_is_enough(bad: int) -> None:
    disk = SimFiles()
    one = build(disk, 1, 1, [1, 1], sealed=2)
    one.image[bad * PAGE + SEAL_AT + 9] ^= 1
    found = recovered(disk)
    assert (extent(found), found.segments[0].sealed, found.repaired) == ([(1, 3)], True, 0)


def test_a_file_under_another_name_halts() -> None:
    disk = SimFiles()
    one = build(disk, 1, 1, [1], sealed=1)
    disk.rename(one.path, ROOT / segment_name(2))
    with pytest.raises(CorruptSegment, match="no good header"):
        recovered(disk)
