"""Appended entries are reported, read and found again; truncation, recycling, compaction."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from semel.broker.log import IndexUnavailable, Log, LogConfig, RecordRef
from semel.protos.errors import Closed, DataDirectoryError, DiskFull, InvalidRequest
from semel.protos.frames import FRAME_HEADER_BYTES, iter_records
from tests.kit.disk import SimFiles
from tests.kit.log_entries import ROOT, SMALL, WAIT_S, everything, fill, frame, frames, opened
from tests.kit.waiting import until


def record_refs(frame_bytes: bytes, index: int) -> list[RecordRef]:
    return [RecordRef(index, at, len(payload)) for at, _, payload in iter_records(frame_bytes)]


def test_an_empty_log_begins_at_one() -> None:
    log = opened(SimFiles())
    assert (log.first_index, log.last_index, log.last_term, log.synced_index) == (1, 0, 0, 0)
    assert log.term_at(0) == 0
    assert log.term_at(1) is None
    assert log.checkpoint is None
    assert everything(log) == []
    assert log.oldest_unsynced_age_ms() == 0
    log.close()


def test_what_is_appended_is_visible_at_once_and_reported_when_durable() -> None:
    disk = SimFiles()
    log = opened(disk)
    reports: list[tuple[int, int]] = []
    done = threading.Event()

    def on_synced(index: int, term: int) -> None:
        reports.append((index, term))
        if index == 30:
            done.set()

    log.on_synced = on_synced
    added = frames(1, 21) + frames(21, 31, term=3)
    log.append(added[:10])
    assert log.last_index == 10
    log.append(added[10:])
    assert log.cached_frames(25, 31) == added[24:30]
    assert (log.last_index, log.last_term) == (30, 3)
    assert [log.term_at(index) for index in (0, 1, 20, 21, 30, 31)] == [0, 1, 1, 3, 3, None]
    assert done.wait(WAIT_S)
    assert reports[-1] == (30, 3)
    assert [index for index, _ in reports] == sorted({index for index, _ in reports})
    assert log.synced_index == 30
    assert log.read_frames(1, 31) == added
    log.close()
    again = opened(disk)
    assert everything(again) == added
    assert (again.first_index, again.last_index, again.last_term) == (1, 30, 3)
    assert [again.term_at(index) for index in (0, 20, 21, 31)] == [0, 1, 3, None]
    again.close()


def test_a_checkpoint_is_saved_once_its_entries_are_durable() -> None:
    """After a failure of power it would stand alone: entries up to it are never replayed."""
    disk = SimFiles()
    log = opened(disk)
    fill(log, frames(1, 4))
    log.hold_writes()
    log.append(frames(4, 6))
    saving = threading.Thread(target=log.save_checkpoint, args=(5, 1, [b"state"]))
    saving.start()
    saving.join(0.05)
    assert log.checkpoint is None
    log.release_writes()
    saving.join(WAIT_S)
    assert log.checkpoint is not None
    assert log.checkpoint.index == 5
    log.close()


def test_a_checkpoint_makes_entries_durable_whose_syncs_are_delayed() -> None:
    disk = SimFiles()
    log = opened(disk, replace(SMALL, sync_interval_ms=3_600_000))
    added = frames(1, 6)
    fill(log, added)
    log.save_checkpoint(5, 1, [b"state"])
    again = opened(disk.restart(survives=0.0))
    assert again.checkpoint is not None
    assert (again.checkpoint.index, again.last_index) == (5, 5)
    assert everything(again) == added
    again.close()
    log.close()


def test_a_log_that_was_not_closed_is_found_whole() -> None:
    disk = SimFiles()
    log = opened(disk)
    added = frames(1, 20)
    fill(log, added)
    again = opened(disk.copy())
    assert everything(again) == added
    again.close()
    log.close()


def test_it_goes_on_in_a_new_segment_after_every_start() -> None:
    disk = SimFiles()
    wanted: list[bytes] = []
    for life in range(5):
        log = opened(disk)
        assert everything(log) == wanted
        added = frames(len(wanted) + 1, len(wanted) + 4, term=life + 1)
        fill(log, added)
        wanted += added
        if life % 2:
            log.close()
        else:
            disk = disk.copy()
            log.close()


def test_cached_frames_are_all_or_nothing() -> None:
    log = opened(SimFiles())
    added = frames(1, 41)
    fill(log, added)
    log.append([frame(41)])
    assert log.cached_frames(1, 3) is None
    assert log.cached_frames(41, 42) == [frame(41)]
    assert log.cached_frames(41, 43) is None
    assert log.cached_frames(41, 41) is None
    log.close()


def test_unsynced_frames_stay_in_memory_whatever_the_bound() -> None:
    disk = SimFiles()
    log = opened(disk, LogConfig(segment_bytes=16_384, ids_per_segment=64, cache_bytes=0))
    with disk.mutex:  # the disk stands still
        log.append(frames(1, 20))
        assert log.read_frames(1, 20) == frames(1, 20)
        assert log.synced_index == 0
        assert log.oldest_unsynced_age_ms() >= 0
    assert log.wait_synced(19, WAIT_S)
    assert log.oldest_unsynced_age_ms() == 0
    log.append([frame(20)])
    assert log.cached_frames(1, 2) is None
    assert log.read_frames(1, 21) == frames(1, 21)
    log.close()


def test_fit_counts_bytes_over_segments() -> None:
    log = opened(SimFiles())
    sizes = [len(one) for one in frames(1, 31, length=100)]
    fill(log, frames(1, 31, length=100))
    for lo in range(1, 31):
        for bound in (0, 1, sizes[0], 5 * sizes[0], 5 * sizes[0] + 7, 1_000_000):
            hi = lo
            while hi < 25 and sum(sizes[lo - 1 : hi]) <= bound:
                hi += 1
            hi = max(hi, min(lo + 1, 25), lo) if lo < 25 else min(hi, lo)
            assert log.fit(lo, 25, bound) == hi, (lo, bound)
    assert log.size_of(3) == sizes[2]
    assert log.fit(31, 40, 100) == 31
    with pytest.raises(IndexUnavailable):
        log.size_of(31)
    with pytest.raises(IndexUnavailable):
        log.fit(0, 5, 100)
    log.close()


def test_records_are_found_by_index_and_position() -> None:
    log = opened(SimFiles())
    fill(log, frames(1, 40))
    fill(log, frames(40, 41))
    for index in (1, 2, 20, 40):
        (ref,) = record_refs(frame(index), index)
        wanted = frame(index)[ref.position + 8 : ref.position + 8 + ref.length]
        for _ in range(2):  # from disk, then from the read cache
            assert log.read_record(ref.index, ref.position, ref.length) == wanted
        view = log.cached_record(ref.index, ref.position, ref.length)
        assert view is None or bytes(view) == wanted
    assert log.cached_record(40, FRAME_HEADER_BYTES, 60) is not None
    assert log.cached_record(1, FRAME_HEADER_BYTES, 60) is None
    for position, length in ((FRAME_HEADER_BYTES, 61), (0, 60), (10_000, 60), (-8, 60)):
        with pytest.raises(InvalidRequest):
            log.read_record(1, position, length)
    with pytest.raises(IndexUnavailable):
        log.read_record(41, FRAME_HEADER_BYTES, 60)
    with pytest.raises(IndexUnavailable):
        log.read_frames(40, 42)
    log.close()


def test_a_frame_larger_than_a_segment_gets_one_of_its_own() -> None:
    disk = SimFiles()
    log = opened(disk)
    added = [frame(1), frame(2, length=50_000), frame(3), frame(4, length=50_000)]
    for one in added:
        fill(log, [one])
    assert log.read_frames(1, 5) == added
    log.close()
    again = opened(disk)
    assert everything(again) == added
    again.close()


@pytest.mark.parametrize("from_index", range(1, 21))
def test_truncate_then_append_of_another_term(from_index: int) -> None:
    disk = SimFiles()
    log = opened(disk)
    fill(log, frames(1, 21))
    log.truncate(from_index)
    assert log.last_index == from_index - 1
    assert log.synced_index == from_index - 1
    assert log.last_term == (1 if from_index > 1 else 0)
    assert log.cached_frames(from_index, from_index + 1) is None
    with pytest.raises(IndexUnavailable):
        log.read_frames(from_index, from_index + 1)
    wanted = frames(1, from_index)
    more = frames(from_index, from_index + 3, term=2)
    fill(log, more)
    wanted += more
    assert log.read_frames(1, from_index + 3) == wanted
    killed = opened(disk.copy())
    assert everything(killed) == wanted
    killed.close()
    log.close()
    again = opened(disk)
    assert everything(again) == wanted
    assert again.last_term == 2
    again.close()


def test_a_truncation_without_append_leaves_the_old_log_or_the_short_one() -> None:
    disk = SimFiles()
    log = opened(disk)
    fill(log, frames(1, 21))
    log.truncate(5)
    log.close()
    again = opened(disk)
    found = everything(again)
    assert found in (frames(1, 5), frames(1, 21))
    fill(again, [frame(len(found) + 1, term=4)])
    again.close()
    third = opened(disk)
    assert everything(third) == [*found, frame(len(found) + 1, term=4)]
    third.close()


def test_a_completion_of_truncated_entries_is_not_taken_for_their_successors() -> None:
    disk = SimFiles()
    log = opened(disk)
    fill(log, frames(1, 4))
    reports: list[tuple[int, int]] = []
    log.on_synced = lambda index, term: reports.append((index, term))
    with disk.mutex:  # all of this is queued before the disk moves
        log.append(frames(4, 9))
        log.truncate(6)
        log.append(frames(6, 8, term=2))
        log.truncate(7)
        log.append(frames(7, 10, term=3))
        assert log.synced_index == 3
    assert log.wait_synced(9, WAIT_S)
    assert all(log.term_at(index) == term for index, term in reports)
    assert log.read_frames(1, 10) == [
        *frames(1, 6),
        *frames(6, 7, term=2),
        *frames(7, 10, term=3),
    ]
    log.close()


def test_a_late_completion_says_nothing_of_what_has_replaced_its_entries() -> None:
    """A write of before the truncation is done: up to the cut it counts, behind it stands what is
    not written yet."""
    log = opened(SimFiles())
    fill(log, frames(1, 4))
    reports: list[tuple[int, int]] = []
    log.on_synced = lambda index, term: reports.append((index, term))
    log.hold_writes()
    log.append(frames(4, 9))
    log.truncate(6)
    log.append(frames(6, 10, term=2))
    log._on_durable(8, 1, 0, 0)
    assert (log.synced_index, reports) == (5, [(5, 1)])
    log.release_writes()
    assert log.wait_synced(9, WAIT_S)
    assert reports[-1] == (9, 2)
    log.close()


def test_a_second_owner_is_turned_away(tmp_path: Path) -> None:
    log = Log.open(tmp_path, SMALL)
    with pytest.raises(DataDirectoryError, match="another process"):
        Log.open(tmp_path, SMALL)
    log.append(frames(1, 3))
    log.close()
    again = Log.open(tmp_path, SMALL)
    assert everything(again) == frames(1, 3)
    again.close()


def test_it_works_on_real_files(tmp_path: Path) -> None:
    log = Log.open(tmp_path, SMALL)
    added = frames(1, 200)
    for one in added:
        log.append([one])
    assert log.wait_synced(199, WAIT_S)
    log.truncate(150)
    fill(log, frames(150, 160, term=2))
    log.save_checkpoint(120, 1, [b"state"])
    log.save_checkpoint(140, 1, [b"newer ", b"state"])
    assert log.compact(130, lambda lo, hi: []) > 100
    log.close()
    again = Log.open(tmp_path, SMALL)
    assert everything(again) == [*frames(again.first_index, 150), *frames(150, 160, term=2)]
    assert again.checkpoint is not None
    assert again.checkpoint.payload == b"newer state"
    assert again.stats().spares <= SMALL.recycle_max + 1
    again.close()


def test_interval_durability_reports_before_the_sync() -> None:
    disk = SimFiles()
    config = LogConfig(segment_bytes=16_384, ids_per_segment=64, sync_interval_ms=60_000)
    log = opened(disk, config)
    fill(log, frames(1, 10))
    assert log.stats().syncs <= 1
    log.close()
    again = opened(disk.restart(survives=0.0), config)
    assert everything(again) == frames(1, 10)
    again.close()


def test_interval_durability_syncs_after_the_interval() -> None:
    disk = SimFiles()
    config = LogConfig(segment_bytes=16_384, ids_per_segment=64, sync_interval_ms=1)
    log = opened(disk, config)
    synced = threading.Event()
    fill(log, frames(1, 10))
    for _ in range(1000):
        if log.stats().syncs:
            break
        synced.wait(0.01)
    killed = disk.restart(survives=0.0)
    log.close()
    again = opened(killed, config)
    assert everything(again) == frames(1, 10)
    again.close()


def test_a_closed_log_accepts_nothing() -> None:
    log = opened(SimFiles())
    log.close()
    log.close()
    with pytest.raises(Closed):
        log.append([frame(1)])
    with pytest.raises(Closed):
        log.truncate(1)
    with pytest.raises(Closed):
        log.wait_synced(1)


@pytest.mark.parametrize("kind", ["write", "sync"])
def test_a_failed_write_or_sync_is_fatal_and_never_tried_again(kind: str) -> None:
    disk = SimFiles()
    log = opened(disk)
    fill(log, frames(1, 3))
    failed = threading.Event()
    errors: list[BaseException] = []
    reports: list[int] = []

    def on_failure(error: BaseException) -> None:
        errors.append(error)
        failed.set()

    log.on_failure = on_failure
    log.on_synced = lambda index, term: reports.append(index)
    disk.failing[kind] = OSError(5, "input/output error")
    log.append(frames(3, 5))
    assert failed.wait(WAIT_S)
    disk.failing.clear()
    assert isinstance(errors[0], OSError)
    with pytest.raises(Closed):
        log.append(frames(5, 6))
    with pytest.raises(Closed):
        log.wait_synced(4, WAIT_S)
    assert log.read_frames(1, 3) == frames(1, 3)
    log.close()
    assert len(errors) == 1
    assert reports == []


def test_a_failure_from_before_the_owner_listens_is_not_lost() -> None:
    disk = SimFiles()
    disk.failing["allocate"] = OSError(5, "input/output error")
    log = opened(disk)
    log._store.keeper._thread.join(WAIT_S)
    errors: list[BaseException] = []
    log.on_failure = errors.append
    assert [type(error) for error in errors] == [OSError]
    log.close()


def test_a_full_disk_is_reported_before_anything_is_taken_and_heals() -> None:
    disk = SimFiles()
    disk.room = 4 * SMALL.segment_bytes
    log = opened(disk)
    failures: list[BaseException] = []
    log.on_failure = failures.append
    index = 1
    while not log.disk_full:
        try:
            log.append([frame(index, length=1_000)])
        except DiskFull:
            break
        assert log.wait_synced(index, WAIT_S)
        index += 1
        log._store.keeper.drain()
        assert index < 1000
    while log.can_append(len(frame(index, length=1_000))):
        fill(log, [frame(index, length=1_000)])
        index += 1
    last = log.last_index
    with pytest.raises(DiskFull):
        log.append([frame(index, length=1_000)])
    assert log.last_index == last == index - 1
    assert log.stats().disk_full
    assert log.read_frames(1, index) == [frame(one, length=1_000) for one in range(1, index)]
    disk.room += 8 * SMALL.segment_bytes
    waited = threading.Event()
    for _ in range(300):
        if log.can_append(2_000):
            break
        waited.wait(0.01)
    fill(log, [frame(index, length=1_000)])
    assert failures == []
    log.close()
    again = opened(disk)
    assert again.last_index == index
    again.close()


def test_room_that_came_back_is_found_though_the_keeper_is_called_all_the_time() -> None:
    disk = SimFiles()
    disk.room = SMALL.segment_bytes // 2
    log = opened(disk)
    keeper = log._store.keeper
    keeper.drain()
    assert log.disk_full
    disk.room = 8 * SMALL.segment_bytes
    given_up_at = time.monotonic() + WAIT_S
    while log.disk_full:
        keeper.drain()  # as every attempt to clean the log does
        assert time.monotonic() < given_up_at
    log.close()


def test_a_spare_whose_room_was_promised_only_is_a_full_disk_and_no_failure() -> None:
    """Thin volumes, and file systems that write nothing in place, refuse what they allocated."""
    disk = SimFiles()
    disk.full = ("spare", "sync")
    log = opened(disk, replace(SMALL, fill_bytes_per_second=1 << 30))
    failures: list[BaseException] = []
    log.on_failure = failures.append
    until(lambda: log.disk_full)
    with pytest.raises(DiskFull):
        log.append([frame(1)])
    disk.full = None
    until(lambda: not log.disk_full)
    fill(log, [frame(1)])
    log.close()
    assert failures == []


def test_closing_on_a_full_disk_ends() -> None:
    disk = SimFiles()
    disk.room = SMALL.segment_bytes // 2
    log = opened(disk)
    failed = threading.Event()
    log.on_failure = lambda error: failed.set()
    try:
        log.append(frames(1, 3))
    except DiskFull:
        failed.set()
    log.close()
    assert failed.wait(WAIT_S)


def test_an_entry_out_of_turn_is_our_own_bug() -> None:
    log = opened(SimFiles())
    fill(log, frames(1, 4, term=2))
    with pytest.raises(AssertionError):
        log.append([frame(5, term=2)])
    with pytest.raises(AssertionError):
        log.append([frame(4, term=1)])
    with pytest.raises(AssertionError):
        log.truncate(0)
    with pytest.raises(AssertionError):
        log.truncate(5)
    assert log.last_index == 3
    log.close()


def test_the_lock_file_names_its_directory() -> None:
    disk = SimFiles()
    log = opened(disk)
    with pytest.raises(DataDirectoryError):
        opened(disk)
    log.close()
    assert disk.find("LOCK") == []
    assert ROOT / "CURRENT" in disk.names_now
    opened(disk).close()


def test_a_fresh_spare_is_filled_while_it_waits_and_taken_at_any_time() -> None:
    config = LogConfig(
        segment_bytes=3_000_000, ids_per_segment=64, fill_bytes_per_second=10_000_000_000
    )
    for wait in (True, False):
        disk = SimFiles()
        log = opened(disk, config)
        paused = threading.Event()
        keeper = log._store.keeper
        for _ in range(500 if wait else 0):
            spare = keeper._ready
            if spare is not None and spare.unfilled_at == config.segment_bytes:
                break
            paused.wait(0.005)
        else:
            assert not wait
        wanted = frames(1, 150)
        for one in wanted:
            log.append([one])
        assert log.wait_synced(149, WAIT_S)
        for found in (disk.restart(survives=0.0), disk.copy()):
            again = opened(found, config)
            assert everything(again) == wanted
            again.close()
        log.close()
