"""Every byte that matters is looked at while the log is open, and repaired or named."""

from __future__ import annotations

from pathlib import Path

import pytest

from semel.broker.log import Log, RecordRef
from semel.broker.log.segment import HEADER_STRUCT, ID_BYTES, IDS_AT, PAGE, SEAL_AT, SEAL_STRUCT
from tests.kit.disk import SimFiles
from tests.kit.log_entries import frames, opened

WANTED = frames(1, 60)


def _rich() -> tuple[SimFiles, Log, dict[RecordRef, bytes]]:
    """Segments that are sealed, two checkpoints, kept records; open."""
    disk = SimFiles()
    log = opened(disk)
    for one in WANTED:
        log.append([one])
    log.save_checkpoint(30, 1, [b"older state"])
    log.save_checkpoint(45, 1, [b"newer state"])
    kept = {RecordRef(index, 48, 60): WANTED[index - 1][56:116] for index in range(1, 30, 4)}
    log.compact(30, lambda lo, hi: [ref for ref in kept if lo <= ref.index < hi])
    kept = {ref: data for ref, data in kept.items() if ref.index < log.first_index}
    log._store.keeper.drain()
    return disk, log, kept


def _scrub(log: Log) -> int:
    return sum(log.scrub())


def _damage_is_gone(log: Log) -> None:
    assert log.damaged == {}
    assert log.damaged_records == []
    assert not log.checkpoints_damaged


def test_a_whole_log_is_read_once_and_nothing_changes() -> None:
    disk, log, _ = _rich()
    operations = disk.operations
    assert _scrub(log) > sum(map(len, WANTED[log.first_index - 1 :]))
    assert disk.operations == operations, "it wrote"
    _damage_is_gone(log)
    log.close()


def test_any_flipped_byte_of_a_sealed_segment_is_found() -> None:
    disk, log, _ = _rich()
    segment = log._store.index.segments[1]
    assert segment.sealed
    path = next(path for path in disk.find("segment-") if path.name == segment.file_name)
    good = bytes(disk.image(path))
    names = [
        *range(HEADER_STRUCT.size),
        *range(SEAL_AT, SEAL_AT + SEAL_STRUCT.size),
        *range(PAGE, PAGE + HEADER_STRUCT.size),
        *range(PAGE + SEAL_AT, PAGE + SEAL_AT + SEAL_STRUCT.size),
    ]
    for at in names:
        disk.image(path)[at] ^= 1 << at % 8
        _scrub(log)
        assert disk.image(path) == good, f"byte {at} is not repaired"
    for at in range(IDS_AT, IDS_AT + segment.count * ID_BYTES, 3):
        disk.image(path)[at] ^= 1 << at % 8
        _scrub(log)
        found = opened(disk.copy())  # the lag of an ID may have changed: what it says counts
        assert (
            found.read_frames(segment.first_index, segment.end_index)
            == (WANTED[segment.first_index - 1 : segment.end_index - 1])
        )
        found.close()
        written = bytes(disk.image(path))
        _scrub(log)
        assert disk.image(path) == written, "it is whole now"
    _damage_is_gone(log)
    for at in range(segment.header.frames_at, segment.end, 5):
        disk.image(path)[at] ^= 1 << at % 8
        _scrub(log)
        (index,) = log.damaged
        assert log.damaged[index].certain
        log.repair(WANTED[index - 1])
        _damage_is_gone(log)
    _scrub(log)
    _damage_is_gone(log)
    log.close()


def test_any_flipped_byte_of_a_kept_record_is_found() -> None:
    disk, log, kept = _rich()
    for ref, data in kept.items():
        path = next(path for path in disk.find("kept-") if data in bytes(disk.image(path)))
        at = bytes(disk.image(path)).index(data)
        for byte in range(at, at + len(data), 3):
            disk.image(path)[byte] ^= 1 << byte % 8
            _scrub(log)
            assert log.damaged_records == [ref]
            log.repair_record(ref, data)
            _damage_is_gone(log)
    log.close()


@pytest.mark.parametrize("which", [0, 1])
def test_any_flipped_byte_of_a_checkpoint_is_found(which: int) -> None:
    disk, log, _ = _rich()
    path: Path = disk.find("checkpoint-")[which]
    good = bytes(disk.image(path))
    log.close()
    for at in range(0, len(good), 2):
        again = disk.copy()
        log = opened(again)
        again.image(path)[at] ^= 1 << at % 8
        _scrub(log)
        assert log.checkpoints_damaged
        assert log.checkpoint is not None
        assert log.checkpoint.payload in (b"older state", b"newer state")
        log.save_checkpoint(50, 1, [b"new state"])
        _damage_is_gone(log)
        assert path not in again.find("checkpoint-")
        log.close()


def test_several_damaged_frames_in_one_piece_are_all_found() -> None:
    disk, log, _ = _rich()
    segment = log._store.index.segments[1]
    path = next(path for path in disk.find("segment-") if path.name == segment.file_name)
    for index in range(segment.first_index, segment.end_index, 2):
        disk.image(path)[segment.place(index)[0] + 50] ^= 1
    _scrub(log)
    assert set(log.damaged) == set(range(segment.first_index, segment.end_index, 2))
    log.close()


@pytest.mark.parametrize("kind", ["write", "sync"])
@pytest.mark.parametrize("at", [20, IDS_AT + 5, SEAL_AT + 3])
def test_what_finds_no_room_is_written_again_by_the_next_pass(kind: str, at: int) -> None:
    """Also what reads well by then, because only the page cache has it."""
    disk, log, _ = _rich()
    segment = log._store.index.segments[1]
    path = next(path for path in disk.find("segment-") if path.name == segment.file_name)
    inode = disk.names_now[path]
    assert inode is not None
    for image in (inode.data, inode.durable):
        image[at] ^= 1
    disk.full = (segment.file_name, kind)
    _scrub(log)
    disk.full = None
    _scrub(log)
    again = opened(disk.restart(survives=0.0))
    whole = disk.operations
    _damage_is_gone(again)
    assert again.read_frames(again.first_index, 60) == WANTED[again.first_index - 1 : 59]
    again.close()
    assert bytes(inode.durable) == bytes(inode.data)
    _scrub(log)
    assert disk.operations == whole, "it is whole"
    log.close()
