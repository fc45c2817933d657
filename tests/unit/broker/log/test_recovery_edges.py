"""Recovery, segment by segment: what it makes of files that were put together by hand.

This is one file because all tests put their segments together with the same helpers.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import google_crc32c
import pytest

from semel.broker.log import recovery
from semel.broker.log.checkpoint import Checkpoints
from semel.broker.log.hard_state import HardStateFile
from semel.broker.log.recovery import Recovered, recover
from semel.broker.log.segment import (
    HEADER_STRUCT,
    ID_BYTES,
    IDS_AT,
    PAGE,
    SEAL_AT,
    Segment,
    SegmentHeader,
    decode_id,
    decode_seal,
    encode_id,
    segment_name,
    spare_name,
    write_seal,
)
from semel.broker.log.types import Damage
from semel.protos.errors import CorruptSegment, DataDirectoryError
from semel.protos.frames import FRAME_HEADER_CRC_AT, FRAME_HEADER_STRUCT
from tests.kit.disk import SimFile, SimFiles
from tests.kit.log_entries import frame

ROOT = Path("/node")
CAPACITY = 8


@dataclass
class Built:
    """One segment file, and what stands in it."""

    disk: SimFiles
    header: SegmentHeader
    frames: list[bytes]
    segment: Segment

    @property
    def path(self) -> Path:
        return ROOT / segment_name(self.header.sequence)

    @property
    def image(self) -> bytearray:
        return self.disk.image(self.path)

    def break_frame(self, index: int) -> None:
        self.image[self.segment.place(index)[0] + 60] ^= 1

    def break_id(self, index: int) -> None:
        self.image[IDS_AT + (index - self.header.first_index) * ID_BYTES] ^= 1

    def id_of(self, index: int) -> object:
        slot = index - self.header.first_index
        area = bytes(self.image[IDS_AT : IDS_AT + CAPACITY * ID_BYTES])
        return decode_id(area, slot, self.segment.seed)


def build(
    disk: SimFiles,
    sequence: int,
    first_index: int,
    terms: Sequence[int],
    *,
    previous_term: int = 0,
    lags: Sequence[int] | None = None,
    sealed: int | None = None,
    boot: int | None = None,
    lengths: Sequence[int] = (),
) -> Built:
    """Durable on the disk. `lags` are those of the IDs (1: all before was durable)."""
    header = SegmentHeader(
        sequence=sequence,
        generation=sequence * 11,
        first_index=first_index,
        previous_term=previous_term,
        id_capacity=CAPACITY,
        boot=disk.boot() if boot is None else boot,
    )
    segment = Segment(header, 1 << 20)
    if ROOT not in disk.names_now:
        disk.make_directory(ROOT)
    file = disk.open(ROOT / segment_name(sequence), create=True)
    file.write([header.encode(), header.encode(), bytes(header.frames_at - 2 * PAGE)], 0)
    frames = [
        frame(first_index + at, term, lengths[at] if lengths else 60)
        for at, term in enumerate(terms)
    ]
    for at, (one, term) in enumerate(zip(frames, terms, strict=True)):
        start = segment.end
        file.write([one], start)
        lag = lags[at] if lags else 1
        raw = encode_id(first_index + at, term, start, len(one), lag, segment.seed)
        file.write([raw], IDS_AT + at * ID_BYTES)
        segment.add(len(one))
    if sealed is not None:
        write_seal(file, segment, sealed, segment.end, terms[sealed - 1] if sealed else 0)
    file.sync()
    disk.sync_directory(ROOT)
    return Built(disk, header, frames, segment)


def recovered(disk: SimFiles, checkpoint_index: int = 0, checkpoint_term: int = 0) -> Recovered:
    return recover(disk, ROOT, checkpoint_index, checkpoint_term)


def extent(found: Recovered) -> list[tuple[int, int]]:
    return [(one.first_index, one.end_index) for one in found.segments]


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


# --- the fast path --------------------------------------------------------------------------------


def test_a_sealed_segment_is_taken_by_its_ids_alone() -> None:
    disk = SimFiles()
    one = build(disk, 1, 1, [1, 1, 2, 4], sealed=4)
    operations = disk.operations
    found = recovered(disk)
    assert disk.operations == operations, "nothing is written"
    (segment,) = found.segments
    assert [segment.place(index) for index in range(1, 5)] == [
        one.segment.place(index) for index in range(1, 5)
    ]
    assert (segment.end, segment.sealed) == (one.segment.end, True)
    assert (found.runs, found.damaged) == ([(1, 1), (3, 2), (4, 4)], {})


@pytest.mark.parametrize("sealed", [None, 3])
def test_frames_of_any_length_are_found(sealed: int | None) -> None:
    disk = SimFiles()
    one = build(disk, 1, 1, [1, 2, 2], lengths=[500, 60, 900], sealed=sealed)
    (segment,) = recovered(disk).segments
    for index in (1, 2, 3):
        assert segment.place(index) == one.segment.place(index)
    assert (segment.end, segment.count) == (one.segment.end, 3)


def test_every_file_is_closed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SimFiles()
    build(disk, 1, 1, [1, 1], sealed=2)
    build(disk, 2, 3, [1, 1], previous_term=1)
    files: Counter[str] = Counter()
    opened, closed = SimFiles.open, SimFile.close

    def open_(self: SimFiles, path: Path, *, create: bool = False) -> object:
        file = opened(self, path, create=create)
        files["open"] += 1
        return file

    def close(self: SimFile) -> None:
        files["close"] += 1
        closed(self)

    monkeypatch.setattr(SimFiles, "open", open_)
    monkeypatch.setattr(SimFile, "close", close)
    recovered(disk)
    assert files == {"open": 4, "close": 4}
    state = HardStateFile(ROOT / "hard_state", disk)
    for term in (1, 2):
        state.save(term, None)
    HardStateFile(ROOT / "hard_state", disk).load()
    state.repair()
    checkpoints = Checkpoints(disk, ROOT, 2)
    assert checkpoints.save(2, 1, [b"state"]).payload == b"state"
    checkpoints.load()
    assert files["open"] == files["close"] > 9


def test_a_seal_of_nothing_is_a_seal() -> None:
    disk = SimFiles()
    build(disk, 1, 1, [1], sealed=1)
    build(disk, 2, 2, [], previous_term=1, sealed=0)
    found = recovered(disk)
    assert extent(found) == [(1, 2), (2, 2)]
    assert found.segments[1].end == found.segments[1].header.frames_at


@pytest.mark.parametrize("checkpoint", range(6))
def test_only_frames_above_the_checkpoint_are_read(
    checkpoint: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SimFiles()
    one = build(disk, 1, 1, [1, 1, 1, 1, 1], sealed=5)
    for index in range(1, 6):
        one.break_frame(index)
    found = recovered(disk, checkpoint, int(checkpoint > 0))
    assert sorted(found.damaged) == list(range(checkpoint + 1, 6))
    for index, damage in found.damaged.items():
        assert damage == Damage(
            index=index,
            term=1,
            length=len(one.frames[0]),
            file_name=one.segment.file_name,
            position=one.segment.place(index)[0],
            certain=True,
            torn=False,
        )


@pytest.mark.parametrize("piece", [1, 100, 150, 240, 250, 1_000])
def test_frames_are_read_in_pieces_of_any_size(piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SimFiles()
    one = build(disk, 1, 1, [1] * 7, sealed=7)
    monkeypatch.setattr(recovery, "_READ_BYTES", piece)
    assert recovered(disk).damaged == {}
    reads: list[int] = []
    read = SimFile.read

    def counted(self: SimFile, length: int, offset: int) -> bytes:
        if offset >= one.header.frames_at:
            reads.append(length)
        return read(self, length, offset)

    monkeypatch.setattr(SimFile, "read", counted)
    one.break_frame(4)
    assert list(recovered(disk).damaged) == [4]
    size = len(one.frames[0])
    assert sum(reads) == 7 * size
    assert max(reads) == max(size, min(7, piece // size) * size)


def test_a_sealed_segment_with_a_damaged_id_is_walked_and_sealed_anew() -> None:
    disk = SimFiles()
    one = build(disk, 1, 1, [1, 2, 2], sealed=3)
    whole = bytes(one.image)
    one.break_id(2)
    found = recovered(disk)
    assert (extent(found), found.repaired, found.runs) == ([(1, 4)], 1, [(1, 1), (2, 2)])
    assert (found.damaged, found.segments[0].sealed) == ({}, True)
    image = bytes(disk.restart(survives=0.0).image(one.path))
    assert image[one.header.frames_at :] == whole[one.header.frames_at :]
    assert recovered(disk).repaired == 0
    assert decode_seal(image[:PAGE], one.segment.seed) is not None


@pytest.mark.parametrize("how", ["sealed", "walked", "without its ID"])
def test_entries_of_a_newer_program_are_refused_and_left_alone(how: str) -> None:
    disk = SimFiles()
    one = build(disk, 1, 1, [1, 1], sealed=2 if how == "sealed" else None)
    start, _ = one.segment.place(2)
    fields = list(FRAME_HEADER_STRUCT.unpack_from(one.image, start))
    fields[1] = 9
    head = bytearray(FRAME_HEADER_STRUCT.pack(*fields))
    fields[-2] = google_crc32c.value(bytes(head[:FRAME_HEADER_CRC_AT]))
    one.image[start : start + len(head)] = FRAME_HEADER_STRUCT.pack(*fields)
    if how == "without its ID":
        one.break_id(2)
    before = bytes(one.image)
    with pytest.raises(DataDirectoryError, match="newer program"):
        recovered(disk)
    assert bytes(one.image) == before


# --- the slow path --------------------------------------------------------------------------------


def test_a_segment_without_a_seal_is_walked_and_sealed() -> None:
    disk = SimFiles()
    one = build(disk, 1, 1, [1, 1, 3])
    assert decode_seal(bytes(one.image[:PAGE]), one.segment.seed) is None
    found = recovered(disk)
    assert (extent(found), found.runs, found.damaged) == ([(1, 4)], [(1, 1), (3, 3)], {})
    assert (found.repaired, found.segments[0].sealed) == (0, True)
    image = bytes(disk.restart(survives=0.0).image(one.path))
    seal = decode_seal(image[:PAGE], one.segment.seed)
    assert seal is not None
    assert (seal.count, seal.end, seal.last_term) == (3, one.segment.end, 3)


def test_an_empty_segment_is_not_sealed() -> None:
    disk = SimFiles()
    build(disk, 1, 1, [])
    found = recovered(disk)
    assert (extent(found), found.segments[0].sealed) == ([(1, 1)], False)


def test_what_was_found_is_durable_though_it_is_not_sealed() -> None:
    disk = SimFiles()
    one = build(disk, 1, 1, [1, 1, 1], lags=[1, 1, 2], boot=99)
    one.break_id(1)
    one.break_frame(2)
    disk = disk.copy()
    found = recovered(disk)
    assert (found.repaired, found.segments[0].sealed, list(found.damaged)) == (1, False, [2])
    again = Built(disk.restart(survives=0.0), one.header, one.frames, one.segment)
    assert again.id_of(1) is not None


def test_a_segment_whose_first_entry_may_be_torn_is_not_sealed() -> None:
    disk = SimFiles()
    build(disk, 1, 1, [1, 1], lags=[1, 2]).break_frame(1)
    found = recovered(disk)
    assert (list(found.damaged), found.segments[0].sealed) == ([1], False)


def test_a_full_segment_is_walked_to_its_last_id() -> None:
    disk = SimFiles()
    build(disk, 1, 1, [1] * CAPACITY)
    assert extent(recovered(disk)) == [(1, CAPACITY + 1)]


@pytest.mark.parametrize(("boot", "torn"), [(None, False), (99, True), (0, True)])
def test_a_damaged_end_may_be_torn_only_by_a_failure_of_power(boot: int | None, torn: bool) -> None:
    disk = SimFiles()
    one = build(disk, 1, 1, [1, 1, 1], lags=[1, 1, 2], boot=boot)
    one.break_frame(2)
    found = recovered(disk)
    assert list(found.damaged) == [2]
    damage = found.damaged[2]
    assert (damage.certain, damage.torn, damage.term) == (False, torn, 1)
    assert not found.segments[0].sealed, "what may be torn is not sealed"


def test_an_unknown_boot_is_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SimFiles()
    one = build(disk, 1, 1, [1, 1], lags=[1, 2], boot=0)
    monkeypatch.setattr(SimFiles, "boot", lambda self: 0)
    one.break_frame(2)
    assert recovered(disk).damaged[2].torn


@pytest.mark.parametrize(
    ("proof", "durable"),
    [
        ({}, False),
        ({"lags": [1, 1, 2, 2]}, False),
        ({"lags": [1, 1, 1, 1]}, True),
        ({"sealed": 4}, True),
        ({"checkpoint": 3}, True),
        ({"checkpoint": 2}, False),
    ],
)
def test_what_proves_that_an_entry_was_durable(proof: dict[str, object], durable: bool) -> None:
    """Entry 3 has lost its frame, and then its ID as well."""
    fields = {"lags": [1, 2, 3, 4]} | proof
    checkpoint = fields.pop("checkpoint", 0)
    assert isinstance(checkpoint, int)
    disk = SimFiles()
    one = build(disk, 1, 1, [1, 1, 1, 1], **fields)  # type: ignore[arg-type]
    one.break_id(4)  # so that a seal does not open the fast path
    one.break_frame(3)
    found = recovered(disk, checkpoint, int(checkpoint > 0))
    if "lags" not in proof:
        assert found.damaged[3].certain == durable
    disk = SimFiles()
    one = build(disk, 1, 1, [1, 1, 1, 1], **fields)  # type: ignore[arg-type]
    one.break_frame(3)
    one.break_id(3)
    if durable:
        with pytest.raises(CorruptSegment, match=r"entry 3 .* was durable"):
            recovered(disk, checkpoint, int(checkpoint > 0))
    else:
        found = recovered(disk, checkpoint, int(checkpoint > 0))
        assert (extent(found), found.damaged) == ([(1, 3)], {})


def test_a_seal_proves_its_last_entry() -> None:
    disk = SimFiles()
    one = build(disk, 1, 1, [1, 1, 1], lags=[1, 2, 3], sealed=3)
    one.break_frame(3)
    one.break_id(3)
    with pytest.raises(CorruptSegment, match=r"entry 3 .* was durable"):
        recovered(disk)


def test_a_newer_segment_proves_every_entry_before_it() -> None:
    disk = SimFiles()
    one = build(disk, 1, 1, [1, 1, 1], lags=[1, 2, 3])
    build(disk, 2, 4, [1], previous_term=1, sealed=1)
    one.break_frame(3)
    found = recovered(disk)
    assert found.damaged[3].certain
    assert found.segments[0].sealed
    one.break_id(3)
    disk.image(one.path)[SEAL_AT] ^= 1
    disk.image(one.path)[PAGE + SEAL_AT] ^= 1
    with pytest.raises(CorruptSegment, match="entry 3 "):
        recovered(disk)


def test_damaged_ids_are_made_anew_from_their_frames() -> None:
    disk = SimFiles()
    one = build(disk, 1, 1, [1, 1, 2, 2], lags=[1, 1, 2, 3])
    for index in (2, 3):
        one.break_id(index)
    disk = disk.copy()
    found = recovered(disk)
    assert (extent(found), found.repaired, found.runs) == ([(1, 5)], 2, [(1, 1), (3, 2)])
    image = disk.restart(survives=0.0)
    for index in (2, 3):
        start, end = one.segment.place(index)
        repaired = Built(image, one.header, one.frames, one.segment).id_of(index)
        assert (repaired.index, repaired.term, repaired.position) == (  # type: ignore[attr-defined]
            index,
            1 if index == 2 else 2,
            start,
        )
        # What is written anew says no more than was known: entry 1 was durable, by the last ID.
        assert (repaired.length, repaired.durable_before) == (end - start, 1)  # type: ignore[attr-defined]


@pytest.mark.parametrize("wrong", ["index", "term", "place", "earlier term"])
def test_an_id_that_does_not_fit_is_no_id(wrong: str) -> None:
    """Its checksum is right; the frame behind the entry before decides."""
    disk = SimFiles()
    one = build(disk, 1, 1, [2, 2, 2], previous_term=2)
    start, end = one.segment.place(2)
    fields = {"index": 2, "term": 2, "place": start}
    fields |= {"index": {"index": 3}, "place": {"place": start + 8}}.get(wrong, {})
    fields |= {"term": {"term": 7}, "earlier term": {"term": 1}}.get(wrong, {})
    raw = encode_id(
        fields["index"], fields["term"], fields["place"], end - start, 1, one.segment.seed
    )
    one.image[IDS_AT + ID_BYTES : IDS_AT + 2 * ID_BYTES] = raw
    found = recovered(disk)
    if wrong == "term":
        assert (extent(found), found.damaged[2].term) == ([(1, 3)], 7)
    else:
        assert (extent(found), found.damaged, found.repaired) == ([(1, 4)], {}, 1)
        assert found.runs == []


@pytest.mark.parametrize(("index", "term"), [(5, 1), (2, 0)])
def test_a_frame_of_another_place_or_an_earlier_term_is_no_entry(index: int, term: int) -> None:
    disk = SimFiles()
    one = build(disk, 1, 1, [1, 1], lags=[1, 2])
    start, end = one.segment.place(2)
    strange = frame(index, term)
    assert len(strange) == end - start
    one.image[start:end] = strange
    one.break_id(2)
    assert extent(recovered(disk)) == [(1, 2)]


def test_a_good_id_with_the_frame_of_another_entry_is_damage() -> None:
    for index, term in ((2, 9), (7, 1)):
        disk = SimFiles()
        one = build(disk, 1, 1, [1, 1], lags=[1, 2])
        start, end = one.segment.place(2)
        one.image[start:end] = frame(index, term)
        found = recovered(disk)
        assert list(found.damaged) == [2]
        assert found.damaged[2].term == 1


def test_damage_and_repair_are_told(caplog: pytest.LogCaptureFixture) -> None:
    disk = SimFiles()
    one = build(disk, 1, 1, [1, 1, 1], lags=[1, 1, 2])
    one.break_id(1)
    one.break_frame(2)
    with caplog.at_level(logging.INFO):
        recovered(disk)
    assert [record.levelno for record in caplog.records] == [logging.WARNING, logging.INFO]
    caplog.clear()
    disk = SimFiles()
    build(disk, 1, 1, [1, 1], sealed=2).break_frame(2)
    build(disk, 2, 3, [1, 1], previous_term=1, lags=[1, 2]).break_frame(3)
    with caplog.at_level(logging.INFO):
        recovered(disk)
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert "certain=True entries=[2, 3]" in caplog.text
