"""Recovery inside a segment: entries that are taken by their IDs alone, or walked one by one."""

from __future__ import annotations

import logging
from collections import Counter
from pathlib import Path

import google_crc32c
import pytest

from semel.broker.log import recovery
from semel.broker.log.checkpoint import Checkpoints
from semel.broker.log.hard_state import HardStateFile
from semel.broker.log.segment import (
    ID_BYTES,
    IDS_AT,
    PAGE,
    SEAL_AT,
    decode_seal,
    encode_id,
)
from semel.broker.log.types import Damage
from semel.protos.errors import CorruptSegment, DataDirectoryError
from semel.protos.frames import FRAME_HEADER_CRC_AT, FRAME_HEADER_STRUCT
from tests.kit.disk import SimFile, SimFiles
from tests.kit.log_entries import frame
from tests.unit.broker.log.built_segments import (
    CAPACITY,
    ROOT,
    Built,
    build,
    extent,
    recovered,
)

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

    def open_(self: SimFiles, path: Path, *, create: bool = False, private: bool = False) -> object:
        file = opened(self, path, create=create, private=private)
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
