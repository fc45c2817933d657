"""Damaged bytes on one node: named and repaired, cut or refused loudly; never served."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import google_crc32c
import pytest

from semel.broker.log import DamagedEntry, Log, RecordRef
from semel.broker.log.segment import HEADER_STRUCT, ID_BYTES, IDS_AT, PAGE, frames_at
from semel.broker.log.store import Store
from semel.protos.errors import CorruptFrame, CorruptSegment, DataDirectoryError, InvalidRequest
from tests.kit.disk import SimFiles
from tests.kit.log_entries import SMALL, WAIT_S, everything, fill, frame, frames, opened

ENTRIES = 5
WANTED = frames(1, ENTRIES + 1)
FRAME_BYTES = len(WANTED[0])
FRAMES_AT = frames_at(SMALL.ids_per_segment)


def _built(*, closed: bool) -> SimFiles:
    """A log of one segment, each entry reported durable by itself."""
    disk = SimFiles()
    log = opened(disk)
    for one in WANTED:
        fill(log, [one])
    found = disk.copy()
    log.close()
    return disk if closed else found


def _segment(disk: SimFiles) -> Path:
    return disk.find("segment-")[0]


def _flip(disk: SimFiles, at: int, bit: int = 1) -> None:
    disk.image(_segment(disk))[at] ^= bit


def _frame_at(index: int) -> int:
    return FRAMES_AT + (index - 1) * FRAME_BYTES


def _id_at(index: int) -> int:
    return IDS_AT + (index - 1) * ID_BYTES


@pytest.mark.parametrize("closed", [False, True])
@pytest.mark.parametrize("index", [3, ENTRIES])
def test_a_damaged_frame_is_known_by_name_and_repaired(index: int, closed: bool) -> None:
    built = _built(closed=closed)
    for byte in range(FRAME_BYTES):
        disk = built.copy()
        _flip(disk, _frame_at(index) + byte, 1 << byte % 8)
        log = opened(disk)
        assert list(log.damaged) == [index]
        damage = log.damaged[index]
        assert (damage.term, damage.length) == (1, FRAME_BYTES)
        # The last entry of a log that was not closed may as well be a torn write.
        assert damage.certain == (closed or index < ENTRIES)
        assert log.term_at(index) == 1
        assert (log.last_index, log.last_term) == (ENTRIES, 1)
        assert log.synced_index == (ENTRIES if damage.certain else index - 1)
        with pytest.raises(DamagedEntry) as caught:
            log.read_frames(1, ENTRIES + 1)
        assert caught.value.index == index
        assert _segment(disk).name in str(caught.value)
        if byte == 7:
            _check_repair(disk, log, index)
        log.close()


def _check_repair(disk: SimFiles, log: Log, index: int) -> None:
    reports: list[tuple[int, int]] = []
    log.on_synced = lambda reached, term: reports.append((reached, term))
    certain = log.damaged[index].certain
    with pytest.raises(CorruptFrame):
        log.repair(WANTED[index - 1][:-1] + b"!")
    with pytest.raises(InvalidRequest):
        log.repair(frame(index, term=2))
    assert list(log.damaged) == [index]
    log.repair(WANTED[index - 1])
    log.repair(WANTED[index - 1])
    assert log.damaged == {}
    assert log.synced_index == ENTRIES
    assert reports == ([] if certain else [(ENTRIES, 1)])
    assert everything(log) == WANTED
    again = opened(disk.restart(survives=0.0))
    assert again.damaged == {}
    assert everything(again) == WANTED
    again.close()


def test_nothing_follows_an_entry_that_may_be_torn() -> None:
    """It would prove to the next recovery that the entry was durable."""
    disk = _built(closed=False)
    _flip(disk, _frame_at(ENTRIES))
    log = opened(disk)
    assert log.synced_index == ENTRIES - 1
    with pytest.raises(AssertionError, match=f"entry {ENTRIES} may be torn"):
        log.append(frames(ENTRIES + 1, ENTRIES + 3))
    log.repair(WANTED[-1])
    fill(log, frames(ENTRIES + 1, ENTRIES + 3))
    log.close()


def test_an_append_looks_at_what_is_damaged_while_a_repair_changes_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = opened(SimFiles())
    locked: list[bool] = []
    monkeypatch.setattr(Store, "assert_whole", lambda store: locked.append(store.lock.locked()))
    fill(log, frames(1, 2))
    log.close()
    assert locked == [True]


def test_what_may_be_torn_is_so_after_a_planned_restart_too() -> None:
    disk = _built(closed=False)
    _flip(disk, _frame_at(ENTRIES))
    opened(disk).close()
    log = opened(disk)
    assert not log.damaged[ENTRIES].certain
    assert log.synced_index == ENTRIES - 1
    log.close()


def test_a_group_of_one_may_truncate_what_may_be_torn() -> None:
    disk = _built(closed=False)
    _flip(disk, _frame_at(ENTRIES))
    killed = opened(disk.copy())
    assert not killed.damaged[ENTRIES].torn, "a killed process tears nothing"
    with pytest.raises(CorruptSegment, match=f"entry {ENTRIES} .*{_segment(disk).name} at"):
        killed.cut_torn()
    killed.close()
    disk.boots += 1  # the power failed
    log = opened(disk)
    assert log.damaged[ENTRIES].torn
    assert log.cut_torn() == ENTRIES
    assert log.cut_torn() is None
    assert log.damaged == {}
    fill(log, [frame(ENTRIES, term=2)])
    log.close()
    again = opened(disk)
    assert everything(again) == [*WANTED[:-1], frame(ENTRIES, term=2)]
    again.close()


def test_what_one_life_has_found_whole_is_certain_in_the_next() -> None:
    """The second life synced it and acknowledged it: no failure of power tears it any more."""
    disk = _built(closed=False)
    log = opened(disk)
    assert log.synced_index == ENTRIES
    found = disk.restart(survives=0.0)
    log.close()
    _flip(found, _frame_at(ENTRIES))
    again = opened(found)
    assert again.damaged[ENTRIES].certain
    again.close()


@pytest.mark.parametrize("closed", [False, True])
@pytest.mark.parametrize("index", [3, ENTRIES])
def test_a_damaged_id_is_written_anew(index: int, closed: bool) -> None:
    built = _built(closed=closed)
    for byte in range(ID_BYTES):
        disk = built.copy()
        _flip(disk, _id_at(index) + byte, 1 << byte % 8)
        for _ in range(2):
            log = opened(disk.copy())
            assert log.damaged == {}
            assert everything(log) == WANTED
            log.close()
        log = opened(disk)
        log.close()
        assert everything(opened(disk.restart(survives=0.0))) == WANTED


@pytest.mark.parametrize(
    ("index", "closed", "survives"),
    [(3, False, False), (3, True, False), (ENTRIES, True, False), (ENTRIES, False, True)],
)
def test_id_and_frame_both_damaged(index: int, closed: bool, survives: bool) -> None:
    """At the end it was never acknowledged, as far as anybody knows; elsewhere the node halts."""
    built = _built(closed=closed)
    chance = random.Random(index)
    for byte in range(FRAME_BYTES):
        disk = built.copy()
        _flip(disk, _frame_at(index) + byte)
        _flip(disk, _id_at(index) + chance.randrange(ID_BYTES))
        if survives:
            log = opened(disk)
            assert everything(log) == WANTED[: index - 1]
            assert log.damaged == {}
            log.close()
            continue
        with pytest.raises(CorruptSegment, match=f"entry {index} .*{_segment(disk).name}"):
            opened(disk)
        assert disk.locked == set()


def _last_two_in_one_group() -> SimFiles:
    disk = SimFiles()
    log = opened(disk)
    fill(log, WANTED[:3])
    fill(log, WANTED[3:])
    found = disk.copy()
    log.close()
    return found


@pytest.mark.parametrize("ids", ["none", "first", "second", "both"])
def test_a_log_cut_at_every_byte_of_the_last_two_frames(ids: str) -> None:
    built = _last_two_in_one_group()
    for length in range(2 * FRAME_BYTES + 1):
        disk = built.copy()
        image = disk.image(_segment(disk))
        image[_frame_at(4) + length : _frame_at(6)] = bytes(2 * FRAME_BYTES - length)
        if ids in ("none", "second"):
            image[_id_at(4) : _id_at(5)] = bytes(ID_BYTES)
        if ids in ("none", "first"):
            image[_id_at(5) : _id_at(6)] = bytes(ID_BYTES)
        log = opened(disk)
        # The zeros that pad a frame's last record are part of what a cut leaves as it was.
        whole = [
            one
            for one in (4, 5)
            if bytes(image[_frame_at(one) : _frame_at(one + 1)]) == WANTED[one - 1]
        ]
        assert log.read_frames(1, 4) == WANTED[:3]
        assert all(not one.certain for one in log.damaged.values())
        if log.damaged:
            assert min(log.damaged) not in whole
            assert log.synced_index == min(log.damaged) - 1
            log.truncate(min(log.damaged))
        assert everything(log) == WANTED[: log.last_index]
        if ids == "none":
            assert log.last_index == 3 + len(whole)
        log.close()


def test_a_torn_entry_before_a_whole_one_of_the_same_group() -> None:
    """Neither was acknowledged; the second must not be taken without the first, then or later."""
    disk = _last_two_in_one_group()
    image = disk.image(_segment(disk))
    image[_frame_at(4) : _frame_at(5)] = bytes(FRAME_BYTES)
    image[_id_at(4) : _id_at(5)] = bytes(ID_BYTES)
    log = opened(disk)
    assert log.last_index == 3
    fill(log, [frame(4, term=1, salt=9)])
    log.close()
    again = opened(disk)
    assert everything(again) == [*WANTED[:3], frame(4, term=1, salt=9)]
    again.close()


def test_one_damaged_header_copy_costs_nothing() -> None:
    built = _built(closed=True)
    for at in (*range(HEADER_STRUCT.size), *range(PAGE, PAGE + HEADER_STRUCT.size)):
        disk = built.copy()
        _flip(disk, at)
        log = opened(disk)
        assert everything(log) == WANTED
        log.close()
        image = disk.image(_segment(disk))
        assert image[: HEADER_STRUCT.size] == image[PAGE : PAGE + HEADER_STRUCT.size]


def test_two_damaged_header_copies_halt() -> None:
    disk = _built(closed=True)
    _flip(disk, 20)
    _flip(disk, PAGE + 20)
    with pytest.raises(CorruptSegment, match="header"):
        opened(disk)


def test_a_segment_of_a_newer_version_is_refused() -> None:
    disk = _built(closed=True)
    image = disk.image(_segment(disk))
    for page in (0, PAGE):
        image[page + 4] = 2
        crc = google_crc32c.value(bytes(image[page : page + HEADER_STRUCT.size - 4]))
        image[page + HEADER_STRUCT.size - 4 : page + HEADER_STRUCT.size] = crc.to_bytes(4, "little")
    with pytest.raises(DataDirectoryError, match="version 2"):
        opened(disk)


def test_a_missing_segment_halts() -> None:
    for gone in (0, 1):
        disk = SimFiles()
        log = opened(disk)
        fill(log, frames(1, 30))
        log.close()
        disk.remove(disk.find("segment-")[gone])
        with pytest.raises(CorruptSegment):
            opened(disk)


def _rich() -> tuple[SimFiles, list[bytes], dict[RecordRef, bytes]]:
    """Segments, two checkpoints, kept records, a spare."""
    disk = SimFiles()
    log = opened(disk)
    wanted = frames(1, 60)
    for one in wanted:
        log.append([one])
    log.save_checkpoint(30, 1, [b"older state"])
    log.save_checkpoint(45, 1, [b"newer state"])
    kept = {RecordRef(index, 48, 60): wanted[index - 1][56:116] for index in range(1, 30, 4)}
    log.compact(30, lambda lo, hi: [ref for ref in kept if lo <= ref.index < hi])
    first = log.first_index
    assert first > 20
    kept = {ref: data for ref, data in kept.items() if ref.index < first}
    log.close()
    return disk, wanted, kept


def _check_rich(disk: SimFiles, wanted: list[bytes], kept: dict[RecordRef, bytes]) -> str:
    """Opens it, repairs what is named, and compares everything. Says what happened."""
    log = opened(disk)
    outcome = "unharmed"
    try:
        assert log.checkpoint is not None
        if log.checkpoint.index == 45:
            assert log.checkpoint.payload == b"newer state"
        else:
            assert (log.checkpoint.index, log.checkpoint.payload) == (30, b"older state")
            outcome = "older checkpoint"
        for index in range(log.first_index, log.last_index + 1):
            try:
                found = log.read_frames(index, index + 1)
            except DamagedEntry as error:
                named = error.index
                assert named in log.damaged
                log.repair(wanted[index - 1])
                found = log.read_frames(index, index + 1)
                outcome = "repaired"
            assert found == [wanted[index - 1]]
        assert log.damaged == {}
        for ref, data in kept.items():
            try:
                found_record = log.read_record(ref.index, ref.position, ref.length)
            except DamagedEntry:
                log.repair_record(ref, data)
                found_record = log.read_record(ref.index, ref.position, ref.length)
                outcome = "repaired"
            assert found_record == data
        assert log.last_index == 59
    finally:
        log.close()
    return outcome


def test_any_zeroed_block_of_any_file_is_survived() -> None:
    built, wanted, kept = _rich()
    assert _check_rich(built.copy(), wanted, kept) == "unharmed"
    outcomes: set[str] = set()
    for path, inode in list(built.names_now.items()):
        for at in range(0, 0 if inode is None else len(inode.data), PAGE):
            disk = built.copy()
            image = disk.image(path)
            image[at : at + PAGE] = bytes(len(image[at : at + PAGE]))
            try:
                outcomes.add(_check_rich(disk, wanted, kept))
            except CorruptSegment:
                # A kept file fits one block, table and headers alike: refused by name.
                assert path.name.startswith("kept-"), f"{path} block {at}"
    assert outcomes == {"unharmed", "older checkpoint", "repaired"}


def test_any_flipped_byte_of_any_file_is_survived() -> None:
    built, wanted, kept = _rich()
    chance = random.Random(7)
    for path, inode in list(built.names_now.items()):
        size = 0 if inode is None else len(inode.data)
        places = range(size) if size < 400 else [chance.randrange(size) for _ in range(60)]
        for at in places:
            disk = built.copy()
            disk.image(path)[at] ^= 1 << chance.randrange(8)
            _check_rich(disk, wanted, kept)


def test_the_last_good_checkpoint_is_taken_and_without_any_the_node_halts() -> None:
    disk, wanted, kept = _rich()
    older, newer = disk.find("checkpoint-")
    disk.image(newer)[70] ^= 1
    assert _check_rich(disk.copy(), wanted, kept) == "older checkpoint"
    disk.image(older)[3] ^= 1
    with pytest.raises(CorruptSegment, match="checkpoint"):
        opened(disk)


def test_damage_below_the_checkpoint_is_found_when_it_is_read() -> None:
    disk = SimFiles()
    log = opened(disk)
    fill(log, frames(1, 30))
    log.save_checkpoint(29, 1, [b"state"])
    log.close()
    _flip(disk, _frame_at(2) + 60)
    log = opened(disk)
    assert log.damaged == {}
    with pytest.raises(DamagedEntry):
        log.read_record(2, 48, 60)
    assert log.damaged[2].certain
    log.repair(frame(2))
    assert log.read_record(2, 48, 60) == frame(2)[56:116]
    assert log.wait_synced(29, WAIT_S)
    log.close()


def test_a_seal_does_not_take_rotten_ids_for_what_was_written() -> None:
    """The IDs rot while their segment is still being filled: they are made anew from the frames."""
    disk = SimFiles()
    log = opened(disk)
    fill(log, frames(1, 5))
    (path,) = disk.find("segment-")
    image = disk.image(path)
    image[IDS_AT + ID_BYTES : IDS_AT + 3 * ID_BYTES] = bytes(2 * ID_BYTES)
    fill(log, frames(5, 12))
    log.close()
    again = opened(disk.copy())
    assert everything(again) == frames(1, 12)
    assert [again.term_at(index) for index in range(1, 12)] == [1] * 11
    assert not again.damaged
    again.close()


def torn_at_the_end() -> SimFiles:
    """The power failed while entry 5 was written: its ID is there, its frame in part."""
    disk = _built(closed=False)
    disk.boots += 1
    disk.image(_segment(disk))[_frame_at(5) + 50 : _frame_at(6)] = bytes(FRAME_BYTES - 50)
    return disk


def switched(log: Log, meanwhile: Callable[[], None], *, written: bool = False) -> None:
    """Runs `meanwhile` when a repair has looked at what is damaged, and does not write yet; or, if
    `written`, when it has just written."""
    reader = log._store.reader
    repair = reader.repair

    def late(*arguments: Any) -> None:
        reader.repair = repair  # type: ignore[method-assign]
        if written:
            repair(*arguments)
        meanwhile()
        if not written:
            repair(*arguments)

    reader.repair = late  # type: ignore[assignment,method-assign]


def replace_the_end(log: Log) -> None:
    log.truncate(5)
    fill(log, [frame(5, 2, 300), frame(6, 2)])


@pytest.mark.parametrize("written", [False, True])
def test_a_repaired_entry_never_strikes_what_has_replaced_it_meanwhile(written: bool) -> None:
    disk = torn_at_the_end()
    with closing(opened(disk)) as log:
        assert list(log.damaged) == [5]
        switched(log, lambda: replace_the_end(log), written=written)
        log.repair(frame(5))
        assert log.synced_index == 6
        killed = disk.copy()
    with closing(opened(killed)) as log:
        assert not log.damaged
        assert everything(log)[4:] == [frame(5, 2, 300), frame(6, 2)]


def test_what_has_replaced_a_repaired_entry_stays_damaged_if_it_is() -> None:
    disk = torn_at_the_end()
    with closing(opened(disk)) as log:

        def replaced_and_rotten() -> None:
            replace_the_end(log)
            segment = log._store.index.locate(5)
            disk.image(log._store.directory / segment.file_name)[segment.place(5)[0] + 60] ^= 1
            for _ in log.scrub():
                pass
            assert log.damaged[5].term == 2

        switched(log, replaced_and_rotten)
        log.repair(frame(5))
        assert log.damaged[5].term == 2
        log.repair(frame(5, 2, 300))
        assert not log.damaged


@pytest.mark.parametrize("written", [False, True])
def test_an_entry_that_is_repaired_in_a_replaced_log_says_nothing_of_the_new_one(
    written: bool,
) -> None:
    with closing(opened(torn_at_the_end())) as log:
        switched(log, lambda: log.install_snapshot([b"state"], 4, 1, []), written=written)
        log.repair(frame(5))
        assert (log.last_index, log.synced_index, log.damaged) == (4, 4, {})


def test_a_reader_that_meets_a_replaced_entry_calls_no_other_one_damaged() -> None:
    """It has read what a truncation left half gone, and is switched away from before it says so."""
    disk = torn_at_the_end()
    with closing(opened(disk)) as log:
        store = log._store
        index, locate = store.index, store.index.locate
        segment = locate(5)
        start, end = segment.place(5)
        replace_the_end(log)
        assert not store._note_damage(segment, 5, start, end - start)
        assert not store._note_damage(segment, 7, start, end - start)
        assert not log.damaged
        assert index.locate(5) is not segment
